/* Convolutions over one and two dimensions, and their gradients. */
#include "kernels/conv.h"

#include "core/pool.h"
#include "kernels/f64_loops.h"
#include "ops/conv.h"
#include "ops/terms.h"

#include <math.h>

/* The padding that is given by a word is stored as n_dims = -1 - its number. */
static const char *const paddings[] = {"same", "causal", NULL};

typedef struct conv_attr {
    mx_shape stride, padding, dilation;
    int64_t groups;
} conv_attr;

/* Attributes of the gradient by x: those of the convolution, and the sizes of x that do not follow from dy. */
typedef struct grad_attr {
    conv_attr conv;
    mx_shape size;
} grad_attr;

/* ---- shapes ---- */

mx_status mx_window_entry(const mx_call *call, const char *name, const mx_shape *given, int n, int d, int64_t least,
                          int64_t standard, int64_t *value)
{
    *value = standard;
    if (given->n_dims == 0)
        return MX_OK;
    if (given->n_dims != 1 && given->n_dims != n)
        return mx_bad_value(call, "%s has %d entries; expected a number or %d", name, given->n_dims, n);
    *value = given->size[given->n_dims == 1 ? 0 : d];
    if (*value < least || *value > INT32_MAX)
        return mx_bad_value(call, "%s = %lld must be at least %lld", name, (long long)*value, (long long)least);
    return MX_OK;
}

/* Sets the padding and the size of the result along dimension d of n; `at` is its place in mx_conv. */
static mx_status set_output(const mx_call *call, const conv_attr *attr, int n, int d, mx_conv *c)
{
    int at = 2 - n + d;
    int64_t extent = c->dilation[at] * (c->kernel[at] - 1), after = 0;
    if (attr->padding.n_dims < 0) {
        if (c->stride[at] != 1)
            return mx_bad_value(call, "padding = '%s' needs a stride of 1, not %lld",
                                paddings[-1 - attr->padding.n_dims], (long long)c->stride[at]);
        c->before[at] = attr->padding.n_dims == -1 ? extent / 2 : extent;
        after = extent - c->before[at];
    } else {
        MX_TRY(mx_window_entry(call, "padding", &attr->padding, n, d, 0, 0, &c->before[at]));
        after = c->before[at];
    }
    int64_t room = c->in[at] + c->before[at] + after - extent;
    if (room < 1)
        return mx_bad_shape(call, "the kernel covers %lld elements of dimension %d, x has %lld with its padding",
                            (long long)(extent + 1), 3 + d, (long long)(c->in[at] + c->before[at] + after));
    c->out[at] = (room - 1) / c->stride[at] + 1;
    return MX_OK;
}

/* A convolution with n dimensions from the shapes of x and w. */
static mx_status conv_of(const mx_call *call, const conv_attr *attr, const mx_shape *x, const mx_shape *w, mx_conv *c)
{
    int n = x->n_dims - 2;
    *c = (mx_conv){.batch = x->size[0],
                   .channels_in = x->size[1],
                   .channels_out = w->size[0],
                   .groups = attr->groups,
                   .in = {1, 1},
                   .kernel = {1, 1},
                   .out = {1, 1},
                   .stride = {1, 1},
                   .dilation = {1, 1}};
    if (attr->groups < 1 || c->channels_in % attr->groups != 0 || c->channels_out % attr->groups != 0)
        return mx_bad_value(call, "groups = %lld must divide the %lld channels of x and the %lld of w",
                            (long long)attr->groups, (long long)c->channels_in, (long long)c->channels_out);
    if (w->size[1] != c->channels_in / attr->groups)
        return mx_bad_shape(call, "w has %lld channels in a group, x has %lld", (long long)w->size[1],
                            (long long)(c->channels_in / attr->groups));
    for (int d = 0; d < n; d++) {
        int at = 2 - n + d;
        c->in[at] = x->size[2 + d];
        c->kernel[at] = w->size[2 + d];
        if (c->kernel[at] < 1)
            return mx_bad_shape(call, "the kernel is empty");
        MX_TRY(mx_window_entry(call, "stride", &attr->stride, n, d, 1, 1, &c->stride[at]));
        MX_TRY(mx_window_entry(call, "dilation", &attr->dilation, n, d, 1, 1, &c->dilation[at]));
        MX_TRY(set_output(call, attr, n, d, c));
    }
    return MX_OK;
}

