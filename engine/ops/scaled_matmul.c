/* Products of codes (quantize.c) with their scales. */
#include "ops/scaled.h"

#include "ops/quantize.h"
#include "ops/rows.h"

enum {
    A = MX_SCALED_A,
    B = MX_SCALED_B,
    SCALE_A = MX_SCALED_SCALE_A,
    SCALE_B = MX_SCALED_SCALE_B,
    BIAS = MX_SCALED_BIAS,
    GRAD_SCALE = MX_SCALED_GRAD_SCALE,
    GRAD_LARGEST = MX_SCALED_GRAD_LARGEST
};

typedef struct product {
    int64_t m, n, k, k_of_b;
} product;

static product product_of(const mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[A], *b = call->in[B];
    return (product){.m = attr->trans_a ? mx_row_width(a) : mx_row_count(a),
                     .k = attr->trans_a ? mx_row_count(a) : mx_row_width(a),
                     .n = attr->trans_b ? mx_row_count(b) : mx_row_width(b),
                     .k_of_b = attr->trans_b ? mx_row_width(b) : mx_row_count(b)};
}

static const char *code_names(char text[MX_DTYPE_LIST_BYTES])
{
    mx_dtype_list(mx_dtype_is_code, text);
    return text;
}

static mx_status check_operand(const mx_call *call, int i)
{
    const mx_tensor *t = call->in[i];
    if (!mx_dtype_is_code(t->dtype) && !mx_dtype_computes(t->dtype))
        return mx_bad_dtype(call, "'%s' must be bf16, f32 or codes (%s)", i == A ? "a" : "b",
                            code_names((char[MX_DTYPE_LIST_BYTES]){0}));
    return t->shape.n_dims >= 2 ? MX_OK : mx_bad_shape(call, "a and b need at least two dimensions each");
}

static mx_status check_scale(const mx_call *call, int i, int64_t n, const char *what)
{
    const mx_tensor *t = call->in[i];
    if (!t)
        return MX_OK;
    MX_TRY(mx_want_dtype(call, i, MX_F32));
    if (mx_count(t) != 1 && mx_count(t) != n)
        return mx_bad_shape(call, "'%s' has %lld values; expected 1, or %lld, one for each %s of the result",
                            mx_input_name(call, i, (char[32]){0}), (long long)mx_count(t), (long long)n, what);
    return MX_OK;
}

mx_status mx_want_scaled_operands(const mx_call *call)
{
    MX_TRY(check_operand(call, A));
    MX_TRY(check_operand(call, B));
    if (!mx_dtype_is_code(call->in[A]->dtype) && !mx_dtype_is_code(call->in[B]->dtype))
        return mx_bad_dtype(call, "neither a nor b are codes (%s); use %s", code_names((char[MX_DTYPE_LIST_BYTES]){0}),
                            call->op == &mx_op_scaled_matmul ? "matmul" : "grouped_matmul");
    return MX_OK;
}

mx_status mx_want_scales(const mx_call *call, int64_t m, int64_t n)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    MX_TRY(check_scale(call, SCALE_A, m, "row"));
    MX_TRY(check_scale(call, SCALE_B, n, "column"));
    MX_TRY(check_scale(call, GRAD_SCALE, 1, "tensor"));
    MX_TRY(check_scale(call, GRAD_LARGEST, 1, "tensor"));
    return attr->grad >= 0 ? mx_want_codes(call, "grad", attr->grad) : MX_OK;
}

/* Whether the scales of a or b are those of blocks: each MX_BLOCK neighbours along the inner dimension share one. Those
 * of i8 belong to a transposed b, and a is real. One block of 8-bit floats is a row or column, with any scale. */
static bool has_blocks(const mx_call *call, int i)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const mx_tensor *t = call->in[i], *scale = call->in[i == A ? SCALE_A : SCALE_B];
    bool along = i == A ? !attr->trans_a : attr->trans_b; /* the inner dimension is the last */
    if (!scale || !mx_dtype_is_code(t->dtype) || scale->shape.n_dims < 2)
        return false;
    if (t->dtype == MX_I8 && (i == A || !along || attr->trans_a || !mx_dtype_computes(call->in[A]->dtype)))
        return false;
    if (t->dtype != MX_I8 && product_of(call).k == MX_BLOCK)
        return false;
    return mx_row_count(scale) * (along ? 1 : MX_BLOCK) == mx_row_count(t) &&
           mx_row_width(scale) * (along ? MX_BLOCK : 1) == mx_row_width(t);
}

