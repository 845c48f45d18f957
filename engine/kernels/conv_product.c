/* Passes of convolutions as matrix products: of the weights of a group (outputs, inputs x taps) and the columns of its
 * results (inputs x taps, batch x positions). The weights are packed once. A block of columns is packed panel by panel,
 * just before it is multiplied: from f32 copies of what it meets of the planes, padding included, where all columns of
 * a tap that belong to one row of results are neighbours. The columns as a whole are never in memory.
 *
 *     for groups, blocks of columns, chunks of rows      on any thread
 *     for k      in steps of kc                          copies of the planes that these taps meet
 *     for panels of columns                              packed into the first- or second-level cache
 *     for panels of rows                                 the micro-kernel
 *
 * Results that are streamed are stored from so many panels side by side that their rows are whole cache lines.
 *
 * A result is one sum over k in blocks of kc, so its bits depend neither on the blocks of columns and rows nor on the
 * number of threads. */
#include "kernels/conv_internal.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"

#include <immintrin.h>
#include <omp.h>
#include <string.h>

/* Rows of a chunk; panels of a block; floats of the sums and of the copies of a block, which both stay in the
 * second-level cache beside a chunk of the weights. Where all panels of a block are packed at once: their words, beside
 * which there is room for what the next block reads; but that is at least so many bytes of a row, because shorter
 * pieces of memory are read more slowly. */
enum { ROWS = 512, PANELS = 16, SUMS = 160 << 10, COPIES = 128 << 10, PACKED = 32 << 10, PIECE_BYTES = 512 };

enum { FEW_TAPS = 3, FEW_PLANES = 16 };

enum { LINE_BYTES = 64, MOST_SIDE = 2 }; /* MOST_SIDE panels fill cache lines: a row of one is half lines */

typedef struct job {
    const mx_conv_pass *p;
    const mx_micro *u;
    mx_array w, to;
    const float *bias;           /* of all channels of the result; NULL: none */
    bool stream;                 /* results are written past the caches */
    int64_t side, width;         /* panels whose results are stored together; their columns */
    int64_t k, kc, words;        /* elements of k; in a block; words of k of all blocks */
    int64_t at_once;             /* elements of k whose planes are copied at once: few, and for all panels; or kc */
    mx_conv_blocks blocks;       /* of columns */
    mx_conv_planes planes;       /* of the operand, of all groups */
    int64_t rows, chunk;         /* rows of a group, whole panels; of a chunk */
    int64_t sums, copies, bytes; /* floats of a thread's sums and copies; bytes of its scratch */
    uint32_t *a;                 /* packed weights: for each group and block of k the panels of rows */
    char *scratch;
} job;

/* ---- the weights ---- */

static const uint32_t *weights_at(const job *j, int64_t group, int64_t k0, int64_t row)
{
    int64_t k = mx_min(j->kc, j->k - k0);
    return j->a + group * j->rows * j->words + j->rows * mx_conv_words(j->u, k0) + row * mx_conv_words(j->u, k);
}

/* Packs elements k0 to before k0 + k of a panel of rows. `at`: where the weights of a result have them, ascending;
 * `lines`: room for a panel as a matrix, used where they are not neighbours. */
static void pack_weights(const job *j, int64_t group, int64_t row, int64_t k0, int64_t k, const int64_t *at,
                         char *lines)
{
    const mx_conv_pass *p = j->p;
    size_t bytes = mx_dtype_bytes(j->w.dtype);
    int64_t n = mx_min(j->u->mr, p->outputs - row), stride = p->w_output;
    const char *from = mx_conv_part(j->w, group * p->w_group + row * p->w_output).data;
    uint32_t *packed = (uint32_t *)weights_at(j, group, k0, row);
    if (p->w_output == 1 && p->taps == 1) { /* neighbours are those of one element of k */
        j->u->pack_a(n, k, from + (size_t)at[0] * bytes, j->w.dtype, p->w_input, true, packed);
        return;
    }
    if (at[k - 1] - at[0] == k - 1) {
        from += (size_t)at[0] * bytes;
    } else {
        for (int64_t i = 0; i < n; i++)
            mx_conv_pick(from + (size_t)(i * p->w_output) * bytes, bytes, k, at, lines + (size_t)(i * k) * bytes);
        from = lines;
        stride = k;
    }
    j->u->pack_a(n, k, from, j->w.dtype, stride, false, packed);
}

