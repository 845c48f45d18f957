/* The collective operations: their shapes, costs and gradients. comm.h and exchange.h move the values.
 *
 * Gradients. If all ranks of an axis hold the same value, each rank's gradient is that of the one loss; if they hold
 * different values, it is the gradient of the rank's own value. Three rules follow. A sum that all ranks use alike
 * passes its gradient on unchanged (all_reduce with grad = "same"). A value that the ranks use differently needs the
 * sum of their gradients (fan_out, all_gather). Gradients of moved parts move back.
 *
 * Gradients of gradients follow the same rules: each gradient is an operation whose own gradient is the one before.
 * That of a sum that all ranks use alike is then fan_out: equal values, which become the gradients of different ones.
 */
#include "mesh/collective_op.h"

#include <string.h>

const char *const mx_collective_inputs[] = {"x", NULL};
const char *const mx_collective_reductions[] = {"sum", "mean", "max", NULL};

/* ---- shared with gather.c ---- */

mx_status mx_collective_check_dim(const mx_call *call, int64_t *dim, const char *name)
{
    int found = 0;
    MX_TRY(mx_want_dim(call, name, *dim, call->in[0]->shape.n_dims, &found));
    *dim = found;
    return MX_OK;
}

mx_status mx_collective_check_divides(const mx_call *call, int64_t dim)
{
    int n = mx_collective_size(call);
    int64_t size = call->in[0]->shape.size[dim];
    if (size % n == 0)
        return MX_OK;
    return mx_bad_shape(call, "dimension %lld has %lld elements, which the %d ranks of %s do not divide",
                        (long long)dim + 1, (long long)size, n, mx_mesh_text(mx_collective_attrs(call)->axis));
}

mx_status mx_collective_check_reduction(const mx_call *call)
{
    MX_TRY(mx_want_arithmetic(call, 0));
    if (mx_collective_attrs(call)->op == MX_COLLECTIVE_MEAN && mx_dtype_is_integer(call->in[0]->dtype))
        return mx_bad_dtype(call, "a mean of integers is not an integer: use op = \"sum\", or cast to f32");
    return MX_OK;
}

/* The result's dtype: dtypes of computation may be converted to each other. */
mx_status mx_collective_dtype(const mx_call *call, mx_dtype *dtype)
{
    int given = mx_collective_attrs(call)->dtype;
    *dtype = given >= 0 ? (mx_dtype)given : call->in[0]->dtype;
    if (*dtype == call->in[0]->dtype || (mx_dtype_computes(*dtype) && mx_dtype_computes(call->in[0]->dtype)))
        return MX_OK;
    return mx_bad_dtype(call, "the result can be %s only for a tensor of that dtype", mx_dtype_name(*dtype));
}

mx_cost mx_collective_cost(const mx_call *call, mx_exchange_kind kind)
{
    double n = mx_collective_size(call), share = (n - 1) / n;
    const mx_tensor *x = call->in[0], *y = call->n_out ? call->out[0] : x;
    double in = (double)mx_bytes(x), out = (double)mx_bytes(y);
    mx_cost c = {.bytes_read = in, .bytes_written = out};
    if (n == 1)
        return x == y ? (mx_cost){0} : c;
    switch (kind) {
    case MX_ALL_REDUCE:
        c.bytes_sent = 2 * share * in;
        c.flops = share * (double)mx_count(x);
        break;
    case MX_ALL_GATHER:
        c.bytes_sent = share * out;
        break;
    case MX_REDUCE_SCATTER:
        c.bytes_sent = share * in;
        c.flops = share * (double)mx_count(x);
        break;
    case MX_ALL_TO_ALL:
    case MX_ALL_TO_ALL_ROWS:
        c.bytes_sent = share * in;
        break;
    case MX_BROADCAST:
        c.bytes_sent = mx_mesh_index(mx_collective_attrs(call)->axis) == mx_collective_attrs(call)->root ? in : 0;
        break;
    default:
        c.bytes_sent = in;
    }
    return c;
}

