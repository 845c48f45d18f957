/* Operations that reorder dimensions: permute, transpose. */
#include "kernels/shape.h"

#include "ops/rows.h"

#include <math.h>

static mx_cost cost_copy(const mx_call *call) { return mx_cost_of(call, 0); }

/* Dimension d of the result is dimension order[d] of the input. */
static mx_status out_in_order(mx_call *call, const int *order)
{
    const mx_shape *from = &call->in[0]->shape;
    mx_shape shape = {.n_dims = from->n_dims};
    for (int d = 0; d < from->n_dims; d++)
        shape.size[d] = from->size[order[d]];
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_status host_in_order(mx_call *call, const int *order)
{
    const mx_tensor *x = call->in[0];
    mx_permute(mx_data(call->out[0]), mx_data(x), x->shape.n_dims, x->shape.size, order, mx_dtype_bytes(x->dtype));
    return MX_OK;
}

/* ---- permute ---- */

typedef struct permute_attr {
    mx_shape dims; /* counted from 1; negative from the end */
} permute_attr;

static mx_status permute_order(const mx_call *call, int *order)
{
    const mx_shape *dims = &((const permute_attr *)mx_call_attr(call))->dims;
    int n = call->in[0]->shape.n_dims;
    unsigned seen = 0;
    bool good = dims->n_dims == n;
    for (int d = 0; d < n && good; d++) {
        int64_t dim = dims->size[d] < 0 ? dims->size[d] + n : dims->size[d] - 1;
        good = dim >= 0 && dim < n && !(seen >> dim & 1u);
        if (good) {
            seen |= 1u << dim;
            order[d] = (int)dim;
        }
    }
    if (!good)
        return mx_bad_value(call, "dims %s must name each of the %d dimensions once, from 1", mx_shape_text(dims), n);
    return MX_OK;
}

static mx_status infer_permute(mx_call *call)
{
    int order[MX_MAX_DIMS] = {0};
    MX_TRY(permute_order(call, order));
    return out_in_order(call, order);
}

static mx_status host_permute(mx_call *call)
{
    int order[MX_MAX_DIMS] = {0};
    MX_TRY(permute_order(call, order));
    return host_in_order(call, order);
}

static mx_status vjp_permute(mx_vjp *v)
{
    int order[MX_MAX_DIMS] = {0};
    permute_attr inverse = {{.n_dims = v->call->in[0]->shape.n_dims}};
    MX_TRY(permute_order(v->call, order));
    for (int d = 0; d < inverse.dims.n_dims; d++)
        inverse.dims.size[order[d]] = d + 1;
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply(&mx_op_permute, &v->out_grad[0], 1, MX_ATTRS(inverse), &dx));
    return mx_give_grad(v, 0, dx);
}

static const mx_attr permute_attrs[] = {
    {"dims", MX_ATTR_SHAPE, offsetof(permute_attr, dims), NAN, NULL, "all dimensions, in their new order"}, {0}};

const mx_op mx_op_permute = {
    .name = "permute",
    .doc = "reorders dimensions: dimension d of the result is dimension dims[d] of x",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = permute_attrs,
    .attr_bytes = sizeof(permute_attr),
    .infer = infer_permute,
    .cost = cost_copy,
    .host = host_permute,
    .vjp = vjp_permute,
    .vjp_recorded = vjp_permute,
};

/* ---- transpose ---- */

typedef struct transpose_attr {
    int64_t dim1, dim2;
} transpose_attr;

static mx_status transpose_order(const mx_call *call, int *order)
{
    const transpose_attr *attr = mx_call_attr(call);
    int n = call->in[0]->shape.n_dims, a = 0, b = 0;
    MX_TRY(mx_want_dim(call, "dim1", attr->dim1, n, &a));
    MX_TRY(mx_want_dim(call, "dim2", attr->dim2, n, &b));
    for (int d = 0; d < n; d++)
        order[d] = d == a ? b : d == b ? a : d;
    return MX_OK;
}

static mx_status infer_transpose(mx_call *call)
{
    int order[MX_MAX_DIMS] = {0};
    MX_TRY(transpose_order(call, order));
    return out_in_order(call, order);
}

static mx_status host_transpose(mx_call *call)
{
    int order[MX_MAX_DIMS] = {0};
    MX_TRY(transpose_order(call, order));
    return host_in_order(call, order);
}

static mx_status vjp_transpose(mx_vjp *v)
{
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply(&mx_op_transpose, &v->out_grad[0], 1, mx_call_attrs(v->call), &dx));
    return mx_give_grad(v, 0, dx);
}

static const mx_attr transpose_attrs[] = {
    {"dim1", MX_ATTR_DIM, offsetof(transpose_attr, dim1), -2, NULL, "the first dimension; default: the last but one"},
    {"dim2", MX_ATTR_DIM, offsetof(transpose_attr, dim2), -1, NULL, "the second dimension; default: the last"},
    {0}};

const mx_op mx_op_transpose = {
    .name = "transpose",
    .doc = "swaps two dimensions (makes a copy)",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = transpose_attrs,
    .attr_bytes = sizeof(transpose_attr),
    .infer = infer_transpose,
    .cost = cost_copy,
    .host = host_transpose,
    .vjp = vjp_transpose,
    .vjp_recorded = vjp_transpose,
};

mx_status mx_apply_transpose(mx_tensor *x, int dim1, int dim2, mx_tensor **y)
{
    const transpose_attr attr = {dim1, dim2};
    return mx_apply(&mx_op_transpose, &x, 1, MX_ATTRS(attr), y);
}
