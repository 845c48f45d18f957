/* Packing: operands into panels (the layout is in gemm_micro.h), rounded on the way.
 *
 * A panel has `width` rows of A or columns of B; below, "items". Where an item is contiguous in k (A as stored, B
 * transposed), 8 items x 8 words are loaded along k and transposed in registers; otherwise neighbouring items are
 * contiguous and a vector of them is copied. That is 256 bits wide on every path. With AVX-512, panels of B and of i8
 * have wider ways too: a product of few rows packs B for little arithmetic, and one of i8 multiplies fast. */
#include "kernels/simd/gemm_simd.h"
#include "kernels/simd/transpose.h"

/* What a word holds. It is a constant in every caller, so the compiler removes the branches on it. */
typedef enum { EXACT, SINGLES, PAIRS, SHORTS, BYTES, OFFSET_BYTES } word_kind;

MX_INLINE int per_word(word_kind kind) { return kind <= SINGLES ? 1 : kind == PAIRS || kind == SHORTS ? 2 : 4; }

/* Words of k of a panel: those that are packed here, and the distance from panel to panel. */
MX_INLINE int64_t words_of(int64_t k, word_kind kind) { return mx_ceil_div(k, per_word(kind)); }
MX_INLINE int64_t step_of(int64_t k, word_kind kind) { return words_of(k, kind) + (per_word(kind) == 4 ? 1 : 0); }

typedef struct source {
    const char *data;
    mx_dtype dtype;
    int64_t stride;    /* elements */
    int64_t length, k; /* items, elements of k */
} source;

MX_INLINE __m256i first_lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n (at most 8; 0 or less: none) bytes from `offset` on, then zeros. */
MX_INLINE __m128i load_bytes(const source *s, int64_t offset, int64_t n)
{
    const char *p = s->data + offset;
    if (n >= 8)
        return _mm_loadl_epi64((const __m128i *)p);
    char part[8] = {0};
    for (int64_t i = 0; i < n; i++)
        part[i] = p[i];
    return _mm_loadl_epi64((const __m128i *)part);
}

/* The first n (at most 8; 0 or less: none) elements from `offset` on, then zeros. */
MX_INLINE __m256 load_f32(const source *s, int64_t offset, int64_t n)
{
    const float *p = (const float *)s->data + offset;
    return n >= 8 ? _mm256_loadu_ps(p) : n > 0 ? _mm256_maskload_ps(p, first_lanes(n)) : _mm256_setzero_ps();
}

MX_INLINE __m128i load_bf16(const source *s, int64_t offset, int64_t n)
{
    const mx_bf16 *p = (const mx_bf16 *)s->data + offset;
    if (n >= 8)
        return _mm_loadu_si128((const __m128i *)p);
    mx_bf16 part[8] = {0};
    for (int64_t i = 0; i < n; i++)
        part[i] = p[i];
    return _mm_loadu_si128((const __m128i *)part);
}

/* EXACT: f32 as they are. */
MX_INLINE __m256i load_singles(const source *s, int64_t offset, int64_t n, word_kind kind)
{
    if (kind == EXACT)
        return _mm256_castps_si256(load_f32(s, offset, n));
    if (s->dtype == MX_BF16)
        return _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_bf16(s, offset, n)), 16);
    __m256i rounded = round_to_upper_halves(load_f32(s, offset, n));
    return _mm256_and_si256(rounded, _mm256_set1_epi32((int)0xffff0000u));
}

MX_INLINE __m128i load_rounded(const source *s, int64_t offset, int64_t n)
{
    if (s->dtype == MX_BF16)
        return load_bf16(s, offset, n);
#if defined(MX_SIMD_AVX512_BF16)
    return (__m128i)_mm256_cvtneps_pbh(load_f32(s, offset, n));
#else
    __m256i upper = _mm256_srli_epi32(round_to_upper_halves(load_f32(s, offset, n)), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
#endif
}

MX_INLINE __m256i offset_bytes(__m256i x, word_kind kind)
{
    return kind == OFFSET_BYTES ? _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80)) : x;
}

/* Sixteen bytes. */
MX_INLINE __m128i load_more_bytes(const source *s, int64_t offset, int64_t n)
{
    return _mm_unpacklo_epi64(load_bytes(s, offset, n), load_bytes(s, offset + 8, n - 8));
}

