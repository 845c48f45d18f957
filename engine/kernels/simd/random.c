/* The functions of core/rng.c on vectors, step by step the same. */
#include "kernels/context.h"

#include "core/rng.h"
#include "kernels/random.h"
#include "kernels/simd/philox.h"
#include "kernels/simd/vmath.h"

/* Blocks are interleaved (see elementwise.c). */
#pragma GCC optimize("schedule-insns")

#if MX_SIMD_512
MX_INLINE vi upper_alone(vi a) { return _mm512_srli_epi64(a, 32); } /* and the upper halves are 0 */
MX_INLINE vi add_wide(vi a, vi b) { return _mm512_add_epi64(a, b); }
MX_INLINE vi blocks_from(uint32_t block)
{
    return _mm512_add_epi64(vi_set1((int32_t)block), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
}
MX_INLINE vi lower_halves(vi a, vi b)
{
    return _mm512_permutex2var_epi32(a, _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0), b);
}
MX_INLINE vi upper_halves(vi a, vi b)
{
    return _mm512_permutex2var_epi32(a, _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1), b);
}
#else
MX_INLINE vi upper_alone(vi a) { return _mm256_srli_epi64(a, 32); }
MX_INLINE vi add_wide(vi a, vi b) { return _mm256_add_epi64(a, b); }
MX_INLINE vi blocks_from(uint32_t block) { return vi_add(vi_set1((int32_t)block), _mm256_set_epi64x(3, 2, 1, 0)); }
MX_INLINE vi lower_halves(vi a, vi b)
{
    vf both = _mm256_shuffle_ps(vi_float(a), vi_float(b), 0x88);
    return _mm256_permute4x64_epi64(vf_bits(both), 0xd8);
}
MX_INLINE vi upper_halves(vi a, vi b)
{
    vf both = _mm256_shuffle_ps(vi_float(a), vi_float(b), 0xdd);
    return _mm256_permute4x64_epi64(vf_bits(both), 0xd8);
}
#endif

/* What blocks with the same upper half of their number have in common: the keys of the ten rounds, and the counter
 * but for that number's lower half. The first rounds of what does not vary move out of loops. */
enum { ROUNDS = 10, VECTORS = MX_RNG_GROUP / VL, OF_WORD = VECTORS / 4, GROUPS = 2 };
typedef struct start {
    vi low[ROUNDS], high[ROUNDS], block_high, offset, offset_high;
} start;

MX_INLINE void set_start(start *s, mx_stream stream, uint64_t group)
{
    uint32_t low = (uint32_t)stream.seed, high = (uint32_t)(stream.seed >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        s->low[round] = vi_set1((int32_t)low);
        s->high[round] = vi_set1((int32_t)high);
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    s->block_high = vi_set1((int32_t)(16 * group >> 32));
    s->offset = vi_set1((int32_t)stream.offset);
    s->offset_high = vi_set1((int32_t)(stream.offset >> 32));
}

/* How many of n groups have one start(). */
MX_INLINE int64_t alike(uint64_t group, int64_t n)
{
    const int64_t period = 1 << 28; /* of 16 blocks */
    return mx_min(n, period - (int64_t)(group & (uint64_t)(period - 1)));
}

/* Word w of VL blocks, of the next VL ones and so on, to word[0][w], word[1][w] ... Products of one block wait for each
 * other, so some blocks are computed together. */
enum { TOGETHER = MX_SIMD_512 ? 2 : 1 };
MX_INLINE void draw(const start *s, uint32_t block, vi word[TOGETHER][4])
{
    enum { HALVES = 2 * TOGETHER }; /* of a vector of words */
    const vi m0 = vi_set1((int32_t)0xD2511F53), m1 = vi_set1((int32_t)0xCD9E8D57);
    vi c[HALVES][4], product0[HALVES], product1[HALVES];
    for (int k = 0; k < HALVES; k++) {
        c[k][0] = blocks_from(block + (uint32_t)(k * VL / 2));
        c[k][1] = s->block_high;
        c[k][2] = s->offset;
        c[k][3] = s->offset_high;
    }
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < HALVES; k++) {
            product0[k] = times(c[k][0], m0);
            product1[k] = times(c[k][2], m1);
            if (round + 1 == ROUNDS)
                continue;
            c[k][0] = xor3(upper(product1[k]), c[k][1], s->low[round]);
            c[k][1] = product1[k];
            c[k][2] = xor3(upper(product0[k]), c[k][3], s->high[round]);
            c[k][3] = product0[k];
        }
    for (int k = 0; k < HALVES; k += 2) {
        vi *w = word[k / 2], odd1 = upper_halves(product1[k], product1[k + 1]),
           odd0 = upper_halves(product0[k], product0[k + 1]);
        w[0] = xor3(odd1, lower_halves(c[k][1], c[k + 1][1]), s->low[ROUNDS - 1]);
        w[1] = lower_halves(product1[k], product1[k + 1]);
        w[2] = xor3(odd0, lower_halves(c[k][3], c[k + 1][3]), s->high[ROUNDS - 1]);
        w[3] = lower_halves(product0[k], product0[k + 1]);
    }
}

