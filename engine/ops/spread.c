/* Reductions that say how far elements lie from each other or from zero: var, std, norm, sum_squares, logsumexp. */
#include "core/element.h"
#include "core/pool.h"
#include "kernels/slopes.h"
#include "kernels/softmax.h"
#include "ops/reduction.h"
#include "ops/terms.h"

#include <math.h>

typedef struct var_attr {
    mx_reduce_attr reduce;
    int64_t correction;
} var_attr;

static const char *const x_input[] = {"x", NULL};

static const mx_dims *dims_of(const mx_call *call) { return &((const mx_reduce_attr *)mx_call_attr(call))->dim; }

static mx_status infer_float(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return mx_infer_reduced(call, 0, call->in[0]->dtype);
}

/* ---- compositions ---- */

static uint32_t mask_of(const mx_call *call)
{
    uint32_t mask = 0;
    (void)mx_want_dims(call, dims_of(call), call->in[0]->shape.n_dims, &mask); /* checked by infer */
    return mask;
}

/* y, which has the reduced dimensions with size 1, as the result of the call. */
static mx_tensor *as_result(mx_terms *s, const mx_call *call, mx_tensor *y)
{
    const mx_reduce_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    mx_shape shape = mx_reduced_shape(&x->shape, mask_of(call), attr->keepdim);
    return mx_term_reshape(s, mx_term_cast(s, y, x->dtype), &shape);
}

/* The root of squares >= 0; its gradient is 0 where it is 0. */
static mx_tensor *root_of(mx_terms *s, mx_tensor *squares)
{
    mx_tensor *is_zero = mx_term_indicator(s, &mx_op_eq, squares, 0);
    return mx_term_sub(s, mx_term_one(s, &mx_op_sqrt, mx_term_add(s, squares, is_zero)), is_zero);
}

static mx_tensor *sum_of_squares(mx_terms *s, mx_tensor *x, uint32_t mask)
{
    return mx_term_reduce(s, &mx_op_sum, mx_term_one(s, &mx_op_square, x), mask);
}

/* ---- gradients: each is a function of x and of numbers for each result ---- */

/* Checks that the inputs behind x have a number for each result of x. */
static mx_status infer_grad(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    uint32_t mask;
    MX_TRY(mx_want_dims(call, dims_of(call), x->shape.n_dims, &mask));
    int64_t count = mx_reduced_count(&x->shape, ~mask);
    for (int i = 0; i < call->n_in; i++) {
        MX_TRY(mx_want_float(call, i));
        if (i > 0 && call->in[i] && mx_count(call->in[i]) != count)
            return mx_bad_shape(call, "input %d must have %lld elements", i + 1, (long long)count);
    }
    return mx_out(call, 0, x->dtype, &x->shape);
}

/* ---- var and std ---- */

static double degrees(const mx_call *call, uint32_t mask)
{
    double n =
        (double)(mx_reduced_count(&call->in[0]->shape, mask) - ((const var_attr *)mx_call_attr(call))->correction);
    return n > 0 ? n : 0;
}

static mx_status host_var(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_status status =
        mx_reduce_variance(r.x, r.e, 1 / degrees(call, r.mask), call->op == &mx_op_std, mx_array_of(call->out[0]));
    mx_reduction_close(&r);
    return status;
}

static mx_tensor *plain_var(mx_terms *s, const mx_call *call)
{
    mx_tensor *x = mx_term_wide(s, call->in[0]);
    uint32_t mask = mask_of(call);
    mx_tensor *squares = sum_of_squares(s, mx_term_sub(s, x, mx_term_reduce(s, &mx_op_mean, x, mask)), mask);
    mx_tensor *var = mx_term_affine(s, squares, 1 / degrees(call, mask), 0);
    return as_result(s, call, call->op == &mx_op_std ? root_of(s, var) : var);
}

static mx_status vjp_var(mx_vjp *v)
{
    mx_tensor *dx = NULL, *in[] = {v->call->in[0], v->out_grad[0], v->call->op == &mx_op_std ? v->call->out[0] : NULL};
    MX_TRY(mx_apply(&mx_op_var_grad, in, 3, mx_call_attrs(v->call), &dx));
    return mx_give_grad(v, 0, dx);
}

/* Difference, product and sum. */
static mx_cost cost_var(const mx_call *call) { return mx_cost_of(call, 4.0 * (double)mx_count(call->in[0])); }

static const mx_attr var_attrs[] = {
    {"dim", MX_ATTR_DIMS, offsetof(var_attr, reduce.dim), 0, NULL,
     "dimension to reduce, or a list of dimensions; default: all"},
    {"keepdim", MX_ATTR_BOOL, offsetof(var_attr, reduce.keepdim), 0, NULL, "keep the dimensions with size 1"},
    {"correction", MX_ATTR_INT, offsetof(var_attr, correction), 1, NULL,
     "the squares are divided by their number less this; 0: by their number"},
    {0}};

