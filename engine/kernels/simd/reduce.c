#include "kernels/context.h"

#include "kernels/reduce.h"
#include "kernels/simd/look_ahead.h"
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
    const bool unasked = !bf16 && mx_cpu_reads_ahead(); /* as for columns of f32, see look_ahead.h */
    vf start = vf_set1(identity(fold)), acc[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf v[4];
        if (!unasked)
            prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        row_get4(x, i, v, bf16);
        for (int u = 0; u < 4; u++)
            acc[u] = fold_in(fold, acc[u], v[u]);
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

/* Whether one of two is NaN. */
#if MX_SIMD_512
MX_INLINE vm either_nan(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); }
MX_INLINE vm vm_or(vm a, vm b) { return a | b; }
#else
MX_INLINE vm either_nan(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_UNORD_Q); }
MX_INLINE vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
#endif

/* As fold_in(), of an x that is a number. */
MX_INLINE vf fold_number(mx_fold fold, vf acc, vf x)
{
    if (fold == MX_FOLD_MIN)
        return vf_min(x, acc); /* in this order a NaN in acc stays */
    return fold == MX_FOLD_MAX ? vf_max(x, acc) : fold_in(fold, acc, x);
}

/* One step of fold_steps(), with NaNs. */
MX_INLINE void fold_with_nan(mx_fold fold, const bool bf16, const int vectors, float *acc, const void *x, int64_t at,
                             int64_t rows, int64_t stride)
{
    for (int u = 0; u < vectors; u += 2) {
        vf a[2] = {vf_load(acc + u * VL), vf_load(acc + (u + 1) * VL)}, v[2];
        for (int64_t r = 0; r < rows; r++) {
            row_get(x, at + r * stride + u * VL, v, bf16);
            a[0] = fold_in(fold, a[0], v[0]);
            a[1] = fold_in(fold, a[1], v[1]);
        }
        vf_store(acc + u * VL, a[0]);
        vf_store(acc + (u + 1) * VL, a[1]);
    }
}

/* Columns from j on of some rows at once, so that acc is read and written once for all of them: whole steps of some
 * vectors, arranged as row_get() has the columns. Returns where these end. */
MX_INLINE int64_t fold_steps(mx_fold fold, const bool bf16, const int vectors, const look_ahead *look, float *acc,
                             const void *x, int64_t at, const int64_t rows, int64_t stride, int64_t j, int64_t width)
{
    const bool is_extreme = fold == MX_FOLD_MAX || fold == MX_FOLD_MIN;
    for (; j + vectors * VL <= width; j += vectors * VL) {
        vf a[LINES], v[2];
        vm nan = either_nan(vf_zero(), vf_zero());
        int64_t later = look ? at + place_ahead(look, j) : 0;
#pragma GCC unroll 8
        for (int u = 0; u < vectors; u++)
            a[u] = vf_load(acc + j + u * VL);
#pragma GCC unroll 8
        for (int64_t r = 0; r < rows; r++) {
            if (look)
                row_prefetch(x, later + r * stride, vectors * VL, bf16);
#pragma GCC unroll 4
            for (int u = 0; u < vectors; u += 2) {
                row_get(x, at + r * stride + j + u * VL, v, bf16);
                nan = vm_or(nan, either_nan(v[0], v[1]));
                a[u] = fold_number(fold, a[u], v[0]);
                a[u + 1] = fold_number(fold, a[u + 1], v[1]);
            }
        }
        if (is_extreme && __builtin_expect(vm_any(nan), false)) {
            fold_with_nan(fold, bf16, vectors, acc + j, x, at + j, rows, stride);
            continue;
        }
#pragma GCC unroll 8
        for (int u = 0; u < vectors; u++)
            vf_store(acc + j + u * VL, a[u]);
    }
    return j;
}

MX_INLINE void fold_rows(mx_fold fold, const bool bf16, const bool asks, float *acc, const void *x, int64_t at,
                         const int64_t rows, int64_t stride, int64_t width)
{
    const look_ahead look = look_ahead_of(rows, stride, width, bf16);
    int64_t j = 0;
    if (!asks)
        j = fold_steps(fold, bf16, LINES, NULL, acc, x, at, rows, stride, j, width);
    j = fold_steps(fold, bf16, 2, asks ? &look : NULL, acc, x, at, rows, stride, j, width);
    for (; j < width; j++)
        for (int64_t r = 0; r < rows; r++)
            acc[j] = fold_one(fold, acc[j], get_one(x, bf16, at + r * stride + j));
}

