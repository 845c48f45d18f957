/* Arithmetic of two tensors, broadcast as in numpy: sizes are aligned at the last dimension, and a size of 1
 * is repeated. */
#include "ops/pointwise.h"
#include "ops/terms.h"

#include <math.h>

typedef struct grad_attr {
    int function; /* an mx_binary */
    bool by_b;
    double p;
    int dtype;
} grad_attr;

typedef struct pair_attr {
    double p; /* weight of lerp, alpha of add_ */
} pair_attr;

/* The shape that the inputs broadcast to. */
mx_status mx_want_broadcast(const mx_call *call, mx_shape *shape)
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

static mx_broadcast plan_for(const mx_call *call, const mx_shape *out)
{
    int n_dims[MX_BROADCAST_INPUTS] = {0};
    const int64_t *sizes[MX_BROADCAST_INPUTS] = {NULL};
    for (int i = 0; i < call->n_in; i++) {
        n_dims[i] = call->in[i]->shape.n_dims;
        sizes[i] = call->in[i]->shape.size;
    }
    mx_broadcast plan;
    mx_broadcast_plan(&plan, call->n_in, n_dims, sizes, out->n_dims, out->size);
    return plan;
}

mx_broadcast mx_plan_of(const mx_call *call) { return plan_for(call, &call->out[0]->shape); }

/* Checks that inputs i and j are both reals that mix, or integers of the same dtype. */
mx_status mx_want_alike(const mx_call *call, int i, int j)
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
mx_status mx_give_reduced(mx_vjp *v, int i, mx_tensor *t)
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

static mx_pair function_of(const mx_call *call)
{
    static const struct {
        const mx_op *op;
        mx_binary function;
    } table[] = {
        {&mx_op_add, MX_ADD},         {&mx_op_sub, MX_SUB},         {&mx_op_mul, MX_MUL},
        {&mx_op_div, MX_DIV},         {&mx_op_maximum, MX_MAXIMUM}, {&mx_op_minimum, MX_MINIMUM},
        {&mx_op_idiv, MX_IDIV},       {&mx_op_power, MX_POWER},     {&mx_op_lerp, MX_LERP},
        {&mx_op_add_, MX_ADD_SCALED}, {&mx_op_sub_, MX_SUB},        {&mx_op_mul_, MX_MUL},
        {&mx_op_div_, MX_DIV},        {&mx_op_atan2, MX_ATAN2},     {&mx_op_remainder, MX_REMAINDER},
        {&mx_op_fmod, MX_FMOD},
    };
    size_t i = 0;
    while (i + 1 < sizeof table / sizeof *table && table[i].op != call->op)
        i++;
    mx_pair f = {table[i].function, call->op->attr_bytes > 0 ? ((const pair_attr *)mx_call_attr(call))->p : 0};
    if (f.op == MX_ADD_SCALED && f.p == 1)
        f.op = MX_ADD;
    return f;
}

/* An integer tensor combined with a float tensor is converted to the float's dtype. */
static mx_status infer_binary(mx_call *call)
{
    mx_shape shape;
    mx_dtype a = call->in[0]->dtype, b = call->in[1]->dtype;
    bool promoted = (mx_dtype_is_integer(a) && mx_dtype_is_real(b)) || (mx_dtype_is_real(a) && mx_dtype_is_integer(b));
    if (!promoted)
        MX_TRY(mx_want_alike(call, 0, 1));
    MX_TRY(mx_want_broadcast(call, &shape));
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
    const mx_tensor *b = call->in[1];
    mx_broadcast plan = mx_plan_of(call);
    char place[128];
    int64_t zero = mx_binary_forward(function_of(call), &plan, mx_array_of(call->in[0]), mx_array_of(b),
                                     mx_array_of(call->out[0]));
    if (zero >= 0)
        return mx_bad_value(call, "division by zero, at %s of 'b'", mx_place_text(place, &b->shape, zero));
    return MX_OK;
}

static mx_status vjp_add(mx_vjp *v)
{
    for (int i = 0; i < 2; i++) {
        mx_tensor *dy = NULL;
        if (!v->want[i])
            continue;
        MX_TRY(mx_out_grad(v, 0, &dy));
        MX_TRY(mx_give_reduced(v, i, dy));
    }
    return MX_OK;
}

