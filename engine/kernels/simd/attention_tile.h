/* The building blocks of tiled attention: packing and the register-block product.
 *
 * All products here are C (m, n) += A (m, k) B (k, n) with queries (rows) along n, in vectors. The general packed
 * micro-kernels (gemm_micro.h) are not used because the probabilities are an operand of three products just where
 * they are computed: here A may also be read from unpacked rows and B from a wider block, C may be narrower than a
 * full register block, and f32 products are needed on every instruction set.
 *
 * Operands are stored in words of 32 bits. A word is one f32, or a pair of bf16 neighbours in k, the even one in the
 * lower half. So k counts words, and a pair kernel does two multiplications a word. `kind` is always a constant. */
#ifndef MX_KERNELS_SIMD_ATTENTION_TILE_H
#define MX_KERNELS_SIMD_ATTENTION_TILE_H

#include "kernels/attention_paths.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/transpose.h"
#include "kernels/simd/vmath.h"

#include <math.h>

enum word {
    WORD_F32,
    WORD_WIDE, /* f32 from bf16 */
    WORD_PAIR,
#if defined(MX_SIMD_AVX512_BF16)
    WORD_BF16 = WORD_PAIR, /* how this path stores bf16 operands */
#else
    WORD_BF16 = WORD_WIDE,
#endif
};

/* The register block, MR x NV vectors of C; the words of k that it takes at a time; the items of A packed at a time. */
#if defined(MX_SIMD_AMX)
enum { MR = 32, NV = 2, K_UNIT = 16, KEY_UNIT = MR };
#else
enum { MR = VL / 2, NV = 3, K_UNIT = 1, KEY_UNIT = VL };
#endif
enum { NR = NV * VL };

MX_INLINE int64_t group_of(int kind) { return kind == WORD_PAIR ? 2 : 1; } /* values of k in a word */
MX_INLINE int64_t words_of(int kind, int64_t n) { return (n + group_of(kind) - 1) / group_of(kind); }
MX_INLINE int64_t words_of_width(int kind, int64_t n)
{
    return mx_round_up(words_of(kind, n), K_UNIT);
} /* of head_dim */
MX_INLINE mx_dtype dtype_of(int kind) { return kind == WORD_F32 ? MX_F32 : MX_BF16; }

/* ---- what simd.h lacks ---- */

#if MX_SIMD_512
typedef __m256i bf16_lanes; /* VL bf16 */
MX_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
MX_INLINE void store_lower(float *p, vf x) { _mm256_storeu_ps(p, _mm512_castps512_ps256(x)); }
MX_INLINE void store_upper(float *p, vf x) { _mm256_storeu_ps(p, _mm512_extractf32x8_ps(x, 1)); }
MX_INLINE void store_bf16(void *p, bf16_lanes h) { _mm256_storeu_si256((__m256i *)p, h); }
MX_INLINE vi load_bytes(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
MX_INLINE void store_bytes(uint8_t *p, vi x) /* the lowest of each lane */
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
}
MX_INLINE bf16_lanes upper_halves(vi x) { return _mm512_cvtepi32_epi16(vi_shr(x, 16)); }
MX_INLINE vf pair_words(bf16_lanes even, bf16_lanes odd)
{
    vi low = _mm512_cvtepu16_epi32(even), high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16);
    return vi_float(_mm512_or_si512(low, high));
}
#else
typedef __m128i bf16_lanes;
MX_INLINE vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
MX_INLINE void store_lower(float *p, vf x) { _mm_storeu_ps(p, _mm256_castps256_ps128(x)); }
MX_INLINE void store_upper(float *p, vf x) { _mm_storeu_ps(p, _mm256_extractf128_ps(x, 1)); }
MX_INLINE void store_bf16(void *p, bf16_lanes h) { _mm_storeu_si128((__m128i *)p, h); }
MX_INLINE vi load_bytes(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
MX_INLINE bf16_lanes narrow(vi x) /* of lanes below 2^16 */
{
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
MX_INLINE void store_bytes(uint8_t *p, vi x) /* the lowest of each lane */
{
    __m128i halves = narrow(vi_and(x, vi_set1(0xff)));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(halves, halves));
}
MX_INLINE bf16_lanes upper_halves(vi x) { return narrow(vi_shr(x, 16)); }
MX_INLINE vf pair_words(bf16_lanes even, bf16_lanes odd)
{
    vi low = _mm256_cvtepu16_epi32(even), high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(odd), 16);
    return vi_float(_mm256_or_si256(low, high));
}
#endif