MX_INLINE void rows_as(mx_fold fold, const bool bf16, float *acc, const void *x, int64_t n, int64_t stride,
                       int64_t width)
{
    _Alignas(64) float room[MX_MOST_COLUMNS];
    const bool unasked = !bf16 && mx_cpu_reads_ahead();
    float *sums = bf16 ? room : acc;
    int64_t i = 0;
    row_arranged(acc, room, width, bf16);
    for (; unasked && i + ROWS_UNASKED <= n; i += ROWS_UNASKED)
        fold_rows(fold, bf16, false, sums, x, i * stride, ROWS_UNASKED, stride, width);
    for (; in_order(stride, width) && i < n; i++)
        fold_rows(fold, bf16, true, sums, x, i * stride, 1, stride, width);
    for (; i + ROWS_AT_ONCE <= n; i += ROWS_AT_ONCE)
        fold_rows(fold, bf16, true, sums, x, i * stride, ROWS_AT_ONCE, stride, width);
    if (i < n)
        fold_rows(fold, bf16, true, sums, x, i * stride, n - i, stride, width);
    if (bf16)
        row_restore(room, acc, width);
}

static void rows(mx_fold fold, float *acc, mx_array x, int64_t n, int64_t stride, int64_t width)
{
    bool bf16 = mx_is_bf16(x.dtype);
    FOR_EACH_FOLD(rows_as, fold, bf16, acc, x.data, n, stride, width)
}

/* ---- moments about a center ---- */

/* Of the places where `counts`, adds x - center and its square. */
MX_INLINE void add_moments(vf x, vf center, vm counts, vf *sum, vf *squares)
{
    vf d = vf_select(counts, x - center, vf_zero());
    *sum = *sum + d;
    *squares = vf_fma(d, d, *squares);
}

MX_INLINE void row_moments_as(const bool bf16, const void *x, int64_t n, float center, float sums[2])
{
    vf c = vf_set1(center), zero = vf_zero(), sum[4] = {zero, zero, zero, zero}, squares[4] = {zero, zero, zero, zero};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        vf v[4];
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        row_get4(x, i, v, bf16);
        for (int u = 0; u < 4; u++) {
            v[u] = v[u] - c;
            sum[u] = sum[u] + v[u];
            squares[u] = vf_fma(v[u], v[u], squares[u]);
        }
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        add_moments(row_load_part(x, i, left, bf16), c, vm_first(left), &sum[0], &squares[0]);
    }
    sums[0] = vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    sums[1] = vf_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
}

static void row_moments(mx_array x, int64_t n, float center, float sums[2])
{
    mx_is_bf16(x.dtype) ? row_moments_as(true, x.data, n, center, sums)
                        : row_moments_as(false, x.data, n, center, sums);
}

MX_INLINE void moments_of_rows(const bool bf16, float *sum, float *squares, const void *x, int64_t at,
                               const int64_t rows, int64_t stride, int64_t width, const float *center)
{
    const look_ahead look = look_ahead_of(rows, stride, width, bf16);
    int64_t j = 0;
    for (; j + 2 * VL <= width; j += 2 * VL) {
        vf s[2] = {vf_load(sum + j), vf_load(sum + j + VL)}, q[2] = {vf_load(squares + j), vf_load(squares + j + VL)};
        vf c[2] = {vf_load(center + j), vf_load(center + j + VL)};
        int64_t later = at + place_ahead(&look, j);
#pragma GCC unroll 8
        for (int64_t r = 0; r < rows; r++) {
            vf v[2];
            row_prefetch(x, later + r * stride, 2 * VL, bf16);
            row_get(x, at + r * stride + j, v, bf16);
            for (int u = 0; u < 2; u++) {
                vf d = v[u] - c[u];
                s[u] = s[u] + d;
                q[u] = vf_fma(d, d, q[u]);
            }
        }
        for (int u = 0; u < 2; u++) {
            vf_store(sum + j + u * VL, s[u]);
            vf_store(squares + j + u * VL, q[u]);
        }
    }
    for (; j < width; j += VL) {
        int64_t left = lanes_left(width, j);
        vf s = vf_load_part(sum + j, left), q = vf_load_part(squares + j, left);
        for (int64_t r = 0; r < rows; r++)
            add_moments(row_load_part(x, at + r * stride + j, left, bf16), vf_load_part(center + j, left),
                        vm_first(left), &s, &q);
        vf_store_part(sum + j, s, left);
        vf_store_part(squares + j, q, left);
    }
}

