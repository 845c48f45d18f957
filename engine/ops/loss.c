/* Unembedding and cross-entropy in one operation.
 *
 * If a gradient will be needed, the forward pass computes it too, as hidden outputs: the logits of a chunk of tokens
 * exist only then, and computing them again would cost a third more. The backward pass hands these tensors on. */
#include "ops/loss.h"

#include "kernels/shape.h"
#include "ops/rows.h"

#include <math.h>

static const mx_tensor *mask_of(const mx_call *call)
{
    return call->n_in > MX_LOSS_MASK ? call->in[MX_LOSS_MASK] : NULL;
}

static mx_status want_attributes(const mx_call *call)
{
    const mx_cross_entropy_attr *attr = mx_call_attr(call);
    if (!(attr->softcap >= 0) || !(attr->normalizer >= 0) || !isfinite(attr->z_loss) || !isfinite(attr->logit_scale))
        return mx_bad_value(call,
                            "softcap = %g and normalizer = %g must not be negative, z_loss = %g and logit_scale = %g "
                            "must be finite",
                            attr->softcap, attr->normalizer, attr->z_loss, attr->logit_scale);
    return MX_OK;
}

mx_status mx_cross_entropy_check(const mx_call *call)
{
    const mx_tensor *h = call->in[MX_LOSS_H], *weight = call->in[MX_LOSS_WEIGHT], *mask = mask_of(call);
    const mx_cross_entropy_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_rows(call, MX_LOSS_H));
    MX_TRY(mx_want_float(call, MX_LOSS_WEIGHT));
    MX_TRY(mx_want_dtype(call, MX_LOSS_TARGETS, MX_I32));
    if (mask)
        MX_TRY(mx_want_dtype(call, MX_LOSS_MASK, MX_U8));
    MX_TRY(want_attributes(call));
    if (weight->shape.n_dims != 2 || weight->shape.size[attr->trans ? 1 : 0] != mx_row_width(h))
        return mx_bad_shape(call, "weight must be %s with the width of h",
                            attr->trans ? "(vocabulary, width)" : "(width, vocabulary)");
    mx_shape tokens = mx_shape_of_rows(h);
    MX_TRY(mx_want_shape(call, MX_LOSS_TARGETS, &tokens));
    return mask ? mx_want_shape(call, MX_LOSS_MASK, &tokens) : MX_OK;
}

mx_status mx_cross_entropy_infer(mx_call *call)
{
    const mx_tensor *h = call->in[MX_LOSS_H], *weight = call->in[MX_LOSS_WEIGHT];
    mx_shape none = mx_vector(0), scalar = {0};
    MX_TRY(mx_cross_entropy_check(call));
    bool record = mx_will_record(call);
    MX_TRY(mx_out(call, MX_LOSS_MEAN, MX_F32, &scalar));
    MX_TRY(mx_out(call, MX_LOSS_DH, h->dtype, record && h->requires_grad ? &h->shape : &none));
    return mx_out(call, MX_LOSS_DWEIGHT, MX_F32, record && weight->requires_grad ? &weight->shape : &none);
}

/* A gradient that is made has the shape of its input. */
bool mx_cross_entropy_makes(const mx_call *call, int i)
{
    return mx_shape_equal(&call->out[MX_LOSS_DH + i]->shape, &call->in[i]->shape);
}

mx_cross_entropy mx_cross_entropy_arguments(const mx_cross_entropy_attr *attr, mx_tensor *const in[])
{
    const mx_tensor *h = in[MX_LOSS_H], *weight = in[MX_LOSS_WEIGHT], *mask = in[MX_LOSS_MASK];
    return (mx_cross_entropy){.tokens = mx_row_count(h),
                              .width = mx_row_width(h),
                              .vocab = weight->shape.size[attr->trans ? 0 : 1],
                              .h = mx_data(h),
                              .h_dtype = h->dtype,
                              .weight = mx_data(weight),
                              .weight_dtype = weight->dtype,
                              .trans = attr->trans,
                              .targets = mx_data(in[MX_LOSS_TARGETS]),
                              .mask = mask ? mx_data(mask) : NULL,
                              .z_loss = (float)attr->z_loss,
                              .softcap = (float)attr->softcap,
                              .logit_scale = (float)attr->logit_scale,
                              .normalizer = attr->normalizer};
}

