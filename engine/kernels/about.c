/* Variances: a center for each piece, sums of distances from it and of their squares, joined in f64; and logarithms
 * of sums of exponentials. */
#include "kernels/reduce.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <float.h>
#include <math.h>

enum {
    WIDTH = 2048, /* columns of variances at a time: the first-level cache has room for three numbers of each, */
    HEIGHT = 128, /* and rows whose sums are f32 */
    PIECE = MX_CHUNK,
    SHORT = 4096,      /* elements of a row, or HEIGHT rows, whose squared distances are f32. They are taken from */
    FIRST = SHORT / 8, /* the mean of the first ones, */
    TOP = HEIGHT / 8,  /* or of the first rows */
};

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

/* ---- variances ---- */

/* Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979. */
mx_moments mx_moments_join(mx_moments a, mx_moments b)
{
    if (a.n == 0)
        return b;
    double n = a.n + b.n, apart = b.mean - a.mean;
    return (mx_moments){n, a.mean + apart * (b.n / n), a.sum + b.sum + apart * apart * (a.n * b.n / n)};
}

/* n elements from the sums of their distances from a center, and of the squares of these. What cancels is the squared
 * distance of the mean from the center, which is at most n / k times the variance, as the center is the mean of k of
 * them: so 3 bits of the f32 sums. */
static mx_moments moments_of(int64_t n, double center, double sum, double squares)
{
    double off = sum / (double)n, rest = squares - sum * off;
    return (mx_moments){(double)n, center + off, rest < 0 ? 0 : rest};
}

static void put(mx_moments p, double scale, bool root, mx_array y, int64_t i)
{
    double value = p.sum * scale;
    if (root)
        value = sqrt(value > 0 || isnan(value) ? value : 0);
    mx_set_number(y.data, i, value, y.dtype);
}

/* Of up to SHORT neighbours. */
static mx_moments moments_of_piece(mx_array x, int64_t n)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    int64_t first = mx_min(FIRST, n);
    float center = paths->row(MX_FOLD_SUM, x, first) / (float)first, sums[2];
    paths->row_moments(x, n, center, sums);
    return moments_of(n, (double)center, (double)sums[0], (double)sums[1]);
}

mx_moments mx_row_moments(mx_array x, int64_t n)
{
    mx_moments all = {0};
    for (int64_t i = 0; i < n; i += SHORT)
        all = mx_moments_join(all, moments_of_piece(at(x, i), mx_min(SHORT, n - i)));
    return all;
}

static mx_status variance_of_rows(mx_array x, mx_extent e, double scale, bool root, mx_array y)
{
    int64_t pieces = mx_ceil_div(e.n, SHORT), items = e.outer * pieces, bytes = items * (int64_t)sizeof(mx_moments);
    mx_moments *parts;
    MX_TRY(mx_pool_alloc(bytes, (void **)&parts));
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < items; i++) {
        int64_t first = i % pieces * SHORT;
        parts[i] = moments_of_piece(at(x, i / pieces * e.n + first), mx_min(SHORT, e.n - first));
    }
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++) {
        mx_moments all = {0};
        for (int64_t p = 0; p < pieces; p++)
            all = mx_moments_join(all, parts[o * pieces + p]);
        put(all, scale, root, y, o);
    }
    mx_pool_free(parts, bytes);
    return MX_OK;
}

/* Columns of `done` elements: their means, and sums of squared distances from these. */
typedef struct band {
    double done, mean[WIDTH], sum[WIDTH];
} band;

/* Adds n rows from their sums about `center`: what moments_of() and mx_moments_join() do, with no division, as all
 * columns have as many elements. */
static void join_rows(band *b, int64_t n, const float *center, const float *sum, const float *squares, int64_t width)
{
    double one = 1 / (double)n, all = b->done + (double)n, share = (double)n / all, both = b->done * share;
    for (int64_t j = 0; j < width; j++) {
        double off = (double)sum[j] * one, apart = (double)center[j] + off - b->mean[j];
        double rest = (double)squares[j] - (double)sum[j] * off;
        b->mean[j] += apart * share;
        b->sum[j] += (rest < 0 ? 0 : rest) + apart * apart * both;
    }
    b->done = all;
}

static void moments_of_band(mx_array x, int64_t n_rows, int64_t stride, int64_t width, mx_moments *moments)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    band all = {0};
    float center[WIDTH], sum[WIDTH], squares[WIDTH];
    for (int64_t i = 0; i < n_rows; i += HEIGHT) {
        int64_t n = mx_min(HEIGHT, n_rows - i), top = mx_min(TOP, n);
        mx_array block = at(x, i * stride);
        memset(center, 0, (size_t)width * sizeof *center);
        memset(sum, 0, (size_t)width * sizeof *sum);
        memset(squares, 0, (size_t)width * sizeof *squares);
        paths->rows(MX_FOLD_SUM, center, block, top, stride, width);
        for (int64_t j = 0; j < width; j++)
            center[j] /= (float)top;
        paths->rows_moments(sum, squares, block, n, stride, width, center);
        join_rows(&all, n, center, sum, squares, width);
    }
    for (int64_t j = 0; j < width; j++)
        moments[j] = (mx_moments){all.done, all.mean[j], all.sum[j]};
}

