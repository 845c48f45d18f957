/* What the two ways to compute a convolution share: conv.c multiplies matrices, conv_thin.c adds up weighted rows. */
#ifndef MX_KERNELS_CONV_INTERNAL_H
#define MX_KERNELS_CONV_INTERNAL_H

#include "kernels/conv.h"
#include "kernels/inline.h"
#include "kernels/windows.h"

static inline int64_t mx_conv_positions(const mx_conv *c) { return c->out[0] * c->out[1]; }
static inline int64_t mx_conv_pixels(const mx_conv *c) { return c->in[0] * c->in[1]; }
static inline int64_t mx_conv_group_in(const mx_conv *c) { return c->channels_in / c->groups; }
static inline int64_t mx_conv_group_out(const mx_conv *c) { return c->channels_out / c->groups; }
static inline int64_t mx_conv_taps(const mx_conv *c) { return mx_conv_group_in(c) * c->kernel[0] * c->kernel[1]; }

/* The index of x along dimension d for output i and element k of the kernel; may be outside. */
static inline int64_t mx_conv_at(const mx_conv *c, int d, int64_t i, int64_t k)
{
    return i * c->stride[d] + k * c->dilation[d] - c->before[d];
}

/* The outputs along dimension d, from *low to before *high, for which that index is inside. */
static inline void mx_conv_inside(const mx_conv *c, int d, int64_t k, int64_t *low, int64_t *high)
{
    int64_t shift = k * c->dilation[d] - c->before[d]; /* i stride + shift is from 0 to in - 1 */
    int64_t first = shift < 0 ? mx_ceil_div(-shift, c->stride[d]) : 0;
    int64_t last = shift > c->in[d] - 1 ? 0 : (c->in[d] - 1 - shift) / c->stride[d] + 1;
    *high = mx_min(last, c->out[d]);
    *low = mx_min(first, *high);
}

/* The elements of a plane of x that its outputs meet. */
static inline mx_windows mx_conv_windows(const mx_conv *c)
{
    mx_windows w = {.in = {c->in[0], c->in[1]}, .out = {c->out[0], c->out[1]}, .stride = {c->stride[0], c->stride[1]}};
    for (int d = 0; d < 2; d++) {
        w.least[d] = mx_conv_at(c, d, 0, 0);
        w.most[d] = mx_conv_at(c, d, 0, c->kernel[d] - 1);
    }
    return w;
}

static inline mx_array mx_conv_part(mx_array a, int64_t first)
{
    return (mx_array){(char *)a.data + first * (int64_t)mx_dtype_bytes(a.dtype), a.dtype};
}

/* Whether its groups are too thin for matrix products. */
static inline bool mx_conv_is_thin(const mx_conv *c) { return mx_conv_group_in(c) * mx_conv_group_out(c) <= 8; }

mx_status mx_conv_thin_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y);
mx_status mx_conv_thin_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx);
mx_status mx_conv_thin_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw);

#endif
