/* Powers of f32. */
#ifndef MX_KERNELS_SIMD_POWERS_H
#define MX_KERNELS_SIMD_POWERS_H

#include "kernels/simd/vmath.h"

#include <math.h>

/* p 2^n for a whole n, of any size; denormal where the result is. */
MX_INLINE vf vf_times_power(vf p, vf n)
{
#if MX_SIMD_512
    return _mm512_scalef_ps(p, n);
#else
    vi whole = vf_to_vi(vf_min(vf_set1(250.0f), vf_max(vf_set1(-250.0f), n))), half = vi_sar(whole, 1);
    p = p * vi_float(vi_shl(vi_add(half, vi_set1(127)), 23));
    return p * vi_float(vi_shl(vi_add(vi_sub(whole, half), vi_set1(127)), 23));
#endif
}

/* A positive normal number as 2^exponent / inverse (1 + r), with one of 16 inverses, and log2(1 / inverse) as the sum
 * of two numbers, of which `exponent` contains the first: it has 16 bits behind the point, so that the sum is exact. r
 * is product - 1, where product is rounded; it is below 0.03 in magnitude, and below 0.0235 around 1, where the inverse
 * is 1 and its logarithm 0. The pieces start at 0x3f330000, which is 0.699. */
typedef struct power_of_two {
    vf exponent, low, mantissa, inverse;
} power_of_two;

MX_INLINE power_of_two vf_power_of_two(vf x)
{
    static const _Alignas(64) float inverse[] = {
        1.39890707f, 1.34031415f, 1.28643215f,  1.23671496f,  1.19069767f,  1.14798212f,  1.10822511f,  1.07112968f,
        1.03643727f, 1,           0.948148131f, 0.895104885f, 0.847682118f, 0.805031419f, 0.766467094f, 0.731428564f};
    static const _Alignas(64) float high[] = {
        -0.484298706f, -0.422576904f, -0.363372803f,  -0.306518555f,  -0.251800537f,
        -0.19909668f,  -0.148254395f, -0.0991363525f, -0.0516357422f, 0,
        0.0768127441f, 0.159866333f,  0.23840332f,    0.31288147f,    0.38369751f,
        0.451217651f};
    static const _Alignas(64) float low[] = {
        -1.41602459e-6f, 5.71755299e-6f, -2.56127032e-6f, 5.5316691e-6f,  -6.60792648e-6f,
        -3.49294737e-6f, 3.43729084e-6f, 3.19746914e-6f,  2.93749463e-6f, 0,
        2.87843886e-6f,  5.01989416e-6f, 1.42035617e-6f,  1.53527151e-6f, 6.72896385e-6f,
        -6.52408335e-6f};
    vi shifted = vi_sub(vf_bits(x), vi_set1(0x3f330000)), piece = vi_shr(shifted, 19);
    vf mantissa = vi_float(vi_sub(vf_bits(x), vi_and(shifted, vi_set1((int32_t)0xff800000))));
    return (power_of_two){vi_to_vf(vi_sar(shifted, 23)) + vf_lookup(high, piece), vf_lookup(low, piece), mantissa,
                          vf_lookup(inverse, piece)};
}

/* a^b to a relative 1.3e-7, or 3e-7 where an exponent of thousands makes the most of an a near 1: 2^(b log2 a), where
 * the logarithm and its product with b are sums of two f32. The polynomials are minimax: of log2(1 + r) / r^2 - log2(e)
 * / r to 2^-26, and of 2^r to 2e-9. */
