#include "kernels/index.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/move.h"
#include "kernels/scatter_loops.h"
#include "kernels/shape.h"

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* The index as (outer, n, inner) around dim. Element (o, j, i) of it belongs to the line of x that begins at
 * outer_offset(o) + inner_offset(i), whose elements are `step` apart. */
typedef struct lines {
    int64_t outer, n, inner, step;
    bool same_inner; /* x has the same sizes behind dim: inner_offset(i) is i */
} lines;

static int64_t product(const int64_t *size, int from, int to)
{
    int64_t count = 1;
    for (int d = from; d < to; d++)
        count *= size[d];
    return count;
}

static lines lines_of(const mx_gather *g)
{
    lines l = {.outer = product(g->index_size, 0, g->dim),
               .n = g->index_size[g->dim],
               .inner = product(g->index_size, g->dim + 1, g->n_dims),
               .step = product(g->x_size, g->dim + 1, g->n_dims),
               .same_inner = true};
    for (int d = g->dim + 2; d < g->n_dims; d++)
        l.same_inner = l.same_inner && g->index_size[d] == g->x_size[d];
    return l;
}

static int64_t outer_offset(const mx_gather *g, int64_t o)
{
    int64_t offset = 0, stride = product(g->x_size, g->dim, g->n_dims);
    for (int d = g->dim - 1; d >= 0; d--) {
        offset += o % g->index_size[d] * stride;
        o /= g->index_size[d];
        stride *= g->x_size[d];
    }
    return offset;
}

static int64_t inner_offset(const mx_gather *g, const lines *l, int64_t i)
{
    if (l->same_inner)
        return i;
    int64_t offset = 0, stride = 1;
    for (int d = g->n_dims - 1; d > g->dim; d--) {
        offset += i % g->index_size[d] * stride;
        i /= g->index_size[d];
        stride *= g->x_size[d];
    }
    return offset;
}

/* Positions [first, last) of the index along dim, and columns [from, to) behind it. */
typedef struct block {
    int64_t o, first, last, from, to;
} block;

typedef enum direction { GATHER, SCATTER } direction;

typedef struct job {
    const mx_gather *g;
    lines l;
    char *x, *y;       /* x: of the shape that the index counts in */
    const char *start; /* what x is before something is scattered to it; NULL: unknown or 0 */
    int64_t bytes, limit;
    bool stream;
    mx_scatter_kind kind; /* of scatter */
    mx_dtype dtype;       /* of extremes */
    bool afresh;          /* x is not included: chosen elements first become `nothing` */
    _Alignas(8) char nothing[8];
} job;

static job job_of(const mx_gather *g, void *x, void *y, size_t element_bytes)
{
    job j = {.g = g, .l = lines_of(g), .x = x, .y = y, .bytes = (int64_t)element_bytes, .limit = g->x_size[g->dim]};
    j.stream = mx_should_stream(2 * j.l.outer * j.l.n * j.l.inner * j.bytes);
    return j;
}

static bool is_large(const job *j) { return j->l.outer * j->l.n * j->l.inner > 16384; }

/* ---- lines of elements that are neighbours ---- */

enum { POSITIONS = 2048, ROOM = 16384 };

static void ask_for(const void *p, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i += 64)
        __builtin_prefetch((const char *)p + i, 0, 2);
}

/* Positions `first` to before first + n of the index, in line o. What is streamed goes by way of the first-level cache,
 * from which it is written past the others. A line of x is read in no order, so it is asked for, unless most of it is
 * skipped, while the line before is gathered. */
static bool gather_piece(const job *j, int64_t o, int64_t first, int64_t n)
{
    enum { BLOCK = 128, AHEAD = 1024, LINE_BYTES = 1 << 18 };
    char room[POSITIONS * 8], *y = j->y + first * j->bytes, *to = j->stream ? room : y;
    const int64_t line = j->limit * j->bytes, place = first - o * j->l.n;
    const char *x = j->x + outer_offset(j->g, o) * j->bytes;
    const int32_t *index = j->g->index + first;
    bool good = true, asks = line <= LINE_BYTES && line <= 64 * j->l.n;
    for (int64_t i = 0, m; i < n; i += m) {
        m = mx_min(BLOCK, n - i);
        if (asks)
            ask_for(x + line, (place + i) * line / j->l.n, (place + i + m) * line / j->l.n);
        ask_for(index + i + AHEAD, 0, m * (int64_t)sizeof *index);
        good &= mx_kernels_current()->moves->gather(to + i * j->bytes, x, index + i, m, j->limit, 0, (size_t)j->bytes);
    }
    if (j->stream)
        mx_kernels_current()->elementwise->copy(room, y, n * j->bytes, true);
    return good;
}

