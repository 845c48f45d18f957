/* More functions of one variable, in the words of simd.h: relative errors of a few 2^-24, unless said otherwise. NaN
 * gives NaN. */
#ifndef MX_KERNELS_SIMD_FUNCTIONS_H
#define MX_KERNELS_SIMD_FUNCTIONS_H

#include "kernels/simd/vmath.h"

/* e^x - 1: near 0 the polynomial of vf_exp without its 1. */
MX_INLINE vf vf_expm1(vf x)
{
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, x, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, x, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, x, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, x, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, x, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, x * x, x);
    return vf_select(vf_gt(vf_set1(0.34657359f), vf_abs(x)), p, vf_exp_whole(x) - vf_set1(1.0f));
}

/* ln(1 + x): the rounding of u = 1 + x is undone by the factor x / (u - 1) (Kahan). */
MX_INLINE vf vf_log1p(vf x)
{
    const vf one = vf_set1(1.0f);
    vf u = one + x, exact = u - one;
    vf factor = vf_select(vf_gt(x, vf_set1(1e8f)), one, x / exact);
    vf y = vf_log(u) * factor;
    y = vf_select(vf_gt(vf_abs(exact), vf_zero()), y, x);
    return vf_select(vf_is_nan(x), x, y);
}

/* ln(1 + e^x) */
MX_INLINE vf vf_softplus(vf x)
{
    vf tail = vf_log1p(vf_exp_whole(vf_zero() - vf_abs(x)));
    return vf_select(vf_is_nan(x), x, vf_max(vf_zero(), x) + tail);
}

/* erf x: its series below 0.75, else 1 less twice the normal tail. */
MX_INLINE vf vf_erf(vf x)
{
    static const float c[] = {-1.4925650358e-5f, 1.2055332981e-4f, -8.5483270234e-4f, 5.2239776254e-3f,
                              -2.6866170645e-2f, 1.1283791671e-1f, -3.7612638903e-1f, 1.1283791671f};
    const vf one = vf_set1(1.0f);
    vf size = vf_abs(x), z = x * x, p = vf_set1(c[0]), e;
    for (int i = 1; i < 8; i++)
        p = vf_fma(p, z, vf_set1(c[i]));
    vf tail = vf_normal_tail(vf_min(vf_set1(13.0f), size * vf_set1(1.41421356f)), false, false, &e);
    vf large = one - (tail + tail) * e;
    large = vi_float(vi_or(vf_bits(large), vi_and(vf_bits(x), vi_set1((int32_t)0x80000000))));
    vf y = vf_select(vf_gt(vf_set1(0.75f), size), p * x, large);
    return vf_select(vf_is_nan(x), x, y);
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
