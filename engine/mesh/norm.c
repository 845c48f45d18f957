/* RMSNorm and LayerNorm of rows that are split over an axis: each rank has a part of every row's features, and of
 * weight and bias. Forward, the ranks add up f32 sums of each row: of squares (RMSNorm); of values, then of squared
 * distances from the mean (LayerNorm). Backward, they add up the sums that the gradient of a row needs. Otherwise each
 * rank computes its own part alone. */
#include "core/scope.h"
#include "mesh/collective_op.h"
#include "ops/split_norm.h"
#include "tape/tape.h"

typedef struct norm_attr {
    mx_axes axis;
    int64_t features;
    bool center;
    double eps;
} norm_attr;

enum { X, WEIGHT, BIAS };
enum { Y, RSTD, MEAN, OUTPUTS };
enum { DX, DWEIGHT, DBIAS, GRADIENTS };

static mx_tensor *bias_of(const mx_call *call) { return call->in[BIAS]; }

static double features_of(const mx_call *call)
{
    const norm_attr *attr = mx_call_attr(call);
    if (attr->features > 0)
        return (double)attr->features;
    return (double)mx_row_width(call->in[X]) * mx_mesh_size(attr->axis);
}

static mx_status infer(mx_call *call)
{
    const norm_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_rows(call, X));
    if (bias_of(call) && !attr->center)
        return mx_bad_value(call, "a bias needs center = true: RMSNorm has none");
    if (!(attr->eps >= 0))
        return mx_bad_value(call, "eps = %g must not be negative", attr->eps);
    mx_shape vector = mx_vector(mx_row_width(call->in[X])), rows = mx_shape_of_rows(call->in[X]), none = mx_vector(0);
    for (int i = WEIGHT; i < call->n_in && call->in[i]; i++) {
        MX_TRY(mx_want_float(call, i));
        MX_TRY(mx_want_shape(call, i, &vector));
    }
    MX_TRY(mx_out(call, Y, call->in[X]->dtype, &call->in[X]->shape));
    MX_TRY(mx_out(call, RSTD, MX_F32, &rows));
    return mx_out(call, MEAN, MX_F32, attr->center ? &rows : &none);
}

/* Zero: the operations inside are counted separately. */
static mx_cost cost(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

static mx_status sum_over_ranks(const mx_call *call, mx_tensor *t)
{
    const mx_collective_attr a = {.axis = ((const norm_attr *)mx_call_attr(call))->axis};
    return mx_apply(&mx_op_all_reduce_, &t, 1, MX_ATTRS(a), NULL);
}

/* The sums of whole rows, times `scale`, plus `shift`: of x, or with `squares` of the squares of x - mean. */
static mx_status sums_of_rows(const mx_call *call, mx_tensor *mean, bool squares, double shift, mx_tensor **out)
{
    const mx_norm_sums_attr a = {squares};
    mx_tensor *in[] = {call->in[X], mean}, *sums = NULL;
    MX_TRY(mx_apply(&mx_op_norm_sums, in, mean ? 2 : 1, MX_ATTRS(a), &sums));
    mx_status status = sum_over_ranks(call, sums);
    if (status == MX_OK)
        status = mx_apply_affine(sums, 1 / features_of(call), shift, out);
    mx_release(sums);
    return status;
}

static mx_status statistics(const mx_call *call, mx_tensor **mean, mx_tensor **rstd)
{
    const norm_attr *attr = mx_call_attr(call);
    mx_tensor *variance = NULL;
    if (attr->center)
        MX_TRY(sums_of_rows(call, NULL, false, 0, mean));
    MX_TRY(sums_of_rows(call, *mean, true, attr->eps, &variance));
    mx_status status = mx_apply(&mx_op_rsqrt, &variance, 1, MX_NO_ATTRS, rstd);
    mx_release(variance);
    return status;
}

static mx_status host(mx_call *call)
{
    mx_tensor *mean = NULL, *rstd = NULL, *y = NULL;
    bool recording = mx_tape_set_recording(false);
    mx_scope *scope = mx_scope_swap(NULL); /* the script's scope must not hold intermediate tensors */
    mx_status status = statistics(call, &mean, &rstd);
    if (status == MX_OK) {
        mx_tensor *in[] = {call->in[X], rstd, call->in[WEIGHT], bias_of(call), mean};
        status = mx_apply(&mx_op_norm_part, in, 5, MX_NO_ATTRS, &y);
    }
    if (status == MX_OK) {
        mx_tensor_alias(call->out[Y], y, 0);
        mx_tensor_alias(call->out[RSTD], rstd, 0);
        if (mean)
            mx_tensor_alias(call->out[MEAN], mean, 0);
        else
            status = mx_tensor_allocate(call->out[MEAN]);
    }
    mx_release(y);
    mx_release(rstd);
    mx_release(mean);
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    return status;
}

static mx_status gradients(const mx_call *call, mx_tensor *dy, mx_tensor *out[GRADIENTS])
{
    const norm_attr *attr = mx_call_attr(call);
    const mx_norm_grad_attr a = {(int64_t)features_of(call)};
    mx_tensor *mean = attr->center ? call->out[MEAN] : NULL, *sums = NULL;
    MX_TRY(mx_apply(&mx_op_norm_grad_sums, (mx_tensor *[]){call->in[X], dy, call->in[WEIGHT], mean}, 4, MX_NO_ATTRS,
                    &sums));
    mx_status status = sum_over_ranks(call, sums);
    if (status == MX_OK) {
        mx_tensor *in[] = {call->in[X], dy, call->in[WEIGHT], call->out[RSTD], sums, mean};
        status = mx_apply(&mx_op_norm_grad_part, in, 6, MX_ATTRS(a), out);
    }
    mx_release(sums);
    return status;
}

static mx_status vjp(mx_vjp *v)
{
    if (!v->out_grad[Y])
        return MX_OK;
    mx_tensor *dy = NULL, *out[GRADIENTS] = {NULL};
    MX_TRY(mx_out_grad(v, Y, &dy));
    mx_status status = gradients(v->call, dy, out);
    mx_release(dy);
    for (int i = 0; i < GRADIENTS; i++) {
        if (status == MX_OK && i < v->call->n_in && v->call->in[i])
            status = mx_give_grad(v, i, out[i]);
        else
            mx_release(out[i]);
    }
    return status;
}

static const mx_attr attrs[] = {
    {"axis", MX_ATTR_AXES, offsetof(norm_attr, axis), 0, NULL, "mesh axis or list of axes; default: all ranks"},
    {"features", MX_ATTR_INT, offsetof(norm_attr, features), 0, NULL,
     "length of the whole rows; default: all ranks have as much of it"},
    {"center", MX_ATTR_BOOL, offsetof(norm_attr, center), 0, NULL, "LayerNorm; otherwise RMSNorm"},
    {"eps", MX_ATTR_FLOAT, offsetof(norm_attr, eps), 1e-6, NULL, "added to the mean square or the variance"},
    {0},
};

const mx_op mx_op_split_norm = {
    .name = "split_norm",
    .doc = "rmsnorm, or with center = true layernorm, of rows that are split over an axis: x (..., n), weight and bias "
           "(n) of this rank. Collective, also backward",
    .inputs = (const char *const[]){"x", "weight", "bias?", NULL},
    .n_out = OUTPUTS,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE | MX_OP_COMPOSITE | MX_OP_OWN_STORAGE,
    .attrs = attrs,
    .attr_bytes = sizeof(norm_attr),
    .reads_in = 1u << X | 1u << WEIGHT,
    .reads_out = 1u << RSTD | 1u << MEAN,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
};
