#include "kernels/softmax.h"

#include "kernels/simd/rows.h"

#include <math.h>

/* e^x, x <= 0 or NaN. Where rows are halves, to a hundredth of their rounding. */
ROW_INLINE vf row_exp(vf x, const bool half)
{
    return half ? vf_exp2_fast(x * vf_set1(LOG2E)) : vf_exp(x);
}

ROW_INLINE float row_max(const void *x, int64_t width, const bool half)
{
    vf low = vf_set1(-INFINITY), largest[2] = {low, low};
    int64_t i = 0;
    for (; i + 2 * VL <= width; i += 2 * VL) {
        row_prefetch(x, width + i, 2 * VL, half);
        vf v[2];
        row_get(x, i, v, half);
        for (int u = 0; u < 2; u++)
            largest[u] = vf_max(largest[u], v[u]);
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        largest[0] = vf_max(largest[0], vf_select(vm_first(n), row_load_part(x, i, n, half), low));
    }
    return vf_hmax(vf_max(largest[0], largest[1]));
}

ROW_INLINE float row_sum_exp(const void *x, int64_t width, float largest, const bool half)
{
    vf m = vf_set1(largest), sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        vf v[4];
        row_get(x, i, v, half);
        row_get(x, i + 2 * VL, v + 2, half);
        for (int u = 0; u < 4; u++)
            sum[u] = sum[u] + row_exp(v[u] - m, half);
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        sum[0] = sum[0] + vf_select(vm_first(n), row_exp(row_load_part(x, i, n, half) - m, half), vf_zero());
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* d: x less the row's largest. */
ROW_INLINE vf row_value(vf d, vf k, const bool log, const bool half)
{
    if (log)
        return d - k;
    return row_exp(d, half) * k;
}

ROW_INLINE void forward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool half)
{
    for (int64_t r = first; r < last; r++) {
        const void *x = row_of(s->x, r, s->width, half);
        void *y = row_of_out(s->y, r, s->width, half);
        float largest = row_max(x, s->width, half);
        float sum = row_sum_exp(x, s->width, largest, half);
        vf m = vf_set1(largest), k = vf_set1(log ? logf(sum) : 1.0f / sum);
        int64_t i = 0;
        for (; i + 4 * VL <= s->width; i += 4 * VL) {
            vf v[4];
            row_get(x, i, v, half);
            row_get(x, i + 2 * VL, v + 2, half);
            for (int u = 0; u < 4; u++)
                v[u] = row_value(v[u] - m, k, log, half);
            row_put(y, i, v, half, false);
            row_put(y, i + 2 * VL, v + 2, half, false);
        }
        for (; i < s->width; i += VL) {
            int64_t n = lanes_left(s->width, i);
            row_store_part(y, i, row_value(row_load_part(x, i, n, half) - m, k, log, half), n, half);
        }
    }
}

ROW_INLINE float row_gradient_sum(const void *y, const void *dy, int64_t width, const bool log, const bool half)
{
    vf sum = vf_zero();
    for (int64_t i = 0; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        vf d = n == VL ? row_load(dy, i, half) : row_load_part(dy, i, n, half);
        if (log)
            sum = sum + d;
        else
            sum = vf_fma(d, n == VL ? row_load(y, i, half) : row_load_part(y, i, n, half), sum);
    }
    return vf_sum(sum);
}

ROW_INLINE void backward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool half)
{
    for (int64_t r = first; r < last; r++) {
        const void *y = row_of(s->y, r, s->width, half), *dy = row_of(s->dy, r, s->width, half);
        void *dx = row_of_out(s->dx, r, s->width, half);
        vf sum = vf_set1(row_gradient_sum(y, dy, s->width, log, half));
        for (int64_t i = 0; i < s->width; i += VL) {
            int64_t n = lanes_left(s->width, i);
            vf a = n == VL ? row_load(y, i, half) : row_load_part(y, i, n, half);
            vf d = n == VL ? row_load(dy, i, half) : row_load_part(dy, i, n, half);
            d = log ? d - row_exp(a, half) * sum : a * (d - sum);
            if (n == VL)
                row_store(dx, i, d, half);
            else
                row_store_part(dx, i, d, n, half);
        }
    }
}

static void forward(const mx_softmax *s, int64_t first, int64_t last)
{
    if (s->dtype == MX_BF16)
        s->log ? forward_rows(s, first, last, true, true) : forward_rows(s, first, last, false, true);
    else
        s->log ? forward_rows(s, first, last, true, false) : forward_rows(s, first, last, false, false);
}

static void backward(const mx_softmax *s, int64_t first, int64_t last)
{
    if (s->dtype == MX_BF16)
        s->log ? backward_rows(s, first, last, true, true) : backward_rows(s, first, last, false, true);
    else
        s->log ? backward_rows(s, first, last, true, false) : backward_rows(s, first, last, false, false);
}

const mx_softmax_paths MX_SIMD_NAME(mx_softmax) = {forward, backward};
