/* The collective operations: their shapes, costs and gradients. How values travel is in comm.h and exchange.h.
 *
 * Gradients. What all ranks of an axis hold alike has, on each of them, the gradient of the one loss; what they hold of
 * their own, the gradient of their own copy. So a sum that all use alike hands its gradient on as it is (all_reduce
 * with grad = "same"), a value that each uses in its own way needs the sum of its gradients (fan_out, all_gather), and
 * the gradients of moved parts move back. */
#include "mesh/collective.h"

#include "core/scope.h"
#include "mesh/comm.h"
#include "ops/table.h"

#include <stdlib.h>
#include <string.h>

typedef enum reduction { SUM, MEAN, MAX } reduction;

/* One struct for all: an operation reads the fields that its attributes name. */
typedef struct collective_attr {
    mx_axes axis;
    int op;    /* a reduction */
    int grad;  /* how the gradient comes back: see the operation */
    int dtype; /* of the result; -1: as x */
    int64_t dim, split, concat;
    int64_t root, shift;
    bool async, async_grad;
} collective_attr;

static const char *const inputs[] = {"x", NULL};
static const char *const reductions[] = {"sum", "mean", "max", NULL};

#define ATTR_AXIS                                                                                                      \
    {                                                                                                                  \
        "axis", MX_ATTR_AXES, offsetof(collective_attr, axis), 0, NULL,                                                \
            "mesh axis or list of axes; all ranks when not given"                                                      \
    }
#define ATTR_ASYNC                                                                                                     \
    {                                                                                                                  \
        "async", MX_ATTR_BOOL, offsetof(collective_attr, async), 0, NULL,                                              \
            "return at once; who needs the values waits (t:wait())"                                                    \
    }
#define ATTR_OP                                                                                                        \
    {                                                                                                                  \
        "op", MX_ATTR_ENUM, offsetof(collective_attr, op), SUM, reductions, "how the ranks' values become one"         \
    }
#define ATTR_DIM                                                                                                       \
    {                                                                                                                  \
        "dim", MX_ATTR_DIM, offsetof(collective_attr, dim), 0, NULL, "dimension that is cut among the ranks"           \
    }
#define ATTR_DTYPE                                                                                                     \
    {                                                                                                                  \
        "dtype", MX_ATTR_DTYPE, offsetof(collective_attr, dtype), -1, NULL,                                            \
            "of the result, f32 or bf16; x's when not given"                                                           \
    }

static const collective_attr *attributes(const mx_call *call) { return mx_call_attr(call); }

static int group_size(const mx_call *call) { return mx_mesh_size(attributes(call)->axis); }

/* ---- checks ---- */

static mx_status check_dim(const mx_call *call, int64_t *dim, const char *name)
{
    int n_dims = call->in[0]->shape.n_dims;
    int64_t given = *dim;
    if (*dim < 0)
        *dim += n_dims;
    if (*dim < 0 || *dim >= n_dims)
        return mx_bad_shape(call, "%s = %lld: x has %d dimensions, counted from 1", name,
                            (long long)(given < 0 ? given : given + 1), n_dims);
    return MX_OK;
}

static mx_status check_divides(const mx_call *call, int64_t dim)
{
    int n = group_size(call);
    int64_t size = call->in[0]->shape.size[dim];
    if (size % n == 0)
        return MX_OK;
    return mx_bad_shape(call, "dimension %lld has %lld elements, which the %d ranks of %s do not divide",
                        (long long)dim + 1, (long long)size, n, mx_mesh_text(attributes(call)->axis));
}

static mx_status check_reduction(const mx_call *call)
{
    mx_dtype dtype = call->in[0]->dtype;
    if (attributes(call)->op == MEAN && !mx_dtype_is_float(dtype))
        return mx_bad_dtype(call, "a mean of integers is not an integer: use op = \"sum\", or cast to f32");
    return MX_OK;
}

