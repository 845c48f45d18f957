/* Elementwise functions of one tensor, and their gradient. */
#include "ops/pointwise.h"
#include "ops/terms.h"

#include <math.h>

/* Of the functions with parameters: scale and shift, exponent, beta, slope, alpha, or min and max. */
typedef struct parameters {
    double p0, p1;
} parameters;

typedef struct grad_attr {
    int function; /* an mx_unary */
    int dtype;    /* of dx */
    double p0, p1;
} grad_attr;

const char *const mx_gelu_choices[] = {"tanh", "none", NULL};

double mx_unary_parameter(const mx_call *call) { return ((const parameters *)mx_call_attr(call))->p0; }

static mx_function function_of(const mx_call *call)
{
    static const struct {
        const mx_op *op;
        mx_unary function;
    } table[] = {
        {&mx_op_exp, MX_EXP},       {&mx_op_log, MX_LOG},
        {&mx_op_sqrt, MX_SQRT},     {&mx_op_rsqrt, MX_RSQRT},
        {&mx_op_abs, MX_ABS},       {&mx_op_tanh, MX_TANH},
        {&mx_op_square, MX_SQUARE}, {&mx_op_sigmoid, MX_SIGMOID},
        {&mx_op_sin, MX_SIN},       {&mx_op_cos, MX_COS},
        {&mx_op_relu, MX_RELU},     {&mx_op_silu, MX_SILU},
        {&mx_op_erf, MX_ERF},       {&mx_op_log1p, MX_LOG1P},
        {&mx_op_expm1, MX_EXPM1},   {&mx_op_floor, MX_FLOOR},
        {&mx_op_ceil, MX_CEIL},     {&mx_op_round, MX_ROUND},
        {&mx_op_sign, MX_SIGN},     {&mx_op_softplus, MX_SOFTPLUS},
        {&mx_op_elu, MX_ELU},       {&mx_op_leaky_relu, MX_LEAKY_RELU},
        {&mx_op_clamp, MX_CLAMP},   {&mx_op_affine, MX_AFFINE},
        {&mx_op_pow, MX_POW},       {&mx_op_tan, MX_TAN},
        {&mx_op_asin, MX_ASIN},     {&mx_op_acos, MX_ACOS},
        {&mx_op_atan, MX_ATAN},     {&mx_op_sinh, MX_SINH},
        {&mx_op_cosh, MX_COSH},     {&mx_op_asinh, MX_ASINH},
        {&mx_op_acosh, MX_ACOSH},   {&mx_op_atanh, MX_ATANH},
    };
    if (call->op == &mx_op_gelu)
        return (mx_function){.op =
                                 ((const mx_gelu_attr *)mx_call_attr(call))->approximate ? MX_GELU_ERF : MX_GELU_TANH};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].op == call->op) {
            const parameters *p = call->op->attr_bytes > 0 ? mx_call_attr(call) : &(const parameters){0};
            return (mx_function){table[i].function, p->p0, p->p1};
        }
    return (mx_function){.op = MX_UNARIES}; /* not reached: every operation of this kind is named above */
}

/* Arithmetic per element, an exponential counted as 10. */
static double flops_of(mx_unary op)
{
    switch (op) {
    case MX_ABS:
    case MX_RELU:
    case MX_FLOOR:
    case MX_CEIL:
    case MX_ROUND:
    case MX_SIGN:
    case MX_SQUARE:
    case MX_SQRT:
        return 1;
    case MX_AFFINE:
    case MX_CLAMP:
    case MX_LEAKY_RELU:
    case MX_RSQRT:
        return 2;
    default:
        return 12;
    }
}