mx_transfer mx_collective_transfer(const mx_call *call, mx_exchange_kind kind)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    mx_tensor *x = call->in[0], *y = call->n_out ? call->out[0] : x;
    bool reduces = kind == MX_ALL_REDUCE || kind == MX_REDUCE_SCATTER;
    mx_transfer t = {
        .what = {.kind = kind,
                 .wire = reduces ? x->dtype : y->dtype,
                 .fold = reduces && a->op == MX_COLLECTIVE_MAX ? MX_FOLD_MAX : MX_FOLD_SUM,
                 .scale = reduces && a->op == MX_COLLECTIVE_MEAN ? 1.0f / (float)mx_collective_size(call) : 1.0f,
                 .root = (int)a->root,
                 .shift = (int)a->shift,
                 .in_place = call->n_out == 0},
        .axes = a->axis,
        .in = x,
        .out = y,
        .bytes_sent = mx_collective_cost(call, kind).bytes_sent,
    };
    return t;
}

mx_status mx_collective_apply(const mx_op *op, mx_tensor *x, const mx_collective_attr *a, mx_tensor **y)
{
    return mx_apply(op, &x, 1, MX_ATTRS(*a), y);
}

mx_status mx_collective_scale(mx_tensor *x, double scale, mx_tensor **y) { return mx_apply_affine(x, scale, 0, y); }

static mx_status run_whole(const mx_call *call, mx_exchange_kind kind, bool async)
{
    mx_transfer t = mx_collective_transfer(call, kind);
    t.in_block = mx_block_whole(t.in);
    t.out_block = mx_block_whole(t.out);
    t.count = mx_count(t.in);
    return mx_comm_run(&t, async);
}

/* ---- all_reduce ---- */

static mx_status all_reduce_infer(mx_call *call)
{
    MX_TRY(mx_collective_check_reduction(call));
    return call->op->n_out ? mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape) : MX_OK;
}

static mx_cost all_reduce_cost(const mx_call *call) { return mx_collective_cost(call, MX_ALL_REDUCE); }

static mx_status all_reduce_host(mx_call *call)
{
    return run_whole(call, MX_ALL_REDUCE, mx_collective_attrs(call)->async);
}

static const char *const all_reduce_grads[] = {"same", "all_reduce", NULL};

static mx_status all_reduce_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    if (a->op == MX_COLLECTIVE_MAX)
        return mx_fail(MX_ERR_STATE, "all_reduce with op = \"max\" has no gradient; use x:detach()");
    if (a->grad == 1)
        return mx_collective_apply(&mx_op_all_reduce, v->out_grad[0], a, &v->grad[0]);
    if (a->op == MX_COLLECTIVE_MEAN)
        return mx_collective_scale(v->out_grad[0], 1.0 / mx_collective_size(v->call), &v->grad[0]);
    v->grad[0] = mx_retain(v->out_grad[0]);
    return MX_OK;
}

static mx_status all_reduce_recorded(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call), alike = {.axis = a->axis};
    mx_tensor *fanned = NULL;
    if (a->op == MX_COLLECTIVE_MAX || a->grad == 1)
        return all_reduce_vjp(v);
    MX_TRY(mx_collective_apply(&mx_op_fan_out, v->out_grad[0], &alike, &fanned));
    double scale = a->op == MX_COLLECTIVE_MEAN ? 1.0 / mx_collective_size(v->call) : 1;
    mx_status status = mx_collective_scale(fanned, scale, &v->grad[0]);
    mx_release(fanned);
    return status;
}

static const mx_attr all_reduce_attrs[] = {
    MX_COLLECTIVE_AXIS,
    MX_COLLECTIVE_OP,
    {"grad", MX_ATTR_ENUM, offsetof(mx_collective_attr, grad), 0, all_reduce_grads,
     "same: all ranks use the result alike; all_reduce: they use it differently, so gradients are summed too"},
    MX_COLLECTIVE_ASYNC,
    {0},
};
static const mx_attr all_reduce_inplace_attrs[] = {MX_COLLECTIVE_AXIS, MX_COLLECTIVE_OP, MX_COLLECTIVE_ASYNC, {0}};

const mx_op mx_op_all_reduce = {
    .name = "all_reduce",
    .doc = "the sum, mean or maximum of x over the ranks of an axis; all ranks get the same bits. Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = all_reduce_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = all_reduce_infer,
    .cost = all_reduce_cost,
    .host = all_reduce_host,
    .vjp = all_reduce_vjp,
    .vjp_recorded = all_reduce_recorded,
};

const mx_op mx_op_all_reduce_ = {
    .name = "all_reduce_",
    .doc = "all_reduce in place: x becomes the result. Collective",
    .inputs = mx_collective_inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = all_reduce_inplace_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = all_reduce_infer,
    .cost = all_reduce_cost,
    .host = all_reduce_host,
};

/* ---- fan_out ---- */

