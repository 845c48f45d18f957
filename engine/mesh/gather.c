/* The operations shard, all_gather and reduce_scatter, and prefetched gathers. collective.c explains the gradients. */
#include "mesh/gather.h"

#include "core/scope.h"
#include "mesh/collective_op.h"

#include <string.h>

/* The option `grad` of all_gather. */
enum { DIFFERENTLY, ALIKE };

/* The size of x along dim. */
static int64_t length_of(const mx_call *call) { return call->in[0]->shape.size[mx_collective_attrs(call)->dim]; }

/* ---- shard ---- */

static mx_status shard_infer(mx_call *call)
{
    MX_TRY(mx_collective_check_dim(call, &mx_collective_writable(call)->dim, "dim"));
    mx_shape shape = call->in[0]->shape;
    int64_t *size = &shape.size[mx_collective_attrs(call)->dim];
    *size = mx_collective_part(call, *size);
    return mx_out(call, 0, call->in[0]->dtype, &shape);
}

static mx_cost shard_cost(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->out[0]);
    return (mx_cost){.bytes_read = bytes, .bytes_written = bytes};
}

static mx_status shard_host(mx_call *call)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    mx_block whole = mx_block_split(call->in[0], (int)a->dim, mx_collective_size(call));
    whole.data = mx_data(call->in[0]);
    mx_block own = mx_block_part(&whole, mx_mesh_index(a->axis));
    int64_t count = mx_count(call->out[0]);
    if (count == 0)
        return MX_OK;
    own.row = count / own.rows; /* without padding */
    own.lack = 0;
    mx_stream in = {.blocks = &own, .n = 1, .count = count};
    mx_stream_read(&in, 0, 0, count, own.dtype, mx_data(call->out[0]));
    return MX_OK;
}

