/* What the products in formats with block scales share (mxfp8.c, nvfp4.c): x (..., k) times w (k, n), plus bias (n).
 * Neighbours along the dimension that is summed share a scale. The forward product and both gradients sum along
 * different dimensions. Each therefore quantizes the unquantized operands itself: codes of another product have scales
 * along the wrong dimension. */
#ifndef MX_OPS_BLOCK_PRODUCT_H
#define MX_OPS_BLOCK_PRODUCT_H

#include "ops/op.h"

enum { MX_BLOCK_X, MX_BLOCK_W, MX_BLOCK_BIAS };

/* y = op(a) op(b) + bias, both operands quantized along the inner dimension: of the forward product neither is
 * transposed, of the gradient of w the first, x; of that of x the second, w. bias may be NULL. y is rounded to bf16; it
 * is stored as bf16, or better as `dtype`, so that nothing has to convert it. */
typedef mx_status mx_block_multiply(const mx_call *call, mx_tensor *a, mx_tensor *b, mx_tensor *bias, bool trans_a,
                                    bool trans_b, mx_dtype dtype, mx_tensor **y);

/* `run`: neighbours that share a scale. All sizes must be multiples of it where the call is recorded, the inner size
 * always, and with `square` the columns of w, too. */
mx_status mx_block_infer(mx_call *call, int run, bool square);
mx_cost mx_block_cost(const mx_call *call);
mx_status mx_block_host(mx_call *call, mx_block_multiply *multiply);
mx_status mx_block_vjp(mx_vjp *v, mx_block_multiply *multiply);

#endif