static mx_status vjp_sub(mx_vjp *v)
{
    mx_tensor *dy = NULL, *negative = NULL;
    if (v->want[0]) {
        MX_TRY(mx_out_grad(v, 0, &dy));
        MX_TRY(mx_give_reduced(v, 0, dy));
    }
    if (!v->want[1])
        return MX_OK;
    MX_TRY(mx_apply_affine(v->out_grad[0], -1, 0, &negative));
    return mx_give_reduced(v, 1, negative);
}

static mx_status vjp_mul(mx_vjp *v)
{
    for (int i = 0; i < 2; i++) {
        if (!v->want[i])
            continue;
        mx_tensor *product = NULL;
        MX_TRY(mx_apply(&mx_op_mul, (mx_tensor *[]){v->out_grad[0], v->call->in[1 - i]}, 2, MX_NO_ATTRS, &product));
        MX_TRY(mx_give_reduced(v, i, product));
    }
    return MX_OK;
}

static mx_status vjp_div(mx_vjp *v)
{
    mx_tensor *in[3] = {v->call->in[0], v->call->in[1], v->out_grad[0]}, *part = NULL;
    if (v->want[0]) {
        MX_TRY(mx_apply(&mx_op_div, (mx_tensor *[]){in[2], in[1]}, 2, MX_NO_ATTRS, &part));
        MX_TRY(mx_give_reduced(v, 0, part));
    }
    if (!v->want[1])
        return MX_OK;
    const grad_attr attr = {.function = MX_DIV, .by_b = true, .dtype = -1};
    MX_TRY(mx_apply(&mx_op_binary_grad, in, 3, MX_ATTRS(attr), &part));
    return mx_give_reduced(v, 1, part);
}

/* db = -(dy / b) (a / b) */
static mx_status vjp_div_recorded(mx_vjp *v)
{
    mx_tensor *a = v->call->in[0], *b = v->call->in[1];
    mx_terms s = {.n = 0};
    mx_tensor *da = mx_term_div(&s, v->out_grad[0], b), *db = NULL;
    if (da && v->want[1])
        db = mx_term_affine(&s, mx_term_mul(&s, da, mx_term_div(&s, a, b)), -1, 0);
    if (db)
        s.status = mx_give_reduced(v, 1, mx_retain(db));
    if (s.status == MX_OK && v->want[0])
        s.status = mx_give_reduced(v, 0, mx_retain(da));
    return mx_terms_release(&s);
}

/* By binary_grad, for each input. */
static mx_status vjp_by_slope(mx_vjp *v)
{
    if (!mx_dtype_may_have_gradient(v->call->out[0]->dtype))
        return MX_OK;
    mx_tensor *in[3] = {v->call->in[0], v->call->in[1], v->out_grad[0]};
    for (int i = 0; i < 2; i++) {
        if (!v->want[i])
            continue;
        mx_tensor *part = NULL;
        mx_pair f = function_of(v->call);
        grad_attr attr = {.function = f.op, .by_b = i == 1, .p = f.p, .dtype = -1};
        MX_TRY(mx_apply(&mx_op_binary_grad, in, 3, MX_ATTRS(attr), &part));
        MX_TRY(mx_give_reduced(v, i, part));
    }
    return MX_OK;
}

/* dy times the slope, which is constant from step to step: ones where maximum and minimum choose an input. */
static mx_status vjp_step_recorded(mx_vjp *v)
{
    const mx_call *call = v->call;
    const mx_tensor *y = call->out[0];
    if (!mx_dtype_may_have_gradient(y->dtype))
        return MX_OK;
    mx_terms s = {.n = 0};
    mx_tensor *ones = NULL, *a = mx_term_constant(&s, call->in[0]), *b = mx_term_constant(&s, call->in[1]);
    if (b)
        mx_term_keep(&s, mx_apply_full(&y->shape, y->dtype, 1, &ones), &ones);
    for (int i = 0; i < 2 && s.status == MX_OK; i++) {
        grad_attr attr = {.function = function_of(call).op, .by_b = i == 1, .dtype = -1};
        if (!v->want[i])
            continue;
        mx_tensor *dx = mx_term_mul(&s, v->out_grad[0], mx_term(&s, &mx_op_binary_grad, MX_ATTRS(attr), a, b, ones));
        if (dx)
            s.status = mx_give_reduced(v, i, mx_retain(dx));
    }
    return mx_terms_release(&s);
}

