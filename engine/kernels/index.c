#include "kernels/index.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/inline.h"

#include <omp.h>

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
    void *x, *y;
} job;

MX_INLINE void move(const job *j, const direction to, const size_t bytes, int64_t at_x, int64_t at_y)
{
    char *x = (char *)j->x + at_x * (int64_t)bytes, *y = (char *)j->y + at_y * (int64_t)bytes;
    memcpy(to == GATHER ? y : x, to == GATHER ? x : y, bytes);
}

MX_INLINE void run_as(const job *j, const direction to, const size_t bytes, const block *b)
{
    int64_t start = outer_offset(j->g, b->o), step = j->l.step, inner = j->l.inner, row = b->o * j->l.n * inner;
    const int32_t *index = j->g->index + row;
    for (int64_t k = b->first; inner == 1 && k < b->last; k++)
        move(j, to, bytes, start + index[k] * step, row + k);
    for (int64_t k = b->first; inner > 1 && k < b->last; k++)
        for (int64_t i = b->from; i < b->to; i++)
            move(j, to, bytes, start + index[k * inner + i] * step + inner_offset(j->g, &j->l, i), row + k * inner + i);
}

static void run_block(const job *j, direction to, size_t bytes, const block *b)
{
    if (bytes == 8)
        to == GATHER ? run_as(j, GATHER, 8, b) : run_as(j, SCATTER, 8, b);
    else if (to == GATHER)
        bytes == 4 ? run_as(j, GATHER, 4, b) : bytes == 2 ? run_as(j, GATHER, 2, b) : run_as(j, GATHER, 1, b);
    else
        bytes == 4 ? run_as(j, SCATTER, 4, b) : bytes == 2 ? run_as(j, SCATTER, 2, b) : run_as(j, SCATTER, 1, b);
}

enum { COLUMNS = 64, POSITIONS = 4096 };

/* Threads share what they read by position, and what they write by line. */
static void run(const job *j, direction to, size_t bytes)
{
    const lines *l = &j->l;
    int64_t bands = to == GATHER ? 1 : mx_ceil_div(l->inner, COLUMNS), wide = to == GATHER ? l->inner : COLUMNS;
    int64_t long_n = to == GATHER ? 1 + POSITIONS / mx_max(1, l->inner) : mx_max(1, l->n);
    int64_t pieces = mx_ceil_div(l->n, long_n);
#pragma omp parallel for collapse(3) schedule(static) if (l->outer * l->n * l->inner > 16384)
    for (int64_t o = 0; o < l->outer; o++)
        for (int64_t p = 0; p < pieces; p++)
            for (int64_t b = 0; b < bands; b++)
                run_block(j, to, bytes,
                          &(block){.o = o,
                                   .first = p * long_n,
                                   .last = mx_min(l->n, (p + 1) * long_n),
                                   .from = b * wide,
                                   .to = mx_min(l->inner, (b + 1) * wide)});
}

void mx_gather_run(const mx_gather *g, void *y, const void *x, size_t element_bytes)
{
    run(&(job){.g = g, .l = lines_of(g), .x = (void *)x, .y = y}, GATHER, element_bytes);
}

void mx_scatter_run(const mx_gather *g, void *x, const void *y, size_t element_bytes)
{
    run(&(job){.g = g, .l = lines_of(g), .x = x, .y = (void *)y}, SCATTER, element_bytes);
}

/* Adds y to the lines of x in columns [from, to) behind dim, by way of sums in f64. */
MX_INLINE void add_as(const job *j, const block *b, double *sums, const mx_dtype x_dtype, const mx_dtype y_dtype)
{
    int64_t start = outer_offset(j->g, b->o), n = j->g->x_size[j->g->dim], width = b->to - b->from;
    memset(sums, 0, (size_t)(n * width) * sizeof *sums);
    for (int64_t k = 0; k < j->l.n; k++) {
        int64_t row = (b->o * j->l.n + k) * j->l.inner + b->from;
        for (int64_t i = 0; i < width; i++)
            sums[j->g->index[row + i] * width + i] += mx_get_number(j->y, row + i, y_dtype);
    }
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < width; i++) {
            int64_t at = start + k * j->l.step + inner_offset(j->g, &j->l, b->from + i);
            mx_set_number(j->x, at, mx_get_number(j->x, at, x_dtype) + sums[k * width + i], x_dtype);
        }
}

static void add_block(const job *j, const block *b, double *sums, mx_dtype x, mx_dtype y)
{
    if (x == MX_F32 && y == MX_F32)
        add_as(j, b, sums, MX_F32, MX_F32);
    else if (x == MX_BF16 && y == MX_BF16)
        add_as(j, b, sums, MX_BF16, MX_BF16);
    else
        add_as(j, b, sums, x, y);
}

mx_status mx_scatter_add_run(const mx_gather *g, mx_array x, mx_array y)
{
    const job j = {.g = g, .l = lines_of(g), .x = x.data, .y = y.data};
    int64_t bands = mx_ceil_div(j.l.inner, COLUMNS), room = g->x_size[g->dim] * mx_min(COLUMNS, j.l.inner);
    bool parallel = j.l.outer * j.l.n * j.l.inner > 16384;
    int64_t bytes = (parallel ? omp_get_max_threads() : 1) * room * (int64_t)sizeof(double);
    double *sums;
    MX_TRY(mx_pool_alloc(bytes, (void **)&sums));
#pragma omp parallel for collapse(2) schedule(static) if (parallel)
    for (int64_t o = 0; o < j.l.outer; o++)
        for (int64_t b = 0; b < bands; b++)
            add_block(&j, &(block){.o = o, .from = b * COLUMNS, .to = mx_min(j.l.inner, (b + 1) * COLUMNS)},
                      sums + omp_get_thread_num() * room, x.dtype, y.dtype);
    mx_pool_free(sums, bytes);
    return MX_OK;
}
