/* Strips: columns that are turned over, so that each is a line of neighbours in scratch memory. */
#include "kernels/index_internal.h"

#include "core/pool.h"
#include "kernels/apart.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/move.h"

#include <immintrin.h>
#include <omp.h>
#include <string.h>

/* Memory is read and written fastest in pieces of PIECE bytes. A strip of more than MOST bytes becomes narrower, down
 * to NARROW columns. ROWS: positions of the index that are turned over at once; to scatter, at least as many as a line
 * of x has. */
enum { PIECE = 256, MOST = 12 << 20, NARROW = 16, ROWS = 4096 };

typedef struct strips {
    int64_t width, rows;                           /* columns and positions that are turned over at once */
    int64_t x_step, y_step, index_step, sums_step; /* bytes from a line to the next */
    int64_t bytes;                                 /* scratch memory of a thread */
} strips;

/* An odd number of cache lines, so that an element's places in all lines are in different sets of a cache. */
static int64_t step_of(int64_t bytes) { return mx_round_up(bytes, 128) + 64; }

static void set_width(const mx_index_job *j, strips *s, int64_t width)
{
    bool whole = s->rows == j->n;
    s->width = mx_min(width, j->run);
    s->bytes = s->width * (s->x_step + s->y_step + s->index_step) + (whole ? 1 : s->width) * s->sums_step;
}

static strips plan(const mx_index_job *j, int threads)
{
    strips s = {.rows = mx_min(j->n, j->gathers ? ROWS : mx_max(ROWS, j->limit))};
    int64_t width = PIECE / mx_min(j->bytes, j->y_bytes);
    s.x_step = step_of(j->limit * j->bytes);
    s.y_step = step_of(s.rows * j->y_bytes);
    s.index_step = step_of(s.rows * (int64_t)sizeof *j->g->index);
    s.sums_step = step_of(j->sums * j->limit * (int64_t)sizeof(double));
    set_width(j, &s, width);
    while (width > NARROW && (s.bytes > MOST || mx_index_strips(j, s.width) < threads))
        set_width(j, &s, width /= 2);
    return s;
}

/* Rows of memory. */
typedef struct region {
    const char *at;
    int64_t step, count, bytes;
} region;

static region rows_of_x(const mx_index_job *j, const mx_index_strip *t)
{
    const char *x = j->gathers ? j->x : j->start;
    return (region){x + t->x * j->bytes, j->step * j->bytes, x ? j->limit : 0, t->width * j->bytes};
}

/* Of the index and of y, from position `first` on. */
static region rows_of_index(const mx_index_job *j, const strips *s, const mx_index_strip *t, int64_t first)
{
    const int64_t bytes = (int64_t)sizeof *j->g->index, at = (t->o * j->n + first) * j->inner + t->from;
    return (region){(const char *)j->g->index + at * bytes, j->inner * bytes, mx_min(s->rows, j->n - first),
                    t->width * bytes};
}

static region rows_of_y(const mx_index_job *j, const strips *s, const mx_index_strip *t, int64_t first)
{
    const int64_t at = (t->o * j->n + first) * j->inner + t->from;
    return (region){j->y + at * j->y_bytes, j->inner * j->y_bytes, mx_min(s->rows, j->n - first),
                    t->width * j->y_bytes};
}

/* Asks for n rows. Inlined: GCC takes a function that only prefetches for one without effects. */
MX_INLINE void ask_for(const region *r, int64_t first, int64_t n)
{
    for (int64_t i = first; i < mx_min(first + n, r->count); i++)
        for (int64_t b = 0; b < r->bytes; b += 64)
            __builtin_prefetch(r->at + i * r->step + b, 0, 2);
}