MX_INLINE void rows_moments_as(const bool bf16, float *sum, float *squares, const void *x, int64_t n, int64_t stride,
                               int64_t width, const float *center)
{
    int64_t i = 0;
    for (; i + ROWS_AT_ONCE <= n; i += ROWS_AT_ONCE)
        moments_of_rows(bf16, sum, squares, x, i * stride, ROWS_AT_ONCE, stride, width, center);
    if (i < n)
        moments_of_rows(bf16, sum, squares, x, i * stride, n - i, stride, width, center);
}

static void rows_moments(float *sum, float *squares, mx_array x, int64_t n, int64_t stride, int64_t width,
                         const float *center)
{
    float sums[MX_MOST_COLUMNS], all_squares[MX_MOST_COLUMNS], centers[MX_MOST_COLUMNS];
    if (!mx_is_bf16(x.dtype)) {
        rows_moments_as(false, sum, squares, x.data, n, stride, width, center);
        return;
    }
    row_arranged(sum, sums, width, true);
    row_arranged(squares, all_squares, width, true);
    rows_moments_as(true, sums, all_squares, x.data, n, stride, width, row_arranged(center, centers, width, true));
    row_restore(sums, sum, width);
    row_restore(all_squares, squares, width);
}

/* ---- sums of exponentials ---- */

/* A center moves only if an x is this much above it: e^4 costs no precision, and few blocks move a center. */
#define SLACK 4.0f

/* The error of an exponential, d 2^-24 of its value, is small in their sum. */
MX_INLINE vf exp_about(const bool bf16, vf x, vf center)
{
    vf d = (x - center) * vf_set1(LOG2E);
    if (bf16 && MX_SIMD_512) /* where it has an exact 0, too */
        return vf_exp2_fast(d);
    return vf_exp2_whole(bf16, d);
}

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
        row_get4(x, i, v, bf16);
        if (__builtin_expect(is_above(largest_of(v), c), false))
            c = move_center(vf_set1(vf_hmax(largest_of(v))), c, sum, 4);
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++)
            sum[u] = vf_add_exp(sum[u], exp_about(bf16, v[u], c));
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

/* VL columns of four rows. */
MX_INLINE void add_exps(const bool bf16, const vf v[4], float *center, float *sum)
{
    vf c = vf_load(center), s = vf_load(sum);
    if (__builtin_expect(is_above(largest_of(v), c), false)) {
        c = move_center(largest_of(v), c, &s, 1);
        vf_store(center, c);
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++)
        s = vf_add_exp(s, exp_about(bf16, v[r], c));
    vf_store(sum, s);
}

