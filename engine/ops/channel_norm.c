/* Norms of x (N, C, ...), each channel with a weight and a bias: batch_norm over everything but the channels,
 * group_norm over the channels of a group in each of the N; and their gradients. */
#include "kernels/channel_norm.h"

#include "ops/reduction.h"
#include "ops/terms.h"

typedef struct batch_attr {
    double eps;
} batch_attr;

typedef struct group_attr {
    int64_t groups;
    double eps;
} group_attr;

typedef struct batch_grad_attr {
    double eps;
    bool fixed;
} batch_grad_attr;

static mx_array array_of(const mx_tensor *t) { return t ? mx_array_of(t) : (mx_array){NULL, MX_F32}; }

static mx_status want_channels(const mx_call *call, int i)
{
    const mx_tensor *t = call->in[i];
    int64_t channels = call->in[0]->shape.size[1];
    if (!t || (t->shape.n_dims == 1 && t->shape.size[0] == channels))
        return MX_OK;
    return mx_bad_shape(call, "'%s' must have one dimension of %lld, the channels of x",
                        mx_input_name(call, i, (char[32]){0}), (long long)channels);
}

/* Checks x and that it has channels; that all inputs are floats. */
static mx_status want_x(const mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    int n_dims = call->in[0]->shape.n_dims;
    if (n_dims < 2)
        return mx_bad_shape(call, "x has %d dimensions; expected (N, C, ...)", n_dims);
    return MX_OK;
}

static mx_status want_eps(const mx_call *call, double eps)
{
    return eps >= 0 ? MX_OK : mx_bad_value(call, "eps = %g must not be negative", eps);
}

/* What all have in common; groups 0: batch norm. */
static mx_channel_norm norm_of(const mx_call *call, int64_t groups, double eps, int weight)
{
    const mx_shape *x = &call->in[0]->shape;
    return (mx_channel_norm){.batch = x->size[0],
                             .channels = x->size[1],
                             .inner = mx_inner_size(x, 1),
                             .groups = groups,
                             .eps = eps,
                             .weight = array_of(call->in[weight]),
                             .x = mx_array_of(call->in[0])};
}

/* Mean, difference, square, sum, product and sum, for each element. */
static mx_cost cost_norm(const mx_call *call) { return mx_cost_of(call, 6.0 * (double)mx_count(call->in[0])); }

/* Two sums of three operations, and three products and sums. */
static mx_cost cost_grad(const mx_call *call) { return mx_cost_of(call, 10.0 * (double)mx_count(call->in[0])); }

/* Checks dy, weight and the statistics, which have a number for each set; makes the gradients of x, weight and bias. */
static mx_status infer_grad(mx_call *call, int64_t sets, int n_statistics)
{
    const mx_tensor *x = call->in[0];
    mx_dtype wide = mx_dtype_accumulates_in(x->dtype);
    MX_TRY(mx_want_shape(call, 1, &x->shape));
    MX_TRY(mx_want_dtype(call, 1, x->dtype));
    MX_TRY(want_channels(call, 4));
    for (int i = 2; i < 2 + n_statistics; i++) {
        if (i == 4 || !call->in[i])
            continue;
        if (mx_count(call->in[i]) != sets)
            return mx_bad_shape(call, "'%s' must have %lld elements", mx_input_name(call, i, (char[32]){0}),
                                (long long)sets);
        MX_TRY(mx_want_dtype(call, i, wide));
    }
    mx_shape channels = mx_vector(x->shape.size[1]);
    MX_TRY(mx_out(call, 0, x->dtype, &x->shape));
    MX_TRY(mx_out(call, 1, wide, &channels));
    return mx_out(call, 2, wide, &channels);
}

static mx_status host_grad(const mx_call *call, mx_channel_norm n)
{
    n.dy = mx_array_of(call->in[1]);
    n.mean = mx_array_of(call->in[2]);
    n.var = mx_array_of(call->in[3]);
    n.dx = mx_array_of(call->out[0]);
    n.dweight = mx_array_of(call->out[1]);
    n.dbias = mx_array_of(call->out[2]);
    return mx_channel_norm_backward(&n);
}