static mx_shape output_shape(const mx_conv *c, int n)
{
    mx_shape y = {.n_dims = 2 + n, .size = {c->batch, c->channels_out}};
    for (int d = 0; d < n; d++)
        y.size[2 + d] = c->out[2 - n + d];
    return y;
}

/* f32 or bf16, or f64 as the first input. */
static mx_status want_values(const mx_call *call, int i)
{
    MX_TRY(mx_want_real(call, i));
    if (!call->in[i] || mx_dtype_mixes(call->in[0]->dtype, call->in[i]->dtype))
        return MX_OK;
    return mx_bad_dtype(call, "f64 mixes with no other float; use t:to(\"f64\")");
}

/* The number of dimensions is in the operation's name: "conv2d". */
static int dims_of(const mx_op *op) { return op->name[4] - '0'; }

mx_status mx_want_planes(const mx_call *call, int i, int n)
{
    MX_TRY(want_values(call, i));
    if (call->in[i]->shape.n_dims != n)
        return mx_bad_shape(call, "'%s' must have %d dimensions", mx_input_name(call, i, (char[32]){0}), n);
    return MX_OK;
}

static mx_status want_dims(const mx_call *call, int i) { return mx_want_planes(call, i, 2 + dims_of(call->op)); }

static mx_status conv_infer(mx_call *call)
{
    const conv_attr *attr = mx_call_attr(call);
    mx_conv c = {.groups = 1};
    MX_TRY(want_dims(call, 0));
    MX_TRY(want_dims(call, 1));
    MX_TRY(conv_of(call, attr, &call->in[0]->shape, &call->in[1]->shape, &c));
    if (call->in[2]) {
        MX_TRY(want_values(call, 2));
        mx_shape vector = mx_vector(c.channels_out);
        MX_TRY(mx_want_shape(call, 2, &vector));
    }
    mx_shape y = output_shape(&c, dims_of(call->op));
    return mx_out(call, 0, call->in[0]->dtype, &y);
}

/* A product of (channels_out / groups, taps) and (taps, positions) for each group and image. */
static mx_cost cost_of(const mx_call *call, const mx_conv *c)
{
    int64_t group_out = c->channels_out / c->groups, group_in = c->channels_in / c->groups;
    double m = (double)group_out, n = (double)(c->batch * c->out[0] * c->out[1]);
    double k = (double)(group_in * c->kernel[0] * c->kernel[1]);
    mx_cost cost = mx_cost_of(call, 2 * m * n * k * (double)c->groups);
    bool thin = group_out * group_in <= 8;
    cost.work = thin ? MX_WORK_BYTES : MX_WORK_PRODUCT;
    if (!thin) {
        cost.m = m;
        cost.n = n;
        cost.k = k;
    }
    return cost;
}

static mx_cost conv_cost(const mx_call *call)
{
    mx_conv c = {.groups = 1};
    (void)conv_of(call, mx_call_attr(call), &call->in[0]->shape, &call->in[1]->shape, &c); /* checked by infer */
    return cost_of(call, &c);
}

static bool is_f64(const mx_call *call) { return call->in[0]->dtype == MX_F64; }

static mx_status conv_host(mx_call *call)
{
    const mx_tensor *bias = call->in[2];
    mx_conv c = {.groups = 1};
    float *copy = NULL;
    MX_TRY(conv_of(call, mx_call_attr(call), &call->in[0]->shape, &call->in[1]->shape, &c));
    if (is_f64(call)) {
        mx_f64_conv_forward(&c, mx_data(call->in[0]), mx_data(call->in[1]), bias ? mx_data(bias) : NULL,
                            mx_data(call->out[0]));
        return MX_OK;
    }
    int64_t bytes = bias ? c.channels_out * (int64_t)sizeof *copy : 0;
    if (bias) {
        MX_TRY(mx_pool_alloc(bytes, (void **)&copy));
        mx_cast(mx_array_of(bias), (mx_array){copy, MX_F32}, c.channels_out);
    }
    mx_status status =
        mx_conv_forward(&c, mx_array_of(call->in[0]), mx_array_of(call->in[1]), copy, mx_array_of(call->out[0]));
    mx_pool_free(copy, bytes);
    return status;
}

