/* The five loops around the micro-kernel (Goto and van de Geijn, 2008; BLIS).
 *
 *     for rows   superblock of m      where threads share packed A, or partial sums are kept apart from C
 *     for n      in steps of nc       packed B, kc x nc, shared by all threads, in the last-level cache
 *     for k      in steps of kc
 *     for m      in steps of mc       packed A, mc x kc, in the second-level cache of a core
 *     for n, m   in steps of nr, mr   one panel of B, in the first-level cache, against each panel of A
 *
 * The threads form a grid: rows of it share a packed A, columns split the panels of B. Each element of C is one
 * sum over k in blocks of kc whatever the grid, so its bits do not depend on the number of threads. */
#define _GNU_SOURCE
#include "kernels/gemm_internal.h"

#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/quantize.h"

#include <omp.h>
#include <stdlib.h>

/* f32 sums kept while the blocks of k are added up, apart from C: at most 16 MiB. Rows of A packed for all threads. */
enum { PARTIAL_SUMS = 4 << 20, SHARED_ROWS = 4096 };

/* Codes that become bf16 at once: rows of op(A) or columns of op(B), whole panels of them, and elements of k. They stay
 * in the first-level cache until they are packed. */
enum { WIDE_ITEMS = 64, WIDE_K = 128 };

/* Elements of k of a panel of B that are packed between two tiles, in whole words and units of k on any path. */
enum { SLICE = 128 };

/* From so many tiles in a panel on, the source of the next one is prefetched. */
enum { FEW_TILES = 4 };

typedef struct job {
    const mx_gemm *g;
    const mx_micro *u;
    mx_gemm_blocks blocks; /* mc and nc multiples of mr and nr */
    int64_t super;         /* rows in a superblock */
    int64_t super_panels;  /* the same in panels */
    int64_t a_block;       /* words of a packed block of A, mc x kc */
    uint32_t *a, *b;       /* packed; a: all rows of the superblock, or one block of mc x kc for each thread */
    float *partial;        /* tiles of mr x nr, panel of B by panel of B; NULL: sums go to C directly */
    bool scaled;           /* operands are codes: the sums, of i8 as i32, are multiplied by their scales */
} job;

/* The part of the job between two packings of B. */
typedef struct span {
    int64_t row, rows; /* of the superblock */
    int64_t column, columns;
    int64_t p, k, k_words; /* of the block of k; k_words: of a packed panel */
    bool first, last;      /* block of k */
} span;

typedef struct range {
    int64_t begin, end;
} range;

/* Words of k of a packed panel. */
static int64_t words_of(const mx_micro *u, int64_t k)
{
    return mx_round_up(mx_ceil_div(k, u->k_group), u->k_unit) + u->k_extra;
}

/* Part i of n of the numbers from r.begin up to r.end. */
static range part(range r, int64_t i, int64_t n)
{
    int64_t length = r.end - r.begin;
    return (range){r.begin + length * i / n, r.begin + length * (i + 1) / n};
}

/* Length of the equal parts into which `length` is cut so that none passes `most`, rounded up to `unit`. */
static int64_t even_part(int64_t length, int64_t most, int64_t unit)
{
    return mx_round_up(mx_ceil_div(length, mx_ceil_div(length, most)), unit);
}

static char *at(const mx_matrix *x, int64_t row, int64_t column)
{
    return (char *)x->data + (row * x->stride + column) * (int64_t)mx_dtype_bytes(x->dtype);
}

static char *at_op(const mx_matrix *x, int64_t row, int64_t column)
{
    return x->trans ? at(x, column, row) : at(x, row, column);
}

/* Rows in the grid of `threads`. What a thread reads for each block grows with its rows plus its columns, so squares
 * are best; but in a grid of one row nobody shares B, and each thread packs a panel just before it uses it. */