/* Rows become columns. */
static void turn(char *to, int64_t to_step, const region *from, int64_t bytes)
{
    enum { TOGETHER = 32 };
    for (int64_t r = 0; r < from->count; r += TOGETHER) {
        const int64_t n = mx_min(TOGETHER, from->count - r);
        ask_for(from, r + n, TOGETHER);
        mx_kernels_current()->moves->transpose(to + r * bytes, to_step / bytes, from->at + r * from->step,
                                               from->step / bytes, n, from->bytes / bytes, (size_t)bytes, false);
    }
}

/* The other way. */
static void turn_back(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t columns,
                      int64_t bytes, bool stream)
{
    const int64_t together = 64 / bytes;
    for (int64_t r = 0; r < rows; r += together)
        mx_kernels_current()->moves->transpose(to + r * to_step, to_step / bytes, from + r * bytes, from_step / bytes,
                                               columns, mx_min(together, rows - r), (size_t)bytes, stream);
}

static bool run_strip(const mx_index_job *j, const strips *s, const mx_index_strip *t, char *room)
{
    char *x = room, *y = x + s->width * s->x_step, *index = y + s->width * s->y_step;
    char *sums = index + s->width * s->index_step;
    const bool whole = s->rows == j->n;
    const region of_x = rows_of_x(j, t);
    bool good = true;
    turn(x, s->x_step, &of_x, j->bytes);
    const int fills = j->afresh && j->sums == 0 && !whole ? 0 : 1; /* a pass that puts the least before the extremes */
    for (int pass = fills; pass < 2; pass++)
        for (int64_t first = 0; first < j->n; first += s->rows) {
            const region of_index = rows_of_index(j, s, t, first), of_y = rows_of_y(j, s, t, first);
            const int64_t after = first + s->rows;
            turn(index, s->index_step, &of_index, (int64_t)sizeof *j->g->index);
            if (!j->gathers && pass == 1)
                turn(y, s->y_step, &of_y, j->y_bytes);
            for (int64_t c = 0; c < t->width; c++)
                good &= j->line(j, &(mx_index_line){.from = j->start ? x + c * s->x_step : NULL,
                                                    .x = x + c * s->x_step,
                                                    .index = (const int32_t *)(index + c * s->index_step),
                                                    .y = y + c * s->y_step,
                                                    .n = of_index.count,
                                                    .limit = j->limit,
                                                    .sums = (double *)(sums + (whole ? 0 : c) * s->sums_step),
                                                    .first = first == 0 && pass == fills,
                                                    .last = after >= j->n && pass == 1,
                                                    .fills = j->afresh && (whole || pass == 0),
                                                    .puts = pass == 1});
            if (j->gathers)
                turn_back((char *)of_y.at, of_y.step, y, s->y_step, of_y.count, t->width, j->y_bytes, j->stream);
        }
    if (!j->gathers && good)
        turn_back(j->x + t->x * j->bytes, j->step * j->bytes, x, s->x_step, j->limit, t->width, j->bytes, j->stream);
    return good;
}

mx_status mx_index_run_strips(const mx_index_job *j, bool *good)
{
    const int threads = j->large ? omp_get_max_threads() : 1;
    const strips s = plan(j, threads);
    char *rooms;
    int bad = 0;
    const int64_t each = s.bytes + MX_APART;
    MX_TRY(mx_pool_alloc(threads * each, (void **)&rooms));
#pragma omp parallel if (j->large)
    {
        char *room = rooms + omp_get_thread_num() * each;
        const int64_t before_sums = s.width * (s.x_step + s.y_step + s.index_step);
        memset(room + before_sums, 0, j->sums > 0 ? (size_t)(s.bytes - before_sums) : 0);
#pragma omp for schedule(static) reduction(| : bad)
        for (int64_t i = 0; i < mx_index_strips(j, s.width); i++) {
            const mx_index_strip t = mx_index_strip_of(j, s.width, i);
            bad |= !run_strip(j, &s, &t, room);
        }
        _mm_sfence();
    }
    *good = !bad;
    mx_pool_free(rooms, threads * each);
    return MX_OK;
}
