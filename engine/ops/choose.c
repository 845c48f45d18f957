/* Comparisons, and choices between elements, broadcast as in elementwise.c. */
#include "ops/pointwise.h"

#include <math.h>

static const char *const ab_inputs[] = {"a", "b", NULL};

static mx_cost cost_one(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->out[0])); }

/* ---- comparisons ---- */

static mx_status infer_compare(mx_call *call)
{
    mx_shape shape;
    MX_TRY(mx_want_alike(call, 0, 1));
    MX_TRY(mx_want_broadcast(call, &shape));
    return mx_out(call, 0, MX_U8, &shape);
}

static mx_status host_compare(mx_call *call)
{
    static const mx_op *const ops[MX_COMPARES] = {
        [MX_EQ] = &mx_op_eq, [MX_NE] = &mx_op_ne, [MX_LT] = &mx_op_lt,
        [MX_LE] = &mx_op_le, [MX_GT] = &mx_op_gt, [MX_GE] = &mx_op_ge,
    };
    int f = 0;
    while (f + 1 < MX_COMPARES && ops[f] != call->op)
        f++;
    mx_broadcast plan = mx_plan_of(call);
    mx_compare_forward((mx_compare)f, &plan, mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_data(call->out[0]));
    return MX_OK;
}

#define COMPARE(NAME, DOC)                                                                                             \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = ab_inputs,                                                                   \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .infer = infer_compare,                                                                \
                                .cost = cost_one,                                                                      \
                                .host = host_compare}

COMPARE(eq, "1 where a = b, else 0, as u8; broadcast");
COMPARE(ne, "1 where a differs from b, else 0, as u8; broadcast");
COMPARE(lt, "1 where a < b, else 0, as u8; broadcast");
COMPARE(le, "1 where a <= b, else 0, as u8; broadcast");
COMPARE(gt, "1 where a > b, else 0, as u8; broadcast");
COMPARE(ge, "1 where a >= b, else 0, as u8; broadcast");

static mx_status infer_class(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return mx_out(call, 0, MX_U8, &call->in[0]->shape);
}

static mx_status host_class(mx_call *call)
{
    mx_array x = mx_array_of(call->in[0]);
    mx_broadcast plan = {
        .n_dims = 1, .count = mx_count(call->in[0]), .size = {mx_count(call->in[0])}, .stride = {{1}, {1}}};
    mx_compare_forward(call->op == &mx_op_isnan ? MX_NE : MX_FINITE, &plan, x, x, mx_data(call->out[0]));
    return MX_OK;
}

#define CLASS(NAME, DOC)                                                                                               \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = (const char *const[]){"x", NULL},                                            \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .infer = infer_class,                                                                  \
                                .cost = cost_one,                                                                      \
                                .host = host_class}

CLASS(isnan, "1 where x is NaN, else 0, as u8");
CLASS(isfinite, "1 where x is neither infinite nor NaN, else 0, as u8");

/* ---- where ---- */

static mx_status infer_where(mx_call *call)
{
    mx_shape shape;
    MX_TRY(mx_want_dtype(call, 0, MX_U8));
    MX_TRY(mx_want_alike(call, 1, 2));
    MX_TRY(mx_want_broadcast(call, &shape));
    return mx_out(call, 0, call->in[1]->dtype, &shape);
}

static mx_cost cost_none(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status host_where(mx_call *call)
{
    mx_broadcast plan = mx_plan_of(call);
    mx_where_forward(&plan, mx_data(call->in[0]), mx_array_of(call->in[1]), mx_array_of(call->in[2]),
                     mx_array_of(call->out[0]));
    return MX_OK;
}

/* The gradient of each input: dy where the input was chosen, 0 elsewhere. */
static mx_status vjp_where(mx_vjp *v)
{
    if (!mx_dtype_may_have_gradient(v->call->out[0]->dtype))
        return MX_OK;
    mx_tensor *zero = NULL, *dy = v->out_grad[0], *cond = v->call->in[0];
    MX_TRY(mx_apply_full(&(mx_shape){0}, dy->dtype, 0, &zero));
    mx_status status = MX_OK;
    for (int i = 1; i < 3 && status == MX_OK; i++) {
        mx_tensor *part = NULL, *in[3] = {cond, i == 1 ? dy : zero, i == 1 ? zero : dy};
        if (v->want[i])
            status = mx_apply(&mx_op_where, in, 3, MX_NO_ATTRS, &part);
        if (part)
            status = mx_give_reduced(v, i, part);
    }
    mx_release(zero);
    return status;
}

const mx_op mx_op_where = {
    .name = "where",
    .doc = "a if cond (u8) is not 0, else b; broadcast; the result has a's dtype",
    .inputs = (const char *const[]){"cond", "a", "b", NULL},
    .n_out = 1,
    .n_results = 1,
    .reads_in = 1,
    .infer = infer_where,
    .cost = cost_none,
    .host = host_where,
    .vjp = vjp_where,
    .vjp_recorded = vjp_where,
};

/* ---- masked_fill ---- */

typedef struct masked_attr {
    double value;
} masked_attr;

static mx_status infer_masked(mx_call *call)
{
    mx_shape shape;
    mx_dtype dtype = call->in[0]->dtype;
    MX_TRY(mx_want_arithmetic(call, 0));
    MX_TRY(mx_want_dtype(call, 1, MX_U8));
    MX_TRY(mx_want_number("masked_fill", "value", dtype, ((const masked_attr *)mx_call_attr(call))->value));
    MX_TRY(mx_want_broadcast(call, &shape));
    return mx_out(call, 0, dtype, &shape);
}

static mx_status host_masked(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    const mx_shape *shapes[3] = {&call->in[1]->shape, &(const mx_shape){0}, &x->shape}, *out = &call->out[0]->shape;
    int n_dims[3];
    const int64_t *sizes[3];
    _Alignas(8) char value[8];
    for (int i = 0; i < 3; i++) {
        n_dims[i] = shapes[i]->n_dims;
        sizes[i] = shapes[i]->size;
    }
    mx_broadcast plan;
    mx_broadcast_plan(&plan, 3, n_dims, sizes, out->n_dims, out->size);
    mx_fill((mx_array){value, x->dtype}, ((const masked_attr *)mx_call_attr(call))->value, 1);
    mx_where_forward(&plan, mx_data(call->in[1]), (mx_array){value, x->dtype}, mx_array_of(x),
                     mx_array_of(call->out[0]));
    return MX_OK;
}

static mx_status vjp_masked(mx_vjp *v)
{
    const masked_attr attr = {0};
    mx_tensor *part = NULL, *in[2] = {v->out_grad[0], v->call->in[1]};
    if (!mx_dtype_may_have_gradient(v->call->in[0]->dtype))
        return MX_OK;
    MX_TRY(mx_apply(&mx_op_masked_fill, in, 2, MX_ATTRS(attr), &part));
    return mx_give_reduced(v, 0, part);
}

const mx_op mx_op_masked_fill = {
    .name = "masked_fill",
    .doc = "x with `value` where mask (u8) is not 0; broadcast",
    .inputs = (const char *const[]){"x", "mask", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"value", MX_ATTR_FLOAT, offsetof(masked_attr, value), NAN, NULL, "the value"}, {0}},
    .attr_bytes = sizeof(masked_attr),
    .reads_in = 2,
    .infer = infer_masked,
    .cost = cost_none,
    .host = host_masked,
    .vjp = vjp_masked,
    .vjp_recorded = vjp_masked,
};