/* The words of some groups in the order of their elements. */
MX_INLINE void draw_groups(const start *s, uint64_t group, vi words[GROUPS][VECTORS])
{
    for (int b = 0; b < 16 * GROUPS; b += TOGETHER * VL) {
        vi word[TOGETHER][4];
        draw(s, (uint32_t)(16 * group) + (uint32_t)b, word);
        for (int k = 0; k < TOGETHER; k++)
            for (int w = 0; w < 4; w++)
                words[(b + k * VL) / 16][w * OF_WORD + (b + k * VL) % 16 / VL] = word[k][w];
    }
}

/* The words of VL pairs of elements become normals. */
MX_INLINE void normals_of(vi first, vi second, vf *one, vf *other)
{
    vf unit = vf_fma(vi_to_vf(vi_shr(first, 1)), vf_set1(0x1p-31f), vf_set1(0x1p-32f));
    vf radius = vf_sqrt(vf_log_normal(unit) * vf_set1(-2.0f));
    vi turn = vi_sub(vi_and(second, vi_set1(0x3fffffff)), vi_set1(0x20000000));
    vf sine, cosine;
    vf_sincos_octant(vi_to_vf(turn) * vf_set1(1.46291807926716e-9f), &sine, &cosine);
    vf_turn(vi_shr(second, 30), &sine, &cosine);
    *one = radius * cosine;
    *other = radius * sine;
}

/* The whole part of (word + lower / 2^32) range / 2^32. */
MX_INLINE vi part_of(vi word, vi lower, vi range)
{
    vi even = add_wide(times(word, range), upper_alone(times(lower, range)));
    vi odd = add_wide(times(upper(word), range), upper_alone(times(upper(lower), range)));
    return blend_odd(upper_alone(even), odd);
}

MX_INLINE void convert(const mx_draw *d, const mx_draw_kind kind, const vi words[VECTORS], vf y[VECTORS])
{
    const vf a = vf_set1(d->a), b = vf_set1(d->b);
    for (int i = 0; i < VECTORS; i++) {
        const int pair = i + OF_WORD, half = VECTORS / 2;
        if (kind == MX_DRAW_WORDS) {
            y[i] = vi_float(words[i]);
        } else if (kind == MX_DRAW_UNIFORM) {
            vf u = a + b * (vi_to_vf(vi_shr(words[i], 8)) * vf_set1(0x1p-24f));
            y[i] = vf_min(vf_set1(d->greatest), u);
        } else if (kind == MX_DRAW_NORMAL && i / OF_WORD % 2 == 0) {
            normals_of(words[i], words[pair], &y[i], &y[pair]);
            y[i] = a + b * y[i];
            y[pair] = a + b * y[pair];
        } else if (kind == MX_DRAW_INTEGERS && i < half) {
            vi part = part_of(words[i], words[i + half], vi_set1((int32_t)d->range));
            y[i] = vi_float(vi_add(part, vi_set1((int32_t)d->low)));
        }
    }
}

/* Writes `vectors` vectors and returns what comes behind them. */
MX_INLINE char *put(char *y, const vf *x, const int vectors, const bool bf16, const bool stream)
{
    for (int i = 0; i < vectors; i += 1 + bf16) {
        vi bits = bf16 ? vf_pack_bf16(x[i], x[i + 1]) : vf_bits(x[i]);
        stream ? vi_stream(y, bits) : vi_store((int32_t *)y, bits);
        y += sizeof bits;
    }
    return y;
}

