/* Cross-entropy of logits and classes. cross_entropy in loss.c computes the logits itself, a few rows at a time. */
#include "kernels/class_loss.h"

#include "core/pool.h"
#include "ops/loss_reduction.h"
#include "ops/reduction.h"
#include "ops/terms.h"

#include <math.h>

enum { LOGITS, TARGETS, WEIGHT };            /* inputs of the loss */
enum { LSE = 2, TOTAL, DLOSS, GRAD_WEIGHT }; /* inputs of its gradient after logits and targets */

typedef struct class_loss_attr {
    int64_t ignore_index;
    double label_smoothing;
    int reduction; /* an mx_loss_reduction */
} class_loss_attr;

static mx_status check_inputs(const mx_call *call, int weight_at)
{
    const class_loss_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[LOGITS], *weight = call->in[weight_at];
    if (!mx_dtype_is_real(x->dtype) || x->shape.n_dims < 1)
        return mx_bad_shape(call, "logits must be floats (..., classes)");
    mx_shape rows = mx_shape_of_rows(x);
    MX_TRY(mx_want_dtype(call, TARGETS, MX_I32));
    if (!mx_shape_equal(&call->in[TARGETS]->shape, &rows))
        return mx_bad_shape(call, "'targets' must be %s, as the last dimension of logits is that of the classes",
                            mx_shape_text(&rows));
    if (weight) {
        mx_shape classes = mx_vector(mx_row_width(x));
        MX_TRY(mx_want_dtype(call, weight_at, MX_F32));
        MX_TRY(mx_want_shape(call, weight_at, &classes));
        if (weight->requires_grad)
            return mx_bad_value(call, "there is no gradient of the class weights; use weight:detach()");
    }
    if (!(attr->label_smoothing >= 0 && attr->label_smoothing <= 1))
        return mx_bad_value(call, "label_smoothing = %g must be in [0, 1]", attr->label_smoothing);
    return MX_OK;
}

static mx_class_loss loss_of(const mx_call *call, int weight_at)
{
    const class_loss_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[LOGITS], *weight = call->in[weight_at];
    return (mx_class_loss){.rows = mx_row_count(x),
                           .classes = mx_row_width(x),
                           .dtype = x->dtype,
                           .x = mx_data(x),
                           .targets = mx_data(call->in[TARGETS]),
                           .weight = weight ? mx_data(weight) : NULL,
                           .ignore = attr->ignore_index,
                           .smoothing = attr->label_smoothing};
}

/* ---- the loss ---- */

static mx_status infer_class_loss(mx_call *call)
{
    MX_TRY(check_inputs(call, WEIGHT));
    const mx_tensor *x = call->in[LOGITS];
    mx_dtype sums = mx_dtype_accumulates_in(x->dtype);
    mx_shape rows = mx_shape_of_rows(x), one = {0};
    bool none = ((const class_loss_attr *)mx_call_attr(call))->reduction == MX_REDUCE_NONE;
    MX_TRY(mx_out(call, 0, sums, none ? &rows : &one));
    MX_TRY(mx_out(call, 1, sums, &rows));
    return mx_out(call, 2, MX_F64, &one);
}

static mx_cost cost_class_loss(const mx_call *call) { return mx_cost_of(call, 14.0 * (double)mx_count(call->in[0])); }

static mx_status check_targets(const mx_call *call, const mx_class_loss *c)
{
    char place[128];
    int64_t bad = mx_class_loss_find_bad(c);
    if (bad < 0 || !c->targets)
        return MX_OK;
    return mx_bad_value(call, "target %d at %s is outside 0 .. %lld and not ignore_index = %lld", c->targets[bad],
                        mx_place_text(place, &call->in[TARGETS]->shape, bad), (long long)c->classes - 1,
                        (long long)c->ignore);
}

static double sum_of(const void *values, mx_dtype dtype, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += dtype == MX_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
    return sum;
}