/* Where the weights of a result have elements k0 to before k0 + k. */
static void set_weight_places(const mx_conv_pass *p, int64_t k0, int64_t k, int64_t *at)
{
    for (int64_t e = 0; e < k; e++)
        at[e] = (k0 + e) / p->taps * p->w_input + mx_conv_pass_tap(p, (k0 + e) % p->taps).weight;
}

static mx_status pack_all_weights(const job *j)
{
    int64_t panels = j->rows / j->u->mr, each = j->u->mr * j->kc * 4;
    int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads(), at_bytes = mx_round_up(j->kc * 8, 64);
    int64_t bytes = at_bytes + threads * each;
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    for (int64_t k0 = 0; k0 < j->k; k0 += j->kc) {
        int64_t k = mx_min(j->kc, j->k - k0), *at = (int64_t *)memory;
        set_weight_places(j->p, k0, k, at);
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
        for (int64_t i = 0; i < j->p->groups * panels; i++)
            pack_weights(j, i / panels, i % panels * j->u->mr, k0, k, at,
                         memory + at_bytes + omp_get_thread_num() * each);
    }
    mx_pool_free(memory, bytes);
    return MX_OK;
}

/* ---- results ---- */

/* to[i step] = from[i] */
static void spread(const float *from, int64_t n, mx_array to, int64_t step)
{
    if (mx_is_bf16(to.dtype))
        for (int64_t i = 0; i < n; i++)
            ((mx_bf16 *)to.data)[i * step] = mx_to_bf16(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)to.data)[i * step] = from[i];
}

/* Where the results of n columns are, from `column` on: runs of neighbours in the first channel of a group. */
static int64_t places_of(const job *j, int64_t group, int64_t column, int64_t n, mx_conv_run *runs)
{
    const mx_conv_pass *p = j->p;
    int64_t width = p->w.out[1], positions = p->w.out[0] * width, size = p->to[0] * p->to[1], count = 0;
    bool whole = p->step == 1 && p->row == width;
    for (int64_t c = 0; c < n; c += runs[count++].n) {
        int64_t image = (column + c) / positions, at = (column + c) % positions, row = at / width;
        int64_t from = whole ? at : p->first + row * p->row + at % width * p->step;
        int64_t left = whole ? positions - at : width - at % width;
        from += (image * p->groups + group) * p->outputs * size;
        runs[count] = (mx_conv_run){from, c, mx_min(n - c, left)};
    }
    return count;
}

/* A tile of m rows from `row` of a group on. */
static void put(const job *j, int64_t group, int64_t row, int64_t m, const mx_conv_run *runs, int64_t n_runs,
                const float *tile)
{
    const mx_conv_pass *p = j->p;
    int64_t size = p->to[0] * p->to[1];
    const float *bias = j->bias ? j->bias + group * p->outputs + row : NULL;
    for (const mx_conv_run *r = runs; r < runs + n_runs; r++) {
        int64_t to = r->from + row * size;
        if (p->step == 1)
            mx_kernels_current()->conv->put(m, r->n, tile + r->to, j->width, bias, mx_conv_part(j->to, to), size,
                                            j->stream);
        else /* a gradient by x, without a bias */
            for (int64_t i = 0; i < m; i++)
                spread(tile + i * j->width + r->to, r->n, mx_conv_part(j->to, to + i * size), p->step);
    }
}

/* ---- blocks ---- */

/* A thread's scratch. */
typedef struct room {
    float *sums, *copies;
    int64_t *at;
    uint32_t *panel;
} room;

/* From panel to panel, and of all panels that are packed at once. */
static int64_t panel_words(const job *j) { return j->u->nr * mx_conv_words(j->u, j->kc) + MX_CONV_SLACK; }
static int64_t packed_words(const job *j)
{
    return panel_words(j) * (j->at_once < j->kc ? j->blocks.size / j->u->nr : j->side);
}

