/* Sums, means and maxima along a dimension or over all elements, and the sums that undo broadcasting. */
#include "kernels/reduce.h"

#include "core/pool.h"
#include "ops/pointwise.h"

#include <math.h>

enum { ALL_DIMS = -128 }; /* the default of `dim` */

typedef struct reduce_attr {
    int64_t dim;
    bool keepdim;
} reduce_attr;

typedef struct spread_attr {
    mx_shape shape;
    int64_t dim;
    double scale;
    int dtype;
} spread_attr;

/* ---- shared functions ---- */

/* The shape of x as (outer, n, inner) around `dim`. */
static mx_status extent_of(const mx_call *call, const mx_shape *shape, int64_t given, mx_extent *e)
{
    *e = (mx_extent){1, mx_shape_count(shape), 1};
    if (given == ALL_DIMS)
        return MX_OK;
    int dim = 0;
    MX_TRY(mx_want_dim(call, "dim", given, shape->n_dims, &dim));
    *e = (mx_extent){mx_outer_size(shape, dim), shape->size[dim], mx_inner_size(shape, dim)};
    return MX_OK;
}

static mx_extent extent_of_input(const mx_call *call)
{
    mx_extent e = {0, 0, 0};
    extent_of(call, &call->in[0]->shape, ((const reduce_attr *)mx_call_attr(call))->dim, &e); /* checked by infer */
    return e;
}

/* x's shape without the dimension, or with 1 in its place. */
static mx_shape reduced_shape(const mx_shape *x, const reduce_attr *attr)
{
    mx_shape y = {.n_dims = 0};
    int dim = attr->dim == ALL_DIMS ? -1 : (int)(attr->dim < 0 ? attr->dim + x->n_dims : attr->dim);
    for (int d = 0; d < x->n_dims; d++) {
        bool gone = dim < 0 || d == dim;
        if (!gone || attr->keepdim)
            y.size[y.n_dims++] = gone ? 1 : x->size[d];
    }
    return y;
}

static mx_status infer_reduced(mx_call *call, mx_dtype dtype, bool may_be_empty)
{
    mx_extent e;
    const mx_shape *x = &call->in[0]->shape;
    MX_TRY(mx_want_arithmetic(call, 0));
    MX_TRY(extent_of(call, x, ((const reduce_attr *)mx_call_attr(call))->dim, &e));
    if (e.n == 0 && !may_be_empty)
        return mx_bad_shape(call, "there is nothing to take the largest of");
    mx_shape y = reduced_shape(x, mx_call_attr(call));
    return mx_out(call, 0, dtype, &y);
}

static mx_cost cost_per_input(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static const mx_attr reduce_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(reduce_attr, dim), ALL_DIMS, NULL, "dimension to reduce; default: all"},
    {"keepdim", MX_ATTR_BOOL, offsetof(reduce_attr, keepdim), 0, NULL, "keep the dimension with size 1"},
    {0}};

static const char *const x_input[] = {"x", NULL};

/* ---- sum and mean ---- */

static mx_status infer_sum(mx_call *call)
{
    mx_dtype dtype = call->in[0]->dtype;
    return infer_reduced(call, mx_dtype_is_integer(dtype) ? mx_dtype_accumulates_in(dtype) : dtype, true);
}

static mx_status infer_mean(mx_call *call)
{
    mx_dtype dtype = call->in[0]->dtype;
    return infer_reduced(call, mx_dtype_is_integer(dtype) ? MX_F32 : dtype, true);
}

static double scale_of(const mx_call *call)
{
    return call->op == &mx_op_mean ? 1.0 / (double)extent_of_input(call).n : 1.0;
}

static mx_status host_sum(mx_call *call)
{
    mx_status status =
        mx_reduce_sum(mx_array_of(call->in[0]), extent_of_input(call), scale_of(call), mx_array_of(call->out[0]));
    return status == MX_OK ? MX_OK : mx_context(status, "%s of %s", call->op->name, mx_tensor_text(call->in[0]));
}

