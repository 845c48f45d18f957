/* Max and average pooling over one and two dimensions, and their gradients. */
#include "kernels/pool2d.h"

#include "kernels/f64_loops.h"
#include "ops/conv.h"
#include "ops/terms.h"

#include <math.h>

typedef struct pool_attr {
    mx_shape size, stride, padding;
} pool_attr;

typedef struct grad_attr {
    pool_attr pool;
    mx_shape shape; /* of x */
} grad_attr;

/* "max_pool2d" has two dimensions. */
static int dims_of(const mx_op *op) { return op->name[8] - '0'; }

static mx_status pool_of(const mx_call *call, const pool_attr *attr, const mx_shape *x, mx_conv *c)
{
    int n = dims_of(call->op);
    *c = (mx_conv){.batch = x->size[0],
                   .channels_in = x->size[1],
                   .channels_out = x->size[1],
                   .groups = x->size[1],
                   .in = {1, 1},
                   .kernel = {1, 1},
                   .out = {1, 1},
                   .stride = {1, 1},
                   .dilation = {1, 1}};
    for (int d = 0; d < n; d++) {
        int at = 2 - n + d;
        c->in[at] = x->size[2 + d];
        MX_TRY(mx_window_entry(call, "size", &attr->size, n, d, 1, 1, &c->kernel[at]));
        MX_TRY(mx_window_entry(call, "stride", &attr->stride, n, d, 1, c->kernel[at], &c->stride[at]));
        MX_TRY(mx_window_entry(call, "padding", &attr->padding, n, d, 0, 0, &c->before[at]));
        int64_t room = c->in[at] + 2 * c->before[at] - c->kernel[at];
        if (2 * c->before[at] > c->kernel[at])
            return mx_bad_value(call, "padding = %lld is more than half of the window of %lld",
                                (long long)c->before[at], (long long)c->kernel[at]);
        if (room < 0)
            return mx_bad_shape(call, "the window covers %lld elements of dimension %d, x has %lld with its padding",
                                (long long)c->kernel[at], 3 + d, (long long)(room + c->kernel[at]));
        c->out[at] = room / c->stride[at] + 1;
    }
    if (c->in[0] * c->in[1] > INT32_MAX)
        return mx_bad_shape(call, "a plane of x has more elements than i32 can count");
    return MX_OK;
}

static mx_shape output_shape(const mx_conv *c, int n)
{
    mx_shape y = {.n_dims = 2 + n, .size = {c->batch, c->channels_in}};
    for (int d = 0; d < n; d++)
        y.size[2 + d] = c->out[2 - n + d];
    return y;
}

static bool is_max(const mx_op *op) { return op->name[0] == 'm'; }

static mx_status pool_infer(mx_call *call)
{
    mx_conv c = {.groups = 1};
    int n = dims_of(call->op);
    MX_TRY(mx_want_planes(call, 0, 2 + n));
    MX_TRY(pool_of(call, mx_call_attr(call), &call->in[0]->shape, &c));
    mx_shape y = output_shape(&c, n);
    MX_TRY(mx_out(call, 0, call->in[0]->dtype, &y));
    if (!is_max(call->op))
        return MX_OK;
    mx_shape none = mx_vector(0);
    return mx_out(call, 1, MX_I32, mx_will_record(call) ? &y : &none);
}

