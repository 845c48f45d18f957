/* The numbers of batch norm and group norm, from statistics in f64 to what the loops compute with. */
#ifndef MX_KERNELS_CHANNEL_NUMBERS_H
#define MX_KERNELS_CHANNEL_NUMBERS_H

#include "core/element.h"
#include "kernels/channel_norm.h"
#include "kernels/inline.h"
#include "kernels/reduce.h"

#include <math.h>

/* The sums of dy and of dy (x - mean). */
typedef struct pair {
    double sum, dot;
} pair;

MX_INLINE mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

MX_INLINE double value_of(mx_array v, int64_t i, double otherwise)
{
    return v.data ? mx_get_number(v.data, i, v.dtype) : otherwise;
}

MX_INLINE double rstd_of(const mx_channel_norm *n, int64_t set) { return 1 / sqrt(value_of(n->var, set, 0) + n->eps); }

/* As the loops want it: a NaN without bits that bf16 would lose. */
MX_INLINE float single(double x) { return isnan(x) ? NAN : (float)x; }

/* dx = weight rstd dy + (x - mean) slope + shift: slope and shift of a set of `count` elements, from the sums of
 * weight dy and of weight dy (x - mean). mean and var have gradients of their own. */
MX_INLINE void find_slope(const mx_channel_norm *n, int64_t set, double count, double rstd, pair all, double *slope,
                          double *shift)
{
    *slope = 0;
    *shift = 0;
    if (!n->fixed) {
        *slope = (2 * value_of(n->dvar, set, 0) - rstd * rstd * rstd * all.dot) / count;
        *shift = (value_of(n->dmean, set, 0) - rstd * all.sum) / count;
    }
}

MX_INLINE void put_moments(const mx_channel_norm *n, int64_t set, mx_moments m)
{
    mx_set_number(n->mean.data, set, m.mean, n->mean.dtype);
    mx_set_number(n->var.data, set, m.sum / m.n, n->var.dtype);
}

/* Group norm of planes of fewer than MX_SHORT_PLANE elements, f32 or bf16 (group_norm.c). Backward adds to `sums`,
 * which are (blocks, 2, channels) for blocks of `block_images`: the gradients of weight and of bias. */
enum { MX_SHORT_PLANE = 256 };
mx_status mx_short_groups_forward(const mx_channel_norm *n);
mx_status mx_short_groups_backward(const mx_channel_norm *n, int64_t block_images, double *sums);

#endif