static int grid_rows(const job *j, int threads)
{
    int best = 1;
    double best_cost = 0;
    for (int rows = 1; rows <= threads; rows++) {
        if (threads % rows)
            continue;
        int columns = threads / rows;
        double m = (double)mx_round_up(mx_ceil_div(mx_min(j->g->m, j->super), rows), j->u->mr);
        double n = (double)mx_round_up(mx_ceil_div(mx_min(j->g->n, j->blocks.nc), columns), j->u->nr);
        double cost = m * n + 16.0 * (m + n);
        if (rows == 1 || cost < 0.95 * best_cost) {
            best = rows;
            best_cost = cost;
        }
    }
    return best;
}

/* Whether items (rows of op(A), columns of op(B)) are contiguous in k as they are stored. */
static bool is_along(const job *j, const mx_matrix *x) { return x->trans == (x == &j->g->b); }

/* n items of codes from `item` on and k elements from p on, as bf16 times the scales of their blocks. */
static void widen(const job *j, const mx_matrix *x, int64_t item, int64_t n, int64_t p, int64_t k, mx_bf16 *wide)
{
    const mx_quantize_paths *paths = mx_kernels_current()->quantize;
    bool along = is_along(j, x), is_b = x == &j->g->b;
    int64_t lines = along ? n : k, length = along ? k : n;
    const float *scales = is_b ? j->g->block_b : j->g->block_a;
    const char *from = along ? at(x, item, p) : at(x, p, item);
    paths->widen(lines, length, (const uint8_t *)from, x->stride, x->dtype, wide);
    for (int64_t i = 0; scales && i < lines; i++) {
        int64_t first = along ? (item + i) * (j->g->k / MX_BLOCK) + p / MX_BLOCK
                              : (p + i) / MX_BLOCK * (is_b ? j->g->n : j->g->m) + item;
        paths->scale(wide + i * length, length, scales + first, along ? MX_BLOCK : 1);
    }
}

/* The same, packed panel by panel. */
static void pack_codes(const job *j, const span *s, const mx_matrix *x, int64_t item, int64_t n, int64_t p,
                       uint32_t *packed)
{
    _Alignas(64) mx_bf16 wide[WIDE_ITEMS * WIDE_K];
    bool is_b = x == &j->g->b, along = is_along(j, x);
    int64_t width = is_b ? j->u->nr : j->u->mr, k = mx_min(WIDE_K, s->k - p);
    widen(j, x, item, n, s->p + p, k, wide);
    for (int64_t i = 0; i < n; i += width)
        (is_b ? j->u->pack_b : j->u->pack_a)(mx_min(width, n - i), k, wide + i * (along ? k : 1), MX_BF16,
                                             along ? k : n, x->trans,
                                             packed + i * s->k_words + p / j->u->k_group * width);
}

/* Packs n items of an operand from `item` on, elements k.begin to k.end of the block of k: all, or of one panel. */
static void pack(const job *j, const span *s, const mx_matrix *x, int64_t item, int64_t n, range k, uint32_t *packed)
{
    bool is_b = x == &j->g->b;
    int64_t width = is_b ? j->u->nr : j->u->mr;
    if (!mx_dtype_is_code(x->dtype) || (j->g->a.dtype == MX_I8 && j->g->b.dtype == MX_I8)) {
        const char *from = is_b ? at_op(x, s->p + k.begin, item) : at_op(x, item, s->p + k.begin);
        (is_b ? j->u->pack_b : j->u->pack_a)(n, k.end - k.begin, from, x->dtype, x->stride, x->trans,
                                             packed + k.begin / j->u->k_group * width);
        return;
    }
    int64_t step = WIDE_ITEMS / width * width;
    for (int64_t i = 0; i < n; i += step)
        for (int64_t p = k.begin; p < k.end; p += WIDE_K)
            pack_codes(j, s, x, item + i, mx_min(step, n - i), p, packed + i * s->k_words);
}

static void pack_b(const job *j, const span *s, range panels, range k, uint32_t *packed)
{
    int64_t first = panels.begin * j->u->nr, n = mx_min(panels.end * j->u->nr, s->columns) - first;
    if (n > 0)
        pack(j, s, &j->g->b, s->column + first, n, k, packed);
}