/* Eight words of one item, from element p of k on, n of whose elements exist. */
MX_INLINE __m256i words_of_item(const source *s, int64_t item, int64_t p, int64_t n, word_kind kind)
{
    int64_t offset = item * s->stride + p;
    if (kind == SHORTS)
        return _mm256_cvtepi8_epi16(load_more_bytes(s, offset, n));
    if (per_word(kind) == 4)
        return offset_bytes(_mm256_set_m128i(load_more_bytes(s, offset + 16, n - 16), load_more_bytes(s, offset, n)),
                            kind);
    if (kind == PAIRS)
        return _mm256_set_m128i(load_rounded(s, offset + 8, n - 8), load_rounded(s, offset, n));
    return load_singles(s, offset, n, kind);
}

/* The same of i8: byte b of each word is in row[b]. */
MX_INLINE __m256i bytes_of_items(const source *s, int64_t item, int64_t w, int64_t n, word_kind kind)
{
    __m128i row[4];
    for (int b = 0; b < per_word(kind); b++) {
        int64_t p = w * per_word(kind) + b;
        row[b] = load_bytes(s, p * s->stride + item, p < s->k ? n : 0);
    }
    __m128i low = _mm_unpacklo_epi8(row[0], row[1]);
    if (kind == SHORTS)
        return _mm256_cvtepi8_epi16(low);
    __m128i high = _mm_unpacklo_epi8(row[2], row[3]);
    return offset_bytes(_mm256_set_m128i(_mm_unpackhi_epi16(low, high), _mm_unpacklo_epi16(low, high)), kind);
}

/* Word w of eight neighbouring items, n of which exist. */
MX_INLINE __m256i word_of_items(const source *s, int64_t item, int64_t w, int64_t n, word_kind kind)
{
    if (kind <= SINGLES)
        return load_singles(s, w * s->stride + item, n, kind);
    if (kind != PAIRS)
        return bytes_of_items(s, item, w, n, kind);
    int64_t offset = 2 * w * s->stride + item;
    __m128i even = load_rounded(s, offset, n);
    __m128i odd = load_rounded(s, offset + s->stride, 2 * w + 1 < s->k ? n : 0);
    return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
}

MX_INLINE void transpose_eight(__m256i row[8])
{
    __m256 t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(_mm256_castsi256_ps(row[i]), _mm256_castsi256_ps(row[i + 1]));
        t[i + 1] = _mm256_unpackhi_ps(_mm256_castsi256_ps(row[i]), _mm256_castsi256_ps(row[i + 1]));
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int i = 0; i < 4; i++) {
        row[i] = _mm256_castps_si256(_mm256_permute2f128_ps(u[i], u[i + 4], 0x20));
        row[i + 4] = _mm256_castps_si256(_mm256_permute2f128_ps(u[i], u[i + 4], 0x31));
    }
}

/* The first 6 or 8 of eight words: a panel of 6 must not write into its neighbour, which another thread may own. */
MX_INLINE void store_words(uint32_t *out, __m256i x, int width)
{
    if (width == 8) {
        _mm256_storeu_si256((__m256i *)out, x);
        return;
    }
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(x));
    _mm_storel_epi64((__m128i *)(out + 4), _mm256_extracti128_si256(x, 1));
}

/* Items contiguous in k. `valid` of the `width` (6 or 8) items of this column of the panel exist. */
MX_INLINE void transpose_items(const source *s, int64_t item, int64_t valid, int width, int panel_width, uint32_t *out,
                               word_kind kind)
{
    int64_t words = words_of(s->k, kind);
    for (int64_t w = 0; w < words; w += 8) {
        int64_t p = w * per_word(kind), n = s->k - p;
        __m256i row[8];
        if (valid == width && n >= 8 * per_word(kind))
            for (int r = 0; r < 8; r++)
                row[r] = r < width ? words_of_item(s, item + r, p, 8 * per_word(kind), kind) : _mm256_setzero_si256();
        else
            for (int r = 0; r < 8; r++)
                row[r] = r < valid ? words_of_item(s, item + r, p, n, kind) : _mm256_setzero_si256();
        transpose_eight(row);
        int64_t count = mx_min(8, words - w);
        if (count == 8)
            for (int t = 0; t < 8; t++)
                store_words(out + (w + t) * panel_width, row[t], width);
        else
            for (int t = 0; t < 8 && t < count; t++)
                store_words(out + (w + t) * panel_width, row[t], width);
    }
}

MX_INLINE void pack_along(const source *s, int width, uint32_t *out, word_kind kind)
{
    int64_t words = step_of(s->k, kind);
    for (int64_t item = 0; item < s->length; item += width)
        for (int r = 0; r < width; r += 8) {
            int part = width - r < 8 ? width - r : 8;
            int64_t valid = mx_min(s->length - item - r, part);
            transpose_items(s, item + r, valid, part, width, out + item * words + r, kind);
        }
}

