/* Operations that follow the order of a dimension: sort, argsort, topk, cumsum, linear_scan. */
#include "core/pool.h"
#include "kernels/scan.h"
#include "kernels/sort.h"
#include "ops/pointwise.h"

#include <math.h>

typedef struct sort_attr {
    int64_t dim;
    bool descending;
} sort_attr;

typedef struct topk_attr {
    int64_t k, dim;
    bool smallest;
} topk_attr;

typedef struct cumsum_attr {
    int64_t dim;
    bool reverse;
} cumsum_attr;

typedef struct scan_attr {
    int64_t dim;
    bool reverse, lagged;
} scan_attr;

static const char *const x_input[] = {"x", NULL};

/* Checks x and `dim`, and sees x as (outer, n, inner) around it. */
static mx_status want_extent(const mx_call *call, int64_t given, mx_extent *e, int *dim)
{
    const mx_shape *x = &call->in[0]->shape;
    MX_TRY(mx_want_arithmetic(call, 0));
    MX_TRY(mx_want_dim(call, "dim", given, x->n_dims, dim));
    *e = (mx_extent){mx_outer_size(x, *dim), x->size[*dim], mx_inner_size(x, *dim)};
    return MX_OK;
}

/* Those of ids, which are i32. */
static mx_status want_extent_with_ids(const mx_call *call, int64_t given, mx_extent *e, int *dim)
{
    MX_TRY(want_extent(call, given, e, dim));
    if (e->n > INT32_MAX)
        return mx_bad_shape(call, "dim %d is longer than i32 can count", *dim + 1);
    return MX_OK;
}

/* dx has dy at the ids. Both operations with values and ids end so. */
static mx_status vjp_by_ids(mx_vjp *v, int64_t dim)
{
    mx_tensor *dx = NULL;
    if (!v->out_grad[0])
        return MX_OK;
    MX_TRY(mx_apply_gather_grad(v->call->out[1], v->out_grad[0], dim, &v->call->in[0]->shape, &dx));
    return mx_give_grad(v, 0, dx);
}

/* ---- sort and argsort ---- */

static mx_status infer_sort(mx_call *call)
{
    mx_extent e;
    int dim = 0, n = 0;
    const mx_shape *x = &call->in[0]->shape;
    MX_TRY(want_extent_with_ids(call, ((const sort_attr *)mx_call_attr(call))->dim, &e, &dim));
    if (call->op == &mx_op_sort)
        MX_TRY(mx_out(call, n++, call->in[0]->dtype, x));
    return mx_out(call, n, MX_I32, x);
}

/* A comparison for each element and doubling of the line. */
static mx_cost cost_sort(const mx_call *call)
{
    mx_extent e = {0};
    int dim = 0;
    want_extent(call, ((const sort_attr *)mx_call_attr(call))->dim, &e, &dim); /* checked by infer */
    return mx_cost_of(call, (double)mx_count(call->in[0]) * log2((double)(e.n > 2 ? e.n : 2)));
}

static mx_status host_sort(mx_call *call)
{
    const sort_attr *attr = mx_call_attr(call);
    mx_extent e;
    int dim = 0;
    MX_TRY(want_extent(call, attr->dim, &e, &dim));
    bool both = call->op == &mx_op_sort;
    return mx_sort(mx_array_of(call->in[0]), e, attr->descending, both ? mx_data(call->out[0]) : NULL,
                   mx_data(call->out[both]));
}

static mx_status vjp_sort(mx_vjp *v) { return vjp_by_ids(v, ((const sort_attr *)mx_call_attr(v->call))->dim); }

static const mx_attr sort_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(sort_attr, dim), -1, NULL, "dimension to sort along; default: the last"},
    {"descending", MX_ATTR_BOOL, offsetof(sort_attr, descending), 0, NULL, "greatest first"},
    {0}};

const mx_op mx_op_sort = {
    .name = "sort",
    .doc =
        "x sorted along dim, and the ids (i32, from 0) of its values in x; equal values keep their order, and NaN is "
        "greater than all numbers",
    .inputs = x_input,
    .n_out = 2,
    .n_results = 2,
    .attrs = sort_attrs,
    .attr_bytes = sizeof(sort_attr),
    .reads_out = 1 << 1,
    .infer = infer_sort,
    .cost = cost_sort,
    .host = host_sort,
    .vjp = vjp_sort,
    .vjp_recorded = vjp_sort,
};

