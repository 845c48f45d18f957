/* More functions of one variable, in the words of simd.h: relative errors of a few 2^-24, unless said otherwise. NaN
 * gives NaN. */
#ifndef MX_KERNELS_SIMD_FUNCTIONS_H
#define MX_KERNELS_SIMD_FUNCTIONS_H

#include "kernels/simd/vmath.h"

/* e^x = 2^n e^r for x in [-18, 89]: returns e^r - 1, and 2^n as the number 2^0 with n added to its exponent.
 * n, r and the polynomial are those of vf_exp(); or, for bf16, 2^r - 1 with r in parts of an octave and a minimax
 * polynomial (relative error 4e-7). */
MX_INLINE vf vf_expm1_of_rest(bool fast, vf x, vi *power)
{
    const vf magic = vf_set1(12582912.0f);
    vf t = vf_fma(x, vf_set1(LOG2E), magic), n = t - magic;
    *power = vi_shl(vf_bits(t), 23);
    if (fast) {
        vf r = vf_fma(x, vf_set1(LOG2E), -n), p = vf_set1(1.33335389e-3f);
        p = vf_fma(p, r, vf_set1(9.66624571e-3f));
        p = vf_fma(p, r, vf_set1(5.55050021e-2f));
        p = vf_fma(p, r, vf_set1(0.240223513f));
        return vf_fma(p, r, vf_set1(0.693147144f)) * r;
    }
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf square = r * r;
    return vf_fma(vf_exp_rest(r, square), square, r);
}

/* e^x - 1 = 2^n (e^r - 1) + 2^n - 1. Half of it is computed, so that n = 128 does not overflow the exponent. */
MX_INLINE vf vf_expm1(bool fast, vf x)
{
    vi power;
    vf p = vf_expm1_of_rest(fast, vf_max(vf_set1(-18.0f), vf_min(vf_set1(89.0f), x)), &power); /* NaN survives */
    vf half = vi_float(vi_add(power, vi_set1(126 << 23)));
    p = vf_fma(half, p, half - vf_set1(0.5f));
    return p + p;
}

/* x, or below 0 alpha (e^x - 1). */
MX_INLINE vf vf_elu(bool fast, vf x, float alpha)
{
    vi power;
    vf p = vf_expm1_of_rest(fast, vf_max(vf_set1(-18.0f), vf_min(vf_zero(), x)), &power);
    vf whole = vi_float(vi_add(power, vi_set1(127 << 23)));
    p = vf_fma(whole, p, whole - vf_set1(1.0f));
    return vf_fma(vf_set1(alpha), p, vf_max(vf_zero(), x));
}

/* ln(1 + x). The power of two 2^k is that of 1 + x rounded; x itself is scaled by it: z = x / 2^k + (1 / 2^k - 1). The
 * factor is four times as large and x a quarter, so that k = 128 does not underflow. */
MX_INLINE vf vf_log1p(bool fast, vf x)
{
    const vf one = vf_set1(1.0f), quarter = vf_set1(0.25f);
    vf u = one + x;
    vi shifted = vi_sub(vf_bits(u), vi_set1(0x3f3504f3));
    vf factor = vi_float(vi_sub(vi_set1(129 << 23), vi_and(shifted, vi_set1((int32_t)0xff800000))));
    vf z = vf_fma(quarter * x, factor, vf_fma(quarter, factor, vf_zero() - one));
    vf k = vi_to_vf(vi_sar(shifted, 23));
    return vf_log_elsewhere(fast ? vf_log_of_parts_fast(z, k) : vf_log_of_parts(z, k), u);
}

/* ln(1 + e^x) = max(0, x) + ln(1 + e) with e = e^-|x| in [0, 1]: e times a minimax polynomial of degree 9 (relative
 * error 5e-9), or for bf16 of degree 6 (1.3e-6). */
MX_INLINE vf vf_softplus(bool fast, vf x)
{
    static const float fine[] = {-3.24402446e-3f, 1.98514590e-2f,  -5.69595275e-2f, 1.06036542e-1f,  -1.53055921e-1f,
                                 1.96759391e-1f,  -2.49541336e-1f, 3.33299624e-1f,  -4.99999024e-1f, 9.99999995e-1f};
    static const float rough[] = {1.41410290e-2f, -6.64018331e-2f, 0.149223935f, -0.235038651f,
                                  0.331094507f,   -0.499869659f,   0.999998732f};
    const float *c = fast ? rough : fine;
    vf size = vf_abs(x), e = fast ? vf_exp2_fast(size * vf_set1(-LOG2E)) : vf_exp(vf_zero() - size), p = vf_set1(c[0]);
    for (int i = 1; i < (fast ? 7 : 10); i++)
        p = vf_fma(p, e, vf_set1(c[i]));
    return vf_fma(p, e, vf_max(vf_zero(), x));
}

