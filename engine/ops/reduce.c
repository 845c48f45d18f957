/* Sums, means, extremes, any and all along dimensions or over all elements, and the sums that undo broadcasting. */
#include "core/pool.h"
#include "kernels/slopes.h"
#include "ops/reduction.h"
#include "ops/terms.h"

#include <math.h>

typedef struct place_attr {
    int64_t dim;
    bool keepdim;
} place_attr;

typedef struct spread_attr {
    mx_shape shape;
    mx_dims dim;
    double scale;
    int dtype;
} spread_attr;

static mx_cost cost_per_input(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static const char *const x_input[] = {"x", NULL};

static const mx_dims *dims_of(const mx_call *call) { return &((const mx_reduce_attr *)mx_call_attr(call))->dim; }

/* ---- sum and mean ---- */

static mx_status infer_sum(mx_call *call)
{
    mx_dtype dtype = call->in[0]->dtype;
    MX_TRY(mx_want_arithmetic(call, 0));
    return mx_infer_reduced(call, 0, mx_dtype_is_integer(dtype) ? mx_dtype_accumulates_in(dtype) : dtype);
}

static mx_status infer_mean(mx_call *call)
{
    mx_dtype dtype = call->in[0]->dtype;
    MX_TRY(mx_want_arithmetic(call, 0));
    return mx_infer_reduced(call, 0, mx_dtype_is_integer(dtype) ? MX_F32 : dtype);
}

static double scale_of(const mx_call *call, uint32_t mask)
{
    return call->op == &mx_op_mean ? 1.0 / (double)mx_reduced_count(&call->in[0]->shape, mask) : 1.0;
}

static mx_status host_sum(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_status status = mx_reduce_sum(r.x, r.e, scale_of(call, r.mask), mx_array_of(call->out[0]));
    mx_reduction_close(&r);
    return status == MX_OK ? MX_OK : mx_context(status, "%s of %s", call->op->name, mx_tensor_text(call->in[0]));
}

static mx_status vjp_sum(mx_vjp *v)
{
    const mx_tensor *x = v->call->in[0];
    uint32_t mask;
    if (!mx_dtype_may_have_gradient(x->dtype))
        return MX_OK;
    MX_TRY(mx_want_dims(v->call, dims_of(v->call), x->shape.n_dims, &mask));
    spread_attr attr = {
        .shape = x->shape, .dim = *dims_of(v->call), .scale = scale_of(v->call, mask), .dtype = mx_vjp_dtype(v, 0)};
    return mx_apply(&mx_op_sum_grad, v->out_grad, 1, MX_ATTRS(attr), &v->grad[0]);
}

/* dx = dy, with the reduced dimensions as 1, times a constant of x's shape. */
static mx_status vjp_sum_recorded(mx_vjp *v)
{
    const mx_tensor *x = v->call->in[0];
    mx_tensor *dy = NULL, *scale = NULL, *dx = NULL;
    uint32_t mask;
    if (!mx_dtype_may_have_gradient(x->dtype))
        return MX_OK;
    MX_TRY(mx_want_dims(v->call, dims_of(v->call), x->shape.n_dims, &mask));
    mx_shape kept = mx_reduced_shape(&x->shape, mask, true);
    MX_TRY(mx_apply_full(&x->shape, x->dtype, scale_of(v->call, mask), &scale));
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
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
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
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .infer = infer_mean,
    .cost = cost_per_input,
    .host = host_sum,
    .vjp = vjp_sum,
    .vjp_recorded = vjp_sum_recorded,
};

static mx_status infer_spread(mx_call *call)
{
    const spread_attr *attr = mx_call_attr(call);
    uint32_t mask;
    MX_TRY(mx_want_reals(call));
    MX_TRY(mx_want_dims(call, &attr->dim, attr->shape.n_dims, &mask));
    int64_t count = mx_reduced_count(&attr->shape, ~mask);
    if (mx_count(call->in[0]) != count)
        return mx_bad_shape(call, "dy must have %lld elements to be spread over %s", (long long)count,
                            mx_shape_text(&attr->shape));
    return mx_out_float(call, 0, attr->dtype, call->in[0]->dtype, &attr->shape);
}

static mx_cost cost_per_output(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->out[0])); }

