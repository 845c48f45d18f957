/* The gradient of convolutions by x as one product for all taps: of the weights of a group, transposed (taps x
 * channels of x, outputs), and dy (outputs, positions). Each row of the product is then added to the elements of x that
 * its tap meets. Compared with passes over dy (conv_pass.c) this packs dy once instead of once for each tap, needs no
 * pass for each remainder by the stride, and fills the rows of the micro-kernel with the taps of few channels.
 *
 *     for images, groups, bands of rows of x, chunks of channels of x      on any thread
 *     for panels of columns: the positions that the band meets     packed into the first-level cache
 *     for panels of rows                                           the micro-kernel; its tile is added to sums
 *
 * The sums are f32, with the columns of a row sorted by their remainder by the stride and with room for what lies
 * outside of x, so that neighbours in a tile are neighbours there. Bands are cut by sizes alone, and positions are
 * added in order, so the bits do not depend on the number of threads. */
#include "kernels/conv_internal.h"

#include "core/pool.h"
#include "kernels/context.h"

#include <omp.h>
#include <string.h>

/* Floats of a thread's sums, which stay in the second-level cache beside the weights of a chunk; rows of a chunk, as
 * far as whole blocks of channels allow, so that a packed panel is used often. */
enum { SUMS = 64 << 10, ROWS = 144, SLACK = 32 };

typedef struct job {
    const mx_conv *c;
    const mx_micro *u;
    mx_array w, dy, dx;
    int64_t k, words;             /* outputs of a group; in words */
    int64_t taps, channels, rows; /* of a kernel; of a chunk; whole panels of rows of a chunk */
    int64_t chunks, bands, band;  /* of a group; of an image; rows of x in a band */
    int64_t lines;                /* the most rows of sums of a channel */
    int64_t left, phase, row;     /* the first column of a phase; floats of a phase and of a row of sums */
    int64_t bytes;                /* of a thread's scratch */
    uint32_t *a;                  /* packed weights: for each group and chunk the panels of rows */
    char *scratch;
} job;

static int64_t floor_div(int64_t a, int64_t n) { return a >= 0 ? a / n : -mx_ceil_div(-a, n); }

/* The rows of a chunk of n channels are ordered by blocks of as many channels as a panel has rows, by taps, of which
 * those of one column are neighbours, and by channels. So the rows of a tile are added to different rows of sums. */
typedef struct row_of {
    int64_t channel, d, e; /* of the chunk; of the kernel */
} row_of;

static row_of row_at(const job *j, int64_t n, int64_t row)
{
    int64_t mr = j->u->mr, block = row / (mr * j->taps), width = mx_min(mr, n - block * mr);
    int64_t rest = row - block * mr * j->taps, tap = rest / width;
    return (row_of){block * mr + rest % width, tap % j->c->kernel[0], tap / j->c->kernel[0]};
}

static int64_t channels_of(const job *j, int64_t chunk)
{
    return mx_min(j->channels, mx_conv_group_in(j->c) - chunk * j->channels);
}

/* ---- the weights ---- */

/* scratch: room for the places of the rows and for the weights of a chunk as a matrix (outputs, rows). */
static void pack_weights(const job *j, int64_t group, int64_t chunk, char *scratch)
{
    const mx_conv *c = j->c;
    int64_t n = channels_of(j, chunk), rows = n * j->taps, all = mx_conv_taps(c), *at = (int64_t *)scratch;
    size_t bytes = mx_dtype_bytes(j->w.dtype);
    char *lines = scratch + rows * (int64_t)sizeof *at;
    for (int64_t i = 0; i < rows; i++) {
        row_of r = row_at(j, n, i);
        at[i] = (chunk * j->channels + r.channel) * j->taps + r.d * c->kernel[1] + r.e;
    }
    for (int64_t o = 0; o < j->k; o++)
        mx_conv_pick(mx_conv_part(j->w, (group * j->k + o) * all).data, bytes, rows, at,
                     lines + (size_t)(o * rows) * bytes);
    j->u->pack_a(rows, j->k, lines, j->w.dtype, rows, true, j->a + (group * j->chunks + chunk) * j->rows * j->words);
}

/* ---- bands ---- */

/* A part of dx, the rows of dy that meet it, and the row of x that its first row of sums is. */
typedef struct part {
    int64_t image, group, chunk, channels;
    int64_t first, last, low, high, top;
} part;

static part part_of(const job *j, int64_t number)
{
    const mx_conv *c = j->c;
    int64_t band = number / j->chunks % j->bands, both = number / j->chunks / j->bands;
    int64_t reach = (c->kernel[0] - 1) * c->dilation[0];
    part p = {.image = both / c->groups, .group = both % c->groups, .chunk = number % j->chunks};
    p.channels = channels_of(j, p.chunk);
    p.first = band * j->band;
    p.last = mx_min(p.first + j->band, c->in[0]);
    p.low = mx_max(-floor_div(reach - p.first - c->before[0], c->stride[0]), 0);
    p.high = mx_min(floor_div(p.last - 1 + c->before[0], c->stride[0]) + 1, c->out[0]);
    p.high = mx_max(p.high, p.low);
    p.top = p.low < p.high ? mx_min(p.first, mx_conv_at(c, 0, p.low, 0)) : p.first;
    return p;
}

