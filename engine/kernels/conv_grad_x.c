/* The gradient of convolutions by x as one product for all taps: of the weights of a group, transposed (channels
 * of x x taps, outputs), and dy (outputs, positions). Each row of the product is then added to the elements of x that
 * its tap meets. Compared with passes over dy (conv_pass.c) this packs dy once instead of once for each tap, needs no
 * pass for each remainder by the stride, and fills the rows of the micro-kernel with the taps of few channels.
 *
 *     for images, groups, bands of rows of x, chunks of channels of x      on any thread; some small images at once
 *     for panels of columns: the positions that the band meets     packed into the first-level cache
 *     for panels of rows                                           the micro-kernel
 *         for rows of the kernel                                       tiles are added to sums
 *
 * The sums are f32, with the columns of a row sorted by their remainder by the stride and with room for what lies
 * outside of x, so that neighbours in a tile are neighbours there. The taps of a row of the kernel are added together
 * where they meet nearly the same sums. Bands are cut by sizes alone, and positions are added in order, so the bits do
 * not depend on the number of threads. */
#include "kernels/conv_internal.h"

#include "core/pool.h"
#include "kernels/context.h"

#include <immintrin.h>
#include <omp.h>
#include <string.h>

/* Floats of a thread's sums, which stay in the second-level cache beside the weights of a chunk; rows of a chunk, as
 * far as whole panels of channels allow, so that a packed panel is used often; the longest distance of taps that are
 * added together. */
enum { SUMS = 64 << 10, ROWS = 144, SLACK = 64, NEAR = 16 };

typedef struct job {
    const mx_conv *c;
    const mx_micro *u;
    mx_array w, dy, dx;
    int64_t k, words;             /* outputs of a group; in words */
    int64_t taps, channels, rows; /* of a kernel; of a chunk; whole panels of rows of a chunk */
    int64_t chunks, bands, band;  /* of a group; of an image; rows of x in a band */
    int64_t images, lines;        /* of a part; the most rows of sums of a channel and an image */
    int64_t left, phase, row;     /* the first column of a phase; floats of a phase and of a row of sums */
    int64_t bytes;                /* of a thread's scratch */
    bool stream;                  /* dx is written past the caches */
    uint32_t *a;                  /* packed weights: for each group and chunk the panels of rows */
    mx_conv_term *terms;          /* the taps of a row of the kernel, by where they meet a row of sums */
    char *scratch;
} job;

static int64_t floor_div(int64_t a, int64_t n) { return a >= 0 ? a / n : -mx_ceil_div(-a, n); }

static int64_t channels_of(const job *j, int64_t chunk)
{
    return mx_min(j->channels, mx_conv_group_in(j->c) - chunk * j->channels);
}

/* ---- the weights ---- */

static void pack_weights(const job *j, int64_t group, int64_t chunk)
{
    int64_t all = mx_conv_taps(j->c), first = group * j->k * all + chunk * j->channels * j->taps;
    j->u->pack_a(channels_of(j, chunk) * j->taps, j->k, mx_conv_part(j->w, first).data, j->w.dtype, all, true,
                 j->a + (group * j->chunks + chunk) * j->rows * j->words);
}

static void set_terms(const job *j)
{
    const mx_conv *c = j->c;
    for (int64_t e = 0; e < c->kernel[1]; e++) {
        int64_t column = mx_conv_at(c, 1, 0, e), quotient = floor_div(column, c->stride[1]), i = e;
        int64_t shift = (column - quotient * c->stride[1]) * j->phase + quotient - j->left;
        for (; i > 0 && j->terms[i - 1].shift > shift; i--)
            j->terms[i] = j->terms[i - 1];
        j->terms[i] = (mx_conv_term){e, shift};
    }
}

/* ---- bands ---- */

/* A part of dx, the rows of dy that meet it, their positions in each image, and the row of x that its first row of sums
 * is. */
typedef struct part {
    int64_t image, images, group, chunk, channels;
    int64_t first, last, low, high, positions, top;
} part;

