/* Grouped matrix products: rows in runs, each multiplied by a matrix of its own, as the experts of a layer do. */
#include "ops/grouped.h"

#include "core/element.h"
#include "kernels/shape.h"
#include "ops/rows.h"
#include "ops/terms.h"

#include <stdlib.h>

typedef struct grouped_attr {
    bool trans_b;
    int dtype; /* of the result; -1: that of x */
} grouped_attr;

mx_status mx_want_counts(const mx_call *call, int i, int64_t groups)
{
    mx_shape shape = mx_vector(groups);
    MX_TRY(mx_want_dtype(call, i, MX_I32));
    return mx_want_shape(call, i, &shape);
}

static mx_status want_dims(const mx_call *call, int i, int n_dims, const char *what)
{
    MX_TRY(mx_want_float(call, i));
    if (call->in[i]->shape.n_dims != n_dims)
        return mx_bad_shape(call, "'%s' must be %s", mx_input_name(call, i, (char[32]){0}), what);
    return MX_OK;
}

mx_cost mx_grouped_cost(const mx_call *call, const mx_grouped *g, bool rows_are_summed)
{
    double rows = g->groups > 0 ? (double)g->rows / (double)g->groups : 0;
    mx_cost cost = mx_cost_of(call, 2.0 * (double)g->rows * (double)g->k * (double)g->n);
    cost.work = MX_WORK_PRODUCT;
    cost.m = rows_are_summed ? (double)g->k : rows;
    cost.n = (double)g->n;
    cost.k = rows_are_summed ? rows : (double)g->k;
    return cost;
}

mx_status mx_check_counts(const mx_call *call, const mx_tensor *counts, int64_t rows, int64_t *used)
{
    const int32_t *count = mx_data(counts);
    *used = 0;
    for (int64_t g = 0; g < mx_count(counts); g++) {
        if (count[g] < 0)
            return mx_bad_value(call, "counts[%lld] = %d; expected at least 0", (long long)g + 1, count[g]);
        *used += count[g];
    }
    if (*used > rows)
        return mx_bad_value(call, "counts add up to %lld rows, but there are only %lld", (long long)*used,
                            (long long)rows);
    return MX_OK;
}

mx_matrix mx_rows_from(const mx_tensor *t, int64_t row, bool trans)
{
    int64_t width = t->shape.size[1];
    return (mx_matrix){(char *)mx_data(t) + row * width * (int64_t)mx_dtype_bytes(t->dtype), t->dtype, width, trans};
}

mx_matrix mx_matrix_of_group(const mx_tensor *t, int64_t group, bool trans)
{
    int64_t columns = t->shape.size[2], step = t->shape.size[1] * columns;
    return (mx_matrix){(char *)mx_data(t) + group * step * (int64_t)mx_dtype_bytes(t->dtype), t->dtype, columns, trans};
}

mx_status mx_new_products(const mx_call *call, int64_t groups, mx_gemm **products)
{
    *products = calloc((size_t)groups + 1, sizeof **products);
    if (!*products)
        return mx_fail(MX_ERR_MEMORY, "%s: no memory for a list of %lld products", call->op->name, (long long)groups);
    return MX_OK;
}

void mx_zero_rows(const mx_tensor *t, int64_t from)
{
    int64_t bytes = t->shape.size[1] * (int64_t)mx_dtype_bytes(t->dtype);
    mx_zero_runs((char *)mx_data(t) + from * bytes, 0, 1, (t->shape.size[0] - from) * bytes);
}

/* ---- grouped_matmul ---- */

enum { X, W, COUNTS, BIAS };

static mx_grouped grouped_of(const mx_call *call)
{
    const mx_tensor *x = call->in[0], *w = call->in[1];
    bool trans = ((const grouped_attr *)mx_call_attr(call))->trans_b;
    return (mx_grouped){.groups = w->shape.size[0],
                        .rows = x->shape.size[0],
                        .k = w->shape.size[trans ? 2 : 1],
                        .n = w->shape.size[trans ? 1 : 2],
                        .trans = trans};
}

static mx_status infer_grouped(mx_call *call)
{
    MX_TRY(want_dims(call, 0, 2, "(rows, k)"));
    MX_TRY(want_dims(call, 1, 3, "(groups, k, n)"));
    mx_grouped g = grouped_of(call);
    MX_TRY(mx_want_counts(call, 2, g.groups));
    if (call->in[0]->shape.size[1] != g.k)
        return mx_bad_shape(call, "inner sizes differ: x has %lld columns, the matrices of w%s have %lld rows",
                            (long long)call->in[0]->shape.size[1], g.trans ? " transposed" : "", (long long)g.k);
    mx_shape shape = {2, {g.rows, g.n}}, biases = {2, {g.groups, g.n}};
    if (call->in[BIAS]) {
        MX_TRY(mx_want_float(call, BIAS));
        MX_TRY(mx_want_shape(call, BIAS, &biases));
    }
    return mx_out_float(call, 0, ((const grouped_attr *)mx_call_attr(call))->dtype, call->in[0]->dtype, &shape);
}