mx_status mx_cross_entropy_check_targets(const mx_call *call, const mx_cross_entropy *c, const mx_tensor *targets,
                                         int64_t vocab)
{
    int64_t bad = mx_cross_entropy_find_bad(c, vocab);
    char place[128];
    if (bad < 0 || !c->targets)
        return MX_OK;
    return mx_bad_value(call, "target %d at %s is outside the vocabulary of %lld (ids count from 0)", c->targets[bad],
                        mx_place_text(place, &targets->shape, bad), (long long)vocab);
}

/* One product for the logits, one for each gradient. Softmax and its gradient: about ten more for each logit. */
static mx_cost cost_cross_entropy(const mx_call *call)
{
    const mx_cross_entropy_attr *attr = mx_call_attr(call);
    double vocab = (double)call->in[MX_LOSS_WEIGHT]->shape.size[attr->trans ? 0 : 1];
    double products = 1;
    for (int i = MX_LOSS_H; i <= MX_LOSS_WEIGHT; i++)
        products += mx_cross_entropy_makes(call, i) ? 1 : 0;
    mx_cost cost = mx_cost_of(call, 2 * products * (double)mx_count(call->in[MX_LOSS_H]) * vocab);
    cost.work = MX_WORK_PRODUCT;
    return cost;
}

static mx_status host_cross_entropy(mx_call *call)
{
    mx_cross_entropy c = mx_cross_entropy_arguments(mx_call_attr(call), call->in);
    c.loss = mx_f32(call->out[MX_LOSS_MEAN]);
    c.dh = mx_cross_entropy_makes(call, MX_LOSS_H) ? mx_data(call->out[MX_LOSS_DH]) : NULL;
    c.dweight = mx_cross_entropy_makes(call, MX_LOSS_WEIGHT) ? mx_f32(call->out[MX_LOSS_DWEIGHT]) : NULL;
    MX_TRY(mx_cross_entropy_check_targets(call, &c, call->in[MX_LOSS_TARGETS], c.vocab));
    return mx_cross_entropy_run(&c);
}

/* The gradient of input i, computed in the forward pass, times the gradient of the loss. Nothing else uses the hidden
 * output, so it is scaled in place and its storage moves to the returned tensor, unless the tape is retained. */
static mx_status hand_on(mx_vjp *v, int i)
{
    mx_tensor *made = v->call->out[MX_LOSS_DH + i], *dloss = v->out_grad[MX_LOSS_MEAN], *grad = NULL;
    if (!v->want[i])
        return MX_OK;
    if (!mx_cross_entropy_makes(v->call, i))
        return mx_fail(MX_ERR_STATE, "%s: the gradient of input %d was not asked for in the forward pass",
                       v->call->op->name, i + 1);
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

mx_status mx_cross_entropy_vjp(mx_vjp *v)
{
    MX_TRY(hand_on(v, MX_LOSS_H));
    return hand_on(v, MX_LOSS_WEIGHT);
}

static const mx_attr attrs[] = {MX_CROSS_ENTROPY_ATTRS, {0}};

const mx_op mx_op_cross_entropy = {
    .name = "cross_entropy",
    .doc =
        "mean of -log softmax(h weight^T)[target] without holding all logits: h (..., E), weight (V, E), targets i32 "
        "(...), mask u8 (...) (0: does not count) -> f32 scalar",
    .inputs = MX_LOSS_INPUTS,
    .n_out = MX_LOSS_OUTPUTS,
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(mx_cross_entropy_attr),
    .reads_out = 1 << MX_LOSS_DH | 1 << MX_LOSS_DWEIGHT,
    .infer = mx_cross_entropy_infer,
    .cost = cost_cross_entropy,
    .host = host_cross_entropy,
    .vjp = mx_cross_entropy_vjp,
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
