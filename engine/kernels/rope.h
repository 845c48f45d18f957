/* Rotary position embedding: pairs of a head's components turn by position times frequency.
 *
 *   y1 = f (x1 cos a - x2 sin a)      y2 = f (x2 cos a + x1 sin a)      a = position theta^(-2 i / dims)
 *
 * for the pairs i = 0 .. dims / 2 - 1, which are the components i and i + dims / 2, or 2 i and 2 i + 1 (interleaved).
 * Components from dims on stay as they are. Angles are computed in double, once for each position, and kept between
 * calls. */
#ifndef MX_KERNELS_ROPE_H
#define MX_KERNELS_ROPE_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>

/* What the angles depend on. */
typedef struct mx_rope_frequencies {
    /* Radians by which each pair turns from one position to the next: (2, dims / 2), of which the two rows are added in
     * double. NULL: they follow from theta. */
    const float *table;
    double theta;
    double factor; /* f above */
    int64_t dims;  /* even */
    bool interleaved;
} mx_rope_frequencies;

typedef struct mx_rope {
    mx_rope_frequencies frequencies;
    int64_t tokens, heads, head_dim; /* x and y are (tokens, heads, head_dim); head_dim >= frequencies.dims */
    mx_dtype dtype;                  /* of x and y: f32 or bf16 */
    bool inverse;                    /* turn back (times f, too): the gradient of the rotation */
    const void *x;
    void *y; /* may be x */

    /* Token t is at position offset + positions[t % period], or offset + t % period where positions is NULL. */
    const int32_t *positions;
    int64_t period, offset;
} mx_rope;

/* MX_ERR_MEMORY when the table of angles cannot be had. */
mx_status mx_rope_run(const mx_rope *r);

/* Radians by which pair i turns from one position to the next. */
double mx_rope_frequency(const mx_rope_frequencies *f, int64_t i);

/* The loop over tokens for one instruction set. Token t's angles are at angles + row[t] * (dims or, interleaved,
 * 2 dims): the cosines and then the sines, all times f; interleaved, each twice, the first of two sines negated. */
typedef struct mx_rope_tokens {
    const mx_rope *rope;
    const float *angles;
    const int64_t *row;
    int64_t first, last;
    bool stream;
} mx_rope_tokens;

typedef struct mx_rope_paths {
    void (*rotate)(const mx_rope_tokens *t);
} mx_rope_paths;

#endif
