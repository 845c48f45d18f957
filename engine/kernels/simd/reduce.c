#include "kernels/context.h"

#include "kernels/simd/rows.h"
#include "kernels/simd/vmath.h"

#include <float.h>
#include <math.h>

MX_INLINE vf get(const void *p, bool bf16, int64_t i)
{
    return bf16 ? vf_load_bf16((const mx_bf16 *)p + i) : vf_load((const float *)p + i);
}

MX_INLINE float get_one(const void *p, bool bf16, int64_t i)
{
    return bf16 ? mx_from_bf16(((const mx_bf16 *)p)[i]) : ((const float *)p)[i];
}

MX_INLINE vf fold_in(mx_fold fold, vf acc, vf x)
{
    if (fold == MX_FOLD_SUM)
        return acc + x;
    if (fold == MX_FOLD_SQUARES)
        return vf_fma(x, x, acc);
    if (fold == MX_FOLD_MIN)
        return vf_select(vf_is_nan(acc), acc, vf_min(acc, x));
    return vf_select(vf_is_nan(acc), acc, vf_max(acc, x)); /* the instruction gives x when either is NaN */
}

MX_INLINE float fold_one(mx_fold fold, float acc, float x)
{
    if (fold == MX_FOLD_MAX)
        return isnan(acc) || acc > x ? acc : x;
    if (fold == MX_FOLD_MIN)
        return isnan(acc) || acc < x ? acc : x;
    return acc + (fold == MX_FOLD_SQUARES ? x * x : x);
}

MX_INLINE float identity(mx_fold fold)
{
    return fold == MX_FOLD_MAX ? -INFINITY : fold == MX_FOLD_MIN ? INFINITY : 0.0f;
}

MX_INLINE float row_as(mx_fold fold, bool bf16, const void *x, int64_t n)
{
    vf start = vf_set1(identity(fold)), acc[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        for (int u = 0; u < 4; u++)
            acc[u] = fold_in(fold, acc[u], get(x, bf16, i + u * VL));
    }
    for (; i + VL <= n; i += VL)
        acc[0] = fold_in(fold, acc[0], get(x, bf16, i));
    mx_fold join = fold == MX_FOLD_SQUARES ? MX_FOLD_SUM : fold;
    acc[0] = fold_in(join, fold_in(join, acc[0], acc[1]), fold_in(join, acc[2], acc[3]));
    float lane[VL], all = identity(fold);
    vf_store(lane, acc[0]);
    for (int l = 0; l < VL; l++)
        all = fold_one(join, all, lane[l]);
    for (; i < n; i++)
        all = fold_one(fold, all, get_one(x, bf16, i));
    return all;
}

/* Calls `function` with fold and dtype as constants. */
#define FOR_EACH_FOLD(function, fold, bf16, ...)                                                                       \
    switch (fold) {                                                                                                    \
    case MX_FOLD_SUM:                                                                                                  \
        return bf16 ? function(MX_FOLD_SUM, true, __VA_ARGS__) : function(MX_FOLD_SUM, false, __VA_ARGS__);            \
    case MX_FOLD_SQUARES:                                                                                              \
        return bf16 ? function(MX_FOLD_SQUARES, true, __VA_ARGS__) : function(MX_FOLD_SQUARES, false, __VA_ARGS__);    \
    case MX_FOLD_MIN:                                                                                                  \
        return bf16 ? function(MX_FOLD_MIN, true, __VA_ARGS__) : function(MX_FOLD_MIN, false, __VA_ARGS__);            \
    default:                                                                                                           \
        return bf16 ? function(MX_FOLD_MAX, true, __VA_ARGS__) : function(MX_FOLD_MAX, false, __VA_ARGS__);            \
    }

static float row(mx_fold fold, mx_array x, int64_t n)
{
    bool bf16 = mx_is_bf16(x.dtype);
    FOR_EACH_FOLD(row_as, fold, bf16, x.data, n)
}

/* Four rows at a time, so that acc is read and written once for four loads of x. The next four are asked for: the
 * processor does not foresee the end of a row. */
