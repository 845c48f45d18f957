#include "kernels/context.h"

#include "kernels/simd/rows.h"

#include <math.h>

/* e^d, d <= 0 or NaN; where rows are bf16, to a hundredth of its rounding. */
MX_INLINE vf row_exp(vf d, const bool bf16)
{
    if (bf16)
        return vf_exp2_fast(d * vf_set1(LOG2E));
    return vf_exp(d);
}

MX_INLINE float row_max(const void *x, int64_t width, const bool bf16)
{
    vf low = vf_set1(-INFINITY), largest[4] = {low, low, low, low};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        row_prefetch(x, width + i, 4 * VL, bf16);
        vf v[4];
        row_get(x, i, v, bf16);
        row_get(x, i + 2 * VL, v + 2, bf16);
        for (int u = 0; u < 4; u++)
            largest[u] = vf_max(largest[u], v[u]);
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        largest[0] = vf_max(largest[0], vf_select(vm_first(n), row_load_part(x, i, n, bf16), low));
    }
    return vf_hmax(vf_max(vf_max(largest[0], largest[1]), vf_max(largest[2], largest[3])));
}

/* Exponentials of a row's first values that are kept from the sum on; wider rows calculate the others twice. */
enum { KEPT = 8192 };

MX_INLINE float row_sum_exp(const void *x, int64_t width, vf largest, float *kept, const bool log, const bool bf16)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        vf v[4];
        row_get(x, i, v, bf16);
        row_get(x, i + 2 * VL, v + 2, bf16);
        for (int u = 0; u < 4; u++) {
            v[u] = row_exp(v[u] - largest, bf16);
            sum[u] = sum[u] + v[u];
            if (!log && i < KEPT)
                vf_store(kept + i + u * VL, v[u]);
        }
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        sum[0] = sum[0] + vf_select(vm_first(n), row_exp(row_load_part(x, i, n, bf16) - largest, bf16), vf_zero());
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

MX_INLINE vf row_value(vf d, vf k, const bool log, const bool bf16)
{
    if (log)
        return d - k;
    return row_exp(d, bf16) * k;
}

MX_INLINE void forward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool bf16,
                            const bool stream)
{
    _Alignas(64) float kept[KEPT];
    for (int64_t r = first; r < last; r++) {
        const void *x = row_of(s->x, r, s->width, bf16);
        void *y = row_of_out(s->y, r, s->width, bf16);
        vf largest = vf_set1(row_max(x, s->width, bf16));
        float sum = row_sum_exp(x, s->width, largest, kept, log, bf16);
        vf k = vf_set1(log ? logf(sum) : 1.0f / sum);
        int64_t i = 0;
        for (; i + 4 * VL <= s->width && i < KEPT && !log; i += 4 * VL) {
            vf v[4];
            for (int u = 0; u < 4; u++)
                v[u] = vf_load(kept + i + u * VL) * k;
            row_put(y, i, v, bf16, stream);
            row_put(y, i + 2 * VL, v + 2, bf16, stream);
        }
        for (; i + 4 * VL <= s->width; i += 4 * VL) {
            vf v[4];
            row_get(x, i, v, bf16);
            row_get(x, i + 2 * VL, v + 2, bf16);
            for (int u = 0; u < 4; u++)
                v[u] = row_value(v[u] - largest, k, log, bf16);
            row_put(y, i, v, bf16, stream);
            row_put(y, i + 2 * VL, v + 2, bf16, stream);
        }
        for (; i < s->width; i += VL) {
            int64_t n = lanes_left(s->width, i);
            row_store_part(y, i, row_value(row_load_part(x, i, n, bf16) - largest, k, log, bf16), n, bf16);
        }
    }
}

MX_INLINE vf gradient_term(vf sum, vf y, vf dy, const bool log)
{
    if (log)
        return sum + dy;
    return vf_fma(dy, y, sum);
}

MX_INLINE float row_gradient_sum(const void *y, const void *dy, int64_t width, const bool log, const bool bf16)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        row_prefetch(dy, width + i, 4 * VL, bf16);
        vf a[4], d[4];
        for (int u = 0; u < 4; u += 2) {
            row_get(y, i + u * VL, a + u, bf16);
            row_get(dy, i + u * VL, d + u, bf16);
        }
        for (int u = 0; u < 4; u++)
            sum[u] = gradient_term(sum[u], a[u], d[u], log);
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        sum[0] = gradient_term(sum[0], row_load_part(y, i, n, bf16), row_load_part(dy, i, n, bf16), log);
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

MX_INLINE vf gradient(vf y, vf dy, vf sum, const bool log, const bool bf16)
{
    if (!log)
        return y * (dy - sum);
    return dy - (bf16 ? vf_exp2_fast(y * vf_set1(LOG2E)) : vf_exp(y)) * sum;
}

MX_INLINE void backward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool bf16,
                             const bool stream)
{
    for (int64_t r = first; r < last; r++) {
        const void *y = row_of(s->y, r, s->width, bf16), *dy = row_of(s->dy, r, s->width, bf16);
        void *dx = row_of_out(s->dx, r, s->width, bf16);
        vf sum = vf_set1(row_gradient_sum(y, dy, s->width, log, bf16));
        int64_t i = 0;
        for (; i + 2 * VL <= s->width; i += 2 * VL) {
            row_prefetch(y, s->width + i, 2 * VL, bf16);
            vf a[2], d[2];
            row_get(y, i, a, bf16);
            row_get(dy, i, d, bf16);
            for (int u = 0; u < 2; u++)
                d[u] = gradient(a[u], d[u], sum, log, bf16);
            row_put(dx, i, d, bf16, stream);
        }
        for (; i < s->width; i += VL) {
            int64_t n = lanes_left(s->width, i);
            vf d = gradient(row_load_part(y, i, n, bf16), row_load_part(dy, i, n, bf16), sum, log, bf16);
            row_store_part(dx, i, d, n, bf16);
        }
    }
}

MX_INLINE void forward_as(const mx_softmax *s, int64_t first, int64_t last, const bool bf16, const bool stream)
{
    s->log ? forward_rows(s, first, last, true, bf16, stream) : forward_rows(s, first, last, false, bf16, stream);
}

static void forward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    if (mx_is_bf16(s->dtype))
        stream ? forward_as(s, first, last, true, true) : forward_as(s, first, last, true, false);
    else
        stream ? forward_as(s, first, last, false, true) : forward_as(s, first, last, false, false);
    _mm_sfence();
}

MX_INLINE void backward_as(const mx_softmax *s, int64_t first, int64_t last, const bool bf16, const bool stream)
{
    s->log ? backward_rows(s, first, last, true, bf16, stream) : backward_rows(s, first, last, false, bf16, stream);
}

static void backward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    if (mx_is_bf16(s->dtype))
        stream ? backward_as(s, first, last, true, true) : backward_as(s, first, last, true, false);
    else
        stream ? backward_as(s, first, last, false, true) : backward_as(s, first, last, false, false);
    _mm_sfence();
}

const mx_softmax_paths MX_SIMD_NAME(mx_softmax) = {forward, backward};
