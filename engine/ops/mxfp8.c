/* Products in MXFP8, as Transformer Engine's MXFP8BlockScaling computes them: both operands are rounded to e4m3, and 32
 * neighbours along the dimension that is summed share a scale, a power of two. The forward product and both gradients
 * sum along different dimensions. Each therefore quantizes the unquantized operands itself: codes of another product
 * have scales along the wrong dimension. */
#include "core/scope.h"
#include "ops/quantize.h"
#include "ops/rows.h"
#include "ops/scaled.h"

enum { X, W, BIAS };

static mx_status infer(mx_call *call)
{
    const mx_tensor *x = call->in[X], *w = call->in[W], *bias = call->n_in > BIAS ? call->in[BIAS] : NULL;
    MX_TRY(mx_want_rows(call, X));
    MX_TRY(mx_want_rows(call, W));
    if (w->shape.n_dims != 2 || mx_row_width(x) != w->shape.size[0])
        return mx_bad_shape(call, "x must be (..., k), and w (k, n)");
    int64_t k = w->shape.size[0], n = w->shape.size[1], rows = mx_row_count(x);
    bool records = mx_will_record(call);
    if (k % MX_BLOCK || (records && (n % MX_BLOCK || rows % MX_BLOCK)))
        return mx_bad_shape(call,
                            "(%lld, %lld) times (%lld, %lld): the inner size, and in training all sizes, must be "
                            "multiples of %d, because so many neighbours share a scale",
                            (long long)rows, (long long)k, (long long)k, (long long)n, MX_BLOCK);
    if (bias && (bias->shape.n_dims != 1 || mx_count(bias) != n || !mx_dtype_computes(bias->dtype)))
        return mx_bad_shape(call, "bias must be f32 or bf16 and have one dimension of %lld", (long long)n);
    mx_shape shape = x->shape;
    shape.size[shape.n_dims - 1] = n;
    return mx_out(call, 0, MX_BF16, &shape);
}

static mx_cost cost(const mx_call *call)
{
    double rows = (double)mx_row_count(call->in[X]), k = (double)call->in[W]->shape.size[0];
    return mx_cost_of(call, 2 * rows * k * (double)call->in[W]->shape.size[1]);
}

static mx_status quantize(mx_tensor *x, int by, mx_tensor *codes[2])
{
    mx_quantize_attr attr = {.dtype = MX_E4M3, .by = by, .stochastic = -1, .cast = MX_BF16};
    mx_tensor *in[] = {x};
    return mx_apply(&mx_op_quantize, in, 1, MX_ATTRS(attr), codes);
}

/* op(a) op(b) + bias, each quantized along the inner dimension, rounded to bf16 and stored as `dtype`. */
static mx_status multiply(mx_tensor *a, mx_tensor *b, mx_tensor *bias, bool trans_a, bool trans_b, mx_dtype dtype,
                          mx_tensor **y)
{
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

/* The values of t without its history: what is computed of them is not recorded. NULL for NULL. */
static mx_status values_of(const mx_tensor *t, mx_tensor **values)
{
    *values = NULL;
    if (!t)
        return MX_OK;
    MX_TRY(mx_tensor_new_empty(t->dtype, &t->shape, values));
    mx_tensor_alias(*values, t, 0);
    return MX_OK;
}

static mx_status multiply_values(mx_call *call, mx_tensor *values[3], mx_tensor **y)
{
    for (int i = 0; i < call->n_in; i++)
        MX_TRY(values_of(call->in[i], &values[i]));
    return multiply(values[X], values[W], values[BIAS], false, false, MX_BF16, y);
}

static mx_status host(mx_call *call)
{
    mx_scope *scope = mx_scope_swap(NULL); /* the script's scope must not hold codes */
    mx_tensor *values[3] = {NULL, NULL, NULL}, *y = NULL;
    mx_status status = multiply_values(call, values, &y);
    if (status == MX_OK)
        mx_tensor_alias(call->out[0], y, 0);
    mx_release(y);
    for (int i = 0; i < 3; i++)
        mx_release(values[i]);
    mx_scope_swap(scope);
    return status;
}

static mx_status vjp(mx_vjp *v)
{
    mx_tensor *x = v->call->in[X], *w = v->call->in[W], *dy = v->out_grad[0], *y = NULL;
    if (v->want[W]) {
        MX_TRY(multiply(x, dy, NULL, true, false, mx_vjp_dtype(v, W), &y));
        MX_TRY(mx_give_grad(v, W, y));
    }
    mx_vjp_let_go(v, X);
    if (v->want[X]) {
        MX_TRY(multiply(dy, w, NULL, false, true, mx_vjp_dtype(v, X), &y));
        MX_TRY(mx_give_grad(v, X, y));
    }
    if (!v->want[BIAS])
        return MX_OK;
    const struct {
        int dtype;
    } f32 = {MX_F32};
    MX_TRY(mx_apply(&mx_op_column_sum, &dy, 1, MX_ATTRS(f32), &y));
    return mx_give_grad(v, BIAS, y);
}

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
    .cost = cost,
    .host = host,
    .vjp = vjp,
};
