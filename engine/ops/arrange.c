/* Operations that copy a tensor into another arrangement: flip, roll, tile, expand, stack, tril, triu. */
#include "kernels/shape.h"
#include "ops/pointwise.h"

#include <math.h>

static const char *const x_input[] = {"x", NULL};

static mx_cost cost_copy(const mx_call *call) { return mx_cost_of(call, 0); }

/* The step of each dimension of x, in elements. */
static void steps_of(const mx_shape *x, int64_t step[MX_MAX_DIMS])
{
    for (int d = x->n_dims - 1; d >= 0; d--)
        step[d] = d + 1 < x->n_dims ? step[d + 1] * x->size[d + 1] : 1;
}

/* dy applied to the same operation with other attributes. */
static mx_status vjp_by(mx_vjp *v, mx_attrs attrs)
{
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply(v->call->op, v->out_grad, 1, attrs, &dx));
    return mx_give_grad(v, 0, dx);
}

static mx_status vjp_same(mx_vjp *v) { return vjp_by(v, mx_call_attrs(v->call)); }

static mx_status same_shape(mx_call *call) { return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape); }

/* ---- flip ---- */

typedef struct flip_attr {
    mx_dims dim;
} flip_attr;

static mx_status infer_flip(mx_call *call)
{
    uint32_t mask;
    MX_TRY(mx_want_dims(call, &((const flip_attr *)mx_call_attr(call))->dim, call->in[0]->shape.n_dims, &mask));
    return same_shape(call);
}

static mx_status host_flip(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    uint32_t mask;
    int64_t step[MX_MAX_DIMS], first = 0;
    MX_TRY(mx_want_dims(call, &((const flip_attr *)mx_call_attr(call))->dim, x->shape.n_dims, &mask));
    steps_of(&x->shape, step);
    for (int d = 0; d < x->shape.n_dims; d++)
        if (mask >> d & 1u) {
            first += (x->shape.size[d] - 1) * step[d];
            step[d] = -step[d];
        }
    if (mx_count(x) > 0)
        mx_copy_strided(mx_data(call->out[0]), (char *)mx_data(x) + first * (int64_t)mx_dtype_bytes(x->dtype),
                        x->shape.n_dims, x->shape.size, step, mx_dtype_bytes(x->dtype));
    return MX_OK;
}

const mx_op mx_op_flip = {
    .name = "flip",
    .doc = "x with the order of its elements reversed along dim, or along all dimensions",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"dim", MX_ATTR_DIMS, offsetof(flip_attr, dim), 0, NULL,
                                "dimension, or list of dimensions; default: all"},
                               {0}},
    .attr_bytes = sizeof(flip_attr),
    .infer = infer_flip,
    .cost = cost_copy,
    .host = host_flip,
    .vjp = vjp_same,
    .vjp_recorded = vjp_same,
};

/* ---- roll ---- */

enum { ALL_DIMS = -128 }; /* the default of `dim` */

typedef struct roll_attr {
    int64_t shift, dim;
} roll_attr;

static mx_status infer_roll(mx_call *call)
{
    const roll_attr *attr = mx_call_attr(call);
    int dim = 0;
    if (attr->dim != ALL_DIMS)
        MX_TRY(mx_want_dim(call, "dim", attr->dim, call->in[0]->shape.n_dims, &dim));
    return same_shape(call);
}

static mx_status host_roll(mx_call *call)
{
    const roll_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    const mx_shape *shape = &x->shape;
    bool all = attr->dim == ALL_DIMS;
    int dim = (int)(attr->dim < 0 ? attr->dim + shape->n_dims : attr->dim);
    int64_t n = all ? mx_count(x) : shape->size[dim], runs = all ? 1 : mx_outer_size(shape, dim);
    int64_t bytes = (all ? 1 : mx_inner_size(shape, dim)) * (int64_t)mx_dtype_bytes(x->dtype);
    if (n == 0)
        return MX_OK;
    int64_t shift = (attr->shift % n + n) % n, row = n * bytes, head = (n - shift) * bytes;
    char *to = mx_data(call->out[0]);
    const char *from = mx_data(x);
    mx_copy_runs(to + shift * bytes, row, from, row, runs, head);
    mx_copy_runs(to, row, from + head, row, runs, row - head);
    return MX_OK;
}