static int64_t room_bytes(const job *j)
{
    return mx_round_up((j->sums + j->copies + packed_words(j)) * 4 + j->kc * 8, 64);
}

static room room_of(const job *j, char *scratch)
{
    room r = {.sums = (float *)scratch, .copies = (float *)scratch + j->sums};
    r.panel = (uint32_t *)(r.copies + j->copies);
    r.at = (int64_t *)(r.panel + packed_words(j));
    return r;
}

/* The planes that elements k0 to before k0 + k meet: begin to before end. */
typedef struct span {
    int64_t begin, end;
} span;

static span planes_of(const job *j, int64_t group, int64_t k0, int64_t k)
{
    int64_t taps = mx_max(j->p->taps, 1), first = group * j->p->inputs;
    return (span){first + k0 / taps, first + mx_ceil_div(mx_min(k0 + k, j->k), taps)};
}

/* Copies what elements k0 to before k0 + k meet, and says where the copies have it. */
static void copy_planes(const job *j, const mx_conv_copy *copy, int64_t group, int64_t k0, int64_t k, room *r)
{
    int64_t floats = copy->lines * copy->row;
    span s = planes_of(j, group, k0, k), next = planes_of(j, group, k0 + k, k);
    mx_conv_asking then = {*copy, &j->planes, next.begin, next.end - next.begin, 0};
    for (int64_t c = s.begin; c < s.end; c++) {
        mx_conv_copy_fill(copy, &j->planes, c, r->copies + (c - s.begin) * floats);
        mx_conv_ask(&then, c + 1 - s.begin, s.end - s.begin);
    }
    for (int64_t e = 0; e < k; e++) {
        int64_t plane = group * j->p->inputs + (k0 + e) / j->p->taps - s.begin;
        mx_conv_tap tap = mx_conv_pass_tap(j->p, (k0 + e) % j->p->taps);
        r->at[e] = plane * floats + mx_conv_copy_at(copy, tap.d, tap.e);
    }
}

/* What is copied next: the next block of k, or the first one of the next block of columns. */
static mx_conv_asking next_of(const job *j, const mx_conv_copy *copy, int64_t group, int64_t block, int64_t k0)
{
    int64_t some = j->p->in_place ? j->kc : j->at_once; /* what is packed in place arrives during the products */
    mx_conv_asking next = {*copy, &j->planes, 0, 0, 0};
    span s = {0, 0};
    if (k0 + j->kc < j->k) {
        s = planes_of(j, group, k0 + j->kc, some);
    } else if (block + 1 < j->blocks.count) {
        next.copy = mx_conv_copy_of(&j->p->w, j->p->batch, &j->blocks, block + 1);
        s = planes_of(j, group, 0, some);
    }
    next.begin = s.begin;
    next.n_planes = s.end - s.begin;
    return next;
}

/* A chunk of rows of a group. */
typedef struct chunk {
    int64_t group, row, rows;
} chunk;

/* The products of n columns, of packed panels side by side, and a chunk of rows, for a block of k. What comes next is
 * asked for meanwhile, up to `part` + 1 of `parts`. */
static void multiply(const job *j, const chunk *c, int64_t column, int64_t n, int64_t k0, float *sums,
                     const uint32_t *panels, mx_conv_asking *then, int64_t part, int64_t parts)
{
    int64_t mr = j->u->mr, nr = j->u->nr, words = mx_conv_words(j->u, mx_min(j->kc, j->k - k0)), each = panel_words(j);
    int64_t tiles = mx_ceil_div(c->rows, mr);
    const uint32_t *a = weights_at(j, c->group, k0, c->row);
    bool last = k0 + j->kc >= j->k;
    _Alignas(64) float tile[MOST_SIDE * MX_MICRO_MAX_TILE];
    mx_conv_run runs[MOST_SIDE * MX_CONV_MOST_COLUMNS];
    int64_t n_runs = last ? places_of(j, c->group, column, n, runs) : 0;
    for (int64_t i = 0; i < tiles; i++, a += mr * words) {
        int64_t row = c->row + i * mr, m = mx_min(mr, j->p->outputs - row);
        float *to = j->kc < j->k ? sums + i * mr * j->width : tile;
        mx_ahead ahead[MX_CONV_AHEAD + 1];
        mx_conv_list(then, part * tiles + i + 1, parts * tiles, ahead);
        for (int64_t q = 0; q * nr < n; q++)
            mx_micro_multiply(j->u, n - q * nr, words, a, panels + q * each, 1, to + q * nr, j->width, k0 > 0,
                              q == 0 ? ahead : NULL);
        if (last)
            put(j, c->group, row, m, runs, n_runs, to);
    }
}