static bool gather_lines(const job *j)
{
    int64_t n = j->l.n, pieces = mx_ceil_div(n, POSITIONS);
    int bad = 0;
#pragma omp parallel if (is_large(j))
    {
#pragma omp for collapse(2) schedule(static) reduction(| : bad)
        for (int64_t o = 0; o < j->l.outer; o++)
            for (int64_t p = 0; p < pieces; p++)
                bad |= !gather_piece(j, o, o * n + p * POSITIONS, mx_min(POSITIONS, n - p * POSITIONS));
        _mm_sfence();
    }
    return !bad;
}

MX_INLINE void extremes_by(const job *j, char *x, const int32_t *index, const char *y, int64_t n, int64_t step,
                           int64_t across, const bool greatest)
{
    if (j->dtype == MX_F32)
        extremes_as(x, index, y, n, step, across, MX_F32, greatest);
    else if (j->dtype == MX_BF16)
        extremes_as(x, index, y, n, step, across, MX_BF16, greatest);
    else if (j->dtype == MX_F64)
        extremes_as(x, index, y, n, step, across, MX_F64, greatest);
    else if (j->dtype == MX_I64)
        extremes_as(x, index, y, n, step, across, MX_I64, greatest);
    else if (j->dtype == MX_I32)
        extremes_as(x, index, y, n, step, across, MX_I32, greatest);
    else if (j->dtype == MX_U8)
        extremes_as(x, index, y, n, step, across, MX_U8, greatest);
    else
        extremes_as(x, index, y, n, step, across, MX_I8, greatest);
}

MX_INLINE void put_extremes(const job *j, char *x, const int32_t *index, const char *y, int64_t n, int64_t step,
                            int64_t across)
{
    if (j->kind == MX_SCATTER_MAX)
        extremes_by(j, x, index, y, n, step, across, true);
    else
        extremes_by(j, x, index, y, n, step, across, false);
}

static void put_nothing(const job *j, char *x, const int32_t *index, int64_t n, int64_t step, int64_t across)
{
    for (int64_t k = 0; k < n; k++)
        memcpy(x + (index[k] * step + k * across) * j->bytes, j->nothing, (size_t)j->bytes);
}

/* A line of neighbours. */
static void put_line(const job *j, char *x, const int32_t *index, const char *y, int64_t n)
{
    if (j->afresh)
        put_nothing(j, x, index, n, 1, 0);
    if (j->kind != MX_SCATTER_LAST)
        put_extremes(j, x, index, y, n, 1, 0);
    else if (j->bytes == 8)
        scatter_as(x, index, y, n, 8);
    else if (j->bytes == 4)
        scatter_as(x, index, y, n, 4);
    else if (j->bytes == 2)
        scatter_as(x, index, y, n, 2);
    else
        scatter_as(x, index, y, n, 1);
}

/* Short lines are put together in the first-level cache. */
static bool scatter_lines(const job *j)
{
    int64_t n = j->l.n, length = j->limit * j->bytes;
    bool by_room = j->start && j->stream && length <= ROOM;
    const mx_kernels *paths = mx_kernels_current();
    int bad = 0;
#pragma omp parallel if (is_large(j))
    {
#pragma omp for schedule(static) reduction(| : bad)
        for (int64_t o = 0; o < j->l.outer; o++) {
            char room[ROOM], *line = j->x + outer_offset(j->g, o) * j->bytes, *to = by_room ? room : line;
            const int32_t *index = j->g->index + o * n;
            bool good = paths->moves->within(index, n, j->limit);
            bad |= !good;
            if (good && j->start)
                paths->elementwise->copy(j->start + (line - j->x), to, length, false);
            if (good)
                put_line(j, to, index, j->y + o * n * j->bytes, n);
            if (good && by_room)
                paths->elementwise->copy(room, line, length, true);
        }
        _mm_sfence();
    }
    return !bad;
}

