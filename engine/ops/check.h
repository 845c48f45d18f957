/* Finds the first NaN or infinity, to explain a loss that is not finite: checks the result of every operation. It costs
 * a pass over each result while it is on, and nothing while it is off.
 *
 * A script names its current part with mx_place, and backward restores that name for the gradients of what was computed
 * there. Results of collectives are not checked, because they may be in flight; operations that read them are. Script's
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
    int64_t nans, infinities, first; /* counts in the result; index of the first bad element, from 0, row-major */
} mx_finding;

/* The script's name for its current part ("layer 3"); held (core/intern.h), or NULL. Recorded calls store it. */
extern const char *mx_place;
extern bool mx_place_backward;

void mx_check_start(void);
mx_finding mx_check_stop(void); /* the first finding since the start; its texts are valid until the next start */

#endif