static mx_status shard_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    const mx_collective_attr back = {
        .axis = a->axis, .dim = a->dim, .length = length_of(v->call), .dtype = (int)mx_vjp_dtype(v, 0), .grad = ALIKE};
    return mx_collective_apply(&mx_op_all_gather, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr shard_attrs[] = {MX_COLLECTIVE_AXIS, MX_COLLECTIVE_DIM, {0}};

const mx_op mx_op_shard = {
    .name = "shard",
    .doc = "this rank's shard along dim of an x that is the same on all ranks; backward gathers the gradient. Backward "
           "is Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .attrs = shard_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = shard_infer,
    .cost = shard_cost,
    .host = shard_host,
    .vjp = shard_vjp,
    .vjp_recorded = shard_vjp,
};

/* ---- all_gather ---- */

static struct mx_gather_state *state(void) { return mx_device_current->gathers; }

static void forget_ahead(int i)
{
    struct mx_gather_state *s = state();
    struct mx_gather_ahead *found = &s->ahead[i];
    s->bytes -= mx_bytes(found->out);
    mx_storage_release(found->in);
    mx_release(found->out);
    memmove(found, found + 1, (size_t)(--s->n - i) * sizeof *found);
}

static int find_ahead(const mx_tensor *x, const mx_collective_attr *a)
{
    const struct mx_gather_state *s = state();
    for (int i = 0; i < s->n; i++) {
        const struct mx_gather_ahead *g = &s->ahead[i];
        if (g->in == x->storage && g->offset == x->offset && mx_shape_equal(&g->shape, &x->shape) &&
            g->axis == a->axis && g->dim == a->dim && g->length == a->length && g->dtype == a->dtype)
            return i;
    }
    return -1;
}

static mx_status all_gather_infer(mx_call *call)
{
    mx_dtype dtype;
    MX_TRY(mx_collective_check_dim(call, &mx_collective_writable(call)->dim, "dim"));
    MX_TRY(mx_collective_dtype(call, &dtype));
    mx_shape shape = call->in[0]->shape;
    int64_t length = mx_collective_attrs(call)->length, part = length_of(call);
    if (length > 0 && mx_collective_part(call, length) != part)
        return mx_bad_shape(call, "this rank's part of length = %lld is %lld elements of dimension %lld; x has %lld",
                            (long long)length, (long long)mx_collective_part(call, length),
                            (long long)mx_collective_attrs(call)->dim + 1, (long long)part);
    shape.size[mx_collective_attrs(call)->dim] = length > 0 ? length : part * mx_collective_size(call);
    return mx_out(call, 0, dtype, &shape);
}

static mx_cost all_gather_cost(const mx_call *call) { return mx_collective_cost(call, MX_ALL_GATHER); }

static mx_status run_gather(mx_call *call, bool async)
{
    mx_transfer t = mx_collective_transfer(call, MX_ALL_GATHER);
    const mx_collective_attr *a = mx_collective_attrs(call);
    t.concat = (int)a->dim;
    t.out_block = mx_block_split(t.out, t.concat, mx_collective_size(call));
    t.in_block = t.what.in_place ? t.out_block : mx_block_alone(t.in, &t.out_block, mx_mesh_index(a->axis));
    t.count = t.out_block.rows * t.out_block.row;
    return mx_comm_run(&t, async);
}

static mx_status all_gather_host(mx_call *call)
{
    int i = find_ahead(call->in[0], mx_collective_attrs(call));
    const struct mx_gather_ahead *found = &state()->ahead[i < 0 ? 0 : i];
    if (i >= 0 && found->changes == call->in[0]->storage->changes) {
        mx_tensor_alias(call->out[0], found->out, 0);
        forget_ahead(i);
        return MX_OK;
    }
    if (i >= 0)
        forget_ahead(i);
    MX_TRY(mx_tensor_allocate(call->out[0]));
    return run_gather(call, mx_collective_attrs(call)->async);
}

/* Whether a prefetched gather of this size exceeds a limit of mx_comm. */
static bool has_no_room(int64_t bytes)
{
    int64_t below = mx_comm.prefetch_below_bytes;
    return state()->bytes + bytes > mx_comm.prefetch_bytes ||
           (below > 0 && mx_device_current->memory(mx_device_current).in_use_bytes + bytes > below);
}

/* Starts the gather of `call`, if there is room for its result. */
static mx_status gather_ahead(const mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_call now = {.op = &mx_op_all_gather, .n_in = 1, .n_out = 1, .in = call->in};
    memcpy(now.attr, call->attr, sizeof(mx_collective_attr));
    struct mx_gather_state *s = state();
    if (mx_collective_size(call) == 1 || !x->storage || s->n == MX_MAX_GATHERS_AHEAD)
        return MX_OK;
    mx_scope *scope = mx_scope_swap(NULL);
    mx_status status = all_gather_infer(&now);
    mx_scope_swap(scope);
    MX_TRY(status);
    int64_t bytes = mx_bytes(now.out[0]);
    const mx_collective_attr *a = mx_collective_attrs(&now);
    int found = find_ahead(x, a);
    if (found >= 0 && s->ahead[found].changes != x->storage->changes) {
        forget_ahead(found);
        found = -1;
    }
    bool skip = found >= 0 || has_no_room(bytes);
    status = skip ? MX_OK : mx_tensor_allocate(now.out[0]);
    if (!skip && status == MX_OK)
        status = run_gather(&now, true);
    if (skip || status != MX_OK) {
        mx_release(now.out[0]);
        return status;
    }
    s->ahead[s->n++] = (struct mx_gather_ahead){.in = mx_storage_retain(x->storage),
                                                .offset = x->offset,
                                                .changes = x->storage->changes,
                                                .shape = x->shape,
                                                .axis = a->axis,
                                                .dim = a->dim,
                                                .length = a->length,
                                                .dtype = a->dtype,
                                                .out = now.out[0]};
    s->bytes += bytes;
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
    if (mx_comm.gradients_in_bf16 && t->grad->dtype != MX_BF16) {
        mx_tensor *narrow = NULL;
        MX_TRY(mx_apply_cast(t->grad, MX_BF16, &narrow));
        mx_release(t->grad);
        t->grad = narrow;
    }
    const mx_axes axes = t->reduce_axes & MX_ALL_RANKS ? 0 : t->reduce_axes;
    const mx_collective_attr a = {.axis = axes, .async = mx_comm.async_all_reduce};
    MX_TRY(mx_apply(&mx_op_all_reduce_, &t->grad, 1, MX_ATTRS(a), NULL));
    t->grad->reduce_axes = mx_mesh_size(axes) > 1 ? t->reduce_axes : 0;
    return MX_OK;
}

void mx_collective_forget(void)
{
    while (state()->n > 0)
        forget_ahead(state()->n - 1);
}

static const char *const all_gather_grads[] = {"reduce_scatter", "slice", NULL};

static mx_status slice_own(mx_vjp *v, const mx_collective_attr *a)
{
    const mx_collective_attr own = {.axis = a->axis, .dim = a->dim};
    mx_tensor *part = NULL;
    MX_TRY(mx_collective_apply(&mx_op_shard, v->out_grad[0], &own, &part));
    return mx_give_grad(v, 0, part);
}

static mx_status all_gather_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    if (a->grad == ALIKE)
        return slice_own(v, a);
    const mx_collective_attr back = {
        .axis = a->axis, .dim = a->dim, .dtype = (int)mx_vjp_dtype(v, 0), .async = a->async_grad};
    return mx_collective_apply(&mx_op_reduce_scatter, v->out_grad[0], &back, &v->grad[0]);
}

static const mx_attr all_gather_attrs[] = {
    MX_COLLECTIVE_AXIS,
    MX_COLLECTIVE_DIM,
    MX_COLLECTIVE_DTYPE,
    {"grad", MX_ATTR_ENUM, offsetof(mx_collective_attr, grad), 0, all_gather_grads,
     "reduce_scatter: ranks use the result differently; slice: all use it alike"},
    {"length", MX_ATTR_INT, offsetof(mx_collective_attr, length), 0, NULL,
     "size of the result along dim; the first ranks may have one element more than the others. Default: all have the "
     "same"},
    MX_COLLECTIVE_ASYNC,
    {"async_grad", MX_ATTR_BOOL, offsetof(mx_collective_attr, async_grad), 0, NULL,
     "async for the gradient's reduce_scatter"},
    {0},
};

