/* mx.pad: further elements around a tensor. */
#include "core/element.h"
#include "core/pool.h"
#include "kernels/shape.h"
#include "ops/pointwise.h"
#include "ops/select.h"

#include <math.h>
#include <string.h>

enum { CONSTANT, REFLECT, REPLICATE, CIRCULAR };

typedef struct pad_attr {
    mx_shape sides, before, after; /* no dimensions: not given; infer makes before and after of sides */
    double value;
    int mode;
} pad_attr;

static const char *const pad_modes[] = {"constant", "reflect", "replicate", "circular", NULL};

/* How many elements a dimension of n must have for this padding. */
static int64_t least_size(int mode, int64_t before, int64_t after)
{
    int64_t most = before > after ? before : after;
    return most == 0 ? 0 : mode == REFLECT ? most + 1 : mode == CIRCULAR ? most : mode == REPLICATE ? 1 : 0;
}

/* The element of a dimension of n that is at place i, from -before to n + after - 1. */
static int64_t padded_from(int mode, int64_t i, int64_t n)
{
    if (mode == CIRCULAR)
        return i < 0 ? i + n : i >= n ? i - n : i;
    if (mode == REPLICATE)
        return i < 0 ? 0 : i >= n ? n - 1 : i;
    return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
}

static mx_cost cost_pad(const mx_call *call) { return mx_cost_of(call, 0); }

/* Sets before and after, of n dimensions each. */
static mx_status set_sides(const mx_call *call, pad_attr *attr, int n)
{
    mx_shape *before = &attr->before, *after = &attr->after, sides = attr->sides;
    attr->sides.n_dims = 0;
    if (sides.n_dims > 0 && (before->n_dims > 0 || after->n_dims > 0))
        return mx_bad_value(call, "sides is given, and so is before or after");
    if (sides.n_dims % 2 != 0 || sides.n_dims > 2 * n)
        return mx_bad_value(call,
                            "sides %s must have two numbers a dimension, from the last of %d: before it, after it",
                            mx_shape_text(&sides), n);
    if (n > 0 && sides.n_dims + before->n_dims + after->n_dims == 0)
        return mx_bad_value(call, "nothing is given; before = {...} and after = {...} have a number for each "
                                  "dimension, and a list alone is that of PyTorch's F.pad");
    for (mx_shape *side = before; side; side = side == before ? after : NULL)
        if (side->n_dims == 0)
            *side = (mx_shape){.n_dims = n};
    for (int i = 0; i < sides.n_dims; i++)
        (i % 2 == 0 ? before : after)->size[n - 1 - i / 2] = sides.size[i];
    if (before->n_dims != n || after->n_dims != n)
        return mx_bad_value(call, "before %s and after %s must have a number for each of the %d dimensions",
                            mx_shape_text(before), mx_shape_text(after), n);
    return MX_OK;
}

static mx_status infer_pad(mx_call *call)
{
    pad_attr *attr = (pad_attr *)(void *)call->attr;
    mx_shape y = call->in[0]->shape;
    MX_TRY(set_sides(call, attr, y.n_dims));
    MX_TRY(mx_want_number("pad", "value", call->in[0]->dtype, attr->value));
    for (int d = 0; d < y.n_dims; d++) {
        if (attr->before.size[d] < 0 || attr->after.size[d] < 0)
            return mx_bad_value(call, "before %s and after %s must not be negative; mx.narrow cuts",
                                mx_shape_text(&attr->before), mx_shape_text(&attr->after));
        int64_t least = least_size(attr->mode, attr->before.size[d], attr->after.size[d]);
        if (y.size[d] < least)
            return mx_bad_shape(call, "mode = '%s' with before %s and after %s needs at least %lld elements in dim %d",
                                pad_modes[attr->mode], mx_shape_text(&attr->before), mx_shape_text(&attr->after),
                                (long long)least, d + 1);
        y.size[d] += attr->before.size[d] + attr->after.size[d];
        if (attr->mode != CONSTANT && y.size[d] > INT32_MAX)
            return mx_bad_shape(call, "dim %d would have more than %d elements", d + 1, INT32_MAX);
    }
    if (attr->mode != CONSTANT && attr->value != 0)
        return mx_bad_value(call, "value = %g is for mode = 'constant', not '%s'", attr->value, pad_modes[attr->mode]);
    return mx_out(call, 0, call->in[0]->dtype, &y);
}

static bool is_padded(const pad_attr *attr, int d) { return attr->before.size[d] + attr->after.size[d] > 0; }

/* The ids of the elements of dimension d, in the order of the padded one. */
static void list_ids(const pad_attr *attr, int d, int64_t n, int32_t *ids)
{
    for (int64_t i = -attr->before.size[d]; i < n + attr->after.size[d]; i++)
        *ids++ = (int32_t)padded_from(attr->mode, i, n);
}

