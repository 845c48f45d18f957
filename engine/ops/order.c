/* Operations that follow the order of a dimension: sort, argsort, topk, cumsum. */
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
