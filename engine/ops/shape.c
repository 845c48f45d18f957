/* Views and copies: reshape, narrow, concat, permute, transpose, write_slice, gather; and their gradients. */
#include "kernels/shape.h"

#include "core/pool.h"
#include "ops/rows.h"

#include <math.h>
#include <string.h>

/* ---- reshape ---- */

typedef struct reshape_attr {
    mx_shape shape;
} reshape_attr;

/* Replaces the -1 by the size that follows from the number of elements. */
static mx_status complete_shape(const mx_call *call, mx_shape *shape)
{
    int64_t count = mx_count(call->in[0]), known = 1;
    int unknown = -1;
    for (int d = 0; d < shape->n_dims; d++) {
        if (shape->size[d] < -1)
            return mx_bad_shape(call, "shape %s has a negative size", mx_shape_text(shape));
        if (shape->size[d] >= 0) {
            if (__builtin_mul_overflow(known, shape->size[d], &known))
                return mx_bad_shape(call, "shape %s has more elements than can be counted", mx_shape_text(shape));
            continue;
        }
        if (unknown >= 0)
            return mx_bad_shape(call, "shape %s has more than one -1", mx_shape_text(shape));
        unknown = d;
    }
    if (unknown >= 0 ? known == 0 || count % known != 0 : known != count)
        return mx_bad_shape(call, "shape %s does not hold the %lld elements of the input", mx_shape_text(shape),
                            (long long)count);
    if (unknown >= 0)
        shape->size[unknown] = count / known;
    return MX_OK;
}

static mx_status infer_reshape(mx_call *call)
{
    mx_shape shape = ((const reshape_attr *)mx_call_attr(call))->shape;
    MX_TRY(complete_shape(call, &shape));
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost cost_nothing(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

static mx_status host_reshape(mx_call *call)
{
    mx_tensor_alias(call->out[0], call->in[0], 0);
    return MX_OK;
}

static mx_status vjp_reshape(mx_vjp *v)
{
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply_reshape(v->out_grad[0], &v->call->in[0]->shape, &dx));
    return mx_give_grad(v, 0, dx);
}

static const mx_attr reshape_attrs[] = {{"shape", MX_ATTR_SHAPE, offsetof(reshape_attr, shape), NAN, NULL,
                                         "sizes; one may be -1: computed from the others"},
                                        {0}};

const mx_op mx_op_reshape = {
    .name = "reshape",
    .doc = "the same values in another shape, sharing memory",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_VIEW,
    .attrs = reshape_attrs,
    .attr_bytes = sizeof(reshape_attr),
    .infer = infer_reshape,
    .cost = cost_nothing,
    .host = host_reshape,
    .vjp = vjp_reshape,
    .vjp_recorded = vjp_reshape,
};

/* ---- ranges of a dimension: narrow, its gradient, write_slice, concat ---- */

typedef struct range_attr {
    int64_t dim, start, length; /* start counts from 1 */
} range_attr;

/* A range of `dim` of a tensor as contiguous runs: `runs` of `run_bytes` each, `step_bytes` apart, the first at
 * `first_byte`.
 */
typedef struct range {
    int64_t runs, run_bytes, step_bytes, first_byte;
} range;

static range range_of(const mx_tensor *t, int dim, int64_t start, int64_t length)
{
    int64_t bytes = mx_inner_size(&t->shape, dim) * (int64_t)mx_dtype_bytes(t->dtype);
    return (range){.runs = mx_outer_size(&t->shape, dim),
                   .run_bytes = length * bytes,
                   .step_bytes = t->shape.size[dim] * bytes,
                   .first_byte = (start - 1) * bytes};
}

static void copy_range(mx_tensor *to, range a, const mx_tensor *from, range b)
{
    if (!mx_has_values(from)) /* on a device without values, views run as here */
        return;
    mx_copy_runs((char *)mx_data(to) + a.first_byte, a.step_bytes, (char *)mx_data(from) + b.first_byte, b.step_bytes,
                 a.runs, a.run_bytes);
}

static mx_status want_range(const mx_call *call, const mx_shape *shape, int dim, int64_t start, int64_t length)
{
    if (start >= 1 && length >= 0 && start - 1 <= shape->size[dim] - length)
        return MX_OK;
    return mx_bad_shape(call, "elements %lld to %lld (start = %lld, length = %lld) are not within dim %d of %s",
                        (long long)start, (long long)(start + length - 1), (long long)start, (long long)length, dim + 1,
                        mx_shape_text(shape));
}

static int range_dim(const mx_call *call, int n_dims)
{
    int64_t dim = ((const range_attr *)mx_call_attr(call))->dim;
    return (int)(dim < 0 ? dim + n_dims : dim);
}

static mx_status infer_narrow(mx_call *call)
{
    const range_attr *attr = mx_call_attr(call);
    mx_shape shape = call->in[0]->shape;
    int dim = 0;
    MX_TRY(mx_want_dim(call, "dim", attr->dim, shape.n_dims, &dim));
    MX_TRY(want_range(call, &shape, dim, attr->start, attr->length));
    shape.size[dim] = attr->length;
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

/* Whether the range is dense and can share memory: all sizes before its dimension are 1. */
static bool is_view(const mx_call *call)
{
    return mx_outer_size(&call->in[0]->shape, range_dim(call, call->in[0]->shape.n_dims)) == 1;
}

static mx_cost cost_narrow(const mx_call *call)
{
    double bytes = is_view(call) ? 0 : (double)mx_bytes(call->out[0]);
    return (mx_cost){.bytes_read = bytes, .bytes_written = bytes};
}

static mx_status host_narrow(mx_call *call)
{
    mx_tensor *x = call->in[0], *y = call->out[0];
    const range_attr *attr = mx_call_attr(call);
    int dim = range_dim(call, x->shape.n_dims);
    range from = range_of(x, dim, attr->start, attr->length);
    if (is_view(call)) {
        mx_tensor_alias(y, x, from.first_byte);
        return MX_OK;
    }
    MX_TRY(mx_tensor_wait(x, false)); /* mx_apply does not wait for views */
    MX_TRY(mx_tensor_allocate(y));
    copy_range(y, range_of(y, dim, 1, attr->length), x, from);
    return MX_OK;
}

typedef struct narrow_grad_attr {
    int64_t dim, start, size;
} narrow_grad_attr;

static mx_status vjp_narrow(mx_vjp *v)
{
    mx_tensor *x = v->call->in[0], *dy = v->out_grad[0], *dx = NULL;
    const range_attr *attr = mx_call_attr(v->call);
    int dim = range_dim(v->call, x->shape.n_dims);
    if (!v->want[0])
        return MX_OK;
    if (v->sum[0] && v->sum[0]->dtype == dy->dtype)
        return mx_apply(&mx_op_narrow_grad_acc, (mx_tensor *[]){v->sum[0], dy}, 2, mx_call_attrs(v->call), NULL);
    narrow_grad_attr grad = {.dim = dim, .start = attr->start, .size = x->shape.size[dim]};
    MX_TRY(mx_apply(&mx_op_narrow_grad, &dy, 1, MX_ATTRS(grad), &dx));
    return mx_give_grad(v, 0, dx);
}

static const mx_attr range_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(range_attr, dim), NAN, NULL, "the dimension"},
    {"start", MX_ATTR_INT, offsetof(range_attr, start), NAN, NULL, "first element, from 1"},
    {"length", MX_ATTR_INT, offsetof(range_attr, length), NAN, NULL, "number of elements"},
    {0}};

