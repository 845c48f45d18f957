/* Softmax of rows, and of columns, each in a lane. */
#include "kernels/context.h"

#include "kernels/simd/rows.h"
#include "kernels/simd/vmath.h"

#include <float.h>
#include <math.h>

/* e^d, d <= 4 or NaN; where rows are bf16, to a hundredth of its rounding. */
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

/* The widest row whose exponentials are kept from the sum on. */
enum { KEPT = 8192 };

/* The widest row that the second-level cache takes besides another one. */
enum { NEAR_BYTES = 1 << 19 };

/* The longest pass asks for the next row. */
MX_INLINE float row_sum_exp(const void *x, int64_t width, vf largest, float *kept, const bool log, const bool bf16)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        row_prefetch(x, width + i, 4 * VL, bf16);
        vf v[4];
        row_get(x, i, v, bf16);
        row_get(x, i + 2 * VL, v + 2, bf16);
        for (int u = 0; u < 4; u++) {
            v[u] = row_exp(v[u] - largest, bf16);
            sum[u] = sum[u] + v[u];
            if (!log)
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

MX_INLINE void part_values(const void *x, void *y, int64_t i, int64_t end, vf largest, vf k, const bool log,
                           const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        row_store_part(y, i, row_value(row_load_part(x, i, n, bf16) - largest, k, log, bf16), n, bf16);
    }
}

/* Rows of which few exponentials are kept are read twice, not three times: for a number near the largest and the sum of
 * exponentials, and for the results. Then the next row is asked for. */