static mx_status fan_out_infer(mx_call *call) { return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape); }

static mx_cost fan_out_cost(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

static mx_status fan_out_host(mx_call *call)
{
    mx_tensor_alias(call->out[0], call->in[0], 0);
    return MX_OK;
}

static mx_status fan_out_vjp(mx_vjp *v)
{
    const mx_collective_attr a = {.axis = mx_collective_attrs(v->call)->axis, .dtype = -1};
    return mx_collective_apply(&mx_op_all_reduce, v->out_grad[0], &a, &v->grad[0]);
}

static const mx_attr fan_out_attrs[] = {MX_COLLECTIVE_AXIS, {0}};

const mx_op mx_op_fan_out = {
    .name = "fan_out",
    .doc = "x unchanged, for ranks that hold the same x but use it differently: backward sums their gradients. "
           "Backward is Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_VIEW,
    .attrs = fan_out_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = fan_out_infer,
    .cost = fan_out_cost,
    .host = fan_out_host,
    .vjp = fan_out_vjp,
    .vjp_recorded = fan_out_vjp,
};

/* ---- all_to_all ---- */

static mx_status all_to_all_infer(mx_call *call)
{
    mx_collective_attr *a = mx_collective_writable(call);
    MX_TRY(mx_collective_check_dim(call, &a->split, "split"));
    MX_TRY(mx_collective_check_dim(call, &a->concat, "concat"));
    MX_TRY(mx_collective_check_divides(call, a->split));
    if (!call->op->n_out)
        return MX_OK;
    mx_shape shape = call->in[0]->shape;
    shape.size[a->split] /= mx_collective_size(call);
    shape.size[a->concat] *= mx_collective_size(call);
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost all_to_all_cost(const mx_call *call) { return mx_collective_cost(call, MX_ALL_TO_ALL); }

static mx_status all_to_all_host(mx_call *call)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    mx_transfer t = mx_collective_transfer(call, MX_ALL_TO_ALL);
    int n = mx_collective_size(call);
    t.split = (int)a->split;
    t.concat = t.what.in_place ? t.split : (int)a->concat;
    t.in_block = mx_block_split(t.in, t.split, n);
    t.out_block = t.what.in_place ? t.in_block : mx_block_split(t.out, t.concat, n);
    t.count = mx_count(t.in) / n;
    return mx_comm_run(&t, a->async);
}

static mx_status all_to_all_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    const mx_collective_attr back = {.axis = a->axis, .split = a->concat, .concat = a->split};
    return mx_collective_apply(&mx_op_all_to_all, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr all_to_all_attrs[] = {
    MX_COLLECTIVE_AXIS,
    {"split", MX_ATTR_DIM, offsetof(mx_collective_attr, split), 0, NULL, "dimension that is split over the ranks"},
    {"concat", MX_ATTR_DIM, offsetof(mx_collective_attr, concat), 0, NULL,
     "dimension along which the received parts are concatenated"},
    MX_COLLECTIVE_ASYNC,
    {0},
};
static const mx_attr all_to_all_inplace_attrs[] = {
    MX_COLLECTIVE_AXIS,
    {"dim", MX_ATTR_DIM, offsetof(mx_collective_attr, split), 0, NULL, "dimension that is split over the ranks"},
    MX_COLLECTIVE_ASYNC,
    {0},
};

const mx_op mx_op_all_to_all = {
    .name = "all_to_all",
    .doc = "splits x along `split`, sends part i to rank i of the axis, and concatenates the received parts along "
           "`concat`. Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = all_to_all_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = all_to_all_infer,
    .cost = all_to_all_cost,
    .host = all_to_all_host,
    .vjp = all_to_all_vjp,
    .vjp_recorded = all_to_all_vjp,
};

const mx_op mx_op_all_to_all_ = {
    .name = "all_to_all_",
    .doc = "all_to_all in place: part i of x along dim is replaced by the part that rank i sends. Collective",
    .inputs = mx_collective_inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = all_to_all_inplace_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = all_to_all_infer,
    .cost = all_to_all_cost,
    .host = all_to_all_host,
};

/* ---- collective_permute ---- */

static mx_status permute_infer(mx_call *call)
{
    int64_t n = mx_collective_size(call);
    mx_collective_writable(call)->shift = (mx_collective_attrs(call)->shift % n + n) % n;
    return call->op->n_out ? mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape) : MX_OK;
}

static mx_cost permute_cost(const mx_call *call) { return mx_collective_cost(call, MX_PERMUTE); }

/* A large permute is split into its start, which is this call, and its end, when the values are needed. */
static mx_status permute_host(mx_call *call)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    int64_t least = mx_comm.permute_decomposer_bytes;
    bool async = a->async || (least > 0 && mx_bytes(call->in[0]) >= least);
    return run_whole(call, MX_PERMUTE, async);
}

