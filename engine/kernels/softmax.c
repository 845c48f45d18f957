#include "kernels/softmax.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <omp.h>

/* Stores go past the caches where these could not keep the tensors, if all runs of `bytes` start at cache lines. */
static bool should_stream(const mx_softmax *s, const void *out, const void *const in[2], int64_t bytes)
{
    int64_t tensor = s->rows * s->width * (int64_t)mx_dtype_bytes(s->dtype);
    return bytes % 64 == 0 && (uintptr_t)out % 64 == 0 && out != in[0] && out != in[1] &&
           mx_should_stream((in[1] ? 3 : 2) * tensor);
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

typedef void column_path(const mx_softmax *s, int64_t at, int64_t n, float *scratch, bool stream);

/* (outer, width, inner): a few columns at a time, by way of `copies` of them that stay in the second-level cache. */
static mx_status run_columns(const mx_softmax *s, column_path *path, int64_t copies, bool stream)
{
    int64_t across = mx_ceil_div(s->inner, MX_SOFTMAX_COLUMNS), n = s->rows / s->inner * across;
    int64_t threads = omp_get_max_threads(), scratch = copies * s->width * MX_SOFTMAX_COLUMNS;
    float *memory;
    MX_TRY(mx_pool_alloc(threads * scratch * (int64_t)sizeof *memory, (void **)&memory));
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t i = 0; i < n; i++) {
        int64_t from = i % across * MX_SOFTMAX_COLUMNS;
        path(s, i / across * s->width * s->inner + from, mx_min(MX_SOFTMAX_COLUMNS, s->inner - from),
             memory + omp_get_thread_num() * scratch, stream);
    }
    mx_pool_free(memory, threads * scratch * (int64_t)sizeof *memory);
    return MX_OK;
}

static mx_status run(const mx_softmax *s, const void *out, const void *const in[2], row_path *rows,
                     column_path *columns)
{
    int64_t bytes = (int64_t)mx_dtype_bytes(s->dtype);
    if (s->width == 0)
        return MX_OK;
    if (s->inner > 1)
        return run_columns(s, columns, in[1] ? 2 : 1, should_stream(s, out, in, s->inner * bytes));
    run_rows(s, rows, should_stream(s, out, in, s->width * bytes));
    return MX_OK;
}

mx_status mx_softmax_forward(const mx_softmax *s)
{
    const mx_softmax_paths *path = mx_kernels_current()->softmax;
    return run(s, s->y, (const void *[2]){s->x}, path->forward, path->forward_columns);
}

mx_status mx_softmax_backward(const mx_softmax *s)
{
    const mx_softmax_paths *path = mx_kernels_current()->softmax;
    return run(s, s->dx, (const void *[2]){s->y, s->dy}, path->backward, path->backward_columns);
}