const mx_op mx_op_narrow = {
    .name = "narrow",
    .doc = "`length` elements along a dimension, from `start` on; shares memory if it is the first dimension",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_VIEW,
    .attrs = range_attrs,
    .attr_bytes = sizeof(range_attr),
    .infer = infer_narrow,
    .cost = cost_narrow,
    .host = host_narrow,
    .vjp = vjp_narrow,
    .vjp_recorded = vjp_narrow,
};

static mx_status infer_narrow_grad(mx_call *call)
{
    const narrow_grad_attr *attr = mx_call_attr(call);
    mx_shape shape = call->in[0]->shape;
    int dim = 0;
    MX_TRY(mx_want_dim(call, "dim", attr->dim, shape.n_dims, &dim));
    int64_t length = shape.size[dim];
    shape.size[dim] = attr->size;
    MX_TRY(want_range(call, &shape, dim, attr->start, length));
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost cost_copy(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status host_narrow_grad(mx_call *call)
{
    const narrow_grad_attr *attr = mx_call_attr(call);
    mx_tensor *dy = call->in[0], *dx = call->out[0];
    int dim = range_dim(call, dx->shape.n_dims);
    int64_t length = dy->shape.size[dim];
    range before = range_of(dx, dim, 1, attr->start - 1);
    range inside = range_of(dx, dim, attr->start, length);
    range after = range_of(dx, dim, attr->start + length, attr->size - length - attr->start + 1);
    mx_zero_runs((char *)mx_data(dx) + before.first_byte, before.step_bytes, before.runs, before.run_bytes);
    copy_range(dx, inside, dy, range_of(dy, dim, 1, length));
    mx_zero_runs((char *)mx_data(dx) + after.first_byte, after.step_bytes, after.runs, after.run_bytes);
    return MX_OK;
}

static const mx_attr narrow_grad_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(narrow_grad_attr, dim), NAN, NULL, "the dimension"},
    {"start", MX_ATTR_INT, offsetof(narrow_grad_attr, start), NAN, NULL, "where dy begins, from 1"},
    {"size", MX_ATTR_INT, offsetof(narrow_grad_attr, size), NAN, NULL, "size of the dimension in the result"},
    {0}};