/* ---- gradients ---- */

static const mx_op *grad_x_op(const mx_op *op) { return dims_of(op) == 1 ? &mx_op_conv1d_grad : &mx_op_conv2d_grad; }

static const mx_op *grad_w_op(const mx_op *op)
{
    return dims_of(op) == 1 ? &mx_op_conv1d_grad_w : &mx_op_conv2d_grad_w;
}

static mx_status conv_vjp(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *dy = NULL, *out = NULL, *x = call->in[0], *w = call->in[1];
    grad_attr attr = {.conv = *(const conv_attr *)mx_call_attr(call), .size = w->shape};
    mx_status status = MX_OK;
    MX_TRY(mx_out_grad(v, 0, &dy));
    if (v->want[1]) {
        status = mx_apply(grad_w_op(call->op), (mx_tensor *[]){x, dy}, 2, MX_ATTRS(attr), &out);
        if (status == MX_OK)
            status = mx_give_grad(v, 1, out);
    }
    mx_vjp_let_go(v, 0);
    if (status == MX_OK && v->want[0]) {
        attr.size = x->shape;
        status = mx_apply(grad_x_op(call->op), (mx_tensor *[]){w, dy}, 2, MX_ATTRS(attr), &out);
        if (status == MX_OK)
            status = mx_give_grad(v, 0, out);
    }
    if (status == MX_OK && v->want[2]) {
        status = mx_apply(&mx_op_channel_sum, &dy, 1, MX_NO_ATTRS, &out);
        if (status == MX_OK)
            status = mx_give_grad(v, 2, out);
    }
    mx_release(dy);
    return status;
}

/* Checks the gradient's inputs: in[0] is w for the gradient by x, and x for that by w; `size` is the shape of the
 * other. */
static mx_status grad_conv(const mx_call *call, bool by_x, mx_conv *c)
{
    const grad_attr *attr = mx_call_attr(call);
    const mx_shape *given = &call->in[0]->shape;
    MX_TRY(want_dims(call, 0));
    MX_TRY(want_dims(call, 1));
    if (attr->size.n_dims != given->n_dims)
        return mx_bad_value(call, "size must have %d entries", given->n_dims);
    MX_TRY(conv_of(call, &attr->conv, by_x ? &attr->size : given, by_x ? given : &attr->size, c));
    mx_shape y = output_shape(c, dims_of(call->op));
    return mx_want_shape(call, 1, &y);
}

static mx_status grad_x_infer(mx_call *call)
{
    mx_conv c = {.groups = 1};
    MX_TRY(grad_conv(call, true, &c));
    return mx_out(call, 0, call->in[1]->dtype, &((const grad_attr *)mx_call_attr(call))->size);
}

static mx_status grad_w_infer(mx_call *call)
{
    mx_conv c = {.groups = 1};
    MX_TRY(grad_conv(call, false, &c));
    return mx_out(call, 0, mx_dtype_accumulates_in(call->in[0]->dtype), &((const grad_attr *)mx_call_attr(call))->size);
}

static mx_cost grad_x_cost(const mx_call *call)
{
    mx_conv c = {.groups = 1};
    (void)grad_conv(call, true, &c);
    return cost_of(call, &c);
}

static mx_cost grad_w_cost(const mx_call *call)
{
    mx_conv c = {.groups = 1};
    (void)grad_conv(call, false, &c);
    return cost_of(call, &c);
}

static mx_status grad_x_host(mx_call *call)
{
    mx_conv c = {.groups = 1};
    MX_TRY(grad_conv(call, true, &c));
    if (is_f64(call)) {
        mx_f64_conv_grad_x(&c, mx_data(call->in[1]), mx_data(call->in[0]), mx_data(call->out[0]));
        return MX_OK;
    }
    return mx_conv_grad_x(&c, mx_array_of(call->in[1]), mx_array_of(call->in[0]), mx_array_of(call->out[0]));
}