MX_INLINE char *fill_as(const mx_draw *d, const mx_draw_kind kind, uint64_t group, int64_t n, char *y, const bool bf16,
                        const bool stream)
{
    const int vectors = kind == MX_DRAW_INTEGERS ? VECTORS / 2 : VECTORS;
    start s;
    set_start(&s, d->s, group);
    for (int64_t g = 0; g < n; g += GROUPS) {
        vi words[GROUPS][VECTORS];
        vf numbers[VECTORS];
        draw_groups(&s, group + (uint64_t)g, words);
        for (int k = 0; k < GROUPS && g + k < n; k++) {
            convert(d, kind, words[k], numbers);
            y = put(y, numbers, vectors, bf16, stream);
        }
    }
    return y;
}

#define FILL(kind, bf16)                                                                                               \
    (stream ? fill_as(d, kind, group, m, to, bf16, true) : fill_as(d, kind, group, m, to, bf16, false))

static void fill(const mx_draw *d, uint64_t group, int64_t n, mx_array y, bool stream)
{
    const bool bf16 = y.dtype != MX_I32 && mx_is_bf16(y.dtype);
    char *to = y.data;
    stream = stream && (uintptr_t)to % 64 == 0;
    for (int64_t m; n > 0; n -= m, group += (uint64_t)m) {
        m = alike(group, n);
        if (d->kind == MX_DRAW_UNIFORM)
            to = bf16 ? FILL(MX_DRAW_UNIFORM, true) : FILL(MX_DRAW_UNIFORM, false);
        else if (d->kind == MX_DRAW_NORMAL)
            to = bf16 ? FILL(MX_DRAW_NORMAL, true) : FILL(MX_DRAW_NORMAL, false);
        else if (d->kind == MX_DRAW_INTEGERS)
            to = FILL(MX_DRAW_INTEGERS, false);
        else
            to = FILL(MX_DRAW_WORDS, false);
    }
    if (stream)
        _mm_sfence();
}

/* 1 where a word is below 2^32 p, else 0. Where p is 1, 2^32 is more than a word can hold. */
MX_INLINE vf chance(vi word, vf p)
{
    const vf one = vf_set1(1.0f), scaled = p * vf_set1(0x1p32f);
#if MX_SIMD_512
    vi limit = _mm512_cvt_roundps_epu32(scaled, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    return _mm512_maskz_mov_ps(_mm512_cmplt_epu32_mask(word, limit) | vf_ge(p, one), one);
#else
    const vi sign = vi_set1(INT32_MIN); /* turned around, unsigned numbers compare as signed ones */
    vf whole = _mm256_ceil_ps(scaled), half = vf_set1(0x1p31f), large = vf_ge(whole, half);
    vi limit = _mm256_cvttps_epi32(whole - _mm256_and_ps(large, half));
    limit = vi_xor(limit, _mm256_andnot_si256(vf_bits(large), sign));
    vf below = vi_float(_mm256_cmpgt_epi32(limit, vi_xor(word, sign)));
    return _mm256_and_ps(one, _mm256_or_ps(below, vf_ge(p, one)));
#endif
}

/* Those of a group. */
MX_INLINE void chances_of(const vi words[VECTORS], const char *p, char *y, const bool bf16, const bool stream)
{
    vf ones[VECTORS];
    for (int i = 0; i < VECTORS; i++, p += VL * (bf16 ? 2 : 4)) {
        _mm_prefetch(p + PREFETCH_AHEAD, _MM_HINT_T0);
        ones[i] = chance(words[i], bf16 ? vf_load_bf16((const mx_bf16 *)p) : vf_load((const float *)p));
    }
    put(y, ones, VECTORS, bf16, stream);
}

MX_INLINE void chances_as(mx_stream stream, uint64_t group, int64_t n, const char *p, char *y, const bool bf16,
                          const bool past)
{
    const int64_t bytes = MX_RNG_GROUP * (bf16 ? 2 : 4);
    for (int64_t m; n > 0; n -= m, group += (uint64_t)m) {
        start s;
        m = alike(group, n);
        set_start(&s, stream, group);
        for (int64_t g = 0; g < m; g += GROUPS) {
            vi words[GROUPS][VECTORS];
            draw_groups(&s, group + (uint64_t)g, words);
            for (int k = 0; k < GROUPS && g + k < m; k++, p += bytes, y += bytes)
                chances_of(words[k], p, y, bf16, past);
        }
    }
    if (past)
        _mm_sfence();
}

static void chances(mx_stream s, uint64_t group, int64_t n, mx_array p, mx_array y, bool stream)
{
    stream = stream && (uintptr_t)y.data % 64 == 0;
    if (mx_is_bf16(p.dtype))
        stream ? chances_as(s, group, n, p.data, y.data, true, true)
               : chances_as(s, group, n, p.data, y.data, true, false);
    else
        stream ? chances_as(s, group, n, p.data, y.data, false, true)
               : chances_as(s, group, n, p.data, y.data, false, false);
}

/* The elements of a mask whose upper bits are the halves of one vector of words: 2 VL neighbours. Sets *tie where bits
 * are the threshold's. */
MX_INLINE void drop_some(vi halves, vi threshold, vf scale, const char *x, char *y, const bool bf16, const bool stream,
                         bool *tie)
{
    vf a, b;
#if MX_SIMD_512
    __mmask32 keep = _mm512_cmpge_epu16_mask(halves, threshold);
    *tie = *tie || _mm512_cmpeq_epi16_mask(halves, threshold) != 0;
#else
    vi keep = _mm256_cmpeq_epi16(_mm256_max_epu16(halves, threshold), halves);
    *tie = *tie || _mm256_movemask_epi8(_mm256_cmpeq_epi16(halves, threshold)) != 0;
#endif
    if (bf16) {
        vf_split_bf16((const mx_bf16 *)x, &a, &b);
        vi both = vf_join_bf16(a * scale, b * scale);
#if MX_SIMD_512
        both = _mm512_maskz_mov_epi16(keep, both);
#else
        both = vi_and(both, keep);
#endif
        stream ? vi_stream(y, both) : vi_store((int32_t *)y, both);
        return;
    }
    a = vf_load((const float *)x) * scale;
    b = vf_load((const float *)x + VL) * scale;
#if MX_SIMD_512
    a = _mm512_maskz_mov_ps((__mmask16)keep, a);
    b = _mm512_maskz_mov_ps((__mmask16)(keep >> 16), b);
#else
    a = _mm256_and_ps(a, vi_float(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(keep))));
    b = _mm256_and_ps(b, vi_float(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(keep, 1))));