const mx_op mx_op_var = {
    .name = "var",
    .doc = "variance of x along dim, or of all elements",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = var_attrs,
    .attr_bytes = sizeof(var_attr),
    .reads_in = 1,
    .infer = infer_float,
    .cost = cost_var,
    .host = host_var,
    .vjp = vjp_var,
    .plain = plain_var,
};

const mx_op mx_op_std = {
    .name = "std",
    .doc = "standard deviation of x along dim, or of all elements; its gradient is 0 where it is 0",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = var_attrs,
    .attr_bytes = sizeof(var_attr),
    .reads_in = 1,
    .reads_out = 1,
    .infer = infer_float,
    .cost = cost_var,
    .host = host_var,
    .vjp = vjp_var,
    .plain = plain_var,
};

/* dx = (x - mean) factor, where factor is 2 dy / degrees, or dy / (std degrees). */
static mx_status host_var_grad(mx_call *call)
{
    const mx_tensor *dy = call->in[1], *std = call->in[2];
    mx_reduction r;
    int64_t n = mx_count(dy), bytes = n * (int64_t)sizeof(float);
    float *factor;
    MX_TRY(mx_pool_alloc(bytes, (void **)&factor));
    mx_status status = mx_reduction_open(call, call->in[0], dims_of(call), &r);
    if (status == MX_OK) {
        double by = degrees(call, r.mask);
        for (int64_t i = 0; i < n; i++) {
            double root = std ? (double)mx_get_float(mx_data(std), i, std->dtype) : 0.5, one = 1 / (root * by);
            factor[i] = (float)(root == 0 ? 0 : (double)mx_get_float(mx_data(dy), i, dy->dtype) * one);
        }
        status = mx_reduce_variance_backward(r.x, r.e, factor, mx_reduction_gradient(&r, call->out[0]));
        mx_reduction_return(&r, call->out[0]);
    }
    mx_pool_free(factor, bytes);
    return status;
}

