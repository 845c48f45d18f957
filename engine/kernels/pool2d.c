#include "kernels/pool2d.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/conv_internal.h"

#include <immintrin.h>
#include <math.h>
#include <omp.h>

/* ---- maxima ---- */

typedef struct maxima {
    const mx_conv *c;
    mx_tiling t;
    mx_array x, y;
    int32_t *at; /* NULL: not wanted */
    int64_t taps;
    int64_t *where; /* (taps): where a tile has them */
    int32_t *place; /* (taps): the element of the plane that the first window meets; may be outside */
    bool folds, stream;
    mx_fold fold; /* if `folds` */
} maxima;

/* f32 results of rows that are neighbours in y, and their places. */
static void put_maxima(const maxima *m, int64_t first, int64_t n, const float *y, const int32_t *place)
{
    const mx_window_paths *paths = mx_kernels_current()->windows;
    paths->put(y, n, m->y, first, m->stream);
    if (m->at)
        paths->put((const float *)place, n, (mx_array){m->at, MX_F32}, first, m->stream);
}

/* The place of the maximum of output (i, j) in the plane x. */
static int64_t greatest(const mx_conv *c, mx_array x, int64_t i, int64_t j)
{
    int64_t found = -1;
    float best = 0;
    for (int64_t tap = 0; tap < c->kernel[0] * c->kernel[1]; tap++) {
        int64_t d = mx_conv_at(c, 0, i, tap / c->kernel[1]), e = mx_conv_at(c, 1, j, tap % c->kernel[1]);
        if (d < 0 || d >= c->in[0] || e < 0 || e >= c->in[1])
            continue;
        float v = mx_get_float(x.data, d * c->in[1] + e, x.dtype);
        if (found < 0 || v > best || (isnan(v) && !isnan(best))) {
            found = d * c->in[1] + e;
            best = v;
        }
    }
    return found;
}

/* The maxima of a tile one by one, whatever their values. */
static void find_each(const maxima *m, const mx_tile *tile, mx_array x, float *y, int32_t *place)
{
    int64_t n = tile->j1 - tile->j0;
    for (int64_t o = 0; o < (tile->i1 - tile->i0) * n; o++) {
        int64_t at = greatest(m->c, x, tile->i0 + o / n, tile->j0 + o % n);
        y[o] = mx_get_float(x.data, at, x.dtype);
        if (place)
            place[o] = (int32_t)at;
    }
}

/* scratch: the tile's copy, outputs, places. */
static void max_tile(const maxima *m, int64_t item, float *scratch)
{
    const mx_tiling *t = &m->t;
    const mx_conv *c = m->c;
    const mx_window_paths *paths = mx_kernels_current()->windows;
    const mx_tile tile = mx_tile_of(t, item % t->tiles);
    int64_t plane = item / t->tiles, n = tile.j1 - tile.j0, rows = tile.i1 - tile.i0, out = c->out[1];
    float *y = scratch + t->floats;
    int32_t *place = m->at ? (int32_t *)(y + t->outputs) : NULL;
    const mx_array x = mx_conv_part(m->x, plane * mx_conv_pixels(c));
    int64_t row_step = c->stride[0] * c->in[1], first = tile.i0 * row_step + tile.j0 * c->stride[1];
    int64_t results = plane * mx_conv_positions(c);
    if (m->folds && n >= MX_FOLD_COLUMNS &&
        paths->fold(&m->fold, &tile, x, mx_conv_part(m->y, results), m->at ? m->at + results : NULL))
        return;
    if (paths->maxima && mx_tile_fill(t, &tile, m->x, plane * mx_conv_pixels(c), -INFINITY, true, scratch))
        paths->maxima(rows, n, scratch, t->w.stride[0] * t->row, m->taps, m->where, m->place, (int32_t)first,
                      (int32_t)row_step, (int32_t)c->stride[1], y, place);
    else
        find_each(m, &tile, x, y, place);
    int64_t to = results + tile.i0 * out + tile.j0;
    if (n == out)
        put_maxima(m, to, rows * n, y, place);
    else
        for (int64_t i = 0; i < rows; i++)
            put_maxima(m, to + i * out, n, y + i * n, place ? place + i * n : NULL);
}

