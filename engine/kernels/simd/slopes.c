/* Gradients of reductions in vectors. */
#include "kernels/context.h"

#include "core/element.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"
#include "kernels/simd/look_ahead.h"
#include "kernels/simd/rows.h"
#include "kernels/slopes.h"

MX_INLINE vf count_equal(vf count, vf x, vf value)
{
    return count + vf_select(vf_equal(x, value), vf_set1(1.0f), vf_zero());
}

MX_INLINE float row_equal_as(const bool bf16, const void *x, int64_t n, float value)
{
    vf c = vf_set1(value), count[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf v[4];
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        row_get4(x, i, v, bf16);
        for (int u = 0; u < 4; u++)
            count[u] = count_equal(count[u], v[u], c);
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf one = count_equal(vf_zero(), row_load_part(x, i, left, bf16), c);
        count[0] = count[0] + vf_select(vm_first(left), one, vf_zero());
    }
    return vf_sum((count[0] + count[1]) + (count[2] + count[3]));
}

static float row_equal(mx_array x, int64_t n, float value)
{
    return mx_is_bf16(x.dtype) ? row_equal_as(true, x.data, n, value) : row_equal_as(false, x.data, n, value);
}

MX_INLINE void equal_in_rows(const bool bf16, float *count, const void *x, int64_t at, const int64_t rows,
                             int64_t stride, int64_t width, const float *value)
{
    const look_ahead look = look_ahead_of(rows, stride, width, bf16);
    int64_t j = 0;
    for (; j + VL <= width; j += VL) {
        vf a = vf_load(count + j), c = vf_load(value + j);
        int64_t later = at + place_ahead(&look, j);
#pragma GCC unroll 8
        for (int64_t r = 0; r < rows; r++) {
            row_prefetch(x, later + r * stride, VL, bf16);
            a = count_equal(a, row_load(x, at + r * stride + j, bf16), c);
        }
        vf_store(count + j, a);
    }
    for (; j < width; j += VL) {
        int64_t left = lanes_left(width, j);
        vf a = vf_load_part(count + j, left), c = vf_load_part(value + j, left);
        for (int64_t r = 0; r < rows; r++)
            a = count_equal(a, row_load_part(x, at + r * stride + j, left, bf16), c);
        vf_store_part(count + j, a, left);
    }
}

MX_INLINE void rows_equal_as(const bool bf16, float *count, const void *x, int64_t n, int64_t stride, int64_t width,
                             const float *value)
{
    int64_t i = 0;
    for (; i + ROWS_AT_ONCE <= n; i += ROWS_AT_ONCE)
        equal_in_rows(bf16, count, x, i * stride, ROWS_AT_ONCE, stride, width, value);
    if (i < n)
        equal_in_rows(bf16, count, x, i * stride, n - i, stride, width, value);
}

static void rows_equal(float *count, mx_array x, int64_t n, int64_t stride, int64_t width, const float *value)
{
    mx_is_bf16(x.dtype) ? rows_equal_as(true, count, x.data, n, stride, width, value)
                        : rows_equal_as(false, count, x.data, n, stride, width, value);
}

/* ---- their gradients ---- */

/* Calls `function` with what is computed and the dtype as constants. */
#define FOR_EACH_ABOUT(function, what, bf16, ...)                                                                      \
    if (what == MX_SQUARES_ABOUT)                                                                                      \
        return bf16 ? function(MX_SQUARES_ABOUT, true, __VA_ARGS__) : function(MX_SQUARES_ABOUT, false, __VA_ARGS__);  \
    return bf16 ? function(MX_EQUAL_ABOUT, true, __VA_ARGS__) : function(MX_EQUAL_ABOUT, false, __VA_ARGS__);

MX_INLINE vf slope(mx_about what, vf x, vf center, vf factor)
{
    if (what == MX_SQUARES_ABOUT)
        return (x - center) * factor;
    return vf_select(vf_equal(x, center), factor, vf_zero());
}

