#include "ops/block_product.h"

#include "core/scope.h"
#include "ops/rows.h"

enum { X = MX_BLOCK_X, W = MX_BLOCK_W, BIAS = MX_BLOCK_BIAS, OPERANDS };

mx_status mx_block_infer(mx_call *call, int run, bool square)
{
    const mx_tensor *x = call->in[X], *w = call->in[W], *bias = call->in[BIAS];
    MX_TRY(mx_want_rows(call, X));
    MX_TRY(mx_want_rows(call, W));
    if (w->shape.n_dims != 2 || mx_row_width(x) != w->shape.size[0])
        return mx_bad_shape(call, "x must be (..., k), and w (k, n)");
    int64_t k = w->shape.size[0], n = w->shape.size[1], rows = mx_row_count(x);
    bool records = mx_will_record(call);
    if (k % run || ((square || records) && n % run) || (records && rows % run))
        return mx_bad_shape(call,
                            "(%lld, %lld) times (%lld, %lld): the inner size, %sand in training all sizes, must be "
                            "multiples of %d, because so many neighbours share a scale",
                            (long long)rows, (long long)k, (long long)k, (long long)n, square ? "the columns, " : "",
                            run);
    if (bias && (bias->shape.n_dims != 1 || mx_count(bias) != n || !mx_dtype_computes(bias->dtype)))
        return mx_bad_shape(call, "bias must be f32 or bf16 and have one dimension of %lld", (long long)n);
    mx_shape shape = x->shape;
    shape.size[shape.n_dims - 1] = n;
    return mx_out(call, 0, MX_BF16, &shape);
}

mx_cost mx_block_cost(const mx_call *call)
{
    double rows = (double)mx_row_count(call->in[X]), k = (double)call->in[W]->shape.size[0];
    return mx_cost_of(call, 2 * rows * k * (double)call->in[W]->shape.size[1]);
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

static mx_status multiply_values(mx_call *call, mx_block_multiply *multiply, mx_tensor *values[OPERANDS], mx_tensor **y)
{
    for (int i = 0; i < OPERANDS; i++)
        MX_TRY(values_of(call->in[i], &values[i]));
    return multiply(call, values[X], values[W], values[BIAS], false, false, MX_BF16, y);
}

mx_status mx_block_host(mx_call *call, mx_block_multiply *multiply)
{
    mx_scope *scope = mx_scope_swap(NULL); /* the script's scope must not hold codes */
    mx_tensor *values[OPERANDS] = {NULL, NULL, NULL}, *y = NULL;
    mx_status status = multiply_values(call, multiply, values, &y);
    if (status == MX_OK)
        mx_tensor_alias(call->out[0], y, 0);
    mx_release(y);
    for (int i = 0; i < OPERANDS; i++)
        mx_release(values[i]);
    mx_scope_swap(scope);
    return status;
}

mx_status mx_block_vjp(mx_vjp *v, mx_block_multiply *multiply)
{
    const mx_call *call = v->call;
    mx_tensor *x = call->in[X], *w = call->in[W], *dy = v->out_grad[0], *y = NULL;
    if (v->want[W]) {
        MX_TRY(multiply(call, x, dy, NULL, true, false, mx_vjp_dtype(v, W), &y));
        MX_TRY(mx_give_grad(v, W, y));
    }
    mx_vjp_let_go(v, X);
    if (v->want[X]) {
        MX_TRY(multiply(call, dy, w, NULL, false, true, mx_vjp_dtype(v, X), &y));
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
