#include "kernels/channel_numbers.h"

#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/reduce.h"

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    BAND = 512,         /* planes of batches of fewer elements are columns with their neighbours, */
    RUN_BYTES = 4096,   /* so much of each image at a time, */
    WIDTH = 2048,       /* or so many columns, */
    HEIGHT = 64,        /* and so many rows whose sums are f32 */
    PIECE = MX_CHUNK,   /* elements of a plane whose sums are f32 */
    LONG = 16 * PIECE,  /* sets from here on are shared by the threads, */
    MANY = 8,           /* unless each thread has so many: then none waits, and finds in its own caches what it read */
    MOST_BLOCKS = 128,  /* of images whose sums for weights are added up together */
    AHEAD_BYTES = 4096, /* prefetched in planes: the processor itself does not go beyond a page; */
    AHEAD_ROWS = 4,     /* and in columns; */
    NEAR_BYTES = 16384, /* of a plane that the first-level cache takes besides another one */
};

/* How the work is cut. The planes of a set are pieces of up to PIECE neighbours. */
typedef struct plan {
    const mx_channel_norm *n;
    int64_t sets, planes, plane_step, pieces, count; /* of a set: planes, elements from one to the next, elements */
    int64_t unit_bytes;
    bool stream, bands;
    int64_t together;    /* channels of a band */
    bool shared;         /* one set after the other, by all threads, with scratch for the sums of its pieces */
    mx_moments *moments; /* of the pieces; */
    pair *pairs;         /* or their sums for gradients */
} plan;

/* Channels of a band: a power of two, so that most bands start at cache lines. Gradients take half as many: what is
 * prefetched of x and dy, some rows ahead, stays in the first-level cache beside the numbers of the columns. Bits
 * depend on it, so it does not depend on threads. */
static int64_t band_channels(const plan *p)
{
    int64_t some = 1, most = p->n->dx.data && p->n->inner > 1 ? RUN_BYTES / 2 : RUN_BYTES;
    while (2 * some * p->n->inner * p->unit_bytes <= most)
        some *= 2;
    return some;
}

static bool is_short_group(const mx_channel_norm *n)
{
    return n->groups && n->inner < MX_SHORT_PLANE && n->x.dtype != MX_F64;
}

static plan plan_of(const mx_channel_norm *n, mx_array out)
{
    plan p = {.n = n, .unit_bytes = (int64_t)mx_dtype_bytes(n->x.dtype)};
    p.sets = n->groups ? n->batch * n->groups : n->channels;
    p.planes = n->groups ? n->channels / n->groups : n->batch;
    p.plane_step = n->groups ? n->inner : n->channels * n->inner;
    p.pieces = mx_ceil_div(n->inner, PIECE);
    p.count = p.planes * n->inner;
    p.bands = !n->groups && n->inner < BAND && n->x.dtype != MX_F64;
    p.together = p.bands && n->inner > 0 ? band_channels(&p) : 1;
    p.shared = p.count >= LONG && !p.bands && n->x.dtype != MX_F64 && p.sets < MANY * omp_get_max_threads();
    p.stream = out.data != n->x.data && mx_should_stream(2 * p.sets * p.count * p.unit_bytes);
    return p;
}

static int64_t scratch_bytes(const plan *p, size_t each) { return p->planes * p->pieces * (int64_t)each; }

static int64_t first_of(const plan *p, int64_t set) { return p->n->groups ? set * p->count : set * p->n->inner; }

static int64_t channel_of(const plan *p, int64_t set, int64_t plane)
{
    return p->n->groups ? set % p->n->groups * p->planes + plane : set;
}

/* Piece i of a set: its first element, and how many there are. */
static int64_t piece_of(const plan *p, int64_t set, int64_t i, int64_t *n)
{
    int64_t from = i % p->pieces * PIECE;
    *n = mx_min(PIECE, p->n->inner - from);
    return first_of(p, set) + i / p->pieces * p->plane_step + from;
}

/* What the loops compute with, for one channel of a set. */
typedef struct numbers {
    float mean, scale, slope, shift;
} numbers;

