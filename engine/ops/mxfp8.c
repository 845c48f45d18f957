/* Products in MXFP8, as Transformer Engine's MXFP8BlockScaling computes them: both operands are rounded to e4m3, and 32
 * neighbours along the dimension that is summed share a scale, a power of two. */
#include "ops/block_product.h"
#include "ops/quantize.h"
#include "ops/rows.h"
#include "ops/scaled.h"

static mx_status infer(mx_call *call) { return mx_block_infer(call, MX_BLOCK, false); }

static mx_status quantize(mx_tensor *x, int by, mx_tensor *codes[2])
{
    mx_quantize_attr attr = {.dtype = MX_E4M3, .by = by, .stochastic = -1, .cast = MX_BF16};
    mx_tensor *in[] = {x};
    return mx_apply(&mx_op_quantize, in, 1, MX_ATTRS(attr), codes);
}

static mx_status multiply(const mx_call *call, mx_tensor *a, mx_tensor *b, mx_tensor *bias, bool trans_a, bool trans_b,
                          mx_dtype dtype, mx_tensor **y)
{
    (void)call;
    mx_tensor *codes_a[2] = {NULL, NULL}, *codes_b[2] = {NULL, NULL};
    const mx_scaled_attr attr = {
        .trans_a = trans_a, .trans_b = trans_b, .dtype = (int)dtype, .grad = -1, .rounded = dtype == MX_F32};
    mx_status status = quantize(a, trans_a ? MX_BY_COLUMN_BLOCK : MX_BY_ROW_BLOCK, codes_a);
    if (status == MX_OK)
        status = quantize(b, trans_b ? MX_BY_ROW_BLOCK : MX_BY_COLUMN_BLOCK, codes_b);
    mx_tensor *in[] = {codes_a[0], codes_b[0], codes_a[1], codes_b[1], bias};
    if (status == MX_OK)
        status = mx_apply(&mx_op_scaled_matmul, in, 5, MX_ATTRS(attr), y);
    for (int i = 0; i < 2; i++) {
        mx_release(codes_a[i]);
        mx_release(codes_b[i]);
    }
    return status;
}

static mx_status host(mx_call *call) { return mx_block_host(call, multiply); }

static mx_status vjp(mx_vjp *v) { return mx_block_vjp(v, multiply); }

const mx_op mx_op_mxfp8_matmul = {
    .name = "mxfp8_matmul",
    .doc =
        "x (..., k) times w (k, n), plus bias (n) -> (..., n) bf16, in MXFP8: codes in e4m3, and 32 neighbours along "
        "the dimension that is summed share a scale, a power of two. So do both products of backward, which quantize "
        "x, w and dy along their own sums. All are rounded to bf16 first",
    .inputs = (const char *const[]){"x", "w", "bias?", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COMPOSITE | MX_OP_OWN_STORAGE,
    .reads_in = 1 | 2,
    .late = 2 | 4,
    .reads_late = 1,
    .infer = infer,
    .cost = mx_block_cost,
    .host = host,
    .vjp = vjp,
};