MX_INLINE void forward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool bf16,
                            const bool stream)
{
    _Alignas(64) float kept[KEPT];
    const int64_t ahead = s->width * (bf16 ? 2 : 4) <= NEAR_BYTES ? s->width : 32 * VL;
    for (int64_t r = first; r < last; r++) {
        const void *x = row_of(s->x, r, s->width, bf16);
        void *y = row_of_out(s->y, r, s->width, bf16);
        bool wide = s->width > KEPT;
        int64_t head = stream ? row_head(y, s->width, bf16) : 0, i = head;
        float center = -FLT_MAX, sum = 0;
        bool infinite = false;
        if (wide) {
            MX_SIMD_NAME(mx_reduce).row_exps((mx_array){(void *)x, s->dtype}, s->width, &center, &sum);
        } else {
            center = row_max(x, s->width, bf16);
            infinite = center > FLT_MAX;
            sum = row_sum_exp(x, s->width, vf_set1(center), kept, log, bf16);
        }
        float factor = !isfinite(sum) ? NAN : log ? logf(sum) : 1.0f / sum;
        if (s->scale) {
            factor = infinite || isinf(sum) ? 0 : factor * s->scale[r];
            center = fminf(center, FLT_MAX);
        }
        vf largest = vf_set1(center), k = vf_set1(factor);
        part_values(x, y, 0, head, largest, k, log, bf16);
        const bool in_order = !bf16 || head == 0; /* not with the pairs of row_get() cut elsewhere */
        const int64_t end = s->width / (4 * VL) * (4 * VL);
        for (; i + 4 * VL <= end && !wide && !log && in_order; i += 4 * VL) {
            vf v[4];
            for (int u = 0; u < 4; u++)
                v[u] = vf_load(kept + i + u * VL) * k;
            row_put(y, i, v, bf16, stream);
            row_put(y, i + 2 * VL, v + 2, bf16, stream);
        }
        for (; i + 4 * VL <= s->width; i += 4 * VL) {
            vf v[4];
            row_prefetch_later(x, i + ahead, 4 * VL, bf16);
            row_get(x, i, v, bf16);
            row_get(x, i + 2 * VL, v + 2, bf16);
            for (int u = 0; u < 4; u++)
                v[u] = row_value(v[u] - largest, k, log, bf16);
            row_put(y, i, v, bf16, stream);
            row_put(y, i + 2 * VL, v + 2, bf16, stream);
        }
        part_values(x, y, i, s->width, largest, k, log, bf16);
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

MX_INLINE void part_gradients(const void *y, const void *dy, void *dx, int64_t i, int64_t end, vf sum, const bool log,
                              const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        vf d = gradient(row_load_part(y, i, n, bf16), row_load_part(dy, i, n, bf16), sum, log, bf16);
        row_store_part(dx, i, d, n, bf16);
    }
}

MX_INLINE void backward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool bf16,
                             const bool stream)
{
    for (int64_t r = first; r < last; r++) {
        const void *y = row_of(s->y, r, s->width, bf16), *dy = row_of(s->dy, r, s->width, bf16);
        void *dx = row_of_out(s->dx, r, s->width, bf16);
        vf sum = vf_set1(row_gradient_sum(y, dy, s->width, log, bf16));
        int64_t head = stream ? row_head(dx, s->width, bf16) : 0, i = head;
        part_gradients(y, dy, dx, 0, head, sum, log, bf16);
        for (; i + 2 * VL <= s->width; i += 2 * VL) {
            row_prefetch(y, s->width + i, 2 * VL, bf16);
            vf a[2], d[2];
            row_get(y, i, a, bf16);
            row_get(dy, i, d, bf16);
            for (int u = 0; u < 2; u++)
                d[u] = gradient(a[u], d[u], sum, log, bf16);
            row_put(dx, i, d, bf16, stream);
        }
        part_gradients(y, dy, dx, i, s->width, sum, log, bf16);
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

/* ---- columns ---- */

MX_INLINE vf load_column(const void *x, int64_t i, int64_t left, const bool bf16)
{
    return left >= VL ? row_load(x, i, bf16) : row_load_part(x, i, left, bf16);
}

/* Numbers of columns are arranged as row_get() has the columns. */
MX_INLINE void forward_columns_as(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                                  const bool log, const bool bf16, const bool stream)
{
    const int64_t ahead = rows_ahead(s->inner, n, bf16);
    for (int64_t i = 0; i < s->width; i++, at += s->inner) {
        int64_t c = 0;
        for (; c + 2 * VL <= n; c += 2 * VL) {
            vf v[2];
            row_prefetch(s->x, at + ahead + c, 2 * VL, bf16);
            row_get(s->x, at + c, v, bf16);
            for (int u = 0; u < 2; u++)
                v[u] = row_value(v[u] - vf_load(center + c + u * VL), vf_load(factor + c + u * VL), log, bf16);
            row_put(s->y, at + c, v, bf16, stream);
        }
        for (; c < n; c += VL) {
            int64_t left = lanes_left(n, c);
            vf v = row_value(load_column(s->x, at + c, left, bf16) - vf_load_part(center + c, left),
                             vf_load_part(factor + c, left), log, bf16);
            row_store_part(s->y, at + c, v, left, bf16);
        }
    }
}

MX_INLINE void column_terms_as(const mx_softmax *s, int64_t at, int64_t height, int64_t n, float *sum, const bool log,
                               const bool bf16)
{
    const int64_t ahead = rows_ahead(s->inner, n, bf16);
    for (int64_t i = 0; i < height; i++, at += s->inner) {
        int64_t c = 0;
        for (; c + 2 * VL <= n; c += 2 * VL) {
            vf y[2], dy[2];
            row_prefetch(s->y, at + ahead + c, 2 * VL, bf16);
            row_prefetch(s->dy, at + ahead + c, 2 * VL, bf16);
            row_get(s->y, at + c, y, bf16);
            row_get(s->dy, at + c, dy, bf16);
            for (int u = 0; u < 2; u++)
                vf_store(sum + c + u * VL, gradient_term(vf_load(sum + c + u * VL), y[u], dy[u], log));
        }
        for (; c < n; c += VL) {
            int64_t left = lanes_left(n, c);
            vf y = load_column(s->y, at + c, left, bf16), dy = load_column(s->dy, at + c, left, bf16);
            vf_store_part(sum + c, gradient_term(vf_load_part(sum + c, left), y, dy, log), left);
        }
    }
}

MX_INLINE void backward_columns_as(const mx_softmax *s, int64_t at, int64_t n, const float *sum, const bool log,
                                   const bool bf16, const bool stream)
{
    const int64_t ahead = rows_ahead(s->inner, n, bf16);
    for (int64_t i = 0; i < s->width; i++, at += s->inner) {
        int64_t c = 0;
        for (; c + 2 * VL <= n; c += 2 * VL) {
            vf y[2], d[2];
            row_prefetch(s->y, at + ahead + c, 2 * VL, bf16);
            row_prefetch(s->dy, at + ahead + c, 2 * VL, bf16);
            row_get(s->y, at + c, y, bf16);
            row_get(s->dy, at + c, d, bf16);
            for (int u = 0; u < 2; u++)
                d[u] = gradient(y[u], d[u], vf_load(sum + c + u * VL), log, bf16);
            row_put(s->dx, at + c, d, bf16, stream);
        }
        for (; c < n; c += VL) {
            int64_t left = lanes_left(n, c);
            vf d = gradient(load_column(s->y, at + c, left, bf16), load_column(s->dy, at + c, left, bf16),
                            vf_load_part(sum + c, left), log, bf16);
            row_store_part(s->dx, at + c, d, left, bf16);
        }
    }
}

/* Calls `function` with log and dtype as constants. */
#define FOR_EACH_KIND(function, s, ...)                                                                                \
    if (mx_is_bf16((s)->dtype))                                                                                        \
        (s)->log ? function(s, __VA_ARGS__, true, true) : function(s, __VA_ARGS__, false, true);                       \
    else                                                                                                               \
        (s)->log ? function(s, __VA_ARGS__, true, false) : function(s, __VA_ARGS__, false, false);

MX_INLINE void forward_columns_of(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                                  bool stream, const bool log, const bool bf16)
{
    float arranged[2][MX_SOFTMAX_COLUMNS];
    center = row_arranged(center, arranged[0], n, bf16);
    factor = row_arranged(factor, arranged[1], n, bf16);
    stream ? forward_columns_as(s, at, n, center, factor, log, bf16, true)
           : forward_columns_as(s, at, n, center, factor, log, bf16, false);
}

static void forward_columns(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                            bool stream)
{
    FOR_EACH_KIND(forward_columns_of, s, at, n, center, factor, stream)
    _mm_sfence();
}

static void column_terms(const mx_softmax *s, int64_t at, int64_t height, int64_t n,
                         float *sum){FOR_EACH_KIND(column_terms_as, s, at, height, n, sum)}

MX_INLINE void backward_columns_of(const mx_softmax *s, int64_t at, int64_t n, const float *sum, bool stream,
                                   const bool log, const bool bf16)
{
    stream ? backward_columns_as(s, at, n, sum, log, bf16, true) : backward_columns_as(s, at, n, sum, log, bf16, false);
}

static void backward_columns(const mx_softmax *s, int64_t at, int64_t n, const float *sum, bool stream)
{
    FOR_EACH_KIND(backward_columns_of, s, at, n, sum, stream)
    _mm_sfence();
}

const mx_softmax_paths MX_SIMD_NAME(mx_softmax) = {forward, backward, forward_columns, backward_columns, column_terms};