static part part_of(const job *j, int64_t number)
{
    const mx_conv *c = j->c;
    int64_t band = number / j->chunks % j->bands, both = number / j->chunks / j->bands;
    int64_t reach = (c->kernel[0] - 1) * c->dilation[0];
    part p = {.image = both / c->groups * j->images, .group = both % c->groups, .chunk = number % j->chunks};
    p.images = mx_min(j->images, c->batch - p.image);
    p.channels = channels_of(j, p.chunk);
    p.first = band * j->band;
    p.last = mx_min(p.first + j->band, c->in[0]);
    p.low = mx_max(-floor_div(reach - p.first - c->before[0], c->stride[0]), 0);
    p.high = mx_min(floor_div(p.last - 1 + c->before[0], c->stride[0]) + 1, c->out[0]);
    p.high = mx_max(p.high, p.low);
    p.positions = (p.high - p.low) * c->out[1];
    p.top = p.low < p.high ? mx_min(p.first, mx_conv_at(c, 0, p.low, 0)) : p.first;
    return p;
}

typedef struct room {
    float *sums, *tiles; /* tiles: of a panel of columns, the rows of a chunk */
    float *line;         /* a channel of a band of x */
    int64_t *at;         /* (channels, rows of the kernel): which row of sums the first position meets */
    uint32_t *panel;
} room;

static room room_of(const job *j, char *scratch, int64_t *bytes)
{
    int64_t sizes[] = {(j->channels * j->images * j->lines * j->row + SLACK) * 4, (SLACK + j->rows * j->u->nr) * 4,
                       (j->band * j->c->in[1] + SLACK) * 4, j->channels * j->c->kernel[0] * 8,
                       (j->u->nr * j->words + MX_CONV_SLACK) * 4};
    char *at[sizeof sizes / sizeof *sizes];
    *bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at[i] = scratch + *bytes;
        *bytes += mx_round_up(sizes[i], 64);
    }
    return (room){(float *)at[0], (float *)at[1] + SLACK, (float *)at[2], (int64_t *)at[3], (uint32_t *)at[4]};
}

static void set_lines(const job *j, const part *p, int64_t *at)
{
    int64_t height = j->c->kernel[0];
    for (int64_t i = 0; i < p->channels * height; i++)
        at[i] = (i / height * j->images * j->lines + mx_conv_at(j->c, 0, p->low, i % height) - p->top) * j->row;
}

/* Positions `first` to before first + n of those of a part, as runs to add. */
static int64_t runs_of(const job *j, const part *p, int64_t first, int64_t n, mx_conv_run *runs)
{
    int64_t width = j->c->out[1], count = 0;
    for (int64_t to = 0; to < n;) {
        int64_t image = (first + to) / p->positions, at = (first + to) % p->positions;
        int64_t i = at / width, column = at % width, some = mx_min(width - column, n - to);
        runs[count++] = (mx_conv_run){(image * j->lines + i * j->c->stride[0]) * j->row + column, to, some};
        to += some;
    }
    return count;
}

/* The same as runs of elements of dy, of the first output of a group. */
static int64_t places_of(const job *j, const part *p, int64_t first, int64_t n, mx_conv_run *runs)
{
    int64_t size = mx_conv_positions(j->c), count = 0;
    for (int64_t to = 0; to < n; to += runs[count++].n) {
        int64_t image = p->image + (first + to) / p->positions, at = (first + to) % p->positions;
        int64_t from = (image * j->c->groups + p->group) * j->k * size + p->low * j->c->out[1] + at;
        runs[count] = (mx_conv_run){from, to, mx_min(p->positions - at, n - to)};
    }
    return count;
}