/* `origin`: the panel with which the packed block begins. */
static void pack_a(const job *j, const span *s, range panels, int64_t origin, uint32_t *packed)
{
    int64_t first = panels.begin * j->u->mr, m = mx_min(panels.end * j->u->mr, s->rows) - first;
    if (m > 0)
        pack(j, s, &j->g->a, s->row + first, m, (range){0, s->k}, packed + (first - origin * j->u->mr) * s->k_words);
}

/* ---- what is prefetched while a tile is computed ---- */

/* Who packs B: all threads have done it, or this thread packs each panel between the tiles of the one before it, for
 * these rows alone or for more. */
typedef enum { PACKED, FOR_THESE, FOR_MORE } packing;

/* The next panel of B: its source in units, rows of it as it is stored, and what becomes of them. B transposed is read
 * in slices of k, whose rows are columns of the panel. */
typedef struct next_panel {
    int64_t panel, columns;
    uint32_t *to;
    int64_t slice, slices;    /* elements of k that are packed at once, and how often */
    int64_t units, in_slice;  /* of all slices, and of each; 0: there is no next panel */
    int64_t done, unit_step;  /* units that are prefetched, and how many during one tile */
    int64_t words, word_step; /* the same of words of packed B */
    int64_t packed;           /* slices */
} next_panel;

/* `tiles`: those of a panel, before the last of which all is prefetched. Few tiles take less time than the memory, and
 * what they prefetch only delays them. A panel with words beyond those of k is packed as a whole. */
static next_panel next_panel_of(const job *j, const span *s, int64_t panel, int64_t tiles, packing packs, uint32_t *to)
{
    next_panel next = {.panel = panel, .to = to, .columns = mx_min(j->u->nr, s->columns - panel * j->u->nr)};
    bool whole = j->u->k_extra > 0 || (j->g->b.trans && tiles <= mx_ceil_div(s->k, SLICE));
    next.slice = whole ? s->k : SLICE;
    next.slices = mx_ceil_div(s->k, next.slice);
    next.in_slice = j->g->b.trans ? next.columns : next.slice;
    next.units = j->g->b.trans ? next.slices * next.columns : s->k;
    next.unit_step = mx_ceil_div(next.units, mx_max(tiles - 1, 1));
    next.word_step = mx_ceil_div(s->k_words * j->u->nr, mx_ceil_div(next.units, next.unit_step));
    if (packs == FOR_THESE) /* it is in the cache */
        next.word_step = 0;
    if (tiles < FEW_TILES)
        next.done = next.units;
    return next;
}

/* Units [begin, end) of the source, of one slice if B is transposed. */
static mx_ahead source_of(const job *j, const span *s, const next_panel *next, int64_t begin, int64_t end)
{
    const mx_matrix *b = &j->g->b;
    int64_t column = s->column + next->panel * j->u->nr, length = next->columns, k = begin;
    if (b->trans) {
        k = begin / next->in_slice * next->slice;
        column += begin % next->in_slice;
        length = mx_min(next->slice, s->k - k);
    }
    const char *at = at_op(b, s->p + k, column);
    int64_t element = (int64_t)mx_dtype_bytes(b->dtype), beyond = (int64_t)((uintptr_t)at % 64);
    return (mx_ahead){at - beyond, length * element + beyond, b->stride * element, end - begin};
}

/* Lists what is prefetched during the next tile: the sources of some units, and where they will be packed. */
static void list_ahead(const job *j, const span *s, next_panel *next, mx_ahead *ahead)
{
    int64_t begin = next->done, end = mx_min(begin + next->unit_step, next->units), middle = end;
    ahead->rows = 0;
    if (begin == end || next->in_slice == 0)
        return;
    if (j->g->b.trans)
        middle = mx_min(mx_round_up(begin + 1, next->in_slice), end);
    const uint32_t *packed = next->to + next->words;
    *ahead++ = source_of(j, s, next, begin, middle);
    if (middle < end)
        *ahead++ = source_of(j, s, next, middle, end);
    if (next->word_step > 0)
        *ahead++ = (mx_ahead){(const char *)packed, next->word_step * 4, 0, 1};
    ahead->rows = 0;
    next->words += next->word_step;
    next->done = end;
}

