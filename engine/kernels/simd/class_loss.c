#include "kernels/context.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/vmath.h"

#include <math.h>

/* VL values from i on, `left` of them there. */
MX_INLINE vf load(const void *x, int64_t i, int64_t left, const bool bf16)
{
    return left == VL ? row_load(x, i, bf16) : row_load_part(x, i, left, bf16);
}

MX_INLINE vf weight_at(const float *weight, int64_t i, int64_t left)
{
    if (!weight)
        return vf_set1(1.0f);
    return left == VL ? vf_load(weight + i) : vf_load_part(weight + i, left);
}

MX_INLINE float lse_as(const void *x, const bool bf16, int64_t n, const float *weight, float *weighted)
{
    const vf low = vf_set1(-INFINITY);
    vf largest[2] = {low, low}, total = vf_zero(), sum[2] = {vf_zero(), vf_zero()};
    for (int64_t i = 0, u = 0; i < n; i += VL, u ^= 1) {
        int64_t left = lanes_left(n, i);
        vf one = load(x, i, left, bf16);
        largest[u] = vf_max(left == VL ? one : vf_select(vm_first(left), one, low), largest[u]);
        if (weighted)
            total = vf_fma(weight_at(weight, i, left), one, total);
    }
    float top = vf_hmax(vf_max(largest[0], largest[1]));
    vf shift = vf_set1(top);
    for (int64_t i = 0, u = 0; i < n; i += VL, u ^= 1) {
        int64_t left = lanes_left(n, i);
        vf e = vf_exp(load(x, i, left, bf16) - shift);
        sum[u] = sum[u] + (left == VL ? e : vf_select(vm_first(left), e, vf_zero()));
    }
    if (weighted)
        *weighted = vf_sum(total);
    return top + logf(vf_sum(sum[0] + sum[1]));
}

static float lse(const void *x, mx_dtype dtype, int64_t n, const float *weight, float *weighted)
{
    return mx_is_bf16(dtype) ? lse_as(x, true, n, weight, weighted) : lse_as(x, false, n, weight, weighted);
}

MX_INLINE void grad_as(const void *x, const bool bf16, int64_t n, float row_lse, float factor, const float *weight,
                       float spread, void *dx)
{
    vf shift = vf_set1(row_lse), f = vf_set1(factor), s = vf_set1(-spread);
    for (int64_t i = 0; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf d = vf_exp(load(x, i, left, bf16) - shift) * f;
        d = vf_fma(s, weight_at(weight, i, left), d);
        if (left == VL)
            row_store(dx, i, d, bf16);
        else
            row_store_part(dx, i, d, left, bf16);
    }
}

static void grad(const void *x, mx_dtype dtype, int64_t n, float row_lse, float factor, const float *weight,
                 float spread, void *dx)
{
    if (mx_is_bf16(dtype))
        grad_as(x, true, n, row_lse, factor, weight, spread, dx);
    else
        grad_as(x, false, n, row_lse, factor, weight, spread, dx);
}

const mx_class_paths MX_SIMD_NAME(mx_classes) = {.lse = lse, .grad = grad};