static numbers forward_numbers(const mx_channel_norm *n, int64_t set, int64_t channel, double rstd)
{
    double mean = value_of(n->mean, set, 0), scale = rstd * value_of(n->weight, channel, 1);
    float near = single(mean);
    return (numbers){near, single(scale), 0, single(((double)near - mean) * scale + value_of(n->bias, channel, 0))};
}

/* From the sums of weight dy and of weight dy (x - mean). */
static numbers backward_numbers(const plan *p, int64_t set, int64_t channel, double rstd, pair all)
{
    const mx_channel_norm *n = p->n;
    double slope, shift;
    find_slope(n, set, (double)p->count, rstd, all, &slope, &shift);
    return (numbers){single(value_of(n->mean, set, 0)), single(rstd * value_of(n->weight, channel, 1)), single(slope),
                     single(shift)};
}

/* The loops' line for a piece of a plane. A short plane asks for the one that comes `step` planes later. */
static mx_channel_line plane_line(const plan *p, const numbers *one, int64_t n, int step)
{
    bool is_short = n * p->unit_bytes <= NEAR_BYTES;
    return (mx_channel_line){.n = n,
                             .mean = &one->mean,
                             .scale = &one->scale,
                             .slope = &one->slope,
                             .shift = &one->shift,
                             .ahead = is_short ? step * p->plane_step : AHEAD_BYTES / p->unit_bytes};
}

/* Numbers for each of up to WIDTH columns: `inner` neighbours for each channel. */
typedef struct columns {
    float mean[WIDTH], scale[WIDTH], slope[WIDTH], shift[WIDTH];
} columns;

static void set_columns(const plan *p, columns *c, int64_t channel, numbers one)
{
    int64_t inner = p->n->inner, first = channel * inner;
    for (int64_t j = first; j < first + inner; j++) {
        c->mean[j] = one.mean;
        c->scale[j] = one.scale;
        c->slope[j] = one.slope;
        c->shift[j] = one.shift;
    }
}

static mx_channel_line column_line(const columns *c, int64_t width, int64_t stride)
{
    return (mx_channel_line){.n = width,
                             .each = true,
                             .mean = c->mean,
                             .scale = c->scale,
                             .slope = c->slope,
                             .shift = c->shift,
                             .ahead = AHEAD_ROWS * stride};
}

/* ---- forward ---- */

/* Asks for the beginning of the next plane. */
static mx_moments moments_of_piece(const plan *p, int64_t set, int64_t i)
{
    int64_t n, first = piece_of(p, set, i, &n);
    const char *next = at(p->n->x, first + p->plane_step).data;
    for (int64_t b = 0; p->pieces == 1 && b < mx_min(AHEAD_BYTES, n * p->unit_bytes); b += 64)
        __builtin_prefetch(next + b, 0, 2);
    return mx_row_moments(at(p->n->x, first), n);
}

static mx_moments moments_of_set(const plan *p, int64_t set)
{
    int64_t items = p->planes * p->pieces;
    mx_moments all = {0};
    if (p->plane_step == p->n->inner && !p->shared)
        return mx_row_moments(at(p->n->x, first_of(p, set)), p->count);
    if (!p->shared) {
        for (int64_t i = 0; i < items; i++)
            all = mx_moments_join(all, moments_of_piece(p, set, i));
        return all;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < items; i++)
        p->moments[i] = moments_of_piece(p, set, i);
    for (int64_t i = 0; i < items; i++)
        all = mx_moments_join(all, p->moments[i]);
    return all;
}

static void forward_piece(const plan *p, int64_t set, int64_t i, double rstd)
{
    int64_t n, first = piece_of(p, set, i, &n);
    numbers one = forward_numbers(p->n, set, channel_of(p, set, i / p->pieces), rstd);
    mx_channel_line line = plane_line(p, &one, n, -1);
    mx_kernels_current()->channels->forward(at(p->n->x, first), &line, at(p->n->y, first).data, p->stream);
    if (p->shared)
        _mm_sfence();
}

static void forward_set(const plan *p, int64_t set)
{
    if (!p->n->fixed)
        put_moments(p->n, set, moments_of_set(p, set));
    double rstd = rstd_of(p->n, set);
#pragma omp parallel for schedule(static) if (p->shared)
    for (int64_t i = p->planes * p->pieces - 1; i >= 0; i--) /* the last ones are still in a cache */
        forward_piece(p, set, i, rstd);
}