typedef struct room {
    float *sums;
    int64_t *at; /* (rows): where tiles of the first position are added to the sums */
    uint32_t *panel;
} room;

static room room_of(const job *j, char *scratch, int64_t *bytes)
{
    int64_t sums = mx_round_up((j->channels * j->lines * j->row + SLACK) * 4, 64), at = mx_round_up(j->rows * 8, 64);
    int64_t panel = mx_round_up((j->u->nr * j->words + MX_CONV_SLACK) * 4, 64);
    int64_t weights = j->channels * j->taps * (8 + j->k * 4); /* while they are packed */
    *bytes = mx_max(sums + at + panel, mx_round_up(weights, 64));
    return (room){(float *)scratch, (int64_t *)(scratch + sums), (uint32_t *)(scratch + sums + at)};
}

static void set_rows(const job *j, const part *p, int64_t *at)
{
    const mx_conv *c = j->c;
    for (int64_t i = 0; i < p->channels * j->taps; i++) {
        row_of r = row_at(j, p->channels, i);
        int64_t column = mx_conv_at(c, 1, 0, r.e), quotient = floor_div(column, c->stride[1]);
        int64_t remainder = column - quotient * c->stride[1];
        int64_t line = r.channel * j->lines + mx_conv_at(c, 0, p->low, r.d) - p->top;
        at[i] = line * j->row + remainder * j->phase + quotient - j->left;
    }
}

/* Positions `first` to before first + n of those of a part, as runs to add. */
static int64_t runs_of(const job *j, int64_t first, int64_t n, mx_conv_run *runs)
{
    int64_t width = j->c->out[1], count = 0;
    for (int64_t to = 0; to < n;) {
        int64_t i = (first + to) / width, column = (first + to) % width;
        int64_t some = mx_min(width - column, n - to);
        runs[count++] = (mx_conv_run){i * j->c->stride[0] * j->row + column, to, some};
        to += some;
    }
    return count;
}

static void put_sums(const job *j, const part *p, const float *sums)
{
    const mx_conv *c = j->c;
    int64_t channel = (p->image * c->groups + p->group) * mx_conv_group_in(c) + p->chunk * j->channels;
    for (int64_t n = 0; n < p->channels; n++)
        for (int64_t y = p->first; y < p->last; y++)
            mx_kernels_current()->conv->weave(c->in[1], sums + (n * j->lines + y - p->top) * j->row - j->left, j->phase,
                                              c->stride[1],
                                              mx_conv_part(j->dx, ((channel + n) * c->in[0] + y) * c->in[1]));
}

static void run_part(const job *j, const part *p, char *scratch)
{
    const mx_conv *c = j->c;
    const mx_micro *u = j->u;
    int64_t bytes, nr = u->nr, mr = u->mr, size = mx_conv_positions(c), rows = p->channels * j->taps;
    int64_t count = (p->high - p->low) * c->out[1];
    int64_t from = ((p->image * c->groups + p->group) * j->k) * size + p->low * c->out[1];
    const uint32_t *a = j->a + (p->group * j->chunks + p->chunk) * j->rows * j->words;
    room r = room_of(j, scratch, &bytes);
    _Alignas(64) float tile[MX_MICRO_MAX_TILE];
    mx_conv_run runs[MX_CONV_MOST_COLUMNS];
    mx_conv_panel panel;
    set_rows(j, p, r.at);
    memset(r.sums, 0, (size_t)(p->channels * j->lines * j->row) * sizeof *r.sums);
    for (int64_t at = 0; at < count; at += nr) {
        const mx_conv_run all = {0, 0, mx_min(nr, count - at)};
        mx_conv_panel_cut(u, &all, 1, &panel);
        mx_conv_panel_take(u, &panel, mx_conv_part(j->dy, from + at), j->k, size, r.panel);
        int64_t n_runs = runs_of(j, at, all.n, runs);
        for (int64_t i = 0; i < rows; i += mr) {
            mx_micro_multiply(u, all.n, j->words, a + i * j->words, r.panel, 1, tile, nr, false, NULL);
            mx_kernels_current()->conv->add(mx_min(mr, rows - i), tile, nr, r.at + i, runs, n_runs, r.sums);
        }
    }
    put_sums(j, p, r.sums);
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
    int64_t a_bytes = mx_round_up(c->groups * j.chunks * j.rows * j.words * 4, 64), bytes = a_bytes + threads * j.bytes;
    MX_TRY(mx_pool_alloc(bytes, (void **)&j.a));
    j.scratch = (char *)j.a + a_bytes;
#pragma omp parallel if (threads > 1)
    {
        char *scratch = j.scratch + omp_get_thread_num() * j.bytes;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < c->groups * j.chunks; i++)
            pack_weights(&j, i / j.chunks, i % j.chunks, scratch);
        if (j.u->begin)
            j.u->begin();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < c->batch * c->groups * j.bands * j.chunks; i++) {
            part p = part_of(&j, i);
            run_part(&j, &p, scratch);
        }
        if (j.u->end)
            j.u->end();
    }
    mx_pool_free(j.a, bytes);
    return MX_OK;
}
