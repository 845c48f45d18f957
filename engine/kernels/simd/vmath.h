/* Functions of one variable in the words of simd.h. `fast` (a constant at every call) is for bf16: errors up to 1e-5
 * are allowed there, a hundredth of the rounding. NaN gives NaN throughout. */
#ifndef MX_KERNELS_SIMD_VMATH_H
#define MX_KERNELS_SIMD_VMATH_H

#include "kernels/elementwise.h"
#include "kernels/simd/pieces.h"
#include "kernels/simd/simd.h"

#include <math.h>

/* 2^x, exactly 0 for -inf and where it is below the normal numbers by much: attention needs that zero of a masked
 * score, which vf_exp2_fast() does not give on every path. Infinite above 128. x = n + r, |r| <= 1/2, and 2^r by its
 * minimax polynomial: of degree 5 (relative error 1e-7), or of degree 4 (3e-6) where `fast`. */
MX_INLINE vf vf_exp2_whole(bool fast, vf x)
{
#if MX_SIMD_512
    vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n = x - r, p; /* r of inf is 0 */
#else
    x = vf_min(vf_set1(128), vf_max(vf_set1(-127), x)); /* in this order a NaN survives */
    vf n = vf_round(x), r = x - n, p;
#endif
    if (fast) {
        p = vf_fma(vf_set1(9.570101909e-3f), r, vf_set1(5.591786032e-2f));
        p = vf_fma(p, r, vf_set1(2.402474483e-1f));
        p = vf_fma(p, r, vf_set1(6.931218147e-1f));
        p = vf_fma(p, r, vf_set1(9.999992614e-1f));
    } else {
        p = vf_fma(vf_set1(1.32647272e-3f), r, vf_set1(9.67151264e-3f));
        p = vf_fma(p, r, vf_set1(5.550733743e-2f));
        p = vf_fma(p, r, vf_set1(2.402224209e-1f));
        p = vf_fma(p, r, vf_set1(6.931469776e-1f));
        p = vf_fma(p, r, vf_set1(1.0f));
    }
#if MX_SIMD_512
    return _mm512_scalef_ps(p, n);
#else
    return p * vi_float(vi_shl(vi_add(vf_to_vi(n), vi_set1(127)), 23)); /* the exponents of 0 and of infinity */
#endif
}

/* ln((1 + z) 2^exponent), 1 + z in [sqrt(1/2), sqrt(2)). The steps are those of core/rng.c, to the bit. Coefficients:
 * Cephes logf (Moshier, netlib). */
MX_INLINE vf vf_log_of_parts(vf z, vf exponent)
{
    static const float c[] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                              -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
    vf p = vf_set1(7.0376836292e-2f), square = z * z;
    for (int i = 0; i < 8; i++)
        p = vf_fma(p, z, vf_set1(c[i]));
    p = vf_fma(exponent, vf_set1(-2.12194440e-4f), (p * z) * square);
    p = vf_fma(square, vf_set1(-0.5f), p);
    return vf_fma(exponent, vf_set1(0.693359375f), z + p);
}

/* ln x of a normal positive x; 0x3f3504f3 is sqrt(1/2). */
MX_INLINE vf vf_log_normal_by(vf log_of_parts(vf, vf), vf x)
{
    vi shifted = vi_sub(vf_bits(x), vi_set1(0x3f3504f3));
    vf m = vi_float(vi_add(vi_and(shifted, vi_set1(0x007fffff)), vi_set1(0x3f3504f3)));
    return log_of_parts(m - vf_set1(1.0f), vi_to_vf(vi_sar(shifted, 23)));
}
MX_INLINE vf vf_log_normal(vf x) { return vf_log_normal_by(vf_log_of_parts, x); }

/* y, which is ln x where x is a positive number: else -inf at 0, NaN below, inf at inf, NaN at NaN. */
MX_INLINE vf vf_log_elsewhere(vf y, vf x)
{
#if MX_SIMD_512
    /* Four bits for each kind of x, from the lowest on: NaN (two kinds), 0, 1, -inf, inf, negative, positive. They
     * choose y (0), x (2), NaN (3), -inf (4) or inf (5). */
    return _mm512_fixupimm_ps(y, x, vi_set1(0x03530422), 0);
#else
    y = vf_select(vf_gt(x, vf_set1(3.40282347e38f)), x, y);
    y = vf_select(vf_gt(x, vf_zero()), y, vf_set1(-INFINITY));
    y = vf_select(vf_gt(vf_zero(), x), vf_set1(NAN), y);
    return vf_select(vf_is_nan(x), x, y);
#endif
}