/* Neighbouring items are contiguous. Eight words of k at a time: all values of a cache line are used soon after it is
 * read, and few pages are in use at once. */
MX_INLINE void pack_across(const source *s, int width, uint32_t *out, word_kind kind)
{
    int64_t words = words_of(s->k, kind), step = step_of(s->k, kind);
    int64_t whole = s->length - (width + 7) / 8 * 8; /* the last item at which a panel loads only whole vectors */
    for (int64_t first = 0; first < words; first += 8)
        for (int64_t item = 0; item < s->length; item += width) {
            uint32_t *panel = out + item * step;
            for (int64_t w = first; w < mx_min(first + 8, words); w++)
                for (int r = 0; r < width; r += 8) {
                    int64_t n = item <= whole ? 8 : s->length - item - r;
                    int part = width - r < 8 ? width - r : 8;
                    store_words(panel + w * width + r, word_of_items(s, item + r, w, n, kind), part);
                }
        }
}

#if MX_SIMD_512
/* ---- in vectors of 16 words ---- */

MX_INLINE bool is_wide(word_kind kind)
{
#if defined(MX_SIMD_AVX512_BF16)
    return kind <= PAIRS;
#else
    return kind <= SINGLES;
#endif
}

/* The first n elements from `offset` on (at most 16; 0 or less: none), then zeros. */
MX_INLINE vf load_wide(const source *s, int64_t offset, int64_t n)
{
    if (s->dtype == MX_BF16) {
        const mx_bf16 *p = (const mx_bf16 *)s->data + offset;
        return n >= VL ? vf_load_bf16(p) : vf_load_bf16_part(p, mx_max(n, 0));
    }
    const float *p = (const float *)s->data + offset;
    return n >= VL ? vf_load(p) : vf_load_part(p, mx_max(n, 0));
}

/* Rounded to bf16; EXACT: as they are. */
MX_INLINE vi load_wide_singles(const source *s, int64_t offset, int64_t n, word_kind kind)
{
    vf x = load_wide(s, offset, n);
    vi bits = vf_bits(x), odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    if (s->dtype == MX_BF16 || kind == EXACT)
        return bits;
    vi rounded = vi_add(bits, vi_add(odd, vi_set1(0x7fff)));
    rounded = _mm512_mask_or_epi32(rounded, vf_is_nan(x), bits, vi_set1(0x400000));
    return vi_and(rounded, vi_set1((int)0xffff0000u));
}

/* The first n bytes from `offset` on (64 or more: 64), then zeros. A masked load of a panel's 48 bytes would wait for
 * the next line, too, which has not been prefetched. */
MX_INLINE __m512i load_wide_bytes(const source *s, int64_t offset, int64_t n)
{
    const char *from = s->data + offset;
    if (n == 48)
        return _mm512_inserti32x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)from)),
                                  _mm_loadu_si128((const __m128i *)(from + 32)), 2);
    return _mm512_maskz_loadu_epi8(n >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << n) - 1, s->data + offset);
}

/* 16 words of one item, from element p of k on, n of whose elements exist. */
MX_INLINE vi wide_words_of_item(const source *s, int64_t item, int64_t p, int64_t n, word_kind kind)
{
    int64_t offset = item * s->stride + p;
    if (kind == BYTES)
        return load_wide_bytes(s, offset, n);
    if (kind <= SINGLES)
        return load_wide_singles(s, offset, n, kind);
    if (s->dtype != MX_BF16)
        return vf_pack_bf16(load_wide(s, offset, n), load_wide(s, offset + VL, n - VL));
    const mx_bf16 *from = (const mx_bf16 *)s->data + offset;
    return n >= 2 * VL ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((1u << n) - 1, from);
}

/* Word w of 16 neighbouring items, n of which exist. */
MX_INLINE vi wide_word_of_items(const source *s, int64_t item, int64_t w, int64_t n, word_kind kind)
{
    if (kind <= SINGLES)
        return load_wide_singles(s, w * s->stride + item, n, kind);
    int64_t offset = 2 * w * s->stride + item;
    vf even = load_wide(s, offset, n), odd = load_wide(s, offset + s->stride, 2 * w + 1 < s->k ? n : 0);
    return s->dtype == MX_BF16 ? vi_or(vi_shr(vf_bits(even), 16), vf_bits(odd)) : vf_join_bf16(even, odd);
}