const mx_op mx_op_argsort = {
    .name = "argsort",
    .doc = "the ids (i32, from 0) that sort x along dim; equal values keep their order, and NaN is greater than all "
           "numbers",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = sort_attrs,
    .attr_bytes = sizeof(sort_attr),
    .infer = infer_sort,
    .cost = cost_sort,
    .host = host_sort,
};

/* ---- topk ---- */

static mx_status infer_topk(mx_call *call)
{
    const topk_attr *attr = mx_call_attr(call);
    mx_extent e;
    int dim = 0;
    MX_TRY(want_extent_with_ids(call, attr->dim, &e, &dim));
    if (attr->k < 0 || attr->k > e.n)
        return mx_bad_value(call, "k = %lld must be in 0 .. %lld, the size of dim %d", (long long)attr->k,
                            (long long)e.n, dim + 1);
    mx_shape shape = call->in[0]->shape;
    shape.size[dim] = attr->k;
    MX_TRY(mx_out(call, 0, call->in[0]->dtype, &shape));
    return mx_out(call, 1, MX_I32, &shape);
}

static mx_cost cost_per_input(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static mx_status host_topk(mx_call *call)
{
    const topk_attr *attr = mx_call_attr(call);
    mx_extent e;
    int dim = 0;
    MX_TRY(want_extent(call, attr->dim, &e, &dim));
    return mx_topk(mx_array_of(call->in[0]), e, attr->k, attr->smallest, mx_data(call->out[0]), mx_data(call->out[1]));
}

static mx_status vjp_topk(mx_vjp *v) { return vjp_by_ids(v, ((const topk_attr *)mx_call_attr(v->call))->dim); }

const mx_op mx_op_topk = {
    .name = "topk",
    .doc =
        "the k greatest values of x along dim, greatest first, and their ids (i32, from 0); of equal values the first "
        "ones, and NaN is greater than all numbers",
    .inputs = x_input,
    .n_out = 2,
    .n_results = 2,
    .attrs = (const mx_attr[]){{"k", MX_ATTR_INT, offsetof(topk_attr, k), NAN, NULL, "how many"},
                               {"dim", MX_ATTR_DIM, offsetof(topk_attr, dim), -1, NULL,
                                "dimension to select along; default: the last"},
                               {"smallest", MX_ATTR_BOOL, offsetof(topk_attr, smallest), 0, NULL,
                                "the k least values instead, least first"},
                               {0}},
    .attr_bytes = sizeof(topk_attr),
    .reads_out = 1 << 1,
    .infer = infer_topk,
    .cost = cost_per_input,
    .host = host_topk,
    .vjp = vjp_topk,
    .vjp_recorded = vjp_topk,
};

/* ---- cumsum ---- */

static mx_status infer_cumsum(mx_call *call)
{
    mx_extent e;
    int dim = 0;
    MX_TRY(want_extent(call, ((const cumsum_attr *)mx_call_attr(call))->dim, &e, &dim));
    mx_dtype dtype = call->in[0]->dtype;
    return mx_out(call, 0, mx_dtype_is_integer(dtype) ? mx_dtype_accumulates_in(dtype) : dtype, &call->in[0]->shape);
}

static mx_status host_cumsum(mx_call *call)
{
    const cumsum_attr *attr = mx_call_attr(call);
    mx_extent e;
    int dim = 0;
    MX_TRY(want_extent(call, attr->dim, &e, &dim));
    mx_status status = mx_cumsum(mx_array_of(call->in[0]), e, attr->reverse, mx_array_of(call->out[0]));
    return status == MX_OK ? MX_OK : mx_context(status, "cumsum of %s", mx_tensor_text(call->in[0]));
}

/* dx[i] is the sum of dy over all sums that x[i] is part of: the same in the other direction. */
static mx_status vjp_cumsum(mx_vjp *v)
{
    cumsum_attr attr = *(const cumsum_attr *)mx_call_attr(v->call);
    attr.reverse = !attr.reverse;
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply(&mx_op_cumsum, v->out_grad, 1, MX_ATTRS(attr), &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_cumsum = {
    .name = "cumsum",
    .doc = "sums of x along dim up to each element; of integers they are i32, of i64 i64, and an error if one does not "
           "fit",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){
            {"dim", MX_ATTR_DIM, offsetof(cumsum_attr, dim), -1, NULL, "dimension to sum along; default: the last"},
            {"reverse", MX_ATTR_BOOL, offsetof(cumsum_attr, reverse), 0, NULL, "sums from each element to the end"},
            {0}},
    .attr_bytes = sizeof(cumsum_attr),
    .infer = infer_cumsum,
    .cost = cost_per_input,
    .host = host_cumsum,
    .vjp = vjp_cumsum,
    .vjp_recorded = vjp_cumsum,
};

/* ---- linear_scan ---- */

static mx_status infer_linear_scan(mx_call *call)
{
    mx_shape shape;
    const mx_tensor *b = call->in[1];
    int dim = 0;
    MX_TRY(mx_want_real(call, 0));
    MX_TRY(mx_want_real(call, 1));
    MX_TRY(mx_want_alike(call, 0, 1));
    MX_TRY(mx_want_broadcast(call, &shape));
    if (!mx_shape_equal(&shape, &b->shape))
        return mx_bad_shape(call, "a does not broadcast to b");
    MX_TRY(mx_want_dim(call, "dim", ((const scan_attr *)mx_call_attr(call))->dim, shape.n_dims, &dim));
    return mx_out(call, 0, b->dtype, &shape);
}

static mx_cost cost_scan(const mx_call *call) { return mx_cost_of(call, 2 * (double)mx_count(call->out[0])); }

static mx_status host_linear_scan(mx_call *call)
{
    const scan_attr *attr = mx_call_attr(call);
    mx_tensor *a = call->in[0], *b = call->in[1];
    const mx_shape *shape = &b->shape;
    int dim = (int)(attr->dim < 0 ? attr->dim + shape->n_dims : attr->dim);
    mx_extent e = {mx_outer_size(shape, dim), shape->size[dim], mx_inner_size(shape, dim)};
    mx_array whole = mx_array_of(a);
    int64_t bytes = mx_shape_equal(&a->shape, shape) ? 0 : mx_count(b) * (int64_t)mx_dtype_bytes(a->dtype);
    if (bytes > 0) {
        MX_TRY(mx_pool_alloc(bytes, &whole.data));
        mx_expand_into(a, shape, whole.data);
    }
    mx_linear_scan(whole, mx_array_of(b), e, attr->reverse, attr->lagged, mx_array_of(call->out[0]));
    if (bytes > 0)
        mx_pool_free(whole.data, bytes);
    return MX_OK;
}

/* With y[i] = a[i] y[i - 1] + b[i], db[i] = dy[i] + a[i + 1] db[i + 1]: the same from the other end, with a of the
 * element before in that order; and da[i] = y[i - 1] db[i]. Lagged, y[i] = a[i - 1] y[i - 1] + b[i] gives db[i] = dy[i]
 * + a[i] db[i + 1] and da[i] = y[i] db[i + 1]. */
static mx_status vjp_linear_scan(mx_vjp *v)
{
    scan_attr attr = *(const scan_attr *)mx_call_attr(v->call);
    scan_attr back = {attr.dim, !attr.reverse, !attr.lagged};
    mx_tensor *da = NULL, *db = NULL, *y = v->call->out[0];
    MX_TRY(mx_apply(&mx_op_linear_scan, (mx_tensor *[]){v->call->in[0], v->out_grad[0]}, 2, MX_ATTRS(back), &db));
    mx_status status = MX_OK;
    if (v->want[0]) {
        scan_attr by = {.dim = attr.dim, .reverse = attr.reverse != attr.lagged};
        status = mx_apply(&mx_op_linear_scan_grad, attr.lagged ? (mx_tensor *[]){db, y} : (mx_tensor *[]){y, db}, 2,
                          MX_ATTRS(by), &da);
        status = status == MX_OK ? mx_give_reduced(v, 0, da) : status;
    }
    if (status == MX_OK && v->want[1])
        return mx_give_grad(v, 1, db);
    mx_release(db);
    return status;
}

static const mx_attr scan_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(scan_attr, dim), NAN, NULL, "dimension to go along"},
    {"reverse", MX_ATTR_BOOL, offsetof(scan_attr, reverse), 0, NULL, "from the end: t + 1 in place of t - 1"},
    {"lagged", MX_ATTR_BOOL, offsetof(scan_attr, lagged), 0, NULL, "a of the element before in place of a[t]"},
    {0}};

