/* Maxima and means over windows of planes, and their gradients. The geometry is that of a convolution with a group for
 * each channel (kernels/conv.h): windows of `kernel` elements, and padding that no maximum sees and every mean counts
 * as 0. */
#ifndef MX_KERNELS_POOL2D_H
#define MX_KERNELS_POOL2D_H

#include "kernels/conv.h"

/* Arrays are f32 or bf16. at[i]: the element of its plane that is the i-th maximum, the first of equal ones; NaN is the
 * largest, and -0 equals 0. at: NULL if not wanted. The gradient of maxima ignores places that are outside of their
 * window; *inside: whether all are in their plane. MX_ERR_MEMORY: no scratch of a few KiB for each thread. */
mx_status mx_max_pool_forward(const mx_conv *c, mx_array x, mx_array y, int32_t *at);
mx_status mx_max_pool_backward(const mx_conv *c, mx_array dy, const int32_t *at, mx_array dx, bool *inside);
mx_status mx_avg_pool_forward(const mx_conv *c, mx_array x, mx_array y);
mx_status mx_avg_pool_backward(const mx_conv *c, mx_array dy, mx_array dx);

#endif
