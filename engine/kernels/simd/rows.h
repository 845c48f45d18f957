/* Rows of f32 or bf16 in the words of simd.h. `bf16` (bf16) and `stream` (past the caches) are constants wherever these
 * are called, so each caller is compiled once for each combination and no branch is left. */
#ifndef MX_KERNELS_SIMD_ROWS_H
#define MX_KERNELS_SIMD_ROWS_H

#include "kernels/simd/simd.h"

#include <stdbool.h>

MX_INLINE vf row_load(const void *row, int64_t i, const bool bf16)
{
    return bf16 ? vf_load_bf16((const mx_bf16 *)row + i) : vf_load((const float *)row + i);
}

/* The first n values from i on, and zeros. */
MX_INLINE vf row_load_part(const void *row, int64_t i, int64_t n, const bool bf16)
{
    return bf16 ? vf_load_bf16_part((const mx_bf16 *)row + i, n) : vf_load_part((const float *)row + i, n);
}

/* How many of the VL lanes at i lie in a row of `width`, i < width. */
MX_INLINE int64_t lanes_left(int64_t width, int64_t i) { return width - i < VL ? width - i : VL; }

MX_INLINE void row_store(void *row, int64_t i, vf x, const bool bf16)
{
    if (bf16)
        vf_store_bf16((mx_bf16 *)row + i, x);
    else
        vf_store((float *)row + i, x);
}

MX_INLINE void row_store_part(void *row, int64_t i, vf x, int64_t n, const bool bf16)
{
    if (bf16)
        vf_store_bf16_part((mx_bf16 *)row + i, x, n);
    else
        vf_store_part((float *)row + i, x, n);
}

/* 2 VL values of bf16 as one store: of a whole cache line with 512 bits, which streaming needs to be fast. */
MX_INLINE void row_store_bits(mx_bf16 *p, vi bits, const bool stream)
{
    if (stream)
        vi_stream(p, bits);
    else
        vi_store((int32_t *)p, bits);
}

/* Values i .. i + 2 VL. Streaming wants the address aligned to 64 bytes. */
MX_INLINE void row_store2(void *row, int64_t i, vf a, vf b, const bool bf16, const bool stream)
{
    if (bf16) {
        row_store_bits((mx_bf16 *)row + i, vf_pack_bf16(a, b), stream);
    } else if (stream) {
        vf_stream((float *)row + i, a);
        vf_stream((float *)row + i + VL, b);
    } else {
        vf_store((float *)row + i, a);
        vf_store((float *)row + i + VL, b);
    }
}

/* Values i .. i + 2 VL: of bf16 the even places and then the odd ones, which is half the work of two loads in order;
 * of floats as they lie. What is combined with them must be arranged alike. */
MX_INLINE void row_get(const void *row, int64_t i, vf v[2], const bool bf16)
{
    if (bf16) {
        vf_split_bf16((const mx_bf16 *)row + i, &v[0], &v[1]);
    } else {
        v[0] = vf_load((const float *)row + i);
        v[1] = vf_load((const float *)row + i + VL);
    }
}

/* Puts back what is arranged so. Of bf16, a NaN's lower 16 bits are zero: it comes from bf16, or from the arithmetic
 * itself. Streaming wants the address aligned to 64 bytes. */
MX_INLINE void row_put(void *row, int64_t i, const vf v[2], const bool bf16, const bool stream)
{
    if (bf16)
        row_store_bits((mx_bf16 *)row + i, vf_join_bf16(v[0], v[1]), stream);
    else
        row_store2(row, i, v[0], v[1], false, stream);
}

/* Asks for the cache lines of `n` values from i on, of a row that comes later, so that reading it overlaps with the
 * arithmetic on this one. Behind the end of the memory it does nothing. */
MX_INLINE void row_prefetch(const void *row, int64_t i, const int n, const bool bf16)
{
    const char *p = (const char *)row + i * (bf16 ? 2 : 4);
    for (int b = 0; b < n * (bf16 ? 2 : 4); b += 64)
        _mm_prefetch(p + b, _MM_HINT_T0);
}

/* Row r of a matrix of `width` columns. */
MX_INLINE const void *row_of(const void *matrix, int64_t r, int64_t width, const bool bf16)
{
    return (const char *)matrix + r * width * (bf16 ? 2 : 4);
}

MX_INLINE void *row_of_out(void *matrix, int64_t r, int64_t width, const bool bf16)
{
    return (char *)matrix + r * width * (bf16 ? 2 : 4);
}

#endif
