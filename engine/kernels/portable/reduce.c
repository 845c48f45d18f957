#include "kernels/context.h"

#include "core/element.h"
#include "kernels/elementwise.h"
#include "kernels/reduce.h"

#include <float.h>
#include <math.h>

static float fold_in(mx_fold fold, float acc, float x)
{
    if (fold == MX_FOLD_MAX)
        return isnan(acc) || acc > x ? acc : x;
    if (fold == MX_FOLD_MIN)
        return isnan(acc) || acc < x ? acc : x;
    return acc + (fold == MX_FOLD_SQUARES ? x * x : x);
}

/* Many partial sums, as the vector paths have, so that the rounding error of a long row stays small. */
static float row(mx_fold fold, mx_array x, int64_t n)
{
    enum { LANES = 16 };
    float acc[LANES], first = fold == MX_FOLD_MAX ? -INFINITY : fold == MX_FOLD_MIN ? INFINITY : 0.0f;
    for (int l = 0; l < LANES; l++)
        acc[l] = first;
    for (int64_t i = 0; i < n; i++)
        acc[i % LANES] = fold_in(fold, acc[i % LANES], mx_get_float(x.data, i, x.dtype));
    float all = first;
    for (int l = 0; l < LANES; l++)
        all = fold_in(fold == MX_FOLD_SQUARES ? MX_FOLD_SUM : fold, all, acc[l]);
    return all;
}

static void rows(mx_fold fold, float *acc, mx_array x, int64_t n, int64_t stride, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            acc[j] = fold_in(fold, acc[j], mx_get_float(x.data, i * stride + j, x.dtype));
}

static void row_moments(mx_array x, int64_t n, float center, float sums[2])
{
    enum { LANES = 16 };
    float sum[LANES] = {0}, squares[LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        float d = mx_get_float(x.data, i, x.dtype) - center;
        sum[i % LANES] += d;
        squares[i % LANES] += d * d;
    }
    sums[0] = sums[1] = 0;
    for (int l = 0; l < LANES; l++) {
        sums[0] += sum[l];
        sums[1] += squares[l];
    }
}

static void rows_moments(float *sum, float *squares, mx_array x, int64_t n, int64_t stride, int64_t width,
                         const float *center)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            float d = mx_get_float(x.data, i * stride + j, x.dtype) - center[j];
            sum[j] += d;
            squares[j] += d * d;
        }
}

static void add_exp(float *center, float *sum, float x)
{
    if (x > *center) {
        float up = fminf(x, FLT_MAX);
        *sum *= expf(*center - up);
        *center = up;
    }
    *sum += expf(x - *center);
}

static void row_exps(mx_array x, int64_t n, float *center, float *sum)
{
    for (int64_t i = 0; i < n; i++)
        add_exp(center, sum, mx_get_float(x.data, i, x.dtype));
}

static void rows_exps(float *center, float *sum, mx_array x, int64_t n, int64_t stride, int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            add_exp(center + j, sum + j, mx_get_float(x.data, i * stride + j, x.dtype));
}

static void places(mx_fold fold, float *acc, int32_t *index, mx_array x, int64_t first, int64_t n, int64_t stride,
                   int64_t width)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            float one = mx_get_float(x.data, i * stride + j, x.dtype);
            bool beyond = fold == MX_FOLD_MIN ? one < acc[j] : one > acc[j];
            if (isnan(acc[j]) || !(beyond || isnan(one)))
                continue;
            acc[j] = one;
            index[j] = (int32_t)(first + i);
        }
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

const mx_reduce_paths mx_reduce_portable = {
    .row = row,
    .rows = rows,
    .row_moments = row_moments,
    .rows_moments = rows_moments,
    .row_exps = row_exps,
    .rows_exps = rows_exps,
    .places = places,
    .across = across,
};