/* ---- lines of elements that are apart ---- */

/* Rows of x of many columns: bands of columns whose lines stay in the second-level cache. */
enum { BAND_BYTES = 1 << 20, NARROW = 16 };

static bool gather_bands(const job *j)
{
    int64_t inner = j->l.inner, n = j->l.n, rows = POSITIONS / 32;
    int64_t wide = mx_max(BAND_BYTES / (j->limit * j->bytes), 64 / j->bytes);
    wide = mx_min(mx_min(POSITIONS, inner), mx_round_up(wide, 64 / j->bytes));
    int64_t bands = mx_ceil_div(inner, wide), pieces = mx_ceil_div(n, rows);
    int bad = 0;
#pragma omp parallel for collapse(3) schedule(static) reduction(| : bad) if (is_large(j))
    for (int64_t o = 0; o < j->l.outer; o++)
        for (int64_t b = 0; b < bands; b++)
            for (int64_t p = 0; p < pieces; p++)
                for (int64_t k = p * rows; k < mx_min(n, (p + 1) * rows); k++) {
                    int64_t at = (o * n + k) * inner + b * wide;
                    bad |= !mx_kernels_current()->moves->gather(
                        j->y + at * j->bytes, j->x + (outer_offset(j->g, o) + b * wide) * j->bytes, j->g->index + at,
                        mx_min(wide, inner - b * wide), j->limit, j->l.step, (size_t)j->bytes);
                }
    return !bad;
}

MX_INLINE void move(const job *j, const direction to, const size_t bytes, int64_t at_x, int64_t at_y)
{
    char *x = j->x + at_x * (int64_t)bytes, *y = j->y + at_y * (int64_t)bytes;
    memcpy(to == GATHER ? y : x, to == GATHER ? x : y, bytes);
}

MX_INLINE void run_as(const job *j, const direction to, const size_t bytes, const block *b)
{
    int64_t start = outer_offset(j->g, b->o), step = j->l.step, inner = j->l.inner, row = b->o * j->l.n * inner;
    const int32_t *index = j->g->index + row;
    for (int64_t k = b->first; k < b->last; k++)
        for (int64_t i = b->from; i < b->to; i++)
            move(j, to, bytes, start + index[k * inner + i] * step + inner_offset(j->g, &j->l, i), row + k * inner + i);
}

static void run_block(const job *j, direction to, const block *b)
{
    if (j->bytes == 8)
        to == GATHER ? run_as(j, GATHER, 8, b) : run_as(j, SCATTER, 8, b);
    else if (to == GATHER)
        j->bytes == 4 ? run_as(j, GATHER, 4, b) : j->bytes == 2 ? run_as(j, GATHER, 2, b) : run_as(j, GATHER, 1, b);
    else
        j->bytes == 4 ? run_as(j, SCATTER, 4, b) : j->bytes == 2 ? run_as(j, SCATTER, 2, b) : run_as(j, SCATTER, 1, b);
}

enum { COLUMNS = 64 };

/* Threads share what they read by position, and what they write by line. */
static void run_apart(const job *j, direction to)
{
    const lines *l = &j->l;
    int64_t bands = to == GATHER ? 1 : mx_ceil_div(l->inner, COLUMNS), wide = to == GATHER ? l->inner : COLUMNS;
    int64_t long_n = to == GATHER ? 1 + POSITIONS / mx_max(1, l->inner) : mx_max(1, l->n);
    int64_t pieces = mx_ceil_div(l->n, long_n);
#pragma omp parallel for collapse(3) schedule(static) if (is_large(j))
    for (int64_t o = 0; o < l->outer; o++)
        for (int64_t p = 0; p < pieces; p++)
            for (int64_t b = 0; b < bands; b++)
                run_block(j, to,
                          &(block){.o = o,
                                   .first = p * long_n,
                                   .last = mx_min(l->n, (p + 1) * long_n),
                                   .from = b * wide,
                                   .to = mx_min(l->inner, (b + 1) * wide)});
}