static mx_cost cost_grouped(const mx_call *call)
{
    mx_grouped g = grouped_of(call);
    return mx_grouped_cost(call, &g, false);
}

/* The biases as f32, or NULL; the caller frees *copy. */
static mx_status biases_of(const mx_call *call, const float **bias, float **copy)
{
    const mx_tensor *t = call->in[BIAS];
    *bias = t && t->dtype == MX_F32 ? mx_f32(t) : NULL;
    if (!t || t->dtype == MX_F32)
        return MX_OK;
    float *values = malloc((size_t)(mx_count(t) + 1) * sizeof *values);
    if (!values)
        return mx_fail(MX_ERR_MEMORY, "grouped_matmul: no memory for %lld biases", (long long)mx_count(t));
    for (int64_t i = 0; i < mx_count(t); i++)
        values[i] = mx_from_bf16(((const mx_bf16 *)mx_data(t))[i]);
    *bias = *copy = values;
    return MX_OK;
}

static mx_status host_grouped(mx_call *call)
{
    const mx_tensor *x = call->in[0], *w = call->in[1], *y = call->out[0];
    const int32_t *count = mx_data(call->in[2]);
    mx_grouped s = grouped_of(call);
    int64_t used, row = 0;
    mx_gemm *products;
    float *copy = NULL;
    const float *bias;
    MX_TRY(mx_check_counts(call, call->in[2], s.rows, &used));
    MX_TRY(biases_of(call, &bias, &copy));
    mx_status status = mx_new_products(call, s.groups, &products);
    if (status != MX_OK) {
        free(copy);
        return status;
    }
    for (int64_t g = 0; g < s.groups; row += count[g++])
        products[g] = (mx_gemm){.m = count[g],
                                .n = s.n,
                                .k = s.k,
                                .a = mx_rows_from(x, row, false),
                                .b = mx_matrix_of_group(w, g, s.trans),
                                .c = mx_rows_from(y, row, false),
                                .bias = bias ? bias + g * s.n : NULL,
                                .alpha = 1};
    status = mx_gemm_many(products, s.groups);
    free(products);
    free(copy);
    mx_zero_rows(y, used);
    return status;
}

/* dW of each group, added to v->sum[1] where there is one. */
static mx_status give_weight_gradient(mx_vjp *v)
{
    const mx_call *call = v->call;
    const grouped_attr *attr = mx_call_attr(call);
    mx_tensor *x = call->in[0], *dy = v->out_grad[0], *counts = call->in[2], *dw = NULL;
    mx_tensor *in[4] = {v->sum[1], attr->trans_b ? dy : x, attr->trans_b ? x : dy, counts};
    if (v->sum[1] && v->sum[1]->dtype == MX_F32)
        return mx_apply(&mx_op_grouped_matmul_acc, in, 4, MX_NO_ATTRS, NULL);
    grouped_attr dtype = {.dtype = (int)mx_vjp_dtype(v, 1)};
    MX_TRY(mx_apply(&mx_op_grouped_matmul_grad, in + 1, 3, MX_ATTRS(dtype), &dw));
    return mx_give_grad(v, 1, dw);
}

static mx_status give_bias_gradient(mx_vjp *v)
{
    mx_tensor *db = NULL, *in[] = {v->out_grad[0], v->call->in[COUNTS]};
    MX_TRY(mx_apply(&mx_op_grouped_column_sum, in, 2, MX_NO_ATTRS, &db));
    return mx_give_grad(v, BIAS, db);
}

static mx_status vjp_grouped(mx_vjp *v)
{
    const mx_call *call = v->call;
    const grouped_attr *attr = mx_call_attr(call);
    if (v->want[1])
        MX_TRY(give_weight_gradient(v));
    if (v->want[BIAS])
        MX_TRY(give_bias_gradient(v));
    mx_vjp_let_go(v, 0);
    if (!v->want[0])
        return MX_OK;
    grouped_attr other = {!attr->trans_b, (int)mx_vjp_dtype(v, 0)};
    mx_tensor *dx = NULL, *in[3] = {v->out_grad[0], call->in[1], call->in[2]};
    MX_TRY(mx_apply(&mx_op_grouped_matmul, in, 3, MX_ATTRS(other), &dx));
    return mx_give_grad(v, 0, dx);
}

static const mx_attr grouped_attrs[] = {
    {"trans_b", MX_ATTR_BOOL, offsetof(grouped_attr, trans_b), 0, NULL, "w is stored (groups, n, k)"},
    {"dtype", MX_ATTR_DTYPE, offsetof(grouped_attr, dtype), -1, NULL,
     "dtype of the result, f32 or bf16; default: that of x"},
    {0}};