/* Hands on the gradients of x, weight and bias, which it takes over. */
static mx_status give_grads(mx_vjp *v, mx_tensor *out[3])
{
    mx_status status = MX_OK;
    for (int i = 0; i < 3; i++) {
        if (status == MX_OK && v->call->in[i])
            status = mx_give_grad(v, i, out[i]);
        else
            mx_release(out[i]);
    }
    return status;
}

/* t (C) as (1, C, 1 ...), which broadcasts with x; and the mask of all dimensions but the channels. */
static mx_tensor *over_channels(mx_terms *s, mx_tensor *t, const mx_tensor *x)
{
    mx_shape shape = {.n_dims = x->shape.n_dims};
    for (int d = 0; d < shape.n_dims; d++)
        shape.size[d] = d == 1 ? x->shape.size[1] : 1;
    return mx_term_reshape(s, mx_term_wide(s, t), &shape);
}

static uint32_t but_channels(const mx_tensor *x) { return ((1u << x->shape.n_dims) - 1) & ~2u; }

/* ---- batch_norm ---- */

static bool is_fixed(const mx_call *call) { return call->in[3] != NULL; }

static mx_status infer_batch(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    MX_TRY(want_x(call));
    for (int i = 1; i < 5; i++)
        MX_TRY(want_channels(call, i));
    if ((call->in[3] != NULL) != (call->in[4] != NULL))
        return mx_bad_value(call, "mean and var are given together, or neither");
    MX_TRY(want_eps(call, ((const batch_attr *)mx_call_attr(call))->eps));
    mx_shape channels = mx_vector(x->shape.size[1]);
    mx_dtype wide = mx_dtype_accumulates_in(x->dtype);
    MX_TRY(mx_out(call, 0, x->dtype, &x->shape));
    MX_TRY(mx_out(call, 1, wide, &channels));
    return mx_out(call, 2, wide, &channels);
}

static mx_status host_batch(mx_call *call)
{
    mx_channel_norm n = norm_of(call, 0, ((const batch_attr *)mx_call_attr(call))->eps, 1);
    n.fixed = is_fixed(call);
    n.bias = array_of(call->in[2]);
    n.mean = mx_array_of(call->out[1]);
    n.var = mx_array_of(call->out[2]);
    n.y = mx_array_of(call->out[0]);
    for (int i = 1; n.fixed && i < 3; i++)
        mx_cast(mx_array_of(call->in[i + 2]), mx_array_of(call->out[i]), n.channels);
    return mx_channel_norm_forward(&n);
}

/* The gradients of a given mean and var: those of their copies in the results, and -weight rstd dbias and
 * -weight rstd^2 dweight / 2. */
static mx_status give_fixed(mx_vjp *v, mx_tensor *dweight, mx_tensor *dbias)
{
    const mx_call *call = v->call;
    mx_terms s = {.n = 0};
    mx_tensor *var = mx_term_constant(&s, call->out[2]);
    mx_tensor *shifted = mx_term_affine(&s, var, 1, ((const batch_attr *)mx_call_attr(call))->eps);
    mx_tensor *factor = mx_term_one(&s, &mx_op_rsqrt, shifted), *sums[2] = {dbias, dweight};
    for (int i = 0; i < 2 && factor; i++) {
        mx_tensor *grad = mx_term_affine(&s, mx_term_mul(&s, factor, sums[i]), i == 0 ? -1 : -0.5, 0);
        if (call->in[1])
            grad = mx_term_mul(&s, grad, mx_term_wide(&s, call->in[1]));
        if (v->out_grad[1 + i])
            grad = mx_term_add(&s, grad, v->out_grad[1 + i]);
        mx_term_give(&s, v, 3 + i, grad);
        factor = mx_term_mul(&s, factor, factor);
    }
    return mx_terms_release(&s);
}

