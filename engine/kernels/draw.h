/* Random draws other than uniform and normal floats: integers, choices, truncated normals. Each number depends on
 * (seed, offset, index) alone, by core/rng.h; every path gives the same bits. */
#ifndef MX_KERNELS_DRAW_H
#define MX_KERNELS_DRAW_H

#include "core/status.h"
#include "kernels/random.h"

/* y[i] = an integer in [low, low + range), each equally likely to 2^-32; range >= 1, and y's dtype holds them all. */
void mx_random_integers(mx_stream s, int64_t low, uint64_t range, mx_array y, int64_t n);

/* y[i] = 1 with probability p[i], else 0; p f32 or bf16, y of any dtype. Returns the first element of p that is not in
 * [0, 1], and then y is undefined, or -1. */
int64_t mx_random_bernoulli(mx_stream s, mx_array p, mx_array y, int64_t n);

/* y[i] = mean + std z, z standard normal in [low, high], low < high; but in [least, greatest]. y f32 or bf16. */
typedef struct mx_truncated {
    double mean, std, low, high;
    float least, greatest;
} mx_truncated;
void mx_random_truncated(mx_stream s, const mx_truncated *t, mx_array y, int64_t n);

/* y = the numbers 0 .. n - 1 in random order; n fits i32. */
mx_status mx_random_permutation(mx_stream s, int32_t *y, int64_t n);

/* ids (rows, n) of weights p (rows, width), each drawn in proportion to its weight; without replacement, in the order
 * of the draws. *bad: the first weight that is not a number from 0 on, or -1. Where there is one, or where a row has
 * too few weights that are not 0 (none, or without replacement fewer than n), ids are undefined. */
typedef struct mx_multinomial {
    int64_t rows, width, n;
    bool replacement;
    mx_array p;
    int32_t *ids;
} mx_multinomial;
mx_status mx_random_multinomial(mx_stream s, const mx_multinomial *m, int64_t *bad);

/* What truncated normals are computed from: z is the quantile of below + u width, in [low, high]. */
typedef struct mx_quantiles {
    double below, width, low, high, mean, std;
    float least, greatest;
} mx_quantiles;

/* For one instruction set: n truncated normals from as many words, n a multiple of MX_RNG_GROUP; whether all x are in
 * [0, most]; the sum of each MX_WEIGHT_BLOCK weights, and whether all are numbers from 0 on. x f32 or bf16. */
enum { MX_WEIGHT_BLOCK = 64 };
typedef struct mx_draw_paths {
    void (*truncate)(const mx_quantiles *c, const uint32_t *words, float *y, int64_t n);
    bool (*within)(mx_dtype dtype, const void *x, float most, int64_t n);
    bool (*sums)(mx_dtype dtype, const void *x, int64_t n, double *sums);
} mx_draw_paths;

#endif