void mx_column_moments(mx_array x, int64_t n, int64_t stride, int64_t width, mx_moments *moments)
{
    for (int64_t j = 0; j < width; j += WIDTH)
        moments_of_band(at(x, j), n, stride, mx_min(WIDTH, width - j), moments + j);
}

static void variance_of_band(mx_array x, mx_extent e, double scale, bool root, mx_array y, int64_t o, int64_t from,
                             int64_t width)
{
    mx_moments all[WIDTH];
    moments_of_band(at(x, o * e.n * e.inner + from), e.n, e.inner, width, all);
    for (int64_t j = 0; j < width; j++)
        put(all[j], scale, root, y, o * e.inner + from + j);
}

mx_status mx_reduce_variance(mx_array x, mx_extent e, double scale, bool root, mx_array y)
{
    if (e.inner == 1)
        return variance_of_rows(x, e, scale, root, y);
    int64_t width = mx_min(mx_panel_columns(e, x.dtype, 0), WIDTH), bands = mx_ceil_div(e.inner, width);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands; i++)
        variance_of_band(x, e, scale, root, y, i / bands, i % bands * width,
                         mx_min(width, e.inner - i % bands * width));
    return MX_OK;
}

/* ---- logarithms of sums of exponentials ---- */

/* The sum of e^(x - center). */
typedef struct exps {
    double center, sum;
} exps;

static const exps NO_EXPS = {-FLT_MAX, 0};

/* Centers are finite; an infinite sum has the greatest there is. */
static exps join_exps(exps a, exps b)
{
    if (a.center < b.center)
        return join_exps(b, a);
    return (exps){a.center, a.sum + (a.center == b.center ? b.sum : b.sum * exp(b.center - a.center))};
}

static void put_exps(exps all, mx_array y, int64_t i) { mx_set_number(y.data, i, all.center + log(all.sum), y.dtype); }

static mx_status logsumexp_of_rows(mx_array x, mx_extent e, mx_array y)
{
    int64_t pieces = mx_ceil_div(e.n, PIECE), items = e.outer * pieces, bytes = items * (int64_t)sizeof(exps);
    exps *parts;
    MX_TRY(mx_pool_alloc(bytes, (void **)&parts));
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < items; i++) {
        int64_t first = i % pieces * PIECE;
        float center = -FLT_MAX, sum = 0;
        mx_kernels_current()->reduce->row_exps(at(x, i / pieces * e.n + first), mx_min(PIECE, e.n - first), &center,
                                               &sum);
        parts[i] = (exps){(double)center, (double)sum};
    }
    for (int64_t o = 0; o < e.outer; o++) {
        exps all = NO_EXPS;
        for (int64_t p = 0; p < pieces; p++)
            all = join_exps(all, parts[o * pieces + p]);
        put_exps(all, y, o);
    }
    mx_pool_free(parts, bytes);
    return MX_OK;
}

static void exps_of_band(mx_array x, int64_t n, int64_t stride, int64_t width, float *center, double *sum)
{
    float before[MX_MOST_COLUMNS], more[MX_MOST_COLUMNS];
    for (int64_t j = 0; j < width; j++) {
        center[j] = -FLT_MAX;
        sum[j] = 0;
    }
    for (int64_t i = 0; i < n; i += HEIGHT) {
        memset(more, 0, (size_t)width * sizeof *more);
        memcpy(before, center, (size_t)width * sizeof *center);
        mx_kernels_current()->reduce->rows_exps(center, more, at(x, i * stride), mx_min(HEIGHT, n - i), stride, width);
        for (int64_t j = 0; j < width; j++) {
            if (center[j] > before[j])
                sum[j] *= exp((double)before[j] - (double)center[j]);
            sum[j] += (double)more[j];
        }
    }
}

void mx_column_exps(mx_array x, int64_t n, int64_t stride, int64_t width, float *center, double *sum)
{
    for (int64_t j = 0; j < width; j += MX_MOST_COLUMNS)
        exps_of_band(at(x, j), n, stride, mx_min(MX_MOST_COLUMNS, width - j), center + j, sum + j);
}

static void logsumexp_of_band(mx_array x, mx_extent e, mx_array y, int64_t o, int64_t from, int64_t width)
{
    float center[MX_MOST_COLUMNS];
    double sum[MX_MOST_COLUMNS];
    exps_of_band(at(x, o * e.n * e.inner + from), e.n, e.inner, width, center, sum);
    for (int64_t j = 0; j < width; j++)
        put_exps((exps){(double)center[j], sum[j]}, y, o * e.inner + from + j);
}

mx_status mx_reduce_logsumexp(mx_array x, mx_extent e, mx_array y)
{
    if (e.inner == 1)
        return logsumexp_of_rows(x, e, y);
    int64_t width = mx_panel_columns(e, x.dtype, 0), bands = mx_ceil_div(e.inner, width);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands; i++)
        logsumexp_of_band(x, e, y, i / bands, i % bands * width, mx_min(width, e.inner - i % bands * width));
    return MX_OK;
}