/* The result's dtype: floats may change into each other on the way. */
static mx_status result_dtype(const mx_call *call, mx_dtype *dtype)
{
    int given = attributes(call)->dtype;
    *dtype = given >= 0 ? (mx_dtype)given : call->in[0]->dtype;
    if (*dtype == call->in[0]->dtype || (mx_dtype_is_float(*dtype) && mx_dtype_is_float(call->in[0]->dtype)))
        return MX_OK;
    return mx_bad_dtype(call, "the result can be %s only for a tensor of that dtype", mx_dtype_name(*dtype));
}

static collective_attr *writable(mx_call *call) { return (collective_attr *)(void *)call->attr; }

/* ---- costs ---- */

static mx_cost cost(const mx_call *call, mx_exchange_kind kind)
{
    double n = group_size(call), share = (n - 1) / n;
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
        c.bytes_sent = share * in;
        break;
    case MX_BROADCAST:
        c.bytes_sent = mx_mesh_index(attributes(call)->axis) == attributes(call)->root ? in : 0;
        break;
    default:
        c.bytes_sent = in;
    }
    return c;
}

/* ---- running ---- */

static mx_transfer transfer(const mx_call *call, mx_exchange_kind kind)
{
    const collective_attr *a = attributes(call);
    mx_tensor *x = call->in[0], *y = call->n_out ? call->out[0] : x;
    bool reduces = kind == MX_ALL_REDUCE || kind == MX_REDUCE_SCATTER;
    mx_transfer t = {
        .kind = kind,
        .axes = a->axis,
        .wire = reduces ? x->dtype : y->dtype,
        .fold = reduces && a->op == MAX ? MX_FOLD_MAX : MX_FOLD_SUM,
        .scale = reduces && a->op == MEAN ? 1.0f / (float)group_size(call) : 1.0f,
        .in_place = call->n_out == 0,
        .in = x,
        .out = y,
    };
    return t;
}

static mx_status run_whole(mx_call *call, mx_exchange_kind kind, int root)
{
    mx_transfer t = transfer(call, kind);
    t.root = root;
    t.in_block = mx_block_whole(t.in);
    t.out_block = mx_block_whole(t.out);
    t.count = mx_count(t.in);
    return mx_comm_run(&t, attributes(call)->async);
}

/* ---- all_reduce ---- */

static mx_status all_reduce_infer(mx_call *call)
{
    MX_TRY(check_reduction(call));
    return call->op->n_out ? mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape) : MX_OK;
}

static mx_cost all_reduce_cost(const mx_call *call) { return cost(call, MX_ALL_REDUCE); }

static mx_status all_reduce_host(mx_call *call) { return run_whole(call, MX_ALL_REDUCE, 0); }

static const char *const all_reduce_grads[] = {"same", "all_reduce", NULL};

static mx_status apply_one(const mx_op *op, mx_tensor *x, const collective_attr *a, mx_tensor **y)
{
    return mx_apply(op, &x, 1, a, y);
}

static mx_status scale_by(mx_tensor *x, double scale, mx_tensor **y)
{
    mx_tensor *factor = NULL, *in[2] = {x, NULL};
    mx_shape none = {0};
    MX_TRY(mx_tensor_new(MX_F32, &none, &factor));
    *mx_f32(factor) = (float)scale;
    in[1] = factor;
    mx_status status = mx_apply(&mx_op_mul, in, 2, NULL, y);
    mx_release(factor);
    return status;
}

static mx_status all_reduce_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    if (a->op == MAX)
        return mx_fail(MX_ERR_STATE, "all_reduce with op = \"max\" has no gradient; use x:detach()");
    if (a->grad == 1)
        return apply_one(&mx_op_all_reduce, v->out_grad[0], a, &v->grad[0]);
    if (a->op == MEAN)
        return scale_by(v->out_grad[0], 1.0 / group_size(v->call), &v->grad[0]);
    v->grad[0] = mx_retain(v->out_grad[0]);
    return MX_OK;
}

