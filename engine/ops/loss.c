/* Unembedding and cross-entropy in one operation.
 *
 * If a gradient will be needed, the forward pass computes it too, as hidden outputs: the logits of a chunk of tokens
 * exist only then, and computing them again would cost a third more. The backward pass hands these tensors on. */
#include "kernels/loss.h"

#include "kernels/shape.h"

#include "ops/rows.h"

#include <math.h>

typedef struct loss_attr {
    double z_loss, softcap, logit_scale, normalizer;
    bool trans;
} loss_attr;

static const mx_tensor *mask_of(const mx_call *call) { return call->n_in > 3 ? call->in[3] : NULL; }

static mx_status want_attributes(const mx_call *call)
{
    const loss_attr *attr = mx_call_attr(call);
    if (!(attr->softcap >= 0) || !(attr->normalizer >= 0) || !isfinite(attr->z_loss) || !isfinite(attr->logit_scale))
        return mx_bad_value(call,
                            "softcap = %g and normalizer = %g must not be negative, z_loss = %g and logit_scale = %g "
                            "must be finite",
                            attr->softcap, attr->normalizer, attr->z_loss, attr->logit_scale);
    return MX_OK;
}

static mx_status infer_cross_entropy(mx_call *call)
{
    const mx_tensor *h = call->in[0], *weight = call->in[1], *mask = mask_of(call);
    const loss_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(mx_want_float(call, 1));
    MX_TRY(mx_want_dtype(call, 2, MX_I32));
    if (mask)
        MX_TRY(mx_want_dtype(call, 3, MX_U8));
    MX_TRY(want_attributes(call));
    if (weight->shape.n_dims != 2 || weight->shape.size[attr->trans ? 1 : 0] != mx_row_width(h))
        return mx_bad_shape(call, "weight must be %s with the width of h",
                            attr->trans ? "(vocabulary, width)" : "(width, vocabulary)");
    mx_shape tokens = mx_shape_of_rows(h), none = mx_vector(0), scalar = {0};
    MX_TRY(mx_want_shape(call, 2, &tokens));
    if (mask)
        MX_TRY(mx_want_shape(call, 3, &tokens));
    bool record = mx_will_record(call);
    MX_TRY(mx_out(call, 0, MX_F32, &scalar));
    MX_TRY(mx_out(call, 1, h->dtype, record && h->requires_grad ? &h->shape : &none));
    return mx_out(call, 2, MX_F32, record && weight->requires_grad ? &weight->shape : &none);
}

/* Whether a hidden gradient was computed: it then has the shape of its input. */
static bool is_made(const mx_call *call, int i)
{
    return mx_shape_equal(&call->out[1 + i]->shape, &call->in[i]->shape);
}

/* One product for the logits, one for each gradient. Softmax and its gradient: about ten more for each logit. */
static mx_cost cost_cross_entropy(const mx_call *call)
{
    const loss_attr *attr = mx_call_attr(call);
    double vocab = (double)call->in[1]->shape.size[attr->trans ? 0 : 1];
    double products = 1 + (is_made(call, 0) ? 1 : 0) + (is_made(call, 1) ? 1 : 0);
    mx_cost cost = mx_cost_of(call, 2 * products * (double)mx_count(call->in[0]) * vocab);
    cost.work = MX_WORK_PRODUCT;
    return cost;
}

static mx_status host_cross_entropy(mx_call *call)
{
    const mx_tensor *h = call->in[0], *weight = call->in[1], *targets = call->in[2], *mask = mask_of(call);
    const loss_attr *attr = mx_call_attr(call);
    mx_cross_entropy c = {.tokens = mx_count(targets),
                          .width = mx_row_width(h),
                          .vocab = weight->shape.size[attr->trans ? 0 : 1],
                          .h = mx_data(h),
                          .h_dtype = h->dtype,
                          .weight = mx_data(weight),
                          .weight_dtype = weight->dtype,
                          .trans = attr->trans,
                          .targets = mx_data(targets),
                          .mask = mask ? mx_data(mask) : NULL,
                          .z_loss = (float)attr->z_loss,
                          .softcap = (float)attr->softcap,
                          .logit_scale = (float)attr->logit_scale,
                          .normalizer = attr->normalizer,
                          .loss = mx_f32(call->out[0]),
                          .dh = is_made(call, 0) ? mx_data(call->out[1]) : NULL,
                          .dweight = is_made(call, 1) ? mx_f32(call->out[2]) : NULL};
    int64_t bad = mx_cross_entropy_find_bad(&c);
    char place[128];
    if (bad >= 0 && c.targets)
        return mx_bad_value(call, "target %d at %s is outside the vocabulary of %lld (ids count from 0)",
                            c.targets[bad], mx_place_text(place, &targets->shape, bad), (long long)c.vocab);
    return mx_cross_entropy_run(&c);
}

