/* The elementwise loops in plain C: the definition that the vector paths are tested against. */
#include "kernels/context.h"

#include "core/element.h"

#include <math.h>

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static const float k0 = 1.59576912f, k1 = 7.13548163e-2f; /* 2 sqrt(2/pi), and 0.044715 times that */

/* The cut-offs on the left keep -inf from giving NaN; see simd/vmath.h. */
static float activation(mx_unary op, float x)
{
    switch (op) {
    case MX_SILU:
        x = x < -80.0f ? -80.0f : x;
        return x * sigmoid(x);
    case MX_GELU_TANH:
        x = x < -9.5f ? -9.5f : x;
        return x * sigmoid(x * (k0 + k1 * x * x));
    case MX_GELU_ERF:
        x = x < -13.0f ? -13.0f : x;
        return x * 0.5f * erfcf(x * -0.707106781f);
    default: /* MX_RELU */
        return x < 0.0f ? 0.0f : x;
    }
}

static float activation_slope(mx_unary op, float x)
{
    float s;
    switch (op) {
    case MX_SILU:
        x = x < -80.0f ? -80.0f : x > 80.0f ? 80.0f : x;
        s = sigmoid(x);
        return s + x * s * (1.0f - s);
    case MX_GELU_TANH:
        x = x < -9.5f ? -9.5f : x > 13.0f ? 13.0f : x;
        s = sigmoid(x * (k0 + k1 * x * x));
        return s + x * s * (1.0f - s) * (k0 + 3.0f * k1 * x * x);
    case MX_GELU_ERF:
        x = x < -13.0f ? -13.0f : x > 13.0f ? 13.0f : x;
        return 0.5f * erfcf(x * -0.707106781f) + x * 0.398942280f * expf(-0.5f * x * x);
    default: /* MX_RELU */
        return isnan(x) ? x : x > 0.0f ? 1.0f : 0.0f;
    }
}

static float value(mx_function f, float x)
{
    switch (f.op) {
    case MX_EXP:
        return expf(x);
    case MX_LOG:
        return logf(x);
    case MX_SQRT:
        return sqrtf(x);
    case MX_RSQRT:
        return 1.0f / sqrtf(x);
    case MX_ABS:
        return fabsf(x);
    case MX_TANH:
        return tanhf(x);
    case MX_SIGMOID:
        return sigmoid(x);
    case MX_SQUARE:
        return x * x;
    case MX_SIN:
        return sinf(x);
    case MX_COS:
        return cosf(x);
    case MX_AFFINE:
        return fmaf((float)f.p0, x, (float)f.p1);
    case MX_POW:
        return powf(x, (float)f.p0);
    default:
        return activation(f.op, x);
    }
}

/* v is the output y for those of mx_unary_reads_output, else x. */
static float slope(mx_function f, float v)
{
    switch (f.op) {
    case MX_EXP:
        return v;
    case MX_LOG:
        return 1.0f / v;
    case MX_SQRT:
        return 0.5f / v;
    case MX_RSQRT:
        return -0.5f * v * v * v;
    case MX_ABS:
        return isnan(v) ? v : v > 0.0f ? 1.0f : v < 0.0f ? -1.0f : 0.0f;
    case MX_TANH:
        return 1.0f - v * v;
    case MX_SIGMOID:
        return v * (1.0f - v);
    case MX_SQUARE:
        return 2.0f * v;
    case MX_SIN:
        return cosf(v);
    case MX_COS:
        return -sinf(v);
    case MX_AFFINE:
        return (float)f.p0;
    case MX_POW:
        return (float)f.p0 * powf(v, (float)f.p0 - 1.0f);
    default:
        return activation_slope(f.op, v);
    }
}

static void unary(mx_function f, mx_dtype dtype, const void *x, void *y, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(y, i, value(f, mx_get_float(x, i, dtype)), dtype);
}

static void unary_grad(mx_function f, mx_dtype dtype, const void *v, const void *dy, void *dx, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(dx, i, mx_get_float(dy, i, dtype) * slope(f, mx_get_float(v, i, dtype)), dtype);
}

static void gated(mx_unary act, mx_dtype dtype, const void *gate, const void *up, void *y, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(y, i, activation(act, mx_get_float(gate, i, dtype)) * mx_get_float(up, i, dtype), dtype);
}

static void gated_grad(mx_unary act, mx_dtype dtype, const void *gate, const void *up, const void *dy, void *dgate,
                       void *dup, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++) {
        float g = mx_get_float(gate, i, dtype), u = mx_get_float(up, i, dtype), d = mx_get_float(dy, i, dtype);
        mx_set_float(dgate, i, d * u * activation_slope(act, g), dtype);
        mx_set_float(dup, i, d * activation(act, g), dtype);
    }
}

static void to_f32(const mx_bf16 *x, float *y, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        y[i] = mx_from_bf16(x[i]);
}

static void to_bf16(const float *x, mx_bf16 *y, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        y[i] = mx_to_bf16(x[i]);
}

static void copy(const void *x, void *y, int64_t bytes, bool stream)
{
    (void)stream;
    memmove(y, x, (size_t)bytes);
}

static void add_to(mx_array c, mx_array x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mx_set_float(c.data, i, mx_get_float(c.data, i, c.dtype) + mx_get_float(x.data, i, x.dtype), c.dtype);
}

static float pair(mx_binary op, float a, float b)
{
    switch (op) {
    case MX_ADD:
        return a + b;
    case MX_SUB:
        return a - b;
    case MX_MUL:
        return a * b;
    case MX_DIV:
        return a / b;
    case MX_MAXIMUM:
        return isnan(a) || a > b ? a : b;
    default: /* MX_MINIMUM */
        return isnan(a) || a < b ? a : b;
    }
}

static void binary(mx_binary op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y,
                   int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(y, i, pair(op, mx_get_float(a, i * a_step, dtype), mx_get_float(b, i * b_step, dtype)), dtype);
}

/* The derivative of (a op b) by one side. */
static float pair_slope(mx_binary op, bool by_b, float a, float b)
{
    if (op == MX_DIV)
        return by_b ? -a / (b * b) : 1.0f / b;
    float mine = by_b ? b : a, other = by_b ? a : b;
    if (op == MX_MINIMUM) {
        mine = -mine;
        other = -other;
    }
    return mine > other ? 1.0f : mine == other ? 0.5f : 0.0f;
}

static void binary_grad(mx_binary op, bool by_b, const float *a, int a_step, const float *b, int b_step,
                        const float *dy, int dy_step, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dy[i * dy_step] * pair_slope(op, by_b, a[i * a_step], b[i * b_step]);
}

static bool holds(mx_compare op, float a, float b)
{
    switch (op) {
    case MX_EQ:
        return a == b;
    case MX_NE:
        return a != b;
    case MX_LT:
        return a < b;
    case MX_LE:
        return a <= b;
    case MX_GT:
        return a > b;
    default: /* MX_GE */
        return a >= b;
    }
}

static void compare(mx_compare op, const float *a, int a_step, const float *b, int b_step, uint8_t *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = holds(op, a[i * a_step], b[i * b_step]);
}

const mx_elementwise_paths mx_elementwise_portable = {
    .unary = unary,
    .unary_grad = unary_grad,
    .gated = gated,
    .gated_grad = gated_grad,
    .to_f32 = to_f32,
    .to_bf16 = to_bf16,
    .copy = copy,
    .add_to = add_to,
    .binary = binary,
    .binary_grad = binary_grad,
    .compare = compare,
};