/* da = dy b a^(b - 1), db = dy a^b ln a; the latter is 0 where a is 0. */
static mx_status vjp_power_recorded(mx_vjp *v)
{
    mx_tensor *a = v->call->in[0], *b = v->call->in[1], *dy = v->out_grad[0], *part = NULL;
    mx_terms s = {.n = 0};
    if (v->want[0]) {
        part = mx_term_mul(&s, b, mx_term_two(&s, &mx_op_power, a, mx_term_affine(&s, b, 1, -1)));
        part = mx_term_mul(&s, dy, part);
        if (part)
            s.status = mx_give_reduced(v, 0, mx_retain(part));
    }
    if (v->want[1] && s.status == MX_OK) {
        mx_tensor *is_zero = mx_term_compare(&s, &mx_op_eq, a, 0);
        mx_tensor *base = mx_term_where(&s, is_zero, mx_term_number(&s, a->dtype, 1), a);
        part = mx_term_mul(&s, mx_term_two(&s, &mx_op_power, a, b), mx_term_one(&s, &mx_op_log, base));
        part = mx_term_mul(&s, dy, part);
        if (part)
            s.status = mx_give_reduced(v, 1, mx_retain(part));
    }
    return mx_terms_release(&s);
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
       3, infer_binary, vjp_by_slope, vjp_step_recorded);
BINARY(minimum,
       "the smaller of a and b, broadcast; NaN if either is; the result has a's dtype (of a float and an integer: the "
       "float's)",
       3, infer_binary, vjp_by_slope, vjp_step_recorded);

static mx_status infer_power(mx_call *call)
{
    if (mx_dtype_is_integer(call->in[0]->dtype) && mx_dtype_is_integer(call->in[1]->dtype))
        return mx_bad_dtype(call, "powers are of floats; use t:to(\"f32\")");
    return infer_binary(call);
}

BINARY(power, "a^b, broadcast; the result has a's dtype (of a float and an integer: the float's)", 3, infer_power,
       vjp_by_slope, vjp_power_recorded);

static mx_status infer_atan2(mx_call *call)
{
    if (mx_dtype_is_integer(call->in[0]->dtype) && mx_dtype_is_integer(call->in[1]->dtype))
        return mx_bad_dtype(call, "angles are of floats; use t:to(\"f32\")");
    return infer_binary(call);
}

/* da = dy b / (a^2 + b^2), db = -dy a / (a^2 + b^2) */
static mx_status vjp_atan2_recorded(mx_vjp *v)
{
    mx_tensor *a = v->call->in[0], *b = v->call->in[1];
    mx_terms s = {.n = 0};
    mx_tensor *square = mx_term_add(&s, mx_term_mul(&s, a, a), mx_term_mul(&s, b, b));
    mx_tensor *part = mx_term_div(&s, v->out_grad[0], square);
    for (int i = 0; i < 2 && s.status == MX_OK; i++) {
        mx_tensor *dx = NULL;
        if (!v->want[i])
            continue;
        dx = mx_term_mul(&s, part, i == 0 ? b : mx_term_affine(&s, a, -1, 0));
        if (dx)
            s.status = mx_give_reduced(v, i, mx_retain(dx));
    }
    return mx_terms_release(&s);
}

BINARY(
    atan2,
    "the angle from -pi to pi of the point with the coordinates b and a, broadcast: atan(a / b) where b is positive; "
    "the result has a's dtype (of a float and an integer: the float's)",
    3, infer_atan2, vjp_by_slope, vjp_atan2_recorded);

static mx_status infer_lerp(mx_call *call)
{
    for (int i = 0; i < 2; i++)
        if (mx_dtype_is_integer(call->in[i]->dtype))
            return mx_bad_dtype(call, "'%s' must be a float", call->op->inputs[i]);
    return infer_binary(call);
}

/* (1 - weight) dy and weight dy. */
static mx_status vjp_lerp(mx_vjp *v)
{
    double weight = ((const pair_attr *)mx_call_attr(v->call))->p;
    for (int i = 0; i < 2; i++) {
        mx_tensor *part = NULL;
        if (!v->want[i])
            continue;
        MX_TRY(mx_apply_affine(v->out_grad[0], i == 0 ? 1 - weight : weight, 0, &part));
        MX_TRY(mx_give_reduced(v, i, part));
    }
    return MX_OK;
}