/* The gradient of input i (0: h, 1: weight), computed in the forward pass, times the gradient of the loss. Nothing else
 * uses the hidden output, so it is scaled in place and its storage moves to the returned tensor, unless the tape is
 * retained. */
static mx_status hand_on(mx_vjp *v, int i)
{
    mx_tensor *made = v->call->out[1 + i], *dloss = v->out_grad[0], *grad = NULL;
    if (!v->want[i])
        return MX_OK;
    if (!is_made(v->call, i))
        return mx_fail(MX_ERR_STATE, "cross_entropy: the gradient of input %d was not asked for in the forward pass",
                       i + 1);
    if (v->retain) {
        MX_TRY(mx_apply(&mx_op_mul, (mx_tensor *[]){made, dloss}, 2, MX_NO_ATTRS, &grad));
        return mx_give_grad(v, i, grad);
    }
    float factor = 0; /* a device without values leaves it */
    MX_TRY(mx_tensor_read(dloss, 0, 1, &factor));
    if (factor != 1.0f)
        MX_TRY(mx_apply(&mx_op_cross_entropy_grad, (mx_tensor *[]){made, dloss}, 2, MX_NO_ATTRS, NULL));
    MX_TRY(mx_tensor_new_empty(made->dtype, &made->shape, &grad));
    mx_tensor_alias(grad, made, 0);
    mx_tensor_drop(made);
    return mx_give_grad(v, i, grad);
}

static mx_status vjp_cross_entropy(mx_vjp *v)
{
    MX_TRY(hand_on(v, 0));
    return hand_on(v, 1);
}

static const mx_attr attrs[] = {
    {"z_loss", MX_ATTR_FLOAT, offsetof(loss_attr, z_loss), 0, NULL, "adds z_loss * log(sum of e^logits)^2"},
    {"softcap", MX_ATTR_FLOAT, offsetof(loss_attr, softcap), 0, NULL, "logits become softcap * tanh(logits / softcap)"},
    {"logit_scale", MX_ATTR_FLOAT, offsetof(loss_attr, logit_scale), 1, NULL, "factor of the logits, before the cap"},
    {"trans", MX_ATTR_BOOL, offsetof(loss_attr, trans), 1, NULL,
     "weight is (V, E), like an embedding; otherwise (E, V)"},
    {"normalizer", MX_ATTR_FLOAT, offsetof(loss_attr, normalizer), 0, NULL,
     "the sum over tokens is divided by it; 0: the number of tokens that count"},
    {0}};

const mx_op mx_op_cross_entropy = {
    .name = "cross_entropy",
    .doc =
        "mean of -log softmax(h weight^T)[target] without holding all logits: h (..., E), weight (V, E), targets i32 "
        "(...), mask u8 (...) (0: does not count) -> f32 scalar",
    .inputs = (const char *const[]){"h", "weight", "targets", "mask?", NULL},
    .n_out = 3,
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(loss_attr),
    .reads_out = 1 << 1 | 1 << 2,
    .infer = infer_cross_entropy,
    .cost = cost_cross_entropy,
    .host = host_cross_entropy,
    .vjp = vjp_cross_entropy,
};

/* ---- a gradient of the loss other than 1 ---- */

static mx_status infer_cross_entropy_grad(mx_call *call)
{
    mx_shape scalar = {0};
    MX_TRY(mx_want_float(call, 0));
    MX_TRY(mx_want_dtype(call, 1, MX_F32));
    return mx_want_shape(call, 1, &scalar);
}

static mx_cost cost_cross_entropy_grad(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->in[0]);
    return (mx_cost){.flops = (double)mx_count(call->in[0]), .bytes_read = bytes, .bytes_written = bytes};
}

static mx_status host_cross_entropy_grad(mx_call *call)
{
    mx_tensor *grad = call->in[0];
    mx_scale_values(mx_data(grad), grad->dtype, mx_f32(call->in[1])[0], mx_count(grad));
    return MX_OK;
}

const mx_op mx_op_cross_entropy_grad = {
    .name = "cross_entropy_grad",
    .doc =
        "grad *= dloss in place: multiplies a gradient that cross_entropy kept by the gradient of the loss (a scalar)",
    .inputs = (const char *const[]){"grad", "dloss", NULL},
    .flags = MX_OP_MUTATES,
    .infer = infer_cross_entropy_grad,
    .cost = cost_cross_entropy_grad,
    .host = host_cross_entropy_grad,
};
