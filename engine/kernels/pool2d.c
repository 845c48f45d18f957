#include "kernels/pool2d.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/conv_internal.h"

#include <omp.h>
#include <string.h>

/* ---- maxima ---- */

typedef struct maxima {
    const mx_conv *c;
    mx_tiling t;
    mx_array x, y;
    int32_t *at; /* NULL: not wanted */
    int64_t taps;
    int64_t *where; /* (taps): where a tile has them */
    int32_t *place; /* (taps): the element of the plane that the first window meets; may be outside */
    bool stream;
} maxima;

/* f32 results of rows that are neighbours in y, and their places. */
static void put_maxima(const maxima *m, int64_t first, int64_t n, const float *y, const int32_t *place)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    if (mx_is_bf16(m->y.dtype))
        paths->to_bf16(y, (mx_bf16 *)m->y.data + first, n, m->stream);
    else
        paths->copy(y, (float *)m->y.data + first, n * (int64_t)sizeof *y, m->stream);
    if (m->at)
        paths->copy(place, m->at + first, n * (int64_t)sizeof *place, m->stream);
}

/* scratch: the tile's copy, outputs, places. */
static void max_tile(const maxima *m, int64_t item, float *scratch)
{
    const mx_tiling *t = &m->t;
    const mx_conv *c = m->c;
    const mx_tile tile = mx_tile_of(t, item % t->tiles);
    int64_t plane = item / t->tiles, n = tile.j1 - tile.j0, rows = tile.i1 - tile.i0, out = c->out[1];
    float *y = scratch + t->floats;
    int32_t *place = m->at ? (int32_t *)(y + t->outputs) : NULL;
    int64_t row_step = c->stride[0] * c->in[1], first = tile.i0 * row_step + tile.j0 * c->stride[1];
    mx_tile_fill(t, &tile, m->x, plane * mx_conv_pixels(c), true, scratch);
    mx_kernels_current()->windows->maxima(rows, n, (const int32_t *)scratch, t->w.stride[0] * t->row, m->taps, m->where,
                                          m->place, (int32_t)first, (int32_t)row_step, (int32_t)c->stride[1], y, place);
    int64_t to = plane * mx_conv_positions(m->c) + tile.i0 * out + tile.j0;
    if (n == out)
        put_maxima(m, to, rows * n, y, place);
    else
        for (int64_t i = 0; i < rows; i++)
            put_maxima(m, to + i * out, n, y + i * n, place ? place + i * n : NULL);
}

mx_status mx_max_pool_forward(const mx_conv *c, mx_array x, mx_array y, int32_t *at)
{
    mx_windows windows = mx_conv_windows(c);
    maxima m = {.c = c, .t = mx_tiling_of(&windows, 1), .x = x, .y = y, .at = at, .taps = c->kernel[0] * c->kernel[1]};
    int64_t planes = c->batch * c->channels_in, taps_bytes = mx_round_up(m.taps * 12, 64);
    int64_t each = mx_round_up(m.t.floats + 2 * m.t.outputs, 16), threads = omp_get_max_threads();
    int64_t bytes = taps_bytes + threads * each * (int64_t)sizeof(float);
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    m.where = (int64_t *)memory;
    m.place = (int32_t *)(m.where + m.taps);
    m.stream = mx_should_stream(planes * mx_conv_positions(c) * (int64_t)mx_dtype_bytes(y.dtype));
    for (int64_t tap = 0; tap < m.taps; tap++) {
        int64_t d = mx_conv_at(c, 0, 0, tap / c->kernel[1]), e = mx_conv_at(c, 1, 0, tap % c->kernel[1]);
        m.where[tap] = mx_tile_at(&m.t, d, e);
        m.place[tap] = (int32_t)(d * c->in[1] + e);
    }
#pragma omp parallel for schedule(static)
    for (int64_t item = 0; item < planes * m.t.tiles; item++)
        max_tile(&m, item, (float *)(memory + taps_bytes) + omp_get_thread_num() * each);
    mx_pool_free(memory, bytes);
    return MX_OK;
}

/* sums[at[i]] += dy[i] */
MX_INLINE void spread(int64_t n, const void *dy, bool bf16, const int32_t *at, float *sums)
{
    for (int64_t i = 0; i < n; i++)
        sums[at[i]] += bf16 ? mx_from_bf16(((const mx_bf16 *)dy)[i]) : ((const float *)dy)[i];
}

mx_status mx_max_pool_backward(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    int64_t pixels = mx_conv_pixels(c), positions = mx_conv_positions(c), planes = c->batch * c->channels_in;
    int64_t each = mx_round_up(pixels, 16), bytes = each * omp_get_max_threads() * (int64_t)sizeof(float);
    bool stream = mx_should_stream(planes * pixels * (int64_t)mx_dtype_bytes(dx.dtype));
    float *all;
    MX_TRY(mx_pool_alloc(bytes, (void **)&all));
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < planes; p++) {
        float *sums = all + omp_get_thread_num() * each;
        const void *g = mx_conv_part(dy, p * positions).data;
        memset(sums, 0, (size_t)pixels * sizeof *sums);
        if (mx_is_bf16(dy.dtype))
            spread(positions, g, true, at + p * positions, sums);
        else
            spread(positions, g, false, at + p * positions, sums);
        if (mx_is_bf16(dx.dtype))
            paths->to_bf16(sums, (mx_bf16 *)dx.data + p * pixels, pixels, stream);
        else
            paths->copy(sums, (float *)dx.data + p * pixels, pixels * (int64_t)sizeof *sums, stream);
    }
    mx_pool_free(all, bytes);
    return MX_OK;
}

