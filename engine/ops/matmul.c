/* Matrix products and their gradients, and column sums, which are the gradient of a bias. */
#include "kernels/gemm.h"
#include "kernels/reduce.h"
#include "ops/pointwise.h"

#include <stdlib.h>

typedef struct matmul_attr {
    bool trans_a, trans_b;
    int dtype; /* of the result; -1: that of a */
} matmul_attr;

/* One operand of a product: a matrix with leading dimensions. A vector a is one row, a vector b one column. */
typedef struct operand {
    int64_t rows, columns; /* as stored */
    int n_lead;
    const int64_t *lead;
} operand;

static operand operand_of(const mx_tensor *t, bool is_a)
{
    const int64_t *size = t->shape.size;
    int n = t->shape.n_dims;
    if (n == 1)
        return is_a ? (operand){.rows = 1, .columns = size[0]} : (operand){.rows = size[0], .columns = 1};
    return (operand){.rows = size[n - 2], .columns = size[n - 1], .n_lead = n - 2, .lead = size};
}

/* A call as m x k by k x n products, one for each index of the leading dimensions `lead`, to which those of a and b are
 * broadcast. a_step and b_step: from one product to the next along each of these dimensions, in elements; 0: shared. */
typedef struct product {
    int64_t m, n, k, batch;
    mx_shape lead;
    int64_t a_step[MX_MAX_DIMS], b_step[MX_MAX_DIMS];
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

/* The size of leading dimension d of the `n` of the result. */
static int64_t lead_size(operand x, int d, int n)
{
    int own = d - (n - x.n_lead);
    return own < 0 ? 1 : x.lead[own];
}

/* The leading dimensions of a and b, aligned at the last, and broadcast; false if they do not fit. */
static bool broadcast_leading(operand a, operand b, mx_shape *lead)
{
    lead->n_dims = a.n_lead > b.n_lead ? a.n_lead : b.n_lead;
    for (int d = 0; d < lead->n_dims; d++) {
        int64_t in_a = lead_size(a, d, lead->n_dims), in_b = lead_size(b, d, lead->n_dims);
        if (in_a != in_b && in_a != 1 && in_b != 1)
            return false;
        lead->size[d] = in_a == 1 ? in_b : in_a;
    }
    return true;
}

static void set_steps(operand x, const mx_shape *lead, int64_t *steps)
{
    int64_t step = x.rows * x.columns;
    for (int d = lead->n_dims - 1; d >= 0; d--) {
        int64_t size = lead_size(x, d, lead->n_dims);
        steps[d] = size == 1 ? 0 : step;
        step *= size;
    }
}

static product product_of(const mx_tensor *left, const mx_tensor *right, bool trans_a, bool trans_b)
{
    operand a = operand_of(left, true), b = operand_of(right, false);
    product p = {
        .m = trans_a ? a.columns : a.rows, .n = trans_b ? b.rows : b.columns, .k = trans_a ? a.rows : a.columns};
    (void)broadcast_leading(a, b, &p.lead); /* infer has checked it */
    p.batch = mx_shape_count(&p.lead);
    set_steps(a, &p.lead, p.a_step);
    set_steps(b, &p.lead, p.b_step);
    return p;
}

static const char *text_of(const char *name, bool trans)
{
    return name[0] == 'a' ? (trans ? "a transposed" : "a") : (trans ? "b transposed" : "b");
}

static mx_status check_operands(const mx_call *call, bool trans_a, bool trans_b)
{
    operand a = operand_of(call->in[0], true), b = operand_of(call->in[1], false);
    int64_t inner_a = trans_a ? a.rows : a.columns, inner_b = trans_b ? b.columns : b.rows;
    if (inner_a != inner_b)
        return mx_bad_shape(call, "inner sizes differ: %s has %lld columns, %s has %lld rows", text_of("a", trans_a),
                            (long long)inner_a, text_of("b", trans_b), (long long)inner_b);
    return MX_OK;
}

static mx_status check_dims(const mx_call *call, bool trans_a, bool trans_b)
{
    int n_a = call->in[0]->shape.n_dims, n_b = call->in[1]->shape.n_dims;
    if (n_a == 0 || n_b == 0)
        return mx_bad_shape(call, "a and b are matrices or vectors, not numbers; mx.mul multiplies by a number");
    if ((trans_a && n_a == 1) || (trans_b && n_b == 1))
        return mx_bad_shape(call, "%s is a vector, which cannot be transposed", trans_a && n_a == 1 ? "a" : "b");
    return MX_OK;
}

/* lead + (m, n), without m where a is a vector and without n where b is one. */
static mx_shape result_shape(const mx_call *call, const product *p)
{
    mx_shape shape = p->lead;
    if (call->in[0]->shape.n_dims > 1)
        shape.size[shape.n_dims++] = p->m;
    if (call->in[1]->shape.n_dims > 1)
        shape.size[shape.n_dims++] = p->n;
    return shape;
}

static mx_status matmul_infer(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[0], *b = call->in[1], *bias = call->in[2];
    MX_TRY(mx_want_reals(call));
    MX_TRY(check_dims(call, attr->trans_a, attr->trans_b));
    MX_TRY(check_operands(call, attr->trans_a, attr->trans_b));
    if (!broadcast_leading(operand_of(a, true), operand_of(b, false), &(mx_shape){0}))
        return mx_bad_shape(call, "leading dimensions differ; those of a and b must be equal, or 1, or missing");
    product p = product_of(a, b, attr->trans_a, attr->trans_b);
    mx_shape shape = result_shape(call, &p);
    if (bias && (bias->shape.n_dims != 1 || b->shape.n_dims == 1 || bias->shape.size[0] != p.n))
        return mx_bad_shape(call, "bias must have one dimension of %lld, the columns of the result", (long long)p.n);
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

static mx_matrix matrix_of(const mx_tensor *t, bool is_a, bool trans)
{
    return (mx_matrix){mx_data(t), t->dtype, operand_of(t, is_a).columns, trans};
}

/* Fills the rows of C with the bias, which the product is then added to. */
static void start_with_bias(const mx_tensor *bias, const mx_tensor *c)
{
    int64_t n = mx_count(bias), count = mx_count(c);
    for (int64_t i = 0; i < count; i += n)
        memcpy((double *)mx_data(c) + i, mx_data(bias), (size_t)n * sizeof(double));
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

/* The products of the last dimensions that step evenly through a and b: as one tall product if they share b. */
static mx_status run_evenly(mx_gemm g, int64_t batch, int64_t a_step, int64_t b_step)
{
    if (batch > 1 && b_step == 0 && a_step == g.m * g.k && !g.a.trans) {
        g.m *= batch;
        return mx_gemm_run(&g);
    }
    return mx_gemm_batched(&g, batch, a_step, b_step, g.m * g.n);
}

static mx_status run_products(mx_gemm g, const product *p)
{
    int d = p->lead.n_dims;
    int64_t inner = 1, a_step = 0, b_step = 0;
    for (; d > 0; inner *= p->lead.size[--d]) {
        bool first = inner == 1, one = p->lead.size[d - 1] == 1;
        if (!first && !one && (p->a_step[d - 1] != inner * a_step || p->b_step[d - 1] != inner * b_step))
            break;
        a_step = first ? p->a_step[d - 1] : a_step;
        b_step = first ? p->b_step[d - 1] : b_step;
    }
    char *a = g.a.data, *b = g.b.data, *c = g.c.data;
    int64_t a_bytes = (int64_t)mx_dtype_bytes(g.a.dtype), b_bytes = (int64_t)mx_dtype_bytes(g.b.dtype);
    int64_t outer = inner > 0 ? p->batch / inner : 0;
    for (int64_t i = 0; i < outer; i++) {
        int64_t rest = i, at_a = 0, at_b = 0;
        for (int k = d - 1; k >= 0; rest /= p->lead.size[k], k--) {
            at_a += rest % p->lead.size[k] * p->a_step[k];
            at_b += rest % p->lead.size[k] * p->b_step[k];
        }
        g.a.data = a + at_a * a_bytes;
        g.b.data = b + at_b * b_bytes;
        g.c.data = c + i * inner * p->m * p->n * (int64_t)mx_dtype_bytes(g.c.dtype);
        MX_TRY(run_evenly(g, inner, a_step, b_step));
    }
    return MX_OK;
}

static mx_status matmul_host(mx_call *call)
{
    const matmul_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[0], *b = call->in[1];
    product p = product_of(a, b, attr->trans_a, attr->trans_b);
    mx_gemm g = {.m = p.m, .n = p.n, .k = p.k, .alpha = 1};
    g.a = matrix_of(a, true, attr->trans_a);
    g.b = matrix_of(b, false, attr->trans_b);
    g.c = (mx_matrix){mx_data(call->out[0]), call->out[0]->dtype, p.n, false};
    float *copy = NULL;
    const mx_tensor *bias = call->in[2];
    g.accumulate = bias && bias->dtype == MX_F64;
    if (g.accumulate)
        start_with_bias(bias, call->out[0]);
    else
        MX_TRY(bias_of(bias, &g.bias, &copy));
    mx_status status = run_products(g, &p);
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
    MX_TRY(mx_want_reals(call));
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
    g.a = matrix_of(call->in[1], true, attr->trans_a);
    g.b = matrix_of(call->in[2], false, attr->trans_b);
    g.c = matrix_of(call->in[0], true, false);
    return mx_gemm_run(&g);
}

/* ---- column_sum: the gradient of a bias, an operation so that it is costed and timed ---- */

typedef struct column_sum_attr {
    int dtype; /* -1: f32, or f64 for f64 */
} column_sum_attr;

static mx_status column_sum_infer(mx_call *call)
{
    const column_sum_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_reals(call));
    const mx_tensor *x = call->in[0];
    if (x->shape.n_dims < 1)
        return mx_bad_shape(call, "a scalar has no columns");
    mx_shape shape = {1, {columns_of(x)}};
    return mx_out_float(call, 0, attr->dtype, mx_dtype_accumulates_in(x->dtype), &shape);
}

static mx_cost column_sum_cost(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static mx_status column_sum_host(mx_call *call)
{
    const mx_tensor *x = call->in[0], *out = call->out[0];
    int64_t n = columns_of(x), rows = 1;
    for (int d = 0; d < x->shape.n_dims - 1; d++)
        rows *= x->shape.size[d];
    if (out->dtype == MX_F64)
        return mx_reduce_sum(mx_array_of(x), (mx_extent){1, rows, n}, 1.0, mx_array_of(out));
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
     "dtype of the result, f32 (the default) or bf16; f64 for f64"},
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
        MX_TRY(add_view_product(g, item, mx_dtype_accumulates_in(dtype), &v->grad[i]));
    if (batch == 0) /* an empty sum */
        return mx_apply_full(&v->call->in[i]->shape, dtype, 0, &v->grad[i]);
    return mx_grad_cast(&v->grad[i], dtype);
}

/* t as op(t) is stored, with `n_lead` leading dimensions: a view. */
static mx_status as_matrix(mx_tensor *t, mx_shape lead, int64_t rows, int64_t columns, mx_tensor **view)
{
    lead.size[lead.n_dims++] = rows;
    lead.size[lead.n_dims++] = columns;
    return mx_apply_reshape(t, &lead, view);
}

/* The gradient as a product of all matrices, summed over the dimensions that were broadcast. It is made of operations
 * with gradients, and takes vectors and every kind of leading dimensions. */
static mx_status general_gradient(mx_vjp *v, int i)
{
    const matmul_attr *attr = mx_call_attr(v->call);
    mx_tensor *t = v->call->in[i], *other = v->call->in[1 - i], *dc = NULL, *full = NULL, *sum = NULL;
    product p = product_of(v->call->in[0], v->call->in[1], attr->trans_a, attr->trans_b);
    operand own = operand_of(t, i == 0), second = operand_of(other, i == 1);
    mx_shape lead = {.n_dims = second.n_lead};
    for (int d = 0; d < second.n_lead; d++)
        lead.size[d] = second.lead[d];
    MX_TRY(as_matrix(v->out_grad[0], p.lead, p.m, p.n, &dc));
    mx_status status = as_matrix(other, lead, second.rows, second.columns, &other);
    if (status == MX_OK) {
        bool trans = i == 0 ? attr->trans_a : attr->trans_b;
        gradient g =
            i == 0
                ? (trans ? (gradient){other, dc, attr->trans_b, true} : (gradient){dc, other, false, !attr->trans_b})
                : (trans ? (gradient){dc, other, true, attr->trans_a} : (gradient){other, dc, !attr->trans_a, false});
        status = add_product(g, mx_vjp_dtype(v, i), &full);
        mx_release(other);
    }
    mx_release(dc);
    MX_TRY(status);
    mx_reduce_to_attr to = {.shape = {.n_dims = own.n_lead}, .dtype = (int)mx_vjp_dtype(v, i)};
    for (int d = 0; d < own.n_lead; d++)
        to.shape.size[d] = own.lead[d];
    to.shape.size[to.shape.n_dims++] = own.rows;
    to.shape.size[to.shape.n_dims++] = own.columns;
    if (mx_shape_equal(&full->shape, &to.shape))
        sum = full;
    else {
        status = mx_apply(&mx_op_reduce_to, &full, 1, MX_ATTRS(to), &sum);
        mx_release(full);
        MX_TRY(status);
    }
    status = mx_apply_reshape(sum, &t->shape, &v->grad[i]);
    mx_release(sum);
    return status;
}

/* Whether the products have the same matrices as operands as their gradients: a and b have equal leading dimensions, or
 * one of them has none. */
static bool is_plain(const mx_call *call)
{
    const mx_shape *a = &call->in[0]->shape, *b = &call->in[1]->shape;
    bool plain = a->n_dims >= 2 && b->n_dims >= 2;
    if (!plain || a->n_dims == 2 || b->n_dims == 2)
        return plain;
    plain = a->n_dims == b->n_dims;
    for (int d = 0; plain && d < a->n_dims - 2; d++)
        plain = a->size[d] == b->size[d];
    return plain;
}

static mx_status operand_gradient(mx_vjp *v, int i)
{
    if (!is_plain(v->call))
        return general_gradient(v, i);
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

static mx_status matmul_vjp_recorded(mx_vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->want[i])
            MX_TRY(general_gradient(v, i));
    if (!v->want[2])
        return MX_OK;
    const mx_reduce_to_attr to = {.shape = v->call->in[2]->shape, .dtype = (int)mx_vjp_dtype(v, 2)};
    return mx_apply(&mx_op_reduce_to, &v->out_grad[0], 1, MX_ATTRS(to), &v->grad[2]);
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
     "dtype of the result, f32 or bf16; default: that of a; f64 for f64"},
    {0},
};

const mx_op mx_op_matmul = {
    .name = "matmul",
    .doc =
        "a (..., m, k) times b (..., k, n), plus bias (n) -> (..., m, n), with leading dimensions broadcast; a may be "
        "a vector (k), a row without m, and b one (k), a column without n; bf16 arithmetic unless a and b are f32, "
        "or all are f64",
    .inputs = (const char *const[]){"a", "b", "bias?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = matmul_attrs,
    .attr_bytes = sizeof(matmul_attr),
    .reads_in = 1 | 2,
    .late = 2 | 4,
    .reads_late = 1,
    .infer = matmul_infer,
    .cost = matmul_cost,
    .host = matmul_host,
    .vjp = matmul_vjp,
    .vjp_recorded = matmul_vjp_recorded,
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

mx_status mx_apply_matmul(mx_tensor *a, mx_tensor *b, bool trans_a, bool trans_b, mx_tensor **c)
{
    const matmul_attr attr = {.trans_a = trans_a, .trans_b = trans_b, .dtype = -1};
    return mx_apply(&mx_op_matmul, (mx_tensor *[]){a, b}, 2, MX_ATTRS(attr), c);
}
