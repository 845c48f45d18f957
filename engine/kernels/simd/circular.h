/* sinh, cosh, and the functions that are inverse to sines and tangents, circular and hyperbolic, in the words of
 * simd.h: relative errors of a few 2^-24. NaN gives NaN. The polynomials are minimax ones. */
#ifndef MX_KERNELS_SIMD_CIRCULAR_H
#define MX_KERNELS_SIMD_CIRCULAR_H

#include "kernels/simd/functions.h"

#define HALF_PI 1.57079637f
#define HALF_PI_REST -4.37113883e-8f /* pi / 2 less HALF_PI */

MX_INLINE vi vf_sign_bit(vf x) { return vi_and(vf_bits(x), vi_set1((int32_t)0x80000000)); }
MX_INLINE vf vf_with_sign(vf size, vf x) { return vi_float(vi_or(vf_bits(size), vf_sign_bit(x))); }

/* atan t for t in [0, 1]: t + t^3 P(t^2), P of degree 8 (relative error 8e-9). */
MX_INLINE vf vf_atan_near(vf t)
{
    static const float c[] = {-0.00179362227f, 0.0109146088f, -0.0311778504f, 0.0579576008f, -0.08403451f,
                              0.109521858f,    -0.142642424f, 0.199985489f,   -0.333332986f};
    vf s = t * t, p = vf_set1(c[0]);
    for (int i = 1; i < 9; i++)
        p = vf_fma(p, s, vf_set1(c[i]));
    return vf_fma(p * s, t, t);
}

MX_INLINE vf vf_atan(vf x)
{
    const vf one = vf_set1(1.0f);
    vf size = vf_abs(x), p = vf_atan_near(vf_min(size, one) / vf_max(size, one));
    vf beyond = vf_set1(HALF_PI) - (p - vf_set1(HALF_PI_REST));
    return vf_select(vf_is_nan(x), x, vf_with_sign(vf_select(vf_gt(size, one), beyond, p), x));
}

/* The angle of (x, y), from -pi to pi. Both 0 or both infinite: that of (+-1 or +-0, ...), as the C library has it. */
MX_INLINE vf vf_atan2(vf y, vf x)
{
    vf width = vf_abs(x), height = vf_abs(y), least = vf_min(width, height), most = vf_max(width, height);
    vf t = least / most;
    t = vf_select(vf_gt(most, vf_zero()), t, vf_zero());
    t = vf_select(vf_gt(least, vf_set1(3.40282347e38f)), vf_set1(1.0f), t);
    vf p = vf_atan_near(t);
    p = vf_select(vf_gt(height, width), vf_set1(HALF_PI) - (p - vf_set1(HALF_PI_REST)), p);
    vf left = vf_set1(2 * HALF_PI) - (p - vf_set1(2 * HALF_PI_REST));
    vm is_left = vi_gt(vi_set1(0), vf_bits(x)); /* -0, too */
    p = vf_with_sign(vf_select(is_left, left, p), y);
    return vf_select(vf_is_nan(x), x, vf_select(vf_is_nan(y), y, p));
}

/* asin t for t in [0, 1/2], given t^2: t + t^3 P(t^2), P of degree 4 (relative error 6e-9). */
MX_INLINE vf vf_asin_near(vf t, vf square)
{
    static const float c[] = {0.0421663076f, 0.0241795145f, 0.0454703756f, 0.0749529749f, 0.166667521f};
    vf p = vf_set1(c[0]);
    for (int i = 1; i < 5; i++)
        p = vf_fma(p, square, vf_set1(c[i]));
    return vf_fma(p * square, t, t);
}

/* Beyond 1/2, asin x = pi/2 - 2 asin sqrt((1 - x) / 2). `far`: those lanes; returns asin |x| in the others, and there
 * the doubled angle. */
