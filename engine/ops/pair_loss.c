/* Losses of a prediction and a target of one shape, element by element, with their mean or sum in the same pass. */
#include "ops/loss_reduction.h"
#include "ops/reduction.h"
#include "ops/terms.h"

#include <math.h>

/* The attributes of all of them. */
typedef struct pair_loss_attr {
    int reduction; /* an mx_loss_reduction */
    double delta;
    bool log_target;
} pair_loss_attr;

const char *const mx_reductions[] = {"mean", "sum", "none", NULL};

/* kl_div has one more. */
enum { BATCHMEAN = MX_REDUCE_NONE + 1 };
static const char *const divergence_reductions[] = {"mean", "sum", "none", "batchmean", NULL};

/* What divides the sum over all elements. */
static double divisor_of(const mx_call *call)
{
    const pair_loss_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    if (attr->reduction == BATCHMEAN)
        return (double)x->shape.size[0];
    return attr->reduction == MX_REDUCE_MEAN ? (double)mx_count(x) : 1;
}

static mx_pair function_of(const mx_call *call)
{
    const pair_loss_attr *attr = mx_call_attr(call);
    if (call->op == &mx_op_kl_div)
        return (mx_pair){.op = attr->log_target ? MX_DIVERGENCE_LOG : MX_DIVERGENCE};
    return (mx_pair){.op = call->op == &mx_op_mse_loss     ? MX_SQUARED
                           : call->op == &mx_op_l1_loss    ? MX_ABSOLUTE
                           : call->op == &mx_op_huber_loss ? MX_HUBER
                                                           : MX_BCE,
                     .p = attr->delta};
}

static mx_status infer_pair_loss(mx_call *call)
{
    const pair_loss_attr *attr = mx_call_attr(call);
    mx_dtype dtype = call->in[0]->dtype, target = call->in[1]->dtype;
    if (!mx_dtype_is_real(dtype))
        return mx_bad_dtype(call, "'x' must be a float");
    if (!mx_dtype_is_integer(target) && (!mx_dtype_is_real(target) || !mx_dtype_mixes(dtype, target)))
        return mx_bad_dtype(call, "'target' must be an integer, or a float that mixes with x; use t:to(dtype)");
    MX_TRY(mx_want_shape(call, 1, &call->in[0]->shape));
    if (attr->reduction == BATCHMEAN && call->in[0]->shape.n_dims == 0)
        return mx_bad_shape(call, "batchmean divides by the first dimension, and 'x' has none");
    if (call->op == &mx_op_huber_loss && (!(attr->delta > 0) || isinf(attr->delta)))
        return mx_bad_value(call, "delta = %g must be positive", attr->delta);
    if (attr->reduction == MX_REDUCE_NONE)
        return mx_out(call, 0, dtype, &call->in[0]->shape);
    return mx_out(call, 0, mx_dtype_accumulates_in(dtype), &(mx_shape){0});
}

static mx_cost cost_pair_loss(const mx_call *call) { return mx_cost_of(call, 4.0 * (double)mx_count(call->in[0])); }

static mx_status host_pair_loss(mx_call *call)
{
    const pair_loss_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0], *target = call->in[1], *y = call->out[0];
    int64_t n = mx_count(x);
    double sum;
    if (attr->reduction == MX_REDUCE_NONE) {
        mx_broadcast plan = {.n_dims = 1, .count = n, .size = {n}, .stride = {{1}, {1}}};
        mx_binary_forward(function_of(call), &plan, mx_array_of(x), mx_array_of(target), mx_array_of(y));
        return MX_OK;
    }
    MX_TRY(mx_binary_sum(function_of(call), mx_array_of(x), mx_array_of(target), n, &sum));
    mx_fill(mx_array_of(y), sum / divisor_of(call), 1);
    return MX_OK;
}

/* dy times the slope; dy is one value unless nothing was reduced. */
static mx_status vjp_pair_loss(mx_vjp *v)
{
    const mx_call *call = v->call;
    double divisor = divisor_of(call);
    mx_tensor *dy = mx_retain(v->out_grad[0]);
    if (divisor != 1) {
        mx_release(dy);
        MX_TRY(mx_apply_affine(v->out_grad[0], 1 / divisor, 0, &dy));
    }
    mx_status status = MX_OK;
    for (int i = 0; i < 2 && status == MX_OK; i++) {
        mx_tensor *part = NULL;
        if (!v->want[i])
            continue;
        status =
            mx_apply_binary_grad(function_of(call), i == 1, call->in[0], call->in[1], dy, mx_vjp_dtype(v, i), &part);
        if (status == MX_OK)
            status = mx_give_grad(v, i, part);
    }
    mx_release(dy);
    return status;
}