#if !MX_SIMD_512
/* For bf16, and without AVX-512, erf x is x P(x^2) up to 3.2, where erf is 1 to 6e-6, with P of degree 10 (relative
 * error 2e-6) in a variable from -1 to 1, which keeps its terms small. */
MX_INLINE vf vf_erf_fast(vf x)
{
    static const float c[] = {2.73254053e-3f, -6.98080887e-3f, 8.56594088e-3f, -1.53631028e-2f,
                              3.26668968e-2f, -5.46147574e-2f, 8.08037549e-2f, -0.11367459f,
                              0.154334091f,   -0.217305767f,   0.441334569f};
    x = vf_min(vf_set1(3.2f), vf_max(vf_set1(-3.2f), x)); /* in this order a NaN survives */
    vf s = vf_fma(x * x, vf_set1(0.1953125f), vf_set1(-1.0f)), p = vf_set1(c[0]);
    for (int i = 1; i < 11; i++)
        p = vf_fma(p, s, vf_set1(c[i]));
    return x * p;
}
#endif

/* erf x: with AVX-512 by pieces; else x + x P(x^2) up to 0.92, with P of degree 5; else 1 - e^(t Q(t)) with t = |x| and
 * Q of degree 6. Minimax polynomials, whose relative errors in erf are 2e-8 and 7e-10. */
MX_INLINE vf vf_erf(bool fast, vf x)
{
#if MX_SIMD_512
    return vf_erf_by_pieces(fast, x);
#else
    static const float c[] = {-5.99049683e-4f, 4.99311125e-3f,  -2.67665699e-2f,
                              1.12818149e-1f,  -3.76124936e-1f, 1.28379150e-1f};
    static const float d[] = {-1.15223887e-5f, 3.25653613e-4f,  -3.65376746e-3f, 2.37853536e-2f,
                              -1.06263153e-1f, -6.35135909e-1f, -1.12865216f};
    if (fast)
        return vf_erf_fast(x);
    vf size = vf_abs(x), t = vf_min(vf_set1(4.1f), size), s = t * t, p = vf_set1(c[0]), q = vf_set1(d[0]);
    for (int i = 1; i < 6; i++)
        p = vf_fma(p, s, vf_set1(c[i]));
    for (int i = 1; i < 7; i++)
        q = vf_fma(q, t, vf_set1(d[i]));
    vf large = vf_set1(1.0f) - vf_exp_near(q * t);
    large = vi_float(vi_or(vf_bits(large), vi_and(vf_bits(x), vi_set1((int32_t)0x80000000))));
    return vf_select(vf_gt(size, vf_set1(0.921875f)), large, vf_fma(p, x, x)); /* NaN stays NaN */
#endif
}

/* sin x or cos x for bf16 up to VF_SINCOS_MAX, to a relative 2e-6: x less n pi, n whole for the sine and a half more
 * for the cosine, and the sine of that, whose sign is that of (-1)^n. */
MX_INLINE vf vf_sine_fast(vf x, const bool cosine)
{
    const vf magic = vf_set1(12582912.0f), half = vf_set1(cosine ? 0.5f : 0.0f); /* n is in the low bits of the sum */
    vf t = vf_fma(x, vf_set1(0.318309873f), half) + magic, n = t - magic - half;
    vf a = vf_fma(n, vf_set1(8.74227766e-8f), vf_fma(n, vf_set1(-3.14159274f), x)), z = a * a;
    vf p = vf_fma(vf_set1(-1.84864228e-4f), z, vf_set1(8.31184443e-3f));
    p = vf_fma(p, z, vf_set1(-0.166655496f));
    p = vf_fma(p, z, vf_set1(0.999999046f));
    return vi_float(vi_xor(vf_bits(a * p), vi_shl(vf_bits(t), 31)));
}

/* Toward -inf, toward +inf, to the nearest with ties to even; the sign of a zero stays. */
MX_INLINE vf vf_floor_of(vf x)
{
#if MX_SIMD_512
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
    return _mm256_round_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#endif
}
MX_INLINE vf vf_ceil_of(vf x)
{
#if MX_SIMD_512
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#else
    return _mm256_round_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#endif
}

MX_INLINE vf vf_sign(vf x)
{
    vf one = vf_set1(1.0f), sign = vf_select(vf_gt(x, vf_zero()), one, vf_zero());
    sign = vf_select(vf_gt(vf_zero(), x), vf_zero() - one, sign);
    return vf_select(vf_is_nan(x), x, sign);
}

/* Between low and high; the instructions give their second operand when either is NaN. */
MX_INLINE vf vf_clamp(vf x, vf low, vf high) { return vf_min(high, vf_max(low, x)); }

#endif