static mx_status vjp_sum(mx_vjp *v)
{
    const mx_tensor *x = v->call->in[0];
    if (!mx_dtype_may_have_gradient(x->dtype))
        return MX_OK;
    spread_attr attr = {.shape = x->shape,
                        .dim = ((const reduce_attr *)mx_call_attr(v->call))->dim,
                        .scale = scale_of(v->call),
                        .dtype = mx_vjp_dtype(v, 0)};
    return mx_apply(&mx_op_sum_grad, v->out_grad, 1, MX_ATTRS(attr), &v->grad[0]);
}

/* dx = dy, with the reduced dimensions as 1, times a constant of x's shape. */
static mx_status vjp_sum_recorded(mx_vjp *v)
{
    const mx_tensor *x = v->call->in[0];
    reduce_attr attr = *(const reduce_attr *)mx_call_attr(v->call);
    mx_tensor *dy = NULL, *scale = NULL, *dx = NULL;
    if (!mx_dtype_may_have_gradient(x->dtype))
        return MX_OK;
    attr.keepdim = true;
    mx_shape kept = reduced_shape(&x->shape, &attr);
    MX_TRY(mx_apply_full(&x->shape, x->dtype, scale_of(v->call), &scale));
    mx_status status = mx_apply_reshape(v->out_grad[0], &kept, &dy);
    if (status == MX_OK)
        status = mx_apply(&mx_op_mul, (mx_tensor *[]){dy, scale}, 2, MX_NO_ATTRS, &dx);
    mx_release(dy);
    mx_release(scale);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_sum = {
    .name = "sum",
    .doc = "sum of x along dim, or of all elements; sums of integers are i32, of i64 i64, and an error if one does not "
           "fit",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = reduce_attrs,
    .attr_bytes = sizeof(reduce_attr),
    .infer = infer_sum,
    .cost = cost_per_input,
    .host = host_sum,
    .vjp = vjp_sum,
    .vjp_recorded = vjp_sum_recorded,
};

const mx_op mx_op_mean = {
    .name = "mean",
    .doc = "mean of x along dim, or of all elements; means of integers are f32",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = reduce_attrs,
    .attr_bytes = sizeof(reduce_attr),
    .infer = infer_mean,
    .cost = cost_per_input,
    .host = host_sum,
    .vjp = vjp_sum,
    .vjp_recorded = vjp_sum_recorded,
};

static mx_status infer_spread(mx_call *call)
{
    const spread_attr *attr = mx_call_attr(call);
    mx_extent e;
    MX_TRY(mx_want_reals(call));
    MX_TRY(extent_of(call, &attr->shape, attr->dim, &e));
    if (mx_count(call->in[0]) != e.outer * e.inner)
        return mx_bad_shape(call, "dy must have %lld elements to be spread over %s", (long long)(e.outer * e.inner),
                            mx_shape_text(&attr->shape));
    return mx_out_float(call, 0, attr->dtype, call->in[0]->dtype, &attr->shape);
}

static mx_cost cost_per_output(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->out[0])); }