static mx_status infer(mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[A], *b = call->in[B], *bias = call->in[BIAS];
    MX_TRY(mx_want_scaled_operands(call));
    product p = product_of(call);
    if (p.k != p.k_of_b)
        return mx_bad_shape(call, "inner sizes differ: %lld of a, %lld of b", (long long)p.k, (long long)p.k_of_b);
    if (a->dtype == MX_I8 && b->dtype == MX_I8 && p.k > MX_MOST_I8_PRODUCTS)
        return mx_bad_shape(call,
                            "the inner size is %lld; sums of so many products of i8 could pass i32, which holds "
                            "%d: cut the product",
                            (long long)p.k, MX_MOST_I8_PRODUCTS);
    MX_TRY(mx_want_scales(call, has_blocks(call, A) ? mx_count(call->in[SCALE_A]) : p.m,
                          has_blocks(call, B) ? mx_count(call->in[SCALE_B]) : p.n));
    if (bias && (bias->shape.n_dims != 1 || mx_count(bias) != p.n || !mx_dtype_computes(bias->dtype)))
        return mx_bad_shape(call, "bias must be f32 or bf16 and have one dimension of %lld", (long long)p.n);
    mx_shape shape = attr->trans_a ? (mx_shape){2, {p.m, p.n}} : a->shape;
    shape.size[shape.n_dims - 1] = p.n;
    return mx_out_float(call, 0, attr->dtype, MX_BF16, &shape);
}

static mx_cost cost(const mx_call *call)
{
    product p = product_of(call);
    mx_cost cost = mx_cost_of(call, 2.0 * (double)p.m * (double)p.n * (double)p.k);
    cost.work = MX_WORK_PRODUCT;
    cost.m = (double)p.m;
    cost.n = (double)p.n;
    cost.k = (double)p.k;
    return cost;
}

mx_scale mx_scale_from(const mx_call *call, int i, int64_t first)
{
    const mx_tensor *t = call->in[i];
    if (!t)
        return (mx_scale){NULL, 0};
    return mx_count(t) > 1 ? (mx_scale){mx_f32(t) + first, 1} : (mx_scale){mx_f32(t), 0};
}

static mx_status host(mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[A], *b = call->in[B], *y = call->out[0], *bias = call->in[BIAS];
    product p = product_of(call);
    mx_gemm g = {.m = p.m, .n = p.n, .k = p.k, .alpha = 1};
    g.a = (mx_matrix){mx_data(a), a->dtype, mx_row_width(a), attr->trans_a};
    g.b = (mx_matrix){mx_data(b), b->dtype, mx_row_width(b), attr->trans_b};
    g.c = (mx_matrix){mx_data(y), y->dtype, p.n, false};
    if (has_blocks(call, A))
        g.block_a = mx_f32(call->in[SCALE_A]);
    else
        g.scale_a = mx_scale_from(call, SCALE_A, 0);
    if (has_blocks(call, B))
        g.block_b = mx_f32(call->in[SCALE_B]);
    else
        g.scale_b = mx_scale_from(call, SCALE_B, 0);
    mx_tensor *f32 = NULL;
    if (bias && mx_is_bf16(bias->dtype))
        MX_TRY(mx_apply_cast(call->in[BIAS], MX_F32, &f32));
    g.bias = f32 ? mx_f32(f32) : bias ? mx_f32(bias) : NULL;
    g.rounded = attr->rounded;
    mx_status status = mx_gemm_run(&g);
    mx_release(f32);
    return status;
}

/* ---- gradients ---- */

/* The codes of dy and their scales. A scale of the other operand along the inner dimension multiplies dy first. */
static mx_status quantize_dy(const mx_vjp *v, int by, mx_tensor *row_factor, mx_tensor *column_factor,
                             mx_tensor *codes[2])
{
    const mx_call *call = v->call;
    const mx_scaled_attr *attr = mx_call_attr(call);
    mx_quantize_attr q = {
        .dtype = attr->grad >= 0 ? attr->grad : (int)call->in[B]->dtype, .by = by, .stochastic = -1, .cast = -1};
    mx_tensor *in[] = {v->out_grad[0], (mx_tensor *)call->in[GRAD_SCALE], row_factor, column_factor,
                       (mx_tensor *)call->in[GRAD_LARGEST]};
    return mx_apply(&mx_op_quantize, in, 5, MX_ATTRS(q), codes);
}

static mx_status multiply(const mx_call *call, mx_tensor *a, mx_tensor *b, mx_tensor *scale_a, mx_tensor *scale_b,
                          const mx_scaled_attr *attr, mx_tensor **y)
{
    (void)call;
    mx_tensor *in[] = {a, b, scale_a, scale_b};
    return mx_apply(&mx_op_scaled_matmul, in, 4, MX_ATTRS(*attr), y);
}

/* One scale for all of the tensor stays a factor of the result; scales by row or column go into dy. */
static bool is_one(const mx_tensor *scale) { return !scale || mx_count(scale) == 1; }