/* ---- means: convolutions of each plane with equal weights ---- */

static mx_status with_equal_weights(const mx_conv *c, bool backward, mx_array from, mx_array to)
{
    int64_t taps = c->kernel[0] * c->kernel[1], bytes = taps * (int64_t)sizeof(float);
    mx_conv plane = *c;
    float *w;
    plane.batch = c->batch * c->channels_in;
    plane.channels_in = plane.channels_out = plane.groups = 1;
    mx_conv_pass p = backward ? mx_conv_pass_grad_x(&plane, 0, 0) : mx_conv_pass_forward(&plane);
    MX_TRY(mx_pool_alloc(bytes, (void **)&w));
    for (int64_t i = 0; i < taps; i++)
        w[i] = 1.0f / (float)taps;
    mx_status status = mx_conv_thin_pass(&p, from, (mx_array){w, MX_F32}, NULL, to);
    mx_pool_free(w, bytes);
    return status;
}

mx_status mx_avg_pool_forward(const mx_conv *c, mx_array x, mx_array y) { return with_equal_weights(c, false, x, y); }

/* dx[i step + r] = phases[r phase + i], as far as dx has n elements. */
static void merge(int64_t n, int64_t step, const float *phases, int64_t phase, float *dx)
{
    int64_t i = 0;
    if (step == 2)
        for (; 2 * i + 1 < n; i++) {
            dx[2 * i] = phases[i];
            dx[2 * i + 1] = phases[phase + i];
        }
    for (int64_t at = i * step; at < n; at++)
        dx[at] = phases[at % step * phase + at / step];
}

/* Row `row` of a plane of dx, with a stride: the rows of dy whose windows meet it are added up, and each sum is spread
 * over the columns of its window, sorted by their remainder by the stride. sums: scratch of a row of dy; phases: of a
 * row of dx, `phase` floats for each remainder. */
static void spread_means(const mx_conv *c, mx_array dy, int64_t plane, int64_t row, float *sums, float *phases,
                         int64_t phase, float *dx)
{
    const mx_kernels *kernels = mx_kernels_current();
    int64_t n = c->out[1], at = row + c->before[0], step = c->stride[1], low, high;
    int64_t first = at < c->kernel[0] ? 0 : (at - c->kernel[0]) / c->stride[0] + 1;
    memset(sums, 0, (size_t)n * sizeof *sums);
    memset(phases, 0, (size_t)(phase * step) * sizeof *phases);
    for (int64_t i = first; i < c->out[0] && i * c->stride[0] <= at; i++)
        kernels->rows->add(sums, MX_F32, mx_conv_part(dy, (plane * c->out[0] + i) * n).data, dy.dtype,
                           1.0f / (float)(c->kernel[0] * c->kernel[1]), n);
    for (int64_t l = 0; l < c->kernel[1]; l++) {
        mx_conv_inside(c, 1, l, &low, &high);
        int64_t to = mx_conv_at(c, 1, low, l); /* not negative if there is any */
        if (high > low)
            kernels->conv->add(high - low, sums + low, phases + to % step * phase + to / step);
    }
    merge(c->in[1], step, phases, phase, dx);
}

enum { AT_ONCE = 4096 }; /* elements of dx that are written together */

static mx_status strided_backward(const mx_conv *c, mx_array dy, mx_array dx)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    int64_t width = c->in[1], rows = mx_min(mx_max(AT_ONCE / mx_max(width, 1), 1), mx_max(c->in[0], 1));
    int64_t parts = mx_ceil_div(c->in[0], rows), planes = c->batch * c->channels_in;
    int64_t phase = mx_round_up(mx_ceil_div(width, c->stride[1]), 16);
    int64_t each = mx_round_up(rows * width + c->out[1] + phase * c->stride[1], 16);
    int64_t bytes = each * omp_get_max_threads() * (int64_t)sizeof(float);
    bool stream = mx_should_stream(planes * mx_conv_pixels(c) * (int64_t)mx_dtype_bytes(dx.dtype));
    float *all;
    MX_TRY(mx_pool_alloc(bytes, (void **)&all));
#pragma omp parallel for schedule(static)
    for (int64_t item = 0; item < planes * parts; item++) {
        float *lines = all + omp_get_thread_num() * each;
        int64_t plane = item / parts, first = item % parts * rows, last = mx_min(first + rows, c->in[0]);
        int64_t to = (plane * c->in[0] + first) * width, n = (last - first) * width;
        float *sums = lines + rows * width, *phases = sums + c->out[1];
        for (int64_t row = first; row < last; row++)
            spread_means(c, dy, plane, row, sums, phases, phase, lines + (row - first) * width);
        if (mx_is_bf16(dx.dtype))
            paths->to_bf16(lines, (mx_bf16 *)dx.data + to, n, stream);
        else
            paths->copy(lines, (float *)dx.data + to, n * (int64_t)sizeof *lines, stream);
    }
    mx_pool_free(all, bytes);
    return MX_OK;
}

mx_status mx_avg_pool_backward(const mx_conv *c, mx_array dy, mx_array dx)
{
    if (c->stride[0] > 1 || c->stride[1] > 1)
        return strided_backward(c, dy, dx);
    return with_equal_weights(c, true, dy, dx); /* one pass */
}