/* acc + a b for one word of A, given in all lanes, and a vector of words of B. */
MX_INLINE vf multiply_add(int kind, vf a, vf b, vf acc)
{
    if (kind != WORD_PAIR)
        return vf_fma(a, b, acc);
#if defined(MX_SIMD_AVX512_BF16)
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#else
    vi upper = vi_set1((int32_t)0xffff0000u);
    acc = vf_fma(vi_float(vi_shl(vf_bits(a), 16)), vi_float(vi_shl(vf_bits(b), 16)), acc);
    return vf_fma(vi_float(vi_and(vf_bits(a), upper)), vi_float(vi_and(vf_bits(b), upper)), acc);
#endif
}

/* ---- the register block ---- */

#define NOINLINE static __attribute__((noinline, unused))
#if defined(MX_SIMD_AMX)
#include "kernels/amx/attention_products.h"
#else
/* Before the first product of a call and after the last. */
MX_INLINE void products_begin(void) {}
MX_INLINE void products_end(void) {}

/* C (MR x nv vectors) = or += A B. Row i of A is at a + i * a_row, with a_step from one word of k to the next. */
MX_INLINE void tile(int kind, int nv, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                    int64_t b_step, float *c, int64_t c_row, bool add)
{
    vf acc[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < nv; j++)
            acc[i][j] = add ? vf_load(c + i * c_row + j * VL) : vf_zero();
    for (int64_t p = 0; p < k; p++, a += a_step, b += b_step) {
        vf bv[NV];
#pragma GCC unroll 3
        for (int j = 0; j < nv; j++)
            bv[j] = vf_load(b + j * VL);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            vf av = vf_set1(a[i * a_row]);
#pragma GCC unroll 3
            for (int j = 0; j < nv; j++)
                acc[i][j] = multiply_add(kind, av, bv[j], acc[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < nv; j++)
            vf_store(c + i * c_row + j * VL, acc[i][j]);
}

/* A in panels of MR, [k][MR], C nv vectors wide: C = or += A B. */
typedef void tile_packed(int64_t k, const float *a, const float *b, int64_t b_step, float *c, int64_t c_row, bool add);
#define TILE_PACKED(name, kind, nv)                                                                                    \
    NOINLINE void name(int64_t k, const float *a, const float *b, int64_t b_step, float *c, int64_t c_row, bool add)   \
    {                                                                                                                  \
        tile(kind, nv, k, a, 1, MR, b, b_step, c, c_row, add);                                                         \
    }
TILE_PACKED(tile_packed1_f32, WORD_F32, 1)
TILE_PACKED(tile_packed2_f32, WORD_F32, 2)
TILE_PACKED(tile_packed3_f32, WORD_F32, 3)
TILE_PACKED(tile_packed1_pair, WORD_PAIR, 1)
TILE_PACKED(tile_packed2_pair, WORD_PAIR, 2)
TILE_PACKED(tile_packed3_pair, WORD_PAIR, 3)
MX_INLINE tile_packed *tile_packed_of(int kind, int64_t nv)
{
    if (kind == WORD_PAIR)
        return nv == 3 ? tile_packed3_pair : nv == 2 ? tile_packed2_pair : tile_packed1_pair;
    return nv == 3 ? tile_packed3_f32 : nv == 2 ? tile_packed2_f32 : tile_packed1_f32;
}

/* A in rows, B in panels of NR, C nv vectors wide: C += A B. */
typedef void tile_rows(int64_t k, const float *a, int64_t a_row, const float *b, float *c, int64_t c_row);
#define TILE_ROWS(name, kind, nv)                                                                                      \
    NOINLINE void name(int64_t k, const float *a, int64_t a_row, const float *b, float *c, int64_t c_row)              \
    {                                                                                                                  \
        tile(kind, nv, k, a, a_row, 1, b, NR, c, c_row, true);                                                         \
    }
TILE_ROWS(tile_rows1_f32, WORD_F32, 1)
TILE_ROWS(tile_rows2_f32, WORD_F32, 2)
TILE_ROWS(tile_rows3_f32, WORD_F32, 3)
TILE_ROWS(tile_rows1_pair, WORD_PAIR, 1)
TILE_ROWS(tile_rows2_pair, WORD_PAIR, 2)
TILE_ROWS(tile_rows3_pair, WORD_PAIR, 3)
MX_INLINE tile_rows *tile_rows_of(int kind, int64_t nv)
{
    if (kind == WORD_PAIR)
        return nv == 3 ? tile_rows3_pair : nv == 2 ? tile_rows2_pair : tile_rows1_pair;
    return nv == 3 ? tile_rows3_f32 : nv == 2 ? tile_rows2_f32 : tile_rows1_f32;
}

/* Packed A, in panels of MR items, [words][MR]: stores VL lines, each a word of VL items from `item` on, for the words
 * from w on; what is beyond `items` items or n words is not there. */
enum { LINES_ARE_ITEMS = false };
MX_INLINE void store_a(float *packed, int64_t words, int64_t item, int64_t items, int64_t w, int64_t n, const vf *line)
{
    float *lower = packed + item * words + w * MR, *upper = lower + words * MR;
    for (int i = 0; i < VL && i < n; i++) {
        store_lower(lower + i * MR, line[i]);
        if (items > MR)
            store_upper(upper + i * MR, line[i]);
    }
}
#endif

/* ---- packing ---- */

/* VL words of a row from element `at` on; zeros beyond its `width` elements. */
MX_INLINE vf load_words(int kind, const void *row, int64_t at, int64_t width)
{
    int64_t n = width - at;
    if (n <= 0)
        return vf_zero();
    if (kind == WORD_F32)
        return n >= VL ? vf_load((const float *)row + at) : vf_load_part((const float *)row + at, n);
    const mx_bf16 *h = (const mx_bf16 *)row + at;
    if (kind == WORD_WIDE)
        return n >= VL ? vf_load_bf16(h) : vf_load_bf16_part(h, n);
    if (n >= 2 * VL)
        return vf_load((const float *)(const void *)h);
    mx_bf16 part[2 * VL] = {0};
    memcpy(part, h, (size_t)n * sizeof *h);
    return vf_load((const float *)(const void *)part);
}

/* VL values of a row of bf16 from element `at` on; zeros beyond its width. */
MX_INLINE bf16_lanes load_bf16(const void *row, int64_t at, int64_t width)
{
    mx_bf16 part[VL] = {0};
    bf16_lanes h;
    if (width - at >= VL)
        memcpy(&h, (const mx_bf16 *)row + at, sizeof h);
    else {
        if (width > at)
            memcpy(part, (const mx_bf16 *)row + at, (size_t)(width - at) * sizeof *part);
        memcpy(&h, part, sizeof h);
    }
    return h;
}

/* Asks for VL rows that will be used soon, from row `first` on; they may lie beyond the last. Rows of a head are often
 * a page apart: the processor does not fetch them ahead, and few fit into their sets of the first-level cache. */
enum { ROWS_AHEAD = 2 * VL };
MX_INLINE void fetch_rows(const mx_attention_rows *rows, mx_dtype dtype, int64_t first, int64_t width)
{
    int64_t bytes = width * (int64_t)mx_dtype_bytes(dtype);
    for (int64_t r = first; r < first + VL; r++)
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch((const char *)mx_attention_row(rows, dtype, r) + at, 0, 2);
}

typedef enum { SIDE_A, SIDE_B } side;

/* Packs n rows whose elements run along k, as operand A or as B, in panels of NR rows, [words of width][NR]. Fills up
 * with zero rows to a multiple of KEY_UNIT, of NR. */
MX_INLINE void pack_across(int kind, side to, const mx_attention_rows *rows, int64_t first, int64_t n, int64_t width,
                           float *packed)
{
    int64_t words = words_of_width(kind, width);
    for (int64_t r = 0; r < mx_round_up(n, to == SIDE_B ? NR : KEY_UNIT); r += VL) {
        const void *row[VL];
        for (int i = 0; i < VL; i++)
            row[i] = r + i < n ? mx_attention_row(rows, dtype_of(kind), first + r + i) : NULL;
        fetch_rows(rows, dtype_of(kind), first + r + ROWS_AHEAD, width);
        for (int64_t w = 0; w < words; w += VL) {
            vf x[VL];
            for (int i = 0; i < VL; i++)
                x[i] = row[i] ? load_words(kind, row[i], w * group_of(kind), width) : vf_zero();
            if (to == SIDE_B || !LINES_ARE_ITEMS)
                transpose(x);
            if (to == SIDE_A) {
                store_a(packed, words, r, VL, w, words - w, x);
                continue;
            }
            float *panel = packed + r / NR * NR * words + r % NR;
            for (int i = 0; i < VL && w + i < words; i++)
                vf_store(panel + (w + i) * NR, x[i]);
        }
    }
}

/* head_dim is cut into panels of 3 vectors; the last two panels may have 2. A panel of 1 vector would keep too few sums
 * in flight. These functions return the panel of vector v, and the first vector of a panel. */
MX_INLINE int64_t wide_panels(int64_t vectors)
{
    return vectors % NV == 1 && vectors > 1 ? vectors / NV - 1 : vectors / NV;
}
MX_INLINE int64_t panel_of(int64_t vectors, int64_t v)
{
    int64_t wide = wide_panels(vectors);
    return v < NV * wide ? v / NV : wide + (v - NV * wide) / 2;
}
MX_INLINE int64_t panel_start(int64_t vectors, int64_t i)
{
    int64_t wide = wide_panels(vectors);
    return i <= wide ? NV * i : NV * wide + 2 * (i - wide);
}

/* VL words from element d on of a row, or of two: pairs of neighbours in k. No row: zeros. */
MX_INLINE vf words_along(int kind, const void *row, const void *next, int64_t d, int64_t width)
{
    if (kind == WORD_PAIR)
        return pair_words(load_bf16(row, d, row ? width : 0), load_bf16(next, d, next ? width : 0));
    return row ? load_words(kind, row, d, width) : vf_zero();
}

/* Packs n rows, and zero rows up to `filled`, for a product that sums over rows: k counts rows. The elements of a row
 * become items of A, or columns of B in panels of NR (the last may use less). A panel holds `words` words of k. */
MX_INLINE void pack_along(int kind, side to, const mx_attention_rows *rows, int64_t first, int64_t n, int64_t filled,
                          int64_t width, int64_t words, float *packed)
{
    int64_t group = group_of(kind), used = words_of(kind, filled), columns = mx_round_up(width, to == SIDE_B ? VL : MR);
    for (int64_t w = 0; w < used; w += VL) {
        const void *row[2 * VL];
        for (int64_t i = 0; i < VL * group; i++)
            row[i] = w * group + i < n ? mx_attention_row(rows, dtype_of(kind), first + w * group + i) : NULL;
        for (int64_t i = 0; i < group; i++)
            fetch_rows(rows, dtype_of(kind), first + w * group + i * VL + ROWS_AHEAD, width);
        for (int64_t d = 0; d < columns; d += VL) {
            vf x[VL];
            for (int i = 0; i < VL; i++)
                x[i] = words_along(kind, row[i * group], row[i * group + group - 1], d, width);
            if (to == SIDE_A) {
                if (LINES_ARE_ITEMS)
                    transpose(x);
                store_a(packed, words, d, columns - d, w, used - w, x);
                continue;
            }
            int64_t panel = panel_of(columns / VL, d / VL);
            float *at = packed + panel * words * NR + d - panel_start(columns / VL, panel) * VL;
            for (int i = 0; i < VL && w + i < used; i++)
                vf_store(at + (w + i) * NR, x[i]);
        }
    }
}

MX_INLINE void store_values(mx_dtype dtype, void *row, int64_t at, vf x, int64_t n)
{
    if (mx_is_bf16(dtype))
        n >= VL ? vf_store_bf16((mx_bf16 *)row + at, x) : vf_store_bf16_part((mx_bf16 *)row + at, x, n);
    else
        n >= VL ? vf_store((float *)row + at, x) : vf_store_part((float *)row + at, x, n);
}

/* Whether rows consist of whole cache lines, so that they may be written past the caches. */
MX_INLINE bool are_lines(const void *base, int64_t step_bytes, mx_dtype dtype, int64_t width)
{
    return ((uintptr_t)base | (uintptr_t)step_bytes | (uintptr_t)width * mx_dtype_bytes(dtype)) % 64 == 0;
}

/* A square of VL features from d on by VL rows from lane r on of a block [width][NR], turned over. Each row is
 * multiplied by its lane of `factor`. */
MX_INLINE void turn_square(const float *block, int64_t r, int64_t d, int64_t width, vf factor, vf *x)
{
    for (int i = 0; i < VL; i++) {
        x[i] = d + i < width ? vf_load(block + (d + i) * NR + r) : vf_zero();
        x[i] = x[i] * factor;
    }
    transpose(x);
}

/* Writes n <= NR rows of `width` from a block [width][NR] with a row in each lane. Each row is multiplied by its lane
 * of `scale`. */
MX_INLINE void store_across_as(const bool bf16, const bool stream, const mx_attention_rows *rows, int64_t first,
                               int64_t n, int64_t width, const float *block, const float *scale)
{
    mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
    for (int64_t r = 0; r < n; r += VL) {
        if (!stream)
            fetch_rows(rows, dtype, first + r + ROWS_AHEAD, width);
        char *row[VL];
        for (int i = 0; i < VL; i++)
            row[i] = (char *)mx_attention_row(rows, dtype, first + r + i);
        vf x[VL], y[VL], factor = vf_load(scale + r);
        int64_t d = 0, present = mx_min(VL, n - r);
        for (; d + 2 * VL <= width; d += 2 * VL) {
            turn_square(block, r, d, width, factor, x);
            turn_square(block, r, d + VL, width, factor, y);
            for (int i = 0; i < VL && i < present; i++)
                row_store2(row[i], d, x[i], y[i], bf16, stream);
        }
        for (; d < width; d += VL) {
            turn_square(block, r, d, width, factor, x);
            for (int i = 0; i < VL && i < present; i++)
                store_values(dtype, row[i], d, x[i], width - d);
        }
    }
}

MX_INLINE void store_across(mx_dtype dtype, bool stream, const mx_attention_rows *rows, int64_t first, int64_t n,
                            int64_t width, const float *block, const float *scale)
{
    int64_t bytes = (int64_t)mx_dtype_bytes(dtype);
    stream = stream && are_lines(rows->base, (rows->outer | rows->inner) * bytes, dtype, width);
    if (mx_is_bf16(dtype))
        stream ? store_across_as(true, true, rows, first, n, width, block, scale)
               : store_across_as(true, false, rows, first, n, width, block, scale);
    else
        stream ? store_across_as(false, true, rows, first, n, width, block, scale)
               : store_across_as(false, false, rows, first, n, width, block, scale);
}

/* ---- scratch ---- */

/* Hands out parts of a scratch buffer; with base NULL it only counts. */
typedef struct carver {
    char *base;
    int64_t used;
} carver;

static inline void *carve(carver *c, int64_t bytes)
{
    char *at = c->base ? c->base + c->used : NULL;
    c->used += mx_round_up(bytes, 64);
    return at;
}

/* ---- between the files of this path; for each the kinds f32, bf16 and pairs (WORD_PAIR, for tests) ---- */

typedef int64_t attention_bytes(const mx_attention_plan *p);
typedef void attention_grad(const mx_attention_plan *p, const mx_attention_share *share, void *scratch);
typedef void attention_add(const mx_attention_keys *keys, const float *sum, float scale);
typedef void attention_decode(const mx_attention_plan *p, int64_t batch, int64_t first, int64_t last, float *part,
                              float *scratch);
attention_bytes MX_SIMD_NAME(mx_attention_grad_bytes_f32), MX_SIMD_NAME(mx_attention_grad_bytes_bf16),
    MX_SIMD_NAME(mx_attention_grad_bytes_pairs);
attention_grad MX_SIMD_NAME(mx_attention_grad_f32), MX_SIMD_NAME(mx_attention_grad_bf16),
    MX_SIMD_NAME(mx_attention_grad_pairs);
attention_add MX_SIMD_NAME(mx_attention_grad_add);
attention_decode MX_SIMD_NAME(mx_attention_decode_f32), MX_SIMD_NAME(mx_attention_decode_bf16);

#endif
