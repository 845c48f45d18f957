#include "kernels/softmax.h"

#include "kernels/columns.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"
#include "kernels/reduce.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* Stores go past the caches where these could not keep the tensors; those of columns only if all their runs of `bytes`
 * start at cache lines. */
static bool should_stream(const mx_softmax *s, const void *out, const void *const in[2])
{
    int64_t size = (int64_t)mx_dtype_bytes(s->dtype), tensor = s->rows * s->width * size;
    bool aligned = s->inner == 1 || (s->inner * size % 64 == 0 && (uintptr_t)out % 64 == 0);
    return aligned && out != in[0] && out != in[1] && mx_should_stream((in[1] ? 3 : 2) * tensor);
}

/* ---- columns: (outer, width, inner) ---- */

enum {
    COLUMNS = MX_MOST_COLUMNS, /* at a time, in two passes: of the sums and of the results */
    HEIGHT = 128,              /* rows whose terms are added in f32 */
};

/* What the exponentials of a row are multiplied by, or of a logarithm, what is taken off. */
static float factor_of(const mx_softmax *s, int64_t row, double sum)
{
    if (s->scale && isinf(sum))
        return 0;
    if (!isfinite(sum))
        return NAN;
    return (float)(s->log ? log(sum) : (s->scale ? (double)s->scale[row] : 1) / sum);
}

typedef struct columns {
    const mx_softmax *s;
    bool stream;
} columns;

/* Some rows of s as arrays of their own. */
static mx_softmax rows_of(const mx_softmax *s, int64_t rows)
{
    mx_softmax some = *s;
    some.width = rows;
    return some;
}

static void find_exps(const void *what, const mx_column_block *b)
{
    const mx_softmax *s = ((const columns *)what)->s;
    const mx_array x = {(char *)s->x + b->at * (int64_t)mx_dtype_bytes(s->dtype), s->dtype};
    mx_column_exps(x, b->rows, s->inner, b->width, b->used[0], b->sum);
}

static void use_exps(const void *what, const mx_column_block *all)
{
    for (int64_t c = 0; c < all->width; c++)
        all->used[1][c] = factor_of(((const columns *)what)->s, all->line + c, all->sum[c]);
}

static void put_exps(const void *what, const mx_column_block *b)
{
    const columns *f = what;
    const mx_softmax some = rows_of(f->s, b->rows);
    mx_kernels_current()->softmax->forward_columns(&some, b->at, b->width, b->used[0], b->used[1], f->stream);
}

static void find_terms(const void *what, const mx_column_block *b)
{
    const mx_softmax *s = ((const columns *)what)->s;
    float part[COLUMNS];
    memset(b->sum, 0, (size_t)b->width * sizeof *b->sum);
    for (int64_t i = 0; i < b->rows; i += HEIGHT) {
        memset(part, 0, (size_t)b->width * sizeof *part);
        mx_kernels_current()->softmax->column_terms(s, b->at + i * s->inner, mx_min(HEIGHT, b->rows - i), b->width,
                                                    part);
        for (int64_t c = 0; c < b->width; c++)
            b->sum[c] += (double)part[c];
    }
}

static void use_terms(const void *what, const mx_column_block *all)
{
    (void)what;
    for (int64_t c = 0; c < all->width; c++)
        all->used[0][c] = (float)all->sum[c];
}

static void put_terms(const void *what, const mx_column_block *b)
{
    const columns *f = what;
    const mx_softmax some = rows_of(f->s, b->rows);
    mx_kernels_current()->softmax->backward_columns(&some, b->at, b->width, b->used[0], f->stream);
}

static const mx_column_steps forward_steps = {find_exps, use_exps, put_exps};
static const mx_column_steps backward_steps = {find_terms, use_terms, put_terms};

/* The exponentials of all rows of a column have one center: the first pass is not shared. */
static mx_status run_columns(const mx_softmax *s, const mx_column_steps *steps, int inputs, bool stream)
{
    const columns what = {s, stream};
    const mx_extent e = {s->rows / s->inner, s->width, s->inner};
    return mx_run_columns(e, s->dtype, inputs, steps == &backward_steps, steps, &what);
}

/* ---- rows: inner is 1 ---- */

