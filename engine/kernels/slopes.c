/* Gradients of reductions that take two passes over x: a number for each line of n elements, such as its mean, then the
 * gradient of each element from its own value and the numbers of its line. */
#include "kernels/slopes.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/columns.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <math.h>
#include <string.h>

enum {
    PIECE = 4096,      /* elements of a row, or */
    HEIGHT = 64,       /* rows of columns, whose sums are f32 */
    LONG = 64 * PIECE, /* rows from here on are shared by the threads */
    FEW = 1024,        /* columns of so many elements have few that are the extreme, */
    ROOM = 4096,       /* which are listed, up to so many of a block */
};

/* The places of extremes in a block, counted from its first element; n < 0: there are too many. */
typedef struct hits {
    int64_t n, place[ROOM];
} hits;

typedef struct slopes {
    mx_about what;
    mx_array x, dx;
    mx_extent e;
    bool stream;
    mx_array y, dy;      /* of extremes: (outer, inner) */
    const float *factor; /* of variances and norms: the same */
    bool about_zero;     /* of norms, which take no first pass: distances are from 0 */
    hits *hits;          /* of extremes of long columns: of each item (columns.h) */
} slopes;

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

/* The number that elements of line k are compared with in the first pass. */
static float first_center(const slopes *g, int64_t k)
{
    return g->what == MX_EQUAL_ABOUT ? mx_get_float(g->y.data, k, g->y.dtype) : 0;
}

/* Those of the second pass, from what the first has summed: the elements, or how many are the extreme. */
static void second_numbers(const slopes *g, int64_t k, double sum, float *center, float *factor)
{
    bool equal = g->what == MX_EQUAL_ABOUT;
    *center = equal ? first_center(g, k) : (float)(sum / (double)g->e.n);
    *factor = equal ? mx_get_float(g->dy.data, k, g->dy.dtype) / (float)sum : g->factor[k];
    if (isnan(*factor))
        *factor = NAN; /* as stores of bf16 want it */
}

/* ---- rows: inner is 1 ---- */

static float sum_piece(const slopes *g, int64_t o, int64_t p)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    int64_t n = mx_min(PIECE, g->e.n - p * PIECE);
    mx_array piece = at(g->x, o * g->e.n + p * PIECE);
    return g->what == MX_EQUAL_ABOUT ? mx_kernels_current()->slopes->row_equal(piece, n, first_center(g, o))
                                     : paths->row(MX_FOLD_SUM, piece, n);
}

static void put_slopes(const slopes *g, int64_t o, int64_t first, int64_t n, double sum)
{
    float center, factor;
    int64_t place = o * g->e.n + first;
    second_numbers(g, o, sum, &center, &factor);
    mx_kernels_current()->slopes->row_slopes(g->what, at(g->x, place), n, center, factor, at(g->dx, place).data,
                                             g->stream);
}

static void run_rows(const slopes *g)
{
    const mx_extent e = g->e;
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++) {
        double sum = 0;
        for (int64_t p = 0; !g->about_zero && p * PIECE < e.n; p++)
            sum += (double)sum_piece(g, o, p);
        put_slopes(g, o, 0, e.n, sum);
    }
}

/* The same for one long row. */
static mx_status run_long_row(const slopes *g, int64_t o)
{
    int64_t pieces = mx_ceil_div(g->e.n, PIECE), bytes = pieces * (int64_t)sizeof(float);
    float *sums;
    double sum = 0;
    MX_TRY(mx_pool_alloc(bytes, (void **)&sums));
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        sums[p] = g->about_zero ? 0 : sum_piece(g, o, p);
    for (int64_t p = 0; p < pieces; p++)
        sum += (double)sums[p];
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        put_slopes(g, o, p * PIECE, mx_min(PIECE, g->e.n - p * PIECE), sum);
    mx_pool_free(sums, bytes);
    return MX_OK;
}

/* ---- columns ---- */

static void find_sums(const void *what, const mx_column_block *b)
{
    const slopes *g = what;
    float center[MX_MOST_COLUMNS], part[MX_MOST_COLUMNS];
    double *sum = b->sum;
    memset(sum, 0, (size_t)b->width * sizeof *sum);
    for (int64_t j = 0; j < b->width; j++)
        center[j] = first_center(g, b->line + j);
    for (int64_t i = 0; !g->about_zero && i < b->rows; i += HEIGHT) {
        mx_array block = at(g->x, b->at + i * g->e.inner);
        int64_t height = mx_min(HEIGHT, b->rows - i);
        memset(part, 0, (size_t)b->width * sizeof *part);
        if (g->what == MX_EQUAL_ABOUT)
            mx_kernels_current()->slopes->rows_equal(part, block, height, g->e.inner, b->width, center);
        else
            mx_kernels_current()->reduce->rows(MX_FOLD_SUM, part, block, height, g->e.inner, b->width);
        for (int64_t j = 0; j < b->width; j++)
            sum[j] += (double)part[j];
    }
}

static void use_sums(const void *what, const mx_column_block *all)
{
    for (int64_t j = 0; j < all->width; j++)
        second_numbers(what, all->line + j, all->sum[j], &all->used[0][j], &all->used[1][j]);
}