mx_status mx_unary_infer(mx_call *call)
{
    MX_TRY(mx_want_reals(call));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

mx_cost mx_unary_cost(const mx_call *call)
{
    return mx_cost_of(call, flops_of(function_of(call).op) * (double)mx_count(call->in[0]));
}

mx_status mx_unary_host(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_unary_forward(function_of(call), mx_array_of(x), mx_array_of(call->out[0]), mx_count(x));
    return MX_OK;
}

mx_status mx_unary_vjp(mx_vjp *v)
{
    mx_function f = function_of(v->call);
    grad_attr attr = {.function = f.op, .dtype = mx_vjp_dtype(v, 0), .p0 = f.p0, .p1 = f.p1};
    mx_tensor *value = mx_unary_reads_output(f.op) ? v->call->out[0] : v->call->in[0];
    return mx_apply(&mx_op_unary_grad, (mx_tensor *[]){value, v->out_grad[0]}, 2, MX_ATTRS(attr), &v->grad[0]);
}

mx_tensor *mx_unary_constant_slope(mx_terms *s, const mx_call *call)
{
    mx_function f = function_of(call);
    grad_attr attr = {.function = f.op, .dtype = -1, .p0 = f.p0, .p1 = f.p1};
    mx_tensor *value = mx_unary_reads_output(f.op) ? call->out[0] : call->in[0], *ones = NULL;
    value = mx_term_constant(s, value);
    if (!value || !mx_term_keep(s, mx_apply_full(&value->shape, value->dtype, 1, &ones), &ones))
        return NULL;
    return mx_term(s, &mx_op_unary_grad, MX_ATTRS(attr), value, ones, NULL);
}

static const char *const x_input[] = {"x", NULL};

#define UNARY(NAME, DOC, READS_IN, READS_OUT)                                                                          \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = x_input,                                                                     \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .reads_in = READS_IN,                                                                  \
                                .reads_out = READS_OUT,                                                                \
                                .infer = mx_unary_infer,                                                               \
                                .cost = mx_unary_cost,                                                                 \
                                .host = mx_unary_host,                                                                 \
                                .vjp = mx_unary_vjp,                                                                   \
                                .vjp_recorded = mx_unary_vjp_recorded}

UNARY(exp, "e^x, element by element", 0, 1);
UNARY(log, "natural logarithm, element by element", 1, 0);
UNARY(sqrt, "square root, element by element", 0, 1);
UNARY(rsqrt, "1 / sqrt(x), element by element", 0, 1);
UNARY(abs, "|x|, element by element; gradient 0 at 0", 1, 0);
UNARY(tanh, "hyperbolic tangent, element by element", 0, 1);
UNARY(sigmoid, "1 / (1 + e^-x), element by element", 0, 1);
UNARY(square, "x^2, element by element", 1, 0);
UNARY(sin, "sine, element by element", 1, 0);
UNARY(cos, "cosine, element by element", 1, 0);
UNARY(tan, "tangent, element by element", 0, 1);
UNARY(asin, "the angle from -pi/2 to pi/2 whose sine is x, element by element; NaN beyond -1 and 1", 1, 0);
UNARY(acos, "the angle from 0 to pi whose cosine is x, element by element; NaN beyond -1 and 1", 1, 0);
UNARY(atan, "the angle from -pi/2 to pi/2 whose tangent is x, element by element", 1, 0);
UNARY(sinh, "hyperbolic sine, element by element", 1, 0);
UNARY(cosh, "hyperbolic cosine, element by element", 1, 0);
UNARY(asinh, "inverse hyperbolic sine, element by element", 1, 0);
UNARY(acosh, "inverse hyperbolic cosine from 0 on, element by element; NaN below 1", 1, 0);
UNARY(atanh, "inverse hyperbolic tangent, element by element; infinite at -1 and 1, NaN beyond", 1, 0);
UNARY(erf, "the error function, element by element", 1, 0);
UNARY(log1p, "ln(1 + x), accurate near 0, element by element", 1, 0);
UNARY(expm1, "e^x - 1, accurate near 0, element by element", 1, 0);
UNARY(floor, "x rounded down; gradient 0", 1, 0);
UNARY(ceil, "x rounded up; gradient 0", 1, 0);
UNARY(round, "x rounded to the nearest whole number, ties to even; gradient 0", 1, 0);
UNARY(sign, "-1, 0 or 1: the sign of x; gradient 0", 1, 0);

/* ---- functions with one parameter ---- */

#define WITH_PARAMETER(NAME, DOC, PARAMETER, STANDARD, PARAMETER_DOC, INFER)                                           \
    const mx_op mx_op_##NAME = {                                                                                       \
        .name = #NAME,                                                                                                 \
        .doc = DOC,                                                                                                    \
        .inputs = x_input,                                                                                             \
        .n_out = 1,                                                                                                    \
        .n_results = 1,                                                                                                \
        .attrs =                                                                                                       \
            (const mx_attr[]){{PARAMETER, MX_ATTR_FLOAT, offsetof(parameters, p0), STANDARD, NULL, PARAMETER_DOC},     \
                              {0}},                                                                                    \
        .attr_bytes = sizeof(parameters),                                                                              \
        .reads_in = 1,                                                                                                 \
        .infer = INFER,                                                                                                \
        .cost = mx_unary_cost,                                                                                         \
        .host = mx_unary_host,                                                                                         \
        .vjp = mx_unary_vjp,                                                                                           \
        .vjp_recorded = mx_unary_vjp_recorded,                                                                         \
    }