static void put_sums(const job *j, const part *p, const room *r)
{
    const mx_conv *c = j->c;
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    for (int64_t i = 0; i < p->images * p->channels; i++) {
        int64_t image = i / p->channels, n = i % p->channels;
        int64_t plane = ((p->image + image) * c->groups + p->group) * mx_conv_group_in(c) + p->chunk * j->channels + n;
        const float *sums = r->sums + (n * j->images + image) * j->lines * j->row - j->left;
        for (int64_t y = p->first; y < p->last; y++)
            paths->weave(c->in[1], sums + (y - p->top) * j->row, j->phase, c->stride[1],
                         r->line + (y - p->first) * c->in[1]);
        paths->put(1, (p->last - p->first) * c->in[1], r->line, 0, NULL,
                   mx_conv_part(j->dx, (plane * c->in[0] + p->first) * c->in[1]), 0, j->stream);
    }
}

/* Adds the tiles of a panel to the sums. */
static void add_tiles(const job *j, const part *p, const mx_conv_run *runs, int64_t n_runs, const room *r)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t height = j->c->kernel[0], width = j->c->kernel[1];
    for (const mx_conv_run *run = runs; run < runs + n_runs; run++)
        for (int64_t e = 0, n; e < width; e += n) {
            const mx_conv_term *t = j->terms + e;
            for (n = 1; n < mx_min(width - e, MX_CONV_TERMS) && t[n].shift - t->shift < NEAR;)
                n++;
            paths->add(p->channels * height, width, r->tiles, j->u->nr, r->at, t, n, run, r->sums);
        }
}

enum { AHEAD = 2 }; /* runs of the next panel that are prefetched */

/* Lists what the next panel is packed from, the elements of dy in `runs`: the share of the tile of rows i to i + mr of
 * `rows`. */
static void list_next(const job *j, const mx_conv_run *runs, int64_t n_runs, int64_t i, int64_t rows, mx_ahead *list)
{
    int64_t size = mx_conv_positions(j->c), bytes = (int64_t)mx_dtype_bytes(j->dy.dtype);
    int64_t first = j->k * i / rows, last = j->k * mx_min(i + j->u->mr, rows) / rows;
    for (int64_t e = 0; first < last && e < mx_min(n_runs, AHEAD); e++) {
        const char *from = mx_conv_part(j->dy, runs[e].from + first * size).data;
        int64_t beyond = (int64_t)((uintptr_t)from % 64);
        *list++ = (mx_ahead){from - beyond, runs[e].n * bytes + beyond, size * bytes, last - first};
    }
    *list = (mx_ahead){0};
}

static void run_part(const job *j, const part *p, char *scratch)
{
    const mx_conv *c = j->c;
    const mx_micro *u = j->u;
    int64_t bytes, nr = u->nr, mr = u->mr, size = mx_conv_positions(c), rows = p->channels * j->taps;
    int64_t count = p->images * p->positions;
    const uint32_t *a = j->a + (p->group * j->chunks + p->chunk) * j->rows * j->words;
    room r = room_of(j, scratch, &bytes);
    mx_conv_run runs[MX_CONV_MOST_COLUMNS], places[MX_CONV_MOST_COLUMNS];
    mx_conv_panel panel;
    set_lines(j, p, r.at);
    memset(r.sums, 0, (size_t)(p->channels * j->images * j->lines * j->row) * sizeof *r.sums);
    int64_t n_places = places_of(j, p, 0, mx_min(nr, count), places);
    for (int64_t at = 0, n; at < count; at += n) {
        n = mx_min(nr, count - at);
        mx_conv_panel_cut(u, places, n_places, &panel);
        mx_conv_panel_take(u, &panel, j->dy, j->k, size, r.panel);
        n_places = places_of(j, p, at + n, mx_min(nr, count - at - n), places);
        for (int64_t i = 0; i < rows; i += mr) {
            mx_ahead ahead[AHEAD + 1];
            list_next(j, places, n_places, i, rows, ahead);
            mx_micro_multiply(u, n, j->words, a + i * j->words, r.panel, 1, r.tiles + i * nr, nr, false, ahead);
        }
        add_tiles(j, p, runs, runs_of(j, p, at, n, runs), &r);
    }
    put_sums(j, p, &r);
}

/* ---- the plan ---- */