MX_INLINE void part_slopes(mx_about what, const bool bf16, const void *x, void *y, int64_t i, int64_t end, vf center,
                           vf factor)
{
    for (; i < end; i += VL) {
        int64_t left = lanes_left(end, i);
        row_store_part(y, i, slope(what, row_load_part(x, i, left, bf16), center, factor), left, bf16);
    }
}

MX_INLINE void row_slopes_as(mx_about what, const bool bf16, const void *x, int64_t n, float center, float factor,
                             void *y, const bool stream)
{
    vf c = vf_set1(center), f = vf_set1(factor);
    int64_t i = stream ? row_head(y, n, bf16) : 0;
    part_slopes(what, bf16, x, y, 0, i, c, f);
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf v[4];
        row_prefetch_later(x, n + i, 4 * VL, bf16);
        row_get4(x, i, v, bf16);
        for (int u = 0; u < 4; u++)
            v[u] = slope(what, v[u], c, f);
        row_put(y, i, v, bf16, stream);
        row_put(y, i + 2 * VL, v + 2, bf16, stream);
    }
    part_slopes(what, bf16, x, y, i, n, c, f);
}

MX_INLINE void row_slopes_of(mx_about what, const bool bf16, const void *x, int64_t n, float center, float factor,
                             void *y, bool stream)
{
    stream ? row_slopes_as(what, bf16, x, n, center, factor, y, true)
           : row_slopes_as(what, bf16, x, n, center, factor, y, false);
    if (stream)
        _mm_sfence();
}

static void row_slopes(mx_about what, mx_array x, int64_t n, float center, float factor, void *y, bool stream)
{
    bool bf16 = mx_is_bf16(x.dtype);
    FOR_EACH_ABOUT(row_slopes_of, what, bf16, x.data, n, center, factor, y, stream)
}

/* Some rows at once, which are streamed to memory together. */
MX_INLINE void slopes_of_rows(mx_about what, const bool bf16, const void *x, int64_t at, const int64_t rows,
                              int64_t stride, int64_t width, const float *center, const float *factor, void *y,
                              const bool stream)
{
    const look_ahead look = look_ahead_of(rows, stride, width, bf16);
    int64_t j = 0;
    for (; j + 2 * VL <= width; j += 2 * VL) {
        int64_t later = at + place_ahead(&look, j);
#pragma GCC unroll 8
        for (int64_t r = 0, i = at + j; r < rows; r++, i += stride) {
            vf v[2];
            row_prefetch(x, later + r * stride, 2 * VL, bf16);
            row_get(x, i, v, bf16);
            for (int u = 0; u < 2; u++)
                v[u] = slope(what, v[u], vf_load(center + j + u * VL), vf_load(factor + j + u * VL));
            row_put(y, i, v, bf16, stream);
        }
    }
    for (; j < width; j += VL) {
        int64_t left = lanes_left(width, j);
        for (int64_t r = 0, i = at + j; r < rows; r++, i += stride) {
            vf v = slope(what, row_load_part(x, i, left, bf16), vf_load_part(center + j, left),
                         vf_load_part(factor + j, left));
            row_store_part(y, i, v, left, bf16);
        }
    }
}

MX_INLINE void rows_slopes_as(mx_about what, const bool bf16, const void *x, int64_t n, int64_t stride, int64_t width,
                              const float *center, const float *factor, void *y, const bool stream)
{
    int64_t i = 0;
    for (; in_order(stride, width) && i < n; i++)
        slopes_of_rows(what, bf16, x, i * stride, 1, stride, width, center, factor, y, stream);
    for (; i + ROWS_AT_ONCE <= n; i += ROWS_AT_ONCE)
        slopes_of_rows(what, bf16, x, i * stride, ROWS_AT_ONCE, stride, width, center, factor, y, stream);
    if (i < n)
        slopes_of_rows(what, bf16, x, i * stride, n - i, stride, width, center, factor, y, stream);
}

