/* Rows of f32 or bf16 in the words of simd.h. `half` (bf16) and `stream` (past the caches) are constants wherever these
 * are called, so each caller is compiled once for each combination and no branch is left. */
#ifndef MX_KERNELS_SIMD_ROWS_H
#define MX_KERNELS_SIMD_ROWS_H

#include "kernels/simd/simd.h"

#include <stdbool.h>

#define ROW_INLINE static inline __attribute__((always_inline))

ROW_INLINE vf row_load(const void *row, int64_t i, const bool half)
{
    return half ? vf_load_bf16((const mx_bf16 *)row + i) : vf_load((const float *)row + i);
}

/* The first n values from i on, and zeros. */
ROW_INLINE vf row_load_part(const void *row, int64_t i, int64_t n, const bool half)
{
    return half ? vf_load_bf16_part((const mx_bf16 *)row + i, n) : vf_load_part((const float *)row + i, n);
}

/* How many of the VL lanes at i lie in a row of `width`, i < width. */
ROW_INLINE int64_t lanes_left(int64_t width, int64_t i) { return width - i < VL ? width - i : VL; }

ROW_INLINE void row_store(void *row, int64_t i, vf x, const bool half)
{
    if (half)
        vf_store_bf16((mx_bf16 *)row + i, x);
    else
        vf_store((float *)row + i, x);
}

ROW_INLINE void row_store_part(void *row, int64_t i, vf x, int64_t n, const bool half)
{
    if (half)
        vf_store_bf16_part((mx_bf16 *)row + i, x, n);
    else
        vf_store_part((float *)row + i, x, n);
}

#if !MX_SIMD_512
/* The bits of x rounded to bf16, in the lower half of each lane. */
ROW_INLINE __m256i rounded_bits(vf x)
{
    vi bits = vf_bits(x);
    vi odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    vi rounded = vi_add(bits, vi_add(odd, vi_set1(0x7fff)));
    vf quiet = _mm256_or_ps(x, vi_float(vi_set1(0x400000)));
    return vi_shr(vf_bits(vf_select(_mm256_cmp_ps(x, x, _CMP_UNORD_Q), quiet, vi_float(rounded))), 16);
}
#endif

/* Two vectors of bf16 as one store: of a whole cache line with 512 bits, which streaming needs to be fast. */
ROW_INLINE void row_store2_bf16(mx_bf16 *p, vf a, vf b, const bool stream)
{
#if MX_SIMD_512
    __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(vf_to_halves(a)), vf_to_halves(b), 1);
    if (stream)
        _mm512_stream_si512((__m512i *)p, both);
    else
        _mm512_storeu_si512((__m512i *)p, both);
#else
    __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded_bits(a), rounded_bits(b)), 0xd8);
    if (stream)
        _mm256_stream_si256((__m256i *)p, both);
    else
        _mm256_storeu_si256((__m256i *)p, both);
#endif
}

/* Values i .. i + 2 VL. Streaming wants the address aligned to 64 bytes. */
ROW_INLINE void row_store2(void *row, int64_t i, vf a, vf b, const bool half, const bool stream)
{
    if (half) {
        row_store2_bf16((mx_bf16 *)row + i, a, b, stream);
    } else if (stream) {
        vf_stream((float *)row + i, a);
        vf_stream((float *)row + i + VL, b);
    } else {
        vf_store((float *)row + i, a);
        vf_store((float *)row + i + VL, b);
    }
}

/* Asks for the cache lines of `n` values from i on, of a row that comes later, so that reading it overlaps with the
 * arithmetic on this one. Behind the end of the memory it does nothing. */
ROW_INLINE void row_prefetch(const void *row, int64_t i, const int n, const bool half)
{
    const char *p = (const char *)row + i * (half ? 2 : 4);
    for (int b = 0; b < n * (half ? 2 : 4); b += 64)
        _mm_prefetch(p + b, _MM_HINT_T0);
}

/* Row r of a matrix of `width` columns. */
ROW_INLINE const void *row_of(const void *matrix, int64_t r, int64_t width, const bool half)
{
    return (const char *)matrix + r * width * (half ? 2 : 4);
}

ROW_INLINE void *row_of_out(void *matrix, int64_t r, int64_t width, const bool half)
{
    return (char *)matrix + r * width * (half ? 2 : 4);
}

#endif
