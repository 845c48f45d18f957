#include "kernels/context.h"

#include "kernels/mark_loops.h"
#include "kernels/simd/simd.h"

#include <string.h>

enum { WORD = 64, FEW = 12 }; /* elements for each word of a mask; marks of one that are listed one by one */

/* Which elements of a vector have one of `bits`, as the lower bits of the result. */
#if MX_SIMD_512
MX_INLINE uint64_t some(vi x, vi bits, const int bytes)
{
    if (bytes == 8)
        return _mm512_test_epi64_mask(x, bits);
    if (bytes == 4)
        return _mm512_test_epi32_mask(x, bits);
    return bytes == 2 ? _mm512_test_epi16_mask(x, bits) : _mm512_test_epi8_mask(x, bits);
}
#else
MX_INLINE uint64_t some(vi x, vi bits, const int bytes)
{
    const vi zero = vi_set1(0), all = vi_set1(-1);
    x = vi_and(x, bits);
    if (bytes == 8)
        return (uint64_t)_mm256_movemask_pd(_mm256_castsi256_pd(vi_xor(_mm256_cmpeq_epi64(x, zero), all)));
    if (bytes == 4)
        return (uint64_t)_mm256_movemask_ps(vi_float(vi_xor(_mm256_cmpeq_epi32(x, zero), all)));
    if (bytes == 1)
        return (uint32_t)_mm256_movemask_epi8(vi_xor(_mm256_cmpeq_epi8(x, zero), all));
    vi none = _mm256_cmpeq_epi16(x, zero);
    __m128i narrow = _mm_packs_epi16(_mm256_castsi256_si128(none), _mm256_extracti128_si256(none, 1));
    return (uint32_t)_mm_movemask_epi8(narrow) ^ 0xffff;
}
#endif

MX_INLINE uint64_t mark_word(const char *x, vi bits, const int bytes)
{
    const int of_vector = (int)sizeof(vi) / bytes;
    uint64_t word = 0;
#pragma GCC unroll 16
    for (int i = 0; i < WORD; i += of_vector)
        word |= some(vi_load((const int32_t *)(x + i * bytes)), bits, bytes) << i;
    return word;
}

MX_INLINE int64_t mark_as(const char *x, uint64_t *mask, int64_t n, vi bits, const int bytes)
{
    int64_t i = 0, found = 0;
    for (; i + WORD <= n; i += WORD) {
        prefetch_ahead(x + i * bytes, WORD * bytes);
        mask[i / WORD] = mark_word(x + i * bytes, bits, bytes);
        found += __builtin_popcountll(mask[i / WORD]);
    }
    if (i == n)
        return found;
    char rest[WORD * 8] = {0};
    memcpy(rest, x + i * bytes, (size_t)((n - i) * bytes));
    mask[i / WORD] = mark_word(rest, bits, bytes);
    return found + __builtin_popcountll(mask[i / WORD]);
}

/* The sign of a float does not matter. */
static int64_t mark(mx_dtype dtype, const void *x, uint64_t *mask, int64_t n)
{
    const int bytes = (int)mx_dtype_bytes(dtype);
    vi bits = vi_set1(-1);
    if (!mx_dtype_is_integer(dtype)) {
        char sizes[sizeof bits];
        memset(sizes, 0xff, sizeof sizes);
        for (int last = bytes - 1; last < (int)sizeof sizes; last += bytes)
            sizes[last] = 0x7f;
        bits = vi_load((const int32_t *)sizes);
    }
    if (bytes == 8)
        return mark_as(x, mask, n, bits, 8);
    if (bytes == 4)
        return mark_as(x, mask, n, bits, 4);
    return bytes == 2 ? mark_as(x, mask, n, bits, 2) : mark_as(x, mask, n, bits, 1);
}

/* Many are compressed in registers: processors of AMD compress into memory slowly. */
static int64_t places(const uint64_t *mask, int64_t words, int32_t *place)
{
#if MX_SIMD_512
    const vi lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    int32_t *to = place;
    for (int64_t w = 0; w < words; w++) {
        const int count = __builtin_popcountll(mask[w]);
        if (count <= FEW) {
            places_of_few(mask[w], (int32_t)(w * WORD), to);
            to += count;
            continue;
        }
        for (int part = 0; part < WORD; part += VL) {
            vm some_of = (vm)(mask[w] >> part);
            vi own = _mm512_maskz_compress_epi32(some_of, vi_add(lanes, vi_set1((int32_t)(w * WORD + part))));
            vi_store(to, own);
            to += __builtin_popcount(some_of);
        }
    }
    return to - place;
#else
    return loops_places(mask, words, place);
#endif
}

const mx_mark_paths MX_SIMD_NAME(mx_marks) = {.mark = mark, .places = places, .pairs = loops_pairs};
