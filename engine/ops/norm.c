/* RMSNorm, LayerNorm, softmax and log-softmax over the last dimension, and their gradients. */
#include "kernels/norm.h"

#include "kernels/softmax.h"
#include "ops/pointwise.h"
#include "ops/terms.h"

typedef struct norm_attr {
    double eps;
} norm_attr;

/* Checks that x has rows, and that all inputs are floats; f64 only in the operations that `plain` computes. */
static mx_status want_rows(const mx_call *call)
{
    if (call->in[0]->shape.n_dims < 1)
        return mx_bad_shape(call, "'x' must have at least one dimension");
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && !call->op->plain)
            MX_TRY(mx_want_float(call, i));
    return mx_want_reals(call);
}

/* Checks that x has rows, and that the input `weight` and those after it are vectors of a row's length. */
static mx_status want_norm_inputs(const mx_call *call, int weight)
{
    MX_TRY(want_rows(call));
    mx_shape vector = mx_vector(mx_row_width(call->in[0]));
    for (int i = weight; i < call->n_in; i++)
        MX_TRY(mx_want_shape(call, i, &vector));
    return MX_OK;
}

/* The composition, in f32 or f64: (x - mean) rsqrt(mean of squares + eps) weight + bias; rmsnorm has no mean. */
static mx_tensor *plain_norm(mx_terms *s, const mx_call *call)
{
    mx_tensor *x = mx_term_wide(s, call->in[0]), *weight = call->in[1];
    mx_tensor *bias = call->in[2];
    uint32_t last = 1u << (call->in[0]->shape.n_dims - 1);
    if (call->op == &mx_op_layernorm)
        x = mx_term_sub(s, x, mx_term_reduce(s, &mx_op_mean, x, last));
    mx_tensor *squares = mx_term_reduce(s, &mx_op_mean, mx_term_one(s, &mx_op_square, x), last);
    mx_tensor *shifted = mx_term_affine(s, squares, 1, ((const norm_attr *)mx_call_attr(call))->eps);
    mx_tensor *y = mx_term_mul(s, x, mx_term_one(s, &mx_op_rsqrt, shifted));
    if (y && weight)
        y = mx_term_mul(s, y, mx_term_wide(s, weight));
    if (y && bias)
        y = mx_term_add(s, y, mx_term_wide(s, bias));
    return mx_term_cast(s, y, call->in[0]->dtype);
}

/* Makes y, and the statistics of each row if a gradient will need them. */
static mx_status infer_norm(mx_call *call)
{
    const norm_attr *attr = mx_call_attr(call);
    MX_TRY(want_norm_inputs(call, 1));
    if (!(attr->eps >= 0))
        return mx_bad_value(call, "eps = %g must not be negative", attr->eps);
    mx_shape statistics = mx_will_record(call) ? mx_shape_of_rows(call->in[0]) : mx_vector(0);
    MX_TRY(mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape));
    for (int i = 1; i < call->n_out; i++)
        MX_TRY(mx_out(call, i, MX_F32, &statistics));
    return MX_OK;
}

static mx_norm norm_of(const mx_call *call, int weight)
{
    const mx_tensor *x = call->in[0], *w = call->in[weight];
    return (mx_norm){.rows = mx_row_count(x),
                     .width = mx_row_width(x),
                     .dtype = x->dtype,
                     .x = mx_data(x),
                     .weight = w ? mx_data(w) : NULL,
                     .weight_dtype = w ? w->dtype : MX_F32};
}

static float *statistics(const mx_tensor *t, int64_t rows)
{
    return mx_count(t) == rows ? mx_f32(t) : NULL; /* not needed: a vector of size 0 */
}

static mx_cost cost_norm(const mx_call *call) { return mx_cost_of(call, 5.0 * (double)mx_count(call->in[0])); }

static mx_cost cost_norm_grad(const mx_call *call) { return mx_cost_of(call, 9.0 * (double)mx_count(call->in[0])); }

static const mx_attr norm_attrs_rms[] = {
    {"eps", MX_ATTR_FLOAT, offsetof(norm_attr, eps), 1e-6, NULL, "added to the mean square"}, {0}};
static const mx_attr norm_attrs_layer[] = {
    {"eps", MX_ATTR_FLOAT, offsetof(norm_attr, eps), 1e-5, NULL, "added to the variance"}, {0}};

/* ---- rmsnorm ---- */