static mx_status vjp_roll(mx_vjp *v)
{
    roll_attr attr = *(const roll_attr *)mx_call_attr(v->call);
    attr.shift = -attr.shift;
    return vjp_by(v, MX_ATTRS(attr));
}

const mx_op mx_op_roll = {
    .name = "roll",
    .doc =
        "x moved by `shift` elements along dim (or as one row of all elements); what leaves one end enters the other",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){
            {"shift", MX_ATTR_INT, offsetof(roll_attr, shift), NAN, NULL, "places to move up; negative: down"},
            {"dim", MX_ATTR_DIM, offsetof(roll_attr, dim), ALL_DIMS, NULL, "dimension; default: all, row-major"},
            {0}},
    .attr_bytes = sizeof(roll_attr),
    .infer = infer_roll,
    .cost = cost_copy,
    .host = host_roll,
    .vjp = vjp_roll,
    .vjp_recorded = vjp_roll,
};

/* ---- tile ---- */

typedef struct tile_attr {
    mx_shape times;
} tile_attr;

/* x's sizes with 1 for each dimension that `times` has before them. */
static mx_shape tiled_shape(const mx_shape *x, int n_dims)
{
    mx_shape wide = {.n_dims = n_dims};
    for (int d = 0; d < n_dims; d++)
        wide.size[d] = d < n_dims - x->n_dims ? 1 : x->size[d - n_dims + x->n_dims];
    return wide;
}

static mx_status infer_tile(mx_call *call)
{
    const mx_shape *times = &((const tile_attr *)mx_call_attr(call))->times, *x = &call->in[0]->shape;
    if (times->n_dims < x->n_dims)
        return mx_bad_value(call, "times %s must have a number for each of the %d dimensions", mx_shape_text(times),
                            x->n_dims);
    mx_shape y = tiled_shape(x, times->n_dims);
    for (int d = 0; d < y.n_dims; d++) {
        if (times->size[d] < 0)
            return mx_bad_value(call, "times %s must not be negative", mx_shape_text(times));
        if (__builtin_mul_overflow(y.size[d], times->size[d], &y.size[d]))
            return mx_bad_shape(call, "times %s make more elements than can be counted", mx_shape_text(times));
    }
    return mx_out(call, 0, call->in[0]->dtype, &y);
}

static mx_status host_tile(mx_call *call)
{
    const mx_shape *times = &((const tile_attr *)mx_call_attr(call))->times;
    const mx_tensor *x = call->in[0];
    mx_shape wide = tiled_shape(&x->shape, times->n_dims);
    int64_t size[2 * MX_MAX_DIMS], step[2 * MX_MAX_DIMS], own[MX_MAX_DIMS];
    steps_of(&wide, own);
    for (int d = 0; d < wide.n_dims; d++) {
        size[2 * d] = times->size[d];
        step[2 * d] = 0;
        size[2 * d + 1] = wide.size[d];
        step[2 * d + 1] = own[d];
    }
    mx_copy_strided(mx_data(call->out[0]), mx_data(x), 2 * wide.n_dims, size, step, mx_dtype_bytes(x->dtype));
    return MX_OK;
}