/* As vf_log_of_parts(), for bf16: z times a minimax polynomial of degree 5 (relative error 7e-6). */
MX_INLINE vf vf_log_of_parts_fast(vf z, vf exponent)
{
    static const float c[] = {0.220559498f, -0.254032716f, 0.332580226f, -0.499902175f, 1.00000456f};
    vf p = vf_set1(-0.142920802f);
    for (int i = 0; i < 5; i++)
        p = vf_fma(p, z, vf_set1(c[i]));
    return vf_fma(exponent, vf_set1(0.693147181f), p * z);
}

/* ln x. Denormals count as 0. */
MX_INLINE vf vf_log(bool fast, vf x)
{
    vf y = fast ? vf_log_normal_by(vf_log_of_parts_fast, x) : vf_log_normal(x);
    y = vf_select(vf_gt(vf_set1(1.17549435e-38f), x), vf_set1(-INFINITY), y);
    return vf_log_elsewhere(y, x);
}

/* 1 / sqrt(x); with AVX-512 and for bf16 to 1e-8, by a step of Newton's from an estimate, which is the result where it
 * is 0 or infinite. */
MX_INLINE vf vf_rsqrt(bool fast, vf x)
{
    (void)fast;
#if MX_SIMD_512 && !defined(NOP)
    if (fast) {
        vf y = _mm512_rsqrt14_ps(x), step = vf_fma(x * y, vf_zero() - y, vf_set1(1.0f));
        vf better = vf_fma(step, y * vf_set1(0.5f), y);
        return vf_select(vf_is_nan(better), y, better);
    }
#endif
    return vf_set1(1.0f) / vf_sqrt(x);
}

/* tanh x below VF_TANH_SMALL in magnitude, where 1 - 2 / (e^2x + 1) would cancel. Coefficients: Cephes tanhf (Moshier,
 * netlib). */
#define VF_TANH_SMALL 0.625f
MX_INLINE vf vf_tanh_small(vf x)
{
    vf z = x * x, p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    return vf_fma(p * z, x, x);
}

/* tanh x to a relative 2e-7, for attention's soft cap: three operations less than vf_tanh_whole(), from which it
 * differs in the last places of a negative x. */
MX_INLINE vf vf_tanh_cap(vf x)
{
    return vf_select(vf_gt(vf_set1(VF_TANH_SMALL), vf_abs(x)), vf_tanh_small(x), vf_tanh(x));
}

/* For bf16: x P(x^2) / Q(x^2) with P and Q of degree 3 (relative error 6e-7) up to 6.5, where tanh is 1 to 5e-6. */
MX_INLINE vf vf_tanh_fast(vf x)
{
    x = vf_min(vf_set1(6.5f), vf_max(vf_set1(-6.5f), x)); /* in this order a NaN survives */
    vf s = x * x, p = vf_fma(vf_set1(4.27601878e-6f), s, vf_set1(2.34917297e-3f));
    vf q = vf_fma(vf_set1(1.50235983e-4f), s, vf_set1(2.14081501e-2f));
    p = vf_fma(vf_fma(p, s, vf_set1(0.123829798f)), s, vf_set1(0.999999418f));
    q = vf_fma(vf_fma(q, s, vf_set1(0.457158533f)), s, vf_set1(1.0f));
    return x * p * vf_rcp(q);
}

/* tanh x with a small relative error everywhere, and odd: tanh -x is -tanh x to the bit. */
MX_INLINE vf vf_tanh_whole(bool fast, vf x)
{
    if (fast)
        return vf_tanh_fast(x);
    vf one = vf_set1(1.0f), size = vf_min(vf_set1(20.0f), vf_abs(x));
    vf large = one - vf_set1(2.0f) / (vf_exp(size + size) + one);
    vi sign = vi_and(vf_bits(x), vi_set1((int32_t)0x80000000));
    large = vi_float(vi_or(vf_bits(large), sign));
    return vf_select(vf_gt(vf_set1(VF_TANH_SMALL), vf_abs(x)), vf_tanh_small(x), large);
}