static mx_scale scale_from(mx_scale s, int64_t i) { return (mx_scale){s.value ? s.value + i * s.step : NULL, s.step}; }

/* Complete sums become m x n of C, from row i and column j on. */
static void store_tile(const job *t, int64_t i, int64_t j, int64_t m, int64_t n, const float *sums, const float *bias,
                       bool accumulate)
{
    const mx_gemm *g = t->g;
    void *c = at(&g->c, i, j);
    if (!t->scaled) {
        t->u->store(m, n, sums, t->u->nr, bias, c, g->c.dtype, g->c.stride, accumulate);
        return;
    }
    const mx_code_sums codes = {.tile = sums,
                                .ld = t->u->nr,
                                .whole = g->a.dtype == MX_I8 && g->b.dtype == MX_I8,
                                .rounded = g->rounded,
                                .of_rows = scale_from(g->scale_a, i),
                                .of_columns = scale_from(g->scale_b, j)};
    t->u->store_codes(m, n, &codes, bias, c, g->c.dtype, g->c.stride, accumulate);
}

/* One tile: m x n of C, row panel `ip` of the superblock, column panel `jp` of the span. `ahead`: room for C, and then
 * what else to prefetch. */
static void tile(const job *j, const span *s, int64_t ip, int64_t jp, const uint32_t *a, const uint32_t *b,
                 mx_ahead *ahead)
{
    const mx_gemm *g = j->g;
    const mx_micro *u = j->u;
    int mr = u->mr, nr = u->nr;
    int64_t i = ip * mr, n_at = jp * nr;
    int64_t m = mx_min(mr, s->rows - i), n = mx_min(nr, s->columns - n_at);
    char *c = at(&g->c, s->row + i, s->column + n_at);
    const float *bias = g->bias && s->last ? g->bias + s->column + n_at : NULL;
    int64_t element = (int64_t)mx_dtype_bytes(g->c.dtype);
    *ahead = (mx_ahead){c, n * element, g->c.stride * element, m};
    if (j->partial) {
        float *sums = j->partial + (jp * j->super_panels + ip) * mr * nr;
        mx_micro_multiply(u, n, s->k_words, a, b, g->alpha, sums, nr, !s->first, s->last ? ahead : ahead + 1);
        if (s->last)
            store_tile(j, s->row + i, s->column + n_at, m, n, sums, bias, g->accumulate);
        return;
    }
    bool accumulate = g->accumulate || !s->first;
    if (!mx_is_bf16(g->c.dtype) && !j->scaled && m == mr && n == nr && !bias) {
        u->kernel(s->k_words, a, b, g->alpha, (float *)c, g->c.stride, accumulate, ahead + 1);
        return;
    }
    _Alignas(64) float sums[MX_MICRO_MAX_TILE];
    mx_micro_multiply(u, n, s->k_words, a, b, g->alpha, sums, nr, false, ahead);
    store_tile(j, s->row + i, s->column + n_at, m, n, sums, bias, accumulate);
}

/* Packs the slices of the next panel whose units are among the first `there`. */
static void pack_next(const job *j, const span *s, next_panel *next, int64_t there)
{
    for (; next->packed < next->slices; next->packed++) {
        if (mx_min((next->packed + 1) * next->in_slice, next->units) > there)
            return;
        int64_t k = next->packed * next->slice;
        pack_b(j, s, (range){next->panel, next->panel + 1}, (range){k, mx_min(k + next->slice, s->k)}, next->to);
    }
}