mx_status mx_max_pool_forward(const mx_conv *c, mx_array x, mx_array y, int32_t *at)
{
    mx_windows windows = mx_conv_windows(c);
    maxima m = {
        .c = c, .t = mx_tiling_of(&windows, 1, x.dtype), .x = x, .y = y, .at = at, .taps = c->kernel[0] * c->kernel[1]};
    int64_t planes = c->batch * c->channels_in, taps_bytes = mx_round_up(m.taps * 12, 64);
    int64_t each = mx_round_up(m.t.floats + 2 * m.t.outputs, 16), threads = omp_get_max_threads();
    int64_t bytes = taps_bytes + threads * each * (int64_t)sizeof(float);
    char *memory;
    MX_TRY(mx_pool_alloc(bytes, (void **)&memory));
    m.where = (int64_t *)memory;
    m.place = (int32_t *)(m.where + m.taps);
    m.stream = mx_should_stream(planes * mx_conv_positions(c) * (int64_t)mx_dtype_bytes(y.dtype));
    m.folds = mx_can_fold(&windows) && c->dilation[0] * c->dilation[1] == 1 && x.dtype == y.dtype;
    m.fold = (mx_fold){windows, 0, m.stream && mx_lines_begin(&windows, y, at)};
    for (int64_t tap = 0; tap < m.taps; tap++) {
        int64_t d = mx_conv_at(c, 0, 0, tap / c->kernel[1]), e = mx_conv_at(c, 1, 0, tap % c->kernel[1]);
        m.where[tap] = mx_tile_at(&m.t, d, e);
        m.place[tap] = (int32_t)(d * c->in[1] + e);
    }
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t item = 0; item < planes * m.t.tiles; item++)
            max_tile(&m, item, (float *)(memory + taps_bytes) + omp_get_thread_num() * each);
        _mm_sfence(); /* of what was streamed */
    }
    mx_pool_free(memory, bytes);
    return MX_OK;
}

/* ---- means ---- */

/* Straight from planes to planes, in parts of whole rows, or of rows that are long. */
static void fold_means(const mx_conv *c, const mx_windows *w, mx_array x, mx_array y)
{
    enum { RESULTS = 2048, LONG = 4096 };
    int64_t planes = c->batch * c->channels_in, out = c->out[1], across = mx_max(out / LONG, 1);
    int64_t rows = mx_min(mx_max(RESULTS / out, 1), c->out[0]), parts = mx_ceil_div(c->out[0], rows) * across;
    bool stream = mx_should_stream(planes * mx_conv_positions(c) * (int64_t)mx_dtype_bytes(y.dtype));
    const mx_fold f = {*w, 1.0f / (float)(c->kernel[0] * c->kernel[1]), stream && mx_lines_begin(w, y, NULL)};
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t item = 0; item < planes * parts; item++) {
            int64_t plane = item / parts, i = item % parts / across * rows, j = item % across * LONG;
            const mx_tile tile = {i, mx_min(i + rows, c->out[0]), j, item % across == across - 1 ? out : j + LONG};
            (void)mx_kernels_current()->windows->fold(&f, &tile, mx_conv_part(x, plane * mx_conv_pixels(c)),
                                                      mx_conv_part(y, plane * mx_conv_positions(c)), NULL);
        }
        _mm_sfence(); /* of what was streamed */
    }
}

/* Others are convolutions of each plane with equal weights. */
mx_status mx_avg_pool_forward(const mx_conv *c, mx_array x, mx_array y)
{
    mx_windows windows = mx_conv_windows(c);
    if (mx_can_fold(&windows) && c->dilation[0] * c->dilation[1] == 1 && x.dtype == y.dtype &&
        c->out[1] >= MX_FOLD_COLUMNS) {
        fold_means(c, &windows, x, y);
        return MX_OK;
    }
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

enum { AT_ONCE = 4096 }; /* about so many bytes of dx are computed together */

typedef struct gradient {
    mx_spreading s;
    mx_array dy, dx;
    const int32_t *at;     /* places; NULL: of means */
    int64_t rows, columns; /* of dx in a part of a plane; columns of one remainder */
    int64_t scratch;       /* floats before a part's results */
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
        for (int64_t t = 0; t < s->taps[r]; t++) {
            s->least = mx_min(s->least, s->shift[r * s->span + t]);
            s->most = mx_max(s->most, s->shift[r * s->span + t]);
        }
    }
}

/* scratch: what a part takes, and its rows with room for 2 vectors behind. */
static bool spread_part(const gradient *g, int64_t item, float *scratch)
{
    const mx_window_paths *paths = mx_kernels_current()->windows;
    const mx_spreading *s = &g->s;
    int64_t width = s->in[1], q = mx_ceil_div(width, s->stride[1]);
    int64_t across = mx_ceil_div(q, g->columns), parts = across * mx_ceil_div(s->in[0], g->rows);
    int64_t row = item % parts / across * g->rows, column = item % across * g->columns, plane = item / parts;
    const mx_spread_part part = {{row, mx_min(row + g->rows, s->in[0])}, {column, mx_min(column + g->columns, q)}};
    int64_t from = plane * pixels_of(s->out), first = column * s->stride[1];
    int64_t n = mx_min(part.columns[1] * s->stride[1], width) - first, rows = part.rows[1] - row;
    float *lines = scratch + g->scratch;
    bool inside = paths->spread(s, &part, mx_conv_part(g->dy, from), g->at ? g->at + from : NULL, lines, scratch);
    int64_t to = plane * pixels_of(s->in) + row * width + first;
    if (n == width)
        paths->put(lines, rows * n, g->dx, to, g->stream);
    else
        for (int64_t i = 0; i < rows; i++)
            paths->put(lines + i * n, n, g->dx, to + i * width, g->stream);
    return inside;
}