static mx_cost pool_cost(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

/* NULL where backward does not read them. */
static int32_t *places_of(const mx_call *call)
{
    return mx_count(call->out[1]) == mx_count(call->out[0]) ? mx_data(call->out[1]) : NULL;
}

static mx_status pool_host(mx_call *call)
{
    mx_conv c = {.groups = 1};
    mx_array x = mx_array_of(call->in[0]), y = mx_array_of(call->out[0]);
    MX_TRY(pool_of(call, mx_call_attr(call), &call->in[0]->shape, &c));
    if (x.dtype == MX_F64) {
        if (is_max(call->op))
            mx_f64_max_pool_forward(&c, x.data, y.data, places_of(call));
        else
            mx_f64_avg_pool_forward(&c, x.data, y.data);
        return MX_OK;
    }
    if (!is_max(call->op))
        return mx_avg_pool_forward(&c, x, y);
    return mx_max_pool_forward(&c, x, y, places_of(call));
}

static const mx_op *grad_op(const mx_op *op)
{
    bool one = dims_of(op) == 1;
    if (is_max(op))
        return one ? &mx_op_max_pool1d_grad : &mx_op_max_pool2d_grad;
    return one ? &mx_op_avg_pool1d_grad : &mx_op_avg_pool2d_grad;
}

static mx_status pool_vjp(mx_vjp *v)
{
    const mx_call *call = v->call;
    grad_attr attr = {*(const pool_attr *)mx_call_attr(call), call->in[0]->shape};
    mx_tensor *dy = NULL, *dx = NULL;
    MX_TRY(mx_out_grad(v, 0, &dy));
    mx_tensor *in[2] = {dy, is_max(call->op) ? call->out[1] : NULL};
    mx_status status = mx_apply(grad_op(call->op), in, in[1] ? 2 : 1, MX_ATTRS(attr), &dx);
    mx_release(dy);
    MX_TRY(status);
    return mx_give_grad(v, 0, dx);
}

static mx_status grad_infer(mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    mx_conv c = {.groups = 1};
    int n = dims_of(call->op);
    MX_TRY(mx_want_planes(call, 0, 2 + n));
    if (attr->shape.n_dims != 2 + n)
        return mx_bad_value(call, "shape must have %d entries", 2 + n);
    MX_TRY(pool_of(call, &attr->pool, &attr->shape, &c));
    mx_shape y = output_shape(&c, n);
    MX_TRY(mx_want_shape(call, 0, &y));
    if (is_max(call->op)) {
        MX_TRY(mx_want_dtype(call, 1, MX_I32));
        MX_TRY(mx_want_shape(call, 1, &y));
    }
    return mx_out(call, 0, call->in[0]->dtype, &attr->shape);
}

static mx_status check_places(const mx_call *call, int64_t pixels)
{
    const int32_t *at = mx_data(call->in[1]);
    for (int64_t i = 0; i < mx_count(call->in[1]); i++)
        if (at[i] < 0 || at[i] >= pixels)
            return mx_bad_value(call, "place %d is outside 0 .. %lld", at[i], (long long)pixels - 1);
    return MX_OK;
}

static mx_status grad_host(mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    mx_conv c = {.groups = 1};
    MX_TRY(pool_of(call, &attr->pool, &attr->shape, &c));
    bool f64 = call->in[0]->dtype == MX_F64, inside = true;
    if (f64 && is_max(call->op))
        MX_TRY(check_places(call, c.in[0] * c.in[1]));
    if (f64 && is_max(call->op))
        mx_f64_max_pool_backward(&c, mx_data(call->in[0]), mx_data(call->in[1]), mx_data(call->out[0]));
    else if (f64)
        mx_f64_avg_pool_backward(&c, mx_data(call->in[0]), mx_data(call->out[0]));
    if (f64)
        return MX_OK;
    if (!is_max(call->op))
        return mx_avg_pool_backward(&c, mx_array_of(call->in[0]), mx_array_of(call->out[0]));
    MX_TRY(
        mx_max_pool_backward(&c, mx_array_of(call->in[0]), mx_data(call->in[1]), mx_array_of(call->out[0]), &inside));
    return inside ? MX_OK : check_places(call, c.in[0] * c.in[1]);
}

/* Linear in dy: means of the gradient over the windows, or its elements at the places. */
static mx_status grad_vjp(mx_vjp *v)
{
    const mx_call *call = v->call;
    const grad_attr *attr = mx_call_attr(call);
    const mx_shape *x = &attr->shape, *y = &call->in[0]->shape;
    mx_shape planes = {2, {x->size[0] * x->size[1], mx_inner_size(x, 1)}};
    mx_shape windows = {2, {planes.size[0], mx_inner_size(y, 1)}};
    mx_terms s = {.n = 0};
    mx_tensor *g = mx_term_cast(&s, v->out_grad[0], call->in[0]->dtype), *out = NULL;
    if (!is_max(call->op)) {
        out = mx_term(&s, dims_of(call->op) == 1 ? &mx_op_avg_pool1d : &mx_op_avg_pool2d, MX_ATTRS(attr->pool), g, NULL,
                      NULL);
    } else {
        mx_tensor *flat = mx_term_reshape(&s, g, &planes), *places = mx_term_reshape(&s, call->in[1], &windows);
        if (places && mx_term_keep(&s, mx_apply_gather(flat, places, 1, &out), &out))
            out = mx_term_reshape(&s, out, y);
    }
    mx_term_give(&s, v, 0, out);
    return mx_terms_release(&s);
}

/* ---- the tables ---- */

#define POOL_ATTRS(STRUCT, PREFIX)                                                                                     \
    {"size", MX_ATTR_SHAPE, offsetof(STRUCT, PREFIX size),                                                             \
     1,      NULL,          "of the window: a number, or one for each dimension"},                                     \
        {"stride", MX_ATTR_SHAPE, offsetof(STRUCT, PREFIX stride), 0, NULL, "step; default: size"},                    \
    {                                                                                                                  \
        "padding", MX_ATTR_SHAPE, offsetof(STRUCT, PREFIX padding), 0, NULL,                                           \
            "on each side, at most half of size; a maximum does not see it, a mean counts it as 0"                     \
    }

static const mx_attr pool_attrs[] = {POOL_ATTRS(pool_attr, ), {0}};
static const mx_attr grad_attrs[] = {
    POOL_ATTRS(grad_attr, pool.), {"shape", MX_ATTR_SHAPE, offsetof(grad_attr, shape), NAN, NULL, "shape of x"}, {0}};

#define POOL(NAME, WHAT, X, N_OUT, GRAD_INPUTS)                                                                        \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = WHAT " over windows of x " X,                                                   \
                                .inputs = (const char *const[]){"x", NULL},                                            \
                                .n_out = N_OUT,                                                                        \
                                .n_results = 1,                                                                        \
                                .attrs = pool_attrs,                                                                   \
                                .attr_bytes = sizeof(pool_attr),                                                       \
                                .reads_out = N_OUT == 2 ? 1 << 1 : 0,                                                  \
                                .infer = pool_infer,                                                                   \
                                .cost = pool_cost,                                                                     \
                                .host = pool_host,                                                                     \
                                .vjp = pool_vjp,                                                                       \
                                .vjp_recorded = pool_vjp};                                                             \
    const mx_op mx_op_##NAME##_grad = {.name = #NAME "_grad",                                                          \
                                       .doc = "gradient of " #NAME,                                                    \
                                       .inputs = GRAD_INPUTS,                                                          \
                                       .n_out = 1,                                                                     \
                                       .n_results = 1,                                                                 \
                                       .attrs = grad_attrs,                                                            \
                                       .attr_bytes = sizeof(grad_attr),                                                \
                                       .infer = grad_infer,                                                            \
                                       .cost = pool_cost,                                                              \
                                       .reads_in = 2,                                                                  \
                                       .host = grad_host,                                                              \
                                       .vjp = grad_vjp,                                                                \
                                       .vjp_recorded = grad_vjp}

static const char *const dy_and_places[] = {"dy", "places", NULL}, *const only_dy[] = {"dy", NULL};

POOL(max_pool1d, "maxima", "(N, C, L)", 2, dy_and_places);
POOL(max_pool2d, "maxima", "(N, C, H, W)", 2, dy_and_places);
POOL(avg_pool1d, "means", "(N, C, L)", 1, only_dy);
POOL(avg_pool2d, "means", "(N, C, H, W)", 1, only_dy);