/* `width` columns from `from` on of block o. */
static void extremes_apart(const job *j, int64_t o, int64_t from, int64_t width)
{
    /* Columns whose places in x are neighbours, too, are done together. */
    int64_t together = j->l.same_inner ? width : 1, start = outer_offset(j->g, o);
    for (int fill = j->afresh; fill >= 0; fill--)
        for (int64_t k = 0; k < j->l.n; k++)
            for (int64_t i = from; i < from + width; i += together) {
                int64_t at = (o * j->l.n + k) * j->l.inner + i;
                char *x = j->x + (start + inner_offset(j->g, &j->l, i)) * j->bytes;
                if (fill)
                    put_nothing(j, x, j->g->index + at, together, j->l.step, 1);
                else
                    put_extremes(j, x, j->g->index + at, j->y + at * j->bytes, together, j->l.step, 1);
            }
}

static void run_extremes(const job *j)
{
    int64_t bands = mx_ceil_div(j->l.inner, COLUMNS);
#pragma omp parallel for collapse(2) schedule(static) if (is_large(j))
    for (int64_t o = 0; o < j->l.outer; o++)
        for (int64_t b = 0; b < bands; b++)
            extremes_apart(j, o, b * COLUMNS, mx_min(COLUMNS, j->l.inner - b * COLUMNS));
}

bool mx_gather_run(const mx_gather *g, void *y, const void *x, size_t element_bytes)
{
    const job j = job_of(g, (void *)x, y, element_bytes);
    int64_t count = j.l.outer * j.l.n * j.l.inner;
    if (j.l.inner == 1 && j.l.step == 1)
        return gather_lines(&j);
    if (j.l.same_inner && j.l.inner == j.l.step && j.l.inner >= NARROW && j.limit * j.l.step < 1LL << 31)
        return gather_bands(&j);
    if (!mx_kernels_current()->moves->within(g->index, count, j.limit))
        return false;
    run_apart(&j, GATHER);
    return true;
}

static bool run_scatter(job *j, const void *x)
{
    int64_t all = product(j->g->x_size, 0, j->g->n_dims);
    if (j->l.inner == 1 && j->l.step == 1 && j->l.outer * j->limit == all) { /* the index reaches all lines */
        j->start = x;
        return scatter_lines(j);
    }
    if (!mx_kernels_current()->moves->within(j->g->index, j->l.outer * j->l.n * j->l.inner, j->limit))
        return false;
    if (x)
        mx_copy_runs(j->x, 0, x, 0, 1, all * j->bytes);
    if (j->kind == MX_SCATTER_LAST)
        run_apart(j, SCATTER);
    else
        run_extremes(j);
    return true;
}

bool mx_scatter_run(const mx_gather *g, void *to, const void *x, const void *y, size_t element_bytes)
{
    job j = job_of(g, to, (void *)y, element_bytes);
    return run_scatter(&j, x);
}

bool mx_scatter_extreme_run(const mx_gather *g, mx_scatter_kind kind, bool with_x, mx_array to, mx_array x, mx_array y)
{
    job j = job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    const mx_dtype_traits *traits = &mx_dtypes[to.dtype];
    j.kind = kind;
    j.dtype = to.dtype;
    j.afresh = !with_x;
    if (traits->is_float)
        mx_set_number(j.nothing, 0, kind == MX_SCATTER_MAX ? -INFINITY : INFINITY, to.dtype);
    else
        mx_set_int(j.nothing, 0, kind == MX_SCATTER_MAX ? traits->lowest : traits->highest, to.dtype);
    return run_scatter(&j, x.data);
}

/* ---- sums ---- */

/* Of a line of neighbours. */
MX_INLINE void add_neighbours(const int32_t *index, const char *y, int64_t n, double *sums, const mx_dtype dtype)
{
    int64_t k = 0;
    for (; k + TOGETHER <= n; k += TOGETHER) {
        prefetch_line(index, y, k, n, mx_dtype_bytes(dtype));
#pragma GCC unroll 16
        for (int u = 0; u < TOGETHER; u++)
            sums[index[k + u]] += mx_get_number(y, k + u, dtype);
    }
    for (; k < n; k++)
        sums[index[k]] += mx_get_number(y, k, dtype);
}

