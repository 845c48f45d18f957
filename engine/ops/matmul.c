/* Matrix products and their gradients, and column sums, which are the gradient of a bias. */
#include "kernels/gemm.h"
#include "ops/pointwise.h"

#include <stdlib.h>

typedef struct matmul_attr {
    bool trans_a, trans_b;
    int dtype; /* of the result; -1: that of a */
} matmul_attr;

/* A call as `batch` products of m x k by k x n; operands of consecutive products are x_step elements apart. */
typedef struct product {
    int64_t m, n, k, batch, a_step, b_step;
} product;

static int64_t rows_of(const mx_tensor *t) { return t->shape.size[t->shape.n_dims - 2]; }
static int64_t columns_of(const mx_tensor *t) { return t->shape.size[t->shape.n_dims - 1]; }

static int64_t leading_count(const mx_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->shape.n_dims - 2; d++)
        count *= t->shape.size[d];
    return count;
}

static product product_of(const mx_tensor *a, const mx_tensor *b, bool trans_a, bool trans_b)
{
    product p = {.m = trans_a ? columns_of(a) : rows_of(a),
                 .n = trans_b ? rows_of(b) : columns_of(b),
                 .k = trans_a ? rows_of(a) : columns_of(a)};
    bool many_a = a->shape.n_dims > 2, many_b = b->shape.n_dims > 2;
    p.batch = leading_count(many_a ? a : b);
    p.a_step = many_a ? p.m * p.k : 0;
    p.b_step = many_b ? p.k * p.n : 0;
    if (many_a && !many_b && !trans_a) { /* one tall product */
        p.m *= p.batch;
        p.batch = 1;
    }
    return p;
}

/* Whether a and b have the same leading dimensions, or one of them has none. */
static bool leading_fit(const mx_tensor *a, const mx_tensor *b)
{
    if (a->shape.n_dims == 2 || b->shape.n_dims == 2)
        return true;
    bool fit = a->shape.n_dims == b->shape.n_dims;
    for (int d = 0; fit && d < a->shape.n_dims - 2; d++)
        fit = a->shape.size[d] == b->shape.size[d];
    return fit;
}

static const char *text_of(const char *name, bool trans)
{
    return name[0] == 'a' ? (trans ? "a transposed" : "a") : (trans ? "b transposed" : "b");
}

static mx_status check_operands(const mx_call *call, int a_at, bool trans_a, bool trans_b)
{
    const mx_tensor *a = call->in[a_at], *b = call->in[a_at + 1];
    if (a->shape.n_dims < 2 || b->shape.n_dims < 2)
        return mx_bad_shape(call, "a and b need at least two dimensions each");
    int64_t inner_a = trans_a ? rows_of(a) : columns_of(a), inner_b = trans_b ? columns_of(b) : rows_of(b);
    if (inner_a != inner_b)
        return mx_bad_shape(call, "inner sizes differ: %s has %lld columns, %s has %lld rows", text_of("a", trans_a),
                            (long long)inner_a, text_of("b", trans_b), (long long)inner_b);
    return MX_OK;
}

static mx_status matmul_infer(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[0], *b = call->in[1], *bias = call->n_in > 2 ? call->in[2] : NULL;
    for (int i = 0; i < call->n_in; i++)
        MX_TRY(mx_want_float(call, i));
    MX_TRY(check_operands(call, 0, attr->trans_a, attr->trans_b));
    if (!leading_fit(a, b))
        return mx_bad_shape(call, "leading dimensions differ; b must have those of a, or two dimensions");
    const mx_tensor *many = a->shape.n_dims > 2 ? a : b;
    mx_shape shape = many->shape;
    shape.size[shape.n_dims - 2] = attr->trans_a ? columns_of(a) : rows_of(a);
    shape.size[shape.n_dims - 1] = attr->trans_b ? rows_of(b) : columns_of(b);
    if (bias && (bias->shape.n_dims != 1 || bias->shape.size[0] != shape.size[shape.n_dims - 1]))
        return mx_bad_shape(call, "bias must have one dimension of %lld, the columns of the result",
                            (long long)shape.size[shape.n_dims - 1]);
    return mx_out_float(call, 0, attr->dtype, a->dtype, &shape);
}

static double flops_of(product p) { return 2.0 * (double)p.batch * (double)p.m * (double)p.n * (double)p.k; }

