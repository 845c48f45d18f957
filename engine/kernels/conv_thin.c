/* Convolutions with thin groups, as depthwise ones: each tap adds a row of x, times a weight, to a row of y. */
#include "kernels/conv_internal.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"

#include <omp.h>
#include <string.h>

/* f32 sums of one plane, a thread's own. */
typedef struct planes {
    float *sums;
    int64_t each, bytes;
} planes;

static mx_status take_planes(int64_t elements, planes *p)
{
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    p->each = mx_round_up(elements, 16);
    p->bytes = p->each * threads * (int64_t)sizeof *p->sums;
    return mx_pool_alloc(p->bytes, (void **)&p->sums);
}

static float *own_plane(const planes *p, float start, int64_t elements)
{
    float *plane = p->sums + (omp_in_parallel() ? omp_get_thread_num() : 0) * p->each;
    for (int64_t i = 0; i < elements; i++)
        plane[i] = start;
    return plane;
}

static void put_plane(mx_array to, int64_t first, const float *plane, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mx_set_float(to.data, first + i, plane[i], to.dtype);
}

/* The outputs for which element (k, l) of the kernel meets x: rows from `top` to before `bottom`, and in each of them
 * from `low` to before `high`. */
typedef struct window {
    int64_t top, bottom, low, high;
} window;

static window window_of(const mx_conv *c, int64_t k, int64_t l)
{
    window w;
    mx_conv_inside(c, 0, k, &w.top, &w.bottom);
    mx_conv_inside(c, 1, l, &w.low, &w.high);
    if (w.low == w.high)
        w.bottom = w.top;
    return w;
}

mx_status mx_conv_thin_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t n_in = mx_conv_group_in(c), n_out = mx_conv_group_out(c), positions = mx_conv_positions(c);
    int64_t taps = c->kernel[0] * c->kernel[1];
    planes p;
    MX_TRY(take_planes(positions, &p));
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t item = 0; item < c->batch * c->channels_out; item++) {
        int64_t n = item / c->channels_out, o = item % c->channels_out;
        float *sums = own_plane(&p, bias ? bias[o] : 0, positions);
        for (int64_t tap = 0; tap < n_in * taps; tap++) {
            int64_t k = tap / c->kernel[1] % c->kernel[0], l = tap % c->kernel[1];
            int64_t plane = (n * c->channels_in + o / n_out * n_in + tap / taps) * mx_conv_pixels(c);
            float weight = mx_get_float(w.data, o * n_in * taps + tap, w.dtype);
            const window in = window_of(c, k, l);
            for (int64_t i = in.top; i < in.bottom; i++)
                paths->add(
                    in.high - in.low, weight,
                    mx_conv_part(x, plane + mx_conv_at(c, 0, i, k) * c->in[1] + mx_conv_at(c, 1, in.low, l)).data,
                    x.dtype, c->stride[1], sums + i * c->out[1] + in.low, 1);
        }
        put_plane(y, item * positions, sums, positions);
    }
    mx_pool_free(p.sums, p.bytes);
    return MX_OK;
}

mx_status mx_conv_thin_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t n_in = mx_conv_group_in(c), n_out = mx_conv_group_out(c), pixels = mx_conv_pixels(c);
    int64_t taps = c->kernel[0] * c->kernel[1];
    planes p;
    MX_TRY(take_planes(pixels, &p));
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t item = 0; item < c->batch * c->channels_in; item++) {
        int64_t n = item / c->channels_in, channel = item % c->channels_in;
        float *sums = own_plane(&p, 0, pixels);
        for (int64_t at = 0; at < n_out * taps; at++) {
            int64_t o = channel / n_in * n_out + at / taps, tap = at % taps;
            int64_t k = tap / c->kernel[1], l = tap % c->kernel[1];
            float weight = mx_get_float(w.data, (o * n_in + channel % n_in) * taps + tap, w.dtype);
            const window in = window_of(c, k, l);
            for (int64_t i = in.top; i < in.bottom; i++)
                paths->add(in.high - in.low, weight,
                           mx_conv_part(dy, ((n * c->channels_out + o) * c->out[0] + i) * c->out[1] + in.low).data,
                           dy.dtype, 1, sums + mx_conv_at(c, 0, i, k) * c->in[1] + mx_conv_at(c, 1, in.low, l),
                           c->stride[1]);
        }
        put_plane(dx, item * pixels, sums, pixels);
    }
    mx_pool_free(p.sums, p.bytes);
    return MX_OK;
}

void mx_conv_thin_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw)
{
    const mx_conv_paths *paths = mx_kernels_current()->conv;
    int64_t n_in = mx_conv_group_in(c), n_out = mx_conv_group_out(c), taps = c->kernel[0] * c->kernel[1];
#pragma omp parallel for if (!omp_in_parallel()) schedule(static)
    for (int64_t at = 0; at < c->channels_out * n_in * taps; at++) {
        int64_t o = at / (n_in * taps), tap = at % taps, k = tap / c->kernel[1], l = tap % c->kernel[1];
        double total = 0;
        for (int64_t n = 0; n < c->batch; n++) {
            int64_t plane = (n * c->channels_in + o / n_out * n_in + at / taps % n_in) * mx_conv_pixels(c);
            const window in = window_of(c, k, l);
            for (int64_t i = in.top; i < in.bottom; i++)
                total += paths->dot(
                    in.high - in.low,
                    mx_conv_part(x, plane + mx_conv_at(c, 0, i, k) * c->in[1] + mx_conv_at(c, 1, in.low, l)).data,
                    x.dtype, c->stride[1],
                    mx_conv_part(dy, ((n * c->channels_out + o) * c->out[0] + i) * c->out[1] + in.low).data, dy.dtype);
        }
        dw[at] = (float)total;
    }
}
