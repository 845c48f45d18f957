/* Messages between two ranks: send and recv, with their gradients.
 *
 * The ranks differ only along an axis. Both ends of a message must call for it, and a rank's messages are exchanged one
 * at a time in the order of its calls (mesh/comm.h). A gradient travels the other way: send's is received, and recv's
 * is sent. */
#include "mesh/collective_op.h"
#include "ops/compose.h"
#include "tape/tape.h"
#include "transport/mpi.h"

#include <math.h>
#include <stdlib.h>

/* The other rank: `root` of the attributes is its index along the axis. */
static mx_status check(const mx_call *call)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    int n = mx_collective_size(call), me = mx_mesh_index(a->axis);
    if (a->root < 0 || a->root >= n || a->root == me)
        return mx_bad_value(call, "%s = %lld, expected the index of another rank of %s, from 0 to %d; this one is %d",
                            call->op->attrs[1].name, (long long)a->root, mx_mesh_text(a->axis), n - 1, me);
    if (mx_will_record(call) && mx_tape_drops())
        return mx_fail(MX_ERR_STATE,
                       "%s inside mx.remat: backward would exchange the message again; call it outside, or use the "
                       "policy \"none\"",
                       call->op->name);
    return MX_OK;
}

static mx_status exchange(const mx_call *call, mx_tensor *x, bool sends)
{
    const mx_collective_attr *a = mx_collective_attrs(call);
    int n = mx_collective_size(call), *ranks = malloc((size_t)n * sizeof *ranks);
    if (!ranks)
        return mx_fail(MX_ERR_MEMORY, "no memory for a message");
    mx_mesh_ranks(a->axis, ranks);
    mx_transfer t = {
        .what = {.kind = MX_POINT, .wire = x->dtype, .scale = 1, .in_place = true},
        .axes = a->axis,
        .in = sends ? x : NULL,
        .out = sends ? NULL : x,
        .in_block = mx_block_whole(x),
        .out_block = mx_block_whole(x),
        .peer = ranks[a->root],
        .distance = abs((int)a->root - mx_mesh_index(a->axis)),
        .count = mx_count(x),
        .bytes_sent = sends ? (double)mx_bytes(x) : 0,
    };
    free(ranks);
    t.what.root = (mx_rank() > t.peer) == sends; /* the sender's index among the two */
    return mx_comm_message(&t);
}

static mx_status apply(const mx_op *op, mx_tensor *x, const mx_collective_attr *a, mx_tensor **y)
{
    const mx_collective_attr back = {.axis = a->axis, .root = a->root};
    return mx_collective_apply(op, x, &back, y);
}

/* ---- send ---- */

static mx_status send_infer(mx_call *call)
{
    const mx_shape one = {.n_dims = 1, .size = {1}};
    MX_TRY(check(call));
    return mx_out(call, 0, MX_F32, &one);
}

static mx_cost send_cost(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->in[0]);
    return (mx_cost){.bytes_read = bytes, .bytes_sent = bytes};
}

static mx_status send_host(mx_call *call)
{
    MX_TRY(mx_tensor_fill(call->out[0], 0));
    return exchange(call, call->in[0], true);
}

static mx_status send_vjp(mx_vjp *v)
{
    mx_dtype dtype = mx_vjp_dtype(v, 0);
    mx_tensor *grad = NULL;
    MX_TRY(apply(&mx_op_recv, v->call->in[0], mx_collective_attrs(v->call), &grad));
    if (grad->dtype == dtype) {
        v->grad[0] = grad;
        return MX_OK;
    }
    mx_status status = mx_apply_cast(grad, dtype, &v->grad[0]);
    mx_release(grad);
    return status;
}

static const mx_attr send_attrs[] = {
    MX_COLLECTIVE_AXIS,
    {"to", MX_ATTR_INT, offsetof(mx_collective_attr, root), NAN, NULL,
     "index along the axis of the rank that receives, from 0"},
    {0},
};

const mx_op mx_op_send = {
    .name = "send",
    .doc = "sends x to another rank of the axis, which calls recv, in the background. The result is a 0; backward from "
           "it receives the gradient of x",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = send_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = send_infer,
    .cost = send_cost,
    .host = send_host,
    .vjp = send_vjp,
};

/* ---- recv ---- */

static mx_status recv_infer(mx_call *call)
{
    MX_TRY(check(call));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_cost recv_cost(const mx_call *call) { return (mx_cost){.bytes_written = (double)mx_bytes(call->in[0])}; }

static mx_status recv_host(mx_call *call) { return exchange(call, call->out[0], false); }

/* x itself gets no gradient. */
static mx_status recv_vjp(mx_vjp *v)
{
    mx_tensor *zero = NULL;
    MX_TRY(apply(&mx_op_send, v->out_grad[0], mx_collective_attrs(v->call), &zero));
    mx_release(zero);
    return MX_OK;
}

static const mx_attr recv_attrs[] = {
    MX_COLLECTIVE_AXIS,
    {"from", MX_ATTR_INT, offsetof(mx_collective_attr, root), NAN, NULL,
     "index along the axis of the rank that sends, from 0"},
    {0},
};

const mx_op mx_op_recv = {
    .name = "recv",
    .doc = "what another rank of the axis sends, of x's shape and dtype, in the background. If x requires a gradient, "
           "so does the result, and backward sends it to the other rank",
    .inputs = mx_collective_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = recv_attrs,
    .attr_bytes = sizeof(mx_collective_attr),
    .infer = recv_infer,
    .cost = recv_cost,
    .host = recv_host,
    .vjp = recv_vjp,
};