static const mx_attr all_reduce_attrs[] = {
    ATTR_AXIS,
    ATTR_OP,
    {"grad", MX_ATTR_ENUM, offsetof(collective_attr, grad), 0, all_reduce_grads,
     "same: all use the result alike; all_reduce: each in its own way, so gradients are added too"},
    ATTR_ASYNC,
    {0},
};
static const mx_attr all_reduce_inplace_attrs[] = {ATTR_AXIS, ATTR_OP, ATTR_ASYNC, {0}};

const mx_op mx_op_all_reduce = {
    .name = "all_reduce",
    .doc = "the sum, mean or maximum of x over the ranks of an axis, the same bits everywhere. Collective",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = all_reduce_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = all_reduce_infer,
    .cost = all_reduce_cost,
    .host = all_reduce_host,
    .vjp = all_reduce_vjp,
};

const mx_op mx_op_all_reduce_ = {
    .name = "all_reduce_",
    .doc = "all_reduce in place: x becomes the result. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = all_reduce_inplace_attrs,
    .attr_bytes = sizeof(collective_attr),
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
    const collective_attr a = {.axis = attributes(v->call)->axis, .dtype = -1};
    return apply_one(&mx_op_all_reduce, v->out_grad[0], &a, &v->grad[0]);
}

static const mx_attr fan_out_attrs[] = {ATTR_AXIS, {0}};

const mx_op mx_op_fan_out = {
    .name = "fan_out",
    .doc = "x as it is, for ranks that hold it alike and use it in different ways: gradients are added. Collective "
           "backward",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_VIEW,
    .attrs = fan_out_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = fan_out_infer,
    .cost = fan_out_cost,
    .host = fan_out_host,
    .vjp = fan_out_vjp,
};

/* ---- shard ---- */

static mx_status shard_infer(mx_call *call)
{
    MX_TRY(check_dim(call, &writable(call)->dim, "dim"));
    MX_TRY(check_divides(call, attributes(call)->dim));
    mx_shape shape = call->in[0]->shape;
    shape.size[attributes(call)->dim] /= group_size(call);
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost shard_cost(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->out[0]);
    return (mx_cost){.bytes_read = bytes, .bytes_written = bytes};
}

static mx_status shard_host(mx_call *call)
{
    const collective_attr *a = attributes(call);
    mx_block from = mx_block_split(call->in[0], (int)a->dim, group_size(call)), to = mx_block_whole(call->out[0]);
    mx_stream in = {.blocks = &from, .n = 1, .count = to.row};
    if (to.row > 0)
        mx_stream_read(&in, mx_mesh_index(a->axis), 0, to.row, to.dtype, to.data);
    return MX_OK;
}

