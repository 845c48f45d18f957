/* Derivatives of elementwise functions, composed of operations with gradients: for gradients of gradients. */
#include "ops/pointwise.h"

/* Tensors that are released together. */
typedef struct scratch {
    mx_status status; /* after a failure nothing more is computed */
    int n;
    mx_tensor *t[24];
} scratch;

static mx_tensor *keep(scratch *s, mx_status status, mx_tensor **t)
{
    s->status = status;
    return status == MX_OK ? s->t[s->n++] = *t : NULL;
}

static mx_tensor *one(scratch *s, const mx_op *op, mx_tensor *x)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : keep(s, mx_apply(op, &x, 1, MX_NO_ATTRS, &y), &y);
}

static mx_tensor *two(scratch *s, const mx_op *op, mx_tensor *a, mx_tensor *b)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : keep(s, mx_apply(op, (mx_tensor *[]){a, b}, 2, MX_NO_ATTRS, &y), &y);
}

static mx_tensor *mul(scratch *s, mx_tensor *a, mx_tensor *b) { return two(s, &mx_op_mul, a, b); }

static mx_tensor *affine(scratch *s, mx_tensor *x, double scale, double shift)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : keep(s, mx_apply_affine(x, scale, shift, &y), &y);
}

static mx_tensor *power(scratch *s, mx_tensor *x, double exponent)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : keep(s, mx_apply_pow(x, exponent, &y), &y);
}

/* 1 where x compares with 0, else 0, in x's dtype: a constant. */
static mx_tensor *indicator(scratch *s, const mx_op *op, mx_tensor *x)
{
    mx_tensor *full = NULL, *y = NULL;
    if (s->status != MX_OK)
        return NULL;
    mx_tensor *zero = keep(s, mx_apply_full(&(mx_shape){0}, x->dtype, 0, &full), &full);
    mx_tensor *is = two(s, op, x, zero);
    return s->status != MX_OK ? NULL : keep(s, mx_apply_cast(is, x->dtype, &y), &y);
}

/* y + sigmoid(x) (1 - y), with y = x sigmoid(x). */
static mx_tensor *silu_slope(scratch *s, mx_tensor *x)
{
    mx_tensor *p = one(s, &mx_op_sigmoid, x), *y = mul(s, x, p);
    return two(s, &mx_op_add, y, mul(s, p, affine(s, y, -1, 1)));
}

/* Of 0.5 x (1 + tanh(u)), u = c (x + a x^3): 0.5 (1 + t) + 0.5 x (1 - t^2) c (1 + 3 a x^2). */
static mx_tensor *gelu_slope(scratch *s, mx_tensor *x)
{
    const double c = 0.7978845608028654, a = 0.044715; /* sqrt(2 / pi) */
    mx_tensor *square = one(s, &mx_op_square, x);
    mx_tensor *t = one(s, &mx_op_tanh, mul(s, x, affine(s, square, c * a, c)));
    mx_tensor *inner = mul(s, x, affine(s, square, 1.5 * c * a, 0.5 * c));
    mx_tensor *rest = mul(s, inner, affine(s, one(s, &mx_op_square, t), -1, 1));
    return two(s, &mx_op_add, affine(s, t, 0.5, 0.5), rest);
}

/* f'(x), from x or y = f(x), whichever the tape holds; NULL after a failure. */
static mx_tensor *slope(scratch *s, const mx_call *call)
{
    const mx_op *op = call->op;
    mx_tensor *x = call->in[0], *y = call->out[0];
    if (op == &mx_op_exp)
        return y;
    if (op == &mx_op_log)
        return power(s, x, -1);
    if (op == &mx_op_sqrt)
        return affine(s, power(s, y, -1), 0.5, 0);
    if (op == &mx_op_rsqrt)
        return affine(s, power(s, y, 3), -0.5, 0);
    if (op == &mx_op_abs)
        return two(s, &mx_op_sub, indicator(s, &mx_op_gt, x), indicator(s, &mx_op_lt, x));
    if (op == &mx_op_tanh)
        return affine(s, one(s, &mx_op_square, y), -1, 1);
    if (op == &mx_op_sigmoid)
        return mul(s, y, affine(s, y, -1, 1));
    if (op == &mx_op_square)
        return affine(s, x, 2, 0);
    if (op == &mx_op_sin)
        return one(s, &mx_op_cos, x);
    if (op == &mx_op_cos)
        return affine(s, one(s, &mx_op_sin, x), -1, 0);
    if (op == &mx_op_erf) /* 2 / sqrt(pi) */
        return affine(s, one(s, &mx_op_exp, affine(s, one(s, &mx_op_square, x), -1, 0)), 1.1283791670955126, 0);
    if (op == &mx_op_log1p)
        return power(s, affine(s, x, 1, 1), -1);
    if (op == &mx_op_expm1)
        return one(s, &mx_op_exp, x);
    if (op == &mx_op_relu)
        return indicator(s, &mx_op_gt, y);
    if (op == &mx_op_silu)
        return silu_slope(s, x);
    if (op == &mx_op_gelu && ((const mx_gelu_attr *)mx_call_attr(call))->approximate == 0)
        return gelu_slope(s, x);
    if (op == &mx_op_pow) {
        double exponent = mx_pow_exponent(call);
        return affine(s, power(s, x, exponent - 1), exponent, 0);
    }
    s->status =
        mx_fail(MX_ERR_STATE, "the derivative of %s cannot be recorded; compose it of simpler operations", op->name);
    return NULL;
}

mx_status mx_unary_vjp_recorded(mx_vjp *v)
{
    scratch s = {.status = MX_OK};
    mx_tensor *dx = mul(&s, v->out_grad[0], slope(&s, v->call));
    mx_status status = dx ? mx_give_grad(v, 0, mx_retain(dx)) : s.status;
    for (int i = 0; i < s.n; i++)
        mx_release(s.t[i]);
    return status;
}
