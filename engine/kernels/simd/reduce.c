#include "kernels/context.h"

#include "kernels/simd/rows.h"

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
    return vf_select(vf_is_nan(acc), acc, vf_max(acc, x)); /* the instruction gives x when either is NaN */
}

MX_INLINE float fold_one(mx_fold fold, float acc, float x)
{
    if (fold == MX_FOLD_MAX)
        return isnan(acc) || acc > x ? acc : x;
    return acc + x;
}

MX_INLINE float row_as(mx_fold fold, bool bf16, const void *x, int64_t n)
{
    vf start = vf_set1(fold == MX_FOLD_MAX ? -INFINITY : 0.0f), acc[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int u = 0; u < 4; u++)
            acc[u] = fold_in(fold, acc[u], get(x, bf16, i + u * VL));
    for (; i + VL <= n; i += VL)
        acc[0] = fold_in(fold, acc[0], get(x, bf16, i));
    mx_fold join = fold == MX_FOLD_MAX ? fold : MX_FOLD_SUM;
    acc[0] = fold_in(join, fold_in(join, acc[0], acc[1]), fold_in(join, acc[2], acc[3]));
    float lane[VL], all = fold == MX_FOLD_MAX ? -INFINITY : 0.0f;
    vf_store(lane, acc[0]);
    for (int l = 0; l < VL; l++)
        all = fold_one(fold, all, lane[l]);
    for (; i < n; i++) {
        float one = get_one(x, bf16, i);
        all = fold_one(fold, all, fold == MX_FOLD_SQUARES ? one * one : one);
    }
    return all;
}

static float row(mx_fold fold, mx_array x, int64_t n)
{
    bool bf16 = mx_is_bf16(x.dtype);
    switch (fold) {
    case MX_FOLD_SUM:
        return bf16 ? row_as(MX_FOLD_SUM, true, x.data, n) : row_as(MX_FOLD_SUM, false, x.data, n);
    case MX_FOLD_SQUARES:
        return bf16 ? row_as(MX_FOLD_SQUARES, true, x.data, n) : row_as(MX_FOLD_SQUARES, false, x.data, n);
    default:
        return bf16 ? row_as(MX_FOLD_MAX, true, x.data, n) : row_as(MX_FOLD_MAX, false, x.data, n);
    }
}

/* Four rows at a time, so that acc is read and written once for four loads of x. */
MX_INLINE void rows_as(mx_fold fold, bool bf16, float *acc, const void *x, int64_t n, int64_t stride, int64_t width)
{
    int64_t together;
    for (int64_t i = 0; i < n; i += together) {
        int64_t at = i * stride, j = 0;
        together = i + 4 <= n ? 4 : 1;
        for (; together == 4 && j + VL <= width; j += VL) {
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
    if (fold == MX_FOLD_SUM && mx_is_bf16(x.dtype))
        rows_as(MX_FOLD_SUM, true, acc, x.data, n, stride, width);
    else if (fold == MX_FOLD_SUM)
        rows_as(MX_FOLD_SUM, false, acc, x.data, n, stride, width);
    else if (mx_is_bf16(x.dtype))
        rows_as(MX_FOLD_MAX, true, acc, x.data, n, stride, width);
    else
        rows_as(MX_FOLD_MAX, false, acc, x.data, n, stride, width);
}

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
    if (fold == MX_FOLD_MAX && bf16)
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

const mx_reduce_paths MX_SIMD_NAME(mx_reduce) = {.row = row, .rows = rows, .across = across};