/* Neighbouring channels of short planes, over the batch. */
static void forward_band(const plan *p, int64_t channel)
{
    const mx_channel_norm *n = p->n;
    int64_t some = mx_min(p->together, n->channels - channel), width = some * n->inner, first = channel * n->inner;
    columns c;
    if (!n->fixed) {
        mx_moments moments[WIDTH];
        mx_column_moments(at(n->x, first), n->batch, p->plane_step, width, moments);
        for (int64_t k = 0; k < some; k++) {
            mx_moments all = {0};
            for (int64_t j = 0; j < n->inner; j++)
                all = mx_moments_join(all, moments[k * n->inner + j]);
            put_moments(n, channel + k, all);
        }
    }
    for (int64_t k = 0; k < some; k++)
        set_columns(p, &c, k, forward_numbers(n, channel + k, channel + k, rstd_of(n, channel + k)));
    mx_channel_line line = column_line(&c, width, -p->plane_step);
    for (int64_t i = n->batch - 1; i >= 0; i--) {
        int64_t row = first + i * p->plane_step;
        mx_kernels_current()->channels->forward(at(n->x, row), &line, at(n->y, row).data, p->stream);
    }
}

/* f64 is for checks: each set on one thread, element by element. */
static void forward_f64(const plan *p, int64_t set)
{
    const mx_channel_norm *n = p->n;
    const double *x = (const double *)n->x.data + first_of(p, set);
    double *y = (double *)n->y.data + first_of(p, set), sum = 0, squares = 0;
    for (int64_t i = 0; i < p->count && !n->fixed; i++)
        sum += x[i / n->inner * p->plane_step + i % n->inner];
    double mean = n->fixed ? value_of(n->mean, set, 0) : sum / (double)p->count;
    for (int64_t i = 0; i < p->count && !n->fixed; i++) {
        double d = x[i / n->inner * p->plane_step + i % n->inner] - mean;
        squares += d * d;
    }
    if (!n->fixed)
        put_moments(n, set, (mx_moments){(double)p->count, mean, squares});
    double rstd = rstd_of(n, set);
    for (int64_t i = 0; i < p->count; i++) {
        int64_t place = i / n->inner * p->plane_step + i % n->inner, channel = channel_of(p, set, i / n->inner);
        y[place] = (x[place] - mean) * rstd * value_of(n->weight, channel, 1) + value_of(n->bias, channel, 0);
    }
}

mx_status mx_channel_norm_forward(const mx_channel_norm *n)
{
    plan p = plan_of(n, n->y);
    bool f64 = n->x.dtype == MX_F64;
    for (int64_t set = 0; set < (p.count == 0 && !n->fixed ? p.sets : 0); set++)
        put_moments(n, set, (mx_moments){.n = 0, .mean = NAN, .sum = NAN});
    if (p.sets * p.count == 0)
        return MX_OK;
    if (is_short_group(n))
        return mx_short_groups_forward(n);
    if (p.shared)
        MX_TRY(mx_pool_alloc(scratch_bytes(&p, sizeof *p.moments), (void **)&p.moments));
    int64_t step = p.together;
#pragma omp parallel for schedule(static) if (!p.shared && p.sets * p.count >= MX_PARALLEL_FROM)
    for (int64_t set = 0; set < p.sets; set += step) {
        if (f64)
            forward_f64(&p, set);
        else if (p.bands)
            forward_band(&p, set);
        else
            forward_set(&p, set);
        _mm_sfence();
    }
    if (p.shared)
        mx_pool_free(p.moments, scratch_bytes(&p, sizeof *p.moments));
    return MX_OK;
}

/* ---- backward ---- */

static pair sums_of_piece(const plan *p, int64_t set, int64_t i)
{
    int64_t n, first = piece_of(p, set, i, &n);
    numbers one = {.mean = single(value_of(p->n->mean, set, 0))};
    mx_channel_line line = plane_line(p, &one, n, 1);
    float sum = 0, dot = 0;
    mx_kernels_current()->channels->sums(at(p->n->x, first), at(p->n->dy, first).data, &line, &sum, &dot);
    return (pair){(double)sum, (double)dot};
}

/* Adds the sums of a plane to those of its set, weighted, and to those of its channel in one block of images, which are
 * (2, channels): of weight and of bias. */