/* Packing waits for memory, the kernel does not. So a slice is prefetched during some tiles, and packed after the next
 * one. Whole panels would push themselves out of the caches where rows of B are a multiple of 4 KiB apart. Panels for
 * these rows alone take turns in two places, which stay in the second-level cache. */
static void multiply(const job *j, const span *s, range rows, range columns, const uint32_t *a, packing packs)
{
    int64_t a_panel = j->u->mr * s->k_words, b_panel = j->u->nr * s->k_words, tiles = rows.end - rows.begin;
    uint32_t *b = j->b + columns.begin * b_panel;
    if (packs != PACKED && columns.begin < columns.end)
        pack_b(j, s, (range){columns.begin, columns.begin + 1}, (range){0, s->k}, b);
    for (int64_t jp = 0; jp < columns.end - columns.begin; jp++) {
        int64_t panel = columns.begin + jp, turns = packs == FOR_THESE ? 2 : INT64_MAX;
        next_panel next = {0};
        if (packs != PACKED && panel + 1 < columns.end)
            next = next_panel_of(j, s, panel + 1, tiles, packs, b + (jp + 1) % turns * b_panel);
        for (int64_t i = 0; i < tiles; i++) {
            int64_t there = i == tiles - 1 ? next.units : next.done;
            mx_ahead ahead[5];
            list_ahead(j, s, &next, ahead + 1);
            tile(j, s, rows.begin + i, panel, a + i * a_panel, b + jp % turns * b_panel, ahead);
            pack_next(j, s, &next, there);
        }
    }
}

/* A barrier of the team. A job of one thread may run inside another team, and must not wait for its threads. */
static void wait_for_all(int threads)
{
    if (threads > 1) {
#pragma omp barrier
    }
}

/* Packs what the threads share, then multiplies without waiting. There are two barriers a span, whatever its size: when
 * other programs use the cores, each barrier may cost a time slice. */
static void run_span(const job *j, const span *s, int thread, int threads)
{
    const mx_micro *u = j->u;
    range row_panels = {0, mx_ceil_div(s->rows, u->mr)}, column_panels = {0, mx_ceil_div(s->columns, u->nr)};
    int grid_m = grid_rows(j, threads), grid_n = threads / grid_m;
    bool share_a = grid_n > 1, share_b = grid_m > 1;
    if (share_a)
        pack_a(j, s, part(row_panels, thread, threads), 0, j->a);
    if (share_b) {
        range own = part(column_panels, thread, threads);
        pack_b(j, s, own, (range){0, s->k}, j->b + own.begin * u->nr * s->k_words);
    }
    wait_for_all(threads);

    range columns = part(column_panels, thread % grid_n, grid_n), mine = part(row_panels, thread / grid_n, grid_m);
    int64_t chunks = mx_ceil_div(mine.end - mine.begin, j->blocks.mc / u->mr);
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        range rows = part(mine, chunk, chunks);
        uint32_t *a = share_a ? j->a + rows.begin * u->mr * s->k_words : j->a + thread * j->a_block;
        if (!share_a)
            pack_a(j, s, rows, rows.begin, a);
        multiply(j, s, rows, columns, a, share_b || chunk > 0 ? PACKED : chunks == 1 ? FOR_THESE : FOR_MORE);
    }
    wait_for_all(threads);
}

static void run_thread(const job *j, int thread, int threads)
{
    const mx_gemm *g = j->g;
    if (j->u->begin)
        j->u->begin();
    for (int64_t row = 0; row < g->m; row += j->super)
        for (int64_t column = 0; column < g->n; column += j->blocks.nc)
            for (int64_t p = 0; p < g->k; p += j->blocks.kc) {
                span s = {.row = row,
                          .rows = mx_min(j->super, g->m - row),
                          .column = column,
                          .columns = mx_min(j->blocks.nc, g->n - column),
                          .p = p,
                          .k = mx_min(j->blocks.kc, g->k - p),
                          .first = p == 0,
                          .last = p + j->blocks.kc >= g->k};
                s.k_words = words_of(j->u, s.k);
                run_span(j, &s, thread, threads);
            }
    if (j->u->end)
        j->u->end();
}