/* The polynomials of sine and cosine within pi/4 of 0 (Cephes sinf, cosf), in the steps of core/rng.c. */
MX_INLINE void vf_sincos_octant(vf a, vf *sine, vf *cosine)
{
    vf z = a * a;
    vf s = vf_fma(vf_set1(-1.9515295891e-4f), z, vf_set1(8.3321608736e-3f));
    s = vf_fma(s, z, vf_set1(-1.6666654611e-1f));
    *sine = vf_fma(s * z, a, a);
    vf c = vf_fma(vf_set1(2.443315711809948e-5f), z, vf_set1(-1.388731625493765e-3f));
    c = vf_fma(c, z, vf_set1(4.166664568298827e-2f));
    *cosine = vf_fma(c * z, z, vf_fma(z, vf_set1(-0.5f), vf_set1(1.0f)));
}

/* Turns (sin a, cos a) by `quadrant` quarters of a circle. */
MX_INLINE void vf_turn(vi quadrant, vf *sine, vf *cosine)
{
    vm odd = vi_gt(vi_and(quadrant, vi_set1(1)), vi_set1(0));
    vf s = vf_select(odd, *cosine, *sine), c = vf_select(odd, *sine, *cosine);
    vi two = vi_set1(2);
    *sine = vi_float(vi_xor(vf_bits(s), vi_shl(vi_and(quadrant, two), 30)));
    *cosine = vi_float(vi_xor(vf_bits(c), vi_shl(vi_and(vi_add(quadrant, vi_set1(1)), two), 30)));
}

/* sin x and cos x for |x| up to VF_SINCOS_MAX, to 2e-7: pi/2 in three parts (Cephes), so that n times each is exact. */
#define VF_SINCOS_MAX 8192.0f
MX_INLINE void vf_sincos(vf x, vf *sine, vf *cosine)
{
    vf n = vf_round(x * vf_set1(0.636619772f));
    vf a = vf_fma(n, vf_set1(-1.5703125f), x);
    a = vf_fma(n, vf_set1(-4.837512969970703125e-4f), a);
    a = vf_fma(n, vf_set1(-7.549789948768648e-8f), a);
    vf_sincos_octant(a, sine, cosine);
    vf_turn(vf_to_vi(n), sine, cosine);
}

/* e^x for x in [-87, 87] to 2e-7: as vf_exp2_fast() without AVX-512, with one degree more and ln 2 in two parts. */
MX_INLINE vf vf_exp_near(vf x)
{
    const vf magic = vf_set1(12582912.0f);
    vf t = vf_fma(x, vf_set1(1.44269504f), magic), n = t - magic;
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(8.2976445556e-3f);
    p = vf_fma(p, r, vf_set1(4.1915431619e-2f));
    p = vf_fma(p, r, vf_set1(1.6667574644e-1f));
    p = vf_fma(p, r, vf_set1(4.9998894334e-1f));
    p = vf_fma(p, r, vf_set1(9.9999970198e-1f));
    p = vf_fma(p, r, vf_set1(1.0000001192f));
    return vi_float(vi_add(vf_bits(p), vi_shl(vf_bits(t), 23)));
}

/* 1 / (1 + 2^x), x <= 125, for bf16. */
MX_INLINE vf vf_logistic_fast(vf x) { return vf_rcp(vf_set1(1.0f) + vf_exp2_fast(x)); }

/* 1 / (1 + e^-x) for x >= -80. A NaN in x may get lost here, not in the product with x that the callers take. */
MX_INLINE vf vf_sigmoid_of(vf x, bool fast)
{
    const vf one = vf_set1(1.0f);
    if (fast)
        return vf_logistic_fast(x * vf_set1(-LOG2E));
    return one / (one + vf_exp_near(-vf_min(vf_set1(80.0f), x)));
}

/* The tail of the normal distribution beyond t in [0, 13] as a part of e^(-t^2/2), which goes to *e. With
 * u = 1 / (1 + k t) it is u P(u); P is the minimax polynomial on t <= 13: of degree 7, of relative error 1.2e-7 with
 * k = 0.3. For bf16 with AVX-512 it comes by pieces. */
MX_INLINE vf vf_normal_tail(vf t, bool fast, vf *e)
{
    const vf one = vf_set1(1.0f);
    *e = fast ? vf_exp2_fast(t * t * vf_set1(-0.5f * LOG2E)) : vf_exp_near(t * t * vf_set1(-0.5f));
#if MX_SIMD_512
    if (fast)
        return vf_normal_part(t);
#endif
    vf d = vf_fma(vf_set1(0.3f), t, one), u = one / d;
    if (fast)
        u = vf_rcp(d);
    static const float c[] = {0.03608933836221695f, -0.15893565118312836f, 0.20934945344924927f, -0.0564526803791523f,
                              0.13003386557102203f, 0.09946471452713013f,  0.1208263635635376f,  0.1196245402097702f};
    vf p = vf_set1(c[0]);
    for (int i = 1; i <= 7; i++)
        p = vf_fma(p, u, vf_set1(c[i]));
    return p * u;
}

