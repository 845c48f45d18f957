#include "kernels/windows.h"

#include "core/element.h"
#include "kernels/context.h"

#include <string.h>

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

static int32_t flip(int32_t bits) { return bits < 0 ? bits ^ INT32_MAX : bits; }

static void maxima(int64_t rows, int64_t n, const int32_t *x, int64_t x_step, int64_t taps, const int64_t *at,
                   const int32_t *place_of, int32_t first, int32_t row_step, int32_t step, float *y, int32_t *place)
{
    for (int64_t k = 0; k < rows * n; k++) {
        int64_t r = k / n, i = k % n, tap = 0;
        int32_t best = INT32_MIN;
        for (int64_t t = 0; t < taps; t++)
            if (x[r * x_step + at[t] + i] > best) {
                best = x[r * x_step + at[t] + i];
                tap = t;
            }
        const int32_t bits = flip(best);
        memcpy(&y[k], &bits, sizeof bits);
        if (place)
            place[k] = first + (int32_t)r * row_step + place_of[tap] + (int32_t)i * step;
    }
}

static int32_t key_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? INT32_MAX : x == 0 ? 0 : flip(bits);
}

static void fill(int64_t n, int64_t first, int64_t in, const void *x, bool bf16, bool keys, int64_t step, float *y,
                 int64_t phase)
{
    for (int64_t i = 0; i < n; i++) {
        bool inside = first + i >= 0 && first + i < in;
        float value = inside ? mx_get_float(x, first + i, bf16 ? MX_BF16 : MX_F32) : 0;
        const int32_t key = inside ? key_of(value) : INT32_MIN;
        memcpy(&y[i % step * phase + i / step], keys ? (const void *)&key : (const void *)&value, sizeof key);
    }
}

/* Element (y, x) of the gradient. */
static float spread_to(const mx_spreading *s, int64_t y, int64_t x, mx_array dy, const int32_t *places)
{
    int64_t r = x % s->stride[1], n = s->out[1];
    float sum = 0;
    for (int64_t i = mx_spreading_low(s, y); i < mx_spreading_high(s, y); i++)
        for (int64_t t = 0; t < s->taps[r]; t++) {
            int64_t j = x / s->stride[1] + s->shift[r * s->span + t];
            if (j >= 0 && j < n && (!places || places[i * n + j] == y * s->in[1] + x))
                sum += mx_get_float(dy.data, i * n + j, dy.dtype);
        }
    return sum * s->scale;
}

static void spread(const mx_spreading *s, int64_t first, int64_t last, mx_array dy, const int32_t *places, float *y,
                   float *phases)
{
    (void)phases;
    for (int64_t row = first; row < last; row++)
        for (int64_t x = 0; x < s->in[1]; x++)
            *y++ = spread_to(s, row, x, dy, places);
}

const mx_window_paths mx_windows_portable = {weigh, dots, maxima, fill, spread};