const mx_op mx_op_lerp = {
    .name = "lerp",
    .doc = "a + weight (b - a), broadcast; the result has a's dtype. With a tensor as weight: a + w * (b - a)",
    .inputs = ab_inputs,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"weight", MX_ATTR_FLOAT, offsetof(pair_attr, p), NAN, NULL, "0: a, 1: b"}, {0}},
    .attr_bytes = sizeof(pair_attr),
    .infer = infer_lerp,
    .cost = cost_one,
    .host = host_binary,
    .vjp = vjp_lerp,
    .vjp_recorded = vjp_lerp,
};

const mx_op mx_op_idiv = {
    .name = "idiv",
    .doc = "a / b rounded down, for integers of the same dtype, broadcast; an error if any b is 0",
    .inputs = ab_inputs,
    .n_out = 1,
    .n_results = 1,
    .infer = infer_idiv,
    .cost = cost_one,
    .host = host_binary,
};

/* Of floats, a zero divisor gives NaN, as in Lua. */
#define REMAINDER(NAME, DOC)                                                                                           \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC "; floats, or integers of one dtype, of which no b may be 0; the result "   \
                                           "has a's dtype (of a float and an integer: the float's)",                   \
                                .inputs = ab_inputs,                                                                   \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .reads_in = 3,                                                                         \
                                .infer = infer_binary,                                                                 \
                                .cost = cost_one,                                                                      \
                                .host = host_binary,                                                                   \
                                .vjp = vjp_by_slope,                                                                   \
                                .vjp_recorded = vjp_step_recorded}

REMAINDER(remainder, "a - floor(a / b) b, broadcast: a % b, with the sign of b");
REMAINDER(fmod, "a - q b, q being a / b rounded toward 0, broadcast: the remainder with the sign of a, as C has it");

static mx_status infer_grad(mx_call *call)
{
    mx_shape shape;
    const grad_attr *attr = mx_call_attr(call);
    if (attr->function == MX_ADD || attr->function == MX_SUB || attr->function == MX_MUL ||
        attr->function == MX_ADD_SCALED)
        return mx_bad_value(call, "add, sub, mul and add_scaled have a gradient of other operations");
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_want_arithmetic(call, i));
    if (!mx_dtype_is_real(call->in[2]->dtype))
        return mx_bad_dtype(call, "'dy' must be a float");
    MX_TRY(mx_want_broadcast(call, &shape));
    return mx_out_float(call, 0, attr->dtype, call->in[2]->dtype, &shape);
}

static mx_cost cost_grad(const mx_call *call) { return mx_cost_of(call, 3.0 * (double)mx_count(call->out[0])); }

static mx_status host_grad(mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    mx_broadcast plan = mx_plan_of(call);
    mx_binary_backward((mx_pair){(mx_binary)attr->function, attr->p}, attr->by_b, &plan, mx_array_of(call->in[0]),
                       mx_array_of(call->in[1]), mx_array_of(call->in[2]), mx_array_of(call->out[0]));
    return MX_OK;
}

static const char *const function_names[] = {
    [MX_ADD] = "add",
    [MX_SUB] = "sub",
    [MX_MUL] = "mul",
    [MX_DIV] = "div",
    [MX_MAXIMUM] = "maximum",
    [MX_MINIMUM] = "minimum",
    [MX_POWER] = "power",
    [MX_ADD_SCALED] = "add_scaled",
    [MX_LERP] = "lerp",
    [MX_ATAN2] = "atan2",
    [MX_REMAINDER] = "remainder",
    [MX_FMOD] = "fmod",
    [MX_SQUARED] = "squared",
    [MX_ABSOLUTE] = "absolute",
    [MX_HUBER] = "huber",
    [MX_BCE] = "bce",
    [MX_DIVERGENCE] = "divergence",
    [MX_DIVERGENCE_LOG] = "divergence_log",
    [MX_DIVERGENCE_LOG + 1] = NULL,
};