static mx_status host_rmsnorm(mx_call *call)
{
    mx_norm n = norm_of(call, 1);
    n.eps = (float)((const norm_attr *)mx_call_attr(call))->eps;
    n.y = mx_data(call->out[0]);
    n.rstd = statistics(call->out[1], n.rows);
    return mx_norm_forward(&n);
}

static mx_status vjp_rmsnorm(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dy = NULL, *out[2] = {NULL, NULL};
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_tensor *weight = call->in[1];
    mx_tensor *in[] = {call->in[0], dy, call->out[1], weight};
    mx_status status = mx_apply(&mx_op_rmsnorm_grad, in, weight ? 4 : 3, MX_NO_ATTRS, out);
    mx_release(dy);
    MX_TRY(status);
    status = mx_give_grad(v, 0, out[0]);
    if (status == MX_OK && weight)
        return mx_give_grad(v, 1, out[1]);
    mx_release(out[1]);
    return status;
}

const mx_op mx_op_rmsnorm = {
    .name = "rmsnorm",
    .doc = "x / sqrt(mean of x^2 + eps) * weight over the last dimension; x (..., n), weight (n)",
    .inputs = (const char *const[]){"x", "weight?", NULL},
    .n_out = 2,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = norm_attrs_rms,
    .attr_bytes = sizeof(norm_attr),
    .reads_in = 1 << 0 | 1 << 1,
    .reads_out = 1 << 1,
    .infer = infer_norm,
    .cost = cost_norm,
    .host = host_rmsnorm,
    .vjp = vjp_rmsnorm,
    .plain = plain_norm,
};

/* Makes the outputs of the gradient: dx like x, and f32 vectors, of size 0 if there is no weight. */
static mx_status infer_norm_grad(mx_call *call, int n_statistics)
{
    int weight = 2 + n_statistics;
    MX_TRY(want_norm_inputs(call, weight));
    const mx_tensor *x = call->in[0];
    MX_TRY(mx_want_shape(call, 1, &x->shape));
    MX_TRY(mx_want_dtype(call, 1, x->dtype));
    mx_shape per_row = mx_shape_of_rows(x);
    for (int i = 2; i < weight; i++) {
        MX_TRY(mx_want_dtype(call, i, MX_F32));
        MX_TRY(mx_want_shape(call, i, &per_row));
    }
    mx_shape vector = mx_vector(call->in[weight] ? mx_row_width(x) : 0);
    MX_TRY(mx_out(call, 0, x->dtype, &x->shape));
    for (int i = 1; i < call->n_out; i++)
        MX_TRY(mx_out(call, i, MX_F32, &vector));
    return MX_OK;
}

static mx_status infer_rmsnorm_grad(mx_call *call) { return infer_norm_grad(call, 1); }

static mx_status host_rmsnorm_grad(mx_call *call)
{
    mx_norm n = norm_of(call, 3);
    n.dy = mx_data(call->in[1]);
    n.rstd = mx_f32(call->in[2]);
    n.dx = mx_data(call->out[0]);
    n.dweight = n.weight ? mx_f32(call->out[1]) : NULL;
    return mx_norm_backward(&n);
}

const mx_op mx_op_rmsnorm_grad = {
    .name = "rmsnorm_grad",
    .doc = "gradients of rmsnorm with respect to x and weight, in one pass; rstd (...) as rmsnorm kept it",
    .inputs = (const char *const[]){"x", "dy", "rstd", "weight?", NULL},
    .n_out = 2,
    .n_results = 2,
    .infer = infer_rmsnorm_grad,
    .cost = cost_norm_grad,
    .host = host_rmsnorm_grad,
};

/* ---- layernorm ---- */

static mx_status host_layernorm(mx_call *call)
{
    mx_norm n = norm_of(call, 1);
    const mx_tensor *bias = call->in[2];
    n.center = true;
    n.bias = bias ? mx_data(bias) : NULL;
    n.bias_dtype = bias ? bias->dtype : MX_F32;
    n.eps = (float)((const norm_attr *)mx_call_attr(call))->eps;
    n.y = mx_data(call->out[0]);
    n.mean = statistics(call->out[1], n.rows);
    n.rstd = statistics(call->out[2], n.rows);
    return mx_norm_forward(&n);
}