static pair add_plane(const plan *p, pair all, int64_t channel, double rstd, pair plane, double *block)
{
    double weight = value_of(p->n->weight, channel, 1);
    block[channel] += rstd * plane.dot;
    block[p->n->channels + channel] += plane.sum;
    return (pair){all.sum + weight * plane.sum, all.dot + weight * plane.dot};
}

/* Of all planes of a set. */
static pair sums_of_set(const plan *p, int64_t set, double rstd, double *block)
{
    pair all = {0};
#pragma omp parallel for schedule(static) if (p->shared)
    for (int64_t i = 0; i < (p->shared ? p->planes * p->pieces : 0); i++)
        p->pairs[i] = sums_of_piece(p, set, i);
    for (int64_t k = 0; k < p->planes; k++) {
        pair plane = {0};
        for (int64_t i = k * p->pieces; i < (k + 1) * p->pieces; i++) {
            pair piece = p->shared ? p->pairs[i] : sums_of_piece(p, set, i);
            plane = (pair){plane.sum + piece.sum, plane.dot + piece.dot};
        }
        all = add_plane(p, all, channel_of(p, set, k), rstd, plane, block);
    }
    return all;
}

/* Adds n rows of columns to their channels. */
static void add_columns(const plan *p, int64_t first, const mx_channel_line *line, int64_t n, pair *channel)
{
    float sum[WIDTH], dot[WIDTH];
    int64_t inner = p->n->inner;
    memset(sum, 0, (size_t)line->n * sizeof *sum);
    memset(dot, 0, (size_t)line->n * sizeof *dot);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = first + i * p->plane_step;
        mx_kernels_current()->channels->sums(at(p->n->x, row), at(p->n->dy, row).data, line, sum, dot);
    }
    for (int64_t k = 0; k < line->n / inner; k++)
        for (int64_t j = k * inner; j < (k + 1) * inner; j++)
            channel[k] = (pair){channel[k].sum + (double)sum[j], channel[k].dot + (double)dot[j]};
}

static void backward_piece(const plan *p, int64_t set, int64_t i, double rstd, pair all)
{
    int64_t n, first = piece_of(p, set, i, &n);
    numbers one = backward_numbers(p, set, channel_of(p, set, i / p->pieces), rstd, all);
    mx_channel_line line = plane_line(p, &one, n, -1);
    mx_kernels_current()->channels->backward(at(p->n->x, first), at(p->n->dy, first).data, &line,
                                             at(p->n->dx, first).data, p->stream);
    if (p->shared)
        _mm_sfence();
}

static void backward_set(const plan *p, int64_t set, double *block)
{
    double rstd = rstd_of(p->n, set);
    pair all = sums_of_set(p, set, rstd, block);
#pragma omp parallel for schedule(static) if (p->shared)
    for (int64_t i = p->planes * p->pieces - 1; i >= 0; i--) /* as forward */
        backward_piece(p, set, i, rstd, all);
}

static void backward_band(const plan *p, int64_t from, double *block)
{
    const mx_channel_norm *n = p->n;
    int64_t some = mx_min(p->together, n->channels - from), first = from * n->inner;
    columns c;
    pair channel[WIDTH] = {0};
    for (int64_t k = 0; k < some; k++)
        set_columns(p, &c, k, (numbers){.mean = single(value_of(n->mean, from + k, 0))});
    mx_channel_line line = column_line(&c, some * n->inner, p->plane_step);
    for (int64_t i = 0; i < n->batch; i += HEIGHT)
        add_columns(p, first + i * p->plane_step, &line, mx_min(HEIGHT, n->batch - i), channel);
    for (int64_t k = 0; k < some; k++) {
        double rstd = rstd_of(n, from + k);
        pair all = add_plane(p, (pair){0}, from + k, rstd, channel[k], block);
        set_columns(p, &c, k, backward_numbers(p, from + k, from + k, rstd, all));
    }
    line.ahead = -line.ahead;
    for (int64_t i = n->batch - 1; i >= 0; i--) {
        int64_t row = first + i * p->plane_step;
        mx_kernels_current()->channels->backward(at(n->x, row), at(n->dy, row).data, &line, at(n->dx, row).data,
                                                 p->stream);
    }
}

