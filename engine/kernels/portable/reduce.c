#include "kernels/context.h"

#include "core/element.h"

#include <math.h>

static float fold_in(mx_fold fold, float acc, float x)
{
    if (fold == MX_FOLD_MAX)
        return isnan(acc) || acc > x ? acc : x;
    return acc + (fold == MX_FOLD_SQUARES ? x * x : x);
}

/* Many partial sums, as the vector paths have, so that the rounding error of a long row stays small. */
static float row(mx_fold fold, mx_array x, int64_t n)
{
    enum { LANES = 16 };
    float acc[LANES], first = fold == MX_FOLD_MAX ? -INFINITY : 0.0f;
    for (int l = 0; l < LANES; l++)
        acc[l] = first;
    for (int64_t i = 0; i < n; i++)
        acc[i % LANES] = fold_in(fold, acc[i % LANES], mx_get_float(x.data, i, x.dtype));
    float all = first;
    for (int l = 0; l < LANES; l++)
        all = fold_in(fold == MX_FOLD_MAX ? fold : MX_FOLD_SUM, all, acc[l]);
    return all;
}

static void rows(mx_fold fold, float *acc, mx_array x, int64_t n, int64_t stride, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            acc[j] = fold_in(fold, acc[j], mx_get_float(x.data, i * stride + j, x.dtype));
}

static void across(mx_fold fold, int k, const void *const *from, mx_dtype dtype, int64_t n, float scale, mx_array y,
                   void *again, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++) {
        float acc = mx_get_float(from[0], i, dtype);
        for (int r = 1; r < k; r++)
            acc = fold_in(fold, acc, mx_get_float(from[r], i, dtype));
        mx_set_float(y.data, i, acc * scale, y.dtype);
        if (again)
            mx_set_float(again, i, acc * scale, y.dtype);
    }
}

const mx_reduce_paths mx_reduce_portable = {.row = row, .rows = rows, .across = across};