#endif
    if (stream) {
        vf_stream((float *)y, a);
        vf_stream((float *)y + VL, b);
    } else {
        vf_store((float *)y, a);
        vf_store((float *)y + VL, b);
    }
}

/* A group; whether some bits are the threshold's. */
MX_INLINE bool drop_group(const vi words[VECTORS], vi threshold, vf scale, const char *x, char *y, const bool bf16,
                          const bool stream)
{
    bool tie = false;
    for (int i = 0; i < VECTORS; i++) {
        int64_t at = 2 * i * VL * (bf16 ? 2 : 4);
        drop_some(words[i], threshold, scale, x + at, y + at, bf16, stream, &tie);
    }
    return tie;
}

MX_INLINE uint32_t drop_as(mx_stream stream, uint64_t group, int64_t n, uint32_t threshold, float scale, const char *x,
                           char *y, const bool bf16, const bool past)
{
    const int64_t bytes = MX_RNG_MASK_GROUP * (bf16 ? 2 : 4);
    const vi limit = vi_set1((int32_t)(threshold | threshold << 16));
    const vf factor = vf_set1(scale);
    uint32_t ties = 0;
    for (int64_t first = 0, m; first < n; first += m, group += (uint64_t)m) {
        start s;
        m = alike(group, n - first);
        set_start(&s, stream, group);
        for (int64_t g = 0; g < m; g += GROUPS) {
            vi words[GROUPS][VECTORS];
            for (int b = 0; b < GROUPS * bytes; b += 64)
                _mm_prefetch(x + PREFETCH_AHEAD + b, _MM_HINT_T0);
            draw_groups(&s, group + (uint64_t)g, words);
            for (int k = 0; k < GROUPS && g + k < m; k++, x += bytes, y += bytes)
                ties |= (uint32_t)drop_group(words[k], limit, factor, x, y, bf16, past) << (first + g + k);
        }
    }
    if (past)
        _mm_sfence();
    return ties;
}

static uint32_t drop(mx_stream s, uint64_t group, int64_t n, uint32_t threshold, float scale, mx_array x, mx_array y,
                     bool stream)
{
    stream = stream && (uintptr_t)y.data % 64 == 0;
    if (mx_is_bf16(x.dtype))
        return stream ? drop_as(s, group, n, threshold, scale, x.data, y.data, true, true)
                      : drop_as(s, group, n, threshold, scale, x.data, y.data, true, false);
    return stream ? drop_as(s, group, n, threshold, scale, x.data, y.data, false, true)
                  : drop_as(s, group, n, threshold, scale, x.data, y.data, false, false);
}

const mx_random_paths MX_SIMD_NAME(mx_random) = {.fill = fill, .chances = chances, .drop = drop};