static mx_status vjp_batch(mx_vjp *v)
{
    const mx_call *call = v->call;
    const batch_grad_attr attr = {((const batch_attr *)mx_call_attr(call))->eps, is_fixed(call)};
    mx_tensor *dy = NULL, *out[3] = {NULL};
    if (v->out_grad[0])
        MX_TRY(mx_out_grad(v, 0, &dy));
    else
        MX_TRY(mx_apply_full(&call->out[0]->shape, call->out[0]->dtype, 0, &dy));
    mx_tensor *in[] = {call->in[0], dy, call->out[1], call->out[2], call->in[1], NULL, NULL};
    for (int i = 0; i < 2 && !attr.fixed; i++)
        in[5 + i] = v->out_grad[1 + i];
    mx_status status = mx_apply(&mx_op_batch_norm_grad, in, 7, MX_ATTRS(attr), out);
    mx_release(dy);
    MX_TRY(status);
    if (attr.fixed && (v->want[3] || v->want[4]))
        status = give_fixed(v, out[1], out[2]);
    if (status == MX_OK)
        return give_grads(v, out);
    for (int i = 0; i < 3; i++)
        mx_release(out[i]);
    return status;
}

/* What batch_norm_grad computes, composed. With g = dy weight and z = (x - mean) rstd: dx = rstd (g - mean of g - z
 * mean of g z) + (dmean + 2 dvar (x - mean)) / n; of a given mean and var dx = rstd g, dmean = -sum of g rstd, dvar =
 * -sum of g z rstd^2 / 2. */
static mx_status vjp_batch_recorded(mx_vjp *v)
{
    const mx_call *call = v->call;
    bool fixed = is_fixed(call);
    mx_terms s = {.n = 0};
    mx_tensor *x = mx_term_wide(&s, call->in[0]), *dx = NULL, *grad[5] = {NULL};
    uint32_t mask = but_channels(call->in[0]);
    double n = (double)mx_reduced_count(&call->in[0]->shape, mask);
    mx_tensor *mean = over_channels(&s, fixed ? call->in[3] : call->out[1], call->in[0]);
    mx_tensor *var = over_channels(&s, fixed ? call->in[4] : call->out[2], call->in[0]);
    mx_tensor *off = mx_term_sub(&s, x, mean);
    mx_tensor *rstd =
        mx_term_one(&s, &mx_op_rsqrt, mx_term_affine(&s, var, 1, ((const batch_attr *)mx_call_attr(call))->eps));
    if (v->out_grad[0]) {
        mx_tensor *dy = mx_term_wide(&s, v->out_grad[0]), *z = mx_term_mul(&s, off, rstd);
        mx_tensor *weight = call->in[1] ? over_channels(&s, call->in[1], call->in[0]) : NULL;
        mx_tensor *dy_z = mx_term_mul(&s, dy, z);
        grad[1] = mx_term_reduce(&s, &mx_op_sum, dy_z, mask);
        grad[2] = mx_term_reduce(&s, &mx_op_sum, dy, mask);
        mx_tensor *scale = weight ? mx_term_mul(&s, rstd, weight) : rstd;
        mx_tensor *by_mean = mx_term_mul(&s, grad[2], scale), *by_var = mx_term_mul(&s, grad[1], scale);
        dx = mx_term_mul(&s, dy, scale);
        if (fixed) {
            grad[3] = mx_term_affine(&s, by_mean, -1, 0);
            grad[4] = mx_term_affine(&s, mx_term_mul(&s, by_var, rstd), -0.5, 0);
        } else {
            mx_tensor *rest = mx_term_add(&s, by_mean, mx_term_mul(&s, z, by_var));
            dx = mx_term_sub(&s, dx, mx_term_affine(&s, rest, 1 / n, 0));
        }
    }
    for (int i = 0; i < 2; i++) {
        mx_tensor *more = v->out_grad[1 + i] ? over_channels(&s, v->out_grad[1 + i], call->in[0]) : NULL;
        mx_tensor **to = fixed ? &grad[3 + i] : &dx;
        if (more && !fixed)
            more =
                i == 0 ? mx_term_affine(&s, more, 1 / n, 0) : mx_term_mul(&s, off, mx_term_affine(&s, more, 2 / n, 0));
        if (more)
            *to = *to ? mx_term_add(&s, *to, more) : more;
    }
    grad[0] = dx;
    for (int i = 0; i < 5 && s.status == MX_OK; i++) {
        mx_tensor *in = call->in[i];
        if (in && grad[i] && v->want[i]) {
            mx_tensor *t = i == 0 ? grad[0] : mx_term_reshape(&s, grad[i], &in->shape);
            mx_term_give(&s, v, i, t);
        }
    }
    return mx_terms_release(&s);
}

