/* Powers of f32, computed in f64. A vd is half a vf; GCC's operators work on it, and on a vi or (unsigned)
 * vu as on 64-bit integers. */
#ifndef MX_KERNELS_SIMD_POWERS_H
#define MX_KERNELS_SIMD_POWERS_H

#include "kernels/simd/vmath.h"

#include <math.h>

typedef unsigned long long vu __attribute__((vector_size(VL * 4)));

#if MX_SIMD_512
typedef __m512d vd;
static inline vd vd_set1(double x) { return _mm512_set1_pd(x); }
static inline vd vd_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }
static inline vd vd_max(vd a, vd b) { return _mm512_max_pd(a, b); }
static inline vd vd_min(vd a, vd b) { return _mm512_min_pd(a, b); }
static inline vd vd_low(vf x) { return _mm512_cvtps_pd(_mm512_castps512_ps256(x)); }
static inline vd vd_high(vf x) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)); }
static inline vf vf_of_halves(vd low, vd high)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}
#else
typedef __m256d vd;
static inline vd vd_set1(double x) { return _mm256_set1_pd(x); }
static inline vd vd_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }
static inline vd vd_max(vd a, vd b) { return _mm256_max_pd(a, b); }
static inline vd vd_min(vd a, vd b) { return _mm256_min_pd(a, b); }
static inline vd vd_low(vf x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
static inline vd vd_high(vf x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }
static inline vf vf_of_halves(vd low, vd high)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}
#endif

/* log2 of a normal positive number to a relative 1e-10: the exponent, and z times a minimax polynomial of degree 11,
 * where 1 + z is the mantissa in [sqrt(1/2), sqrt(2)). */
MX_INLINE vd vd_log2_normal(vd x)
{
    const long long root = 0x3fe6a09e667f3bcd; /* of 1/2 */
    static const double c[] = {0.15485743641159044, -0.15698225194239968, 0.15900151403847307, -0.17904695658766998,
                               0.20609625527529604, -0.24050417380133321, 0.28854064358128861, -0.36067280055473361,
                               0.48089832072926064, -0.72134752521316314, 1.4426950409393458};
    vi shifted = (vi)x - root;
    vd z = (vd)((shifted & 0x000fffffffffffff) + root) - 1.0, p = vd_set1(-0.086345900985240004);
    /* The exponent as a double without a conversion of 64 bits, which AVX2 lacks: 2048 more are the low bits of 2^52.
     */
    vu biased = ((vu)shifted >> 52 ^ 0x800) | 0x4330000000000000;
    vd exponent = (vd)biased - (4503599627370496.0 + 2048.0);
    for (int i = 0; i < 11; i++)
        p = vd_fma(p, z, vd_set1(c[i]));
    return vd_fma(p, z, exponent);
}

/* 2^y for |y| < 1000 to a relative 2e-9: the whole part goes to the exponent, the rest r in [-1/2, 1/2] to a minimax
 * polynomial of degree 6. */
MX_INLINE vd vd_exp2_near(vd y)
{
    static const double c[] = {0.0013399931197356344, 0.0096184889601631882, 0.055503287770402802,
                               0.24022646890618507,   0.69314720573722732,   1.0000000005541663};
    const vd magic = vd_set1(6755399441055744.0); /* 1.5 2^52: the low bits of the sum are the whole number */
    vd t = y + magic, r = y - (t - magic), p = vd_set1(0.00015345811044961449);
    for (int i = 0; i < 6; i++)
        p = vd_fma(p, r, vd_set1(c[i]));
    return (vd)((vi)p + ((vi)t << 52));
}

MX_INLINE vd vd_power(vd a, vd b)
{
    vd e = b * vd_log2_normal(a);
    return vd_exp2_near(vd_max(vd_set1(-300), vd_min(vd_set1(300), e))); /* f32 has 0 and infinity there */
}

static __attribute__((noinline)) vf powers_by_lane(vf a, vf b)
{
    float x[VL], y[VL];
    vf_store(x, a);
    vf_store(y, b);
    for (int i = 0; i < VL; i++)
        y[i] = powf(x[i], y[i]);
    return vf_load(y);
}

/* a^b to 2e-7, or if `fast` to 1e-5. Vectors with a zero, an infinity, a NaN, a negative or a tiny a are left to the C
 * library. */
MX_INLINE vf vf_power(bool fast, vf a, vf b)
{
    vf base = vf_min(vf_max(a, vf_set1(1.17549435e-38f)), vf_set1(3.40282347e38f)), size = vf_set1(1e30f);
    vf exponent = vf_min(vf_max(b, vf_zero() - size), size);
    if (vm_any(vf_not_equal(base, a)) || vm_any(vf_not_equal(exponent, b)))
        return powers_by_lane(a, b);
    if (fast)
        return vf_exp(b * vf_log_normal(a));
    return vf_of_halves(vd_power(vd_low(a), vd_low(b)), vd_power(vd_high(a), vd_high(b)));
}

#endif