/* Sums the copies along one dimension after the other. */
static mx_status vjp_tile(mx_vjp *v)
{
    const mx_shape *times = &((const tile_attr *)mx_call_attr(v->call))->times, *x = &v->call->in[0]->shape;
    mx_shape left = v->call->out[0]->shape;
    mx_tensor *dx = mx_retain(v->out_grad[0]);
    mx_status status = MX_OK;
    for (int d = 0; d < left.n_dims && status == MX_OK; d++) {
        if (times->size[d] == 1)
            continue;
        mx_shape wide = {3, {mx_outer_size(&left, d), times->size[d], 0}}, one = {3, {wide.size[0], 1, 0}};
        left.size[d] = tiled_shape(x, left.n_dims).size[d];
        wide.size[2] = one.size[2] = left.size[d] * mx_inner_size(&left, d);
        mx_tensor *split = NULL, *sum = NULL;
        status = mx_apply_reshape(dx, &wide, &split);
        if (status == MX_OK)
            status = mx_apply_reduce_to(split, &one, &sum);
        mx_release(dx);
        if (split)
            mx_release(split);
        dx = sum;
    }
    mx_tensor *own = NULL;
    if (status == MX_OK)
        status = mx_apply_reshape(dx, x, &own);
    if (dx)
        mx_release(dx);
    MX_TRY(status);
    return mx_give_grad(v, 0, own);
}

const mx_op mx_op_tile = {
    .name = "tile",
    .doc =
        "x repeated along each dimension: times = {2, 3} gives two copies below each other and three beside each other",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"times", MX_ATTR_SHAPE, offsetof(tile_attr, times), NAN, NULL,
                                "a number for each dimension; further ones before them add dimensions"},
                               {0}},
    .attr_bytes = sizeof(tile_attr),
    .infer = infer_tile,
    .cost = cost_copy,
    .host = host_tile,
    .vjp = vjp_tile,
    .vjp_recorded = vjp_tile,
};

/* ---- expand ---- */

typedef struct expand_attr {
    mx_shape shape;
} expand_attr;

static mx_status infer_expand(mx_call *call)
{
    mx_shape y = ((const expand_attr *)mx_call_attr(call))->shape;
    const mx_shape *x = &call->in[0]->shape;
    bool fits = y.n_dims >= x->n_dims;
    for (int d = 1; d <= y.n_dims && fits; d++) {
        int64_t own = d <= x->n_dims ? x->size[x->n_dims - d] : 1, *size = &y.size[y.n_dims - d];
        *size = *size == -1 && d <= x->n_dims ? own : *size;
        fits = *size >= 0 && (own == 1 || own == *size);
    }
    if (!fits)
        return mx_bad_shape(call, "x does not broadcast to %s", mx_shape_text(&y));
    return mx_out(call, 0, call->in[0]->dtype, &y);
}

void mx_expand_into(const mx_tensor *x, const mx_shape *shape, void *y)
{
    int64_t step[MX_MAX_DIMS], own[MX_MAX_DIMS];
    int added = shape->n_dims - x->shape.n_dims;
    steps_of(&x->shape, own);
    for (int d = 0; d < shape->n_dims; d++)
        step[d] = d < added || x->shape.size[d - added] == 1 ? 0 : own[d - added];
    mx_copy_strided(y, mx_data(x), shape->n_dims, shape->size, step, mx_dtype_bytes(x->dtype));
}

static mx_status host_expand(mx_call *call)
{
    mx_expand_into(call->in[0], &call->out[0]->shape, mx_data(call->out[0]));
    return MX_OK;
}

static mx_status vjp_expand(mx_vjp *v)
{
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply_reduce_to(v->out_grad[0], &v->call->in[0]->shape, &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_expand = {
    .name = "expand",
    .doc = "x broadcast to `shape`, as a copy",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(expand_attr, shape), NAN, NULL,
                                "shape of the result; -1: the size of x"},
                               {0}},
    .attr_bytes = sizeof(expand_attr),
    .infer = infer_expand,
    .cost = cost_copy,
    .host = host_expand,
    .vjp = vjp_expand,
    .vjp_recorded = vjp_expand,
};

/* ---- stack ---- */

typedef struct stack_attr {
    int64_t dim;
} stack_attr;

static int stack_dim(const mx_call *call)
{
    int64_t dim = ((const stack_attr *)mx_call_attr(call))->dim;
    return (int)(dim < 0 ? dim + call->in[0]->shape.n_dims + 1 : dim);
}

