#include "kernels/context.h"

#include "core/element.h"
#include "core/rng.h"
#include "kernels/inline.h"
#include "kernels/optimizer.h"

#include <math.h>
#include <string.h>

MX_INLINE float mul_add(float a, float b, float c, bool fused) { return fused ? fmaf(a, b, c) : a * b + c; }

/* The 32 bits that element i is rounded by. */
static uint32_t chance(const mx_rounding_run *run, int64_t i)
{
    return mx_rng_hash(run->key0, run->key1, (uint32_t)i + run->shift);
}

/* The bf16 number above or below x that 16 random bits choose: the bits that are cut off are the probability of the one
 * that is larger in magnitude. */
static float round_by(uint32_t random, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return x;
    bits = (bits + random) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

MX_INLINE void adamw_as(const mx_adamw *given, const mx_rounding_run *run, bool fused, int64_t first, int64_t last)
{
    const mx_adamw a = *given; /* so that stores cannot change it in the compiler's eyes */
    for (int64_t i = first; i < last; i++) {
        float p = mx_get_float(a.param.data, i, a.param.dtype),
              g = a.grad_scale * mx_get_float(a.grad.data, i, a.grad.dtype);
        float m = mul_add(a.beta1, mx_get_float(a.m.data, i, a.m.dtype), (1.0f - a.beta1) * g, fused);
        float v = mul_add(a.beta2, mx_get_float(a.v.data, i, a.v.dtype), (1.0f - a.beta2) * g * g, fused);
        float root = sqrtf(mul_add(v, a.correct2, a.eps_root, fused)) + a.eps;
        float step = mul_add(a.weight_decay, p, m * a.correct1 / root, fused);
        p = fused ? fmaf(-a.lr, step, p) : p - a.lr * step;
        if (fused && mx_is_bf16(a.param.dtype))
            p = round_by(chance(run, i) >> 16, p);
        if (fused && mx_is_bf16(a.v.dtype))
            v = round_by(chance(run, i) & 0xffffu, v);
        mx_set_float(a.m.data, i, m, a.m.dtype);
        mx_set_float(a.v.data, i, v, a.v.dtype);
        mx_set_float(a.param.data, i, p, a.param.dtype);
        if (a.copy)
            a.copy[i] = mx_to_bf16(p);
    }
}

static void adamw(const mx_adamw *a, const mx_rounding_run *run, int64_t first, int64_t last)
{
    if (run)
        adamw_as(a, run, true, first, last);
    else
        adamw_as(a, run, false, first, last);
}

/* The sign of what Lion goes by, from its old u, which becomes the new one. */
MX_INLINE float lion_sign(const mx_sgd *s, float g, int64_t i, bool fused)
{
    float u = s->state[i], c = mul_add(s->momentum, u, (1.0f - s->momentum) * g, fused);
    s->state[i] = mul_add(s->decay, u, (1.0f - s->decay) * g, fused);
    return (float)(c > 0) - (float)(c < 0);
}

MX_INLINE void sgd_as(const mx_sgd *given, const mx_rounding_run *run, bool fused, int64_t first, int64_t last)
{
    const mx_sgd s = *given; /* so that stores cannot change it in the compiler's eyes */
    for (int64_t i = first; i < last; i++) {
        float p = mx_get_float(s.param.data, i, s.param.dtype);
        float g = s.grad_scale * mx_get_float(s.grad.data, i, s.grad.dtype);
        g = mul_add(s.weight_decay, p, s.lion ? lion_sign(&s, g, i, fused) : g, fused);
        if (s.state && !s.lion) {
            float u = mul_add(s.momentum, s.state[i], g, fused);
            s.state[i] = u;
            g = s.nesterov ? mul_add(s.momentum, u, g, fused) : u;
        }
        p = fused ? fmaf(-s.lr, g, p) : p - s.lr * g;
        mx_set_float(s.param.data, i, fused ? round_by(chance(run, i) >> 16, p) : p, s.param.dtype);
    }
}

static void sgd(const mx_sgd *s, const mx_rounding_run *run, int64_t first, int64_t last)
{
    if (run)
        sgd_as(s, run, true, first, last);
    else
        sgd_as(s, run, false, first, last);
}

const mx_optimizer_paths mx_optimizer_portable = {.adamw = adamw, .sgd = sgd};