static mx_status vjp_layernorm(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dy = NULL, *out[3] = {NULL, NULL, NULL};
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_tensor *in[] = {call->in[0], dy, call->out[1], call->out[2], call->in[1]};
    mx_status status = mx_apply(&mx_op_layernorm_grad, in, 5, MX_NO_ATTRS, out);
    mx_release(dy);
    MX_TRY(status);
    status = mx_give_grad(v, 0, out[0]);
    if (status == MX_OK) {
        status = mx_give_grad(v, 1, out[1]);
        out[1] = NULL;
    }
    if (status == MX_OK && call->in[2]) {
        status = mx_give_grad(v, 2, out[2]);
        out[2] = NULL;
    }
    mx_release(out[1]);
    mx_release(out[2]);
    return status;
}

const mx_op mx_op_layernorm = {
    .name = "layernorm",
    .doc = "(x - mean) / sqrt(variance + eps) * weight + bias over the last dimension; x (..., n), weight and bias (n)",
    .inputs = (const char *const[]){"x", "weight", "bias?", NULL},
    .n_out = 3,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = norm_attrs_layer,
    .attr_bytes = sizeof(norm_attr),
    .reads_in = 1 << 0 | 1 << 1 | 1 << 2,
    .reads_out = 1 << 1 | 1 << 2,
    .infer = infer_norm,
    .cost = cost_norm,
    .host = host_layernorm,
    .vjp = vjp_layernorm,
    .plain = plain_norm,
};

static mx_status infer_layernorm_grad(mx_call *call) { return infer_norm_grad(call, 2); }

static mx_status host_layernorm_grad(mx_call *call)
{
    mx_norm n = norm_of(call, 4);
    n.center = true;
    n.dy = mx_data(call->in[1]);
    n.mean = mx_f32(call->in[2]);
    n.rstd = mx_f32(call->in[3]);
    n.dx = mx_data(call->out[0]);
    n.dweight = mx_f32(call->out[1]);
    n.dbias = mx_f32(call->out[2]);
    return mx_norm_backward(&n);
}

const mx_op mx_op_layernorm_grad = {
    .name = "layernorm_grad",
    .doc = "gradients of layernorm with respect to x, weight and bias, in one pass; mean and rstd (...) as layernorm "
           "kept them",
    .inputs = (const char *const[]){"x", "dy", "mean", "rstd", "weight", NULL},
    .n_out = 3,
    .n_results = 3,
    .infer = infer_layernorm_grad,
    .cost = cost_norm_grad,
    .host = host_layernorm_grad,
};

/* ---- softmax, log_softmax ---- */

typedef struct softmax_attr {
    int64_t dim;
} softmax_attr;

static const mx_attr softmax_attrs[] = {{"dim", MX_ATTR_DIM, offsetof(softmax_attr, dim), -1, NULL,
                                         "dimension along which the exponentials are summed; default: the last"},
                                        {0}};

/* Checks input 0 and the option `dim`. */
static mx_status want_softmax(const mx_call *call)
{
    int dim;
    MX_TRY(want_rows(call));
    return mx_want_dim(call, "dim", ((const softmax_attr *)mx_call_attr(call))->dim, call->in[0]->shape.n_dims, &dim);
}

static int softmax_dim(const mx_call *call)
{
    int64_t dim = ((const softmax_attr *)mx_call_attr(call))->dim;
    return (int)(dim < 0 ? dim + call->in[0]->shape.n_dims : dim);
}