/* Pads the dimensions of x one after the other, by way of scratch. */
static mx_status pad_by_ids(mx_call *call)
{
    const pad_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0], *y = call->out[0];
    int64_t element = (int64_t)mx_dtype_bytes(x->dtype), bytes = (int64_t)mx_bytes(y), ids_bytes = 0;
    int last = -1;
    for (int d = 0; d < x->shape.n_dims; d++)
        if (is_padded(attr, d)) {
            last = d;
            ids_bytes += y->shape.size[d] * (int64_t)sizeof(int32_t);
        }
    if (last < 0) {
        memcpy(mx_data(y), mx_data(x), (size_t)bytes);
        return MX_OK;
    }
    ids_bytes = (ids_bytes + 63) / 64 * 64; /* what follows is aligned for elements of any size */
    char *memory;
    MX_TRY(mx_pool_alloc(ids_bytes + 2 * bytes, (void **)&memory));
    int32_t *ids = (int32_t *)memory;
    char *scratch = memory + ids_bytes;
    mx_shape shape = x->shape;
    const void *from = mx_data(x);
    for (int d = 0, turn = 0; d <= last; d++) {
        int64_t n = shape.size[d], padded = y->shape.size[d];
        if (!is_padded(attr, d))
            continue;
        list_ids(attr, d, n, ids);
        void *to = d == last ? mx_data(y) : scratch + turn * bytes;
        mx_take_runs(to, from, ids, mx_outer_size(&shape, d), n, padded, mx_inner_size(&shape, d) * element);
        shape.size[d] = padded;
        from = to;
        turn = 1 - turn;
    }
    mx_pool_free(memory, ids_bytes + 2 * bytes);
    return MX_OK;
}

static mx_status host_pad(mx_call *call)
{
    const pad_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    if (attr->mode != CONSTANT)
        return pad_by_ids(call);
    mx_margins margins[MX_MAX_DIMS];
    _Alignas(8) char value[8];
    for (int d = 0; d < x->shape.n_dims; d++)
        margins[d] = (mx_margins){attr->before.size[d], x->shape.size[d], attr->after.size[d]};
    mx_set_number(value, 0, attr->value, x->dtype);
    mx_pad(mx_data(call->out[0]), mx_data(x), x->shape.n_dims, margins, value, mx_dtype_bytes(x->dtype));
    return MX_OK;
}

/* The gradient by a dimension of n that was padded: what is at the places of an element is added up. */
static mx_status unpad_by_ids(const pad_attr *attr, int d, int64_t n, mx_tensor *dy, mx_tensor **dx)
{
    mx_tensor *ids = NULL;
    int64_t count = dy->shape.size[d], bytes = count * (int64_t)sizeof(int32_t);
    int32_t *list;
    MX_TRY(mx_pool_alloc(bytes, (void **)&list));
    list_ids(attr, d, n, list);
    mx_status status = mx_tensor_new(MX_I32, &(mx_shape){1, {count}}, &ids);
    if (status == MX_OK)
        status = mx_tensor_write(ids, 0, count, list);
    mx_pool_free(list, bytes);
    if (status == MX_OK)
        status = mx_apply_index_select_grad(ids, dy, d, n, dx);
    if (ids)
        mx_release(ids);
    return status;
}

static mx_status vjp_pad(mx_vjp *v)
{
    const pad_attr *attr = mx_call_attr(v->call);
    const mx_shape *x = &v->call->in[0]->shape;
    mx_tensor *dx = mx_retain(v->out_grad[0]);
    for (int d = 0; d < x->n_dims; d++) {
        mx_tensor *part = NULL;
        if (!is_padded(attr, d))
            continue;
        mx_status status = attr->mode == CONSTANT ? mx_apply_narrow(dx, d, attr->before.size[d], x->size[d], &part)
                                                  : unpad_by_ids(attr, d, x->size[d], dx, &part);
        mx_release(dx);
        MX_TRY(status);
        dx = part;
    }
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_pad = {
    .name = "pad",
    .doc = "x with `before` and `after` further elements on both sides of each dimension: `value`, or elements of x. A "
           "list alone is `sides`, in the order of PyTorch's F.pad",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"sides", MX_ATTR_SHAPE, offsetof(pad_attr, sides), 0, NULL,
                                "elements before and after the last dimension, then the one before it, and so on"},
                               {"before", MX_ATTR_SHAPE, offsetof(pad_attr, before), 0, NULL,
                                "elements before x: a number for each dimension, from the first; default: none"},
                               {"after", MX_ATTR_SHAPE, offsetof(pad_attr, after), 0, NULL,
                                "elements after x: a number for each dimension; default: none"},
                               {"value", MX_ATTR_FLOAT, offsetof(pad_attr, value), 0, NULL,
                                "the further elements of mode constant"},
                               {"mode", MX_ATTR_ENUM, offsetof(pad_attr, mode), CONSTANT, pad_modes,
                                "constant; reflect: those of x in reverse, without the outermost; replicate: the "
                                "outermost; circular: those of the other end"},
                               {0}},
    .attr_bytes = sizeof(pad_attr),
    .infer = infer_pad,
    .cost = cost_pad,
    .host = host_pad,
    .vjp = vjp_pad,
    .vjp_recorded = vjp_pad,
};
