/* More functions of one variable, in the words of simd.h: relative errors of a few 2^-24, unless said otherwise. NaN
 * gives NaN. */
#ifndef MX_KERNELS_SIMD_FUNCTIONS_H
#define MX_KERNELS_SIMD_FUNCTIONS_H

#include "kernels/simd/vmath.h"

/* e^x - 1 = 2^n (e^r - 1) + 2^n - 1 with n, r and the polynomial of vf_exp(). Half of it is computed, so that n = 128
 * does not overflow the exponent. */
MX_INLINE vf vf_expm1(vf x)
{
    const vf magic = vf_set1(12582912.0f);
    x = vf_max(vf_set1(-18.0f), vf_min(vf_set1(89.0f), x)); /* in this order a NaN survives */
    vf t = vf_fma(x, vf_set1(LOG2E), magic), n = t - magic;
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, r * r, r);
    vf half = vi_float(vi_add(vi_shl(vf_bits(t), 23), vi_set1(126 << 23))); /* 2^n / 2 */
    p = vf_fma(half, p, half - vf_set1(0.5f));
    return p + p;
}

/* ln(1 + x). The power of two 2^k is that of 1 + x rounded; x itself is scaled by it: z = x / 2^k + (1 / 2^k - 1). The
 * factor is four times as large and x a quarter, so that k = 128 does not underflow. */
MX_INLINE vf vf_log1p(vf x)
{
    const vf one = vf_set1(1.0f), quarter = vf_set1(0.25f);
    vf u = one + x;
    vi shifted = vi_sub(vf_bits(u), vi_set1(0x3f3504f3));
    vf factor = vi_float(vi_sub(vi_set1(129 << 23), vi_and(shifted, vi_set1((int32_t)0xff800000))));
    vf z = vf_fma(quarter * x, factor, vf_fma(quarter, factor, vf_zero() - one));
    return vf_log_elsewhere(vf_log_of_parts(z, vi_to_vf(vi_sar(shifted, 23))), u);
}

/* ln(1 + e^x) = max(0, x) + ln(1 + e) with e = e^-|x| in [0, 1]: e times a minimax polynomial of degree 9 (relative
 * error 5e-9). */
MX_INLINE vf vf_softplus(vf x)
{
    static const float c[] = {-3.24402446e-3f, 1.98514590e-2f,  -5.69595275e-2f, 1.06036542e-1f,  -1.53055921e-1f,
                              1.96759391e-1f,  -2.49541336e-1f, 3.33299624e-1f,  -4.99999024e-1f, 9.99999995e-1f};
    vf e = vf_exp(vf_zero() - vf_abs(x)), p = vf_set1(c[0]);
    for (int i = 1; i < 10; i++)
        p = vf_fma(p, e, vf_set1(c[i]));
    return vf_fma(p, e, vf_max(vf_zero(), x));
}

/* erf x: x + x P(x^2) up to 0.92, with P of degree 5; else 1 - e^(t Q(t)) with t = |x| and Q of degree 6. Minimax
 * polynomials, whose relative errors in erf are 2e-8 and 7e-10. */
MX_INLINE vf vf_erf(vf x)
{
    static const float c[] = {-5.99049683e-4f, 4.99311125e-3f,  -2.67665699e-2f,
                              1.12818149e-1f,  -3.76124936e-1f, 1.28379150e-1f};
    static const float d[] = {-1.15223887e-5f, 3.25653613e-4f,  -3.65376746e-3f, 2.37853536e-2f,
                              -1.06263153e-1f, -6.35135909e-1f, -1.12865216f};
    vf size = vf_abs(x), t = vf_min(vf_set1(4.1f), size), s = t * t, p = vf_set1(c[0]), q = vf_set1(d[0]);
    for (int i = 1; i < 6; i++)
        p = vf_fma(p, s, vf_set1(c[i]));
    for (int i = 1; i < 7; i++)
        q = vf_fma(q, t, vf_set1(d[i]));
    vf large = vf_set1(1.0f) - vf_exp_near(q * t);
    large = vi_float(vi_or(vf_bits(large), vi_and(vf_bits(x), vi_set1((int32_t)0x80000000))));
    return vf_select(vf_gt(size, vf_set1(0.921875f)), large, vf_fma(p, x, x)); /* NaN stays NaN */
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
