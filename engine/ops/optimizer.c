/* Operations that change a tensor in place: parameter updates, fill and copy. */
#include "kernels/optimizer.h"

#include "ops/pointwise.h"

#include <math.h>

/* As mx_rounding: a negative key rounds to nearest; a width of 0 means that the parameter is not split. */
typedef struct rounding_attr {
    int64_t key, first, origin, width, stride;
} rounding_attr;

typedef struct adamw_attr {
    double lr, beta1, beta2, eps, eps_root, weight_decay, grad_scale;
    int64_t step;
    rounding_attr rounding;
} adamw_attr;

typedef struct sgd_attr {
    double lr, momentum, weight_decay, grad_scale;
    bool nesterov;
    rounding_attr rounding;
} sgd_attr;

typedef struct lion_attr {
    double lr, beta1, beta2, weight_decay, grad_scale;
    rounding_attr rounding;
} lion_attr;

typedef struct fill_attr {
    double value;
} fill_attr;

/* ---- rounding of a bf16 param or v ---- */

static const char key_doc[] =
    "a bf16 param or v is rounded up or down by chance under this key, so that the mean is exact; -1: to the nearest";
static const char first_doc[] = "where param begins in the part of a parameter that this rank stores";
static const char origin_doc[] = "where that part begins in the whole parameter";
static const char width_doc[] = "columns of that part; 0: it is not cut along columns";
static const char stride_doc[] = "columns of the whole parameter";

#define ROUND(type, name, standard)                                                                                    \
    {                                                                                                                  \
        "round_" #name, MX_ATTR_INT, offsetof(type, rounding.name), standard, NULL, name##_doc                         \
    }

static mx_status check_rounding(const mx_call *call, const rounding_attr *r)
{
    if (r->key >= 0 && (r->first < 0 || r->origin < 0 || r->width < 0 || r->stride < r->width))
        return mx_bad_value(call,
                            "round_first = %lld, round_origin = %lld, round_width = %lld and round_stride = %lld "
                            "are no part of a parameter",
                            (long long)r->first, (long long)r->origin, (long long)r->width, (long long)r->stride);
    return MX_OK;
}

static mx_rounding rounding_of(const rounding_attr *r)
{
    return (mx_rounding){.stochastic = r->key >= 0,
                         .key = (uint64_t)r->key,
                         .first = r->first,
                         .origin = r->origin,
                         .width = r->width,
                         .stride = r->width > 0 ? r->stride : 0};
}

/* ---- adamw ---- */

static mx_status infer_adamw(mx_call *call)
{
    const adamw_attr *attr = mx_call_attr(call);
    for (int i = 0; i < call->n_in && i < 5; i++) {
        MX_TRY(i < 4 ? mx_want_float(call, i) : mx_want_dtype(call, i, MX_BF16));
        MX_TRY(mx_want_shape(call, i, &call->in[0]->shape));
    }
    if (!(attr->beta1 >= 0 && attr->beta1 < 1 && attr->beta2 >= 0 && attr->beta2 < 1))
        return mx_bad_value(call, "beta1 = %g and beta2 = %g must be in [0, 1)", attr->beta1, attr->beta2);
    if (attr->step < 1)
        return mx_bad_value(call, "step = %lld must count from 1", (long long)attr->step);
    return check_rounding(call, &attr->rounding);
}

static mx_cost cost_adamw(const mx_call *call)
{
    mx_cost cost = mx_cost_of(call, 16.0 * (double)mx_count(call->in[0]));
    for (int i = 0; i < call->n_in; i++)
        if (i != 1 && call->in[i])
            cost.bytes_written += (double)mx_bytes(call->in[i]);
    if (call->in[4])
        cost.bytes_read -= (double)mx_bytes(call->in[4]);
    return cost;
}

static mx_status host_adamw(mx_call *call)
{
    const adamw_attr *attr = mx_call_attr(call);
    mx_tensor *copy = call->in[4];
    mx_adamw a = {.param = mx_array_of(call->in[0]),
                  .grad = mx_array_of(call->in[1]),
                  .m = mx_array_of(call->in[2]),
                  .v = mx_array_of(call->in[3]),
                  .copy = copy ? mx_data(copy) : NULL,
                  .rounding = rounding_of(&attr->rounding),
                  .lr = (float)attr->lr,
                  .beta1 = (float)attr->beta1,
                  .beta2 = (float)attr->beta2,
                  .eps = (float)attr->eps,
                  .eps_root = (float)attr->eps_root,
                  .weight_decay = (float)attr->weight_decay,
                  .grad_scale = (float)attr->grad_scale,
                  .correct1 = (float)(1.0 / (1.0 - pow(attr->beta1, (double)attr->step))),
                  .correct2 = (float)(1.0 / (1.0 - pow(attr->beta2, (double)attr->step)))};
    mx_adamw_run(&a, mx_count(call->in[0]));
    return MX_OK;
}

