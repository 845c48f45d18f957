/* Activations: relu, gelu, silu, and gated ones, which take the product with a second tensor in the same pass. The
 * functions mx_unary_* are in unary.c. */
#include "ops/pointwise.h"
#include "ops/terms.h"

#include <math.h>

typedef struct gated_attr {
    int activation; /* index in activations */
    int approximate;
    double limit;
} gated_attr;

static const char *const x_input[] = {"x", NULL};

const mx_op mx_op_relu = {
    .name = "relu",
    .doc = "max(x, 0), elementwise; gradient 0 at 0",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .reads_out = 1, /* y > 0 where x > 0: x need not be kept */
    .infer = mx_unary_infer,
    .cost = mx_unary_cost,
    .host = mx_unary_host,
    .vjp = mx_unary_vjp,
    .vjp_recorded = mx_unary_vjp_recorded,
};

const mx_op mx_op_silu = {
    .name = "silu",
    .doc = "x sigmoid(x), elementwise",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .reads_in = 1,
    .infer = mx_unary_infer,
    .cost = mx_unary_cost,
    .host = mx_unary_host,
    .vjp = mx_unary_vjp,
    .vjp_recorded = mx_unary_vjp_recorded,
};

const mx_op mx_op_gelu = {
    .name = "gelu",
    .doc = "x times the cumulative normal distribution at x, elementwise",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"approximate", MX_ATTR_ENUM, offsetof(mx_gelu_attr, approximate), 0, mx_gelu_choices,
                                "'tanh', as in GPT-2, or 'none': exact, by the error function"},
                               {0}},
    .attr_bytes = sizeof(mx_gelu_attr),
    .reads_in = 1,
    .infer = mx_unary_infer,
    .cost = mx_unary_cost,
    .host = mx_unary_host,
    .vjp = mx_unary_vjp,
    .vjp_recorded = mx_unary_vjp_recorded,
};

/* ---- gated ---- */

enum { SILU, GELU, RELU, GPT_OSS };
static const char *const activations[] = {"silu", "gelu", "relu", "gpt_oss", NULL};

static mx_function activation_of(const mx_call *call)
{
    const gated_attr *attr = mx_call_attr(call);
    const mx_unary of[] = {MX_SILU, attr->approximate ? MX_GELU_ERF : MX_GELU_TANH, MX_RELU, MX_SILU};
    return (mx_function){.op = of[attr->activation], .p0 = attr->activation == GPT_OSS ? attr->limit : 0};
}

static mx_status infer_gated(mx_call *call)
{
    const gated_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_reals(call));
    for (int i = 0; i < call->n_in; i++)
        if (!mx_shape_equal(&call->in[i]->shape, &call->in[0]->shape))
            return mx_bad_shape(call, "all tensors must have one shape");
    if (!(attr->limit > 0) || isinf(attr->limit))
        return mx_bad_value(call, "limit = %g; expected a positive number", attr->limit);
    mx_dtype dtype = call->op == &mx_op_gated ? call->in[0]->dtype : call->in[2]->dtype;
    for (int i = 0; i < call->n_out; i++)
        MX_TRY(mx_out(call, i, dtype, &call->in[0]->shape));
    return MX_OK;
}

static mx_cost cost_gated(const mx_call *call) { return mx_cost_of(call, 14.0 * (double)mx_count(call->in[0])); }

static mx_cost cost_gated_grad(const mx_call *call) { return mx_cost_of(call, 20.0 * (double)mx_count(call->in[0])); }

/* In place: dy is written, too. */
static mx_cost cost_gated_grad_(const mx_call *call)
{
    mx_cost cost = cost_gated_grad(call);
    cost.bytes_written += (double)mx_bytes(call->in[2]);
    return cost;
}

static mx_status host_gated(mx_call *call)
{
    mx_gated_forward(activation_of(call), mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_array_of(call->out[0]),
                     mx_count(call->in[0]));
    return MX_OK;
}

static mx_status host_gated_grad(mx_call *call)
{
    mx_gated_backward(activation_of(call), mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_array_of(call->in[2]),
                      mx_array_of(call->out[0]), mx_array_of(call->out[1]), mx_count(call->in[0]));
    return MX_OK;
}

static mx_status host_gated_grad_(mx_call *call)
{
    mx_array dy = mx_array_of(call->in[2]);
    mx_gated_backward(activation_of(call), mx_array_of(call->in[0]), mx_array_of(call->in[1]), dy,
                      mx_array_of(call->out[0]), dy, mx_count(call->in[0]));
    return MX_OK;
}

