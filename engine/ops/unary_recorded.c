/* Derivatives of elementwise functions, composed of operations with gradients: for gradients of gradients. */
#include "ops/pointwise.h"
#include "ops/terms.h"

static mx_tensor *square(mx_terms *s, mx_tensor *x) { return mx_term_one(s, &mx_op_square, x); }

/* y + sigmoid(x) (1 - y), with y = x sigmoid(x). */
static mx_tensor *silu_slope(mx_terms *s, mx_tensor *x)
{
    mx_tensor *p = mx_term_one(s, &mx_op_sigmoid, x), *y = mx_term_mul(s, x, p);
    return mx_term_add(s, y, mx_term_mul(s, p, mx_term_affine(s, y, -1, 1)));
}

/* Of 0.5 x (1 + tanh(u)), u = c (x + a x^3): 0.5 (1 + t) + 0.5 x (1 - t^2) c (1 + 3 a x^2). */
static mx_tensor *gelu_slope(mx_terms *s, mx_tensor *x)
{
    const double c = 0.7978845608028654, a = 0.044715; /* sqrt(2 / pi) */
    mx_tensor *x2 = square(s, x);
    mx_tensor *t = mx_term_one(s, &mx_op_tanh, mx_term_mul(s, x, mx_term_affine(s, x2, c * a, c)));
    mx_tensor *inner = mx_term_mul(s, x, mx_term_affine(s, x2, 1.5 * c * a, 0.5 * c));
    mx_tensor *rest = mx_term_mul(s, inner, mx_term_affine(s, square(s, t), -1, 1));
    return mx_term_add(s, mx_term_affine(s, t, 0.5, 0.5), rest);
}

/* Of x P(x), P the normal distribution: P(x) + x e^(-x^2 / 2) / sqrt(2 pi). */
static mx_tensor *gelu_erf_slope(mx_terms *s, mx_tensor *x)
{
    const double root = 0.7071067811865476, density = 0.3989422804014327; /* 1 / sqrt(2), 1 / sqrt(2 pi) */
    mx_tensor *erf = mx_term_one(s, &mx_op_erf, mx_term_affine(s, x, root, 0));
    mx_tensor *bell = mx_term_one(s, &mx_op_exp, mx_term_affine(s, square(s, x), -0.5, 0));
    mx_tensor *rest = mx_term_mul(s, x, mx_term_affine(s, bell, density, 0));
    return mx_term_add(s, mx_term_affine(s, erf, 0.5, 0.5), rest);
}

/* 1 where x is positive, elsewhere alpha e^x. */
static mx_tensor *elu_slope(mx_terms *s, mx_tensor *x, double alpha)
{
    mx_tensor *is_positive = mx_term_indicator(s, &mx_op_gt, x, 0), *other = mx_term_affine(s, is_positive, -1, 1);
    mx_tensor *e = mx_term_one(s, &mx_op_exp, mx_term_mul(s, x, other));
    return mx_term_add(s, is_positive, mx_term_affine(s, mx_term_mul(s, other, e), alpha, 0));
}

/* (1 - x^2)^(-1/2) */
static mx_tensor *asin_slope(mx_terms *s, mx_tensor *x)
{
    return mx_term_pow(s, mx_term_affine(s, square(s, x), -1, 1), -0.5);
}

/* f'(x), from x or y = f(x), whichever the tape holds; NULL after a failure. */
static mx_tensor *slope(mx_terms *s, const mx_call *call)
{
    const mx_op *op = call->op;
    mx_tensor *x = call->in[0], *y = call->out[0];
    double p = call->op->attr_bytes > 0 ? mx_unary_parameter(call) : 0;
    if (op == &mx_op_exp)
        return y;
    if (op == &mx_op_log)
        return mx_term_pow(s, x, -1);
    if (op == &mx_op_sqrt)
        return mx_term_affine(s, mx_term_pow(s, y, -1), 0.5, 0);
    if (op == &mx_op_rsqrt)
        return mx_term_affine(s, mx_term_pow(s, y, 3), -0.5, 0);
    if (op == &mx_op_tanh)
        return mx_term_affine(s, square(s, y), -1, 1);
    if (op == &mx_op_sigmoid)
        return mx_term_mul(s, y, mx_term_affine(s, y, -1, 1));
    if (op == &mx_op_square)
        return mx_term_affine(s, x, 2, 0);
    if (op == &mx_op_sin)
        return mx_term_one(s, &mx_op_cos, x);
    if (op == &mx_op_cos)
        return mx_term_affine(s, mx_term_one(s, &mx_op_sin, x), -1, 0);
    if (op == &mx_op_tan)
        return mx_term_affine(s, square(s, y), 1, 1);
    if (op == &mx_op_asin)
        return asin_slope(s, x);
    if (op == &mx_op_acos)
        return mx_term_affine(s, asin_slope(s, x), -1, 0);
    if (op == &mx_op_atan)
        return mx_term_pow(s, mx_term_affine(s, square(s, x), 1, 1), -1);
    if (op == &mx_op_sinh)
        return mx_term_one(s, &mx_op_cosh, x);
    if (op == &mx_op_cosh)
        return mx_term_one(s, &mx_op_sinh, x);
    if (op == &mx_op_asinh)
        return mx_term_pow(s, mx_term_affine(s, square(s, x), 1, 1), -0.5);
    if (op == &mx_op_acosh)
        return mx_term_pow(s, mx_term_affine(s, square(s, x), 1, -1), -0.5);
    if (op == &mx_op_atanh)
        return mx_term_pow(s, mx_term_affine(s, square(s, x), -1, 1), -1);
    if (op == &mx_op_erf) /* 2 / sqrt(pi) */
        return mx_term_affine(s, mx_term_one(s, &mx_op_exp, mx_term_affine(s, square(s, x), -1, 0)), 1.1283791670955126,
                              0);
    if (op == &mx_op_log1p)
        return mx_term_pow(s, mx_term_affine(s, x, 1, 1), -1);
    if (op == &mx_op_expm1)
        return mx_term_one(s, &mx_op_exp, x);
    if (op == &mx_op_silu)
        return silu_slope(s, x);
    if (op == &mx_op_gelu)
        return ((const mx_gelu_attr *)mx_call_attr(call))->approximate ? gelu_erf_slope(s, x) : gelu_slope(s, x);
    if (op == &mx_op_pow)
        return mx_term_affine(s, mx_term_pow(s, x, p - 1), p, 0);
    if (op == &mx_op_softplus)
        return mx_term_one(s, &mx_op_sigmoid, mx_term_affine(s, x, p, 0));
    if (op == &mx_op_elu)
        return elu_slope(s, x, p);
    return mx_unary_constant_slope(s, call); /* the others are linear piece by piece */
}

mx_status mx_unary_vjp_recorded(mx_vjp *v)
{
    if (!mx_dtype_may_have_gradient(v->call->in[0]->dtype))
        return MX_OK;
    mx_terms s = {.n = 0};
    mx_tensor *dx = mx_term_mul(&s, v->out_grad[0], slope(&s, v->call));
    mx_term_give(&s, v, 0, dx);
    return mx_terms_release(&s);
}