const mx_op mx_op_binary_grad = {
    .name = "binary_grad",
    .doc = "dy times the derivative of a function of two tensors; not yet summed over broadcast dimensions",
    .inputs = (const char *const[]){"a", "b", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){
            {"function", MX_ATTR_ENUM, offsetof(grad_attr, function), MX_DIV, function_names, "the function"},
            {"by_b", MX_ATTR_BOOL, offsetof(grad_attr, by_b), 1, NULL, "derivative with respect to b; otherwise a"},
            {"p", MX_ATTR_FLOAT, offsetof(grad_attr, p), 0, NULL, "parameter of the function"},
            {"dtype", MX_ATTR_DTYPE, offsetof(grad_attr, dtype), -1, NULL, "dtype of the result; default: that of dy"},
            {0}},
    .attr_bytes = sizeof(grad_attr),
    .infer = infer_grad,
    .cost = cost_grad,
    .host = host_grad,
};

mx_status mx_apply_binary_grad(mx_pair f, bool by_b, mx_tensor *a, mx_tensor *b, mx_tensor *dy, mx_dtype dtype,
                               mx_tensor **out)
{
    const grad_attr attr = {.function = f.op, .by_b = by_b, .p = f.p, .dtype = (int)dtype};
    return mx_apply(&mx_op_binary_grad, (mx_tensor *[]){a, b, dy}, 3, MX_ATTRS(attr), out);
}

/* ---- in place ---- */

static mx_status infer_in_place(mx_call *call)
{
    mx_shape shape;
    const mx_tensor *c = call->in[0], *x = call->in[1];
    mx_pair f = function_of(call);
    bool promoted = mx_dtype_is_real(c->dtype) && mx_dtype_is_integer(x->dtype);
    if (mx_dtype_is_integer(c->dtype) && (f.op == MX_DIV || f.op == MX_ADD_SCALED))
        return mx_bad_dtype(call, f.op == MX_DIV ? "integers have no fractions: a // b rounds down"
                                                 : "alpha is for floats; add_ an integer multiplied before");
    if (!promoted)
        MX_TRY(mx_want_alike(call, 0, 1));
    MX_TRY(mx_want_broadcast(call, &shape));
    if (!mx_shape_equal(&shape, &c->shape))
        return mx_bad_shape(call, "x does not broadcast to c, which is changed in place");
    return MX_OK;
}

static mx_cost cost_in_place(const mx_call *call)
{
    mx_cost cost = mx_cost_of(call, (double)mx_count(call->in[0]));
    cost.bytes_written = (double)mx_bytes(call->in[0]);
    return cost;
}

static mx_status host_in_place(mx_call *call)
{
    mx_tensor *c = call->in[0], *x = call->in[1];
    mx_pair f = function_of(call);
    bool reals = mx_dtype_is_real(c->dtype) && mx_dtype_is_real(x->dtype);
    mx_broadcast plan = plan_for(call, &c->shape);
    if (f.op == MX_ADD && reals && mx_shape_equal(&c->shape, &x->shape))
        mx_add_to(mx_array_of(c), mx_array_of(x), mx_count(c));
    else
        mx_binary_forward(f, &plan, mx_array_of(c), mx_array_of(x), mx_array_of(c));
    return MX_OK;
}

#define IN_PLACE(NAME, DOC, ATTRS, ATTR_BYTES)                                                                         \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = (const char *const[]){"c", "x", NULL},                                       \
                                .flags = MX_OP_MUTATES,                                                                \
                                .attrs = ATTRS,                                                                        \
                                .attr_bytes = ATTR_BYTES,                                                              \
                                .infer = infer_in_place,                                                               \
                                .cost = cost_in_place,                                                                 \
                                .host = host_in_place}

static const mx_attr add_attrs[] = {{"alpha", MX_ATTR_FLOAT, offsetof(pair_attr, p), 1, NULL, "factor of x"}, {0}};

IN_PLACE(add_, "c += alpha x in place; x broadcasts to c", add_attrs, sizeof(pair_attr));
IN_PLACE(sub_, "c -= x in place; x broadcasts to c", NULL, 0);
IN_PLACE(mul_, "c *= x in place; x broadcasts to c", NULL, 0);
IN_PLACE(div_, "c /= x in place, for floats; x broadcasts to c", NULL, 0);

mx_status mx_apply_add_to(mx_tensor *c, mx_tensor *x, double alpha)
{
    const pair_attr attr = {.p = alpha};
    return mx_apply(&mx_op_add_, (mx_tensor *[]){c, x}, 2, MX_ATTRS(attr), NULL);
}