typedef void row_path(const mx_softmax *s, int64_t first, int64_t last, bool stream);

/* Each thread has neighbours, since a row is put while the next one is read. */
static void run_rows(const mx_softmax *s, row_path *path, bool stream)
{
    int64_t share = mx_ceil_div(s->rows, 4 * (int64_t)omp_get_max_threads());
    int64_t rows_at_once = mx_max(1 + 4096 / s->width, share), pieces = mx_ceil_div(s->rows, rows_at_once);
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once;
        path(s, first, mx_min(first + rows_at_once, s->rows), stream);
    }
}

enum {
    LONG = 1 << 18, /* the width of rows that all threads share, */
    PARTS = 256,    /* in so many parts at most; their results are put as rows */
    LINE = 512,     /* of so many columns */
};

/* Sums of e^(x - center). */
typedef struct exps {
    float center;
    double sum;
} exps;

static const exps NO_EXPS = {-FLT_MAX, 0};

/* The greater center, and both sums for it. */
static exps join(exps a, exps b)
{
    if (a.center < b.center)
        return join(b, a);
    return (exps){a.center, a.sum + b.sum * exp((double)b.center - (double)a.center)};
}

static exps exps_of(const mx_softmax *s, int64_t at, int64_t n)
{
    exps all = NO_EXPS;
    for (int64_t i = 0; i < n; i += MX_CHUNK) {
        mx_array x = {(char *)s->x + (at + i) * (int64_t)mx_dtype_bytes(s->dtype), s->dtype};
        float center = all.center, sum = 0;
        mx_kernels_current()->reduce->row_exps(x, mx_min(MX_CHUNK, n - i), &center, &sum);
        all = join(all, (exps){center, (double)sum});
    }
    return all;
}

/* n neighbours of a row: rows of LINE columns, and what remains. */
static void put_values(const mx_softmax *s, int64_t at, int64_t n, float center, float factor, bool stream)
{
    float centers[LINE], factors[LINE];
    mx_softmax view = *s;
    view.inner = LINE;
    for (int c = 0; c < LINE; c++) {
        centers[c] = center;
        factors[c] = factor;
    }
    view.width = n / LINE;
    mx_kernels_current()->softmax->forward_columns(&view, at, LINE, centers, factors, stream);
    view.width = 1;
    if (n % LINE > 0)
        mx_kernels_current()->softmax->forward_columns(&view, at + n / LINE * LINE, n % LINE, centers, factors, stream);
}

static void forward_long_row(const mx_softmax *s, int64_t r, bool stream)
{
    exps parts[PARTS], all = NO_EXPS;
    int64_t piece = mx_round_up(mx_ceil_div(s->width, PARTS), MX_CHUNK), pieces = mx_ceil_div(s->width, piece);
    int64_t first = r * s->width;
    stream = stream && ((uintptr_t)s->y + (uintptr_t)first * mx_dtype_bytes(s->dtype)) % 64 == 0;
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        parts[p] = exps_of(s, first + p * piece, mx_min(piece, s->width - p * piece));
    for (int64_t p = 0; p < pieces; p++)
        all = join(all, parts[p]);
    float factor = factor_of(s, r, all.sum);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < pieces; p++)
        put_values(s, first + p * piece, mx_min(piece, s->width - p * piece), all.center, factor, stream);
}

/* ---- */

mx_status mx_softmax_forward(const mx_softmax *s)
{
    bool stream = should_stream(s, s->y, (const void *[2]){s->x});
    if (s->width == 0)
        return MX_OK;
    if (s->inner > 1)
        return run_columns(s, &forward_steps, 1, stream);
    if (s->width < LONG)
        run_rows(s, mx_kernels_current()->softmax->forward, stream);
    else
        for (int64_t r = 0; r < s->rows; r++)
            forward_long_row(s, r, stream);
    return MX_OK;
}

mx_status mx_softmax_backward(const mx_softmax *s)
{
    bool stream = should_stream(s, s->dx, (const void *[2]){s->y, s->dy});
    if (s->width == 0)
        return MX_OK;
    if (s->inner > 1)
        return run_columns(s, &backward_steps, 2, stream);
    run_rows(s, mx_kernels_current()->softmax->backward, stream);
    return MX_OK;
}
