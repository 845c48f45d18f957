/* Random draws other than uniform and normal floats: integers, choices, truncated normals. Each number depends on
 * (seed, offset, index) alone, by core/rng.h; all is computed in f64 by one code, so every path gives the same bits. */
#ifndef MX_KERNELS_DRAW_H
#define MX_KERNELS_DRAW_H

#include "core/status.h"
#include "kernels/random.h"

/* y[i] = an integer in [low, low + range), each equally likely to 2^-32; range >= 1, and y's dtype holds them all. */
void mx_random_integers(mx_stream s, int64_t low, uint64_t range, mx_array y, int64_t n);

/* y[i] = 1 with probability p[i], else 0; p f32 or bf16 in [0, 1], y of any dtype. */
void mx_random_bernoulli(mx_stream s, mx_array p, mx_array y, int64_t n);

/* y[i] = mean + std z, z standard normal in [low, high], low < high; but in [least, greatest]. y f32 or bf16. */
typedef struct mx_truncated {
    double mean, std, low, high;
    float least, greatest;
} mx_truncated;
void mx_random_truncated(mx_stream s, const mx_truncated *t, mx_array y, int64_t n);

/* y = the numbers 0 .. n - 1 in random order; n fits i32. */
mx_status mx_random_permutation(mx_stream s, int32_t *y, int64_t n);

/* The first of n elements that is not in [0, most], or -1; x f32 or bf16. */
int64_t mx_find_outside(mx_array x, float most, int64_t n);

/* ids (rows, n) of weights p (rows, width), each drawn in proportion to its weight; without replacement, in the order
 * of the draws. The weights are good, and each row has enough that are not 0: one, or n without replacement. */
typedef struct mx_multinomial {
    int64_t rows, width, n;
    bool replacement;
    mx_array p;
    int32_t *ids;
} mx_multinomial;
mx_status mx_random_multinomial(mx_stream s, const mx_multinomial *m);

#endif