static mx_status infer_softmax(mx_call *call)
{
    MX_TRY(want_softmax(call));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_status infer_softmax_grad(mx_call *call)
{
    MX_TRY(want_softmax(call));
    MX_TRY(mx_want_shape(call, 1, &call->in[0]->shape));
    MX_TRY(mx_want_dtype(call, 1, call->in[0]->dtype));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_softmax softmax_of(const mx_call *call, bool log)
{
    const mx_tensor *x = call->in[0];
    int dim = softmax_dim(call);
    int64_t inner = mx_inner_size(&x->shape, dim);
    return (mx_softmax){.rows = mx_outer_size(&x->shape, dim) * inner,
                        .width = x->shape.size[dim],
                        .inner = inner > 0 ? inner : 1,
                        .dtype = x->dtype,
                        .log = log};
}

static mx_status forward(mx_call *call, bool log)
{
    mx_softmax s = softmax_of(call, log);
    s.x = mx_data(call->in[0]);
    s.y = mx_data(call->out[0]);
    return mx_softmax_forward(&s);
}

static mx_status backward(mx_call *call, bool log)
{
    mx_softmax s = softmax_of(call, log);
    s.y = mx_data(call->in[0]);
    s.dy = mx_data(call->in[1]);
    s.dx = mx_data(call->out[0]);
    return mx_softmax_backward(&s);
}

static mx_status host_softmax(mx_call *call) { return forward(call, false); }

static mx_status host_log_softmax(mx_call *call) { return forward(call, true); }

static mx_status host_softmax_grad(mx_call *call) { return backward(call, false); }

static mx_status host_log_softmax_grad(mx_call *call) { return backward(call, true); }

static mx_status vjp_by(mx_vjp *v, const mx_op *grad)
{
    mx_tensor *dy = NULL, *dx = NULL;
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_status status = mx_apply(grad, (mx_tensor *[]){v->call->out[0], dy}, 2, mx_call_attrs(v->call), &dx);
    mx_release(dy);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

/* In f64: e / sum of e, or d - log(sum of e), with d = x - largest, e = e^d. */
static mx_tensor *plain_softmax(mx_terms *s, const mx_call *call)
{
    mx_tensor *x = call->in[0];
    uint32_t mask = 1u << softmax_dim(call);
    if (mx_count(x) == 0)
        return mx_term_affine(s, x, 1, 0);
    mx_tensor *d = mx_term_sub(s, x, mx_term_reduce(s, &mx_op_max, mx_term_constant(s, x), mask));
    mx_tensor *e = mx_term_one(s, &mx_op_exp, d), *sum = mx_term_reduce(s, &mx_op_sum, e, mask);
    return call->op == &mx_op_softmax ? mx_term_div(s, e, sum) : mx_term_sub(s, d, mx_term_one(s, &mx_op_log, sum));
}

/* softmax: dx = dy y - y (sum of dy y). log_softmax: dx = dy - e^y (sum of dy). */
static mx_status vjp_softmax_recorded(mx_vjp *v)
{
    bool is_log = v->call->op == &mx_op_log_softmax;
    mx_terms s = {.n = 0};
    mx_tensor *y = v->call->out[0], *dy = v->out_grad[0];
    mx_tensor *p = is_log ? mx_term_one(&s, &mx_op_exp, y) : y, *g = is_log ? dy : mx_term_mul(&s, dy, y);
    mx_tensor *sums = mx_term_reduce(&s, &mx_op_sum, g, 1u << softmax_dim(v->call));
    mx_tensor *dx = mx_term_sub(&s, g, mx_term_mul(&s, p, sums));
    mx_term_give(&s, v, 0, dx);
    return mx_terms_release(&s);
}

static mx_status vjp_softmax(mx_vjp *v) { return vjp_by(v, &mx_op_softmax_grad); }

static mx_status vjp_log_softmax(mx_vjp *v) { return vjp_by(v, &mx_op_log_softmax_grad); }

/* Four operations per element: difference, exponential, sum, product. */
static mx_cost cost_softmax(const mx_call *call) { return mx_cost_of(call, 4.0 * (double)mx_count(call->in[0])); }

const mx_op mx_op_softmax = {
    .name = "softmax",
    .doc = "e^x / sum of e^x along dim",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = softmax_attrs,
    .attr_bytes = sizeof(softmax_attr),
    .reads_out = 1 << 0,
    .infer = infer_softmax,
    .cost = cost_softmax,
    .host = host_softmax,
    .vjp = vjp_softmax,
    .vjp_recorded = vjp_softmax_recorded,
    .plain = plain_softmax,
};

const mx_op mx_op_softmax_grad = {
    .name = "softmax_grad",
    .doc = "gradient of y = softmax(x) with respect to x: y (dy - sum of y dy) along dim",
    .inputs = (const char *const[]){"y", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = softmax_attrs,
    .attr_bytes = sizeof(softmax_attr),
    .infer = infer_softmax_grad,
    .cost = cost_softmax,
    .host = host_softmax_grad,
};

const mx_op mx_op_log_softmax = {
    .name = "log_softmax",
    .doc = "x - log(sum of e^x) along dim",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = softmax_attrs,
    .attr_bytes = sizeof(softmax_attr),
    .reads_out = 1 << 0,
    .infer = infer_softmax,
    .cost = cost_softmax,
    .host = host_log_softmax,
    .vjp = vjp_log_softmax,
    .vjp_recorded = vjp_softmax_recorded,
    .plain = plain_softmax,
};

const mx_op mx_op_log_softmax_grad = {
    .name = "log_softmax_grad",
    .doc = "gradient of y = log_softmax(x) with respect to x: dy - e^y sum of dy along dim",
    .inputs = (const char *const[]){"y", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = softmax_attrs,
    .attr_bytes = sizeof(softmax_attr),
    .infer = infer_softmax_grad,
    .cost = cost_softmax,
    .host = host_log_softmax_grad,
};
