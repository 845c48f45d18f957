/* One vocabulary for vector code: the files of this folder are written once and compiled once for each instruction
 * set, with MX_SIMD_AVX2, MX_SIMD_AVX512 or MX_SIMD_AVX512_BF16 defined (see the Makefile); what multiplies matrices in
 * tiles once more, with MX_SIMD_AMX. A vf is a vector of VL floats; GCC's operators + - * / work on it. bf16 is widened
 * to f32 on load and rounded to nearest even on store. */
#ifndef MX_KERNELS_SIMD_SIMD_H
#define MX_KERNELS_SIMD_SIMD_H

#include "core/dtype.h"
#include "kernels/inline.h"

#include <immintrin.h>
#include <stdbool.h>

#if defined(MX_SIMD_AMX)
#define MX_SIMD_NAME(name) name##_amx
#define MX_SIMD_AVX512_BF16
#define MX_SIMD_512 1
#elif defined(MX_SIMD_AVX512_BF16)
#define MX_SIMD_NAME(name) name##_avx512_bf16
#define MX_SIMD_512 1
#elif defined(MX_SIMD_AVX512)
#define MX_SIMD_NAME(name) name##_avx512
#define MX_SIMD_512 1
#elif defined(MX_SIMD_AVX2)
#define MX_SIMD_NAME(name) name##_avx2
#define MX_SIMD_512 0
#else
#error "compile with one MX_SIMD_... defined"
#endif

/* Eight floats rounded to bf16, ties to even, as the upper half of each lane; what stands in the lower half is not
 * cleared. */
