/* Functions of two and three tensors, broadcast as in numpy: sizes are aligned at the last dimension, and a size of 1
 * is repeated. */
#include "ops/pointwise.h"

typedef struct grad_attr {
    int function; /* an mx_binary */
    bool by_b;
} grad_attr;

/* The shape that the inputs broadcast to. */
static mx_status want_broadcast(const mx_call *call, mx_shape *shape)
{
    int n_dims[MX_BROADCAST_INPUTS];
    const int64_t *sizes[MX_BROADCAST_INPUTS];
    for (int i = 0; i < call->n_in; i++) {
        n_dims[i] = call->in[i]->shape.n_dims;
        sizes[i] = call->in[i]->shape.size;
    }
    if (!mx_broadcast_sizes(call->n_in, n_dims, sizes, &shape->n_dims, shape->size))
        return mx_bad_shape(call, "shapes do not broadcast (aligned at the last dimension, sizes must be equal or 1)");
    return MX_OK;
}

static mx_broadcast plan_of(const mx_call *call)
{
    int n_dims[MX_BROADCAST_INPUTS];
    const int64_t *sizes[MX_BROADCAST_INPUTS];
    for (int i = 0; i < call->n_in; i++) {
        n_dims[i] = call->in[i]->shape.n_dims;
        sizes[i] = call->in[i]->shape.size;
    }
    mx_broadcast plan;
    mx_broadcast_plan(&plan, call->n_in, n_dims, sizes, call->out[0]->shape.n_dims, call->out[0]->shape.size);
    return plan;
}

/* Checks that inputs i and j are both reals that mix, or integers of the same dtype. */
static mx_status want_alike(const mx_call *call, int i, int j)
{
    mx_dtype a = call->in[i]->dtype, b = call->in[j]->dtype;
    MX_TRY(mx_want_arithmetic(call, i));
    MX_TRY(mx_want_arithmetic(call, j));
    if (a == b || (mx_dtype_computes(a) && mx_dtype_computes(b)))
        return MX_OK;
    if (mx_dtype_is_real(a) && mx_dtype_is_real(b))
        return mx_bad_dtype(call, "f64 mixes with no other float; use t:to(\"f64\")");
    return mx_bad_dtype(call, "'%s' and '%s' must both be floats, or integers of one dtype; use t:to(dtype)",
                        call->op->inputs[i], call->op->inputs[j]);
}

/* Makes t, which has the output's shape and is taken over, the gradient of input i: sums it over broadcast dimensions.
 */
static mx_status give_reduced(mx_vjp *v, int i, mx_tensor *t)
{
    const mx_tensor *x = v->call->in[i];
    if (mx_shape_equal(&x->shape, &t->shape))
        return mx_give_grad(v, i, t);
    mx_reduce_to_attr attr = {.shape = x->shape, .dtype = mx_vjp_dtype(v, i)};
    mx_status status = mx_apply(&mx_op_reduce_to, &t, 1, MX_ATTRS(attr), &v->grad[i]);
    mx_release(t);
    return status;
}

/* ---- arithmetic ---- */

static mx_binary function_of(const mx_call *call)
{
    static const mx_op *const ops[MX_BINARIES] = {
        [MX_ADD] = &mx_op_add,         [MX_SUB] = &mx_op_sub,         [MX_MUL] = &mx_op_mul,   [MX_DIV] = &mx_op_div,
        [MX_MAXIMUM] = &mx_op_maximum, [MX_MINIMUM] = &mx_op_minimum, [MX_IDIV] = &mx_op_idiv,
    };
    int f = 0;
    while (f + 1 < MX_BINARIES && ops[f] != call->op)
        f++;
    return (mx_binary)f;
}

/* An integer tensor combined with a float tensor is converted to the float's dtype. */
static mx_status infer_binary(mx_call *call)
{
    mx_shape shape;
    mx_dtype a = call->in[0]->dtype, b = call->in[1]->dtype;
    bool promoted = (mx_dtype_is_integer(a) && mx_dtype_is_real(b)) || (mx_dtype_is_real(a) && mx_dtype_is_integer(b));
    if (!promoted)
        MX_TRY(want_alike(call, 0, 1));
    MX_TRY(want_broadcast(call, &shape));
    return mx_out(call, 0, promoted && mx_dtype_is_integer(a) ? b : a, &shape);
}

static mx_status infer_div(mx_call *call)
{
    if (mx_dtype_is_integer(call->in[0]->dtype) && mx_dtype_is_integer(call->in[1]->dtype))
        return mx_bad_dtype(call, "integers have no fractions: a // b rounds down, t:to(\"f32\") gives them");
    return infer_binary(call);
}

static mx_status infer_idiv(mx_call *call)
{
    for (int i = 0; i < 2; i++)
        if (!mx_dtype_is_integer(call->in[i]->dtype))
            return mx_bad_dtype(call, "'%s' must be an integer; a / b divides floats", call->op->inputs[i]);
    return infer_binary(call);
}