static mx_status vjp_narrow_grad(mx_vjp *v)
{
    const narrow_grad_attr *attr = mx_call_attr(v->call);
    int dim = range_dim(v->call, v->call->out[0]->shape.n_dims);
    mx_tensor *part = NULL;
    MX_TRY(mx_apply_narrow(v->out_grad[0], dim, attr->start - 1, v->call->in[0]->shape.size[dim], &part));
    return mx_give_grad(v, 0, part);
}

const mx_op mx_op_narrow_grad = {
    .name = "narrow_grad",
    .doc = "dy with zeros before and after it along a dimension",
    .inputs = (const char *const[]){"dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = narrow_grad_attrs,
    .attr_bytes = sizeof(narrow_grad_attr),
    .infer = infer_narrow_grad,
    .cost = cost_copy,
    .host = host_narrow_grad,
    .vjp = vjp_narrow_grad,
    .vjp_recorded = vjp_narrow_grad,
};

/* Checks that input 1 fits into input 0 from `start` along the dimension. */
static mx_status infer_into(mx_call *call)
{
    const mx_tensor *to = call->in[0], *from = call->in[1];
    const range_attr *attr = mx_call_attr(call);
    int dim = 0;
    MX_TRY(mx_want_dim(call, "dim", attr->dim, to->shape.n_dims, &dim));
    if (from->dtype != to->dtype)
        return mx_bad_dtype(call, "dtypes differ");
    mx_shape shape = to->shape;
    if (from->shape.n_dims == shape.n_dims)
        shape.size[dim] = from->shape.size[dim];
    if (!mx_shape_equal(&from->shape, &shape))
        return mx_bad_shape(call, "sizes other than that of dim %d differ", dim + 1);
    return want_range(call, &to->shape, dim, attr->start, shape.size[dim]);
}

static mx_cost cost_into(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->in[1]);
    return (mx_cost){.bytes_read = bytes, .bytes_written = bytes};
}

static mx_status host_write_slice(mx_call *call)
{
    mx_tensor *to = call->in[0], *from = call->in[1];
    int dim = range_dim(call, to->shape.n_dims);
    int64_t length = from->shape.size[dim];
    copy_range(to, range_of(to, dim, ((const range_attr *)mx_call_attr(call))->start, length), from,
               range_of(from, dim, 1, length));
    return MX_OK;
}

static const mx_attr into_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(range_attr, dim), NAN, NULL, "the dimension"},
    {"start", MX_ATTR_INT, offsetof(range_attr, start), NAN, NULL, "where the second tensor begins in it, from 1"},
    {0}};

const mx_op mx_op_write_slice = {
    .name = "write_slice",
    .doc = "copies src into dst in place, from `start` along a dimension; all other sizes must be equal",
    .inputs = (const char *const[]){"dst", "src", NULL},
    .flags = MX_OP_MUTATES,
    .attrs = into_attrs,
    .attr_bytes = sizeof(range_attr),
    .infer = infer_into,
    .cost = cost_into,
    .host = host_write_slice,
};

static mx_status infer_narrow_grad_acc(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return infer_into(call);
}

static mx_cost cost_narrow_grad_acc(const mx_call *call)
{
    mx_cost cost = cost_into(call);
    cost.flops = (double)mx_count(call->in[1]);
    cost.bytes_read *= 2;
    return cost;
}

static mx_status host_narrow_grad_acc(mx_call *call)
{
    mx_tensor *to = call->in[0], *from = call->in[1];
    int dim = range_dim(call, to->shape.n_dims);
    int64_t length = from->shape.size[dim], bytes = (int64_t)mx_dtype_bytes(to->dtype);
    range a = range_of(to, dim, ((const range_attr *)mx_call_attr(call))->start, length);
    range b = range_of(from, dim, 1, length);
    mx_add_runs((char *)mx_data(to) + a.first_byte, a.step_bytes / bytes, mx_data(from), b.step_bytes / bytes,
                to->dtype, a.runs, a.run_bytes / bytes);
    return MX_OK;
}

