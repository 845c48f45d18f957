/* Unembedding and cross-entropy in one operation.
 *
 * If a gradient will be needed, the forward pass computes it too, as hidden outputs: the logits of a chunk of tokens
 * exist only then, and computing them again would cost a third more. The backward pass hands these tensors on. */
#include "ops/loss.h"

#include "kernels/shape.h"
#include "ops/reduction.h"
#include "ops/terms.h"

#include <math.h>

static const mx_tensor *mask_of(const mx_call *call) { return call->in[MX_LOSS_MASK]; }

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
    if (h->dtype == MX_F64 && weight->dtype == MX_F64 && !(call->op->flags & MX_OP_PLAIN_F64))
        return mx_want_float(call, MX_LOSS_H);
    if (h->dtype != MX_F64 || weight->dtype != MX_F64) {
        MX_TRY(mx_want_float(call, MX_LOSS_H));
        MX_TRY(mx_want_float(call, MX_LOSS_WEIGHT));
    }
    if (h->shape.n_dims < 1)
        return mx_bad_shape(call, "'h' must have at least one dimension");
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

/* sum over the tokens that count of lse - z_t + z_loss lse^2, divided by the normalizer or their number. */
static mx_tensor *token_losses(mx_terms *s, const mx_call *call, mx_tensor *z, mx_tensor *counts)
{
    const mx_cross_entropy_attr *attr = mx_call_attr(call);
    const mx_tensor *targets = call->in[MX_LOSS_TARGETS];
    mx_tensor *picked = NULL, *zero = mx_term_number(s, MX_I32, 0);
    mx_shape column = {2, {mx_count(targets), 1}};
    mx_tensor *ids = mx_term_reshape(s, call->in[MX_LOSS_TARGETS], &column);
    ids = mx_term_where(s, counts, ids, zero);
    if (!ids || !mx_term_keep(s, mx_apply_gather(z, ids, 1, &picked), &picked))
        return NULL;
    mx_tensor *lse = mx_term_reduce(s, &mx_op_logsumexp, z, 2), *loss = mx_term_sub(s, lse, picked);
    mx_tensor *more = mx_term_affine(s, mx_term_one(s, &mx_op_square, lse), attr->z_loss, 0);
    return mx_term_mul(s, mx_term_add(s, loss, more), mx_term_cast(s, counts, z->dtype));
}

/* With all logits: in f64, and for gradients of gradients in f32. */
static mx_tensor *plain_cross_entropy(mx_terms *s, const mx_call *call)
{
    const mx_cross_entropy_attr *attr = mx_call_attr(call);
    const mx_reduce_attr over_all = {.keepdim = false};
    mx_tensor *h = call->in[MX_LOSS_H], *z = NULL, *ones = NULL;
    mx_shape rows = {2, {mx_row_count(h), mx_row_width(h)}}, column = {2, {mx_row_count(h), 1}};
    mx_tensor *counts = mask_of(call) ? mx_term_reshape(s, call->in[MX_LOSS_MASK], &column)
                                      : mx_term_keep(s, mx_apply_full(&column, MX_U8, 1, &ones), &ones);
    mx_tensor *weight = mx_term_wide(s, call->in[MX_LOSS_WEIGHT]);
    h = mx_term_wide(s, mx_term_reshape(s, h, &rows));
    if (!h || !mx_term_keep(s, mx_apply_matmul(h, weight, false, attr->trans, &z), &z))
        return NULL;
    z = mx_term_affine(s, z, attr->logit_scale / (attr->softcap > 0 ? attr->softcap : 1), 0);
    if (attr->softcap > 0)
        z = mx_term_affine(s, mx_term_one(s, &mx_op_tanh, z), attr->softcap, 0);
    counts = mx_term_compare(s, &mx_op_ne, counts, 0);
    mx_tensor *losses = token_losses(s, call, z, counts);
    mx_tensor *sum = losses ? mx_term(s, &mx_op_sum, MX_ATTRS(over_all), losses, NULL, NULL) : NULL;
    if (!sum || attr->normalizer > 0)
        return sum ? mx_term_affine(s, sum, 1 / attr->normalizer, 0) : NULL;
    mx_tensor *n = mx_term(s, &mx_op_sum, MX_ATTRS(over_all), mx_term_cast(s, counts, z->dtype), NULL, NULL);
    return mx_term_div(s, sum, mx_term_add(s, n, mx_term_indicator(s, &mx_op_eq, n, 0)));
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
    if (v->sum[i] && v->sum[i]->dtype == made->dtype) { /* of earlier passes: one pass over both, not two over `made` */
        MX_TRY(mx_apply_add_to(v->sum[i], made, (double)factor));
        mx_tensor_drop(made);
        return MX_OK;
    }
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
        "(...), mask u8 (...) (0: does not count) -> f32 scalar; softmax_cross_entropy takes logits",
    .inputs = MX_LOSS_INPUTS,
    .n_out = MX_LOSS_OUTPUTS,
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = attrs,
    .attr_bytes = sizeof(mx_cross_entropy_attr),
    .reads_out = 1 << MX_LOSS_DH | 1 << MX_LOSS_DWEIGHT,
    .infer = mx_cross_entropy_infer,
    .cost = cost_cross_entropy,
    .host = host_cross_entropy,
    .vjp = mx_cross_entropy_vjp,
    .plain = plain_cross_entropy,
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
