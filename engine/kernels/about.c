/* Variances, and logarithms of sums of exponentials: a center for each piece, sums of distances from it, joined in f64;
 * and whether any element is not zero. */
#include "kernels/reduce.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <math.h>

enum {
    WIDTH = 512,  /* columns at a time */
    HEIGHT = 128, /* and rows: both passes over them find them in the second-level cache */
    PIECE = MX_CHUNK,
};

/* The mean of n elements and the sum of (x - mean)^2; or their maximum and the sum of e^(x - maximum). */
typedef struct part {
    double n, center, sum;
} part;

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

/* Variances by Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
 * 1979. */
static part join(mx_about about, part a, part b)
{
    if (a.n == 0)
        return b;
    part c = {.n = a.n + b.n};
    if (about == MX_ABOUT_LOGSUMEXP) {
        c.center = isnan(a.center) || a.center > b.center ? a.center : b.center;
        double smaller = exp(-fabs(a.center - b.center));
        c.sum = isinf(c.center) ? 1 : a.center > b.center ? a.sum + b.sum * smaller : a.sum * smaller + b.sum;
        return c;
    }
    double apart = b.center - a.center;
    c.center = a.center + apart * (b.n / c.n);
    c.sum = a.sum + b.sum + apart * apart * (a.n * b.n / c.n);
    return c;
}

/* The part from its center and the sum of the distances from f32(center). */
static part part_of(mx_about about, int64_t n, double center, float sum)
{
    double off = center - (double)(float)center; /* the f32 center misses the mean by this */
    if (about == MX_ABOUT_LOGSUMEXP)
        return (part){(double)n, center, isinf(center) ? 1 : (double)sum};
    return (part){(double)n, center, (double)sum - (double)n * off * off};
}

static void put(mx_about about, part p, double scale, mx_array y, int64_t i)
{
    double value = p.sum * scale;
    if (about == MX_ABOUT_STD)
        value = sqrt(value > 0 || isnan(value) ? value : 0);
    else if (about == MX_ABOUT_LOGSUMEXP)
        value = p.n == 0 ? -INFINITY : p.center + log(p.sum);
    mx_set_number(y.data, i, value, y.dtype);
}

/* ---- rows: inner is 1 ---- */

static part row_part(mx_about about, mx_array x, int64_t n)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    bool exps = about == MX_ABOUT_LOGSUMEXP;
    double center = paths->row(exps ? MX_FOLD_MAX : MX_FOLD_SUM, x, n);
    if (!exps)
        center /= (double)n;
    return part_of(about, n, center, paths->row_about(exps, x, n, (float)center));
}

static mx_status about_rows(mx_about about, mx_array x, mx_extent e, double scale, mx_array y)
{
    int64_t pieces = mx_ceil_div(e.n, PIECE), items = e.outer * pieces, bytes = items * (int64_t)sizeof(part);
    part *parts;
    MX_TRY(mx_pool_alloc(bytes, (void **)&parts));
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < items; i++) {
        int64_t first = i % pieces * PIECE;
        parts[i] = row_part(about, at(x, i / pieces * e.n + first), mx_min(PIECE, e.n - first));
    }
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++) {
        part all = {0};
        for (int64_t p = 0; p < pieces; p++)
            all = join(about, all, parts[o * pieces + p]);
        put(about, all, scale, y, o);
    }
    mx_pool_free(parts, bytes);
    return MX_OK;
}

/* ---- columns: inner > 1 ---- */