MX_INLINE void rows_as(mx_fold fold, bool bf16, float *acc, const void *x, int64_t n, int64_t stride, int64_t width)
{
    int64_t together;
    for (int64_t i = 0; i < n; i += together) {
        int64_t at = i * stride, j = 0;
        together = i + 4 <= n ? 4 : 1;
        for (; together == 4 && j + VL <= width; j += VL) {
            for (int r = 4; r < 8; r++)
                row_prefetch(x, at + r * stride + j, VL, bf16);
            vf a = fold_in(fold, vf_load(acc + j), get(x, bf16, at + j));
            a = fold_in(fold, a, get(x, bf16, at + stride + j));
            a = fold_in(fold, a, get(x, bf16, at + 2 * stride + j));
            vf_store(acc + j, fold_in(fold, a, get(x, bf16, at + 3 * stride + j)));
        }
        for (; j + VL <= width; j += VL)
            vf_store(acc + j, fold_in(fold, vf_load(acc + j), get(x, bf16, at + j)));
        for (; j < width; j++)
            for (int64_t r = 0; r < together; r++)
                acc[j] = fold_one(fold, acc[j], get_one(x, bf16, at + r * stride + j));
    }
}

static void rows(mx_fold fold, float *acc, mx_array x, int64_t n, int64_t stride, int64_t width)
{
    bool bf16 = mx_is_bf16(x.dtype);
    FOR_EACH_FOLD(rows_as, fold, bf16, acc, x.data, n, stride, width)
}

/* ---- squared distances from a center ---- */

MX_INLINE vf distance(vf x, vf center)
{
    vf d = x - center;
    return d * d;
}

MX_INLINE float row_about_as(const bool bf16, const void *x, int64_t n, float center)
{
    vf c = vf_set1(center), acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int u = 0; u < 4; u++)
            acc[u] = acc[u] + distance(get(x, bf16, i + u * VL), c);
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf d = distance(row_load_part(x, i, left, bf16), c);
        acc[0] = acc[0] + vf_select(vm_first(left), d, vf_zero());
    }
    return vf_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

static float row_about(mx_array x, int64_t n, float center)
{
    return mx_is_bf16(x.dtype) ? row_about_as(true, x.data, n, center) : row_about_as(false, x.data, n, center);
}

/* Four rows at a time, as above. */
MX_INLINE void rows_about_as(const bool bf16, float *acc, const void *x, int64_t n, int64_t stride, int64_t width,
                             const float *center)
{
    int64_t together;
    for (int64_t i = 0; i < n; i += together) {
        int64_t at = i * stride, j = 0;
        together = i + 4 <= n ? 4 : 1;
        for (; together == 4 && j + VL <= width; j += VL) {
            vf a = vf_load(acc + j), c = vf_load(center + j);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++)
                a = a + distance(get(x, bf16, at + r * stride + j), c);
            vf_store(acc + j, a);
        }
        for (; j < width; j += VL) {
            int64_t left = lanes_left(width, j);
            vf a = vf_load_part(acc + j, left), c = vf_load_part(center + j, left);
            for (int64_t r = 0; r < together; r++)
                a = a + distance(row_load_part(x, at + r * stride + j, left, bf16), c);
            vf_store_part(acc + j, a, left);
        }
    }
}

static void rows_about(float *acc, mx_array x, int64_t n, int64_t stride, int64_t width, const float *center)
{
    if (mx_is_bf16(x.dtype))
        rows_about_as(true, acc, x.data, n, stride, width, center);
    else
        rows_about_as(false, acc, x.data, n, stride, width, center);
}

/* ---- sums of exponentials ---- */

/* A center moves only if an x is this much above it: e^4 costs no precision, and few blocks move a center. */
#define SLACK 4.0f

/* The error of an exponential, d 2^-24 of its value, is small in their sum. */
MX_INLINE vf exp_about(const bool bf16, vf x, vf center) { return vf_exp2_whole(bf16, (x - center) * vf_set1(LOG2E)); }

MX_INLINE bool is_above(vf x, vf center) { return vm_any(vf_gt(x, center + vf_set1(SLACK))); }

/* The centers moved up to x, which scales the sums. */
MX_INLINE vf move_center(vf x, vf center, vf *sum, int n_sums)
{
    vf up = vf_min(vf_set1(FLT_MAX), vf_max(x, center)), scale = exp_about(false, center, up);
    for (int u = 0; u < n_sums; u++)
        sum[u] = sum[u] * scale;
    return up;
}