static void plan(job *j)
{
    const mx_conv *c = j->c;
    int64_t mr = j->u->mr, reach = (c->kernel[0] - 1) * c->dilation[0], inputs = mx_conv_group_in(c), s = c->stride[1];
    j->taps = c->kernel[0] * c->kernel[1];
    j->k = mx_conv_group_out(c);
    j->words = mx_conv_words(j->u, j->k);
    j->left = mx_min(floor_div(mx_conv_at(c, 1, 0, 0), s), 0);
    int64_t right = floor_div(mx_conv_at(c, 1, c->out[1] - 1, c->kernel[1] - 1), s) + 1;
    j->phase = mx_round_up(mx_max(right, mx_ceil_div(c->in[1], s)) - j->left, 16);
    j->row = j->phase * s;
    j->channels = mx_min(mx_round_up(mx_ceil_div(ROWS, j->taps), mr), inputs);
    for (; j->channels > mr && j->channels * j->row * (2 * reach + c->stride[0]) > SUMS / 2;)
        j->channels = mx_round_up(j->channels / 2, mr);
    int64_t most = mx_max(SUMS / (j->channels * j->row) - 2 * reach, c->stride[0]);
    j->bands = mx_ceil_div(c->in[0], most);
    j->band = mx_ceil_div(c->in[0], j->bands);
    j->bands = mx_ceil_div(c->in[0], j->band);
    j->lines = j->band + 2 * reach;
    int64_t parts = mx_ceil_div(c->batch, mx_max(SUMS / (j->channels * j->lines * j->row), 1));
    j->images = mx_ceil_div(c->batch, parts); /* panels that are shared by images are fuller */
    j->chunks = mx_ceil_div(inputs, j->channels);
    j->rows = mx_round_up(j->channels * j->taps, mr);
    (void)room_of(j, NULL, &j->bytes);
}

bool mx_conv_grad_x_adds(const mx_conv *c)
{
    enum { FEW_CHANNELS = 4, ENOUGH_OUTPUTS = 16 }; /* sums of fewer outputs take less time than adding them */
    int64_t inputs = mx_conv_group_in(c), lines = (c->kernel[0] - 1) * c->dilation[0] + c->stride[0];
    bool few = inputs <= FEW_CHANNELS && mx_conv_group_out(c) >= ENOUGH_OUTPUTS;
    return (few || c->stride[0] * c->stride[1] > 1) && mx_min(inputs, 8) * c->in[1] * lines <= SUMS;
}

mx_status mx_conv_product_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    int64_t threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    job j = {.c = c, .u = mx_conv_micro(dy.dtype, w.dtype), .w = w, .dy = dy, .dx = dx};
    if (c->batch * c->channels_in * mx_conv_pixels(c) == 0)
        return MX_OK;
    plan(&j);
    j.stream = mx_should_stream(c->batch * c->channels_in * mx_conv_pixels(c) * (int64_t)mx_dtype_bytes(dx.dtype));
    int64_t a_bytes = mx_round_up(c->groups * j.chunks * j.rows * j.words * 4, 64);
    int64_t terms = mx_round_up(c->kernel[1] * (int64_t)sizeof *j.terms, 64),
            bytes = a_bytes + terms + threads * j.bytes;
    MX_TRY(mx_pool_alloc(bytes, (void **)&j.a));
    j.terms = (mx_conv_term *)((char *)j.a + a_bytes);
    j.scratch = (char *)j.terms + terms;
    set_terms(&j);
#pragma omp parallel if (threads > 1)
    {
        char *scratch = j.scratch + omp_get_thread_num() * j.bytes;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < c->groups * j.chunks; i++)
            pack_weights(&j, i / j.chunks, i % j.chunks);
        if (j.u->begin)
            j.u->begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < mx_ceil_div(c->batch, j.images) * c->groups * j.bands * j.chunks; i++) {
            part p = part_of(&j, i);
            run_part(&j, &p, scratch);
        }
        if (j.u->end)
            j.u->end();
        _mm_sfence(); /* of what was streamed */
    }
    mx_pool_free(j.a, bytes);
    return MX_OK;
}