const mx_op mx_op_grouped_matmul = {
    .name = "grouped_matmul",
    .doc = "x (rows, k), the first counts[1] rows times w[1], the next counts[2] times w[2] ... for w (groups, k, n), "
           "plus "
           "the group's row of bias (groups, n) -> (rows, n); rows beyond the sum of counts (i32) are 0",
    .inputs = (const char *const[]){"x", "w", "counts", "bias?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = grouped_attrs,
    .attr_bytes = sizeof(grouped_attr),
    .reads_in = 1 | 2 | 4,
    .late = 2,
    .reads_late = 1 | 4,
    .infer = infer_grouped,
    .cost = cost_grouped,
    .host = host_grouped,
    .vjp = vjp_grouped,
    .vjp_recorded = vjp_grouped,
};

/* ---- the gradient of the biases ---- */

static mx_status infer_column_sum(mx_call *call)
{
    MX_TRY(want_dims(call, 0, 2, "(rows, n)"));
    if (call->in[1]->shape.n_dims != 1)
        return mx_bad_shape(call, "'counts' must be (groups)");
    MX_TRY(mx_want_counts(call, 1, mx_count(call->in[1])));
    return mx_out(call, 0, MX_F32, &(mx_shape){2, {mx_count(call->in[1]), call->in[0]->shape.size[1]}});
}

static mx_cost cost_column_sum(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static mx_status host_column_sum(mx_call *call)
{
    const mx_tensor *x = call->in[0], *counts = call->in[1];
    const int32_t *count = mx_data(counts);
    int64_t n = x->shape.size[1], bytes = n * (int64_t)mx_dtype_bytes(x->dtype), row = 0, used;
    MX_TRY(mx_check_counts(call, counts, x->shape.size[0], &used));
    for (int64_t g = 0; g < mx_count(counts); row += count[g++])
        mx_column_sum(count[g], n, (char *)mx_data(x) + row * bytes, x->dtype, mx_f32(call->out[0]) + g * n);
    return MX_OK;
}

/* To each row the gradient of its group's sum; 0 to rows beyond the sum of counts. */
static mx_status vjp_column_sum(mx_vjp *v)
{
    const mx_call *call = v->call;
    const mx_tensor *x = call->in[0];
    const grouped_attr dtype = {.dtype = (int)mx_vjp_dtype(v, 0)};
    mx_shape column = {2, {x->shape.size[0], 1}}, rows = {3, {mx_count(call->in[1]), 1, x->shape.size[1]}};
    mx_tensor *ones = NULL, *dx = NULL;
    mx_terms s = {.n = 0};
    mx_term_keep(&s, mx_apply_full(&column, MX_F32, 1, &ones), &ones);
    mx_tensor *sums = mx_term_reshape(&s, v->out_grad[0], &rows);
    if (sums)
        s.status = mx_apply(&mx_op_grouped_matmul, (mx_tensor *[]){ones, sums, call->in[1]}, 3, MX_ATTRS(dtype), &dx);
    mx_status status = s.status;
    mx_terms_release(&s);
    return dx ? mx_give_grad(v, 0, dx) : status;
}

const mx_op mx_op_grouped_column_sum = {
    .name = "grouped_column_sum",
    .doc = "for each group, the sum of its rows of x (rows, n) -> f32 (groups, n): the first counts[1] rows, the next "
           "counts[2] ...; 0 for a group without rows",
    .inputs = (const char *const[]){"x", "counts", NULL},
    .n_out = 1,
    .n_results = 1,
    .reads_in = 2,
    .infer = infer_column_sum,
    .cost = cost_column_sum,
    .host = host_column_sum,
    .vjp = vjp_column_sum,
    .vjp_recorded = vjp_column_sum,
};

/* ---- the gradient of w: for each group the transposed rows of a times those of b ---- */

static mx_grouped sums_of(const mx_call *call, int a)
{
    const mx_tensor *x = call->in[a], *y = call->in[a + 1];
    return (mx_grouped){
        .groups = mx_count(call->in[a + 2]), .rows = x->shape.size[0], .k = x->shape.size[1], .n = y->shape.size[1]};
}

static mx_status want_two_runs(const mx_call *call, int a)
{
    MX_TRY(want_dims(call, a, 2, "(rows, k)"));
    MX_TRY(want_dims(call, a + 1, 2, "(rows, n)"));
    if (call->in[a + 2]->shape.n_dims != 1)
        return mx_bad_shape(call, "'counts' must be (groups)");
    MX_TRY(mx_want_counts(call, a + 2, mx_count(call->in[a + 2])));
    if (call->in[a]->shape.size[0] != call->in[a + 1]->shape.size[0])
        return mx_bad_shape(call, "a and b must have as many rows");
    return MX_OK;
}

static mx_status sum_groups(const mx_call *call, int a, const mx_tensor *out, bool accumulate)
{
    const int32_t *count = mx_data(call->in[a + 2]);
    mx_grouped s = sums_of(call, a);
    int64_t used, row = 0, n = 0, bytes = s.k * s.n * (int64_t)mx_dtype_bytes(out->dtype);
    mx_gemm *products;
    MX_TRY(mx_check_counts(call, call->in[a + 2], s.rows, &used));
    MX_TRY(mx_new_products(call, s.groups, &products));
    for (int64_t g = 0; g < s.groups; row += count[g++]) {
        if (count[g] == 0 && !accumulate)
            mx_zero_runs((char *)mx_data(out) + g * bytes, 0, 1, bytes);
        if (count[g] > 0)
            products[n++] = (mx_gemm){.m = s.k,
                                      .n = s.n,
                                      .k = count[g],
                                      .a = mx_rows_from(call->in[a], row, true),
                                      .b = mx_rows_from(call->in[a + 1], row, false),
                                      .c = mx_matrix_of_group(out, g, false),
                                      .alpha = 1,
                                      .accumulate = accumulate};
    }
    mx_status status = mx_gemm_many(products, n);
    free(products);
    return status;
}

static mx_status infer_grouped_grad(mx_call *call)
{
    MX_TRY(want_two_runs(call, 0));
    mx_grouped g = sums_of(call, 0);
    mx_shape shape = {3, {g.groups, g.k, g.n}};
    return mx_out_float(call, 0, ((const grouped_attr *)mx_call_attr(call))->dtype, MX_F32, &shape);
}

static mx_cost cost_grouped_grad(const mx_call *call)
{
    mx_grouped g = sums_of(call, 0);
    return mx_grouped_cost(call, &g, true);
}

static mx_status host_grouped_grad(mx_call *call) { return sum_groups(call, 0, call->out[0], false); }

/* Of a, the rows of b times the transposed gradient of their group; of b, those of a times it. */
static mx_status vjp_grouped_grad(mx_vjp *v)
{
    const mx_call *call = v->call;
    for (int i = 0; i < 2; i++) {
        const grouped_attr attr = {.trans_b = i == 0, .dtype = (int)mx_vjp_dtype(v, i)};
        mx_tensor *in[] = {call->in[1 - i], v->out_grad[0], call->in[2]}, *grad = NULL;
        if (!v->want[i])
            continue;
        MX_TRY(mx_apply(&mx_op_grouped_matmul, in, 3, MX_ATTRS(attr), &grad));
        MX_TRY(mx_give_grad(v, i, grad));
    }
    return MX_OK;
}

const mx_op mx_op_grouped_matmul_grad = {
    .name = "grouped_matmul_grad",
    .doc = "for each group, its rows of a (rows, k) transposed times those of b (rows, n) -> (groups, k, n); 0 for a "
           "group without rows",
    .inputs = (const char *const[]){"a", "b", "counts", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"dtype", MX_ATTR_DTYPE, offsetof(grouped_attr, dtype), -1, NULL,
                                "dtype of the result, f32 (the default) or bf16"},
                               {0}},
    .attr_bytes = sizeof(grouped_attr),
    .reads_in = 1 | 2 | 4,
    .infer = infer_grouped_grad,
    .cost = cost_grouped_grad,
    .host = host_grouped_grad,
    .vjp = vjp_grouped_grad,
    .vjp_recorded = vjp_grouped_grad,
};

static mx_status infer_grouped_acc(mx_call *call)
{
    MX_TRY(mx_want_dtype(call, 0, MX_F32));
    MX_TRY(want_two_runs(call, 1));
    mx_grouped g = sums_of(call, 1);
    mx_shape shape = {3, {g.groups, g.k, g.n}};
    return mx_want_shape(call, 0, &shape);
}

static mx_cost cost_grouped_acc(const mx_call *call)
{
    mx_grouped g = sums_of(call, 1);
    mx_cost cost = mx_grouped_cost(call, &g, true);
    cost.bytes_written += (double)mx_bytes(call->in[0]);
    return cost;
}

static mx_status host_grouped_acc(mx_call *call) { return sum_groups(call, 1, call->in[0], true); }

const mx_op mx_op_grouped_matmul_acc = {
    .name = "grouped_matmul_acc",
    .doc = "sum (groups, k, n) f32 += for each group, its rows of a (rows, k) transposed times those of b (rows, n), "
           "in place",
    .inputs = (const char *const[]){"sum", "a", "b", "counts", NULL},
    .flags = MX_OP_MUTATES,
    .infer = infer_grouped_acc,
    .cost = cost_grouped_acc,
    .host = host_grouped_acc,
};