/* That tail itself, roughly: with k = 0.308 and P of degree 5 (relative error 4e-6). */
MX_INLINE vf vf_normal_tail_fast(vf t)
{
    const vf d = vf_fma(vf_set1(0.308f), t, vf_set1(1.0f)), u = vf_rcp(d), square = u * u;
    vf a = vf_fma(vf_set1(-0.0755324041f), u, vf_set1(0.189909753f));
    vf b = vf_fma(vf_set1(0.00695698783f), u, vf_set1(0.136695094f));
    vf c = vf_fma(vf_set1(0.118842496f), u, vf_set1(0.123126167f));
    vf p = vf_fma(vf_fma(a, square, b), square, c);
    return vf_exp2_fast(t * t * vf_set1(-0.5f * LOG2E)) * u * p;
}

/* gelu by tanh: x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 = x sigmoid(x (K0 + K1 x^2)). */
#define GELU_K0 1.59576912f
#define GELU_K1 7.13548163e-2f

/* That sigmoid, given x >= -9.5 and its square. */
MX_INLINE vf vf_gelu_sigmoid(vf x, vf square, bool fast)
{
    if (fast)
        return vf_logistic_fast(x * vf_fma(square, vf_set1(-LOG2E * GELU_K1), vf_set1(-LOG2E * GELU_K0)));
    return vf_sigmoid_of(x * vf_fma(square, vf_set1(GELU_K1), vf_set1(GELU_K0)), false);
}

/* An activation at x. Where it tends to 0 on the left, x is cut off where the value is below 1e-26 in magnitude, so
 * that -inf gives (nearly) 0 and not NaN. */
MX_INLINE vf vf_activation(mx_unary op, bool fast, vf x)
{
    vf t, e, tail;
    switch (op) {
    case MX_SILU:
        x = vf_max(vf_set1(-80.0f), x);
        return x * vf_sigmoid_of(x, fast);
    case MX_GELU_TANH:
        x = vf_max(vf_set1(-9.5f), x);
        return x * vf_gelu_sigmoid(x, x * x, fast);
    case MX_GELU_ERF: /* x less x times the tail on the right, x times the tail on the left */
        t = vf_min(vf_set1(13.0f), vf_abs(x));
        if (fast)
            return vf_fma(-t, vf_normal_tail_fast(t), vf_max(vf_zero(), x));
        tail = vf_normal_tail(t, false, &e);
        return vf_fma(-t, e * tail, vf_max(vf_zero(), x));
    default: /* MX_RELU */
        return vf_max(vf_zero(), x);
    }
}

/* The activation and its derivative at x. Beyond -80 and 20 (silu) and some 10 (gelu) the derivative is that at the
 * limit. */
MX_INLINE vf vf_activation_slope(mx_unary op, bool fast, vf x, vf *value)
{
    vf s, c, square, t, e, tail;
    switch (op) {
    case MX_SILU:
        x = vf_max(vf_set1(-80.0f), x);
        c = vf_min(vf_set1(20.0f), x);
        s = vf_sigmoid_of(c, fast);
        *value = x * s;
        return vf_fma(vf_fma(-c, s, c), s, s);
    case MX_GELU_TANH:
        x = vf_max(vf_set1(-9.5f), x);
        c = vf_min(vf_set1(9.5f), x);
        square = c * c;
        s = vf_gelu_sigmoid(c, square, fast);
        *value = x * s;
        c = c * vf_fma(square, vf_set1(3.0f * GELU_K1), vf_set1(GELU_K0));
        return vf_fma(vf_fma(-c, s, c), s, s);
    case MX_GELU_ERF: /* tail less t times density on the left, 1 less that on the right; not rough, as it crosses 0 */
        t = vf_min(vf_set1(13.0f), vf_abs(x));
        tail = vf_normal_tail(t, fast, &e);
        *value = vf_fma(-t, e * tail, vf_max(vf_zero(), x));
        s = e * vf_fma(t, vf_set1(-0.398942280f), tail);
        return vf_select(vf_gt(x, vf_zero()), vf_set1(1.0f) - s, s);
    default: /* MX_RELU */
        *value = vf_max(vf_zero(), x);
        return vf_select(vf_is_nan(x), x, vf_select(vf_gt(x, vf_zero()), vf_set1(1.0f), vf_zero()));
    }
}

#endif
