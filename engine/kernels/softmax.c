#include "kernels/softmax.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <omp.h>

/* Rows to `out` from the tensors it is made of; past the caches where these could not keep them. */
static void run(const mx_softmax *s, const void *out, const void *const in[2],
                void (*path)(const mx_softmax *, int64_t, int64_t, bool))
{
    if (s->width == 0)
        return;
    int64_t row_bytes = s->width * (int64_t)mx_dtype_bytes(s->dtype), tensors = in[1] ? 3 : 2;
    bool stream = row_bytes % 64 == 0 && (uintptr_t)out % 64 == 0 && out != in[0] && out != in[1] &&
                  mx_should_stream(tensors * s->rows * row_bytes);
    int64_t rows_at_once = 1 + 4096 / s->width;
    int64_t pieces = (s->rows + rows_at_once - 1) / rows_at_once;
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path(s, first, last < s->rows ? last : s->rows, stream);
    }
}

typedef void row_path(const mx_softmax *s, int64_t first, int64_t last, bool stream);

/* (outer, width, inner): tiles of up to MX_TILE rows are transposed, done, and transposed back. */
typedef struct tiles {
    const mx_softmax *s;
    void *in[2], *out;
    row_path *path;
    bool backward;
} tiles;

/* Columns [from, from + n) of block o to rows at `rows`, or back. */
static void move_tile(const mx_softmax *s, void *whole, void *rows, int64_t o, int64_t from, int64_t n, bool back)
{
    mx_transpose_path *transpose = mx_kernels_current()->transpose;
    int64_t bytes = (int64_t)mx_dtype_bytes(s->dtype);
    for (int64_t i = 0; i < s->width; i += MX_TILE) {
        int64_t m = mx_min(MX_TILE, s->width - i);
        char *in_whole = (char *)whole + ((o * s->width + i) * s->inner + from) * bytes,
             *in_rows = (char *)rows + i * bytes;
        if (back)
            transpose(in_whole, s->inner, in_rows, s->width, n, m, (size_t)bytes);
        else
            transpose(in_rows, s->width, in_whole, s->inner, m, n, (size_t)bytes);
    }
}

static void run_tile(const tiles *t, int64_t o, int64_t from, char *scratch)
{
    const mx_softmax *s = t->s;
    int64_t n = mx_min(MX_TILE, s->inner - from), bytes = MX_TILE * s->width * (int64_t)mx_dtype_bytes(s->dtype);
    mx_softmax own = {.rows = n, .width = s->width, .inner = 1, .dtype = s->dtype, .log = s->log};
    move_tile(s, t->in[0], scratch, o, from, n, false);
    if (t->backward)
        move_tile(s, t->in[1], scratch + bytes, o, from, n, false);
    own.x = own.y = scratch;
    own.dy = own.dx = scratch + bytes;
    t->path(&own, 0, n, false);
    move_tile(s, t->out, t->backward ? scratch + bytes : scratch, o, from, n, true);
}

static mx_status run_tiles(const tiles *t)
{
    const mx_softmax *s = t->s;
    int64_t tile = MX_TILE * s->width * (int64_t)mx_dtype_bytes(s->dtype) * (t->backward ? 2 : 1);
    int64_t across = mx_ceil_div(s->inner, MX_TILE), n = s->rows / s->inner * across, threads = omp_get_max_threads();
    char *scratch;
    MX_TRY(mx_pool_alloc(threads * tile, (void **)&scratch));
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t i = 0; i < n; i++)
        run_tile(t, i / across, i % across * MX_TILE, scratch + omp_get_thread_num() * tile);
    mx_pool_free(scratch, threads * tile);
    return MX_OK;
}

mx_status mx_softmax_forward(const mx_softmax *s)
{
    row_path *path = mx_kernels_current()->softmax->forward;
    if (s->inner > 1 && s->width > 0)
        return run_tiles(&(tiles){.s = s, .in = {(void *)s->x}, .out = s->y, .path = path});
    run(s, s->y, (const void *[2]){s->x}, path);
    return MX_OK;
}

mx_status mx_softmax_backward(const mx_softmax *s)
{
    row_path *path = mx_kernels_current()->softmax->backward;
    if (s->inner > 1 && s->width > 0)
        return run_tiles(&(tiles){.s = s, .in = {s->y, (void *)s->dy}, .out = s->dx, .path = path, .backward = true});
    run(s, s->dx, (const void *[2]){s->y, s->dy}, path);
    return MX_OK;
}