static mx_status grad_w_host(mx_call *call)
{
    mx_conv c = {.groups = 1};
    MX_TRY(grad_conv(call, false, &c));
    if (is_f64(call)) {
        mx_f64_conv_grad_w(&c, mx_data(call->in[0]), mx_data(call->in[1]), mx_data(call->out[0]));
        return MX_OK;
    }
    return mx_conv_grad_w(&c, mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_f32(call->out[0]));
}

/* The gradients by x and by w are linear in both of their inputs. The gradient g of a result takes its place in the
 * convolution: of x in conv(g, w) and in the gradient by w, of w in conv(x, g) and in the gradient by x. */
static mx_status grad_vjp(mx_vjp *v)
{
    const mx_call *call = v->call;
    grad_attr attr = *(const grad_attr *)mx_call_attr(call);
    mx_tensor *a = call->in[0], *dy = call->in[1], *out = NULL;
    bool one = dims_of(call->op) == 1, by_x = call->op == (one ? &mx_op_conv1d_grad : &mx_op_conv2d_grad);
    const mx_op *conv = one ? &mx_op_conv1d : &mx_op_conv2d;
    mx_terms s = {.n = 0};
    mx_tensor *g = mx_term_cast(&s, v->out_grad[0], a->dtype);
    attr.size = a->shape;
    if (v->want[0])
        out = mx_term(&s, by_x ? grad_w_op(conv) : grad_x_op(conv), MX_ATTRS(attr), g, dy, NULL);
    mx_term_give(&s, v, 0, out);
    out = v->want[1] ? mx_term(&s, conv, MX_ATTRS(attr.conv), by_x ? g : a, by_x ? a : g, NULL) : NULL;
    mx_term_give(&s, v, 1, out);
    return mx_terms_release(&s);
}

/* ---- channel_sum: the gradient of a bias ---- */

static mx_status channel_sum_infer(mx_call *call)
{
    MX_TRY(want_values(call, 0));
    if (call->in[0]->shape.n_dims < 2)
        return mx_bad_shape(call, "x must have at least two dimensions");
    mx_shape y = mx_vector(call->in[0]->shape.size[1]);
    return mx_out(call, 0, mx_dtype_accumulates_in(call->in[0]->dtype), &y);
}

static mx_cost channel_sum_cost(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->in[0])); }

static mx_status channel_sum_host(mx_call *call)
{
    const mx_shape *x = &call->in[0]->shape;
    mx_conv c = {.batch = x->size[0], .channels_out = x->size[1], .out = {1, mx_inner_size(x, 1)}};
    if (is_f64(call))
        mx_f64_conv_grad_bias(&c, mx_data(call->in[0]), mx_data(call->out[0]));
    else
        mx_conv_grad_bias(&c, mx_array_of(call->in[0]), mx_f32(call->out[0]));
    return MX_OK;
}

static mx_status channel_sum_vjp(mx_vjp *v)
{
    const mx_tensor *x = v->call->in[0];
    mx_shape channels = {.n_dims = x->shape.n_dims};
    mx_tensor *ones = NULL;
    for (int d = 0; d < channels.n_dims; d++)
        channels.size[d] = d == 1 ? x->shape.size[d] : 1;
    mx_terms s = {.n = 0};
    mx_term_keep(&s, mx_apply_full(&x->shape, x->dtype, 1, &ones), &ones);
    mx_tensor *dx = mx_term_mul(&s, ones, mx_term_reshape(&s, v->out_grad[0], &channels));
    mx_term_give(&s, v, 0, dx);
    return mx_terms_release(&s);
}

const mx_op mx_op_channel_sum = {
    .name = "channel_sum",
    .doc = "sum of x (N, C, ...) over all dimensions except the second -> f32 (C), of f64 f64",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .infer = channel_sum_infer,
    .cost = channel_sum_cost,
    .host = channel_sum_host,
    .vjp = channel_sum_vjp,
    .vjp_recorded = channel_sum_vjp,
};

/* ---- the tables ---- */

