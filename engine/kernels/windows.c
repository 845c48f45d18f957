#include "kernels/windows.h"

#include "kernels/context.h"
#include "kernels/inline.h"

#include <string.h>

/* Floats of all copies of a tile, which stay in the first-level cache; columns of a tile, of planes of several rows and
 * of one. */
enum { TILE_FLOATS = 8192, COLUMNS = 1024, COLUMNS_OF_ONE = 4096, SLACK = 64, AHEAD = 4096 };

mx_tiling mx_tiling_of(const mx_windows *w, int64_t planes)
{
    mx_tiling t = {.w = *w};
    int64_t span = w->most[0] - w->least[0] + 1, wide = w->most[1] - w->least[1] + 1;
    t.columns = mx_min(w->out[1], w->out[0] == 1 ? COLUMNS_OF_ONE : COLUMNS);
    t.phase = mx_round_up(mx_ceil_div((t.columns - 1) * w->stride[1] + wide, w->stride[1]), 16);
    t.row = t.phase * w->stride[1];
    int64_t lines = TILE_FLOATS / mx_max(planes * t.row, 1);
    t.rows = mx_min(mx_max((lines - span) / w->stride[0] + 1, 1), w->out[0]);
    t.across = mx_ceil_div(w->out[1], t.columns);
    t.tiles = t.across * mx_ceil_div(w->out[0], t.rows);
    t.floats = ((t.rows - 1) * w->stride[0] + span) * t.row + SLACK;
    t.outputs = t.rows * t.columns + SLACK;
    return t;
}

mx_tile mx_tile_of(const mx_tiling *t, int64_t number)
{
    int64_t i = number / t->across * t->rows, j = number % t->across * t->columns;
    return (mx_tile){i, mx_min(i + t->rows, t->w.out[0]), j, mx_min(j + t->columns, t->w.out[1])};
}

static void set_outside(float *to, int64_t n, bool keys)
{
    const uint32_t bits = keys ? (uint32_t)INT32_MIN : 0;
    for (int64_t i = 0; i < n; i++)
        memcpy(&to[i], &bits, sizeof bits);
}

/* Starts reading what a later line or tile is copied from, so that it overlaps with the arithmetic on this one: the
 * next line, but at least AHEAD bytes away, as memory takes the time of some short lines. Behind the end of the memory
 * it does nothing. */
static void ask_for(const char *line, int64_t bytes)
{
    const char *p = line + mx_max(bytes, AHEAD);
    for (int64_t b = 0; b < bytes; b += 64)
        __builtin_prefetch(p + b, 0, 2);
}

void mx_tile_fill(const mx_tiling *t, const mx_tile *tile, mx_array x, int64_t plane, bool keys, float *copy)
{
    const mx_window_paths *paths = mx_kernels_current()->windows;
    const mx_windows *w = &t->w;
    int64_t bytes = (int64_t)mx_dtype_bytes(x.dtype);
    int64_t top = tile->i0 * w->stride[0] + w->least[0], bottom = (tile->i1 - 1) * w->stride[0] + w->most[0];
    int64_t left = tile->j0 * w->stride[1] + w->least[1], right = (tile->j1 - 1) * w->stride[1] + w->most[1];
    for (int64_t y = top; y <= bottom; y++, copy += t->row) {
        if (y < 0 || y >= w->in[0]) {
            set_outside(copy, t->row, keys);
            continue;
        }
        const char *row = (const char *)x.data + (plane + y * w->in[1]) * bytes;
        paths->fill(right - left + 1, left, w->in[1], row, mx_is_bf16(x.dtype), keys, w->stride[1], copy, t->phase);
        ask_for(row + left * bytes, (right - left + 1) * bytes);
    }
}

int64_t mx_tile_at(const mx_tiling *t, int64_t d, int64_t e)
{
    int64_t column = e - t->w.least[1], stride = t->w.stride[1];
    return (d - t->w.least[0]) * t->row + column % stride * t->phase + column / stride;
}