/* dx (outer, n, inner) = scale * dy (outer, 1, inner). */
static mx_status host_spread(mx_call *call)
{
    const spread_attr *attr = mx_call_attr(call);
    mx_extent e;
    MX_TRY(extent_of(call, &attr->shape, attr->dim, &e));
    const int64_t all[3] = {e.outer, e.n, e.inner}, kept[3] = {e.outer, 1, e.inner}, one[1] = {1};
    mx_broadcast plan;
    mx_broadcast_plan(&plan, 2, (const int[]){3, 1}, (const int64_t *const[]){kept, one}, 3, all);
    double scale_f64 = attr->scale;
    float scale = (float)attr->scale;
    mx_array factor = call->out[0]->dtype == MX_F64 ? (mx_array){&scale_f64, MX_F64} : (mx_array){&scale, MX_F32};
    mx_binary_forward(MX_MUL, &plan, mx_array_of(call->in[0]), factor, mx_array_of(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_sum_grad = {
    .name = "sum_grad",
    .doc = "scale dy, repeated along dim (or everywhere) to fill `shape`: the gradient of sum and mean",
    .inputs = (const char *const[]){"dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(spread_attr, shape), NAN, NULL, "shape of the result"},
                               {"dim", MX_ATTR_DIM, offsetof(spread_attr, dim), ALL_DIMS, NULL,
                                "dimension that dy lacks; default: all"},
                               {"scale", MX_ATTR_FLOAT, offsetof(spread_attr, scale), 1, NULL, "factor of dy"},
                               {"dtype", MX_ATTR_DTYPE, offsetof(spread_attr, dtype), -1, NULL,
                                "dtype of the result; default: that of dy"},
                               {0}},
    .attr_bytes = sizeof(spread_attr),
    .infer = infer_spread,
    .cost = cost_per_output,
    .host = host_spread,
};

/* ---- max and argmax ---- */

static mx_status infer_max(mx_call *call) { return infer_reduced(call, call->in[0]->dtype, false); }

static mx_status host_max(mx_call *call)
{
    return mx_reduce_max(mx_array_of(call->in[0]), extent_of_input(call), mx_array_of(call->out[0]));
}

static mx_status vjp_max(mx_vjp *v)
{
    const mx_call *call = v->call;
    if (!mx_dtype_may_have_gradient(call->in[0]->dtype))
        return MX_OK;
    mx_tensor *dx = NULL, *in[3] = {call->in[0], call->out[0], v->out_grad[0]};
    MX_TRY(mx_apply(&mx_op_max_grad, in, 3, mx_call_attrs(call), &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_max = {
    .name = "max",
    .doc = "maximum of x along dim, or of all elements; NaN if there is a NaN",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = reduce_attrs,
    .attr_bytes = sizeof(reduce_attr),
    .reads_in = 1,
    .reads_out = 1,
    .infer = infer_max,
    .cost = cost_per_input,
    .host = host_max,
    .vjp = vjp_max,
};

static mx_status infer_max_grad(mx_call *call)
{
    mx_extent e;
    const reduce_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_reals(call));
    MX_TRY(extent_of(call, &call->in[0]->shape, attr->dim, &e));
    if (mx_count(call->in[1]) != e.outer * e.inner || mx_count(call->in[2]) != e.outer * e.inner)
        return mx_bad_shape(call, "y and dy must have %lld elements", (long long)(e.outer * e.inner));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_status host_max_grad(mx_call *call)
{
    mx_reduce_max_backward(mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_array_of(call->in[2]),
                           extent_of_input(call), mx_array_of(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_max_grad = {
    .name = "max_grad",
    .doc =
        "gradient of y = max(x): dy at the largest elements of x along dim, divided equally between ties, 0 elsewhere",
    .inputs = (const char *const[]){"x", "y", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = reduce_attrs,
    .attr_bytes = sizeof(reduce_attr),
    .infer = infer_max_grad,
    .cost = cost_per_input,
    .host = host_max_grad,
};

static mx_status infer_argmax(mx_call *call) { return infer_reduced(call, MX_I32, false); }

static mx_status host_argmax(mx_call *call)
{
    mx_reduce_argmax(mx_array_of(call->in[0]), extent_of_input(call), mx_data(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_argmax = {
    .name = "argmax",
    .doc = "index of the maximum of x along dim (or of all elements, row-major), from 0, as i32; the first of ties",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = reduce_attrs,
    .attr_bytes = sizeof(reduce_attr),
    .infer = infer_argmax,
    .cost = cost_per_input,
    .host = host_argmax,
};

/* ---- sum of squares ---- */

static mx_status infer_squares(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return mx_out(call, 0, mx_dtype_accumulates_in(call->in[0]->dtype), &(mx_shape){.n_dims = 0});
}

static mx_cost cost_squares(const mx_call *call) { return mx_cost_of(call, 2.0 * (double)mx_count(call->in[0])); }

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

/* ---- reduce_to: undoes broadcasting ---- */

/* The dimensions of x as alternating groups, kept and summed; at most MX_MAX_DIMS + 1 groups, without sizes of 1. */
typedef struct groups {
    int n;
    int64_t size[MX_MAX_DIMS + 1];
    bool summed[MX_MAX_DIMS + 1];
} groups;

static groups groups_of(const mx_shape *x, const mx_shape *y)
{
    groups g = {.n = 0};
    for (int d = 0; d < x->n_dims; d++) {
        int own = d - (x->n_dims - y->n_dims);
        bool summed = own < 0 || y->size[own] != x->size[d];
        if (x->size[d] == 1)
            continue;
        if (g.n > 0 && g.summed[g.n - 1] == summed) {
            g.size[g.n - 1] *= x->size[d];
        } else {
            g.size[g.n] = x->size[d];
            g.summed[g.n++] = summed;
        }
    }
    return g;
}

static mx_status infer_reduce_to(mx_call *call)
{
    const mx_reduce_to_attr *attr = mx_call_attr(call);
    const mx_shape *x = &call->in[0]->shape, *y = &attr->shape;
    MX_TRY(mx_want_reals(call));
    bool fits = y->n_dims <= x->n_dims;
    for (int d = 1; fits && d <= y->n_dims; d++)
        fits = y->size[y->n_dims - d] == 1 || y->size[y->n_dims - d] == x->size[x->n_dims - d];
    if (!fits)
        return mx_bad_shape(call, "shape %s does not broadcast to x", mx_shape_text(y));
    return mx_out_float(call, 0, attr->dtype, call->in[0]->dtype, y);
}

/* The last group to sum, or -1; and x as (outer, n, inner) around it. */
static int last_summed(const groups *g, mx_extent *e)
{
    int last = g->n - 1;
    while (last >= 0 && !g->summed[last])
        last--;
    *e = (mx_extent){1, 1, 1};
    for (int i = 0; i < g->n; i++)
        *(i < last ? &e->outer : i == last ? &e->n : &e->inner) *= g->size[i];
    return last;
}

/* One pass per summed group, starting with the last; between passes the sums are f32, or f64. */
static mx_status reduce_groups(groups g, mx_array x, mx_array y)
{
    mx_extent e, next;
    int last = last_summed(&g, &e);
    g.size[last] = 1;
    g.summed[last] = false;
    if (last_summed(&g, &next) < 0)
        return mx_reduce_sum(x, e, 1.0, y);
    mx_array sums = {NULL, mx_dtype_accumulates_in(x.dtype)};
    int64_t bytes = e.outer * e.inner * (int64_t)mx_dtype_bytes(sums.dtype);
    MX_TRY(mx_pool_alloc(bytes, &sums.data));
    mx_status status = mx_reduce_sum(x, e, 1.0, sums);
    if (status == MX_OK)
        status = reduce_groups(g, sums, y);
    mx_pool_free(sums.data, bytes);
    return status;
}

static mx_status host_reduce_to(mx_call *call)
{
    mx_tensor *x = call->in[0];
    mx_extent e;
    groups g = groups_of(&x->shape, &call->out[0]->shape);
    if (last_summed(&g, &e) >= 0)
        return reduce_groups(g, mx_array_of(x), mx_array_of(call->out[0]));
    mx_cast(mx_array_of(x), mx_array_of(call->out[0]), mx_count(x));
    return MX_OK;
}

/* dx = dy times ones of x's shape: broadcast. */
static mx_status vjp_reduce_to(mx_vjp *v)
{
    mx_tensor *ones = NULL, *dx = NULL;
    MX_TRY(mx_apply_full(&v->call->in[0]->shape, v->call->in[0]->dtype, 1, &ones));
    mx_status status = mx_apply(&mx_op_mul, (mx_tensor *[]){ones, v->out_grad[0]}, 2, MX_NO_ATTRS, &dx);
    mx_release(ones);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_reduce_to = {
    .name = "reduce_to",
    .doc = "sum of x over the dimensions in which `shape` is broadcast to x's shape: the gradient of broadcasting",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(mx_reduce_to_attr, shape), NAN, NULL,
                                "shape of the result"},
                               {"dtype", MX_ATTR_DTYPE, offsetof(mx_reduce_to_attr, dtype), -1, NULL,
                                "dtype of the result; default: that of x"},
                               {0}},
    .attr_bytes = sizeof(mx_reduce_to_attr),
    .infer = infer_reduce_to,
    .cost = cost_per_input,
    .host = host_reduce_to,
    .vjp = vjp_reduce_to,
    .vjp_recorded = vjp_reduce_to,
};

mx_status mx_apply_reduce_to(mx_tensor *x, const mx_shape *shape, mx_tensor **y)
{
    const mx_reduce_to_attr attr = {*shape, -1};
    return mx_apply(&mx_op_reduce_to, &x, 1, MX_ATTRS(attr), y);
}
