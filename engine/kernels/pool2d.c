#include "kernels/pool2d.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/conv_internal.h"

#include <omp.h>

/* The elements of x that the window of output (i, j) meets: rows from top to before bottom, columns likewise. */
typedef struct window {
    int64_t top, bottom, left, right;
} window;

static window window_of(const mx_conv *c, int64_t i, int64_t j)
{
    int64_t y = i * c->stride[0] - c->before[0], x = j * c->stride[1] - c->before[1];
    return (window){mx_max(y, 0), mx_min(y + c->kernel[0], c->in[0]), mx_max(x, 0), mx_min(x + c->kernel[1], c->in[1])};
}

static float max_of(const mx_conv *c, mx_array x, int64_t plane, window w, int32_t *at)
{
    float best = -INFINITY;
    *at = (int32_t)(w.top * c->in[1] + w.left);
    for (int64_t r = w.top; r < w.bottom; r++)
        for (int64_t s = w.left; s < w.right; s++) {
            float value = mx_get_float(x.data, plane + r * c->in[1] + s, x.dtype);
            if (value > best || (isnan(value) && !isnan(best))) {
                best = value;
                *at = (int32_t)(r * c->in[1] + s);
            }
        }
    return best;
}

void mx_max_pool_forward(const mx_conv *c, mx_array x, mx_array y, int32_t *at)
{
    int64_t positions = mx_conv_positions(c);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < c->batch * c->channels_in; p++)
        for (int64_t o = 0; o < positions; o++) {
            window w = window_of(c, o / c->out[1], o % c->out[1]);
            mx_set_float(y.data, p * positions + o, max_of(c, x, p * mx_conv_pixels(c), w, &at[p * positions + o]),
                         y.dtype);
        }
}

void mx_avg_pool_forward(const mx_conv *c, mx_array x, mx_array y)
{
    int64_t positions = mx_conv_positions(c);
    float share = 1.0f / (float)(c->kernel[0] * c->kernel[1]);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < c->batch * c->channels_in; p++)
        for (int64_t o = 0; o < positions; o++) {
            window w = window_of(c, o / c->out[1], o % c->out[1]);
            float sum = 0;
            for (int64_t r = w.top; r < w.bottom; r++)
                for (int64_t s = w.left; s < w.right; s++)
                    sum += mx_get_float(x.data, p * mx_conv_pixels(c) + r * c->in[1] + s, x.dtype);
            mx_set_float(y.data, p * positions + o, sum * share, y.dtype);
        }
}

/* Adds the gradients of one plane's outputs to `sums`; at NULL: of means. */
static void spread(const mx_conv *c, mx_array dy, int64_t plane, const int32_t *at, float *sums)
{
    int64_t positions = mx_conv_positions(c);
    float share = 1.0f / (float)(c->kernel[0] * c->kernel[1]);
    for (int64_t o = 0; o < positions; o++) {
        float g = mx_get_float(dy.data, plane * positions + o, dy.dtype);
        if (at) {
            sums[at[plane * positions + o]] += g;
            continue;
        }
        window w = window_of(c, o / c->out[1], o % c->out[1]);
        for (int64_t r = w.top; r < w.bottom; r++)
            for (int64_t s = w.left; s < w.right; s++)
                sums[r * c->in[1] + s] += g * share;
    }
}

static mx_status backward(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx)
{
    int64_t pixels = mx_conv_pixels(c), bytes = pixels * omp_get_max_threads() * (int64_t)sizeof(float);
    float *all;
    MX_TRY(mx_pool_alloc(bytes, (void **)&all));
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < c->batch * c->channels_in; p++) {
        float *sums = all + omp_get_thread_num() * pixels;
        for (int64_t i = 0; i < pixels; i++)
            sums[i] = 0;
        spread(c, dy, p, at, sums);
        for (int64_t i = 0; i < pixels; i++)
            mx_set_float(dx.data, p * pixels + i, sums[i], dx.dtype);
    }
    mx_pool_free(all, bytes);
    return MX_OK;
}

mx_status mx_max_pool_backward(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx)
{
    return backward(c, dy, at, dx);
}

mx_status mx_avg_pool_backward(const mx_conv *c, mx_array dy, mx_array dx) { return backward(c, dy, NULL, dx); }