static void backward_f64(const plan *p, int64_t set, double *block)
{
    const mx_channel_norm *n = p->n;
    const double *x = (const double *)n->x.data + first_of(p, set), *dy = (const double *)n->dy.data + first_of(p, set);
    double *dx = (double *)n->dx.data + first_of(p, set), rstd = rstd_of(n, set), mean = value_of(n->mean, set, 0);
    double count = (double)p->count;
    pair all = {0};
    for (int64_t i = 0; i < p->count; i++) {
        int64_t place = i / n->inner * p->plane_step + i % n->inner, channel = channel_of(p, set, i / n->inner);
        all = add_plane(p, all, channel, rstd, (pair){dy[place], dy[place] * (x[place] - mean)}, block);
    }
    for (int64_t i = 0; i < p->count; i++) {
        int64_t place = i / n->inner * p->plane_step + i % n->inner, channel = channel_of(p, set, i / n->inner);
        double d = x[place] - mean;
        dx[place] = rstd * value_of(n->weight, channel, 1) * dy[place];
        if (!n->fixed)
            dx[place] += (value_of(n->dmean, set, 0) - rstd * all.sum) / count +
                         d * (2 * value_of(n->dvar, set, 0) - rstd * rstd * rstd * all.dot) / count;
    }
}

/* What one thread does: a set, a band of sets, or a group in a block of images. */
static void backward_unit(const plan *p, int64_t unit, int64_t block_images, double *sums)
{
    const mx_channel_norm *n = p->n;
    bool f64 = n->x.dtype == MX_F64;
    if (p->bands) {
        backward_band(p, unit * p->together, sums);
        return;
    }
    int64_t block = n->groups ? unit / n->groups : 0, group = n->groups ? unit % n->groups : unit;
    int64_t first = block * block_images, last = n->groups ? mx_min(first + block_images, n->batch) : 1;
    for (int64_t i = first; i < last; i++) {
        int64_t set = n->groups ? i * n->groups + group : group;
        double *own = sums + 2 * block * n->channels;
        f64 ? backward_f64(p, set, own) : backward_set(p, set, own);
    }
}

mx_status mx_channel_norm_backward(const mx_channel_norm *n)
{
    plan p = plan_of(n, n->dx);
    int64_t block_images = n->groups ? mx_ceil_div(n->batch, MOST_BLOCKS) : 1;
    int64_t blocks = n->groups && n->batch > 0 ? mx_ceil_div(n->batch, block_images) : 1, units = n->channels;
    int64_t bytes = 2 * blocks * n->channels * (int64_t)sizeof(double);
    double *sums = NULL;
    if (n->groups)
        units = blocks * n->groups;
    else if (p.bands && n->inner > 0)
        units = mx_ceil_div(n->channels, p.together);
    MX_TRY(mx_pool_alloc(bytes, (void **)&sums));
    memset(sums, 0, (size_t)bytes);
    mx_status status = MX_OK;
    bool is_short = is_short_group(n) && p.sets * p.count > 0;
    if (is_short)
        status = mx_short_groups_backward(n, block_images, sums);
    else if (p.shared)
        status = mx_pool_alloc(scratch_bytes(&p, sizeof *p.pairs), (void **)&p.pairs);
#pragma omp parallel for schedule(static) if (!p.shared && p.sets * p.count >= MX_PARALLEL_FROM)
    for (int64_t unit = 0; unit < (status == MX_OK && p.count > 0 && !is_short ? units : 0); unit++) {
        backward_unit(&p, unit, block_images, sums);
        _mm_sfence();
    }
    for (int64_t c = 0; c < n->channels; c++) {
        pair all = {0};
        for (int64_t b = 0; b < blocks; b++) {
            const double *own = sums + 2 * b * n->channels + c;
            all = (pair){all.sum + own[n->channels], all.dot + own[0]};
        }
        mx_set_number(n->dweight.data, c, all.dot, n->dweight.dtype);
        mx_set_number(n->dbias.data, c, all.sum, n->dbias.dtype);
    }
    if (p.pairs)
        mx_pool_free(p.pairs, scratch_bytes(&p, sizeof *p.pairs));
    mx_pool_free(sums, bytes);
    return status;
}