MX_INLINE vf largest_of(const vf v[4]) { return vf_max(vf_max(v[0], v[1]), vf_max(v[2], v[3])); }

MX_INLINE void row_exps_as(const bool bf16, const void *x, int64_t n, float *center, float *total)
{
    vf c = vf_set1(*center), sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    sum[0] = vf_select(vm_first(1), vf_set1(*total), sum[0]);
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf v[4];
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        row_get(x, i, v, bf16);
        row_get(x, i + 2 * VL, v + 2, bf16);
        if (__builtin_expect(is_above(largest_of(v), c), false))
            c = move_center(vf_set1(vf_hmax(largest_of(v))), c, sum, 4);
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++)
            sum[u] = sum[u] + exp_about(bf16, v[u], c);
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf v = vf_select(vm_first(left), row_load_part(x, i, left, bf16), vf_set1(-INFINITY));
        if (is_above(v, c))
            c = move_center(vf_set1(vf_hmax(v)), c, sum, 4);
        sum[0] = sum[0] + exp_about(bf16, v, c);
    }
    *total = vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    vf_store_part(center, c, 1);
}

static void row_exps(mx_array x, int64_t n, float *center, float *sum)
{
    mx_is_bf16(x.dtype) ? row_exps_as(true, x.data, n, center, sum) : row_exps_as(false, x.data, n, center, sum);
}

/* Four rows at a time, as above. */
MX_INLINE void rows_exps_as(const bool bf16, float *center, float *sum, const void *x, int64_t n, int64_t stride,
                            int64_t width)
{
    int64_t together;
    for (int64_t i = 0; i < n; i += together) {
        int64_t at = i * stride, j = 0;
        together = i + 4 <= n ? 4 : 1;
        for (; together == 4 && j + VL <= width; j += VL) {
            vf c = vf_load(center + j), s = vf_load(sum + j), v[4];
            for (int r = 0; r < 4; r++) {
                row_prefetch(x, at + (r + 4) * stride + j, VL, bf16);
                v[r] = get(x, bf16, at + r * stride + j);
            }
            if (__builtin_expect(is_above(largest_of(v), c), false)) {
                c = move_center(largest_of(v), c, &s, 1);
                vf_store(center + j, c);
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++)
                s = s + exp_about(bf16, v[r], c);
            vf_store(sum + j, s);
        }
        for (; j < width; j += VL) {
            int64_t left = lanes_left(width, j);
            vf c = vf_load_part(center + j, left), s = vf_load_part(sum + j, left);
            for (int64_t r = 0; r < together; r++) {
                vf v = row_load_part(x, at + r * stride + j, left, bf16);
                if (is_above(v, c))
                    c = move_center(v, c, &s, 1);
                s = s + exp_about(bf16, v, c);
            }
            vf_store_part(center + j, c, left);
            vf_store_part(sum + j, s, left);
        }
    }
}

static void rows_exps(float *center, float *sum, mx_array x, int64_t n, int64_t stride, int64_t width)
{
    mx_is_bf16(x.dtype) ? rows_exps_as(true, center, sum, x.data, n, stride, width)
                        : rows_exps_as(false, center, sum, x.data, n, stride, width);
}

/* ---- places ---- */

MX_INLINE void places_as(const bool least, const bool bf16, float *acc, int32_t *index, const void *x, int64_t first,
                         int64_t n, int64_t stride, int64_t width)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = 0;
        vf place = vi_float(vi_set1((int32_t)(first + i)));
        for (; j + VL <= width; j += VL) {
            row_prefetch(x, (i + 4) * stride + j, VL, bf16);
            vf a = vf_load(acc + j), v = get(x, bf16, i * stride + j), at = vi_float(vi_load(index + j));
            vm beyond = least ? vf_gt(a, v) : vf_gt(v, a), nan = vf_is_nan(v), kept = vf_is_nan(a);
            at = vf_select(kept, at, vf_select(nan, place, vf_select(beyond, place, at)));
            a = vf_select(kept, a, vf_select(nan, v, vf_select(beyond, v, a)));
            vf_store(acc + j, a);
            vi_store(index + j, vf_bits(at));
        }
        for (; j < width; j++) {
            float v = get_one(x, bf16, i * stride + j);
            if (isnan(acc[j]) || !(isnan(v) || (least ? v < acc[j] : v > acc[j])))
                continue;
            acc[j] = v;
            index[j] = (int32_t)(first + i);
        }
    }
}

