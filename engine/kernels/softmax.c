#include "kernels/softmax.h"

#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

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

typedef void row_path(const mx_softmax *s, int64_t first, int64_t last, bool stream);

static void run_rows(const mx_softmax *s, row_path *path, bool stream)
{
    int64_t rows_at_once = 1 + 4096 / s->width;
    int64_t pieces = (s->rows + rows_at_once - 1) / rows_at_once;
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path(s, first, last < s->rows ? last : s->rows, stream);
    }
}

/* ---- columns: (outer, width, inner) ---- */

enum {
    COLUMNS = 512, /* at a time, in two passes: of the sums, which stay in the first-level cache, and of the results */
    LEAST = 64,    /* so that threads share fewer columns */
    HEIGHT = 128,  /* rows whose terms are added in f32 */
};

static void forward_columns(const mx_softmax *s, int64_t at, int64_t n, bool stream)
{
    float center[COLUMNS], factor[COLUMNS];
    double sum[COLUMNS];
    const mx_array x = {(char *)s->x + at * (int64_t)mx_dtype_bytes(s->dtype), s->dtype};
    mx_column_exps(x, s->width, s->inner, n, center, sum);
    for (int64_t c = 0; c < n; c++)
        factor[c] = !isfinite(sum[c]) ? NAN : (float)(s->log ? log(sum[c]) : 1 / sum[c]);
    mx_kernels_current()->softmax->forward_columns(s, at, n, center, factor, stream);
}

static void backward_columns(const mx_softmax *s, int64_t at, int64_t n, bool stream)
{
    const mx_softmax_paths *path = mx_kernels_current()->softmax;
    float part[COLUMNS];
    double sum[COLUMNS] = {0};
    for (int64_t i = 0; i < s->width; i += HEIGHT) {
        memset(part, 0, sizeof part);
        path->column_terms(s, at + i * s->inner, mx_min(HEIGHT, s->width - i), n, part);
        for (int64_t c = 0; c < n; c++)
            sum[c] += (double)part[c];
    }
    for (int64_t c = 0; c < n; c++)
        part[c] = (float)sum[c];
    path->backward_columns(s, at, n, part, stream);
}

typedef void column_path(const mx_softmax *s, int64_t at, int64_t n, bool stream);

/* How many columns are done at a time has no influence on their bits. */
static void run_columns(const mx_softmax *s, column_path *path, bool stream)
{
    int64_t outer = s->rows / s->inner, width = COLUMNS;
    while (width > LEAST && outer * mx_ceil_div(s->inner, width) < 2 * omp_get_max_threads())
        width /= 2;
    int64_t across = mx_ceil_div(s->inner, width);
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t i = 0; i < outer * across; i++) {
        int64_t from = i % across * width;
        path(s, i / across * s->width * s->inner + from, mx_min(width, s->inner - from), stream);
    }
}

static void run(const mx_softmax *s, const void *out, const void *const in[2], row_path *rows, column_path *columns)
{
    if (s->width == 0)
        return;
    if (s->inner > 1)
        run_columns(s, columns, should_stream(s, out, in));
    else
        run_rows(s, rows, should_stream(s, out, in));
}

void mx_softmax_forward(const mx_softmax *s)
{
    run(s, s->y, (const void *[2]){s->x}, mx_kernels_current()->softmax->forward, forward_columns);
}

void mx_softmax_backward(const mx_softmax *s)
{
    run(s, s->dx, (const void *[2]){s->y, s->dy}, mx_kernels_current()->softmax->backward, backward_columns);
}
