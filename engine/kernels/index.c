#include "kernels/index_internal.h"

#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <immintrin.h>

static int64_t product(const int64_t *size, int from, int to)
{
    int64_t count = 1;
    for (int d = from; d < to; d++)
        count *= size[d];
    return count;
}

mx_index_job mx_index_job_of(const mx_gather *g, void *x, void *y, size_t element_bytes)
{
    mx_index_job j = {.g = g,
                      .outer = product(g->index_size, 0, g->dim),
                      .n = g->index_size[g->dim],
                      .inner = product(g->index_size, g->dim + 1, g->n_dims),
                      .step = product(g->x_size, g->dim + 1, g->n_dims),
                      .limit = g->x_size[g->dim],
                      .run = 1,
                      .x = x,
                      .y = y,
                      .bytes = (int64_t)element_bytes,
                      .y_bytes = (int64_t)element_bytes};
    bool same = true;
    for (int d = g->n_dims - 1; d > g->dim && same; d--) {
        j.run *= g->index_size[d];
        same = g->index_size[d] == g->x_size[d];
    }
    j.stream = mx_should_stream(2 * j.outer * j.n * j.inner * j.bytes);
    j.large = j.outer * j.n * j.inner > 16384;
    return j;
}

int64_t mx_index_outer_offset(const mx_index_job *j, int64_t o)
{
    const mx_gather *g = j->g;
    int64_t offset = 0, stride = product(g->x_size, g->dim, g->n_dims);
    for (int d = g->dim - 1; d >= 0; d--) {
        offset += o % g->index_size[d] * stride;
        o /= g->index_size[d];
        stride *= g->x_size[d];
    }
    return offset;
}

int64_t mx_index_inner_offset(const mx_index_job *j, int64_t i)
{
    const mx_gather *g = j->g;
    int64_t offset = 0, stride = 1;
    for (int d = g->n_dims - 1; d > g->dim; d--) {
        offset += i % g->index_size[d] * stride;
        i /= g->index_size[d];
        stride *= g->x_size[d];
    }
    return offset;
}

/* ---- gather ---- */

enum { POSITIONS = 2048 };

MX_INLINE void ask_for(const void *p, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/* Positions `first` to before first + n of the index, in line o. What is streamed goes by way of the first-level cache,
 * from which it is written past the others. A line of x is read in no order, so it is asked for, unless most of it is
 * skipped, while the line before is gathered. */
static bool gather_piece(const mx_index_job *j, int64_t o, int64_t first, int64_t n)
{
    enum { BLOCK = 128, AHEAD = 1024, LINE_BYTES = 1 << 18 };
    char room[POSITIONS * 8], *y = j->y + first * j->bytes, *to = j->stream ? room : y;
    const int64_t line = j->limit * j->bytes, place = first - o * j->n;
    const char *x = j->x + mx_index_outer_offset(j, o) * j->bytes;
    const int32_t *index = j->g->index + first;
    bool good = true, asks = line <= LINE_BYTES && line <= 64 * j->n;
    for (int64_t i = 0, m; i < n; i += m) {
        m = mx_min(BLOCK, n - i);
        if (asks)
            ask_for(x + line, (place + i) * line / j->n, (place + i + m) * line / j->n);
        ask_for(index + i + AHEAD, 0, m * (int64_t)sizeof *index);
        good &= mx_kernels_current()->moves->gather(to + i * j->bytes, x, index + i, m, j->limit, 0, (size_t)j->bytes);
    }
    if (j->stream)
        mx_kernels_current()->elementwise->copy(room, y, n * j->bytes, true);
    return good;
}

static bool gather_lines(const mx_index_job *j)
{
    int64_t n = j->n, pieces = mx_ceil_div(n, POSITIONS);
    int bad = 0;
#pragma omp parallel if (j->large)
    {
#pragma omp for collapse(2) schedule(static) reduction(| : bad)
        for (int64_t o = 0; o < j->outer; o++)
            for (int64_t p = 0; p < pieces; p++)
                bad |= !gather_piece(j, o, o * n + p * POSITIONS, mx_min(POSITIONS, n - p * POSITIONS));
        _mm_sfence();
    }
    return !bad;
}

/* Elements where they are, in bands of columns; those of one row are neighbours in the index. */
static bool gather_bands(const mx_index_job *j)
{
    const int64_t rows = 64, wide = mx_min(POSITIONS, j->run), per_run = mx_ceil_div(j->run, wide);
    const int64_t bands = j->inner / mx_max(1, j->run) * per_run, pieces = mx_ceil_div(j->n, rows);
    int bad = 0;
#pragma omp parallel for collapse(3) schedule(static) reduction(| : bad) if (j->large)
    for (int64_t o = 0; o < j->outer; o++)
        for (int64_t b = 0; b < bands; b++)
            for (int64_t p = 0; p < pieces; p++) {
                int64_t column = b % per_run * wide, from = b / per_run * j->run + column;
                int64_t start = mx_index_outer_offset(j, o) + mx_index_inner_offset(j, from);
                for (int64_t k = p * rows; k < mx_min(j->n, (p + 1) * rows); k++) {
                    int64_t at = (o * j->n + k) * j->inner + from;
                    bad |= !mx_kernels_current()->moves->gather(j->y + at * j->bytes, j->x + start * j->bytes,
                                                                j->g->index + at, mx_min(wide, j->run - column),
                                                                j->limit, j->step, (size_t)j->bytes);
                }
            }
    return !bad;
}

/* A line in a strip; the next one is asked for. */
static bool gather_line(const mx_index_job *j, const mx_index_line *l)
{
    enum { BLOCK = 128 };
    const int64_t line = l->limit * j->bytes;
    bool good = true;
    for (int64_t i = 0, m; i < l->n; i += m) {
        m = mx_min(BLOCK, l->n - i);
        ask_for(l->x + line, i * line / l->n, (i + m) * line / l->n);
        good &= mx_kernels_current()->moves->gather(l->y + i * j->bytes, l->x, l->index + i, m, l->limit, 0,
                                                    (size_t)j->bytes);
    }
    return good;
}

mx_status mx_gather_run(const mx_gather *g, void *y, const void *x, size_t element_bytes, bool *good)
{
    enum { BAND = 512, SEVERAL = 4 }; /* lines of x of at most so many elements; so many times as long as the index */
    mx_index_job j = mx_index_job_of(g, (void *)x, y, element_bytes);
    *good = true;
    j.gathers = true;
    j.line = gather_line;
    if (j.outer * j.n * j.inner == 0)
        return MX_OK;
    if (!mx_index_has_lines(&j) && j.limit > BAND && j.limit <= SEVERAL * j.n)
        return mx_index_run_strips(&j, good);
    *good = mx_index_has_lines(&j) ? gather_lines(&j) : gather_bands(&j);
    return MX_OK;
}
