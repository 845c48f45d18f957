#include "kernels/context.h"

#include "kernels/simd/rows.h"

/* Blocks of 8 x 8, interleaved in three steps: elements 1, 2 and 4 apart change places. The same code serves every
 * instruction set: the work is all loads and stores. */

MX_INLINE void block_of_2(uint16_t *to, int64_t to_stride, const uint16_t *from, int64_t from_stride)
{
    __m128i a[8], b[8];
    for (int r = 0; r < 8; r++)
        a[r] = _mm_loadu_si128((const __m128i *)(from + r * from_stride));
    for (int r = 0; r < 4; r++) {
        b[2 * r] = _mm_unpacklo_epi16(a[r], a[r + 4]);
        b[2 * r + 1] = _mm_unpackhi_epi16(a[r], a[r + 4]);
    }
    for (int r = 0; r < 4; r++) {
        a[2 * r] = _mm_unpacklo_epi16(b[r], b[r + 4]);
        a[2 * r + 1] = _mm_unpackhi_epi16(b[r], b[r + 4]);
    }
    for (int r = 0; r < 4; r++) {
        b[2 * r] = _mm_unpacklo_epi16(a[r], a[r + 4]);
        b[2 * r + 1] = _mm_unpackhi_epi16(a[r], a[r + 4]);
    }
    for (int c = 0; c < 8; c++)
        _mm_storeu_si128((__m128i *)(to + c * to_stride), b[c]);
}

MX_INLINE void block_of_4(float *to, int64_t to_stride, const float *from, int64_t from_stride)
{
    __m256 a[8], b[8];
    /* Row r beside row r + 4: then each half of a vector is a 4 x 4 problem of its own. */
    for (int r = 0; r < 4; r++) {
        __m128 low = _mm_loadu_ps(from + r * from_stride), high = _mm_loadu_ps(from + (r + 4) * from_stride);
        a[r] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
        low = _mm_loadu_ps(from + r * from_stride + 4), high = _mm_loadu_ps(from + (r + 4) * from_stride + 4);
        a[r + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
    for (int h = 0; h < 8; h += 4) {
        b[h] = _mm256_unpacklo_ps(a[h], a[h + 2]);
        b[h + 1] = _mm256_unpackhi_ps(a[h], a[h + 2]);
        b[h + 2] = _mm256_unpacklo_ps(a[h + 1], a[h + 3]);
        b[h + 3] = _mm256_unpackhi_ps(a[h + 1], a[h + 3]);
        _mm256_storeu_ps(to + h * to_stride, _mm256_unpacklo_ps(b[h], b[h + 2]));
        _mm256_storeu_ps(to + (h + 1) * to_stride, _mm256_unpackhi_ps(b[h], b[h + 2]));
        _mm256_storeu_ps(to + (h + 2) * to_stride, _mm256_unpacklo_ps(b[h + 1], b[h + 3]));
        _mm256_storeu_ps(to + (h + 3) * to_stride, _mm256_unpackhi_ps(b[h + 1], b[h + 3]));
    }
}

void MX_SIMD_NAME(mx_transpose)(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
                                int64_t columns, size_t element_bytes)
{
    if (element_bytes == 8) {
        mx_transpose_portable(to, to_stride, from, from_stride, rows, columns, element_bytes);
        return;
    }
    /* Rows are often a multiple of 4 KiB apart and then share their places in the first-level cache. So the tile is
     * first read row by row, and written a few whole rows at a time. */
    _Alignas(64) float tile[MX_TILE * MX_TILE];
    int64_t full_rows = element_bytes == 1 ? 0 : rows / 8 * 8, full_columns = columns / 8 * 8;
    for (int64_t r = 0; r < full_rows; r++)
        memcpy((char *)tile + r * MX_TILE * (int64_t)element_bytes,
               (const char *)from + r * from_stride * (int64_t)element_bytes, (size_t)columns * element_bytes);
    for (int64_t c = 0; c < full_columns; c += 8)
        for (int64_t r = 0; r < full_rows; r += 8)
            if (element_bytes == 2)
                block_of_2((uint16_t *)to + c * to_stride + r, to_stride, (const uint16_t *)tile + r * MX_TILE + c,
                           MX_TILE);
            else
                block_of_4((float *)to + c * to_stride + r, to_stride, tile + r * MX_TILE + c, MX_TILE);
    /* What is left: a strip at the right, and one at the bottom. */
    int64_t bytes = (int64_t)element_bytes;
    if (full_rows > 0 && full_columns < columns)
        mx_transpose_portable((char *)to + full_columns * to_stride * bytes, to_stride,
                              (const char *)from + full_columns * bytes, from_stride, full_rows, columns - full_columns,
                              element_bytes);
    if (full_rows < rows)
        mx_transpose_portable((char *)to + full_rows * bytes, to_stride,
                              (const char *)from + full_rows * from_stride * bytes, from_stride, rows - full_rows,
                              columns, element_bytes);
}