static mx_cost cost_one(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->out[0])); }

static mx_status host_binary(mx_call *call)
{
    mx_broadcast plan = plan_of(call);
    mx_binary_forward(function_of(call), &plan, mx_array_of(call->in[0]), mx_array_of(call->in[1]),
                      mx_array_of(call->out[0]));
    return MX_OK;
}

static mx_status host_idiv(mx_call *call)
{
    const mx_tensor *b = call->in[1];
    char place[128];
    int64_t zero = mx_find_zero(mx_array_of(b), mx_count(b));
    if (zero >= 0)
        return mx_bad_value(call, "division by zero, at %s of 'b'", mx_place_text(place, &b->shape, zero));
    return host_binary(call);
}

static mx_status vjp_add(mx_vjp *v)
{
    for (int i = 0; i < 2; i++) {
        mx_tensor *dy = NULL;
        if (!v->want[i])
            continue;
        MX_TRY(mx_out_grad(v, 0, &dy));
        MX_TRY(give_reduced(v, i, dy));
    }
    return MX_OK;
}

static mx_status vjp_sub(mx_vjp *v)
{
    mx_tensor *dy = NULL, *negative = NULL;
    if (v->want[0]) {
        MX_TRY(mx_out_grad(v, 0, &dy));
        MX_TRY(give_reduced(v, 0, dy));
    }
    if (!v->want[1])
        return MX_OK;
    MX_TRY(mx_apply_affine(v->out_grad[0], -1, 0, &negative));
    return give_reduced(v, 1, negative);
}

static mx_status vjp_mul(mx_vjp *v)
{
    for (int i = 0; i < 2; i++) {
        if (!v->want[i])
            continue;
        mx_tensor *product = NULL;
        MX_TRY(mx_apply(&mx_op_mul, (mx_tensor *[]){v->out_grad[0], v->call->in[1 - i]}, 2, MX_NO_ATTRS, &product));
        MX_TRY(give_reduced(v, i, product));
    }
    return MX_OK;
}

static mx_status vjp_div(mx_vjp *v)
{
    mx_tensor *in[3] = {v->call->in[0], v->call->in[1], v->out_grad[0]}, *part = NULL;
    if (v->want[0]) {
        MX_TRY(mx_apply(&mx_op_div, (mx_tensor *[]){in[2], in[1]}, 2, MX_NO_ATTRS, &part));
        MX_TRY(give_reduced(v, 0, part));
    }
    if (!v->want[1])
        return MX_OK;
    const grad_attr attr = {MX_DIV, true};
    MX_TRY(mx_apply(&mx_op_binary_grad, in, 3, MX_ATTRS(attr), &part));
    return give_reduced(v, 1, part);
}

/* db = -(dy / b) (a / b) */
static mx_status vjp_div_recorded(mx_vjp *v)
{
    mx_tensor *a = v->call->in[0], *b = v->call->in[1], *part = NULL, *ratio = NULL, *db = NULL;
    MX_TRY(mx_apply(&mx_op_div, (mx_tensor *[]){v->out_grad[0], b}, 2, MX_NO_ATTRS, &part));
    mx_status status = MX_OK;
    if (v->want[1])
        status = mx_apply(&mx_op_div, (mx_tensor *[]){a, b}, 2, MX_NO_ATTRS, &ratio);
    if (ratio)
        status = mx_apply(&mx_op_mul, (mx_tensor *[]){part, ratio}, 2, MX_NO_ATTRS, &db);
    mx_release(ratio);
    if (db) {
        status = mx_apply_affine(db, -1, 0, &ratio);
        mx_release(db);
        if (status == MX_OK)
            status = give_reduced(v, 1, ratio);
    }
    if (status == MX_OK && v->want[0])
        return give_reduced(v, 0, part);
    mx_release(part);
    return status;
}

static mx_status vjp_extremum(mx_vjp *v)
{
    mx_tensor *in[3] = {v->call->in[0], v->call->in[1], v->out_grad[0]};
    for (int i = 0; i < 2; i++) {
        if (!v->want[i])
            continue;
        mx_tensor *part = NULL;
        grad_attr attr = {.function = function_of(v->call), .by_b = i == 1};
        MX_TRY(mx_apply(&mx_op_binary_grad, in, 3, MX_ATTRS(attr), &part));
        MX_TRY(give_reduced(v, i, part));
    }
    return MX_OK;
}

static const char *const ab_inputs[] = {"a", "b", NULL};

#define BINARY(NAME, DOC, READS_IN, INFER, VJP, VJP_RECORDED)                                                          \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = ab_inputs,                                                                   \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .reads_in = READS_IN,                                                                  \
                                .infer = INFER,                                                                        \
                                .cost = cost_one,                                                                      \
                                .host = host_binary,                                                                   \
                                .vjp = VJP,                                                                            \
                                .vjp_recorded = VJP_RECORDED}

