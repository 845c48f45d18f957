#include "kernels/windows.h"

#include "kernels/context.h"

#include <string.h>

/* Floats of all copies of a tile, which stay in the first-level cache; columns of a tile, of planes of several rows and
 * of one. */
enum { TILE_FLOATS = 8192, COLUMNS = 1024, COLUMNS_OF_ONE = 4096, SLACK = 64 };

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

/* Starts reading what the next line or tile is copied from, so that it overlaps with the arithmetic on this one. Behind
 * the end of the memory it does nothing. */
static void ask_for(const char *p, int64_t bytes)
{
    for (int64_t b = 0; b < bytes; b += 64)
        __builtin_prefetch(p + b, 0, 2);
}

/* Elements `first` to before `first + n` of a row that has in[1] of them, from element `row` of x on. */
static void fill_line(const mx_tiling *t, mx_array x, int64_t row, int64_t first, int64_t n, bool keys, float *to)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    int64_t low = mx_min(mx_max(-first, 0), n), high = mx_max(mx_min(t->w.in[1] - first, n), low);
    set_outside(to, low, keys);
    if (mx_is_bf16(x.dtype))
        paths->to_f32((const mx_bf16 *)x.data + row + first + low, to + low, high - low, false);
    else
        memcpy(to + low, (const float *)x.data + row + first + low, (size_t)(high - low) * sizeof *to);
    ask_for((const char *)x.data + (row + first + n) * (int64_t)mx_dtype_bytes(x.dtype),
            n * (int64_t)mx_dtype_bytes(x.dtype));
    if (keys)
        mx_kernels_current()->windows->to_keys(high - low, to + low);
    set_outside(to + high, n - high, keys);
}

void mx_tile_fill(const mx_tiling *t, const mx_tile *tile, mx_array x, int64_t plane, bool keys, float *copy,
                  float *line)
{
    const mx_windows *w = &t->w;
    int64_t top = tile->i0 * w->stride[0] + w->least[0], bottom = (tile->i1 - 1) * w->stride[0] + w->most[0];
    int64_t left = tile->j0 * w->stride[1] + w->least[1], right = (tile->j1 - 1) * w->stride[1] + w->most[1];
    for (int64_t y = top; y <= bottom; y++, copy += t->row) {
        if (y < 0 || y >= w->in[0]) {
            set_outside(copy, t->row, keys);
            continue;
        }
        float *to = w->stride[1] == 1 ? copy : line;
        fill_line(t, x, plane + y * w->in[1], left, right - left + 1, keys, to);
        if (to == line)
            mx_kernels_current()->windows->split(right - left + 1, w->stride[1], line, copy, t->phase);
    }
}

int64_t mx_tile_at(const mx_tiling *t, int64_t d, int64_t e)
{
    int64_t column = e - t->w.least[1], stride = t->w.stride[1];
    return (d - t->w.least[0]) * t->row + column % stride * t->phase + column / stride;
}
