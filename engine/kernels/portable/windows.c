#include "kernels/windows.h"

#include "kernels/context.h"

#include <string.h>

static void weigh(int64_t n, const float *x, int64_t taps, const int64_t *at, const float *weight, float start,
                  float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = start;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t i = 0; i < n; i++)
            y[i] += weight[t] * x[at[t] + i];
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

static void maxima(int64_t n, const int32_t *x, int64_t taps, const int64_t *at, const int32_t *place_of, int32_t first,
                   int32_t step, float *y, int32_t *place)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t best = INT32_MIN;
        int64_t tap = 0;
        for (int64_t t = 0; t < taps; t++)
            if (x[at[t] + i] > best) {
                best = x[at[t] + i];
                tap = t;
            }
        const int32_t bits = flip(best);
        memcpy(&y[i], &bits, sizeof bits);
        if (place)
            place[i] = first + place_of[tap] + (int32_t)i * step;
    }
}

static void to_keys(int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = x[i] != x[i] ? INT32_MAX : x[i] == 0 ? 0 : flip(bits);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static void split(int64_t n, int64_t step, const float *x, float *y, int64_t phase)
{
    for (int64_t i = 0; i < n; i++)
        y[i % step * phase + i / step] = x[i];
}

const mx_window_paths mx_windows_portable = {weigh, dots, maxima, to_keys, split};