static mx_status permute_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    const mx_collective_attr back = {.axis = a->axis, .shift = -a->shift};
    return mx_collective_apply(&mx_op_collective_permute, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr permute_attrs[] = {
    MX_COLLECTIVE_AXIS,
    {"shift", MX_ATTR_INT, offsetof(mx_collective_attr, shift), 1, NULL,
     "positions around the ring of ranks; negative: the other way"},
    {"async", MX_ATTR_BOOL, offsetof(mx_collective_attr, async), 0, NULL,
     "return at once; use of the values waits (t:wait()). Always on for permute_decomposer_bytes or more, if these are "
     "above 0"},
    {0},
};

const mx_op mx_op_collective_permute = {
    .name = "collective_permute",
    .doc = "sends x to the rank `shift` positions further around the ring of the axis; the result is the x received. "
           "Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = permute_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = permute_infer,
    .cost = permute_cost,
    .host = permute_host,
    .vjp = permute_vjp,
    .vjp_recorded = permute_vjp,
};

const mx_op mx_op_collective_permute_ = {
    .name = "collective_permute_",
    .doc = "collective_permute in place. Collective",
    .inputs = mx_collective_inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = permute_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = permute_infer,
    .cost = permute_cost,
    .host = permute_host,
};

/* ---- broadcast ---- */

static mx_status broadcast_infer(mx_call *call)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    int n = mx_collective_size(call);
    if (a->root < 0 || a->root >= n)
        return mx_bad_value(call, "root %lld is no rank of %s; there are 0 to %d", (long long)a->root,
                            mx_mesh_text(a->axis), n - 1);
    return call->op->n_out ? mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape) : MX_OK;
}

static mx_cost broadcast_cost(const mx_call *call) { return mx_collective_cost(call, MX_BROADCAST); }

static mx_status broadcast_host(mx_call *call)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    return run_whole(call, MX_BROADCAST, a->async);
}

static mx_status broadcast_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    const mx_collective_attr back = {.axis = a->axis, .dtype = -1};
    mx_tensor *sum = NULL;
    MX_TRY(mx_collective_apply(&mx_op_all_reduce, v->out_grad[0], &back, &sum));
    if (mx_mesh_index(a->axis) == a->root) {
        v->grad[0] = sum;
        return MX_OK;
    }
    mx_dtype dtype = sum->dtype;
    mx_release(sum);
    MX_TRY(mx_tensor_new(dtype, &v->call->in[0]->shape, &v->grad[0]));
    return mx_tensor_fill(v->grad[0], 0);
}

/* All ranks take part in the gradient of the sum, so that of the others depends on it, too. */
static mx_status broadcast_recorded(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    const mx_collective_attr back = {.axis = a->axis, .dtype = -1, .grad = 1};
    mx_tensor *sum = NULL;
    MX_TRY(mx_collective_apply(&mx_op_all_reduce, v->out_grad[0], &back, &sum));
    mx_status status = mx_collective_scale(sum, mx_mesh_index(a->axis) == a->root, &v->grad[0]);
    mx_release(sum);
    return status;
}

static const mx_attr broadcast_attrs[] = {
    MX_COLLECTIVE_AXIS,
    {"root", MX_ATTR_INT, offsetof(mx_collective_attr, root), 0, NULL,
     "index along the axis of the rank whose values all ranks get, from 0"},
    MX_COLLECTIVE_ASYNC,
    {0},
};

const mx_op mx_op_broadcast = {
    .name = "broadcast",
    .doc = "the root's x, on all ranks of the axis; backward sums the gradients on the root. Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = broadcast_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = broadcast_infer,
    .cost = broadcast_cost,
    .host = broadcast_host,
    .vjp = broadcast_vjp,
    .vjp_recorded = broadcast_recorded,
};

const mx_op mx_op_broadcast_ = {
    .name = "broadcast_",
    .doc = "broadcast in place: x becomes the root's x. Collective",
    .inputs = mx_collective_inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = broadcast_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = broadcast_infer,
    .cost = broadcast_cost,
    .host = broadcast_host,
};
