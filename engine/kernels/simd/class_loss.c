#include "kernels/class_loss.h"
#include "kernels/context.h"
#include "kernels/reduce.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/vmath.h"

#include <float.h>
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

MX_INLINE float weighted_as(const void *x, const bool bf16, int64_t n, const float *weight)
{
    vf total[2] = {vf_zero(), vf_zero()};
    for (int64_t i = 0, u = 0; i < n; i += VL, u ^= 1) {
        int64_t left = lanes_left(n, i);
        total[u] = vf_fma(weight_at(weight, i, left), load(x, i, left, bf16), total[u]);
    }
    return vf_sum(total[0] + total[1]);
}

/* NaN where an x is infinite or NaN. */
static float lse(const void *x, mx_dtype dtype, int64_t n, const float *weight, float *weighted)
{
    float center = -FLT_MAX, sum = 0;
    MX_SIMD_NAME(mx_reduce).row_exps((mx_array){(void *)x, dtype}, n, &center, &sum);
    if (weighted)
        *weighted = mx_is_bf16(dtype) ? weighted_as(x, true, n, weight) : weighted_as(x, false, n, weight);
    return isfinite(sum) ? center + logf(sum) : NAN;
}

MX_INLINE vf term(vf x, vf shift, vf factor, vf spread, const bool bf16)
{
    vf d = x - shift;
    return vf_fma(bf16 ? vf_exp2_fast(d * vf_set1(LOG2E)) : vf_exp(d), factor, spread);
}

MX_INLINE void part_grads(const void *x, const bool bf16, int64_t i, int64_t end, vf shift, vf factor,
                          const float *weight, vf spread, void *dx)
{
    for (; i < end; i += VL) {
        int64_t left = lanes_left(end, i);
        vf d = term(row_load_part(x, i, left, bf16), shift, factor, spread * weight_at(weight, i, left), bf16);
        row_store_part(dx, i, d, left, bf16);
    }
}

/* With weights, which are in order, x is read in order, too. */
MX_INLINE void grad_as(const void *x, const bool bf16, const bool stream, int64_t n, float row_lse, float factor,
                       const float *weight, float spread, void *dx)
{
    vf shift = vf_set1(row_lse), f = vf_set1(factor), s = vf_set1(-spread);
    int64_t i = stream ? row_head(dx, n, bf16) : 0;
    part_grads(x, bf16, 0, i, shift, f, weight, s, dx);
    for (; !weight && i + 4 * VL <= n; i += 4 * VL) {
        vf v[4];
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        row_get4(x, i, v, bf16);
        for (int u = 0; u < 4; u++)
            v[u] = term(v[u], shift, f, s, bf16);
        row_put(dx, i, v, bf16, stream);
        row_put(dx, i + 2 * VL, v + 2, bf16, stream);
    }
    for (; weight && i + 2 * VL <= n; i += 2 * VL) {
        vf v[2];
        for (int u = 0; u < 2; u++)
            v[u] = term(row_load(x, i + u * VL, bf16), shift, f, s * vf_load(weight + i + u * VL), bf16);
        row_store2(dx, i, v[0], v[1], bf16, stream);
    }
    part_grads(x, bf16, i, n, shift, f, weight, s, dx);
}

static void grad(const void *x, mx_dtype dtype, int64_t n, float row_lse, float factor, const float *weight,
                 float spread, void *dx, bool stream)
{
    if (mx_is_bf16(dtype))
        stream ? grad_as(x, true, true, n, row_lse, factor, weight, spread, dx)
               : grad_as(x, true, false, n, row_lse, factor, weight, spread, dx);
    else
        stream ? grad_as(x, false, true, n, row_lse, factor, weight, spread, dx)
               : grad_as(x, false, false, n, row_lse, factor, weight, spread, dx);
    if (stream)
        _mm_sfence();
}

const mx_class_paths MX_SIMD_NAME(mx_classes) = {.lse = lse, .grad = grad};
