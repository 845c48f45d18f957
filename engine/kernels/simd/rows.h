/* Rows of f32 or bf16 in the words of simd.h. `bf16` (bf16) and `stream` (past the caches) are constants wherever these
 * are called, so each caller is compiled once for each combination and no branch is left. */
#ifndef MX_KERNELS_SIMD_ROWS_H
#define MX_KERNELS_SIMD_ROWS_H

#include "kernels/simd/simd.h"

#include <stdbool.h>
#include <string.h>

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

MX_INLINE void row_get4(const void *row, int64_t i, vf v[4], const bool bf16)
{
    row_get(row, i, v, bf16);
    row_get(row, i + 2 * VL, v + 2, bf16);
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

/* Whether loops over rows of columns take one row after the other, as all columns of long rows are wanted: memory is
 * then read and written in its own order. Shorter rows would wait for the numbers of their columns to be stored. */
MX_INLINE bool in_order(int64_t stride, int64_t width) { return width == stride && width >= 1024; }

/* Other loops over rows of columns compute with four rows at a time, but prefetch the rows that come next one after the
 * other: Zen 5 reads memory at 1.5 times the rate in its own order. Starts with the row that is `ahead` rows after
 * `at`. */
typedef struct next_rows {
    const char *row, *line;
    int64_t stride, bytes; /* of a row */
} next_rows;

MX_INLINE next_rows rows_after(const void *x, int64_t at, int64_t stride, int64_t width, const bool bf16)
{
    const int64_t size = bf16 ? 2 : 4, bytes = width * size;
    const char *row = (const char *)x + (at + (bytes < 1024 ? 8 : 4) * stride) * size;
    return (next_rows){row, row, stride * size, bytes};
}

/* Asks for as many lines as n values fill, into the second-level cache: four rows may be more than the first-level one
 * has room for. */
MX_INLINE void prefetch_rows(next_rows *next, const int n, const bool bf16)
{
    for (int b = 0; b < n * (bf16 ? 2 : 4); b += 64)
        _mm_prefetch(next->line + b, _MM_HINT_T1);
    next->line += n * (bf16 ? 2 : 4);
    if (next->line >= next->row + next->bytes) {
        next->row += next->stride;
        next->line = next->row;
    }
}

/* As row_prefetch(), no nearer than the second-level cache: for what is read a row or a block of rows later. */
MX_INLINE void row_prefetch_later(const void *row, int64_t i, const int n, const bool bf16)
{
    const char *p = (const char *)row + i * (bf16 ? 2 : 4);
    for (int b = 0; b < n * (bf16 ? 2 : 4); b += 64)
        _mm_prefetch(p + b, _MM_HINT_T1);
}

/* The values before the first place of a row of n that a cache line may be streamed to. */
MX_INLINE int64_t row_head(const void *row, int64_t n, const bool bf16)
{
    int64_t head = (int64_t)((64 - (uintptr_t)row % 64) % 64) / (bf16 ? 2 : 4);
    return head < n ? head : n;
}

/* Numbers for `width` columns, arranged as row_get() has the columns in pieces of 2 VL; the rest stays. */
MX_INLINE const float *row_arranged(const float *numbers, float *room, int64_t width, const bool bf16)
{
    int64_t j = 0;
    if (!bf16)
        return numbers;
    for (; j + 2 * VL <= width; j += 2 * VL) {
        vf even, odd;
        vf_split(vf_load(numbers + j), vf_load(numbers + j + VL), &even, &odd);
        vf_store(room + j, even);
        vf_store(room + j + VL, odd);
    }
    memcpy(room + j, numbers + j, (size_t)(width - j) * sizeof *room);
    return room;
}

/* The same numbers in order again. */
MX_INLINE void row_restore(const float *arranged, float *numbers, int64_t width)
{
    int64_t j = 0;
    for (; j + 2 * VL <= width; j += 2 * VL)
        vf_store_in_turn(numbers + j, vf_load(arranged + j), vf_load(arranged + j + VL));
    memcpy(numbers + j, arranged + j, (size_t)(width - j) * sizeof *numbers);
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