/* Those of linear_scan_grad. */
static const mx_attr scan_grad_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(scan_attr, dim), NAN, NULL, "dimension to go along"},
    {"reverse", MX_ATTR_BOOL, offsetof(scan_attr, reverse), 0, NULL, "x[t + 1] in place of x[t - 1]"},
    {0}};

const mx_op mx_op_linear_scan = {
    .name = "linear_scan",
    .doc = "h[t] = a[t] h[t - 1] + b[t] along dim, from h[1] = b[1]; a broadcasts to b; h is f32 inside for bf16",
    .flags = MX_OP_LIKE_SECOND,
    .inputs = (const char *const[]){"a", "b", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = scan_attrs,
    .attr_bytes = sizeof(scan_attr),
    .reads_in = 1 << 0,
    .reads_out = 1 << 0,
    .infer = infer_linear_scan,
    .cost = cost_scan,
    .host = host_linear_scan,
    .vjp = vjp_linear_scan,
    .vjp_recorded = vjp_linear_scan,
};

static mx_status infer_scan_grad(mx_call *call)
{
    int dim = 0;
    const mx_tensor *x = call->in[0];
    MX_TRY(mx_want_real(call, 0));
    MX_TRY(mx_want_dim(call, "dim", ((const scan_attr *)mx_call_attr(call))->dim, x->shape.n_dims, &dim));
    if (call->in[1]) {
        MX_TRY(mx_want_dtype(call, 1, x->dtype));
        MX_TRY(mx_want_shape(call, 1, &x->shape));
    }
    return mx_out(call, 0, x->dtype, &x->shape);
}

static mx_status host_scan_grad(mx_call *call)
{
    const scan_attr *attr = mx_call_attr(call);
    mx_array y = call->in[1] ? mx_array_of(call->in[1]) : (mx_array){NULL, call->in[0]->dtype};
    mx_extent e;
    int dim = 0;
    MX_TRY(want_extent(call, attr->dim, &e, &dim));
    mx_times_previous(mx_array_of(call->in[0]), y, e, attr->reverse, mx_array_of(call->out[0]));
    return MX_OK;
}

/* With out[i] = x[i - 1] y[i]: dy[i] = x[i - 1] dout[i], and dx[i] = y[i + 1] dout[i + 1]. */
static mx_status vjp_scan_grad(mx_vjp *v)
{
    scan_attr attr = *(const scan_attr *)mx_call_attr(v->call);
    scan_attr back = {.dim = attr.dim, .reverse = !attr.reverse};
    mx_tensor *product = NULL, *grad = NULL, *y = v->call->in[1];
    if (v->want[0]) {
        if (y)
            MX_TRY(mx_apply(&mx_op_mul, (mx_tensor *[]){v->out_grad[0], y}, 2, MX_NO_ATTRS, &product));
        mx_status status =
            mx_apply(&mx_op_linear_scan_grad, (mx_tensor *[]){y ? product : v->out_grad[0]}, 1, MX_ATTRS(back), &grad);
        mx_release(product);
        MX_TRY(status);
        MX_TRY(mx_give_grad(v, 0, grad));
    }
    if (!y || !v->want[1])
        return MX_OK;
    MX_TRY(
        mx_apply(&mx_op_linear_scan_grad, (mx_tensor *[]){v->call->in[0], v->out_grad[0]}, 2, MX_ATTRS(attr), &grad));
    return mx_give_grad(v, 1, grad);
}

const mx_op mx_op_linear_scan_grad = {
    .name = "linear_scan_grad",
    .doc = "x[t - 1] y[t] along dim, 0 for the first; without y x[t - 1]: the gradient of linear_scan by a",
    .inputs = (const char *const[]){"x", "y?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = scan_grad_attrs,
    .attr_bytes = sizeof(scan_attr),
    .reads_in = 1 << 0 | 1 << 1,
    .infer = infer_scan_grad,
    .cost = cost_scan,
    .host = host_scan_grad,
    .vjp = vjp_scan_grad,
    .vjp_recorded = vjp_scan_grad,
};