static mx_status shard_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    const collective_attr back = {.axis = a->axis, .dim = a->dim, .dtype = (int)mx_vjp_dtype(v, 0)};
    return apply_one(&mx_op_all_gather, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr shard_attrs[] = {ATTR_AXIS, ATTR_DIM, {0}};

const mx_op mx_op_shard = {
    .name = "shard",
    .doc = "this rank's part, cut along dim, of an x that all hold alike; its gradient is put together. Collective "
           "backward",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .attrs = shard_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = shard_infer,
    .cost = shard_cost,
    .host = shard_host,
    .vjp = shard_vjp,
};

/* ---- all_gather ---- */

/* A gather that was started ahead of the call for it. */
typedef struct ahead {
    mx_storage *in; /* kept, so that its address is not given away */
    int64_t offset;
    uint64_t changes; /* of the storage when it was started: values may have changed since */
    mx_shape shape;
    collective_attr attr;
    mx_tensor *out;
} ahead;

enum { MAX_AHEAD = 256 };
static ahead started[MAX_AHEAD];
static int n_started;
static int64_t started_bytes;

static void forget_ahead(int i)
{
    started_bytes -= mx_bytes(started[i].out);
    mx_storage_release(started[i].in);
    mx_release(started[i].out);
    memmove(&started[i], &started[i + 1], (size_t)(--n_started - i) * sizeof *started);
}

static bool same_gather(const collective_attr *a, const collective_attr *b)
{
    return a->axis == b->axis && a->dim == b->dim && a->dtype == b->dtype;
}

static int find_ahead(const mx_tensor *x, const collective_attr *a)
{
    for (int i = 0; i < n_started; i++)
        if (started[i].in == x->storage && started[i].offset == x->offset &&
            mx_shape_equal(&started[i].shape, &x->shape) && same_gather(&started[i].attr, a))
            return i;
    return -1;
}

static mx_status all_gather_infer(mx_call *call)
{
    mx_dtype dtype;
    MX_TRY(check_dim(call, &writable(call)->dim, "dim"));
    MX_TRY(result_dtype(call, &dtype));
    mx_shape shape = call->in[0]->shape;
    shape.size[attributes(call)->dim] *= group_size(call);
    return mx_out(call, 0, dtype, &shape);
}

static mx_cost all_gather_cost(const mx_call *call) { return cost(call, MX_ALL_GATHER); }

static mx_status run_gather(mx_call *call, bool async)
{
    mx_transfer t = transfer(call, MX_ALL_GATHER);
    int n = group_size(call), dim = (int)attributes(call)->dim;
    t.out_block = mx_block_split(t.out, dim, n);
    t.in_block = t.in_place ? t.out_block : mx_block_whole(t.in);
    t.count = mx_count(t.out) / n;
    return mx_comm_run(&t, async);
}

static mx_status all_gather_host(mx_call *call)
{
    int i = find_ahead(call->in[0], attributes(call));
    if (i >= 0 && started[i].changes == call->in[0]->storage->changes) {
        mx_tensor_alias(call->out[0], started[i].out, 0);
        forget_ahead(i);
        return MX_OK;
    }
    if (i >= 0)
        forget_ahead(i);
    MX_TRY(mx_tensor_allocate(call->out[0]));
    return run_gather(call, attributes(call)->async);
}

/* Starts the gather that `call` is about to make, within mx_comm.prefetch_bytes of such results. */
static mx_status gather_ahead(const mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_call now = {.op = &mx_op_all_gather, .n_in = 1, .n_out = 1};
    now.in[0] = call->in[0];
    memcpy(now.attr, call->attr, sizeof(collective_attr));
    int n = group_size(call);
    if (n == 1 || !x->storage || n_started == MAX_AHEAD)
        return MX_OK;
    mx_scope *scope = mx_scope_swap(NULL);
    mx_status status = all_gather_infer(&now);
    mx_scope_swap(scope);
    MX_TRY(status);
    int64_t bytes = mx_bytes(now.out[0]);
    int found = find_ahead(x, attributes(&now));
    if (found >= 0 && started[found].changes != x->storage->changes) {
        forget_ahead(found);
        found = -1;
    }
    bool skip = found >= 0 || started_bytes + bytes > mx_comm.prefetch_bytes;
    status = skip ? MX_OK : mx_tensor_allocate(now.out[0]);
    if (!skip && status == MX_OK)
        status = run_gather(&now, true);
    if (skip || status != MX_OK) {
        mx_release(now.out[0]);
        return status;
    }
    started[n_started++] = (ahead){.in = mx_storage_retain(x->storage),
                                   .offset = x->offset,
                                   .changes = x->storage->changes,
                                   .shape = x->shape,
                                   .attr = *attributes(&now),
                                   .out = now.out[0]};
    started_bytes += bytes;
    return MX_OK;
}

mx_status mx_collective_prefetch(const mx_call *call)
{
    if (!call)
        return mx_comm_flush();
    return call->op == &mx_op_all_gather ? gather_ahead(call) : MX_OK;
}

mx_status mx_collective_leaf_done(mx_tensor *t)
{
    if (t->reduce_axes == 0)
        return MX_OK;
    const collective_attr a = {.axis = t->reduce_axes, .async = mx_comm.async_all_reduce};
    return mx_apply(&mx_op_all_reduce_, &t->grad, 1, &a, NULL);
}

void mx_collective_forget(void)
{
    while (n_started > 0)
        forget_ahead(n_started - 1);
}

static const char *const all_gather_grads[] = {"reduce_scatter", "slice", NULL};

static mx_status slice_own(mx_vjp *v, const collective_attr *a)
{
    const collective_attr own = {.axis = a->axis, .dim = a->dim};
    mx_tensor *part = NULL;
    MX_TRY(apply_one(&mx_op_shard, v->out_grad[0], &own, &part));
    mx_dtype dtype = mx_vjp_dtype(v, 0);
    if (part->dtype == dtype) {
        v->grad[0] = part;
        return MX_OK;
    }
    const struct {
        int dtype;
    } cast = {(int)dtype};
    mx_status status = mx_apply(&mx_op_cast, &part, 1, &cast, &v->grad[0]);
    mx_release(part);
    return status;
}

static mx_status all_gather_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    if (a->grad == 1)
        return slice_own(v, a);
    const collective_attr back = {
        .axis = a->axis, .dim = a->dim, .dtype = (int)mx_vjp_dtype(v, 0), .async = a->async_grad};
    return apply_one(&mx_op_reduce_scatter, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr all_gather_attrs[] = {
    ATTR_AXIS,
    ATTR_DIM,
    ATTR_DTYPE,
    {"grad", MX_ATTR_ENUM, offsetof(collective_attr, grad), 0, all_gather_grads,
     "reduce_scatter: each rank uses the result in its own way; slice: all alike"},
    ATTR_ASYNC,
    {"async_grad", MX_ATTR_BOOL, offsetof(collective_attr, async_grad), 0, NULL,
     "the same for the gradient's reduce_scatter"},
    {0},
};

const mx_op mx_op_all_gather = {
    .name = "all_gather",
    .doc = "the parts x of all ranks put together along dim, in the order of the ranks. Collective",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE | MX_OP_OWN_STORAGE | MX_OP_REGATHER,
    .attrs = all_gather_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = all_gather_infer,
    .cost = all_gather_cost,
    .host = all_gather_host,
    .vjp = all_gather_vjp,
};

static mx_status split_in_place_infer(mx_call *call)
{
    MX_TRY(check_dim(call, &writable(call)->dim, "dim"));
    MX_TRY(check_reduction(call));
    return check_divides(call, attributes(call)->dim);
}

static mx_cost all_gather_inplace_cost(const mx_call *call) { return cost(call, MX_REDUCE_SCATTER); }

static mx_status all_gather_inplace_host(mx_call *call) { return run_gather(call, attributes(call)->async); }

static const mx_attr all_gather_inplace_attrs[] = {ATTR_AXIS, ATTR_DIM, ATTR_ASYNC, {0}};

const mx_op mx_op_all_gather_ = {
    .name = "all_gather_",
    .doc = "each rank's own part of x, cut along dim, goes to all others. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = all_gather_inplace_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = split_in_place_infer,
    .cost = all_gather_inplace_cost,
    .host = all_gather_inplace_host,
};

/* ---- reduce_scatter ---- */

static mx_status reduce_scatter_infer(mx_call *call)
{
    mx_dtype dtype;
    MX_TRY(split_in_place_infer(call));
    MX_TRY(result_dtype(call, &dtype));
    mx_shape shape = call->in[0]->shape;
    shape.size[attributes(call)->dim] /= group_size(call);
    return mx_out(call, 0, dtype, &shape);
}

static mx_cost reduce_scatter_cost(const mx_call *call) { return cost(call, MX_REDUCE_SCATTER); }

static mx_status reduce_scatter_host(mx_call *call)
{
    mx_transfer t = transfer(call, MX_REDUCE_SCATTER);
    int n = group_size(call);
    t.in_block = mx_block_split(t.in, (int)attributes(call)->dim, n);
    t.out_block = t.in_place ? t.in_block : mx_block_whole(t.out);
    t.count = mx_count(t.in) / n;
    return mx_comm_run(&t, attributes(call)->async);
}

static mx_status reduce_scatter_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    if (a->op == MAX)
        return mx_fail(MX_ERR_STATE, "reduce_scatter with op = \"max\" has no gradient; use x:detach()");
    const collective_attr back = {.axis = a->axis, .dim = a->dim, .dtype = (int)mx_vjp_dtype(v, 0)};
    if (a->op != MEAN)
        return apply_one(&mx_op_all_gather, v->out_grad[0], &back, &v->grad[0]);
    mx_tensor *scaled = NULL;
    MX_TRY(scale_by(v->out_grad[0], 1.0 / group_size(v->call), &scaled));
    mx_status status = apply_one(&mx_op_all_gather, scaled, &back, &v->grad[0]);
    mx_release(scaled);
    return status;
}

static const mx_attr reduce_scatter_attrs[] = {ATTR_AXIS, ATTR_DIM, ATTR_OP, ATTR_DTYPE, ATTR_ASYNC, {0}};
static const mx_attr reduce_scatter_inplace_attrs[] = {ATTR_AXIS, ATTR_DIM, ATTR_OP, ATTR_ASYNC, {0}};

const mx_op mx_op_reduce_scatter = {
    .name = "reduce_scatter",
    .doc = "this rank's part, cut along dim, of the sum, mean or maximum of x over the ranks. Collective",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = reduce_scatter_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = reduce_scatter_infer,
    .cost = reduce_scatter_cost,
    .host = reduce_scatter_host,
    .vjp = reduce_scatter_vjp,
};

const mx_op mx_op_reduce_scatter_ = {
    .name = "reduce_scatter_",
    .doc = "reduce_scatter in place: this rank's part of x becomes the result, the rest stays. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = reduce_scatter_inplace_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = split_in_place_infer,
    .cost = reduce_scatter_cost,
    .host = reduce_scatter_host,
};

/* ---- all_to_all ---- */

static mx_status all_to_all_infer(mx_call *call)
{
    collective_attr *a = writable(call);
    MX_TRY(check_dim(call, &a->split, "split"));
    MX_TRY(check_dim(call, &a->concat, "concat"));
    MX_TRY(check_divides(call, a->split));
    if (!call->op->n_out)
        return MX_OK;
    mx_shape shape = call->in[0]->shape;
    shape.size[a->split] /= group_size(call);
    shape.size[a->concat] *= group_size(call);
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost all_to_all_cost(const mx_call *call) { return cost(call, MX_ALL_TO_ALL); }

static mx_status all_to_all_host(mx_call *call)
{
    const collective_attr *a = attributes(call);
    mx_transfer t = transfer(call, MX_ALL_TO_ALL);
    int n = group_size(call);
    t.in_block = mx_block_split(t.in, (int)a->split, n);
    t.out_block = t.in_place ? t.in_block : mx_block_split(t.out, (int)a->concat, n);
    t.count = mx_count(t.in) / n;
    return mx_comm_run(&t, a->async);
}

static mx_status all_to_all_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    const collective_attr back = {.axis = a->axis, .split = a->concat, .concat = a->split};
    return apply_one(&mx_op_all_to_all, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr all_to_all_attrs[] = {
    ATTR_AXIS,
    {"split", MX_ATTR_DIM, offsetof(collective_attr, split), 0, NULL, "dimension that is cut among the ranks"},
    {"concat", MX_ATTR_DIM, offsetof(collective_attr, concat), 0, NULL,
     "dimension along which what comes is put together"},
    ATTR_ASYNC,
    {0},
};
static const mx_attr all_to_all_inplace_attrs[] = {
    ATTR_AXIS,
    {"dim", MX_ATTR_DIM, offsetof(collective_attr, split), 0, NULL, "dimension that is cut among the ranks"},
    ATTR_ASYNC,
    {0},
};

const mx_op mx_op_all_to_all = {
    .name = "all_to_all",
    .doc = "x is cut along `split`, part i goes to rank i of the axis, and what comes is put together along `concat`. "
           "Collective",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = all_to_all_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = all_to_all_infer,
    .cost = all_to_all_cost,
    .host = all_to_all_host,
    .vjp = all_to_all_vjp,
};

const mx_op mx_op_all_to_all_ = {
    .name = "all_to_all_",
    .doc = "part i of x, cut along dim, is swapped with rank i's part for us. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = all_to_all_inplace_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = all_to_all_infer,
    .cost = all_to_all_cost,
    .host = all_to_all_host,
};

/* ---- collective_permute ---- */

static mx_status permute_infer(mx_call *call)
{
    int64_t n = group_size(call);
    writable(call)->shift = (attributes(call)->shift % n + n) % n;
    return call->op->n_out ? mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape) : MX_OK;
}

static mx_cost permute_cost(const mx_call *call) { return cost(call, MX_PERMUTE); }

static mx_status permute_host(mx_call *call) { return run_whole(call, MX_PERMUTE, (int)attributes(call)->shift); }

static mx_status permute_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    const collective_attr back = {.axis = a->axis, .shift = -a->shift};
    return apply_one(&mx_op_collective_permute, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr permute_attrs[] = {
    ATTR_AXIS,
    {"shift", MX_ATTR_INT, offsetof(collective_attr, shift), 1, NULL,
     "places around the ring of ranks; negative: the other way"},
    ATTR_ASYNC,
    {0},
};

const mx_op mx_op_collective_permute = {
    .name = "collective_permute",
    .doc = "x goes `shift` ranks further along the axis, around the ring; the result is what came. Collective",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = permute_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = permute_infer,
    .cost = permute_cost,
    .host = permute_host,
    .vjp = permute_vjp,
};

const mx_op mx_op_collective_permute_ = {
    .name = "collective_permute_",
    .doc = "collective_permute in place. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = permute_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = permute_infer,
    .cost = permute_cost,
    .host = permute_host,
};

/* ---- broadcast ---- */

static mx_status broadcast_infer(mx_call *call)
{
    const collective_attr *a = attributes(call);
    int n = group_size(call);
    if (a->root < 0 || a->root >= n)
        return mx_bad_value(call, "root %lld is no rank of %s; there are 0 to %d", (long long)a->root,
                            mx_mesh_text(a->axis), n - 1);
    return call->op->n_out ? mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape) : MX_OK;
}

static mx_cost broadcast_cost(const mx_call *call) { return cost(call, MX_BROADCAST); }

static mx_status broadcast_host(mx_call *call) { return run_whole(call, MX_BROADCAST, (int)attributes(call)->root); }

static mx_status broadcast_vjp(mx_vjp *v)
{
    const collective_attr *a = attributes(v->call);
    const collective_attr back = {.axis = a->axis, .dtype = -1};
    mx_tensor *sum = NULL;
    MX_TRY(apply_one(&mx_op_all_reduce, v->out_grad[0], &back, &sum));
    if (mx_mesh_index(a->axis) == a->root) {
        v->grad[0] = sum;
        return MX_OK;
    }
    mx_dtype dtype = sum->dtype;
    mx_release(sum);
    MX_TRY(mx_tensor_new(dtype, &v->call->in[0]->shape, &v->grad[0]));
    memset(mx_data(v->grad[0]), 0, (size_t)mx_bytes(v->grad[0]));
    return MX_OK;
}

static const mx_attr broadcast_attrs[] = {
    ATTR_AXIS,
    {"root", MX_ATTR_INT, offsetof(collective_attr, root), 0, NULL,
     "the rank of the axis whose values all get, from 0"},
    ATTR_ASYNC,
    {0},
};

const mx_op mx_op_broadcast = {
    .name = "broadcast",
    .doc = "x of the root, on all ranks of the axis; gradients are added on the root. Collective",
    .inputs = inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = broadcast_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = broadcast_infer,
    .cost = broadcast_cost,
    .host = broadcast_host,
    .vjp = broadcast_vjp,
};

const mx_op mx_op_broadcast_ = {
    .name = "broadcast_",
    .doc = "x becomes what it is on the root. Collective",
    .inputs = inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = broadcast_attrs,
    .attr_bytes = sizeof(collective_attr),
    .infer = broadcast_infer,
    .cost = broadcast_cost,
    .host = broadcast_host,
};