/* The mean is over the weights of the targets; 0 when all rows are ignored. */
static mx_status host_class_loss(mx_call *call)
{
    mx_class_loss c = loss_of(call, WEIGHT);
    mx_array y = mx_array_of(call->out[0]);
    int reduction = ((const class_loss_attr *)mx_call_attr(call))->reduction;
    int64_t bytes = c.rows * (int64_t)mx_dtype_bytes(y.dtype);
    MX_TRY(check_targets(call, &c));
    double total = mx_class_loss_total(&c);
    mx_fill(mx_array_of(call->out[2]), total, 1);
    c.lse = mx_data(call->out[1]);
    c.loss = y.data;
    if (reduction != MX_REDUCE_NONE)
        MX_TRY(mx_pool_alloc(bytes, &c.loss));
    mx_class_loss_forward(&c);
    if (reduction == MX_REDUCE_NONE)
        return MX_OK;
    double sum = sum_of(c.loss, y.dtype, c.rows);
    mx_pool_free(c.loss, bytes);
    mx_fill(y, reduction == MX_REDUCE_SUM ? sum : total > 0 ? sum / total : 0, 1);
    return MX_OK;
}

/* The weights of the classes as a row of x's dtype; ones if there are none. */
static mx_tensor *weights_of(mx_terms *s, const mx_call *call, const mx_tensor *x)
{
    mx_tensor *weight = call->in[WEIGHT], *ones = NULL;
    mx_shape classes = mx_vector(mx_row_width(call->in[LOGITS]));
    if (s->status != MX_OK)
        return NULL;
    return weight ? mx_term_cast(s, weight, x->dtype)
                  : mx_term_keep(s, mx_apply_full(&classes, x->dtype, 1, &ones), &ones);
}

/* (1 - smoothing) w_t (lse - x_t) + smoothing / classes sum_c w_c (lse - x_c), times 1 where the row counts; and the
 * weight of each row. */
static mx_tensor *row_losses(mx_terms *s, const mx_call *call, mx_tensor **weight)
{
    const class_loss_attr *attr = mx_call_attr(call);
    mx_tensor *x = mx_term_wide(s, call->in[LOGITS]), *targets = call->in[TARGETS], *picked = NULL, *own = NULL;
    int last = call->in[LOGITS]->shape.n_dims - 1;
    mx_shape column = call->in[LOGITS]->shape;
    column.size[last] = 1;
    mx_tensor *below = mx_term_sub(s, mx_term_reduce(s, &mx_op_logsumexp, x, 1u << last), x);
    mx_tensor *weights = weights_of(s, call, x);
    mx_tensor *counts = mx_term_compare(s, &mx_op_ne, targets, (double)attr->ignore_index);
    mx_tensor *ids = mx_term_where(s, counts, targets, mx_term_number(s, MX_I32, 0));
    ids = ids ? mx_term_reshape(s, ids, &column) : NULL;
    if (!ids || !mx_term_keep(s, mx_apply_gather(below, ids, last, &picked), &picked) ||
        !mx_term_keep(s, mx_apply_index_select(weights, ids, 0, &own), &own))
        return NULL;
    *weight = mx_term_mul(s, mx_term_reshape(s, mx_term_cast(s, counts, x->dtype), &column), own);
    mx_tensor *loss = mx_term_affine(s, mx_term_mul(s, *weight, picked), 1 - attr->label_smoothing, 0);
    if (attr->label_smoothing == 0)
        return loss;
    mx_tensor *all = mx_term_reduce(s, &mx_op_sum, mx_term_mul(s, weights, below), 1u << last);
    all = mx_term_mul(s, mx_term_reshape(s, mx_term_cast(s, counts, x->dtype), &column), all);
    double share = attr->label_smoothing / (double)mx_row_width(call->in[LOGITS]);
    return mx_term_add(s, loss, mx_term_affine(s, all, share, 0));
}

static mx_tensor *plain_class_loss(mx_terms *s, const mx_call *call)
{
    const mx_reduce_attr over_all = {.keepdim = false};
    mx_tensor *weight = NULL, *loss = row_losses(s, call, &weight);
    mx_shape rows = mx_shape_of_rows(call->in[LOGITS]);
    int reduction = ((const class_loss_attr *)mx_call_attr(call))->reduction;
    if (!loss || reduction == MX_REDUCE_NONE)
        return loss ? mx_term_reshape(s, loss, &rows) : NULL;
    mx_tensor *sum = mx_term(s, &mx_op_sum, MX_ATTRS(over_all), loss, NULL, NULL);
    if (!sum || reduction == MX_REDUCE_SUM)
        return sum;
    mx_tensor *total = mx_term(s, &mx_op_sum, MX_ATTRS(over_all), weight, NULL, NULL);
    return mx_term_div(s, sum, mx_term_add(s, total, mx_term_indicator(s, &mx_op_eq, total, 0)));
}

