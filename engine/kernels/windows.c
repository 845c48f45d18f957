#include "kernels/windows.h"

#include "kernels/context.h"
#include "kernels/inline.h"

#include <string.h>

/* Bytes of a plane that a tile reads; floats of all its copies; results of a tile in a row of a plane with several
 * rows, and bytes of them with one row. Small tiles: memory is read for the next one while this one is computed. */
enum { PLANE_BYTES = 8192, TILE_FLOATS = 8192, COLUMNS = 1024, BYTES_OF_ONE = 2048 };

mx_tiling mx_tiling_of(const mx_windows *w, int64_t planes, mx_dtype dtype)
{
    mx_tiling t = {.w = *w};
    int64_t bytes = (int64_t)mx_dtype_bytes(dtype);
    int64_t span = w->most[0] - w->least[0] + 1, wide = w->most[1] - w->least[1] + 1;
    t.columns = mx_min(w->out[1], w->out[0] == 1 ? BYTES_OF_ONE / bytes : COLUMNS);
    t.phase = mx_round_up(mx_ceil_div((t.columns - 1) * w->stride[1] + wide, w->stride[1]), 16);
    t.row = t.phase * w->stride[1];
    int64_t floats = mx_min(PLANE_BYTES / bytes, TILE_FLOATS / mx_max(planes, 1)), lines = floats / mx_max(t.row, 1);
    t.rows = mx_min(mx_max((lines - span) / w->stride[0] + 1, 1), w->out[0]);
    t.across = mx_ceil_div(w->out[1], t.columns);
    t.tiles = t.across * mx_ceil_div(w->out[0], t.rows);
    t.floats = mx_floats_apart(((t.rows - 1) * w->stride[0] + span) * t.row);
    t.outputs = mx_floats_apart(t.rows * t.columns);
    return t;
}

mx_tile mx_tile_of(const mx_tiling *t, int64_t number)
{
    int64_t i = number / t->across * t->rows, j = number % t->across * t->columns;
    return (mx_tile){i, mx_min(i + t->rows, t->w.out[0]), j, mx_min(j + t->columns, t->w.out[1])};
}

bool mx_can_fold(const mx_windows *w)
{
    int64_t wide = w->most[1] - w->least[1] + 1, step = w->stride[1];
    bool two = wide == 2 && step == 2 && w->least[1] == 0, three = wide == 3 && step <= 2 && w->least[1] == -1;
    int64_t high = w->most[0] - w->least[0] + 1;
    bool rows = (high == 1 && w->stride[0] == 1) || (high == wide && w->stride[0] == step);
    return mx_kernels_current()->windows->fold && rows && (two || three) && w->in[1] >= step * w->out[1];
}

bool mx_can_unfold(const mx_windows *w)
{
    return mx_can_fold(w) && w->in[1] == w->stride[1] * w->out[1] && w->in[1] >= MX_FOLD_COLUMNS;
}

static void set_outside(float *to, int64_t n, float outside)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = outside;
}

bool mx_fill_rows(const mx_row_copy *c, mx_array plane, int64_t height, int64_t top, int64_t end, float *copy,
                  int64_t step)
{
    int64_t first = mx_min(mx_max(top, 0), end), last = mx_max(mx_min(end, height), first);
    plane.data = (char *)plane.data + first * c->in * (int64_t)mx_dtype_bytes(plane.dtype);
    set_outside(copy, (first - top) * step, c->outside);
    bool finite = mx_kernels_current()->windows->fill(c, last - first, plane, c->in, copy + (first - top) * step, step);
    set_outside(copy + (last - top) * step, (end - last) * step, c->outside);
    return finite;
}

bool mx_tile_fill(const mx_tiling *t, const mx_tile *tile, mx_array x, int64_t plane, float outside, bool check,
                  float *copy)
{
    const mx_windows *w = &t->w;
    int64_t top = tile->i0 * w->stride[0] + w->least[0], end = (tile->i1 - 1) * w->stride[0] + w->most[0] + 1;
    int64_t left = tile->j0 * w->stride[1] + w->least[1], right = (tile->j1 - 1) * w->stride[1] + w->most[1];
    const mx_row_copy row = {right - left + 1, left, w->in[1], w->stride[1], t->phase, outside, check};
    x.data = (char *)x.data + plane * (int64_t)mx_dtype_bytes(x.dtype);
    return mx_fill_rows(&row, x, w->in[0], top, end, copy, t->row);
}

int64_t mx_tile_at(const mx_tiling *t, int64_t d, int64_t e)
{
    int64_t column = e - t->w.least[1], stride = t->w.stride[1];
    return (d - t->w.least[0]) * t->row + column % stride * t->phase + column / stride;
}