static mx_status infer_softplus(mx_call *call)
{
    double beta = ((const parameters *)mx_call_attr(call))->p0;
    if (!(beta > 0) || isinf(beta))
        return mx_bad_value(call, "beta = %g must be positive", beta);
    return mx_unary_infer(call);
}

WITH_PARAMETER(pow, "x^exponent, elementwise; mx.power takes two tensors", "exponent", NAN, "the power",
               mx_unary_infer);
WITH_PARAMETER(softplus, "ln(1 + e^(beta x)) / beta, elementwise", "beta", 1, "steepness, positive", infer_softplus);
WITH_PARAMETER(leaky_relu, "x, or negative_slope x where x is negative; the gradient at 0 is that of the left",
               "negative_slope", 0.01, "factor of negative x", mx_unary_infer);
WITH_PARAMETER(elu, "x, or alpha (e^x - 1) where x is negative", "alpha", 1, "factor of negative values",
               mx_unary_infer);

/* ---- clamp ---- */

static mx_status infer_clamp(mx_call *call)
{
    const parameters *p = mx_call_attr(call);
    mx_dtype dtype = call->in[0]->dtype;
    if (isinf(p->p0) && isinf(p->p1))
        return mx_bad_value(call, "'min' or 'max' must be given");
    if (!(p->p0 <= p->p1))
        return mx_bad_value(call, "min = %g is greater than max = %g", p->p0, p->p1);
    if (!mx_dtype_is_integer(dtype))
        return mx_unary_infer(call);
    if (!isinf(p->p0))
        MX_TRY(mx_want_number("clamp", "min", dtype, p->p0));
    if (!isinf(p->p1))
        MX_TRY(mx_want_number("clamp", "max", dtype, p->p1));
    return mx_out(call, 0, dtype, &call->in[0]->shape);
}

static mx_status host_clamp(mx_call *call)
{
    const parameters *p = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    if (!mx_dtype_is_integer(x->dtype))
        return mx_unary_host(call);
    mx_clamp_int(mx_array_of(x), mx_array_of(call->out[0]), isinf(p->p0) ? mx_dtypes[x->dtype].lowest : (int64_t)p->p0,
                 isinf(p->p1) ? mx_dtypes[x->dtype].highest : (int64_t)p->p1, mx_count(x));
    return MX_OK;
}

static mx_status vjp_clamp(mx_vjp *v)
{
    return mx_dtype_may_have_gradient(v->call->in[0]->dtype) ? mx_unary_vjp(v) : MX_OK;
}

const mx_op mx_op_clamp = {
    .name = "clamp",
    .doc = "x between min and max, elementwise; the gradient is 0 outside of them",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){
            {"min", MX_ATTR_FLOAT, offsetof(parameters, p0), -INFINITY, NULL, "the least value; default: no limit"},
            {"max", MX_ATTR_FLOAT, offsetof(parameters, p1), INFINITY, NULL, "the greatest value; default: no limit"},
            {0}},
    .attr_bytes = sizeof(parameters),
    .reads_in = 1,
    .infer = infer_clamp,
    .cost = mx_unary_cost,
    .host = host_clamp,
    .vjp = vjp_clamp,
    .vjp_recorded = mx_unary_vjp_recorded,
};

/* ---- affine ---- */

/* For integers, scale and shift must be integers, so that nothing is rounded, and fit i32 (i64 for i64), so that
 * results are exact. */