/* Items contiguous in k. */
MX_INLINE void pack_wide_along(const source *s, int width, uint32_t *out, word_kind kind)
{
    int64_t words = words_of(s->k, kind), step = step_of(s->k, kind);
    for (int64_t item = 0; item < s->length; item += width)
        for (int r = 0; r < width; r += VL)
            for (int64_t w = 0; w < words; w += VL) {
                int64_t p = w * per_word(kind), valid = s->length - item - r;
                vf row[VL];
                for (int i = 0; i < VL; i++)
                    row[i] = i < valid ? vi_float(wide_words_of_item(s, item + r + i, p, s->k - p, kind)) : vf_zero();
                transpose(row);
                uint32_t *to = out + item * step + w * width + r;
                for (int i = 0; i < VL && w + i < words; i++)
                    vf_store((float *)to + i * width, row[i]);
            }
}

/* Neighbouring items are contiguous: as pack_across. */
MX_INLINE void pack_wide_across(const source *s, int width, uint32_t *out, word_kind kind)
{
    int64_t words = words_of(s->k, kind);
    for (int64_t first = 0; first < words; first += 8)
        for (int64_t item = 0; item < s->length; item += width)
            for (int64_t w = first; w < mx_min(first + 8, words); w++)
                for (int r = 0; r < width; r += VL)
                    vi_store((int32_t *)out + item * words + w * width + r,
                             wide_word_of_items(s, item + r, w, s->length - item - r, kind));
}

/* Word w of 64 neighbouring items of bytes, n of which exist: 16 in each of word[]. */
MX_INLINE void wide_bytes_of_items(const source *s, int64_t item, int64_t w, int64_t n, word_kind kind, vi word[4])
{
    vi row[4], part[4];
    for (int b = 0; b < 4; b++)
        row[b] = load_wide_bytes(s, (4 * w + b) * s->stride + item, 4 * w + b < s->k ? n : 0);
    vi low01 = _mm512_unpacklo_epi8(row[0], row[1]), high01 = _mm512_unpackhi_epi8(row[0], row[1]);
    vi low23 = _mm512_unpacklo_epi8(row[2], row[3]), high23 = _mm512_unpackhi_epi8(row[2], row[3]);
    part[0] = _mm512_unpacklo_epi16(low01, low23); /* lane L of part i: items 16 L + 4 i to 16 L + 4 i + 3 */
    part[1] = _mm512_unpackhi_epi16(low01, low23);
    part[2] = _mm512_unpacklo_epi16(high01, high23);
    part[3] = _mm512_unpackhi_epi16(high01, high23);
    vi start01 = _mm512_shuffle_i32x4(part[0], part[1], 0x44), end01 = _mm512_shuffle_i32x4(part[0], part[1], 0xee);
    vi start23 = _mm512_shuffle_i32x4(part[2], part[3], 0x44), end23 = _mm512_shuffle_i32x4(part[2], part[3], 0xee);
    word[0] = _mm512_shuffle_i32x4(start01, start23, 0x88);
    word[1] = _mm512_shuffle_i32x4(start01, start23, 0xdd);
    word[2] = _mm512_shuffle_i32x4(end01, end23, 0x88);
    word[3] = _mm512_shuffle_i32x4(end01, end23, 0xdd);
    for (int i = 0; kind == OFFSET_BYTES && i < 4; i++)
        word[i] = _mm512_xor_si512(word[i], _mm512_set1_epi8((char)0x80));
}

/* Bytes: 64 items at a time in panels of 8, or one panel of 48. */
MX_INLINE void pack_bytes_across(const source *s, int width, uint32_t *out, word_kind kind)
{
    int64_t words = words_of(s->k, kind), step = step_of(s->k, kind), most = width == 8 ? 64 : width;
    for (int64_t first = 0; first < words; first += 8)
        for (int64_t item = 0; item < s->length; item += most)
            for (int64_t w = first; w < mx_min(first + 8, words); w++) {
                int64_t n = mx_min(most, s->length - item);
                uint32_t *to = out + item * step + w * width;
                vi word[4];
                wide_bytes_of_items(s, item, w, n, kind, word);
                for (int i = 0; width != 8 && i < width / VL; i++)
                    vi_store((int32_t *)to + i * VL, word[i]);
                for (int i = 0; width == 8 && i * VL < n; i++) {
                    _mm256_storeu_si256((__m256i *)(to + i * VL * step), _mm512_castsi512_si256(word[i]));
                    if (i * VL + 8 < n)
                        _mm256_storeu_si256((__m256i *)(to + (i * VL + 8) * step),
                                            _mm512_extracti64x4_epi64(word[i], 1));
                }
            }
}

