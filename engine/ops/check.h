/* Looking for the first value that is no number: every result of every operation is looked through, for finding out
 * where a loss went wrong. It costs a pass over each result; nothing where it is off.
 *
 * Only results count: a script says where it is (mx_place), and backward repeats that for the gradients of what was
 * computed there. Results of collectives are not looked at, since they may be on their way; who reads them is. Script's
 * thread only; not collective. */
#ifndef MX_OPS_CHECK_H
#define MX_OPS_CHECK_H

#include "ops/op.h"

typedef struct mx_finding {
    const mx_op *op; /* NULL: everything was finite so far */
    const char *place;
    bool backward;
    mx_dtype dtype;
    mx_shape shape;
    int64_t nans, infinities, first; /* in the result; the first bad element, from 0, in row-major order */
} mx_finding;

/* Where the script is, in words of its own ("layer 3"); held (core/intern.h), or NULL. Calls that are recorded remember
 * it. */
extern const char *mx_place;
extern bool mx_place_backward;

void mx_check_start(void);
mx_finding mx_check_stop(void); /* the first finding since the start; its texts are valid until the next start */

#endif