/* dx = scale * dy, repeated along the dimensions that it lacks. */
static mx_status host_spread(mx_call *call)
{
    const spread_attr *attr = mx_call_attr(call);
    uint32_t mask;
    MX_TRY(mx_want_dims(call, &attr->dim, attr->shape.n_dims, &mask));
    mx_shape kept = mx_reduced_shape(&attr->shape, mask, true);
    const int64_t one[1] = {1};
    mx_broadcast plan;
    mx_broadcast_plan(&plan, 2, (const int[]){kept.n_dims, 1}, (const int64_t *const[]){kept.size, one}, kept.n_dims,
                      attr->shape.size);
    double scale_f64 = attr->scale;
    float scale = (float)attr->scale;
    mx_array factor = call->out[0]->dtype == MX_F64 ? (mx_array){&scale_f64, MX_F64} : (mx_array){&scale, MX_F32};
    mx_binary_forward((mx_pair){.op = MX_MUL}, &plan, mx_array_of(call->in[0]), factor, mx_array_of(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_sum_grad = {
    .name = "sum_grad",
    .doc = "scale dy, repeated along dim (or everywhere) to fill `shape`: the gradient of sum and mean",
    .inputs = (const char *const[]){"dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(spread_attr, shape), NAN, NULL, "shape of the result"},
                               {"dim", MX_ATTR_DIMS, offsetof(spread_attr, dim), 0, NULL,
                                "dimension that dy lacks, or a list of them; default: all"},
                               {"scale", MX_ATTR_FLOAT, offsetof(spread_attr, scale), 1, NULL, "factor of dy"},
                               {"dtype", MX_ATTR_DTYPE, offsetof(spread_attr, dtype), -1, NULL,
                                "dtype of the result; default: that of dy"},
                               {0}},
    .attr_bytes = sizeof(spread_attr),
    .infer = infer_spread,
    .cost = cost_per_output,
    .host = host_spread,
};

/* ---- max and min ---- */

static mx_status want_some(const mx_call *call, bool largest, int64_t n)
{
    if (n > 0)
        return MX_OK;
    return mx_bad_shape(call, "there is nothing to take the %s of", largest ? "largest" : "least");
}

static mx_status infer_extreme(mx_call *call)
{
    uint32_t mask;
    const mx_shape *x = &call->in[0]->shape;
    MX_TRY(mx_want_arithmetic(call, 0));
    MX_TRY(mx_want_dims(call, dims_of(call), x->n_dims, &mask));
    MX_TRY(want_some(call, call->op == &mx_op_max, mx_reduced_count(x, mask)));
    return mx_infer_reduced(call, 0, call->in[0]->dtype);
}

static mx_status host_extreme(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_status status =
        mx_reduce_extreme(call->op == &mx_op_max ? MX_FOLD_MAX : MX_FOLD_MIN, r.x, r.e, mx_array_of(call->out[0]));
    mx_reduction_close(&r);
    return status;
}

static mx_status vjp_extreme(mx_vjp *v)
{
    const mx_call *call = v->call;
    if (!mx_dtype_may_have_gradient(call->in[0]->dtype))
        return MX_OK;
    mx_tensor *dx = NULL, *in[3] = {call->in[0], call->out[0], v->out_grad[0]};
    MX_TRY(mx_apply(&mx_op_max_grad, in, 3, mx_call_attrs(call), &dx));
    return mx_give_grad(v, 0, dx);
}

/* dy times what max_grad gives for ones: a constant. */
static mx_status vjp_extreme_recorded(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *ones = NULL, *x = call->in[0];
    uint32_t mask;
    if (!mx_dtype_may_have_gradient(x->dtype))
        return MX_OK;
    MX_TRY(mx_want_dims(call, dims_of(call), x->shape.n_dims, &mask));
    mx_shape kept = mx_reduced_shape(&x->shape, mask, true);
    mx_terms s = {.n = 0};
    mx_tensor *at = mx_term_constant(&s, x), *y = mx_term_constant(&s, call->out[0]);
    if (y)
        mx_term_keep(&s, mx_apply_full(&y->shape, y->dtype, 1, &ones), &ones);
    mx_tensor *slope = mx_term(&s, &mx_op_max_grad, mx_call_attrs(call), at, y, ones);
    mx_tensor *dx = mx_term_mul(&s, slope, mx_term_reshape(&s, v->out_grad[0], &kept));
    mx_term_give(&s, v, 0, dx);
    return mx_terms_release(&s);
}

const mx_op mx_op_max = {
    .name = "max",
    .doc = "maximum of x along dim, or of all elements; NaN if there is a NaN",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .reads_in = 1,
    .reads_out = 1,
    .infer = infer_extreme,
    .cost = cost_per_input,
    .host = host_extreme,
    .vjp = vjp_extreme,
    .vjp_recorded = vjp_extreme_recorded,
};

const mx_op mx_op_min = {
    .name = "min",
    .doc = "minimum of x along dim, or of all elements; NaN if there is a NaN",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .reads_in = 1,
    .reads_out = 1,
    .infer = infer_extreme,
    .cost = cost_per_input,
    .host = host_extreme,
    .vjp = vjp_extreme,
    .vjp_recorded = vjp_extreme_recorded,
};

static mx_status infer_max_grad(mx_call *call)
{
    const mx_shape *x = &call->in[0]->shape;
    uint32_t mask;
    MX_TRY(mx_want_reals(call));
    MX_TRY(mx_want_dims(call, dims_of(call), x->n_dims, &mask));
    int64_t count = mx_reduced_count(x, ~mask);
    if (mx_count(call->in[1]) != count || mx_count(call->in[2]) != count)
        return mx_bad_shape(call, "y and dy must have %lld elements", (long long)count);
    return mx_out(call, 0, call->in[0]->dtype, x);
}

static mx_status host_max_grad(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_status status = mx_reduce_extreme_backward(r.x, mx_array_of(call->in[1]), mx_array_of(call->in[2]), r.e,
                                                  mx_reduction_gradient(&r, call->out[0]));
    mx_reduction_return(&r, call->out[0]);
    return status;
}

const mx_op mx_op_max_grad = {
    .name = "max_grad",
    .doc = "gradient of y = max(x) or min(x): dy where x is y along dim, divided equally between ties, 0 elsewhere",
    .inputs = (const char *const[]){"x", "y", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .infer = infer_max_grad,
    .cost = cost_per_input,
    .host = host_max_grad,
};

/* ---- argmax and argmin ---- */

enum { ALL_DIMS = -128 }; /* the default of their `dim` */

static mx_status place_extent(const mx_call *call, mx_extent *e, int *dim)
{
    const place_attr *attr = mx_call_attr(call);
    const mx_shape *x = &call->in[0]->shape;
    *dim = -1;
    *e = (mx_extent){1, mx_shape_count(x), 1};
    if (attr->dim == ALL_DIMS)
        return MX_OK;
    MX_TRY(mx_want_dim(call, "dim", attr->dim, x->n_dims, dim));
    *e = (mx_extent){mx_outer_size(x, *dim), x->size[*dim], mx_inner_size(x, *dim)};
    return MX_OK;
}

static mx_status infer_place(mx_call *call)
{
    mx_extent e;
    int dim;
    MX_TRY(mx_want_arithmetic(call, 0));
    MX_TRY(place_extent(call, &e, &dim));
    MX_TRY(want_some(call, call->op == &mx_op_argmax, e.n));
    if (e.n > INT32_MAX)
        return mx_bad_shape(call, "there are more places than i32 can count");
    mx_shape y = mx_reduced_shape(&call->in[0]->shape, dim < 0 ? UINT32_MAX : 1u << dim,
                                  ((const place_attr *)mx_call_attr(call))->keepdim);
    return mx_out(call, 0, MX_I32, &y);
}

static mx_status host_place(mx_call *call)
{
    mx_extent e;
    int dim;
    MX_TRY(place_extent(call, &e, &dim));
    return mx_reduce_place(call->op == &mx_op_argmax ? MX_FOLD_MAX : MX_FOLD_MIN, mx_array_of(call->in[0]), e,
                           mx_data(call->out[0]));
}

static const mx_attr place_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(place_attr, dim), ALL_DIMS, NULL, "dimension to reduce; default: all"},
    {"keepdim", MX_ATTR_BOOL, offsetof(place_attr, keepdim), 0, NULL, "keep the dimension with size 1"},
    {0}};

const mx_op mx_op_argmax = {
    .name = "argmax",
    .doc = "index of the maximum of x along dim (or of all elements, row-major), from 0, as i32; the first of ties",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = place_attrs,
    .attr_bytes = sizeof(place_attr),
    .infer = infer_place,
    .cost = cost_per_input,
    .host = host_place,
};

const mx_op mx_op_argmin = {
    .name = "argmin",
    .doc = "index of the minimum of x along dim (or of all elements, row-major), from 0, as i32; the first of ties",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = place_attrs,
    .attr_bytes = sizeof(place_attr),
    .infer = infer_place,
    .cost = cost_per_input,
    .host = host_place,
};

/* ---- any and all ---- */

static mx_status infer_any(mx_call *call) { return mx_infer_reduced(call, 0, MX_U8); }

static mx_status host_any(mx_call *call)
{
    mx_reduction r;
    MX_TRY(mx_reduction_open(call, call->in[0], dims_of(call), &r));
    mx_reduce_any(r.x, r.e, call->op == &mx_op_all, mx_data(call->out[0]));
    mx_reduction_close(&r);
    return MX_OK;
}

const mx_op mx_op_any = {
    .name = "any",
    .doc = "1 (u8) if an element of x along dim, or of all elements, is not 0, else 0; NaN is not 0",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .infer = infer_any,
    .cost = cost_per_input,
    .host = host_any,
};

const mx_op mx_op_all = {
    .name = "all",
    .doc = "1 (u8) if every element of x along dim, or of all elements, is not 0, else 0; NaN is not 0",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_reduce_attrs,
    .attr_bytes = sizeof(mx_reduce_attr),
    .infer = infer_any,
    .cost = cost_per_input,
    .host = host_any,
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