BINARY(add, "a + b, broadcast; the result has a's dtype (of a float and an integer: the float's)", 0, infer_binary,
       vjp_add, vjp_add);
BINARY(sub, "a - b, broadcast; the result has a's dtype (of a float and an integer: the float's)", 0, infer_binary,
       vjp_sub, vjp_sub);
BINARY(mul, "a b, element by element, broadcast; the result has a's dtype (of a float and an integer: the float's)", 3,
       infer_binary, vjp_mul, vjp_mul);
BINARY(div, "a / b for floats, broadcast; the result has a's dtype (of a float and an integer: the float's)", 3,
       infer_div, vjp_div, vjp_div_recorded);
BINARY(maximum,
       "the larger of a and b, broadcast; NaN if either is; the result has a's dtype (of a float and an integer: the "
       "float's)",
       3, infer_binary, vjp_extremum, NULL);
BINARY(minimum,
       "the smaller of a and b, broadcast; NaN if either is; the result has a's dtype (of a float and an integer: the "
       "float's)",
       3, infer_binary, vjp_extremum, NULL);

const mx_op mx_op_idiv = {
    .name = "idiv",
    .doc = "a / b rounded down, for integers of the same dtype, broadcast; an error if any b is 0",
    .inputs = ab_inputs,
    .n_out = 1,
    .n_results = 1,
    .infer = infer_idiv,
    .cost = cost_one,
    .host = host_idiv,
};

static mx_status infer_grad(mx_call *call)
{
    mx_shape shape;
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_want_arithmetic(call, i));
    if (!mx_dtype_is_real(call->in[2]->dtype))
        return mx_bad_dtype(call, "'dy' must be a float");
    MX_TRY(want_broadcast(call, &shape));
    return mx_out(call, 0, call->in[2]->dtype, &shape);
}

static mx_cost cost_grad(const mx_call *call) { return mx_cost_of(call, 3.0 * (double)mx_count(call->out[0])); }

static mx_status host_grad(mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    mx_broadcast plan = plan_of(call);
    mx_binary_backward((mx_binary)attr->function, attr->by_b, &plan, mx_array_of(call->in[0]), mx_array_of(call->in[1]),
                       mx_array_of(call->in[2]), mx_array_of(call->out[0]));
    return MX_OK;
}

static const char *const function_names[] = {
    [MX_ADD] = "add",         [MX_SUB] = "sub",         [MX_MUL] = "mul",        [MX_DIV] = "div",
    [MX_MAXIMUM] = "maximum", [MX_MINIMUM] = "minimum", [MX_MINIMUM + 1] = NULL,
};

const mx_op mx_op_binary_grad = {
    .name = "binary_grad",
    .doc = "dy times the derivative of div with respect to b, or of maximum or minimum; not yet summed over broadcast "
           "dimensions",
    .inputs = (const char *const[]){"a", "b", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"function", MX_ATTR_ENUM, offsetof(grad_attr, function), MX_DIV, function_names,
                                "div, maximum or minimum"},
                               {"by_b", MX_ATTR_BOOL, offsetof(grad_attr, by_b), 1, NULL,
                                "derivative with respect to b; otherwise a"},
                               {0}},
    .attr_bytes = sizeof(grad_attr),
    .infer = infer_grad,
    .cost = cost_grad,
    .host = host_grad,
};

/* ---- comparisons ---- */

static mx_status infer_compare(mx_call *call)
{
    mx_shape shape;
    MX_TRY(want_alike(call, 0, 1));
    MX_TRY(want_broadcast(call, &shape));
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
    mx_broadcast plan = plan_of(call);
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

/* ---- where ---- */

static mx_status infer_where(mx_call *call)
{
    mx_shape shape;
    MX_TRY(mx_want_dtype(call, 0, MX_U8));
    MX_TRY(want_alike(call, 1, 2));
    MX_TRY(want_broadcast(call, &shape));
    return mx_out(call, 0, call->in[1]->dtype, &shape);
}

static mx_cost cost_none(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status host_where(mx_call *call)
{
    mx_broadcast plan = plan_of(call);
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
            status = give_reduced(v, i, part);
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

/* ---- add_acc ---- */

static mx_status infer_acc(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return mx_want_shape(call, 1, &call->in[0]->shape);
}

static mx_cost cost_acc(const mx_call *call)
{
    mx_cost cost = mx_cost_of(call, (double)mx_count(call->in[0]));
    cost.bytes_written = (double)mx_bytes(call->in[0]);
    return cost;
}

static mx_status host_acc(mx_call *call)
{
    mx_add_to(mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_count(call->in[0]));
    return MX_OK;
}

const mx_op mx_op_add_acc = {
    .name = "add_acc",
    .doc = "c += x in place; both have the same shape",
    .inputs = (const char *const[]){"c", "x", NULL},
    .flags = MX_OP_MUTATES,
    .infer = infer_acc,
    .cost = cost_acc,
    .host = host_acc,
};
