/* Convolutions over two dimensions, and their gradients: x (batch, channels_in, in[0], in[1]), w (channels_out,
 * channels_in / groups, kernel[0], kernel[1]), y (batch, channels_out, out[0], out[1]). One dimension is in[0] =
 * kernel[0] = 1.
 *
 *   y[n, o, i, j] = bias[o] + sum over c, k, l of w[o, c, k, l] x[n, first(o) + c, i s0 + k d0 - p0, j s1 + l d1 - p1]
 *
 * with x = 0 outside. Groups of several channels are matrix products of the weights with columns of x, one column for
 * each position of y, in blocks that fit the caches. Thin groups, as those of depthwise convolutions, are weighted sums
 * of rows (windows.h). */
#ifndef MX_KERNELS_CONV_H
#define MX_KERNELS_CONV_H

#include "core/status.h"
#include "kernels/elementwise.h"

typedef struct mx_conv {
    int64_t batch, channels_in, channels_out, groups;
    int64_t in[2], kernel[2], out[2], stride[2], dilation[2];
    int64_t before[2]; /* padding before the first element */
} mx_conv;

/* Arrays are f32 or bf16, dense; sums are f32, and bf16 results are rounded once. bias: f32, NULL: none. MX_ERR_MEMORY
 * if there is no memory for the blocks of columns. */
mx_status mx_conv_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y);
mx_status mx_conv_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx);
mx_status mx_conv_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw);

/* sums[o] = the sum of dy (batch, channels_out, positions) over batch and positions. */
void mx_conv_grad_bias(const mx_conv *c, mx_array dy, float *sums);

/* The row loops for one instruction set. */
typedef struct mx_conv_paths {
    void (*add)(int64_t n, const float *x, float *y, int64_t step); /* y[i step] += x[i] */
    float (*sum)(int64_t n, const void *x, mx_dtype dtype);
} mx_conv_paths;

#endif