const mx_op mx_op_adamw = {
    .name = "adamw",
    .doc = "one AdamW step (as optax.adamw) on param, m and v in place; copy (bf16) receives the new param",
    .inputs = (const char *const[]){"param", "grad", "m", "v", "copy?", NULL},
    .flags = MX_OP_MUTATES,
    .changes_in = 1 | 4 | 8 | 16,
    .attrs =
        (const mx_attr[]){
            {"lr", MX_ATTR_FLOAT, offsetof(adamw_attr, lr), NAN, NULL, "learning rate"},
            {"beta1", MX_ATTR_FLOAT, offsetof(adamw_attr, beta1), 0.9, NULL, "decay rate of m"},
            {"beta2", MX_ATTR_FLOAT, offsetof(adamw_attr, beta2), 0.999, NULL, "decay rate of v"},
            {"eps", MX_ATTR_FLOAT, offsetof(adamw_attr, eps), 1e-8, NULL, "added to the square root"},
            {"eps_root", MX_ATTR_FLOAT, offsetof(adamw_attr, eps_root), 0, NULL, "added inside the square root"},
            {"weight_decay", MX_ATTR_FLOAT, offsetof(adamw_attr, weight_decay), 0, NULL,
             "weight decay: param is reduced by lr * this * param"},
            {"step", MX_ATTR_INT, offsetof(adamw_attr, step), NAN, NULL,
             "number of this step, from 1, for the bias correction"},
            {"grad_scale", MX_ATTR_FLOAT, offsetof(adamw_attr, grad_scale), 1, NULL,
             "factor of grad, applied first; for clipping"},
            ROUND(adamw_attr, key, -1),
            ROUND(adamw_attr, first, 0),
            ROUND(adamw_attr, origin, 0),
            ROUND(adamw_attr, width, 0),
            ROUND(adamw_attr, stride, 0),
            {0}},
    .attr_bytes = sizeof(adamw_attr),
    .infer = infer_adamw,
    .cost = cost_adamw,
    .host = host_adamw,
};

/* ---- sgd ---- */

static mx_status infer_sgd(mx_call *call)
{
    const sgd_attr *attr = mx_call_attr(call);
    for (int i = 0; i < call->n_in && i < 3; i++) {
        MX_TRY(i < 2 ? mx_want_float(call, i) : mx_want_dtype(call, i, MX_F32));
        MX_TRY(mx_want_shape(call, i, &call->in[0]->shape));
    }
    if (attr->momentum != 0 && !call->in[2])
        return mx_bad_value(call, "momentum = %g needs the tensor 'state' (f32, zeros at first)", attr->momentum);
    return check_rounding(call, &attr->rounding);
}

static mx_cost cost_sgd(const mx_call *call)
{
    mx_cost cost = mx_cost_of(call, 6.0 * (double)mx_count(call->in[0]));
    cost.bytes_written = (double)mx_bytes(call->in[0]);
    if (call->in[2])
        cost.bytes_written += (double)mx_bytes(call->in[2]);
    return cost;
}

static mx_status host_sgd(mx_call *call)
{
    const sgd_attr *attr = mx_call_attr(call);
    mx_tensor *state = call->in[2];
    mx_sgd s = {.param = mx_array_of(call->in[0]),
                .grad = mx_array_of(call->in[1]),
                .state = state ? mx_f32(state) : NULL,
                .rounding = rounding_of(&attr->rounding),
                .lr = (float)attr->lr,
                .momentum = (float)attr->momentum,
                .weight_decay = (float)attr->weight_decay,
                .grad_scale = (float)attr->grad_scale,
                .nesterov = attr->nesterov};
    mx_sgd_run(&s, mx_count(call->in[0]));
    return MX_OK;
}

const mx_op mx_op_sgd = {
    .name = "sgd",
    .doc = "one step of gradient descent on param in place; state (f32) is the momentum",
    .inputs = (const char *const[]){"param", "grad", "state?", NULL},
    .flags = MX_OP_MUTATES,
    .changes_in = 1 | 4,
    .attrs =
        (const mx_attr[]){
            {"lr", MX_ATTR_FLOAT, offsetof(sgd_attr, lr), NAN, NULL, "learning rate"},
            {"momentum", MX_ATTR_FLOAT, offsetof(sgd_attr, momentum), 0, NULL, "decay rate of the momentum"},
            {"nesterov", MX_ATTR_BOOL, offsetof(sgd_attr, nesterov), 0, NULL, "use Nesterov momentum"},
            {"weight_decay", MX_ATTR_FLOAT, offsetof(sgd_attr, weight_decay), 0, NULL,
             "weight decay: this * param is added to grad"},
            {"grad_scale", MX_ATTR_FLOAT, offsetof(sgd_attr, grad_scale), 1, NULL, "factor of grad, applied first"},
            ROUND(sgd_attr, key, -1),
            ROUND(sgd_attr, first, 0),
            ROUND(sgd_attr, origin, 0),
            ROUND(sgd_attr, width, 0),
            ROUND(sgd_attr, stride, 0),
            {0}},
    .attr_bytes = sizeof(sgd_attr),
    .infer = infer_sgd,
    .cost = cost_sgd,
    .host = host_sgd,
};

/* ---- lion ---- */

