#include "kernels/index.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/move.h"
#include "kernels/shape.h"

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

/* What is streamed goes by way of the first-level cache, from which it is written past the others. */
static bool gather_piece(const job *j, const char *x, const int32_t *index, char *y, int64_t n, int64_t across)
{
    char room[POSITIONS * 8];
    bool good =
        mx_kernels_current()->moves->gather(j->stream ? room : y, x, index, n, j->limit, across, (size_t)j->bytes);
    if (j->stream)
        mx_kernels_current()->elementwise->copy(room, y, n * j->bytes, true);
    return good;
}

static bool gather_lines(const job *j)
{
    int64_t n = j->l.n, pieces = mx_ceil_div(n, POSITIONS);
    int bad = 0;
#pragma omp parallel for collapse(2) schedule(static) reduction(| : bad) if (is_large(j))
    for (int64_t o = 0; o < j->l.outer; o++)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t first = o * n + p * POSITIONS, count = mx_min(POSITIONS, n - p * POSITIONS);
            bad |= !gather_piece(j, j->x + outer_offset(j->g, o) * j->bytes, j->g->index + first,
                                 j->y + first * j->bytes, count, 0);
        }
    return !bad;
}

/* Asks for the index of the next line, which is checked first, and for the elements that come soon. */
MX_INLINE void prefetch_line(const int32_t *index, const char *y, int64_t k, int64_t n, const size_t bytes)
{
    __builtin_prefetch(index + n + k);
    __builtin_prefetch(y + k * (int64_t)bytes + 4096);
}

enum { TOGETHER = 16 }; /* elements, whose index is a cache line */

MX_INLINE void scatter_as(char *x, const int32_t *index, const char *y, int64_t n, const size_t bytes)
{
    int64_t k = 0;
    for (; k + TOGETHER <= n; k += TOGETHER) {
        prefetch_line(index, y, k, n, bytes);
#pragma GCC unroll 16
        for (int u = 0; u < TOGETHER; u++)
            memcpy(x + index[k + u] * (int64_t)bytes, y + (k + u) * (int64_t)bytes, bytes);
    }
    for (; k < n; k++)
        memcpy(x + index[k] * (int64_t)bytes, y + k * (int64_t)bytes, bytes);
}

/* Short lines are put together in the first-level cache. */
static bool scatter_lines(const job *j)
{
    int64_t n = j->l.n, length = j->limit * j->bytes;
    bool by_room = j->start && j->stream && length <= ROOM;
    const mx_kernels *paths = mx_kernels_current();
    int bad = 0;
#pragma omp parallel for schedule(static) reduction(| : bad) if (is_large(j))
    for (int64_t o = 0; o < j->l.outer; o++) {
        char room[ROOM], *line = j->x + outer_offset(j->g, o) * j->bytes, *to = by_room ? room : line;
        const int32_t *index = j->g->index + o * n;
        const char *y = j->y + o * n * j->bytes;
        if (!paths->moves->within(index, n, j->limit)) {
            bad = 1;
            continue;
        }
        if (j->start)
            paths->elementwise->copy(j->start + (line - j->x), to, length, false);
        if (j->bytes == 8)
            scatter_as(to, index, y, n, 8);
        else if (j->bytes == 4)
            scatter_as(to, index, y, n, 4);
        else if (j->bytes == 2)
            scatter_as(to, index, y, n, 2);
        else
            scatter_as(to, index, y, n, 1);
        if (by_room)
            paths->elementwise->copy(room, line, length, true);
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

bool mx_scatter_run(const mx_gather *g, void *to, const void *x, const void *y, size_t element_bytes)
{
    job j = job_of(g, to, (void *)y, element_bytes);
    int64_t all = product(g->x_size, 0, g->n_dims);
    if (j.l.inner == 1 && j.l.step == 1 && j.l.outer * j.limit == all) { /* the index reaches all lines */
        j.start = x;
        return scatter_lines(&j);
    }
    if (!mx_kernels_current()->moves->within(g->index, j.l.outer * j.l.n * j.l.inner, j.limit))
        return false;
    if (x)
        mx_copy_runs(to, 0, x, 0, 1, all * j.bytes);
    run_apart(&j, SCATTER);
    return true;
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

/* x + sums, of a line of f32 or bf16 that begins at `at`. What is streamed goes by way of the first-level cache. */
static void put_sums(const job *j, int64_t at, double *sums, bool bf16)
{
    _Alignas(64) char room[ROOM];
    const mx_kernels *paths = mx_kernels_current();
    int64_t piece = j->stream ? ROOM / j->bytes : j->limit;
    for (int64_t k = 0; k < j->limit; k += piece) {
        int64_t n = mx_min(piece, j->limit - k), byte = (at + k) * j->bytes;
        paths->moves->add_sums(j->stream ? room : j->x + byte, j->start ? j->start + byte : NULL, sums + k, n, bf16);
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
        put_sums(j, start, sums, x_dtype == MX_BF16);
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

/* false: the index is not as promised, and nothing is added. A line of neighbours is checked as it is read; all others
 * have been. */
static bool add_block(const job *j, const block *b, double *sums, mx_dtype x, mx_dtype y)
{
    if (j->l.inner == 1 && !mx_kernels_current()->moves->within(j->g->index + b->o * j->l.n, j->l.n, j->limit))
        return false;
    if (x == MX_F32 && y == MX_F32)
        add_as(j, b, sums, MX_F32, MX_F32);
    else if (x == MX_BF16 && y == MX_BF16)
        add_as(j, b, sums, MX_BF16, MX_BF16);
    else if (x == MX_F32 && y == MX_BF16)
        add_as(j, b, sums, MX_F32, MX_BF16);
    else
        add_as(j, b, sums, x, y);
    return true;
}

mx_status mx_scatter_add_run(const mx_gather *g, mx_array to, mx_array x, mx_array y, bool *good)
{
    job j = job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    int64_t all = product(g->x_size, 0, g->n_dims);
    int64_t bands = mx_ceil_div(j.l.inner, COLUMNS), room = j.limit * mx_min(COLUMNS, j.l.inner);
    int64_t bytes = (is_large(&j) ? omp_get_max_threads() : 1) * room * (int64_t)sizeof(double);
    double *sums;
    int bad = 0;
    *good = j.l.inner == 1 || mx_kernels_current()->moves->within(g->index, j.l.outer * j.l.n * j.l.inner, j.limit);
    if (!to.data || !*good) /* without data: it has no elements */
        return MX_OK;
    MX_TRY(mx_pool_alloc(bytes, (void **)&sums));
    memset(sums, 0, (size_t)bytes);
    j.start = x.data;
    if (j.l.outer * j.limit * j.l.inner != all || j.l.n == 0) { /* the index does not reach all lines */
        if (x.data)
            mx_copy_runs(to.data, 0, x.data, 0, 1, all * j.bytes);
        else
            mx_zero_runs(to.data, 0, 1, all * j.bytes);
        j.start = j.x;
    }
#pragma omp parallel for collapse(2) schedule(static) reduction(| : bad) if (is_large(&j))
    for (int64_t o = 0; o < j.l.outer; o++)
        for (int64_t b = 0; b < bands; b++)
            bad |= !add_block(&j, &(block){.o = o, .from = b * COLUMNS, .to = mx_min(j.l.inner, (b + 1) * COLUMNS)},
                              sums + omp_get_thread_num() * room, to.dtype, y.dtype);
    *good = !bad;
    mx_pool_free(sums, bytes);
    return MX_OK;
}