static mx_status input_gradient(mx_vjp *v, int i, mx_tensor *const shared[2], mx_scaled_multiply *times)
{
    const mx_call *call = v->call;
    mx_tensor *own[2] = {NULL, NULL}, *other = call->in[i == A ? B : A], *y = NULL;
    mx_tensor *scale = (mx_tensor *)call->in[i == A ? SCALE_B : SCALE_A], *rest = is_one(scale) ? scale : NULL;
    mx_tensor *factor = is_one(scale) ? NULL : scale;
    if (!shared[0])
        MX_TRY(i == A ? quantize_dy(v, MX_BY_ROW, NULL, factor, own) : quantize_dy(v, MX_BY_COLUMN, factor, NULL, own));
    mx_tensor *const *dy = shared[0] ? shared : own;
    bool wide = call->in[i]->of_leaf;
    const mx_scaled_attr attr = {
        .trans_a = i == B, .trans_b = i == A, .dtype = wide ? MX_F32 : MX_BF16, .grad = -1, .rounded = wide};
    mx_status status =
        i == A ? times(call, dy[0], other, dy[1], rest, &attr, &y) : times(call, other, dy[0], rest, dy[1], &attr, &y);
    mx_release(own[0]);
    mx_release(own[1]);
    v->grad[i] = status == MX_OK ? y : NULL;
    return status;
}

mx_status mx_scaled_vjp(mx_vjp *v, mx_scaled_multiply *times)
{
    const mx_call *call = v->call;
    const mx_scaled_attr *attr = mx_call_attr(call);
    bool codes = mx_dtype_is_code(call->in[A]->dtype) && mx_dtype_is_code(call->in[B]->dtype);
    if ((v->want[A] || v->want[B]) && (!codes || attr->trans_a || attr->trans_b))
        return mx_fail(MX_ERR_STATE,
                       "%s has a gradient where a and b are codes and neither is transposed; use "
                       "x:detach()",
                       call->op->name);
    mx_tensor *shared[2] = {NULL, NULL};
    if (call->in[GRAD_SCALE] || (is_one(call->in[SCALE_A]) && is_one(call->in[SCALE_B])))
        MX_TRY(quantize_dy(v, MX_BY_TENSOR, NULL, NULL, shared));
    mx_status status = v->want[B] ? input_gradient(v, B, shared, times) : MX_OK;
    mx_vjp_let_go(v, A);
    if (status == MX_OK && v->want[A])
        status = input_gradient(v, A, shared, times);
    mx_release(shared[0]);
    mx_release(shared[1]);
    return status;
}

static mx_status vjp(mx_vjp *v)
{
    if ((v->want[A] || v->want[B]) && (has_blocks(v->call, A) || has_blocks(v->call, B)))
        return mx_fail(MX_ERR_STATE, "scaled_matmul has no gradient with scales of blocks; use mxfp8_matmul");
    if ((v->want[A] || v->want[B]) && v->call->in[B]->shape.n_dims != 2)
        return mx_fail(MX_ERR_STATE, "scaled_matmul has a gradient where b has two dimensions; use x:detach()");
    MX_TRY(mx_scaled_vjp(v, multiply));
    if (!v->want[BIAS])
        return MX_OK;
    mx_tensor *sums = NULL;
    const struct {
        int dtype;
    } f32 = {MX_F32};
    MX_TRY(mx_apply(&mx_op_column_sum, &v->out_grad[0], 1, MX_ATTRS(f32), &sums));
    return mx_give_grad(v, BIAS, sums);
}

const mx_attr mx_scaled_attrs[] = {
    {"trans_a", MX_ATTR_BOOL, offsetof(mx_scaled_attr, trans_a), 0, NULL, "a is stored (k, m)"},
    {"trans_b", MX_ATTR_BOOL, offsetof(mx_scaled_attr, trans_b), 0, NULL, "b is stored (n, k)"},
    {"dtype", MX_ATTR_DTYPE, offsetof(mx_scaled_attr, dtype), -1, NULL,
     "dtype of the result, bf16 (the default) or f32"},
    {"grad", MX_ATTR_DTYPE, offsetof(mx_scaled_attr, grad), -1, NULL,
     "dtype of the gradient's codes in the products of backward; default: that of b"},
    {0},
};

const mx_op mx_op_scaled_matmul = {
    .name = "scaled_matmul",
    .doc =
        "the codes a (..., m, k) times the codes b (k, n), times scale_a (1 or m) and scale_b (1 or n), plus bias (n) "
        "-> (..., m, n); leading dimensions count as rows. Sums of i8 are exact, those of 8-bit floats f32; the "
        "other operand of codes may be bf16. 32 neighbours along the inner dimension may share a scale, in the shape "
        "of a "
        "or b but for k / 32: powers of two of 8-bit floats, which have no gradient, or any scales of i8 in b with "
        "trans_b; a "
        "is then bf16 or f32. Backward quantizes dy: by row for a and by column for b, or with one "
        "scale where a and b have one; grad_scale gives it, and grad_largest gets dy's largest magnitude",
    .inputs = (const char *const[]){"a", "b", "scale_a?", "scale_b?", "bias?", "grad_scale?", "grad_largest?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_scaled_attrs,
    .attr_bytes = sizeof(mx_scaled_attr),
    .reads_in = 1 | 2 | 4 | 8 | 32 | 64,
    .late = 2 | 16,
    .reads_late = 1 | 4 | 8 | 32 | 64,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
};