/* Packs k elements of a panel, from element k0 + `first` of the operand on. */
static void pack_panel(const job *j, const mx_conv_copy *copy, int64_t group, int64_t number, int64_t k0, int64_t first,
                       int64_t k, const room *r, uint32_t *packed)
{
    const mx_micro *u = j->u;
    int64_t column = number * u->nr, n = mx_min(u->nr, copy->count - column);
    mx_conv_run runs[MX_CONV_MOST_COLUMNS];
    mx_conv_panel panel;
    if (j->p->in_place) {
        mx_conv_panel_cut(u, runs, mx_conv_copy_places(copy, &j->planes, column, n, runs), &panel);
        mx_array x = mx_conv_part(j->planes.x, (group * j->p->inputs + k0 + first) * j->planes.step);
        mx_conv_panel_take(u, &panel, x, k, j->planes.step, packed);
    } else {
        mx_conv_panel_cut(u, runs, mx_conv_copy_runs(copy, column, n, runs), &panel);
        mx_conv_panel_pack(u, &panel, r->copies, k, r->at, false, packed);
    }
}

static void run_block(const job *j, const chunk *rows, int64_t block, char *scratch)
{
    mx_conv_copy copy = mx_conv_copy_of(&j->p->w, j->p->batch, &j->blocks, block);
    room r = room_of(j, scratch);
    int64_t nr = j->u->nr, panels = mx_ceil_div(copy.count, nr), parts = mx_ceil_div(panels, j->side), k0 = 0;
    bool few = j->at_once < j->kc;
    do { /* once even if there are no taps */
        int64_t k = mx_min(j->kc, j->k - k0);
        mx_conv_asking then = next_of(j, &copy, rows->group, block, k0);
        for (int64_t e = 0; e < k; e += j->at_once) {
            int64_t some = mx_min(j->at_once, k - e);
            if (!j->p->in_place)
                copy_planes(j, &copy, rows->group, k0 + e, some, &r);
            for (int64_t i = 0; few && i < panels; i++)
                pack_panel(j, &copy, rows->group, i, k0, e, some, &r,
                           r.panel + i * panel_words(j) + e / j->u->k_group * nr);
        }
        for (int64_t i = 0; i < parts; i++) {
            int64_t column = i * j->width, first = i * j->side;
            for (int64_t q = 0; !few && q < mx_min(j->side, panels - first); q++)
                pack_panel(j, &copy, rows->group, first + q, k0, 0, k, &r, r.panel + q * panel_words(j));
            multiply(j, rows, copy.first + column, mx_min(j->width, copy.count - column), k0,
                     r.sums + column * rows->rows, r.panel + (few ? first * panel_words(j) : 0), &then, i, parts);
        }
        k0 += j->kc;
    } while (k0 < j->k);
}

/* ---- the plan ---- */

/* The sizes of blocks: as large as the caches allow, and enough of them for the threads. Where a plane is met by few
 * taps, a few planes at once stay in the first-level cache until they are packed for all panels. */