static mx_cost cost_of(const mx_call *call, product p)
{
    mx_cost cost = mx_cost_of(call, flops_of(p));
    cost.work = MX_WORK_PRODUCT;
    cost.m = (double)p.m;
    cost.n = (double)p.n;
    cost.k = (double)p.k;
    return cost;
}

static mx_cost matmul_cost(const mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    return cost_of(call, product_of(call->in[0], call->in[1], attr->trans_a, attr->trans_b));
}

static mx_matrix matrix_of(const mx_tensor *t, bool trans)
{
    return (mx_matrix){mx_data(t), t->dtype, columns_of(t), trans};
}

/* The bias as f32; the caller frees *copy. */
static mx_status bias_of(const mx_tensor *bias, const float **values, float **copy)
{
    if (!bias || !mx_is_bf16(bias->dtype)) {
        *values = bias ? mx_f32(bias) : NULL;
        return MX_OK;
    }
    int64_t n = mx_count(bias);
    float *f32 = malloc((size_t)(n + 1) * sizeof *f32);
    if (!f32)
        return mx_fail(MX_ERR_MEMORY, "matmul: no memory for the bias, %lld values", (long long)n);
    for (int64_t j = 0; j < n; j++)
        f32[j] = mx_from_bf16(((const mx_bf16 *)mx_data(bias))[j]);
    *values = *copy = f32;
    return MX_OK;
}

static mx_status matmul_host(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[0], *b = call->in[1];
    product p = product_of(a, b, attr->trans_a, attr->trans_b);
    mx_gemm g = {.m = p.m, .n = p.n, .k = p.k, .alpha = 1};
    g.a = matrix_of(a, attr->trans_a);
    g.b = matrix_of(b, attr->trans_b);
    g.c = matrix_of(call->out[0], false);
    float *copy = NULL;
    MX_TRY(bias_of(call->n_in > 2 ? call->in[2] : NULL, &g.bias, &copy));
    mx_status status = mx_gemm_batched(&g, p.batch, p.a_step, p.b_step, p.m * p.n);
    free(copy);
    return status;
}

/* ---- c += op(a) op(b), all three with their leading dimensions folded into rows ---- */

static int64_t folded_rows(const mx_tensor *t) { return leading_count(t) * rows_of(t); }

static product folded_product(const mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[1], *b = call->in[2];
    return (product){.m = attr->trans_a ? columns_of(a) : folded_rows(a),
                     .n = attr->trans_b ? folded_rows(b) : columns_of(b),
                     .k = attr->trans_a ? folded_rows(a) : columns_of(a),
                     .batch = 1};
}

static mx_status matmul_acc_infer(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    for (int i = 0; i < 3; i++)
        MX_TRY(mx_want_float(call, i));
    const mx_tensor *c = call->in[0], *b = call->in[2];
    for (int i = 0; i < 3; i++)
        if (call->in[i]->shape.n_dims < 2)
            return mx_bad_shape(call, "c, a and b need at least two dimensions each");
    product p = folded_product(call);
    int64_t inner_b = attr->trans_b ? columns_of(b) : folded_rows(b);
    if (p.k != inner_b)
        return mx_bad_shape(call, "inner sizes differ: %s has %lld columns, %s has %lld rows",
                            text_of("a", attr->trans_a), (long long)p.k, text_of("b", attr->trans_b),
                            (long long)inner_b);
    if (folded_rows(c) != p.m || columns_of(c) != p.n)
        return mx_bad_shape(call, "c has %lld x %lld elements, the product %lld x %lld", (long long)folded_rows(c),
                            (long long)columns_of(c), (long long)p.m, (long long)p.n);
    return MX_OK;
}

static mx_cost matmul_acc_cost(const mx_call *call)
{
    mx_cost cost = cost_of(call, folded_product(call));
    cost.bytes_written += (double)mx_bytes(call->in[0]);
    return cost;
}

static mx_status matmul_acc_host(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    product p = folded_product(call);
    mx_gemm g = {.m = p.m, .n = p.n, .k = p.k, .alpha = 1, .accumulate = true};
    g.a = matrix_of(call->in[1], attr->trans_a);
    g.b = matrix_of(call->in[2], attr->trans_b);
    g.c = matrix_of(call->in[0], false);
    return mx_gemm_run(&g);
}

/* ---- column_sum: the gradient of a bias, an operation so that it is costed and timed ---- */

typedef struct column_sum_attr {
    int dtype; /* -1: f32 */
} column_sum_attr;