const mx_op mx_op_var_grad = {
    .name = "var_grad",
    .doc = "gradient of y = var(x) along dim, or of y = std(x) if std, its result, is given",
    .inputs = (const char *const[]){"x", "dy", "std?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = var_attrs,
    .attr_bytes = sizeof(var_attr),
    .infer = infer_grad,
    .cost = cost_var,
    .host = host_var_grad,
};

/* ---- norm and sum of squares ---- */

static mx_cost cost_squares(const mx_call *call) { return mx_cost_of(call, 2.0 * (double)mx_count(call->in[0])); }

static mx_status host_norm(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_status status = mx_reduce_norm(r.x, r.e, mx_array_of(call->out[0]));
    mx_reduction_close(&r);
    return status;
}

static mx_tensor *plain_norm(mx_terms *s, const mx_call *call)
{
    return as_result(s, call, root_of(s, sum_of_squares(s, mx_term_wide(s, call->in[0]), mask_of(call))));
}

static mx_status vjp_norm(mx_vjp *v)
{
    mx_tensor *dx = NULL, *in[] = {v->call->in[0], v->call->out[0], v->out_grad[0]};
    MX_TRY(mx_apply(&mx_op_norm_grad, in, 3, mx_call_attrs(v->call), &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_norm = {
    .name = "norm",
    .doc = "Euclidean norm of x along dim, or of all elements: the root of the sum of squares, which are f32; its "
           "gradient is 0 where it is 0",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .reads_in = 1,
    .reads_out = 1,
    .infer = infer_float,
    .cost = cost_squares,
    .host = host_norm,
    .vjp = vjp_norm,
    .plain = plain_norm,
};

/* dx = x (dy / y) */
static mx_status host_norm_grad(mx_call *call)
{
    const mx_tensor *y = call->in[1], *dy = call->in[2];
    mx_reduction r;
    int64_t n = mx_count(y), bytes = n * (int64_t)sizeof(float);
    float *factor;
    MX_TRY(mx_pool_alloc(bytes, (void **)&factor));
    for (int64_t i = 0; i < n; i++) {
        float norm = mx_get_float(mx_data(y), i, y->dtype);
        factor[i] = norm == 0 ? 0 : mx_get_float(mx_data(dy), i, dy->dtype) / norm;
    }
    mx_status status = mx_reduction_open(call, call->in[0], dims_of(call), &r);
    if (status == MX_OK) {
        status = mx_reduce_norm_backward(r.x, r.e, factor, mx_reduction_gradient(&r, call->out[0]));
        mx_reduction_return(&r, call->out[0]);
    }
    mx_pool_free(factor, bytes);
    return status;
}

const mx_op mx_op_norm_grad = {
    .name = "norm_grad",
    .doc = "gradient of y = norm(x) along dim: x dy / y, 0 where y is 0",
    .inputs = (const char *const[]){"x", "y", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .infer = infer_grad,
    .cost = cost_squares,
    .host = host_norm_grad,
};

static mx_status infer_squares(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return mx_out(call, 0, mx_dtype_accumulates_in(call->in[0]->dtype), &(mx_shape){.n_dims = 0});
}

static mx_status host_squares(mx_call *call)
{
    return mx_sum_squares(mx_array_of(call->in[0]), mx_count(call->in[0]), mx_array_of(call->out[0]));
}

/* dx = x (2 dy) */
static mx_status vjp_squares(mx_vjp *v)
{
    mx_tensor *twice = NULL, *dx = NULL;
    MX_TRY(mx_apply_affine(v->out_grad[0], 2, 0, &twice));
    mx_status status = mx_apply(&mx_op_mul, (mx_tensor *[]){v->call->in[0], twice}, 2, MX_NO_ATTRS, &dx);
    mx_release(twice);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_sum_squares = {
    .name = "sum_squares",
    .doc = "sum of the squares of all elements of x, an f32 scalar (f64 for f64)",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .reads_in = 1,
    .infer = infer_squares,
    .cost = cost_squares,
    .host = host_squares,
    .vjp = vjp_squares,
    .vjp_recorded = vjp_squares,
};

/* ---- logsumexp ---- */

static mx_status host_logsumexp(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_status status = mx_reduce_logsumexp(r.x, r.e, mx_array_of(call->out[0]));
    mx_reduction_close(&r);
    return status;
}

/* largest + log(sum of e^(x - largest)), with 0 for a largest that is not finite. */
static mx_tensor *plain_logsumexp(mx_terms *s, const mx_call *call)
{
    mx_tensor *x = mx_term_wide(s, call->in[0]);
    uint32_t mask = mask_of(call);
    if (x && mx_reduced_count(&x->shape, mask) == 0)
        return as_result(s, call, mx_term_one(s, &mx_op_log, mx_term_reduce(s, &mx_op_sum, x, mask)));
    mx_tensor *largest = mx_term_reduce(s, &mx_op_max, mx_term_constant(s, x), mask);
    mx_tensor *is_finite = mx_term_one(s, &mx_op_isfinite, largest);
    largest = mx_term_where(s, is_finite, largest, x ? mx_term_number(s, x->dtype, 0) : NULL);
    mx_tensor *e = mx_term_one(s, &mx_op_exp, mx_term_sub(s, x, largest));
    mx_tensor *log = mx_term_one(s, &mx_op_log, mx_term_reduce(s, &mx_op_sum, e, mask));
    return as_result(s, call, mx_term_add(s, largest, log));
}

static mx_status vjp_logsumexp(mx_vjp *v)
{
    mx_tensor *dx = NULL, *in[] = {v->call->in[0], v->out_grad[0]};
    MX_TRY(mx_apply(&mx_op_logsumexp_grad, in, 2, mx_call_attrs(v->call), &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_logsumexp = {
    .name = "logsumexp",
    .doc = "log(sum of e^x) along dim, or over all elements, without overflow; -inf where there is nothing to sum",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .reads_in = 1,
    .infer = infer_float,
    .cost = cost_var,
    .host = host_logsumexp,
    .vjp = vjp_logsumexp,
    .plain = plain_logsumexp,
};

/* dx = e^(x - y) dy: the softmax of x, scaled. So y, which in bf16 would be off by a percent, is not read. */
static mx_status host_logsumexp_grad(mx_call *call)
{
    const mx_tensor *dy = call->in[1];
    mx_reduction r;
    int64_t n = mx_count(dy), bytes = n * (int64_t)sizeof(float);
    float *scale;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scale));
    mx_status status = mx_reduction_open(call, call->in[0], dims_of(call), &r);
    if (status == MX_OK) {
        for (int64_t i = 0; i < n; i++) {
            scale[i] = mx_get_float(mx_data(dy), i, dy->dtype);
            scale[i] = isnan(scale[i]) ? NAN : scale[i]; /* as stores of bf16 want it */
        }
        status = mx_softmax_forward(&(mx_softmax){.rows = n,
                                                  .width = r.e.n,
                                                  .inner = r.e.inner,
                                                  .dtype = r.x.dtype,
                                                  .scale = scale,
                                                  .x = r.x.data,
                                                  .y = mx_reduction_gradient(&r, call->out[0]).data});
        mx_reduction_return(&r, call->out[0]);
    }
    mx_pool_free(scale, bytes);
    return status;
}

const mx_op mx_op_logsumexp_grad = {
    .name = "logsumexp_grad",
    .doc = "gradient of y = logsumexp(x) along dim: e^(x - y) dy",
    .inputs = (const char *const[]){"x", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .infer = infer_grad,
    .cost = cost_var,
    .host = host_logsumexp_grad,
};