/* Words w and w + 1 of 16 neighbouring items, in two panels of 8. */
MX_INLINE void pack_eights(const source *s, int64_t item, int64_t w, uint32_t *out, word_kind kind)
{
    int64_t words = words_of(s->k, kind), left = s->length - item;
    bool two = w + 1 < words;
    vi x = wide_word_of_items(s, item, w, left, kind);
    vi y = two ? wide_word_of_items(s, item, w + 1, left, kind) : vi_set1(0);
    uint32_t *panel = out + item * words + w * 8;
    __mmask16 there = two ? 0xffff : 0xff;
    _mm512_mask_storeu_epi32(panel, there, _mm512_shuffle_i64x2(x, y, _MM_SHUFFLE(1, 0, 1, 0)));
    if (left > 8)
        _mm512_mask_storeu_epi32(panel + 8 * words, there, _mm512_shuffle_i64x2(x, y, _MM_SHUFFLE(3, 2, 3, 2)));
}

/* The same for panels of 8: whole cache lines, and the lines of the next words are prefetched. */
MX_INLINE void pack_eights_across(const source *s, uint32_t *out, word_kind kind)
{
    enum { WORDS = 8 };
    int64_t words = words_of(s->k, kind), bytes = s->dtype == MX_BF16 ? 2 : 4, line = 64 / bytes;
    for (int64_t first = 0; first < words; first += WORDS)
        for (int64_t start = 0; start < s->length; start += line)
            for (int64_t w = first; w < mx_min(first + WORDS, words); w += 2) {
                const char *next = s->data + ((w + WORDS) * per_word(kind) * s->stride + start) * bytes;
                for (int i = 0; i < 2 * per_word(kind); i++)
                    _mm_prefetch(next + i * s->stride * bytes, _MM_HINT_T0);
                for (int64_t item = start; item < mx_min(start + line, s->length); item += VL)
                    pack_eights(s, item, w, out, kind);
            }
}
#endif

/* The loops for one dtype, which is a constant in them. */
MX_INLINE void pack_dtype(source s, mx_dtype dtype, bool along, int width, void *packed, word_kind kind)
{
    s.dtype = dtype;
#if MX_SIMD_512
    if (is_wide(kind) && width == 8 && !along) {
        pack_eights_across(&s, packed, kind);
        return;
    }
    if (per_word(kind) == 4 && !along) {
        pack_bytes_across(&s, width, packed, kind);
        return;
    }
    if ((is_wide(kind) || kind == BYTES) && width % VL == 0) {
        along ? pack_wide_along(&s, width, packed, kind) : pack_wide_across(&s, width, packed, kind);
        return;
    }
#endif
    along ? pack_along(&s, width, packed, kind) : pack_across(&s, width, packed, kind);
}

MX_INLINE void pack(const source *s, bool along, int width, void *packed, word_kind kind)
{
    pack_dtype(*s, mx_is_bf16(s->dtype) ? MX_BF16 : MX_F32, along, width, packed, kind);
}

/* i8 in words of i16 or bytes. */
MX_INLINE void pack_i8(const source *s, bool along, int width, void *packed, word_kind kind)
{
    pack_dtype(*s, MX_I8, along, width, packed, kind);
}

/* f32 as they are. */
MX_INLINE void pack_f32(const source *s, bool along, int width, void *packed, word_kind kind)
{
    pack_dtype(*s, MX_F32, along, width, packed, kind);
}

#define DEFINE_PACK(name, pack, width, along, kind)                                                                    \
    void MX_SIMD_NAME(name)(int64_t length, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans,    \
                            void *packed)                                                                              \
    {                                                                                                                  \
        pack(&(source){src, dtype, stride, length, k}, along, width, packed, kind);                                    \
    }

DEFINE_PACK(mx_pack_a_exact, pack_f32, GEMM_MR, !trans, EXACT)
DEFINE_PACK(mx_pack_b_exact, pack_f32, GEMM_NR, trans, EXACT)
DEFINE_PACK(mx_pack_a_singles, pack, GEMM_MR, !trans, SINGLES)
DEFINE_PACK(mx_pack_b_singles, pack, GEMM_NR, trans, SINGLES)
DEFINE_PACK(mx_pack_a_pairs, pack, 8, !trans, PAIRS)
DEFINE_PACK(mx_pack_b_pairs, pack, 48, trans, PAIRS)
DEFINE_PACK(mx_pack_a_shorts, pack_i8, GEMM_MR, !trans, SHORTS)
DEFINE_PACK(mx_pack_b_shorts, pack_i8, GEMM_NR, trans, SHORTS)
DEFINE_PACK(mx_pack_a_bytes, pack_i8, GEMM_MR, !trans, OFFSET_BYTES)
DEFINE_PACK(mx_pack_b_bytes, pack_i8, GEMM_NR, trans, BYTES)