const mx_op mx_op_all_gather = {
    .name = "all_gather",
    .doc = "concatenates the x of all ranks along dim, in the order of the ranks. Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE | MX_OP_OWN_STORAGE | MX_OP_REGATHER | MX_OP_CODES,
    .attrs = all_gather_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = all_gather_infer,
    .cost = all_gather_cost,
    .host = all_gather_host,
    .vjp = all_gather_vjp,
    .vjp_recorded = all_gather_vjp,
};

static mx_status split_in_place_infer(mx_call *call)
{
    MX_TRY(mx_collective_check_dim(call, &mx_collective_writable(call)->dim, "dim"));
    return mx_collective_check_reduction(call);
}

static mx_status all_gather_inplace_host(mx_call *call) { return run_gather(call, mx_collective_attrs(call)->async); }

static const mx_attr all_gather_inplace_attrs[] = {MX_COLLECTIVE_AXIS, MX_COLLECTIVE_DIM, MX_COLLECTIVE_ASYNC, {0}};

const mx_op mx_op_all_gather_ = {
    .name = "all_gather_",
    .doc = "all_gather in place: each rank's own part of x along dim is copied to all other ranks. Collective",
    .inputs = mx_collective_inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = all_gather_inplace_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = split_in_place_infer,
    .cost = all_gather_cost,
    .host = all_gather_inplace_host,
};

/* ---- reduce_scatter ---- */

static mx_status reduce_scatter_infer(mx_call *call)
{
    mx_dtype dtype;
    MX_TRY(split_in_place_infer(call));
    MX_TRY(mx_collective_dtype(call, &dtype));
    mx_shape shape = call->in[0]->shape;
    shape.size[mx_collective_attrs(call)->dim] = mx_collective_part(call, length_of(call));
    return mx_out(call, 0, dtype, &shape);
}

static mx_cost reduce_scatter_cost(const mx_call *call) { return mx_collective_cost(call, MX_REDUCE_SCATTER); }

static mx_status reduce_scatter_host(mx_call *call)
{
    mx_transfer t = mx_collective_transfer(call, MX_REDUCE_SCATTER);
    const mx_collective_attr *a = mx_collective_attrs(call);
    t.split = (int)a->dim;
    t.in_block = mx_block_split(t.in, t.split, mx_collective_size(call));
    t.out_block = t.what.in_place ? t.in_block : mx_block_alone(t.out, &t.in_block, mx_mesh_index(a->axis));
    t.count = t.in_block.rows * t.in_block.row;
    return mx_comm_run(&t, a->async);
}

static mx_status reduce_scatter_vjp(mx_vjp *v)
{
    const mx_collective_attr *a = mx_collective_attrs(v->call);
    if (a->op == MX_COLLECTIVE_MAX)
        return mx_fail(MX_ERR_STATE, "reduce_scatter with op = \"max\" has no gradient; use x:detach()");
    const mx_collective_attr back = {
        .axis = a->axis, .dim = a->dim, .length = length_of(v->call), .dtype = (int)mx_vjp_dtype(v, 0)};
    if (a->op != MX_COLLECTIVE_MEAN)
        return mx_collective_apply(&mx_op_all_gather, v->out_grad[0], &back, &v->grad[0]);
    mx_tensor *scaled = NULL;
    MX_TRY(mx_collective_scale(v->out_grad[0], 1.0 / mx_collective_size(v->call), &scaled));
    mx_status status = mx_collective_apply(&mx_op_all_gather, scaled, &back, &v->grad[0]);
    mx_release(scaled);
    return status;
}

static const mx_attr reduce_scatter_attrs[] = {MX_COLLECTIVE_AXIS,  MX_COLLECTIVE_DIM,   MX_COLLECTIVE_OP,
                                               MX_COLLECTIVE_DTYPE, MX_COLLECTIVE_ASYNC, {0}};
static const mx_attr reduce_scatter_inplace_attrs[] = {
    MX_COLLECTIVE_AXIS, MX_COLLECTIVE_DIM, MX_COLLECTIVE_OP, MX_COLLECTIVE_ASYNC, {0}};

const mx_op mx_op_reduce_scatter = {
    .name = "reduce_scatter",
    .doc = "this rank's shard along dim of the sum, mean or maximum of x over the ranks. Collective",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = reduce_scatter_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = reduce_scatter_infer,
    .cost = reduce_scatter_cost,
    .host = reduce_scatter_host,
    .vjp = reduce_scatter_vjp,
    .vjp_recorded = reduce_scatter_vjp,
};

const mx_op mx_op_reduce_scatter_ = {
    .name = "reduce_scatter_",
    .doc = "reduce_scatter in place: this rank's part of x becomes the result, the rest of x stays. Collective",
    .inputs = mx_collective_inputs,
    .flags = MX_OP_MUTATES | MX_OP_COLLECTIVE,
    .attrs = reduce_scatter_inplace_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = split_in_place_infer,
    .cost = reduce_scatter_cost,
    .host = reduce_scatter_host,
};