static inline __m256i round_to_upper_halves(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

#if MX_SIMD_512

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm; /* a mask of lanes */
enum { VL = 16 };

static inline vm vm_first(int64_t n) /* the first n lanes, 0 <= n <= VL */ { return (vm)((1u << n) - 1u); }
static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vf vf_load_part(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
static inline void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline void vf_store_part(float *p, vf x, int64_t n) { _mm512_mask_storeu_ps(p, vm_first(n), x); }
static inline void vf_stream(float *p, vf x) { _mm512_stream_ps(p, x); }       /* p aligned to 64 bytes */
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); } /* a * b + c */
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm512_sqrt_ps(a); }
static inline vf vf_abs(vf a) { return _mm512_abs_ps(a); }
static inline vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vm vf_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline vm vf_ge(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
static inline vm vf_equal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline vm vf_not_equal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); } /* or NaN */
static inline vm vf_not_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }    /* a > b or NaN */
static inline bool vm_any(vm m) { return m != 0; }
static inline vf vf_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline float vf_sum(vf a) { return _mm512_reduce_add_ps(a); }
static inline float vf_hmax(vf a) { return _mm512_reduce_max_ps(a); }
static inline vi vf_bits(vf a) { return _mm512_castps_si512(a); }
static inline vf vi_float(vi a) { return _mm512_castsi512_ps(a); }
static inline vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline vi vi_mullo(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
#define vi_shl(a, n) _mm512_slli_epi32((a), (n))
#define vi_shr(a, n) _mm512_srli_epi32((a), (n)) /* logical */
static inline vi vf_to_vi(vf a) { return _mm512_cvtps_epi32(a); }
static inline vf vi_to_vf(vi a) { return _mm512_cvtepi32_ps(a); }
static inline void vi_store(int32_t *p, vi a) { _mm512_storeu_si512(p, a); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
#define vi_sar(a, n) _mm512_srai_epi32((a), (n)) /* arithmetic */
static inline vm vi_gt(vi a, vi b) { return _mm512_cmpgt_epi32_mask(a, b); }
static inline vi vi_mulhi_u32(vi a, vi b) /* the upper halves of the unsigned products */
{
    vi even = _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32);
    vi odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
    return _mm512_mask_blend_epi32(0xaaaa, even, odd);
}
static inline vm vf_is_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline vf vf_rcp_estimate(vf a) { return _mm512_rcp14_ps(a); } /* relative error below 2^-14 */

static inline vf vf_from_bf16(__m256i h) { return vi_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
static inline vf vf_load_bf16(const mx_bf16 *p) { return vf_from_bf16(_mm256_loadu_si256((const __m256i *)p)); }
static inline vf vf_load_bf16_part(const mx_bf16 *p, int64_t n)
{
    return vf_from_bf16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
static inline __m256i vf_to_bf16(vf x)
{
#if defined(MX_SIMD_AVX512_BF16)
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    vi bits = vf_bits(x);
    vi odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    vi rounded = vi_shr(vi_add(bits, vi_add(odd, vi_set1(0x7fff))), 16);
    vi quiet = _mm512_or_si512(vi_shr(bits, 16), vi_set1(0x40));
    vm is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet));
#endif
}
/* Two vectors from 2 VL neighbours, the even places in one and the odd ones in the other: half the work of two loads
 * in order, and elementwise code does not mind. Stored again by vf_join_bf16: to the upper halves it adds 1 where the
 * lower ones, less 1 if the upper one is even, are half a unit or more. Its NaNs must have a lower half of zero, as
 * arithmetic on bf16 inputs gives them, so that they stay what they are. */
static inline void vf_split_bf16(const mx_bf16 *p, vf *even, vf *odd)
{
    vi both = vi_load((const int32_t *)p);
    *even = vi_float(vi_shl(both, 16));
    *odd = vi_float(vi_and(both, vi_set1((int32_t)0xffff0000)));
}
static inline vi vf_join_bf16(vf even, vf odd)
{
#if defined(MX_SIMD_AVX512_BF16)
    const vi order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                      20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, (vi)_mm512_cvtne2ps_pbh(odd, even));
#else
    vi cut = _mm512_mask_blend_epi16(0xaaaaaaaau, vi_shr(vf_bits(even), 16), vf_bits(odd));
    vi rest = _mm512_mask_blend_epi16(0xaaaaaaaau, vf_bits(even), vi_shl(vf_bits(odd), 16));
    vi is_even = _mm512_andnot_si512(cut, _mm512_set1_epi16(1));
    return _mm512_add_epi16(cut, _mm512_srli_epi16(_mm512_subs_epu16(rest, is_even), 15));
#endif
}
static inline void vf_split(vf a, vf b, vf *even, vf *odd) /* the places of 2 VL neighbours as vf_split_bf16 has them */
{
    const vi places = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    *even = _mm512_permutex2var_ps(a, places, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(places, vi_set1(1)), b);
}
static inline void vf_store_in_turn(float *p, vf even, vf odd) /* the places of 2 VL neighbours as vf_split has them */
{
    const vi low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    vf_store(p, _mm512_permutex2var_ps(even, low, odd));
    vf_store(p + VL, _mm512_permutex2var_ps(even, vi_add(low, vi_set1(8)), odd));
}
static inline void vi_stream(void *p, vi x) { _mm512_stream_si512(p, x); } /* p aligned to 64 bytes */
static inline vi vf_pack_bf16(vf first, vf second)                         /* 2 VL bf16 in order, from any f32 */
{
#if defined(MX_SIMD_AVX512_BF16)
    return (vi)_mm512_cvtne2ps_pbh(second, first);
#else
    return _mm512_inserti64x4(_mm512_castsi256_si512(vf_to_bf16(first)), vf_to_bf16(second), 1);
#endif
}
static inline void vf_store_bf16(mx_bf16 *p, vf x) { _mm256_storeu_si256((__m256i *)p, vf_to_bf16(x)); }
static inline void vf_store_bf16_part(mx_bf16 *p, vf x, int64_t n)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_to_bf16(x));
}

#else /* AVX2 and FMA */

typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm; /* all bits of a lane set or none */
enum { VL = 8 };

