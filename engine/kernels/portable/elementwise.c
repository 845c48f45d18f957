/* The elementwise loops in plain C: the definition that the vector paths are tested against. */
#include "kernels/context.h"

#include "core/element.h"
#include "kernels/f64.h"

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

/* The functions behind MX_SILU are computed in f64. */
static float value(mx_function f, float x)
{
    if (f.op > MX_SILU)
        return (float)mx_f64_value(f, x);
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
    if (f.op > MX_SILU)
        return (float)mx_f64_slope(f, v);
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

/* The value and the slope of a gate; with a limit p0, of the clamped SwiGLU. */
static float gate_of(mx_function act, float x, float *slope)
{
    if (act.p0 <= 0) {
        *slope = activation_slope(act.op, x);
        return activation(act.op, x);
    }
    float g = x > (float)act.p0 ? (float)act.p0 : x;
    *slope = x > (float)act.p0 ? 0.0f : activation_slope(MX_SILU, 1.702f * g);
    return activation(MX_SILU, 1.702f * g) / 1.702f;
}

static float up_of(mx_function act, float x)
{
    float limit = (float)act.p0;
    return limit > 0 ? (x > limit ? limit : x < -limit ? -limit : x) + 1 : x;
}

static void gated(mx_function act, mx_dtype dtype, const void *gate, const void *up, void *y, int64_t n, bool stream)
{
    float slope;
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(y, i, gate_of(act, mx_get_float(gate, i, dtype), &slope) * up_of(act, mx_get_float(up, i, dtype)),
                     dtype);
}

static void gated_grad(mx_function act, mx_dtype dtype, const void *gate, const void *up, const void *dy, void *dgate,
                       void *dup, int64_t n, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++) {
        float g = mx_get_float(gate, i, dtype), u = mx_get_float(up, i, dtype), d = mx_get_float(dy, i, dtype);
        float slope, value = gate_of(act, g, &slope);
        mx_set_float(dgate, i, d * up_of(act, u) * slope, dtype);
        mx_set_float(dup, i, act.p0 > 0 && fabsf(u) > (float)act.p0 ? 0.0f : d * value, dtype);
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

const mx_elementwise_paths mx_elementwise_portable = {
    .unary = unary,
    .unary_grad = unary_grad,
    .gated = gated,
    .gated_grad = gated_grad,
    .to_f32 = to_f32,
    .to_bf16 = to_bf16,
    .copy = copy,
    .add_to = add_to,
};