/* from + sums (from NULL: sums), of a line of f32 or bf16 that begins at `at`. What is streamed goes by way of the
 * first-level cache. */
static void put_sums(const job *j, const char *from, int64_t at, double *sums, bool bf16)
{
    _Alignas(64) char room[ROOM];
    const mx_kernels *paths = mx_kernels_current();
    int64_t piece = j->stream ? ROOM / j->bytes : j->limit;
    for (int64_t k = 0; k < j->limit; k += piece) {
        int64_t n = mx_min(piece, j->limit - k), byte = (at + k) * j->bytes;
        paths->moves->add_sums(j->stream ? room : j->x + byte, from ? from + byte : NULL, sums + k, n, bf16);
        if (j->stream)
            paths->elementwise->copy(room, j->x + byte, n * j->bytes, true);
    }
}

/* Adds y to the lines of x in columns [from, to) behind dim, by way of sums in f64, which are and become 0. */
MX_INLINE void add_as(const job *j, const block *b, double *sums, const mx_dtype x_dtype, const mx_dtype y_dtype)
{
    int64_t start = outer_offset(j->g, b->o), n = j->limit, width = b->to - b->from, inner = j->l.inner;
    const void *y = j->y;
    if (inner == 1) {
        int64_t row = b->o * j->l.n;
        add_neighbours(j->g->index + row, (const char *)y + row * (int64_t)mx_dtype_bytes(y_dtype), j->l.n, sums,
                       y_dtype);
    }
    for (int64_t k = 0; k < (inner > 1 ? j->l.n : 0); k++) {
        int64_t row = (b->o * j->l.n + k) * inner + b->from;
        const int32_t *index = j->g->index + row;
        for (int64_t i = 0; i < width; i++)
            sums[index[i] * width + i] += mx_get_number(y, row + i, y_dtype);
    }
    if ((x_dtype == MX_F32 || x_dtype == MX_BF16) && inner == 1 && j->l.step == 1) {
        put_sums(j, j->start, start, sums, x_dtype == MX_BF16);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < width; i++) {
            int64_t at = start + k * j->l.step + inner_offset(j->g, &j->l, b->from + i);
            double before = j->start ? mx_get_number(j->start, at, x_dtype) : 0;
            mx_set_number(j->x, at, before + sums[k * width + i], x_dtype);
        }
    memset(sums, 0, (size_t)(n * width) * sizeof *sums);
}

/* The mean of a pair, a sum and its count, and of what was there before. By masks: whether there is a count is hard to
 * predict. */
MX_INLINE double mean_of(const double *pair, double before, bool afresh)
{
    uint64_t counts = (uint64_t)((int)(pair[1] == 0) | (int)!afresh), bits;
    memcpy(&bits, &before, sizeof bits);
    bits &= 0 - counts;
    memcpy(&before, &bits, sizeof bits);
    return (before + pair[0]) / (pair[1] + (double)(int)counts);
}

/* The means of elements of one dtype; those of x that no index names stay. `sums` has pairs, which are and become 0. */
MX_INLINE void mean_as(const job *j, const block *b, double *sums, const int64_t width, const mx_dtype dtype)
{
    int64_t start = outer_offset(j->g, b->o), n = j->limit;
    for (int64_t k = 0; k < j->l.n; k++) {
        int64_t row = (b->o * j->l.n + k) * j->l.inner + b->from;
        const int32_t *index = j->g->index + row;
        for (int64_t i = 0; i < width; i++) {
            double *pair = sums + 2 * (index[i] * width + i);
            pair[0] += mx_get_number(j->y, row + i, dtype);
            pair[1]++;
        }
    }
    if (dtype != MX_F64 && width == 1 && j->l.step == 1) { /* means take the place of pairs, and are then rounded */
        for (int64_t k = 0; k < n; k++)
            sums[k] = mean_of(sums + 2 * k, mx_get_number(j->start, start + k, dtype), j->afresh);
        put_sums(j, NULL, start, sums, dtype == MX_BF16);
        memset(sums + n, 0, (size_t)n * sizeof *sums);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < width; i++) {
            int64_t at = start + k * j->l.step + inner_offset(j->g, &j->l, b->from + i);
            double before = mx_get_number(j->start, at, dtype);
            mx_set_number(j->x, at, mean_of(sums + 2 * (k * width + i), before, j->afresh), dtype);
        }
    memset(sums, 0, (size_t)(2 * n * width) * sizeof *sums);
}