static void plan(job *j, int64_t threads)
{
    const mx_micro *u = j->u;
    const mx_conv_pass *p = j->p;
    int64_t taps = mx_max(p->taps, 1), unit = (int64_t)u->k_unit * u->k_group, floats;
    int64_t bytes = (int64_t)mx_dtype_bytes(j->planes.x.dtype);
    int64_t panels = mx_ceil_div(p->batch * p->w.out[0] * p->w.out[1], j->width);
    int64_t most = mx_min(PANELS / j->side, mx_ceil_div(panels * p->groups, threads));
    j->at_once = taps <= FEW_TAPS ? mx_min(mx_round_up(FEW_PLANES * taps, unit), j->kc) : j->kc;
    j->chunk = mx_min(j->rows, ROWS / u->mr * u->mr);
    bool few = j->at_once < j->kc;
    for (;; most--) {
        j->blocks = mx_conv_blocks_of(&p->w, p->batch, most * j->width, j->width);
        floats = mx_min(j->at_once / taps + 2, p->inputs) * mx_conv_copy_most(&p->w, &j->blocks);
        bool packed = !few || packed_words(j) <= PACKED || j->blocks.size * bytes <= PIECE_BYTES;
        if (most == 1 || (packed && floats <= COPIES && j->blocks.size * j->chunk <= SUMS))
            break;
    }
    j->sums = j->kc < j->k ? j->blocks.size * j->chunk : 0;
    j->copies = mx_round_up(floats + MX_CONV_SLACK, 16);
    j->bytes = room_bytes(j);
}

/* Whether results are streamed, and how many panels are stored together so that their rows fill cache lines. Planes
 * that begin anywhere in a line would leave too many lines that are written in parts. */
static void set_side(job *j)
{
    const mx_conv_pass *p = j->p;
    int64_t bytes = (int64_t)mx_dtype_bytes(j->to.dtype), plane = p->to[0] * p->to[1] * bytes;
    j->stream =
        p->step == 1 && plane % (LINE_BYTES / 2) == 0 && mx_should_stream(p->batch * p->groups * p->outputs * plane);
    j->side = j->stream && j->u->nr * bytes % LINE_BYTES != 0 ? MOST_SIDE : 1;
    j->width = j->side * j->u->nr;
}

static void run_all(const job *j, int64_t threads)
{
    int64_t chunks = mx_ceil_div(j->rows, j->chunk), blocks = j->blocks.count;
#pragma omp parallel if (threads > 1)
    {
        char *scratch = j->scratch + omp_get_thread_num() * j->bytes;
        if (j->u->begin)
            j->u->begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < j->p->groups * chunks * blocks; i++) {
            int64_t row = i / blocks % chunks * j->chunk;
            chunk rows = {i / blocks / chunks, row, mx_min(j->chunk, j->rows - row)};
            run_block(j, &rows, i % blocks, scratch);
        }
        if (j->u->end)
            j->u->end();
        _mm_sfence(); /* of what was streamed */
    }
}

mx_status mx_conv_product_pass(const mx_conv_pass *p, mx_array from, mx_array w, const float *bias, mx_array to)
{
    int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads(), pixels = p->w.in[0] * p->w.in[1];
    job j = {.p = p, .u = mx_conv_micro(from.dtype, w.dtype), .w = w, .to = to, .bias = bias};
    j.planes = (mx_conv_planes){from, pixels, p->groups * p->inputs * pixels};
    j.k = p->inputs * p->taps;
    j.kc = mx_max(mx_conv_k_block(j.u, j.k), 1);
    j.words = mx_conv_words(j.u, j.k / j.kc * j.kc) + mx_conv_words(j.u, j.k % j.kc);
    j.rows = mx_round_up(p->outputs, j.u->mr);
    set_side(&j);
    if (p->batch * p->w.out[0] * p->w.out[1] == 0 || j.rows == 0)
        return MX_OK;
    plan(&j, threads);
    int64_t a_bytes = mx_round_up(p->groups * j.rows * j.words * 4, 64), bytes = a_bytes + threads * j.bytes;
    MX_TRY(mx_pool_alloc(bytes, (void **)&j.a));
    j.scratch = (char *)j.a + a_bytes;
    mx_status status = pack_all_weights(&j);
    if (status == MX_OK)
        run_all(&j, threads);
    mx_pool_free(j.a, bytes);
    return status;
}
