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

/* ---- means: convolutions of each plane with equal weights ---- */

mx_status mx_avg_pool_forward(const mx_conv *c, mx_array x, mx_array y)
{
    int64_t taps = c->kernel[0] * c->kernel[1], bytes = taps * (int64_t)sizeof(float);
    mx_conv plane = *c;
    float *w;
    plane.batch = c->batch * c->channels_in;
    plane.channels_in = plane.channels_out = plane.groups = 1;
    mx_conv_pass p = mx_conv_pass_forward(&plane);
    MX_TRY(mx_pool_alloc(bytes, (void **)&w));
    for (int64_t i = 0; i < taps; i++)
        w[i] = 1.0f / (float)taps;
    mx_status status = mx_conv_thin_pass(&p, x, (mx_array){w, MX_F32}, NULL, y);
    mx_pool_free(w, bytes);
    return status;
}

/* ---- gradients ---- */

enum { AT_ONCE = 4096 }; /* elements of dx that are written together */

typedef struct gradient {
    mx_spreading s;
    mx_array dy, dx;
    const int32_t *at; /* places; NULL: of means */
    int64_t rows;      /* of dx in a part of a plane */
    bool stream;
} gradient;

static int64_t pixels_of(const int64_t size[2]) { return size[0] * size[1]; }

static void set_shifts(const mx_conv *c, mx_spreading *s)
{
    for (int64_t r = 0; r < c->stride[1]; r++) {
        s->taps[r] = 0;
        for (int64_t l = 0; l < c->kernel[1]; l++)
            if ((r + c->before[1] - l) % c->stride[1] == 0)
                s->shift[r * s->span + s->taps[r]++] = (r + c->before[1] - l) / c->stride[1];
    }
}

/* Whether all places that a part reads are in its plane. */
static bool are_inside(const gradient *g, int64_t plane, int64_t first, int64_t last)
{
    const mx_spreading *s = &g->s;
    int64_t low = mx_spreading_low(s, first), n = (mx_spreading_high(s, last - 1) - low) * s->out[1];
    uint32_t pixels = (uint32_t)pixels_of(s->in), outside = 0;
    const int32_t *at = g->at + plane * pixels_of(s->out) + low * s->out[1];
    for (int64_t i = 0; i < n; i++)
        outside |= (uint32_t)at[i] >= pixels;
    return !outside;
}

/* lines: scratch for the part's rows with room for 2 vectors behind, and for phases. */
static bool spread_part(const gradient *g, int64_t plane, int64_t first, float *lines)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    const mx_spreading *s = &g->s;
    int64_t width = s->in[1], last = mx_min(first + g->rows, s->in[0]), n = (last - first) * width;
    int64_t to = plane * pixels_of(s->in) + first * width, from = plane * pixels_of(s->out);
    mx_kernels_current()->windows->spread(s, first, last, mx_conv_part(g->dy, from), g->at ? g->at + from : NULL, lines,
                                          lines + g->rows * width + 32);
    if (mx_is_bf16(g->dx.dtype))
        paths->to_bf16(lines, (mx_bf16 *)g->dx.data + to, n, g->stream);
    else
        paths->copy(lines, (float *)g->dx.data + to, n * (int64_t)sizeof *lines, g->stream);
    return !g->at || are_inside(g, plane, first, last);
}

static mx_status run_gradient(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx, bool *inside)
{
    gradient g = {.dy = dy, .dx = dx, .at = at};
    int64_t width = c->in[1], planes = c->batch * c->channels_in;
    g.s = (mx_spreading){.in = {c->in[0], c->in[1]},
                         .out = {c->out[0], c->out[1]},
                         .stride = {c->stride[0], c->stride[1]},
                         .before = c->before[0],
                         .size = c->kernel[0],
                         .span = c->kernel[1],
                         .phase = mx_round_up(mx_ceil_div(width, c->stride[1]), 16),
                         .scale = at ? 1 : 1.0f / (float)(c->kernel[0] * c->kernel[1])};
    g.rows = mx_min(mx_max(AT_ONCE / mx_max(width, 1), 1), mx_max(c->in[0], 1));
    g.stream = mx_should_stream(planes * mx_conv_pixels(c) * (int64_t)mx_dtype_bytes(dx.dtype));
    int64_t parts = mx_ceil_div(c->in[0], g.rows);
    int64_t each = mx_round_up(g.rows * width + 32 + g.s.phase * c->stride[1], 16);
    int64_t shift_bytes = mx_round_up(c->stride[1] * (1 + c->kernel[1]) * (int64_t)sizeof *g.s.shift, 64);
    int64_t bytes = shift_bytes + each * omp_get_max_threads() * (int64_t)sizeof(float);
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    g.s.taps = (int64_t *)memory;
    g.s.shift = g.s.taps + c->stride[1];
    set_shifts(c, &g.s);
    int outside = 0;
#pragma omp parallel for schedule(static) reduction(+ : outside)
    for (int64_t item = 0; item < planes * parts; item++)
        outside += !spread_part(&g, item / parts, item % parts * g.rows,
                                (float *)(memory + shift_bytes) + omp_get_thread_num() * each);
    mx_pool_free(memory, bytes);
    *inside = outside == 0;
    return MX_OK;
}

mx_status mx_max_pool_backward(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx, bool *inside)
{
    return run_gradient(c, dy, at, dx, inside);
}

mx_status mx_avg_pool_backward(const mx_conv *c, mx_array dy, mx_array dx)
{
    bool inside;
    return run_gradient(c, dy, NULL, dx, &inside);
}