static void about_band(mx_about about, mx_array x, mx_extent e, double scale, mx_array y, int64_t o, int64_t from)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    bool exps = about == MX_ABOUT_LOGSUMEXP;
    part all[WIDTH];
    double center[WIDTH];
    float single[WIDTH], sum[WIDTH];
    int64_t width = mx_min(WIDTH, e.inner - from);
    for (int64_t j = 0; j < width; j++)
        all[j] = (part){0};
    for (int64_t i = 0; i < e.n; i += HEIGHT) {
        int64_t n = mx_min(HEIGHT, e.n - i);
        mx_array block = at(x, (o * e.n + i) * e.inner + from);
        for (int64_t j = 0; j < width; j++) {
            single[j] = exps ? -INFINITY : 0;
            sum[j] = 0;
        }
        paths->rows(exps ? MX_FOLD_MAX : MX_FOLD_SUM, single, block, n, e.inner, width);
        for (int64_t j = 0; j < width; j++) {
            center[j] = exps ? (double)single[j] : (double)single[j] / (double)n;
            single[j] = (float)center[j];
        }
        paths->rows_about(exps, sum, block, n, e.inner, width, single);
        for (int64_t j = 0; j < width; j++)
            all[j] = join(about, all[j], part_of(about, n, center[j], sum[j]));
    }
    for (int64_t j = 0; j < width; j++)
        put(about, all[j], scale, y, o * e.inner + from + j);
}

mx_status mx_reduce_about(mx_about about, mx_array x, mx_extent e, double scale, mx_array y)
{
    if (e.inner == 1)
        return about_rows(about, x, e, scale, y);
    int64_t bands = mx_ceil_div(e.inner, WIDTH);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands; i++)
        about_band(about, x, e, scale, y, i / bands, i % bands * WIDTH);
    return MX_OK;
}

/* ---- any and all ---- */

/* found[j] is not 0 if (x & mask) is not 0, or with `all` is 0, in one of n rows of `width` columns. Single columns are
 * rows of n neighbours, in which the search ends early. */
#define DEFINE_ANY(name, type)                                                                                         \
    static void name(const void *data, int64_t first, type mask, bool all, int64_t n, int64_t stride, int64_t width,   \
                     uint8_t *y)                                                                                       \
    {                                                                                                                  \
        const type *x = (const type *)data + first;                                                                    \
        type found[WIDTH] = {0};                                                                                       \
        for (int64_t from = 0; stride == 1 && from < n && !found[0]; from += PIECE)                                    \
            for (int64_t i = from; i < mx_min(n, from + PIECE); i++)                                                   \
                found[0] |= all ? (x[i] & mask) == 0 : x[i] & mask;                                                    \
        for (int64_t i = 0; stride > 1 && i < n; i++) {                                                                \
            for (int64_t j = 0; j < width; j += 64 / (int64_t)sizeof *x)                                               \
                __builtin_prefetch(x + (i + 4) * stride + j);                                                          \
            for (int64_t j = 0; j < width; j++)                                                                        \
                found[j] |= all ? (x[i * stride + j] & mask) == 0 : x[i * stride + j] & mask;                          \
        }                                                                                                              \
        for (int64_t j = 0; j < width; j++)                                                                            \
            y[j] = (found[j] != 0) != all;                                                                             \
    }
DEFINE_ANY(any_of_64, uint64_t)
DEFINE_ANY(any_of_32, uint32_t)
DEFINE_ANY(any_of_16, uint16_t)
DEFINE_ANY(any_of_8, uint8_t)

static void any_in_band(mx_array x, mx_extent e, bool all, int64_t o, int64_t from, uint8_t *y)
{
    int64_t width = mx_min(WIDTH, e.inner - from), first = o * e.n * e.inner + from;
    size_t bytes = mx_dtype_bytes(x.dtype);
    uint64_t mask =
        UINT64_MAX >> (mx_dtype_is_integer(x.dtype) ? 0 : 1) >> (64 - 8 * bytes); /* without the sign of 0 */
    y += o * e.inner + from;
    if (bytes == 8)
        any_of_64(x.data, first, mask, all, e.n, e.inner, width, y);
    else if (bytes == 4)
        any_of_32(x.data, first, (uint32_t)mask, all, e.n, e.inner, width, y);
    else if (bytes == 2)
        any_of_16(x.data, first, (uint16_t)mask, all, e.n, e.inner, width, y);
    else
        any_of_8(x.data, first, (uint8_t)mask, all, e.n, e.inner, width, y);
}

void mx_reduce_any(mx_array x, mx_extent e, bool all, uint8_t *y)
{
    int64_t bands = mx_ceil_div(e.inner, WIDTH);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands; i++)
        any_in_band(x, e, all, i / bands, i % bands * WIDTH, y);
}
