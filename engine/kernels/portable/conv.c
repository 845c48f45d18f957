#include "kernels/conv.h"
#include "kernels/conv_rows.h"
#include "kernels/elementwise.h"

#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void gather(const float *x, int64_t n, const int64_t *at, const mx_conv_run *runs, int64_t n_runs, bool pairs,
                   int64_t width, uint32_t *out)
{
    int64_t step = pairs ? 2 : 1;
    for (int64_t e = 0; e < n; e += step, out += width)
        for (const mx_conv_run *r = runs; r < runs + n_runs; r++)
            for (int64_t i = 0; i < r->n; i++) {
                uint32_t word = bits_of(x[at[e] + r->from + i]);
                if (pairs)
                    word = word >> 16 | (e + 1 < n ? bits_of(x[at[e + 1] + r->from + i]) : 0);
                out[r->to + i] = word;
            }
}

static void take(mx_array x, int64_t n, int64_t step, const mx_conv_run *runs, int64_t n_runs, bool pairs,
                 int64_t width, uint32_t *out)
{
    int64_t group = pairs ? 2 : 1;
    for (int64_t e = 0; e < n; e += group, out += width)
        for (const mx_conv_run *r = runs; r < runs + n_runs; r++)
            for (int64_t i = 0; i < r->n; i++) {
                int64_t at = e * step + r->from + i;
                uint32_t word = bits_of(mx_get_float(x.data, at, x.dtype));
                if (pairs)
                    word = word >> 16 | (e + 1 < n ? bits_of(mx_get_float(x.data, at + step, x.dtype)) : 0);
                out[r->to + i] = word;
            }
}

static void put(int64_t m, int64_t n, const float *tile, int64_t width, const float *bias, mx_array y, int64_t step,
                bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            mx_set_float(y.data, i * step + j, tile[i * width + j] + (bias ? bias[i] : 0), y.dtype);
}

static void add(int64_t m, int64_t rows, const float *tile, int64_t width, const int64_t *at, const mx_conv_term *terms,
                int64_t n_terms, const mx_conv_run *run, float *y)
{
    for (int64_t i = 0; i < m; i++)
        for (const mx_conv_term *t = terms; t < terms + n_terms; t++)
            for (int64_t l = 0; l < run->n; l++)
                y[at[i] + run->from + t->shift + l] += tile[(i * rows + t->row) * width + run->to + l];
}

static void weave(int64_t n, const float *x, int64_t phase, int64_t step, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i % step * phase + i / step];
}

static void join(int64_t n, float *x, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = bits_of(x[i]) >> 16 | bits_of(x[i + step]);
        memcpy(x + i, &word, sizeof word);
    }
}

static void pick(int64_t rows, int64_t n, int64_t step, mx_array x, int64_t x_step, void *y)
{
    mx_bf16 *halves = y;
    float *floats = y;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            if (mx_is_bf16(x.dtype))
                *halves++ = ((const mx_bf16 *)x.data)[r * x_step + i * step];
            else
                *floats++ = ((const float *)x.data)[r * x_step + i * step];
}

static void spread(int64_t rows, int64_t n, int64_t step, mx_array x, void *y, int64_t y_step)
{
    const mx_bf16 *halves = x.data;
    const float *floats = x.data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            if (mx_is_bf16(x.dtype))
                ((mx_bf16 *)y)[r * y_step + i * step] = *halves++;
            else
                ((float *)y)[r * y_step + i * step] = *floats++;
}

static void turn(int64_t planes, int64_t n, mx_array x, int64_t step, int64_t y_step, float *y)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < planes; p++)
            y[i * y_step + p] = value_at(x.data, mx_is_bf16(x.dtype), p * step + i);
}

const mx_conv_paths mx_conv_portable = {sum, gather, take, put, add, weave, join, pick, spread, turn};