/* Whether the rows of C in a block of registers push one another out of the first-level cache: addresses 4 KiB apart
 * share a set, of 8 ways or more. Measured on tiles, 32 rows high (dW into f32 rows of 128 KiB): half the rate. */
static bool rows_meet(const mx_gemm *g, const mx_micro *u)
{
    enum { SPAN = 4096, WAYS = 8 };
    int64_t row = g->c.stride * (int64_t)mx_dtype_bytes(g->c.dtype), apart = SPAN;
    while (row % apart)
        apart /= 2;
    return u->mr * apart > WAYS * SPAN;
}

/* Sizes of the job, and the words of scratch that its three buffers take. */
static job plan(const mx_gemm *g, const mx_micro *u, int threads, int64_t words[3])
{
    mx_gemm_blocks most = mx_gemm_blocks_of(mx_isa_current());
    job j = {.g = g, .u = u, .super = g->m};
    j.scaled = mx_dtype_is_code(g->a.dtype) || mx_dtype_is_code(g->b.dtype);
    most.kc = most.kc * u->k_group / mx_kernels_current()->micro->k_group; /* the same bytes */
    /* Equal parts. A small remainder would be mostly overhead. */
    int64_t unit = u->k_unit > 1 ? u->k_unit * u->k_group : 8;
    j.blocks.kc = even_part(g->k, most.kc, g->block_a || g->block_b ? mx_max(unit, MX_BLOCK) : unit);
    j.blocks.nc = even_part(g->n, mx_round_up(most.nc, u->nr), u->nr);
    j.blocks.mc = mx_round_up(mx_min(most.mc, g->m), u->mr);
    bool partial = (mx_is_bf16(g->c.dtype) || j.scaled || rows_meet(g, u)) && j.blocks.kc < g->k;
    if (threads > 1)
        j.super = even_part(g->m, mx_round_up(SHARED_ROWS, u->mr), u->mr);
    if (partial)
        j.super = even_part(g->m, mx_min(j.super, mx_round_up(mx_ceil_div(PARTIAL_SUMS, j.blocks.nc), u->mr)), u->mr);
    j.super_panels = mx_ceil_div(j.super, u->mr);

    int64_t words_of_k = words_of(u, j.blocks.kc), shared = j.super_panels * u->mr * words_of_k;
    j.a_block = mx_round_up(j.blocks.mc * words_of_k, 16);
    words[0] = mx_round_up(j.blocks.nc * words_of_k, 16);
    words[1] = threads * j.a_block;
    if (threads > 1 && words[1] < shared)
        words[1] = mx_round_up(shared, 16);
    words[2] = partial ? j.super_panels * u->mr * j.blocks.nc : 0;
    return j;
}

mx_status mx_gemm_packed(const mx_gemm *g, int threads)
{
    const mx_micro *u = mx_gemm_micro(g);
    int64_t words[3];
    job j = plan(g, u, threads, words);
    int64_t bytes = (words[0] + words[1] + words[2]) * 4;
    uint32_t *scratch = mx_gemm_scratch(bytes);
    if (!scratch)
        return mx_fail(MX_ERR_MEMORY,
                       "matrix product (%lld, %lld) x (%lld, %lld): no memory for %lld bytes of packed blocks",
                       (long long)g->m, (long long)g->k, (long long)g->k, (long long)g->n, (long long)bytes);
    j.b = scratch;
    j.a = scratch + words[0];
    j.partial = words[2] ? (float *)(scratch + words[0] + words[1]) : NULL;
    if (threads <= 1) {
        run_thread(&j, 0, 1);
        return MX_OK;
    }
#pragma omp parallel num_threads(threads)
    run_thread(&j, omp_get_thread_num(), omp_get_num_threads());
    return MX_OK;
}