const mx_op mx_op_narrow_grad_acc = {
    .name = "narrow_grad_acc",
    .doc = "adds dy to grad in place, from `start` along a dimension",
    .inputs = (const char *const[]){"grad", "dy", NULL},
    .flags = MX_OP_MUTATES,
    .attrs = into_attrs,
    .attr_bytes = sizeof(range_attr),
    .infer = infer_narrow_grad_acc,
    .cost = cost_narrow_grad_acc,
    .host = host_narrow_grad_acc,
};

/* ---- concat ---- */

typedef struct concat_attr {
    int64_t dim;
} concat_attr;

static int concat_dim(const mx_call *call)
{
    int64_t dim = ((const concat_attr *)mx_call_attr(call))->dim;
    return (int)(dim < 0 ? dim + call->in[0]->shape.n_dims : dim);
}

static mx_status infer_concat(mx_call *call)
{
    mx_shape shape = call->in[0]->shape;
    int dim = 0;
    MX_TRY(mx_want_dim(call, "dim", ((const concat_attr *)mx_call_attr(call))->dim, shape.n_dims, &dim));
    for (int i = 1; i < call->n_in; i++) {
        const mx_tensor *t = call->in[i];
        mx_shape same = shape;
        if (t->dtype != call->in[0]->dtype)
            return mx_bad_dtype(call, "dtypes differ");
        if (t->shape.n_dims == same.n_dims)
            same.size[dim] = t->shape.size[dim];
        if (!mx_shape_equal(&t->shape, &same))
            return mx_bad_shape(call, "sizes other than that of dim %d differ", dim + 1);
        shape.size[dim] += t->shape.size[dim];
    }
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

mx_status mx_join_inputs(const mx_call *call, int64_t rows)
{
    int64_t bytes = call->n_in * (int64_t)sizeof(mx_row_part);
    mx_row_part *part;
    if (mx_count(call->out[0]) == 0)
        return MX_OK;
    MX_TRY(mx_pool_alloc(bytes, (void **)&part));
    for (int i = 0; i < call->n_in; i++)
        part[i] = (mx_row_part){mx_data(call->in[i]), mx_bytes(call->in[i]) / rows};
    mx_join_rows(mx_data(call->out[0]), rows, call->n_in, part);
    mx_pool_free(part, bytes);
    return MX_OK;
}

static mx_status host_concat(mx_call *call)
{
    return mx_join_inputs(call, mx_outer_size(&call->out[0]->shape, concat_dim(call)));
}

static mx_status vjp_concat(mx_vjp *v)
{
    int dim = concat_dim(v->call);
    int64_t first = 0;
    for (int i = 0; i < v->call->n_in; i++) {
        mx_tensor *part = NULL;
        int64_t length = v->call->in[i]->shape.size[dim];
        if (v->want[i]) {
            MX_TRY(mx_apply_narrow(v->out_grad[0], dim, first, length, &part));
            MX_TRY(mx_give_grad(v, i, part));
        }
        first += length;
    }
    return MX_OK;
}

static const mx_attr concat_attrs[] = {
    {"dim", MX_ATTR_DIM, offsetof(concat_attr, dim), 0, NULL, "dimension to concatenate along; default: the first"},
    {0}};

const mx_op mx_op_concat = {
    .name = "concat",
    .doc = "concatenates tensors along a dimension; all other sizes must be equal",
    .inputs = (const char *const[]){"tensors...", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = concat_attrs,
    .attr_bytes = sizeof(concat_attr),
    .infer = infer_concat,
    .cost = cost_copy,
    .host = host_concat,
    .vjp = vjp_concat,
    .vjp_recorded = vjp_concat,
};

mx_status mx_apply_reshape(mx_tensor *x, const mx_shape *shape, mx_tensor **y)
{
    const reshape_attr attr = {*shape};
    return mx_apply(&mx_op_reshape, &x, 1, MX_ATTRS(attr), y);
}

mx_status mx_apply_narrow(mx_tensor *x, int dim, int64_t first, int64_t length, mx_tensor **y)
{
    const range_attr attr = {.dim = dim, .start = first + 1, .length = length};
    return mx_apply(&mx_op_narrow, &x, 1, MX_ATTRS(attr), y);
}

mx_status mx_apply_write_slice(mx_tensor *to, mx_tensor *from, int dim, int64_t first)
{
    const range_attr attr = {.dim = dim, .start = first + 1};
    return mx_apply(&mx_op_write_slice, (mx_tensor *[]){to, from}, 2, MX_ATTRS(attr), NULL);
}