const mx_op mx_op_batch_norm = {
    .name = "batch_norm",
    .doc = "x (N, C, ...) -> (x - mean) / sqrt(var + eps) weight + bias for each channel, mean and var over all else, "
           "in f32: they are the second and the third result. With mean and var, evaluation: these instead",
    .inputs = (const char *const[]){"x", "weight?", "bias?", "mean?", "var?", NULL},
    .n_out = 3,
    .n_results = 3,
    .attrs =
        (const mx_attr[]){{"eps", MX_ATTR_FLOAT, offsetof(batch_attr, eps), 1e-5, NULL, "added to the variance"}, {0}},
    .attr_bytes = sizeof(batch_attr),
    .reads_in = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4,
    .reads_out = 1 << 1 | 1 << 2,
    .infer = infer_batch,
    .cost = cost_norm,
    .host = host_batch,
    .vjp = vjp_batch,
    .vjp_recorded = vjp_batch_recorded,
};

static mx_status infer_batch_grad(mx_call *call)
{
    MX_TRY(want_x(call));
    MX_TRY(want_eps(call, ((const batch_grad_attr *)mx_call_attr(call))->eps));
    return infer_grad(call, call->in[0]->shape.size[1], 5);
}

static mx_status host_batch_grad(mx_call *call)
{
    const batch_grad_attr *attr = mx_call_attr(call);
    mx_channel_norm n = norm_of(call, 0, attr->eps, 4);
    n.fixed = attr->fixed;
    n.dmean = array_of(call->in[5]);
    n.dvar = array_of(call->in[6]);
    return host_grad(call, n);
}

const mx_op mx_op_batch_norm_grad = {
    .name = "batch_norm_grad",
    .doc = "gradients of batch_norm with respect to x, weight and bias; dmean and dvar are those of its other results. "
           "With fixed, mean and var do not depend on x",
    .inputs = (const char *const[]){"x", "dy", "mean", "var", "weight?", "dmean?", "dvar?", NULL},
    .n_out = 3,
    .n_results = 3,
    .attrs =
        (const mx_attr[]){
            {"eps", MX_ATTR_FLOAT, offsetof(batch_grad_attr, eps), 1e-5, NULL, "as batch_norm had it"},
            {"fixed", MX_ATTR_BOOL, offsetof(batch_grad_attr, fixed), 0, NULL, "mean and var were given to batch_norm"},
            {0}},
    .attr_bytes = sizeof(batch_grad_attr),
    .infer = infer_batch_grad,
    .cost = cost_grad,
    .host = host_batch_grad,
};

/* ---- group_norm ---- */

/* The shape of statistics: (N, groups). */
static mx_status want_groups(const mx_call *call, mx_shape *sets)
{
    const group_attr *attr = mx_call_attr(call);
    const mx_shape *x = &call->in[0]->shape;
    MX_TRY(want_x(call));
    MX_TRY(want_eps(call, attr->eps));
    if (attr->groups < 1 || x->size[1] % attr->groups != 0)
        return mx_bad_value(call, "groups = %lld must divide the %lld channels", (long long)attr->groups,
                            (long long)x->size[1]);
    *sets = (mx_shape){2, {x->size[0], attr->groups}};
    return MX_OK;
}

/* Mean and var are kept for the gradient alone. */
static mx_status infer_group(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_shape sets = {0};
    MX_TRY(want_groups(call, &sets));
    for (int i = 1; i < 3; i++)
        MX_TRY(want_channels(call, i));
    MX_TRY(mx_out(call, 0, x->dtype, &x->shape));
    MX_TRY(mx_out(call, 1, mx_dtype_accumulates_in(x->dtype), &sets));
    return mx_out(call, 2, mx_dtype_accumulates_in(x->dtype), &sets);
}