static inline __m256i vm_first_bits(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vm vm_first(int64_t n) { return _mm256_castsi256_ps(vm_first_bits(n)); }
static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vf vf_load_part(const float *p, int64_t n) { return _mm256_maskload_ps(p, vm_first_bits(n)); }
static inline void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline void vf_store_part(float *p, vf x, int64_t n) { _mm256_maskstore_ps(p, vm_first_bits(n), x); }
static inline void vf_stream(float *p, vf x) { _mm256_stream_ps(p, x); }       /* p aligned to 32 bytes */
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); } /* a * b + c */
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf vf_sqrt(vf a) { return _mm256_sqrt_ps(a); }
static inline vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vm vf_gt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
static inline vm vf_ge(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
static inline vm vf_not_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); } /* a > b or NaN */
static inline vm vf_equal(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline vm vf_not_equal(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_NEQ_UQ); } /* or NaN */
static inline bool vm_any(vm m) { return _mm256_movemask_ps(m) != 0; }
static inline vf vf_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
static inline float vf_sum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
static inline float vf_hmax(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
static inline vi vf_bits(vf a) { return _mm256_castps_si256(a); }
static inline vf vi_float(vi a) { return _mm256_castsi256_ps(a); }
static inline vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vi vi_mullo(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
#define vi_shl(a, n) _mm256_slli_epi32((a), (n))
#define vi_shr(a, n) _mm256_srli_epi32((a), (n)) /* logical */
static inline vi vf_to_vi(vf a) { return _mm256_cvtps_epi32(a); }
static inline vf vi_to_vf(vi a) { return _mm256_cvtepi32_ps(a); }
static inline void vi_store(int32_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
static inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
#define vi_sar(a, n) _mm256_srai_epi32((a), (n)) /* arithmetic */
static inline vm vi_gt(vi a, vi b) { return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b)); }
static inline vi vi_mulhi_u32(vi a, vi b) /* the upper halves of the unsigned products */
{
    vi even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32);
    vi odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return _mm256_blend_epi32(even, odd, 0xaa);
}
static inline vm vf_is_nan(vf a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
static inline vf vf_rcp_estimate(vf a) { return _mm256_rcp_ps(a); } /* relative error below 1.5 * 2^-12 */

static inline vf vf_from_bf16(__m128i h) { return vi_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
static inline vf vf_load_bf16(const mx_bf16 *p) { return vf_from_bf16(_mm_loadu_si128((const __m128i *)p)); }
static inline vf vf_load_bf16_part(const mx_bf16 *p, int64_t n)
{
    mx_bf16 full[8] = {0};
    memcpy(full, p, (size_t)n * sizeof *p);
    return vf_load_bf16(full);
}
static inline __m128i vf_to_bf16(vf x)
{
    vi wide = vi_shr(round_to_upper_halves(x), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
}
static inline void vf_split_bf16(const mx_bf16 *p, vf *even, vf *odd) /* of 2 VL neighbours; see above */
{
    vi both = vi_load((const int32_t *)p);
    *even = vi_float(vi_shl(both, 16));
    *odd = vi_float(vi_and(both, vi_set1((int32_t)0xffff0000)));
}
static inline vi round_numbers(vf x) /* round_to_upper_halves() where no NaN needs care */
{
    return vi_add(vi_add(vf_bits(x), vi_set1(0x7fff)), vi_and(vi_shr(vf_bits(x), 16), vi_set1(1)));
}
static inline vi vf_join_bf16(vf even, vf odd)
{
    vi cut = _mm256_blend_epi16(vi_shr(vf_bits(even), 16), vf_bits(odd), 0xaa);
    vi rest = _mm256_blend_epi16(vf_bits(even), vi_shl(vf_bits(odd), 16), 0xaa);
    vi is_even = _mm256_andnot_si256(cut, _mm256_set1_epi16(1));
    return _mm256_add_epi16(cut, _mm256_srli_epi16(_mm256_subs_epu16(rest, is_even), 15));
}
static inline void vf_split(vf a, vf b, vf *even, vf *odd) /* as above */
{
    __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}
static inline void vf_store_in_turn(float *p, vf even, vf odd) /* as above */
{
    vf low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    vf_store(p, _mm256_permute2f128_ps(low, high, 0x20));
    vf_store(p + VL, _mm256_permute2f128_ps(low, high, 0x31));
}
static inline void vi_stream(void *p, vi x) { _mm256_stream_si256(p, x); } /* p aligned to 32 bytes */
static inline vi vf_pack_bf16(vf first, vf second)                         /* 2 VL bf16 in order, from any f32 */
{
    bool nan = _mm256_movemask_ps(_mm256_cmp_ps(first, second, _CMP_UNORD_Q)) != 0;
    vi a = __builtin_expect(nan, 0) ? round_to_upper_halves(first) : round_numbers(first);
    vi b = __builtin_expect(nan, 0) ? round_to_upper_halves(second) : round_numbers(second);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(vi_shr(a, 16), vi_shr(b, 16)), 0xd8);
}
static inline void vf_store_bf16(mx_bf16 *p, vf x) { _mm_storeu_si128((__m128i *)p, vf_to_bf16(x)); }
static inline void vf_store_bf16_part(mx_bf16 *p, vf x, int64_t n)
{
    mx_bf16 full[8];
    vf_store_bf16(full, x);
    memcpy(p, full, (size_t)n * sizeof *p);
}

#endif

/* Loops over arrays in memory ask for what they read PREFETCH_AHEAD bytes later, since the processor's own prefetching
 * stops at each page. That is as far ahead as a core with long latencies needs: with 1 KiB, sums of exponentials of
 * bf16 took 1.3 times as long. Behind the end of an array this does nothing. */
enum { PREFETCH_AHEAD = 4096 };
MX_INLINE void prefetch_ahead(const void *p, const int bytes)
{
#pragma GCC unroll 4
    for (int b = 0; b < bytes; b += 64)
        _mm_prefetch((const char *)p + PREFETCH_AHEAD + b, _MM_HINT_T0);
}

static inline vf vf_zero(void) { return vf_set1(0.0f); }

/* 1/x to a relative error of 3e-7, for |x| in [1e-37, 8e37]: a division takes as long as many additions. */
static inline vf vf_rcp(vf x)
{
    vf r = vf_rcp_estimate(x);
    return vf_fma(r, vf_fma(-x, r, vf_set1(1.0f)), r);
}

/* 2^x to a relative error of 3e-6, a hundredth of the rounding error of bf16, for x <= 127: 0, or 2^-126, below -126.
 * NaN stays NaN. With AVX-512 any x will do, and large ones give infinity. The minimax polynomial of degree 4 of what
 * the whole part leaves: r in [0, 1], or in [-1/2, 1/2], where 1.5 * 2^23 added to x leaves the whole part in the low
 * bits of the sum, which go straight to the exponent. */
#define LOG2E 1.44269504f
static inline vf vf_exp2_fast(vf x)
{
#if MX_SIMD_512
    vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    static const float c[] = {1.35341685e-2f, 5.20114612e-2f, 2.41442754e-1f, 6.93003835e-1f, 1.00000259f};
#else
    const vf magic = vf_set1(12582912.0f);
    x = vf_max(vf_set1(-126.0f), x);
    vf t = x + magic, r = x - (t - magic);
    static const float c[] = {9.57010230e-3f, 5.59178620e-2f, 2.40247448e-1f, 6.93121814e-1f, 9.99999261e-1f};
#endif
    vf p = vf_fma(vf_set1(c[0]), r, vf_set1(c[1]));
    p = vf_fma(p, r, vf_set1(c[2]));
    p = vf_fma(p, r, vf_set1(c[3]));
    p = vf_fma(p, r, vf_set1(c[4]));
#if MX_SIMD_512
    return _mm512_scalef_ps(p, x);
#else
    return vi_float(vi_add(vf_bits(p), vi_shl(vf_bits(t), 23)));
#endif
}

/* (e^r - 1 - r) / r^2 for |r| <= ln(2)/2, given r^2: the minimax polynomial of degree 5, in an order that keeps the
 * chain of dependent instructions short. Coefficients: Cephes expf (Moshier, netlib). */
static inline vf vf_exp_rest(vf r, vf square)
{
    vf a = vf_fma(vf_set1(1.9875691500e-4f), r, vf_set1(1.3981999507e-3f));
    vf b = vf_fma(vf_set1(8.3334519073e-3f), r, vf_set1(4.1665795894e-2f));
    vf c = vf_fma(vf_set1(1.6666665459e-1f), r, vf_set1(5.0000001201e-1f));
    return vf_fma(vf_fma(a, square, b), square, c);
}

/* e^x to 2 units in the last place: 0 below -87.3, inf above 88.7. 2^n e^r with |r| <= ln(2)/2. */
static inline vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f), low = vf_set1(-87.3365479f);
    x = vf_min(vf_set1(89.0f), x); /* in this order a NaN survives */
    vf t = vf_fma(x, vf_set1(LOG2E), magic), n = t - magic;
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf square = r * r, p = vf_fma(vf_exp_rest(r, square), square, r + vf_set1(1.0f));
#if MX_SIMD_512
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), p, n);
#else
    p = vi_float(vi_add(vf_bits(p), vi_shl(vf_bits(t), 23))); /* n goes to the exponent as in vf_exp2_fast() */
    p = vf_select(vf_gt(low, x), vf_zero(), p);
    return vf_select(vf_not_le(x, vf_set1(88.7228394f)), x * vf_set1(3.40282347e38f), p); /* inf; NaN stays NaN */
#endif
}

/* sum + x by a multiplier, of a sum of exponentials: on processors with adders and multipliers of their own, such as
 * Zen 5, exponentials keep the adders busier. */
static inline vf vf_add_exp(vf sum, vf x) { return vf_fma(x, vf_set1(1.0f), sum); }

static inline vf vf_sigmoid(vf x) { return vf_set1(1.0f) / (vf_set1(1.0f) + vf_exp(vf_zero() - x)); }

/* tanh x = 1 - 2 / (e^2x + 1); absolute error below 2e-7, enough for activations. */
static inline vf vf_tanh(vf x) { return vf_set1(1.0f) - vf_set1(2.0f) / (vf_exp(x + x) + vf_set1(1.0f)); }

#endif