MX_INLINE vf vf_asin_parts(vf x, vm *far)
{
    const vf half = vf_set1(0.5f);
    vf size = vf_abs(x), rest = vf_fma(size, vf_zero() - half, half);
    *far = vf_gt(size, half);
    vf square = vf_select(*far, rest, size * size), t = vf_select(*far, vf_sqrt(rest), size);
    vf p = vf_asin_near(t, square);
    return vf_select(*far, p + p, p);
}

MX_INLINE vf vf_asin(vf x)
{
    vm far;
    vf p = vf_asin_parts(x, &far);
    p = vf_select(far, vf_set1(HALF_PI) - (p - vf_set1(HALF_PI_REST)), p);
    return vf_with_sign(p, x);
}

MX_INLINE vf vf_acos(vf x)
{
    vm far, negative = vf_gt(vf_zero(), x);
    vf p = vf_asin_parts(x, &far);
    vf left = vf_set1(2 * HALF_PI) - (p - vf_set1(2 * HALF_PI_REST));
    vf near = vf_set1(HALF_PI) - (vf_with_sign(p, x) - vf_set1(HALF_PI_REST));
    return vf_select(far, vf_select(negative, left, p), near);
}

/* e^x / 2 for x >= 0; infinite beyond 89.42. A quarter of e^x is computed first, so that 2^129 does not overflow. */
MX_INLINE vf vf_half_exp(vf x)
{
    vi power;
    vf p = vf_expm1_of_rest(false, vf_min(vf_set1(89.5f), x), &power); /* NaN survives */
    vf quarter = vi_float(vi_add(power, vi_set1(125 << 23)));
    p = vf_fma(quarter, p, quarter);
    return p + p;
}

MX_INLINE vf vf_cosh(vf x)
{
    vf half = vf_half_exp(vf_abs(x));
    return half + vf_set1(0.25f) / half;
}

/* Up to 1: x + x^3 P(x^2), P of degree 3 (relative error 5e-9). */
MX_INLINE vf vf_sinh(vf x)
{
    vf size = vf_abs(x), half = vf_half_exp(size), s = x * x;
    vf p = vf_fma(vf_set1(2.81695134e-06f), s, vf_set1(0.000198361595f));
    p = vf_fma(vf_fma(p, s, vf_set1(0.0083333496f)), s, vf_set1(0.166666672f));
    vf near = vf_fma(p * s, x, x), far = vf_with_sign(half - vf_set1(0.25f) / half, x);
    return vf_select(vf_gt(size, vf_set1(1.0f)), far, near);
}

/* ln(1 + y), or, where x is so large that its square would overflow, ln(2 x). */
MX_INLINE vf vf_log_of_sum(vf x, vf y)
{
    vm large = vf_gt(x, vf_set1(1e9f));
    return vf_log1p(false, vf_select(large, x, y)) + vf_select(large, vf_set1(0.693147181f), vf_zero());
}

/* ln(t + sqrt(t^2 + 1)) of t = |x|, whose 1 is taken out of the sum: accurate near 0. */
MX_INLINE vf vf_asinh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf t = vf_abs(x), square = t * t;
    return vf_with_sign(vf_log_of_sum(t, t + square / (one + vf_sqrt(square + one))), x);
}

/* ln(x + sqrt(x^2 - 1)), from what x is above 1: accurate near 1. NaN below 1. */
MX_INLINE vf vf_acosh(vf x)
{
    const vf one = vf_set1(1.0f);
    vf d = x - one, y = vf_log_of_sum(x, d + vf_sqrt(d * (x + one)));
    return vf_select(vf_gt(one, x), vf_set1(NAN), y);
}

/* ln((1 + t) / (1 - t)) / 2 of t = |x|. Infinite at 1, NaN beyond. */
MX_INLINE vf vf_atanh(vf x)
{
    vf t = vf_abs(x);
    return vf_with_sign(vf_set1(0.5f) * vf_log1p(false, (t + t) / (vf_set1(1.0f) - t)), x);
}

#endif