/* The gradient of up replaces that of the result where nothing else reads the latter: these are the largest tensors of
 * a layer's backward pass. */
static mx_status vjp_gated(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dy = v->out_grad[0], *in[3] = {call->in[0], call->in[1], dy}, *out[2] = {NULL, NULL};
    if (dy->refs == 1 && dy->storage && dy->storage->refs == 1) {
        MX_TRY(mx_apply(&mx_op_gated_grad_, in, 3, mx_call_attrs(call), out));
        out[1] = mx_retain(dy);
    } else {
        MX_TRY(mx_apply(&mx_op_gated_grad, in, 3, mx_call_attrs(call), out));
    }
    mx_status status = mx_give_grad(v, 0, out[0]), other = mx_give_grad(v, 1, out[1]);
    return status != MX_OK ? status : other;
}

static mx_tensor *clamped_swiglu(mx_terms *s, mx_tensor *gate, mx_tensor *up, double limit)
{
    const double below[] = {-INFINITY, limit}, between[] = {-limit, limit};
    gate = mx_term(s, &mx_op_clamp, MX_ATTRS(below), gate, NULL, NULL);
    up = mx_term(s, &mx_op_clamp, MX_ATTRS(between), up, NULL, NULL);
    mx_tensor *active = mx_term_mul(s, gate, mx_term_one(s, &mx_op_sigmoid, mx_term_affine(s, gate, 1.702, 0)));
    return mx_term_mul(s, active, mx_term_affine(s, up, 1, 1));
}

static mx_tensor *plain_gated(mx_terms *s, const mx_call *call)
{
    const gated_attr *attr = mx_call_attr(call);
    const mx_gelu_attr gelu = {attr->approximate};
    mx_tensor *gate = mx_term_wide(s, call->in[0]), *up = mx_term_wide(s, call->in[1]);
    if (attr->activation == GPT_OSS)
        return mx_term_cast(s, clamped_swiglu(s, gate, up, attr->limit), call->in[0]->dtype);
    mx_tensor *active = attr->activation == GELU
                            ? mx_term(s, &mx_op_gelu, MX_ATTRS(gelu), gate, NULL, NULL)
                            : mx_term_one(s, attr->activation == SILU ? &mx_op_silu : &mx_op_relu, gate);
    return mx_term_cast(s, mx_term_mul(s, active, up), call->in[0]->dtype);
}

static const mx_attr gated_attrs[] = {
    {"activation", MX_ATTR_ENUM, offsetof(gated_attr, activation), 0, activations,
     "activation of gate: silu, gelu or relu; gpt_oss: with g = gate up to limit and "
     "u = up from -limit to limit, the result is g sigmoid(1.702 g) (u + 1)"},
    {"limit", MX_ATTR_FLOAT, offsetof(gated_attr, limit), 7, NULL, "the limit of gpt_oss"},
    {"approximate", MX_ATTR_ENUM, offsetof(gated_attr, approximate), 0, mx_gelu_choices,
     "approximation of gelu: tanh or none"},
    {0}};

const mx_op mx_op_gated = {
    .name = "gated",
    .doc = "activation(gate) * up in one pass; gate and up have the same shape",
    .inputs = (const char *const[]){"gate", "up", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = gated_attrs,
    .attr_bytes = sizeof(gated_attr),
    .reads_in = 3,
    .infer = infer_gated,
    .cost = cost_gated,
    .host = host_gated,
    .vjp = vjp_gated,
    .plain = plain_gated,
};

const mx_op mx_op_gated_grad = {
    .name = "gated_grad",
    .doc = "the gradients of gated with respect to gate and up, in one pass",
    .inputs = (const char *const[]){"gate", "up", "dy", NULL},
    .n_out = 2,
    .n_results = 2,
    .attrs = gated_attrs,
    .attr_bytes = sizeof(gated_attr),
    .infer = infer_gated,
    .cost = cost_gated_grad,
    .host = host_gated_grad,
};

const mx_op mx_op_gated_grad_ = {
    .name = "gated_grad_",
    .doc = "the gradient of gated with respect to gate; dy becomes that with respect to up",
    .inputs = (const char *const[]){"gate", "up", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = gated_attrs,
    .attr_bytes = sizeof(gated_attr),
    .flags = MX_OP_MUTATES,
    .changes_in = 1 << 2,
    .infer = infer_gated,
    .cost = cost_gated_grad_,
    .host = host_gated_grad_,
};