#define CONV_ATTRS(STRUCT, PREFIX)                                                                                     \
    {"stride", MX_ATTR_SHAPE, offsetof(STRUCT, PREFIX stride), 1, NULL, "step: a number, or one for each dimension"},  \
        {"padding",                                                                                                    \
         MX_ATTR_SHAPE,                                                                                                \
         offsetof(STRUCT, PREFIX padding),                                                                             \
         0,                                                                                                            \
         paddings,                                                                                                     \
         "zeros on each side: a number, or one for each dimension; 'same': as many outputs as inputs; 'causal': the "  \
         "same, all before the first element"},                                                                        \
        {"dilation", MX_ATTR_SHAPE, offsetof(STRUCT, PREFIX dilation),                                                 \
         1,          NULL,          "step between elements of the kernel: a number, or one for each dimension"},       \
    {                                                                                                                  \
        "groups", MX_ATTR_INT, offsetof(STRUCT, PREFIX groups), 1, NULL,                                               \
            "groups of channels; each result sees only its own group of x"                                             \
    }

static const mx_attr conv_attrs[] = {CONV_ATTRS(conv_attr, ), {0}};
static const mx_attr grad_x_attrs[] = {
    CONV_ATTRS(grad_attr, conv.), {"size", MX_ATTR_SHAPE, offsetof(grad_attr, size), NAN, NULL, "shape of x"}, {0}};
static const mx_attr grad_w_attrs[] = {
    CONV_ATTRS(grad_attr, conv.), {"size", MX_ATTR_SHAPE, offsetof(grad_attr, size), NAN, NULL, "shape of w"}, {0}};

#define CONV(N, X, W, Y)                                                                                               \
    const mx_op mx_op_conv##N##d = {.name = "conv" #N "d",                                                             \
                                    .doc = "convolution: x " X ", w " W ", bias (O) -> " Y,                            \
                                    .inputs = (const char *const[]){"x", "w", "bias?", NULL},                          \
                                    .n_out = 1,                                                                        \
                                    .n_results = 1,                                                                    \
                                    .attrs = conv_attrs,                                                               \
                                    .attr_bytes = sizeof(conv_attr),                                                   \
                                    .reads_in = 1 | 2,                                                                 \
                                    .infer = conv_infer,                                                               \
                                    .cost = conv_cost,                                                                 \
                                    .host = conv_host,                                                                 \
                                    .vjp = conv_vjp,                                                                   \
                                    .vjp_recorded = conv_vjp};                                                         \
    const mx_op mx_op_conv##N##d_grad = {.name = "conv" #N "d_grad",                                                   \
                                         .doc = "gradient of conv" #N "d by x",                                        \
                                         .inputs = (const char *const[]){"w", "dy", NULL},                             \
                                         .n_out = 1,                                                                   \
                                         .n_results = 1,                                                               \
                                         .attrs = grad_x_attrs,                                                        \
                                         .attr_bytes = sizeof(grad_attr),                                              \
                                         .infer = grad_x_infer,                                                        \
                                         .cost = grad_x_cost,                                                          \
                                         .reads_in = 3,                                                                \
                                         .host = grad_x_host,                                                          \
                                         .vjp = grad_vjp,                                                              \
                                         .vjp_recorded = grad_vjp};                                                    \
    const mx_op mx_op_conv##N##d_grad_w = {.name = "conv" #N "d_grad_w",                                               \
                                           .doc = "gradient of conv" #N "d by w, in f32",                              \
                                           .inputs = (const char *const[]){"x", "dy", NULL},                           \
                                           .n_out = 1,                                                                 \
                                           .n_results = 1,                                                             \
                                           .attrs = grad_w_attrs,                                                      \
                                           .attr_bytes = sizeof(grad_attr),                                            \
                                           .infer = grad_w_infer,                                                      \
                                           .cost = grad_w_cost,                                                        \
                                           .reads_in = 3,                                                              \
                                           .host = grad_w_host,                                                        \
                                           .vjp = grad_vjp,                                                            \
                                           .vjp_recorded = grad_vjp}

CONV(1, "(N, C, L)", "(O, C / groups, K)", "(N, O, L')");
CONV(2, "(N, C, H, W)", "(O, C / groups, K, L)", "(N, O, H', W')");
