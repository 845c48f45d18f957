/* Codes of one byte as f32, for packing and for tiles. */
#ifndef MX_KERNELS_SIMD_CODES_H
#define MX_KERNELS_SIMD_CODES_H

#include "kernels/simd/simd.h"

MX_INLINE __m256 half_to_f32(__m128i x)
{
#if MX_SIMD_512
    return _mm512_castps512_ps256(_mm512_cvtph_ps(_mm256_castsi128_si256(x)));
#else
    return _mm256_cvtph_ps(x);
#endif
}

/* Eight codes of AMD's formats as f32, as mx_from_float8 makes them. */
MX_INLINE __m256 fnuz_to_f32(__m128i codes, int mantissa, int bias)
{
    __m256i wide = _mm256_cvtepu8_epi32(codes), hidden = _mm256_set1_epi32((128 - bias) << 23);
    __m256i rest = _mm256_slli_epi32(_mm256_and_si256(wide, _mm256_set1_epi32(0x7f)), 23 - mantissa);
    __m256 denormal = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_add_epi32(rest, hidden)), _mm256_castsi256_ps(hidden));
    __m256i normal = _mm256_add_epi32(rest, _mm256_set1_epi32((127 - bias) << 23));
    __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32(1 << 23), rest);
    __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(wide, 7), 31);
    __m256i nan = _mm256_cmpeq_epi32(wide, _mm256_set1_epi32(0x80));
    __m256i x = _mm256_blendv_epi8(normal, _mm256_castps_si256(denormal), small);
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_or_si256(x, sign), nan));
}

/* Eight codes as f32, which bf16 holds, too. The other floats become f16, whose conversion the processor has: e5m2 is
 * its upper byte, and e4m3 2^-8 of its own value, as the exponent's bias is 8 less. */
MX_INLINE __m256 codes_to_f32(__m128i codes, mx_dtype dtype)
{
    if (dtype == MX_I8)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    if (dtype == MX_E4M3FNUZ || dtype == MX_E5M2FNUZ)
        return fnuz_to_f32(codes, mx_dtypes[dtype].mantissa_bits, mx_dtypes[dtype].exponent_bias);
    __m128i wide = _mm_slli_epi16(_mm_cvtepu8_epi16(codes), 8);
    if (dtype == MX_E5M2)
        return half_to_f32(wide);
    __m128i sign = _mm_and_si128(wide, _mm_set1_epi16((short)0x8000));
    __m128i rest = _mm_andnot_si128(_mm_set1_epi16((short)0x8000), wide);
    __m128i nan = _mm_cmpeq_epi16(rest, _mm_set1_epi16(0x7f00));
    __m128i half =
        _mm_or_si128(_mm_or_si128(sign, _mm_srli_epi16(rest, 1)), _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    return _mm256_mul_ps(half_to_f32(half), _mm256_set1_ps(256.0f));
}

#endif