static void places(mx_fold fold, float *acc, int32_t *index, mx_array x, int64_t first, int64_t n, int64_t stride,
                   int64_t width)
{
    bool least = fold == MX_FOLD_MIN;
    if (mx_is_bf16(x.dtype))
        least ? places_as(true, true, acc, index, x.data, first, n, stride, width)
              : places_as(false, true, acc, index, x.data, first, n, stride, width);
    else
        least ? places_as(true, false, acc, index, x.data, first, n, stride, width)
              : places_as(false, false, acc, index, x.data, first, n, stride, width);
}

/* ---- folds of several arrays ---- */

MX_INLINE void put_one(void *p, bool bf16, int64_t i, float x)
{
    if (bf16)
        ((mx_bf16 *)p)[i] = mx_to_bf16(x);
    else
        ((float *)p)[i] = x;
}

/* Where the k arrays are folded to: y, and the same again. */
typedef struct across_to {
    void *y, *again;
    bool stream;
} across_to;

MX_INLINE void across_as(mx_fold fold, int k, const void *const *from, bool bf16, int64_t n, float scale,
                         const across_to *to, bool y_bf16, bool stream)
{
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf acc[4];
        for (int u = 0; u < 4; u++)
            acc[u] = get(from[0], bf16, i + u * VL);
        for (int r = 1; r < k; r++)
            for (int u = 0; u < 4; u++)
                acc[u] = fold_in(fold, acc[u], get(from[r], bf16, i + u * VL));
        for (int u = 0; u < 4; u++)
            acc[u] = acc[u] * vf_set1(scale);
        for (int u = 0; u < 4; u += 2) {
            row_store2(to->y, i + u * VL, acc[u], acc[u + 1], y_bf16, false);
            if (to->again)
                row_store2(to->again, i + u * VL, acc[u], acc[u + 1], y_bf16, stream);
        }
    }
    for (; i < n; i++) {
        float acc = get_one(from[0], bf16, i);
        for (int r = 1; r < k; r++)
            acc = fold_one(fold, acc, get_one(from[r], bf16, i));
        put_one(to->y, y_bf16, i, acc * scale);
        if (to->again)
            put_one(to->again, y_bf16, i, acc * scale);
    }
}

MX_INLINE void across_sum(int k, const void *const *from, bool bf16, int64_t n, float scale, const across_to *to,
                          bool y_bf16)
{
    if (to->stream)
        across_as(MX_FOLD_SUM, k, from, bf16, n, scale, to, y_bf16, true);
    else
        across_as(MX_FOLD_SUM, k, from, bf16, n, scale, to, y_bf16, false);
}

static void across(mx_fold fold, int k, const void *const *from, mx_dtype dtype, int64_t n, float scale, mx_array y,
                   void *again, bool stream)
{
    bool bf16 = mx_is_bf16(dtype), y_bf16 = mx_is_bf16(y.dtype);
    const across_to to = {y.data, again, stream && again && (uintptr_t)again % 64 == 0};
    if (fold == MX_FOLD_MIN)
        bf16 ? across_as(MX_FOLD_MIN, k, from, true, n, scale, &to, y_bf16, false)
             : across_as(MX_FOLD_MIN, k, from, false, n, scale, &to, y_bf16, false);
    else if (fold == MX_FOLD_MAX && bf16)
        across_as(MX_FOLD_MAX, k, from, true, n, scale, &to, y_bf16, false);
    else if (fold == MX_FOLD_MAX)
        across_as(MX_FOLD_MAX, k, from, false, n, scale, &to, y_bf16, false);
    else if (bf16 && y_bf16)
        across_sum(k, from, true, n, scale, &to, true);
    else if (bf16)
        across_sum(k, from, true, n, scale, &to, false);
    else if (y_bf16)
        across_sum(k, from, false, n, scale, &to, true);
    else
        across_sum(k, from, false, n, scale, &to, false);
}

const mx_reduce_paths MX_SIMD_NAME(mx_reduce) = {
    .row = row,
    .rows = rows,
    .row_about = row_about,
    .rows_about = rows_about,
    .row_exps = row_exps,
    .rows_exps = rows_exps,
    .places = places,
    .across = across,
};
