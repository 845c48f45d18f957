/* straight_through: one tensor's values with the gradient of another. */
#include "ops/rows.h"

static mx_status infer(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    MX_TRY(mx_want_shape(call, 1, &call->in[0]->shape));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_cost cost(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

static mx_status host(mx_call *call)
{
    mx_tensor_alias(call->out[0], call->in[0], 0);
    return MX_OK;
}

static mx_status vjp(mx_vjp *v) { return mx_give_grad(v, 1, mx_retain(v->out_grad[0])); }

const mx_op mx_op_straight_through = {
    .name = "straight_through",
    .doc = "the values of `value`, sharing memory; the gradient goes to x, as if the result were x",
    .inputs = (const char *const[]){"value", "x", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_VIEW,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
    .vjp_recorded = vjp,
};