static mx_channel_norm group_norm_of(const mx_call *call, int weight)
{
    const group_attr *attr = mx_call_attr(call);
    return norm_of(call, attr->groups, attr->eps, weight);
}

static mx_status host_group(mx_call *call)
{
    mx_channel_norm n = group_norm_of(call, 1);
    n.bias = array_of(call->in[2]);
    n.mean = mx_array_of(call->out[1]);
    n.var = mx_array_of(call->out[2]);
    n.y = mx_array_of(call->out[0]);
    return mx_channel_norm_forward(&n);
}

static mx_status vjp_group(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dy = NULL, *out[3] = {NULL};
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_tensor *in[] = {call->in[0], dy, call->out[1], call->out[2], call->in[1]};
    mx_status status = mx_apply(&mx_op_group_norm_grad, in, 5, mx_call_attrs(call), out);
    mx_release(dy);
    MX_TRY(status);
    return give_grads(v, out);
}

static mx_tensor *plain_group(mx_terms *s, const mx_call *call)
{
    const group_attr *attr = mx_call_attr(call);
    mx_tensor *x = call->in[0], *weight = call->in[1], *bias = call->in[2];
    int64_t rows = x->shape.size[0] * attr->groups;
    mx_shape sets = {2, {rows, rows > 0 ? mx_count(x) / rows : 0}};
    mx_tensor *t = mx_term_reshape(s, mx_term_wide(s, x), &sets);
    mx_tensor *off = mx_term_sub(s, t, mx_term_reduce(s, &mx_op_mean, t, 2));
    mx_tensor *var = mx_term_reduce(s, &mx_op_mean, mx_term_one(s, &mx_op_square, off), 2);
    mx_tensor *y = mx_term_mul(s, off, mx_term_one(s, &mx_op_rsqrt, mx_term_affine(s, var, 1, attr->eps)));
    y = mx_term_reshape(s, y, &x->shape);
    if (weight)
        y = mx_term_mul(s, y, over_channels(s, weight, x));
    if (bias)
        y = mx_term_add(s, y, over_channels(s, bias, x));
    return mx_term_cast(s, y, x->dtype);
}

static const mx_attr group_attrs[] = {
    {"groups", MX_ATTR_INT, offsetof(group_attr, groups), 1, NULL,
     "groups of channels; as many as channels: instance norm"},
    {"eps", MX_ATTR_FLOAT, offsetof(group_attr, eps), 1e-5, NULL, "added to the variance"},
    {0}};

const mx_op mx_op_group_norm = {
    .name = "group_norm",
    .doc = "x (N, C, ...) -> (x - mean) / sqrt(var + eps) weight + bias, mean and var over each group of channels and "
           "the dimensions after them; weight and bias (C)",
    .inputs = (const char *const[]){"x", "weight?", "bias?", NULL},
    .n_out = 3,
    .n_results = 1,
    .attrs = group_attrs,
    .attr_bytes = sizeof(group_attr),
    .reads_in = 1 << 0 | 1 << 1 | 1 << 2,
    .reads_out = 1 << 1 | 1 << 2,
    .infer = infer_group,
    .cost = cost_norm,
    .host = host_group,
    .vjp = vjp_group,
    .plain = plain_group,
};

static mx_status infer_group_grad(mx_call *call)
{
    mx_shape sets = {0};
    MX_TRY(want_groups(call, &sets));
    return infer_grad(call, sets.size[0] * sets.size[1], 2);
}

static mx_status host_group_grad(mx_call *call) { return host_grad(call, group_norm_of(call, 4)); }

const mx_op mx_op_group_norm_grad = {
    .name = "group_norm_grad",
    .doc =
        "gradients of group_norm with respect to x, weight and bias; mean and var (N, groups) as group_norm kept them",
    .inputs = (const char *const[]){"x", "dy", "mean", "var", "weight?", NULL},
    .n_out = 3,
    .n_results = 3,
    .attrs = group_attrs,
    .attr_bytes = sizeof(group_attr),
    .infer = infer_group_grad,
    .cost = cost_grad,
    .host = host_group_grad,
};