static mx_status infer_stack(mx_call *call)
{
    const mx_tensor *first = call->in[0];
    mx_shape y = {.n_dims = first->shape.n_dims + 1};
    int dim = 0;
    if (y.n_dims > MX_MAX_DIMS)
        return mx_bad_shape(call, "the result would have %d dimensions, and no tensor has more than %d", y.n_dims,
                            MX_MAX_DIMS);
    MX_TRY(mx_want_dim(call, "dim", ((const stack_attr *)mx_call_attr(call))->dim, y.n_dims, &dim));
    for (int i = 1; i < call->n_in; i++) {
        if (call->in[i]->dtype != first->dtype)
            return mx_bad_dtype(call, "dtypes differ");
        if (!mx_shape_equal(&call->in[i]->shape, &first->shape))
            return mx_bad_shape(call, "sizes differ");
    }
    for (int d = 0; d < y.n_dims; d++)
        y.size[d] = d == dim ? call->n_in : first->shape.size[d < dim ? d : d - 1];
    return mx_out(call, 0, first->dtype, &y);
}

static mx_status host_stack(mx_call *call)
{
    return mx_join_inputs(call, mx_outer_size(&call->out[0]->shape, stack_dim(call)));
}

static mx_status vjp_stack(mx_vjp *v)
{
    int dim = stack_dim(v->call);
    for (int i = 0; i < v->call->n_in; i++) {
        mx_tensor *part = NULL, *own = NULL;
        if (!v->want[i])
            continue;
        MX_TRY(mx_apply_narrow(v->out_grad[0], dim, i, 1, &part));
        mx_status status = mx_apply_reshape(part, &v->call->in[i]->shape, &own);
        mx_release(part);
        MX_TRY(status);
        MX_TRY(mx_give_grad(v, i, own));
    }
    return MX_OK;
}

const mx_op mx_op_stack = {
    .name = "stack",
    .doc = "puts tensors of one shape beside each other along a new dimension",
    .inputs = (const char *const[]){"tensors...", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"dim", MX_ATTR_DIM, offsetof(stack_attr, dim), 0, NULL,
                                "the dimension of the result that counts the tensors; default: the first"},
                               {0}},
    .attr_bytes = sizeof(stack_attr),
    .infer = infer_stack,
    .cost = cost_copy,
    .host = host_stack,
    .vjp = vjp_stack,
    .vjp_recorded = vjp_stack,
};

/* ---- tril and triu ---- */

typedef struct triangle_attr {
    int64_t diagonal;
} triangle_attr;

static mx_status infer_triangle(mx_call *call)
{
    if (call->in[0]->shape.n_dims < 2)
        return mx_bad_shape(call, "x must have at least two dimensions");
    return same_shape(call);
}

static mx_status host_triangle(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    int rows = x->shape.n_dims - 2;
    mx_triangle(mx_data(call->out[0]), mx_data(x), mx_outer_size(&x->shape, rows), x->shape.size[rows],
                x->shape.size[rows + 1], ((const triangle_attr *)mx_call_attr(call))->diagonal, call->op == &mx_op_triu,
                mx_dtype_bytes(x->dtype));
    return MX_OK;
}

static const mx_attr triangle_attrs[] = {{"diagonal", MX_ATTR_INT, offsetof(triangle_attr, diagonal), 0, NULL,
                                          "0: the main one; 1: the one above it; -1: the one below"},
                                         {0}};

const mx_op mx_op_tril = {
    .name = "tril",
    .doc = "the matrices of the last two dimensions with zeros above a diagonal",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = triangle_attrs,
    .attr_bytes = sizeof(triangle_attr),
    .infer = infer_triangle,
    .cost = cost_copy,
    .host = host_triangle,
    .vjp = vjp_same,
    .vjp_recorded = vjp_same,
};

const mx_op mx_op_triu = {
    .name = "triu",
    .doc = "the matrices of the last two dimensions with zeros below a diagonal",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = triangle_attrs,
    .attr_bytes = sizeof(triangle_attr),
    .infer = infer_triangle,
    .cost = cost_copy,
    .host = host_triangle,
    .vjp = vjp_same,
    .vjp_recorded = vjp_same,
};