/* Parts, and the scratch for each; returns floats for a thread. */
static int64_t set_parts(gradient *g)
{
    mx_spreading *s = &g->s;
    int64_t q = mx_max(mx_ceil_div(s->in[1], s->stride[1]), 1), most = AT_ONCE / (int64_t)mx_dtype_bytes(g->dx.dtype);
    g->columns = mx_min(q, mx_max(most / s->stride[1], 1));
    g->rows = mx_min(mx_max(most / (g->columns * s->stride[1]), 1), mx_max(s->in[0], 1));
    int64_t met = (g->rows + s->size - 2) / s->stride[0] + 2;
    s->copy = mx_round_up(met * mx_spreading_row(s, g->columns), 1024);
    g->scratch = mx_floats_apart((g->at ? 2 : 1) * s->copy + s->stride[1] * (g->columns + 16));
    return g->scratch + mx_floats_apart(g->rows * g->columns * s->stride[1]) + 64;
}

/* Whether all places are inside of their planes. */
static bool spread_all(const gradient *g, int64_t items, int64_t each, float *scratch)
{
    int outside = 0;
#pragma omp parallel reduction(+ : outside)
    {
#pragma omp for schedule(static)
        for (int64_t item = 0; item < items; item++)
            outside += !spread_part(g, item, scratch + omp_get_thread_num() * each);
        _mm_sfence(); /* of what was streamed */
    }
    return outside == 0;
}

/* Straight from planes to planes, in parts of whole rows, or of rows that are long. */
static bool unfold_all(const mx_conv *c, const mx_windows *w, mx_array dy, const int32_t *at, mx_array dx)
{
    enum { LONG = 4096, BYTES = 4096 };
    const int64_t planes = c->batch * c->channels_in, width = c->in[1], across = mx_max(width / LONG, 1);
    const int64_t row_bytes = width * (int64_t)mx_dtype_bytes(dx.dtype);
    const int64_t rows = mx_min(mx_max(BYTES / (at ? width * 4 : row_bytes), 8), c->in[0]),
                  parts = mx_ceil_div(c->in[0], rows) * across;
    const bool stream = mx_should_stream(planes * c->in[0] * row_bytes);
    const mx_fold f = {*w, 1.0f / (float)(c->kernel[0] * c->kernel[1]),
                       stream && ((uintptr_t)dx.data | (uintptr_t)row_bytes) % 64 == 0};
    int outside = 0;
#pragma omp parallel reduction(+ : outside)
    {
#pragma omp for schedule(static)
        for (int64_t item = 0; item < planes * parts; item++) {
            int64_t plane = item / parts, i = item % parts / across * rows, j = item % across * LONG;
            const mx_tile tile = {i, mx_min(i + rows, c->in[0]), j, item % across == across - 1 ? width : j + LONG};
            int64_t from = plane * mx_conv_positions(c);
            outside += !mx_kernels_current()->windows->unfold(&f, &tile, mx_conv_part(dy, from), at ? at + from : NULL,
                                                              mx_conv_part(dx, plane * mx_conv_pixels(c)));
        }
        _mm_sfence(); /* of what was streamed */
    }
    return outside == 0;
}

static mx_status run_gradient(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx, bool *inside)
{
    mx_windows windows = mx_conv_windows(c);
    if (mx_can_unfold(&windows) && c->dilation[0] * c->dilation[1] == 1 && dy.dtype == dx.dtype) {
        *inside = unfold_all(c, &windows, dy, at, dx);
        return MX_OK;
    }
    gradient g = {.dy = dy, .dx = dx, .at = at};
    int64_t planes = c->batch * c->channels_in;
    g.s = (mx_spreading){.in = {c->in[0], c->in[1]},
                         .out = {c->out[0], c->out[1]},
                         .stride = {c->stride[0], c->stride[1]},
                         .before = c->before[0],
                         .size = c->kernel[0],
                         .span = c->kernel[1],
                         .scale = at ? 1 : 1.0f / (float)(c->kernel[0] * c->kernel[1])};
    g.stream = mx_should_stream(planes * mx_conv_pixels(c) * (int64_t)mx_dtype_bytes(dx.dtype));
    int64_t shift_bytes = c->stride[1] * (1 + c->kernel[1]) * (int64_t)sizeof *g.s.shift;
    MX_TRY(mx_pool_alloc(shift_bytes, (void **)&g.s.taps));
    g.s.shift = g.s.taps + c->stride[1];
    set_shifts(c, &g.s);
    int64_t each = set_parts(&g), q = mx_ceil_div(c->in[1], c->stride[1]);
    int64_t items = planes * mx_ceil_div(q, g.columns) * mx_ceil_div(c->in[0], g.rows);
    int64_t bytes = each * omp_get_max_threads() * (int64_t)sizeof(float);
    float *scratch;
    mx_status status = mx_pool_alloc(bytes, (void **)&scratch);
    if (status == MX_OK) {
        *inside = spread_all(&g, items, each, scratch);
        mx_pool_free(scratch, bytes);
    }
    mx_pool_free(g.s.taps, shift_bytes);
    return status;
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
