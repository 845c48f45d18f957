#include "kernels/channel_norm.h"
#include "core/element.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"

static void forward(mx_array x, const mx_channel_line *l, void *y, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < l->n; i++) {
        int64_t j = l->each ? i : 0;
        float d = mx_get_float(x.data, i, x.dtype) - l->mean[j];
        mx_set_float(y, i, d * l->scale[j] + l->shift[j], x.dtype);
    }
}

static void sums(mx_array x, const void *dy, const mx_channel_line *l, float *sum, float *dot)
{
    for (int64_t i = 0; i < l->n; i++) {
        int64_t j = l->each ? i : 0;
        float d = mx_get_float(dy, i, x.dtype);
        sum[j] += d;
        dot[j] += d * (mx_get_float(x.data, i, x.dtype) - l->mean[j]);
    }
}

static void backward(mx_array x, const void *dy, const mx_channel_line *l, void *dx, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < l->n; i++) {
        int64_t j = l->each ? i : 0;
        float d = mx_get_float(x.data, i, x.dtype) - l->mean[j];
        mx_set_float(dx, i, mx_get_float(dy, i, x.dtype) * l->scale[j] + (d * l->slope[j] + l->shift[j]), x.dtype);
    }
}

static void set_forward(mx_array x, const mx_channel_set *s, void *y, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < s->n; i++) {
        float d = (mx_get_float(x.data, i, x.dtype) - s->mean) * s->scale + s->shift;
        mx_set_float(y, i, d * s->weight[i] + s->bias[i], x.dtype);
    }
}

static void set_sums(mx_array x, const void *dy, const mx_channel_set *s, float sums[2])
{
    sums[0] = sums[1] = 0;
    for (int64_t i = 0; i < s->n; i++) {
        float d = mx_get_float(dy, i, x.dtype) * s->weight[i];
        sums[0] += d;
        sums[1] += d * (mx_get_float(x.data, i, x.dtype) - s->mean);
    }
}

static void set_backward(mx_array x, const void *dy, const mx_channel_set *s, void *dx, float *dweight, float *dbias,
                         bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < s->n; i++) {
        float d = mx_get_float(x.data, i, x.dtype) - s->mean, slope = mx_get_float(dy, i, x.dtype);
        dbias[i] += slope;
        slope *= s->scale;
        dweight[i] += slope * d;
        mx_set_float(dx, i, slope * s->weight[i] + (d * s->slope + s->shift), x.dtype);
    }
}

const mx_channel_paths mx_channels_portable = {forward, sums, backward, set_forward, set_sums, set_backward};
