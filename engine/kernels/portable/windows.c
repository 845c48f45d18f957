#include "kernels/windows.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <math.h>

static void weigh(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                  const float *weight, float start, float *y)
{
    for (int64_t r = 0; r < rows; r++, x += x_step, y += n) {
        for (int64_t i = 0; i < n; i++)
            y[i] = start;
        for (int64_t t = 0; t < taps; t++)
            for (int64_t i = 0; i < n; i++)
                y[i] += weight[t] * x[at[t] + i];
    }
}

static void dots(int64_t rows, int64_t n, const float *g, int64_t g_step, const float *x, int64_t x_step, int64_t taps,
                 const int64_t *at, double *sums)
{
    for (int64_t t = 0; t < taps; t++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < n; i++)
                sums[t] += (double)g[r * g_step + i] * x[r * x_step + at[t] + i];
}

static bool fill(const mx_row_copy *c, int64_t rows, mx_array x, int64_t x_step, float *y, int64_t y_step)
{
    bool finite = true;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < c->n; i++) {
            bool inside = c->first + i >= 0 && c->first + i < c->in;
            float value = inside ? mx_get_float(x.data, r * x_step + c->first + i, x.dtype) : c->outside;
            finite &= !inside || isfinite(value);
            y[r * y_step + i % c->step * c->phase + i / c->step] = value;
        }
    return finite;
}

static void put(const float *x, int64_t n, mx_array y, int64_t first, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(y.data, first + i, x[i], y.dtype);
}

/* Element (y, x) of the gradient. */
static float spread_to(const mx_spreading *s, int64_t y, int64_t x, mx_array dy, const int32_t *places)
{
    int64_t r = x % s->stride[1], n = s->out[1];
    float sum = 0;
    for (int64_t i = mx_spreading_low(s, y); i < mx_spreading_high(s, y); i++) {
        float of_row = 0;
        for (int64_t t = 0; t < s->taps[r]; t++) {
            int64_t j = x / s->stride[1] + s->shift[r * s->span + t];
            if (j >= 0 && j < n && (!places || places[i * n + j] == y * s->in[1] + x))
                of_row += mx_get_float(dy.data, i * n + j, dy.dtype);
        }
        sum += of_row;
    }
    return sum * s->scale;
}

static bool spread(const mx_spreading *s, const mx_spread_part *part, mx_array dy, const int32_t *places, float *y,
                   float *scratch)
{
    const int64_t *rows = part->rows, first = part->columns[0] * s->stride[1];
    const int64_t last = mx_min(part->columns[1] * s->stride[1], s->in[1]);
    bool inside = true;
    (void)scratch;
    for (int64_t row = rows[0]; row < rows[1]; row++)
        for (int64_t x = first; x < last; x++)
            *y++ = spread_to(s, row, x, dy, places);
    for (int64_t i = mx_spreading_low(s, rows[0]); places && i < mx_spreading_high(s, rows[1] - 1); i++)
        for (int64_t j = 0; j < s->out[1]; j++)
            inside &= places[i * s->out[1] + j] >= 0 && places[i * s->out[1] + j] < s->in[0] * s->in[1];
    return inside;
}

const mx_window_paths mx_windows_portable = {weigh, NULL, NULL, dots, NULL, NULL, fill, put, spread, NULL};