static mx_status column_sum_infer(mx_call *call)
{
    const column_sum_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_float(call, 0));
    const mx_tensor *x = call->in[0];
    if (x->shape.n_dims < 1)
        return mx_bad_shape(call, "a scalar has no columns");
    mx_shape shape = {1, {columns_of(x)}};
    return mx_out_float(call, 0, attr->dtype, MX_F32, &shape);
}

static mx_cost column_sum_cost(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static mx_status column_sum_host(mx_call *call)
{
    const mx_tensor *x = call->in[0], *out = call->out[0];
    int64_t n = columns_of(x), rows = 1;
    for (int d = 0; d < x->shape.n_dims - 1; d++)
        rows *= x->shape.size[d];
    if (!mx_is_bf16(out->dtype)) {
        mx_column_sum(rows, n, mx_data(x), x->dtype, mx_f32(out));
        return MX_OK;
    }
    float *sums = malloc((size_t)(n + 1) * sizeof *sums);
    if (!sums)
        return mx_fail(MX_ERR_MEMORY, "column_sum: no memory for %lld sums", (long long)n);
    mx_column_sum(rows, n, mx_data(x), x->dtype, sums);
    for (int64_t j = 0; j < n; j++)
        ((mx_bf16 *)mx_data(out))[j] = mx_to_bf16(sums[j]);
    free(sums);
    return MX_OK;
}

static const mx_attr column_sum_attrs[] = {
    {"dtype", MX_ATTR_DTYPE, offsetof(column_sum_attr, dtype), -1, NULL,
     "dtype of the result, f32 (the default) or bf16"},
    {0},
};

const mx_op mx_op_column_sum = {
    .name = "column_sum",
    .doc = "sum of x (..., n) over all dimensions except the last -> (n)",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = column_sum_attrs,
    .attr_bytes = sizeof(column_sum_attr),
    .infer = column_sum_infer,
    .cost = column_sum_cost,
    .host = column_sum_host,
};

/* ---- gradients ---- */

/* The gradient of an operand is a product too: op(first) op(second), with the operand's stored shape. */
typedef struct gradient {
    mx_tensor *first, *second;
    bool trans_first, trans_second;
} gradient;

static gradient gradient_of(const mx_vjp *v, int i)
{
    const matmul_attr *attr = mx_call_attr(v->call);
    mx_tensor *a = v->call->in[0], *b = v->call->in[1], *dc = v->out_grad[0];
    if (i == 0)
        return attr->trans_a ? (gradient){b, dc, attr->trans_b, true} : (gradient){dc, b, false, !attr->trans_b};
    return attr->trans_b ? (gradient){dc, a, true, attr->trans_a} : (gradient){a, dc, !attr->trans_a, false};
}

/* Adds the product to *sum, or sets *sum to a new product of `dtype`. */
static mx_status add_product(gradient g, mx_dtype dtype, mx_tensor **sum)
{
    matmul_attr attr = {g.trans_first, g.trans_second, (int)dtype};
    if (*sum) {
        mx_tensor *in[3] = {*sum, g.first, g.second};
        return mx_apply(&mx_op_matmul_acc, in, 3, MX_ATTRS(attr), NULL);
    }
    mx_tensor *in[2] = {g.first, g.second};
    return mx_apply(&mx_op_matmul, in, 2, MX_ATTRS(attr), sum);
}

/* A view of two dimensions: product `item` of a batch, or (item < 0) all with the leading dimensions in the rows. */
static mx_status matrix_view(const mx_tensor *t, int64_t item, mx_tensor **view)
{
    mx_shape shape = {2, {item < 0 ? folded_rows(t) : rows_of(t), columns_of(t)}};
    MX_TRY(mx_tensor_new_empty(t->dtype, &shape, view));
    int64_t step = rows_of(t) * columns_of(t) * (int64_t)mx_dtype_bytes(t->dtype);
    mx_tensor_alias(*view, t, item < 0 || t->shape.n_dims == 2 ? 0 : item * step);
    return MX_OK;
}

static mx_status add_view_product(gradient g, int64_t item, mx_dtype dtype, mx_tensor **sum)
{
    gradient of = g;
    MX_TRY(matrix_view(g.first, item, &of.first));
    mx_status status = matrix_view(g.second, item, &of.second);
    if (status == MX_OK) {
        status = add_product(of, dtype, sum);
        mx_release(of.second);
    }
    mx_release(of.first);
    return status;
}

/* The gradient of an operand that a batch shared: the sum over the batch. If the batch is the leading dimension of the
 * rows over which the product sums, this is one product; otherwise it is one product per item, accumulated in f32. */
static mx_status shared_gradient(mx_vjp *v, int i, gradient g)
{
    mx_dtype dtype = mx_vjp_dtype(v, i);
    bool one = g.trans_first && !g.trans_second && g.first->shape.n_dims > 2 && g.second->shape.n_dims > 2;
    if (one && v->sum[i])
        return add_product(g, dtype, &v->sum[i]);
    if (one)
        return add_view_product(g, -1, dtype, &v->grad[i]);
    int64_t batch = leading_count(v->out_grad[0]);
    for (int64_t item = 0; item < batch; item++)
        MX_TRY(add_view_product(g, item, MX_F32, &v->grad[i]));
    if (batch == 0) /* an empty sum */
        return mx_apply_full(&v->call->in[i]->shape, dtype, 0, &v->grad[i]);
    return mx_grad_cast(&v->grad[i], dtype);
}

static mx_status operand_gradient(mx_vjp *v, int i)
{
    gradient g = gradient_of(v, i);
    bool shared = v->call->in[i]->shape.n_dims == 2 && v->out_grad[0]->shape.n_dims > 2;
    if (shared)
        return shared_gradient(v, i, g);
    /* matmul_acc folds leading dimensions: correct if only the first operand has some, as rows of the result. */
    bool folds = g.second->shape.n_dims == 2 && (g.first->shape.n_dims == 2 || !g.trans_first);
    if (folds && v->sum[i])
        return add_product(g, v->sum[i]->dtype, &v->sum[i]);
    return add_product(g, mx_vjp_dtype(v, i), &v->grad[i]);
}

/* The gradient of b comes first, because that of a, which is as large as a, can then take a's memory. */
static mx_status matmul_vjp(mx_vjp *v)
{
    if (v->want[1])
        MX_TRY(operand_gradient(v, 1));
    mx_vjp_let_go(v, 0);
    if (v->want[0])
        MX_TRY(operand_gradient(v, 0));
    if (!v->want[2])
        return MX_OK;
    const column_sum_attr attr = {(int)mx_vjp_dtype(v, 2)};
    return mx_apply(&mx_op_column_sum, &v->out_grad[0], 1, MX_ATTRS(attr), &v->grad[2]);
}

/* ---- the tables ---- */

static const mx_attr matmul_attrs[] = {
    {"trans_a", MX_ATTR_BOOL, offsetof(matmul_attr, trans_a), 0, NULL, "a is stored (..., k, m)"},
    {"trans_b", MX_ATTR_BOOL, offsetof(matmul_attr, trans_b), 0, NULL, "b is stored (..., n, k)"},
    {"dtype", MX_ATTR_DTYPE, offsetof(matmul_attr, dtype), -1, NULL,
     "dtype of the result, f32 or bf16; default: that of a"},
    {0},
};

const mx_op mx_op_matmul = {
    .name = "matmul",
    .doc = "a (..., m, k) times b, which is (k, n) or has the leading dimensions of a, plus bias (n) -> (..., m, n); "
           "bf16 arithmetic unless a and b are f32",
    .inputs = (const char *const[]){"a", "b", "bias?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = matmul_attrs,
    .attr_bytes = sizeof(matmul_attr),
    .reads_in = 1 | 2,
    .infer = matmul_infer,
    .cost = matmul_cost,
    .host = matmul_host,
    .vjp = matmul_vjp,
};

static const mx_attr matmul_acc_attrs[] = {
    {"trans_a", MX_ATTR_BOOL, offsetof(matmul_attr, trans_a), 0, NULL, "use a transposed"},
    {"trans_b", MX_ATTR_BOOL, offsetof(matmul_attr, trans_b), 0, NULL, "use b transposed"},
    {0},
};

const mx_op mx_op_matmul_acc = {
    .name = "matmul_acc",
    .doc = "c (m, n) += a (m, k) times b (k, n) in place; leading dimensions count as rows",
    .inputs = (const char *const[]){"c", "a", "b", NULL},
    .flags = MX_OP_MUTATES,
    .attrs = matmul_acc_attrs,
    .attr_bytes = sizeof(matmul_attr),
    .infer = matmul_acc_infer,
    .cost = matmul_acc_cost,
    .host = matmul_acc_host,
};