/* d^2 / 2 up to delta, delta (d - delta / 2) beyond. */
static mx_tensor *huber(mx_terms *s, mx_tensor *d, double delta)
{
    mx_tensor *size = mx_term_one(s, &mx_op_abs, d), *is_far = mx_term_compare(s, &mx_op_gt, size, delta);
    mx_tensor *near = mx_term_affine(s, mx_term_one(s, &mx_op_square, d), 0.5, 0);
    return mx_term_where(s, is_far, mx_term_affine(s, size, delta, -0.5 * delta * delta), near);
}

/* target (ln target - x), or of logarithms e^target (target - x); 0 where the target is 0. */
static mx_tensor *divergence(mx_terms *s, mx_tensor *x, mx_tensor *target, bool log_target)
{
    if (log_target)
        return mx_term_mul(s, mx_term_one(s, &mx_op_exp, target), mx_term_sub(s, target, x));
    mx_tensor *is_zero = mx_term_indicator(s, &mx_op_eq, target, 0);
    mx_tensor *log = mx_term_one(s, &mx_op_log, mx_term_add(s, target, is_zero));
    return mx_term_mul(s, target, mx_term_sub(s, log, x));
}

static mx_tensor *plain_pair_loss(mx_terms *s, const mx_call *call)
{
    const pair_loss_attr *attr = mx_call_attr(call);
    const mx_reduce_attr over_all = {.keepdim = false};
    const double softplus[] = {1, 0}; /* beta */
    mx_tensor *x = mx_term_wide(s, call->in[0]), *target = x ? mx_term_cast(s, call->in[1], x->dtype) : NULL, *y;
    mx_tensor *d = mx_term_sub(s, x, target);
    if (call->op == &mx_op_kl_div)
        y = divergence(s, x, target, attr->log_target);
    else if (call->op == &mx_op_huber_loss)
        y = huber(s, d, attr->delta);
    else if (call->op == &mx_op_bce_with_logits)
        y = mx_term_sub(s, mx_term(s, &mx_op_softplus, MX_ATTRS(softplus), x, NULL, NULL), mx_term_mul(s, x, target));
    else
        y = mx_term_one(s, call->op == &mx_op_mse_loss ? &mx_op_square : &mx_op_abs, d);
    if (attr->reduction == MX_REDUCE_NONE)
        return mx_term_cast(s, y, call->in[0]->dtype);
    y = mx_term(s, &mx_op_sum, MX_ATTRS(over_all), y, NULL, NULL);
    return mx_term_affine(s, y, 1 / divisor_of(call), 0);
}

#define REDUCTION                                                                                                      \
    {                                                                                                                  \
        "reduction", MX_ATTR_ENUM, offsetof(pair_loss_attr, reduction), MX_REDUCE_MEAN, mx_reductions,                 \
            "mean or sum over all elements, or none: a loss for each"                                                  \
    }

#define PAIR_LOSS(NAME, DOC, ...)                                                                                      \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = (const char *const[]){"x", "target", NULL},                                  \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .attrs = (const mx_attr[]){__VA_ARGS__, {0}},                                          \
                                .attr_bytes = sizeof(pair_loss_attr),                                                  \
                                .reads_in = 3,                                                                         \
                                .infer = infer_pair_loss,                                                              \
                                .cost = cost_pair_loss,                                                                \
                                .host = host_pair_loss,                                                                \
                                .vjp = vjp_pair_loss,                                                                  \
                                .plain = plain_pair_loss}

PAIR_LOSS(mse_loss, "(x - target)^2; x and target have one shape", REDUCTION);
PAIR_LOSS(l1_loss, "|x - target|; x and target have one shape", REDUCTION);
PAIR_LOSS(huber_loss, "d^2 / 2 for d = |x - target| up to delta, delta (d - delta / 2) beyond", REDUCTION,
          {"delta", MX_ATTR_FLOAT, offsetof(pair_loss_attr, delta), 1, NULL, "where the loss becomes linear"});
PAIR_LOSS(bce_with_logits,
          "binary cross-entropy of the probability sigmoid(x) and a target in [0, 1]: "
          "ln(1 + e^x) - x target",
          REDUCTION);
PAIR_LOSS(kl_div,
          "Kullback-Leibler divergence of log-probabilities x from the probabilities target: "
          "target (ln target - x)",
          {"reduction", MX_ATTR_ENUM, offsetof(pair_loss_attr, reduction), MX_REDUCE_MEAN, divergence_reductions,
           "mean or sum over all elements; batchmean: the sum divided by the first size; none: a loss for each"},
          {"log_target", MX_ATTR_BOOL, offsetof(pair_loss_attr, log_target), 0, NULL,
           "target holds log-probabilities"});