static void put_columns(const void *what, const mx_column_block *b)
{
    const slopes *g = what;
    mx_kernels_current()->slopes->rows_slopes(g->what, at(g->x, b->at), b->rows, g->e.inner, b->width, b->used[0],
                                              b->used[1], at(g->dx, b->at).data, g->stream);
}

/* The first pass writes gradients of extremes as if each column had one, and lists where they are. The second pass uses
 * these lists to correct columns in which several elements are the extreme. It does not read x again. */
static void find_hits(const void *what, const mx_column_block *b)
{
    const slopes *g = what;
    hits *h = &g->hits[b->item];
    float value[MX_MOST_COLUMNS], single[MX_MOST_COLUMNS];
    for (int64_t j = 0; j < b->width; j++)
        second_numbers(g, b->line + j, 1, &value[j], &single[j]);
    h->n = mx_kernels_current()->slopes->rows_hits(at(g->x, b->at), b->rows, g->e.inner, b->width, value, single,
                                                   at(g->dx, b->at).data, g->stream, h->place, ROOM);
    if (h->n < 0) {
        find_sums(what, b);
        return;
    }
    memset(b->sum, 0, (size_t)b->width * sizeof *b->sum);
    for (int64_t k = 0; k < h->n; k++)
        b->sum[h->place[k] % g->e.inner]++;
}

static void put_ties(const void *what, const mx_column_block *b)
{
    const slopes *g = what;
    const hits *h = &g->hits[b->item];
    if (h->n < 0)
        put_columns(what, b);
    for (int64_t k = 0; k < h->n; k++) {
        int64_t j = h->place[k] % g->e.inner;
        if (b->used[1][j] != mx_get_float(g->dy.data, b->line + j, g->dy.dtype))
            mx_set_float(g->dx.data, b->at + h->place[k], b->used[1][j], g->dx.dtype);
    }
}

static mx_status run_columns(slopes *g)
{
    static const mx_column_steps steps = {find_sums, use_sums, put_columns}, once = {find_hits, use_sums, put_ties};
    const mx_extent e = g->e;
    if (g->what != MX_EQUAL_ABOUT || e.n < FEW || g->x.data == g->dx.data)
        return mx_run_columns(e, g->x.dtype, g->about_zero ? 0 : 1, true, &steps, g);
    int64_t bytes = mx_column_items(e, true) * (int64_t)sizeof *g->hits;
    MX_TRY(mx_pool_alloc(bytes, (void **)&g->hits));
    mx_status status = mx_run_columns(e, g->x.dtype, 0, true, &once, g);
    mx_pool_free(g->hits, bytes);
    return status;
}

/* ---- */

static mx_status run(slopes *g)
{
    const mx_extent e = g->e;
    int64_t bytes = (int64_t)mx_dtype_bytes(g->x.dtype), all = e.outer * e.n * e.inner * bytes;
    bool aligned = e.inner == 1 || (e.inner * bytes % 64 == 0 && (uintptr_t)g->dx.data % 64 == 0);
    g->stream = aligned && g->x.data != g->dx.data && mx_should_stream(2 * all);
    if (all == 0)
        return MX_OK;
    if (e.inner > 1)
        return run_columns(g);
    if (e.n < LONG)
        run_rows(g);
    else
        for (int64_t o = 0; o < e.outer; o++)
            MX_TRY(run_long_row(g, o));
    return MX_OK;
}

static void extreme_f64(const slopes *g)
{
    const mx_extent e = g->e;
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t k = 0; k < e.outer * e.inner; k++) {
        const double *x = (const double *)g->x.data + k / e.inner * e.n * e.inner + k % e.inner;
        double *dx = (double *)g->dx.data + (x - (const double *)g->x.data), ties = 0,
               y = ((const double *)g->y.data)[k];
        for (int64_t i = 0; i < e.n; i++)
            ties += x[i * e.inner] == y;
        for (int64_t i = 0; i < e.n; i++)
            dx[i * e.inner] = x[i * e.inner] == y ? mx_get_number(g->dy.data, k, g->dy.dtype) / ties : 0;
    }
}

mx_status mx_reduce_extreme_backward(mx_array x, mx_array y, mx_array dy, mx_extent e, mx_array dx)
{
    slopes g = {.what = MX_EQUAL_ABOUT, .x = x, .dx = dx, .e = e, .y = y, .dy = dy};
    if (x.dtype != MX_F64)
        return run(&g);
    extreme_f64(&g);
    return MX_OK;
}

mx_status mx_reduce_variance_backward(mx_array x, mx_extent e, const float *factor, mx_array dx)
{
    return run(&(slopes){.what = MX_SQUARES_ABOUT, .x = x, .dx = dx, .e = e, .factor = factor});
}

mx_status mx_reduce_norm_backward(mx_array x, mx_extent e, const float *factor, mx_array dx)
{
    return run(&(slopes){.what = MX_SQUARES_ABOUT, .x = x, .dx = dx, .e = e, .factor = factor, .about_zero = true});
}