MX_INLINE vf vf_power_near(vf a, vf b)
{
    const vf log2e = vf_set1(LOG2E);
    power_of_two x = vf_power_of_two(a);
    vf product = x.mantissa * x.inverse, r = product - vf_set1(1.0f);
    vf rest = vf_fma(x.mantissa, x.inverse, -product), whole = r + rest;
    vf q = vf_fma(vf_set1(0.288817478f), r, vf_set1(-0.360890303f));
    q = vf_fma(q, r, vf_set1(0.480898263f));
    q = vf_fma(q, r, vf_set1(-0.721347496f));
    vf linear = r * log2e, sum = x.exponent + linear;
    vf low = vf_fma(r, log2e, -linear);
    low = vf_fma(r, vf_set1(1.925963033e-8f), low);
    low = vf_fma(rest, log2e, low);
    low = vf_fma(whole * whole, q, low + x.low);
    low = low + (x.exponent - sum + linear);
    vf high = sum + low;
    low = sum - high + low;
    vf y = b * high, n = vf_round(y);
    vf f = y - n + vf_fma(b, low, vf_fma(b, high, -y));
    static const float c[] = {1.34012583e-3f, 9.61850354e-3f, 5.55032547e-2f, 0.240226467f, 0.693147207f, 1.0f};
    vf p = vf_set1(1.5344654e-4f);
    for (int i = 0; i < 6; i++)
        p = vf_fma(p, f, vf_set1(c[i]));
    return vf_times_power(p, n);
}

/* The same for bf16, to 2e-5: b log2 a is a single number of up to 128. */
MX_INLINE vf vf_power_fast(vf a, vf b)
{
    power_of_two x = vf_power_of_two(a);
    vf r = vf_fma(x.mantissa, x.inverse, vf_set1(-1.0f)), q = vf_fma(vf_set1(-0.360944467f), r, vf_set1(0.481093217f));
    q = vf_fma(q, r, vf_set1(-0.721347472f));
    q = vf_fma(q, r, vf_set1(LOG2E));
    vf y = b * vf_fma(q, r, x.exponent + x.low);
#if MX_SIMD_512
    return vf_exp2_fast(y);
#else
    vf n = vf_round(y), f = y - n, p = vf_fma(vf_set1(9.57010230e-3f), f, vf_set1(5.59178620e-2f));
    p = vf_fma(p, f, vf_set1(2.40247448e-1f));
    p = vf_fma(p, f, vf_set1(6.93121814e-1f));
    return vf_times_power(vf_fma(p, f, vf_set1(9.99999261e-1f)), n);
#endif
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

/* Whether each a is a positive normal number, and no exponent is beyond 8,192. */
MX_INLINE bool vf_are_plain(vf a, vf b)
{
    const vf limit = vf_set1(8192.0f);
#if MX_SIMD_512
    vi above = vi_sub(vf_bits(a), vi_set1(0x00800000)); /* the least normal number */
    return _mm512_mask_cmp_ps_mask(_mm512_cmplt_epu32_mask(above, vi_set1(0x7f000000)), limit, vf_abs(b), _CMP_GE_OQ) ==
           0xffff;
#else
    const vf least = vf_set1(1.17549435e-38f), most = vf_set1(3.40282347e38f);
    vm plain = _mm256_and_ps(_mm256_and_ps(vf_ge(a, least), vf_ge(most, a)), vf_ge(limit, vf_abs(b)));
    return _mm256_movemask_ps(plain) == 0xff;
#endif
}

/* a^b to 3e-7, or if `fast` to 2e-5. Vectors with a zero, an infinity, a NaN, a negative or a tiny a, or with an
 * exponent beyond 8,192, are left to the C library. */
MX_INLINE vf vf_power(bool fast, vf a, vf b)
{
    if (__builtin_expect(!vf_are_plain(a, b), false))
        return powers_by_lane(a, b);
    return fast ? vf_power_fast(a, b) : vf_power_near(a, b);
}

static __attribute__((noinline)) vf power_with_care(bool fast, vf a, vf b) { return vf_power(fast, a, b); }

/* a[u] = a[u]^b[u] for n vectors: with one branch for all of them, so that their instructions interleave. */
MX_INLINE void vf_powers(bool fast, vf *a, const vf *b, const int n)
{
    int odd = 0;
#pragma GCC unroll 8
    for (int u = 0; u < n; u++)
        odd |= !vf_are_plain(a[u], b[u]);
#pragma GCC unroll 8
    for (int u = 0; u < n; u++)
        if (__builtin_expect(odd, false))
            a[u] = power_with_care(fast, a[u], b[u]);
        else
            a[u] = fast ? vf_power_fast(a[u], b[u]) : vf_power_near(a[u], b[u]);
}

#endif