MX_INLINE void rows_slopes_of(mx_about what, const bool bf16, const void *x, int64_t n, int64_t stride, int64_t width,
                              const float *center, const float *factor, void *y, bool stream)
{
    float arranged[2][MX_MOST_COLUMNS];
    const float *numbers[2] = {row_arranged(center, arranged[0], width, bf16),
                               row_arranged(factor, arranged[1], width, bf16)};
    stream ? rows_slopes_as(what, bf16, x, n, stride, width, numbers[0], numbers[1], y, true)
           : rows_slopes_as(what, bf16, x, n, stride, width, numbers[0], numbers[1], y, false);
    if (stream)
        _mm_sfence();
}

static void rows_slopes(mx_about what, mx_array x, int64_t n, int64_t stride, int64_t width, const float *center,
                        const float *factor, void *y, bool stream)
{
    bool bf16 = mx_is_bf16(x.dtype);
    FOR_EACH_ABOUT(rows_slopes_of, what, bf16, x.data, n, stride, width, center, factor, y, stream)
}

/* ---- places of extremes ---- */

/* Adds those of n neighbours from place i on. */
static __attribute__((noinline)) int64_t add_hits(mx_array x, int64_t i, int64_t n, const float *value, int64_t *hits,
                                                  int64_t found, int64_t room)
{
    for (int64_t k = 0; k < n; k++) {
        if (mx_get_float(x.data, i + k, x.dtype) != value[k])
            continue;
        if (found == room)
            return -1;
        hits[found++] = i + k;
    }
    return found;
}

/* One row after the other. Few places are expected: they are looked for again, one by one. */
MX_INLINE int64_t rows_hits_as(const bool bf16, mx_array x, int64_t n, int64_t stride, int64_t width,
                               const float *value, const float *factor, void *y, const bool stream, int64_t *hits,
                               int64_t room)
{
    float arranged[2][MX_MOST_COLUMNS];
    const float *v = row_arranged(value, arranged[0], width, bf16), *f = row_arranged(factor, arranged[1], width, bf16);
    const int64_t ahead = in_order(stride, width) ? PREFETCH_AHEAD / (bf16 ? 2 : 4) : 4 * stride;
    int64_t found = 0;
    for (int64_t i = 0; i < n && found >= 0; i++) {
        const int64_t row = i * stride;
        int64_t j = 0;
        for (; j + 2 * VL <= width && found >= 0; j += 2 * VL) {
            vf a[2];
            row_prefetch(x.data, row + j + ahead, 2 * VL, bf16);
            row_get(x.data, row + j, a, bf16);
            vm hit[2] = {vf_equal(a[0], vf_load(v + j)), vf_equal(a[1], vf_load(v + j + VL))};
            for (int u = 0; u < 2; u++)
                a[u] = vf_select(hit[u], vf_load(f + j + u * VL), vf_zero());
            row_put(y, row + j, a, bf16, stream);
            if (__builtin_expect(vm_any(hit[0]) || vm_any(hit[1]), false))
                found = add_hits(x, row + j, 2 * VL, value + j, hits, found, room);
        }
        for (int64_t k = j; k < width; k++)
            mx_set_float(y, row + k, mx_get_float(x.data, row + k, x.dtype) == value[k] ? factor[k] : 0, x.dtype);
        if (j < width && found >= 0)
            found = add_hits(x, row + j, width - j, value + j, hits, found, room);
    }
    if (stream)
        _mm_sfence();
    return found;
}

static int64_t rows_hits(mx_array x, int64_t n, int64_t stride, int64_t width, const float *value, const float *factor,
                         void *y, bool stream, int64_t *hits, int64_t room)
{
    if (mx_is_bf16(x.dtype))
        return stream ? rows_hits_as(true, x, n, stride, width, value, factor, y, true, hits, room)
                      : rows_hits_as(true, x, n, stride, width, value, factor, y, false, hits, room);
    return stream ? rows_hits_as(false, x, n, stride, width, value, factor, y, true, hits, room)
                  : rows_hits_as(false, x, n, stride, width, value, factor, y, false, hits, room);
}

const mx_slope_paths MX_SIMD_NAME(mx_slopes) = {
    .row_equal = row_equal,
    .rows_equal = rows_equal,
    .row_slopes = row_slopes,
    .rows_slopes = rows_slopes,
    .rows_hits = rows_hits,
};