/* Four rows at a time, as above. Centers and sums are arranged as row_get() has the columns. */
MX_INLINE void rows_exps_as(const bool bf16, float *center, float *sum, const void *x, int64_t n, int64_t stride,
                            int64_t width)
{
    int64_t together;
    for (int64_t i = 0; i < n; i += together) {
        int64_t at = i * stride, j = 0;
        next_rows next = rows_after(x, at, stride, width, bf16);
        together = i + 4 <= n ? 4 : 1;
        for (; together == 4 && j + 2 * VL <= width; j += 2 * VL) {
            vf v[2][4];
            if (bf16)
                prefetch_rows(&next, 8 * VL, bf16);
            for (int r = 0; r < 4; r++) {
                vf two[2];
                if (!bf16)
                    row_prefetch(x, at + (4 + r) * stride + j, 2 * VL, bf16);
                row_get(x, at + r * stride + j, two, bf16);
                v[0][r] = two[0];
                v[1][r] = two[1];
            }
            add_exps(bf16, v[0], center + j, sum + j);
            add_exps(bf16, v[1], center + j + VL, sum + j + VL);
        }
        for (; together == 1 && j + 2 * VL <= width; j += 2 * VL) {
            vf two[2];
            row_get(x, at + j, two, bf16);
            for (int u = 0; u < 2; u++) {
                vf c = vf_load(center + j + u * VL), s = vf_load(sum + j + u * VL);
                if (is_above(two[u], c))
                    c = move_center(two[u], c, &s, 1);
                vf_store(center + j + u * VL, c);
                vf_store(sum + j + u * VL, s + exp_about(bf16, two[u], c));
            }
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
    float centers[MX_MOST_COLUMNS], sums[MX_MOST_COLUMNS];
    if (!mx_is_bf16(x.dtype)) {
        rows_exps_as(false, center, sum, x.data, n, stride, width);
        return;
    }
    row_arranged(center, centers, width, true);
    row_arranged(sum, sums, width, true);
    rows_exps_as(true, centers, sums, x.data, n, stride, width);
    row_restore(centers, center, width);
    row_restore(sums, sum, width);
}

/* ---- places ---- */

MX_INLINE void place_in_row(const bool least, const bool bf16, float *acc, int32_t *index, const void *x,
                            int64_t number, int64_t from, int64_t width)
{
    int64_t j = from;
    vf place = vi_float(vi_set1((int32_t)number));
    for (; j + VL <= width; j += VL) {
        vf a = vf_load(acc + j), v = get(x, bf16, j), at = vi_float(vi_load(index + j));
        vm beyond = least ? vf_gt(a, v) : vf_gt(v, a), nan = vf_is_nan(v), kept = vf_is_nan(a);
        at = vf_select(kept, at, vf_select(nan, place, vf_select(beyond, place, at)));
        a = vf_select(kept, a, vf_select(nan, v, vf_select(beyond, v, a)));
        vf_store(acc + j, a);
        vi_store(index + j, vf_bits(at));
    }
    for (; j < width; j++) {
        float v = get_one(x, bf16, j);
        if (isnan(acc[j]) || !(isnan(v) || (least ? v < acc[j] : v > acc[j])))
            continue;
        acc[j] = v;
        index[j] = (int32_t)number;
    }
}

/* Whether one of four rows of VL columns is beyond acc. The sum is NaN if one of them is; if it is for another reason,
 * such as two infinities, the rows are just looked at once more. */
MX_INLINE bool has_beyond(const bool least, const vf v[4], vf acc)
{
    vf sum = (v[0] + v[1]) + (v[2] + v[3]);
    vf extreme =
        least ? vf_min(vf_min(v[0], v[1]), vf_min(v[2], v[3])) : vf_max(vf_max(v[0], v[1]), vf_max(v[2], v[3]));
    vf none =
        least ? vf_select(vf_gt(acc, extreme), vf_set1(NAN), sum) : vf_select(vf_gt(extreme, acc), vf_set1(NAN), sum);
    return vm_any(vf_is_nan(none));
}

/* Four rows at a time, which seldom have a new extreme. */
MX_INLINE void places_as(const bool least, const bool bf16, float *acc, int32_t *index, const void *x, int64_t first,
                         int64_t n, int64_t stride, int64_t width)
{
    const int64_t size = bf16 ? 2 : 4;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        next_rows next = rows_after(x, i * stride, stride, width, bf16);
        int64_t j = 0;
        for (; j + VL <= width; j += VL) {
            vf v[4];
            prefetch_rows(&next, 4 * VL, bf16);
            for (int r = 0; r < 4; r++)
                v[r] = get(x, bf16, (i + r) * stride + j);
            if (!has_beyond(least, v, vf_load(acc + j)))
                continue;
            for (int r = 0; r < 4; r++)
                place_in_row(least, bf16, acc, index, (const char *)x + (i + r) * stride * size, first + i + r, j,
                             j + VL);
        }
        for (int r = 0; j < width && r < 4; r++)
            place_in_row(least, bf16, acc, index, (const char *)x + (i + r) * stride * size, first + i + r, j, width);
    }
    for (; i < n; i++)
        place_in_row(least, bf16, acc, index, (const char *)x + i * stride * size, first + i, 0, width);
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
    .row_moments = row_moments,
    .rows_moments = rows_moments,
    .row_exps = row_exps,
    .rows_exps = rows_exps,
    .places = places,
    .across = across,
};