static mx_status vjp_class_loss(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dx = NULL, *in[] = {call->in[LOGITS], call->in[TARGETS], call->out[1],
                                   call->out[2],     v->out_grad[0],    call->in[WEIGHT]};
    MX_TRY(mx_apply(&mx_op_softmax_cross_entropy_grad, in, 6, mx_call_attrs(call), &dx));
    return mx_give_grad(v, LOGITS, dx);
}

static const mx_attr attrs[] = {
    {"ignore_index", MX_ATTR_INT, offsetof(class_loss_attr, ignore_index), -100, NULL,
     "rows with this target do not count"},
    {"label_smoothing", MX_ATTR_FLOAT, offsetof(class_loss_attr, label_smoothing), 0, NULL,
     "the part of the target that all classes share"},
    {"reduction", MX_ATTR_ENUM, offsetof(class_loss_attr, reduction), MX_REDUCE_MEAN, mx_reductions,
     "mean over the rows that count, by the weights of their targets; sum; or none: a loss for each row"},
    {0}};

const mx_op mx_op_softmax_cross_entropy = {
    .name = "softmax_cross_entropy",
    .doc = "cross-entropy of logits (..., classes) and targets (...) i32, from 0, with class weights f32 (classes); 0 "
           "if no row counts; cross_entropy takes what is before the last product",
    .inputs = (const char *const[]){"logits", "targets", "weight?", NULL},
    .n_out = 3, /* the loss; lse (...); the weights of the targets, added up */
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(class_loss_attr),
    .reads_in = 7,
    .reads_out = 6,
    .infer = infer_class_loss,
    .cost = cost_class_loss,
    .host = host_class_loss,
    .vjp = vjp_class_loss,
    .plain = plain_class_loss,
};

/* ---- its gradient ---- */

static mx_status infer_class_loss_grad(mx_call *call)
{
    MX_TRY(check_inputs(call, GRAD_WEIGHT));
    const mx_tensor *x = call->in[LOGITS];
    mx_shape rows = mx_shape_of_rows(x), one = {0};
    bool none = ((const class_loss_attr *)mx_call_attr(call))->reduction == MX_REDUCE_NONE;
    MX_TRY(mx_want_dtype(call, LSE, mx_dtype_accumulates_in(x->dtype)));
    MX_TRY(mx_want_shape(call, LSE, &rows));
    MX_TRY(mx_want_dtype(call, TOTAL, MX_F64));
    MX_TRY(mx_want_shape(call, TOTAL, &one));
    MX_TRY(mx_want_dtype(call, DLOSS, mx_dtype_accumulates_in(x->dtype)));
    MX_TRY(mx_want_shape(call, DLOSS, none ? &rows : &one));
    return mx_out(call, 0, x->dtype, &x->shape);
}

static mx_cost cost_class_loss_grad(const mx_call *call)
{
    return mx_cost_of(call, 14.0 * (double)mx_count(call->in[0]));
}

static mx_status host_class_loss_grad(mx_call *call)
{
    mx_class_loss c = loss_of(call, GRAD_WEIGHT);
    int reduction = ((const class_loss_attr *)mx_call_attr(call))->reduction;
    double total = *(const double *)mx_data(call->in[TOTAL]);
    MX_TRY(check_targets(call, &c));
    c.lse = mx_data(call->in[LSE]);
    c.dloss = mx_data(call->in[DLOSS]);
    c.dloss_step = reduction == MX_REDUCE_NONE;
    c.scale = reduction != MX_REDUCE_MEAN ? 1 : total > 0 ? 1 / total : 0;
    c.dx = mx_data(call->out[0]);
    mx_class_loss_backward(&c);
    return MX_OK;
}

const mx_op mx_op_softmax_cross_entropy_grad = {
    .name = "softmax_cross_entropy_grad",
    .doc = "gradient of softmax_cross_entropy by the logits, from its inputs and hidden outputs",
    .inputs = (const char *const[]){"logits", "targets", "lse", "total", "dloss", "weight?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = attrs,
    .attr_bytes = sizeof(class_loss_attr),
    .infer = infer_class_loss_grad,
    .cost = cost_class_loss_grad,
    .host = host_class_loss_grad,
};
