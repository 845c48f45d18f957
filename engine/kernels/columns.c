#include "kernels/columns.h"

#include "core/pool.h"
#include "kernels/inline.h"

#include <omp.h>

enum {
    ITEMS = 64,   /* so many blocks are enough for all threads */
    HEIGHT = 128, /* rows of the smallest block; others have a multiple of it */
    JOINED = 512, /* columns whose blocks are joined at a time */
};

typedef struct plan {
    mx_extent e;
    int64_t width, across; /* columns of a block, and blocks side by side */
    int64_t height, down;  /* rows of a block, and blocks one below the other */
    double *sums;          /* (down, inner) */
    float *used;           /* (2, inner) */
} plan;

static plan plan_of(mx_extent e)
{
    plan p = {.e = e};
    p.across = mx_ceil_div(e.inner, MX_MOST_COLUMNS);
    p.width = mx_round_up(mx_ceil_div(e.inner, p.across), 64);
    p.height = mx_round_up(mx_ceil_div(e.n, mx_ceil_div(ITEMS, p.across)), HEIGHT);
    p.down = mx_ceil_div(e.n, p.height);
    return p;
}

/* Whether sharing pays, and there are too few columns for each thread to take some as a whole. */
static bool is_large(mx_extent e)
{
    return e.inner > 1 && e.n >= 2 * HEIGHT && e.n * e.inner >= 4 * MX_PARALLEL_FROM &&
           e.outer * mx_ceil_div(e.inner, MX_MOST_COLUMNS) < ITEMS;
}

/* Columns from `from` on of rows `row` to before `end`, with the sums of block `down`. */
static mx_column_block block_of(const plan *p, int64_t o, int64_t down, int64_t row, int64_t end, int64_t from,
                                int64_t width)
{
    int64_t inner = p->e.inner;
    return (mx_column_block){.at = (o * p->e.n + row) * inner + from,
                             .row = row,
                             .rows = end - row,
                             .line = o * inner + from,
                             .width = mx_min(width, inner - from),
                             .sum = p->sums + down * inner + from,
                             .used = {p->used + from, p->used + inner + from}};
}

static mx_column_block item(const plan *p, int64_t o, int64_t i)
{
    int64_t down = i / p->across, row = down * p->height, from = i % p->across * p->width;
    mx_column_block b = block_of(p, o, down, row, mx_min(row + p->height, p->e.n), from, p->width);
    b.item = i;
    return b;
}

static void join_columns(const plan *p, const mx_column_steps *steps, const void *what, int64_t o, int64_t from)
{
    mx_column_block all = block_of(p, o, 0, 0, p->e.n, from, JOINED);
    for (int64_t d = 1; d < p->down; d++) {
        const double *more = all.sum + d * p->e.inner;
        for (int64_t j = 0; j < all.width; j++)
            all.sum[j] += more[j];
    }
    steps->use(what, &all);
}

/* Each thread puts the blocks that it found last first: the caches may have them still. */
static void run(const plan *p, const mx_column_steps *steps, const void *what)
{
    int64_t items = p->down * p->across;
#pragma omp parallel
    {
        int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
        int64_t first = items * own / threads, last = items * (own + 1) / threads;
        for (int64_t o = 0; o < p->e.outer; o++) {
            for (int64_t i = first; i < last; i++) {
                mx_column_block b = item(p, o, i);
                steps->find(what, &b);
            }
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t from = 0; from < p->e.inner; from += JOINED)
                join_columns(p, steps, what, o, from);
            for (int64_t i = last - 1; i >= first; i--) {
                mx_column_block b = item(p, o, i);
                steps->put(what, &b);
            }
        }
    }
}

static mx_status run_shared(mx_extent e, const mx_column_steps *steps, const void *what)
{
    plan p = plan_of(e);
    int64_t sums = p.down * e.inner * (int64_t)sizeof(double), used = 2 * e.inner * (int64_t)sizeof(float);
    MX_TRY(mx_pool_alloc(sums + used, (void **)&p.sums));
    p.used = (float *)(p.sums + p.down * e.inner);
    run(&p, steps, what);
    mx_pool_free(p.sums, sums + used);
    return MX_OK;
}

int64_t mx_column_items(mx_extent e, bool shared)
{
    const plan p = plan_of(e);
    return shared && is_large(e) ? p.down * p.across : omp_get_max_threads();
}

mx_status mx_run_columns(mx_extent e, mx_dtype dtype, int read_twice, bool shared, const mx_column_steps *steps,
                         const void *what)
{
    if (shared && is_large(e))
        return run_shared(e, steps, what);
    int64_t width = mx_panel_columns(e, dtype, read_twice), across = mx_ceil_div(e.inner, width);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * across; i++) {
        int64_t o = i / across, from = i % across * width;
        double sum[MX_MOST_COLUMNS];
        float used[2][MX_MOST_COLUMNS];
        mx_column_block b = {.item = omp_get_thread_num(),
                             .at = o * e.n * e.inner + from,
                             .rows = e.n,
                             .line = o * e.inner + from,
                             .width = mx_min(width, e.inner - from),
                             .sum = sum,
                             .used = {used[0], used[1]}};
        steps->find(what, &b);
        steps->use(what, &b);
        steps->put(what, &b);
    }
    return MX_OK;
}
