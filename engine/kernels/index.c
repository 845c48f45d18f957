#include "kernels/index_internal.h"

#include "core/cpu.h"
#include "core/pool.h"
#include "kernels/apart.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <immintrin.h>
#include <omp.h>

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

int64_t mx_index_strips(const mx_index_job *j, int64_t width)
{
    return j->outer * (j->inner / j->run) * mx_ceil_div(j->run, width);
}

mx_index_strip mx_index_strip_of(const mx_index_job *j, int64_t width, int64_t i)
{
    const int64_t per_run = mx_ceil_div(j->run, width), count = j->inner / j->run * per_run;
    const int64_t o = i / count, k = i % count, column = k % per_run * width, from = k / per_run * j->run + column;
    return (mx_index_strip){o, from, mx_min(width, j->run - column),
                            mx_index_outer_offset(j, o) + mx_index_inner_offset(j, from)};
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
        good &= mx_kernels_current()->moves->gather(to + i * j->bytes, x, index + i, m, j->limit, (size_t)j->bytes);
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

/* Positions [first, end) of strip t, from x where it is. */
static mx_gather_rows rows_of(const mx_index_job *j, const mx_index_strip *t, int64_t first, int64_t end)
{
    const int64_t at = (t->o * j->n + first) * j->inner + t->from;
    return (mx_gather_rows){.to = j->y + at * j->bytes,
                            .from = j->x + t->x * j->bytes,
                            .index = j->g->index + at,
                            .rows = end - first,
                            .n = t->width,
                            .limit = j->limit,
                            .step = j->inner,
                            .across = j->step};
}

/* Threads share the positions of strips. */
static bool gather_in_place(const mx_index_job *j)
{
    const int64_t rows = 64, strips = mx_index_strips(j, POSITIONS), pieces = mx_ceil_div(j->n, rows);
    int bad = 0;
#pragma omp parallel if (j->large)
    {
#pragma omp for collapse(2) schedule(static) reduction(| : bad)
        for (int64_t i = 0; i < strips; i++)
            for (int64_t p = 0; p < pieces; p++) {
                const mx_index_strip t = mx_index_strip_of(j, POSITIONS, i);
                const mx_gather_rows g = rows_of(j, &t, p * rows, mx_min(j->n, (p + 1) * rows));
                bad |= !mx_kernels_current()->moves->gather_rows(&g, (size_t)j->bytes, j->stream);
            }
        _mm_sfence();
    }
    return !bad;
}

/* Bytes that a core reads in any order at nearly the rate of its second-level cache: a quarter of this cache on Intel's
 * processors. Zen 5, which reads ahead, takes 0.6 ns for a cache line from 2 to 8 MiB. */
static int64_t near_bytes(void) { return mx_cpu_reads_ahead() ? 2 << 20 : mx_cpu_l2_bytes() / 4; }

/* Memory is read and written faster in wider pieces, up to 256 bytes. Narrower ones than 128 are slow. */
enum { WIDE = 256, NARROW = 128 };

/* From copies of strips of x, whose rows are neighbours in the caches. The next strip is copied meanwhile, so that
 * memory is read all the time. Where there are fewer strips than threads, these share the positions of a strip. */
static mx_status gather_from_copies(const mx_index_job *j, bool *good)
{
    const int threads = j->large ? omp_get_max_threads() : 1;
    int64_t width = WIDE / j->bytes;
    while (width * j->bytes > NARROW && width * j->bytes * j->limit > near_bytes())
        width /= 2;
    width = mx_min(width, j->run);
    const int64_t row = width * j->bytes, bytes = mx_round_up(j->limit * row, 64) + MX_APART;
    const int64_t strips = mx_index_strips(j, width), parts = mx_min(mx_ceil_div(threads, strips), j->n);
    const mx_move_paths *paths = mx_kernels_current()->moves;
    char *rooms;
    int bad = 0;
    MX_TRY(mx_pool_alloc(threads * 2 * bytes, (void **)&rooms));
#pragma omp parallel reduction(| : bad) if (j->large)
    {
        const int64_t thread = omp_get_thread_num(), of = omp_get_num_threads(), all = strips * parts;
        const int64_t begin = all * thread / of, end = all * (thread + 1) / of;
        char *room[] = {rooms + thread * 2 * bytes, rooms + (thread * 2 + 1) * bytes};
        for (int64_t i = begin; i < end; i++) {
            const mx_index_strip t = mx_index_strip_of(j, width, i / parts);
            const mx_index_strip next = mx_index_strip_of(j, width, (i + 1) / parts);
            const int64_t part = i % parts;
            mx_gather_rows g = rows_of(j, &t, j->n * part / parts, j->n * (part + 1) / parts);
            if (i == begin)
                paths->runs(room[i % 2], row, g.from, j->step * j->bytes, j->limit, t.width * j->bytes, false);
            g.from = room[i % 2];
            g.across = width;
            g.next = j->x + next.x * j->bytes;
            g.copy = room[(i + 1) % 2];
            g.next_bytes = i + 1 < end ? next.width * j->bytes : 0;
            g.next_step = j->step * j->bytes;
            g.copy_step = row;
            bad |= !paths->gather_rows(&g, (size_t)j->bytes, j->stream);
        }
        _mm_sfence();
    }
    *good = !bad;
    mx_pool_free(rooms, threads * 2 * bytes);
    return MX_OK;
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
        good &=
            mx_kernels_current()->moves->gather(l->y + i * j->bytes, l->x, l->index + i, m, l->limit, (size_t)j->bytes);
    }
    return good;
}

mx_status mx_gather_run(const mx_gather *g, void *y, const void *x, size_t element_bytes, bool *good)
{
    /* Lines of x of at most IN_PLACE elements are read where they are, and longer ones that are more than SEVERAL times
     * as long as the index. */
    enum { IN_PLACE = 512, SEVERAL = 4 };
    mx_index_job j = mx_index_job_of(g, (void *)x, y, element_bytes);
    *good = true;
    j.gathers = true;
    j.line = gather_line;
    if (j.outer * j.n * j.inner == 0)
        return MX_OK;
    if (mx_index_has_lines(&j))
        *good = gather_lines(&j);
    else if (j.limit <= IN_PLACE || j.limit > SEVERAL * j.n)
        *good = gather_in_place(&j);
    else if (mx_kernels_current()->moves->copies && (j.bytes == 2 || j.bytes == 4) && j.run * j.bytes >= NARROW &&
             j.limit * NARROW <= 2 * near_bytes())
        return gather_from_copies(&j, good);
    else
        return mx_index_run_strips(&j, good);
    return MX_OK;
}
