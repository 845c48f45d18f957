/* Convolutions, pooling, rotary positions and lookups in f64, which is for checks: plain C for one element at a time,
 * the same on every path. Contracts, shapes and sums are those of conv.h, pool2d.h, rope.h and embedding.h. */
#ifndef MX_KERNELS_F64_LOOPS_H
#define MX_KERNELS_F64_LOOPS_H

#include "kernels/conv.h"
#include "kernels/rope.h"

void mx_f64_conv_forward(const mx_conv *c, const double *x, const double *w, const double *bias, double *y);
void mx_f64_conv_grad_x(const mx_conv *c, const double *dy, const double *w, double *dx);
void mx_f64_conv_grad_w(const mx_conv *c, const double *x, const double *dy, double *dw);
void mx_f64_conv_grad_bias(const mx_conv *c, const double *dy, double *sums);

void mx_f64_max_pool_forward(const mx_conv *c, const double *x, double *y, int32_t *at); /* at: NULL if not wanted */
void mx_f64_max_pool_backward(const mx_conv *c, const double *dy, const int32_t *at, double *dx);
void mx_f64_avg_pool_forward(const mx_conv *c, const double *x, double *y);
void mx_f64_avg_pool_backward(const mx_conv *c, const double *dy, double *dx);

void mx_f64_rope(const mx_rope *r);

/* out[t] = scale table[ids[t] - first], or 0 for an id that is not among the `vocab` rows; and the sum of these rows.
 */
void mx_f64_gather(int64_t tokens, int64_t width, int64_t vocab, int64_t first, const int32_t *ids, double scale,
                   const double *table, double *out);
void mx_f64_gather_add(int64_t tokens, int64_t width, int64_t vocab, int64_t first, const int32_t *ids, double scale,
                       const double *dy, double *table);

#endif