static mx_status infer_lion(mx_call *call)
{
    const lion_attr *attr = mx_call_attr(call);
    for (int i = 0; i < call->n_in && i < 3; i++) {
        MX_TRY(i < 2 ? mx_want_float(call, i) : mx_want_dtype(call, i, MX_F32));
        MX_TRY(mx_want_shape(call, i, &call->in[0]->shape));
    }
    if (!(attr->beta1 >= 0 && attr->beta1 < 1 && attr->beta2 >= 0 && attr->beta2 < 1))
        return mx_bad_value(call, "beta1 = %g and beta2 = %g must be in [0, 1)", attr->beta1, attr->beta2);
    return check_rounding(call, &attr->rounding);
}

static mx_status host_lion(mx_call *call)
{
    const lion_attr *attr = mx_call_attr(call);
    mx_sgd s = {.param = mx_array_of(call->in[0]),
                .grad = mx_array_of(call->in[1]),
                .state = mx_f32(call->in[2]),
                .rounding = rounding_of(&attr->rounding),
                .lr = (float)attr->lr,
                .momentum = (float)attr->beta1,
                .decay = (float)attr->beta2,
                .weight_decay = (float)attr->weight_decay,
                .grad_scale = (float)attr->grad_scale,
                .lion = true};
    mx_sgd_run(&s, mx_count(call->in[0]));
    return MX_OK;
}

const mx_op mx_op_lion = {
    .name = "lion",
    .doc = "one step of Lion on param and m (f32) in place: param -= lr (sign(beta1 m + (1 - beta1) grad) + "
           "weight_decay param), then m = beta2 m + (1 - beta2) grad",
    .inputs = (const char *const[]){"param", "grad", "m", NULL},
    .flags = MX_OP_MUTATES,
    .changes_in = 1 | 4,
    .attrs =
        (const mx_attr[]){
            {"lr", MX_ATTR_FLOAT, offsetof(lion_attr, lr), NAN, NULL, "learning rate"},
            {"beta1", MX_ATTR_FLOAT, offsetof(lion_attr, beta1), 0.9, NULL, "share of m in the direction"},
            {"beta2", MX_ATTR_FLOAT, offsetof(lion_attr, beta2), 0.99, NULL, "decay rate of m"},
            {"weight_decay", MX_ATTR_FLOAT, offsetof(lion_attr, weight_decay), 0, NULL,
             "weight decay: param is reduced by lr * this * param"},
            {"grad_scale", MX_ATTR_FLOAT, offsetof(lion_attr, grad_scale), 1, NULL, "factor of grad, applied first"},
            ROUND(lion_attr, key, -1),
            ROUND(lion_attr, first, 0),
            ROUND(lion_attr, origin, 0),
            ROUND(lion_attr, width, 0),
            ROUND(lion_attr, stride, 0),
            {0}},
    .attr_bytes = sizeof(lion_attr),
    .infer = infer_lion,
    .cost = cost_sgd,
    .host = host_lion,
};

/* ---- fill and copy ---- */

static mx_status infer_fill(mx_call *call)
{
    return mx_want_number("fill", "value", call->in[0]->dtype, ((const fill_attr *)mx_call_attr(call))->value);
}

static mx_cost cost_fill(const mx_call *call) { return (mx_cost){.bytes_written = (double)mx_bytes(call->in[0])}; }

static mx_status host_fill(mx_call *call)
{
    mx_fill(mx_array_of(call->in[0]), ((const fill_attr *)mx_call_attr(call))->value, mx_count(call->in[0]));
    return MX_OK;
}

const mx_op mx_op_fill = {
    .name = "fill",
    .doc = "sets every element of x in place",
    .inputs = (const char *const[]){"x", NULL},
    .flags = MX_OP_MUTATES,
    .attrs = (const mx_attr[]){{"value", MX_ATTR_FLOAT, offsetof(fill_attr, value), NAN, NULL, "the value"}, {0}},
    .attr_bytes = sizeof(fill_attr),
    .infer = infer_fill,
    .cost = cost_fill,
    .host = host_fill,
};

static mx_status infer_copy(mx_call *call) { return mx_want_shape(call, 1, &call->in[0]->shape); }

static mx_cost cost_copy(const mx_call *call)
{
    return (mx_cost){.bytes_read = (double)mx_bytes(call->in[1]), .bytes_written = (double)mx_bytes(call->in[0])};
}

static mx_status host_copy(mx_call *call)
{
    mx_cast(mx_array_of(call->in[1]), mx_array_of(call->in[0]), mx_count(call->in[0]));
    return MX_OK;
}

const mx_op mx_op_copy = {
    .name = "copy",
    .doc = "dst = src in place, converted to dst's dtype as by cast; both have the same shape",
    .inputs = (const char *const[]){"dst", "src", NULL},
    .flags = MX_OP_MUTATES,
    .infer = infer_copy,
    .cost = cost_copy,
    .host = host_copy,
};

mx_status mx_apply_fill(mx_tensor *x, double value)
{
    const fill_attr attr = {value};
    return mx_apply(&mx_op_fill, &x, 1, MX_ATTRS(attr), NULL);
}