MX_INLINE void mean_by(const job *j, const block *b, double *sums, const mx_dtype dtype)
{
    if (j->l.inner == 1)
        mean_as(j, b, sums, 1, dtype);
    else
        mean_as(j, b, sums, b->to - b->from, dtype);
}

static void mean_block(const job *j, const block *b, double *sums)
{
    if (j->dtype == MX_F32)
        mean_by(j, b, sums, MX_F32);
    else if (j->dtype == MX_BF16)
        mean_by(j, b, sums, MX_BF16);
    else
        mean_by(j, b, sums, MX_F64);
}

/* false: the index is not as promised, and nothing is added. A line of neighbours is checked as it is read; all others
 * have been. */
static bool add_block(const job *j, const block *b, double *sums, mx_dtype x, mx_dtype y)
{
    if (j->l.inner == 1 && !mx_kernels_current()->moves->within(j->g->index + b->o * j->l.n, j->l.n, j->limit))
        return false;
    if (j->kind == MX_SCATTER_MEAN)
        mean_block(j, b, sums);
    else if (x == MX_F32 && y == MX_F32)
        add_as(j, b, sums, MX_F32, MX_F32);
    else if (x == MX_BF16 && y == MX_BF16)
        add_as(j, b, sums, MX_BF16, MX_BF16);
    else if (x == MX_F32 && y == MX_BF16)
        add_as(j, b, sums, MX_F32, MX_BF16);
    else
        add_as(j, b, sums, x, y);
    return true;
}

static mx_status run_sums(job *j, mx_array x, mx_dtype y_dtype, bool *good)
{
    const mx_gather *g = j->g;
    int64_t all = product(g->x_size, 0, g->n_dims);
    int64_t bands = mx_ceil_div(j->l.inner, COLUMNS), room = j->limit * mx_min(COLUMNS, j->l.inner);
    room *= j->kind == MX_SCATTER_MEAN ? 2 : 1; /* pairs */
    int64_t bytes = (is_large(j) ? omp_get_max_threads() : 1) * room * (int64_t)sizeof(double);
    double *sums;
    int bad = 0;
    *good =
        j->l.inner == 1 || mx_kernels_current()->moves->within(g->index, j->l.outer * j->l.n * j->l.inner, j->limit);
    if (!j->x || !*good) /* without data: it has no elements */
        return MX_OK;
    MX_TRY(mx_pool_alloc(bytes, (void **)&sums));
    memset(sums, 0, (size_t)bytes);
    j->start = x.data;
    if (j->l.outer * j->limit * j->l.inner != all || j->l.n == 0) { /* the index does not reach all lines */
        if (x.data)
            mx_copy_runs(j->x, 0, x.data, 0, 1, all * j->bytes);
        else
            mx_zero_runs(j->x, 0, 1, all * j->bytes);
        j->start = j->x;
    }
#pragma omp parallel if (is_large(j))
    {
#pragma omp for collapse(2) schedule(static) reduction(| : bad)
        for (int64_t o = 0; o < j->l.outer; o++)
            for (int64_t b = 0; b < bands; b++)
                bad |= !add_block(j, &(block){.o = o, .from = b * COLUMNS, .to = mx_min(j->l.inner, (b + 1) * COLUMNS)},
                                  sums + omp_get_thread_num() * room, x.dtype, y_dtype);
        _mm_sfence();
    }
    *good = !bad;
    mx_pool_free(sums, bytes);
    return MX_OK;
}

mx_status mx_scatter_add_run(const mx_gather *g, mx_array to, mx_array x, mx_array y, bool *good)
{
    job j = job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    return run_sums(&j, x, y.dtype, good);
}

mx_status mx_scatter_mean_run(const mx_gather *g, bool with_x, mx_array to, mx_array x, mx_array y, bool *good)
{
    job j = job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    j.kind = MX_SCATTER_MEAN;
    j.dtype = to.dtype;
    j.afresh = !with_x;
    return run_sums(&j, x, y.dtype, good);
}