static mx_status infer_affine(mx_call *call)
{
    const parameters *attr = mx_call_attr(call);
    mx_dtype dtype = mx_dtype_accumulates_in(call->in[0]->dtype);
    MX_TRY(mx_want_arithmetic(call, 0));
    MX_TRY(mx_want_number("affine", "scale", dtype, attr->p0));
    MX_TRY(mx_want_number("affine", "shift", dtype, attr->p1));
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_status host_affine(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    const parameters *attr = mx_call_attr(call);
    if (!mx_dtype_is_integer(x->dtype))
        return mx_unary_host(call);
    mx_affine_int(mx_array_of(x), mx_array_of(call->out[0]), (int64_t)attr->p0, (int64_t)attr->p1, mx_count(x));
    return MX_OK;
}

static mx_status vjp_affine(mx_vjp *v)
{
    double scale = ((const parameters *)mx_call_attr(v->call))->p0;
    if (!mx_dtype_may_have_gradient(v->call->in[0]->dtype))
        return MX_OK;
    if (scale == 1)
        return mx_give_grad(v, 0, mx_retain(v->out_grad[0]));
    mx_tensor *dx = NULL;
    MX_TRY(mx_apply_affine(v->out_grad[0], scale, 0, &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_affine = {
    .name = "affine",
    .doc = "scale x + shift, elementwise; for integers both must be integers, and the result saturates",
    .inputs = x_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"scale", MX_ATTR_FLOAT, offsetof(parameters, p0), 1, NULL, "factor of x"},
                               {"shift", MX_ATTR_FLOAT, offsetof(parameters, p1), 0, NULL, "added to scale x"},
                               {0}},
    .attr_bytes = sizeof(parameters),
    .infer = infer_affine,
    .cost = mx_unary_cost,
    .host = host_affine,
    .vjp = vjp_affine,
    .vjp_recorded = vjp_affine,
};

/* ---- the gradient of all of them ---- */

static mx_status infer_grad(mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_reals(call));
    MX_TRY(mx_want_shape(call, 1, &call->in[0]->shape));
    return mx_out_float(call, 0, attr->dtype, call->in[1]->dtype, &call->in[0]->shape);
}

static mx_cost cost_grad(const mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    bool cheap = mx_unary_reads_output((mx_unary)attr->function);
    return mx_cost_of(call, (cheap ? 3.0 : 2.0 + flops_of((mx_unary)attr->function)) * (double)mx_count(call->in[0]));
}

static mx_status host_grad(mx_call *call)
{
    const grad_attr *attr = mx_call_attr(call);
    mx_function f = {(mx_unary)attr->function, attr->p0, attr->p1};
    mx_unary_backward(f, mx_array_of(call->in[0]), mx_array_of(call->in[1]), mx_array_of(call->out[0]),
                      mx_count(call->in[0]));
    return MX_OK;
}

static const char *const function_names[MX_UNARIES + 1] = {
    [MX_EXP] = "exp",         [MX_LOG] = "log",
    [MX_SQRT] = "sqrt",       [MX_RSQRT] = "rsqrt",
    [MX_ABS] = "abs",         [MX_TANH] = "tanh",
    [MX_SIGMOID] = "sigmoid", [MX_SQUARE] = "square",
    [MX_SIN] = "sin",         [MX_COS] = "cos",
    [MX_AFFINE] = "affine",   [MX_POW] = "pow",
    [MX_RELU] = "relu",       [MX_GELU_TANH] = "gelu",
    [MX_SILU] = "silu",       [MX_GELU_ERF] = "gelu_none",
    [MX_ERF] = "erf",         [MX_LOG1P] = "log1p",
    [MX_EXPM1] = "expm1",     [MX_FLOOR] = "floor",
    [MX_CEIL] = "ceil",       [MX_ROUND] = "round",
    [MX_SIGN] = "sign",       [MX_SOFTPLUS] = "softplus",
    [MX_ELU] = "elu",         [MX_LEAKY_RELU] = "leaky_relu",
    [MX_CLAMP] = "clamp",     [MX_TAN] = "tan",
    [MX_ASIN] = "asin",       [MX_ACOS] = "acos",
    [MX_ATAN] = "atan",       [MX_SINH] = "sinh",
    [MX_COSH] = "cosh",       [MX_ASINH] = "asinh",
    [MX_ACOSH] = "acosh",     [MX_ATANH] = "atanh",
};

const mx_op mx_op_unary_grad = {
    .name = "unary_grad",
    .doc = "dy f'(x); value is f(x) for exp, sqrt, rsqrt, tanh, sigmoid and relu, and x for the others",
    .inputs = (const char *const[]){"value", "dy", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"function", MX_ATTR_ENUM, offsetof(grad_attr, function), NAN, function_names, "f"},
                               {"dtype", MX_ATTR_DTYPE, offsetof(grad_attr, dtype), -1, NULL,
                                "dtype of dx; default: that of dy"},
                               {"p0", MX_ATTR_FLOAT, offsetof(grad_attr, p0), 1, NULL, "the first parameter of f"},
                               {"p1", MX_ATTR_FLOAT, offsetof(grad_attr, p1), 0, NULL, "the second one"},
                               {0}},
    .attr_bytes = sizeof(grad_attr),
    .infer = infer_grad,
    .cost = cost_grad,
    .host = host_grad,
};

mx_status mx_apply_affine(mx_tensor *x, double scale, double shift, mx_tensor **y)
{
    const parameters attr = {scale, shift};
    return mx_apply(&mx_op_affine, &x, 1, MX_ATTRS(attr), y);
}

mx_status mx_apply_pow(mx_tensor *x, double exponent, mx_tensor **y)
{
    const parameters attr = {exponent, 0};
    return mx_apply(&mx_op_pow, &x, 1, MX_ATTRS(attr), y);
}
