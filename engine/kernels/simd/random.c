/* The functions of core/rng.c on vectors, step by step the same. */
#include "kernels/context.h"

#include "kernels/simd/vmath.h"

/* Words as the lower halves of 64-bit lanes; what the upper halves are does not matter, so both halves of a product
 * serve as they are. */
#if MX_SIMD_512
enum { BLOCKS = 8 };
MX_INLINE vi all(uint64_t word) { return _mm512_set1_epi64((int64_t)word); }
MX_INLINE vi times(vi a, vi b) { return _mm512_mul_epu32(a, b); }
MX_INLINE vi upper(vi a) { return _mm512_shuffle_epi32(a, _MM_PERM_CDAB); }
MX_INLINE vi xor3(vi a, vi b, vi c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
MX_INLINE vi first_blocks(uint64_t block)
{
    return _mm512_add_epi64(all(block), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
}
MX_INLINE vi lower_halves(vi a, vi b)
{
    const vi even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi32(a, even, b);
}
#else
enum { BLOCKS = 4 };
MX_INLINE vi all(uint64_t word) { return _mm256_set1_epi64x((int64_t)word); }
MX_INLINE vi times(vi a, vi b) { return _mm256_mul_epu32(a, b); }
MX_INLINE vi upper(vi a) { return _mm256_shuffle_epi32(a, 0xb1); }
MX_INLINE vi xor3(vi a, vi b, vi c) { return vi_xor(vi_xor(a, b), c); }
MX_INLINE vi first_blocks(uint64_t block) { return _mm256_add_epi64(all(block), _mm256_set_epi64x(3, 2, 1, 0)); }
MX_INLINE vi lower_halves(vi a, vi b)
{
    return _mm256_permute4x64_epi64(
        _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88)), 0xd8);
}
#endif

/* The keys of the ten rounds. */
enum { ROUNDS = 10 };
typedef struct keys {
    vi low[ROUNDS], high[ROUNDS];
} keys;

MX_INLINE void set_keys(keys *k, uint64_t seed)
{
    uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        k->low[round] = all(low);
        k->high[round] = all(high);
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
}

/* Word w of VL blocks to word[w]. Of the 16 blocks of a group, which start at a multiple of 16, none carries. */
MX_INLINE void draw(const keys *key, uint64_t offset, uint64_t block, vi word[4])
{
    const vi m0 = all(0xD2511F53u), m1 = all(0xCD9E8D57u);
    vi c[2][4];
    for (int k = 0; k < 2; k++) {
        c[k][0] = first_blocks(block + (uint64_t)(k * BLOCKS));
        c[k][1] = all(block >> 32);
        c[k][2] = all(offset);
        c[k][3] = all(offset >> 32);
    }
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < 2; k++) {
            vi product0 = times(c[k][0], m0), product1 = times(c[k][2], m1);
            c[k][0] = xor3(upper(product1), c[k][1], key->low[round]);
            c[k][1] = product1;
            c[k][2] = xor3(upper(product0), c[k][3], key->high[round]);
            c[k][3] = product0;
        }
    for (int w = 0; w < 4; w++)
        word[w] = lower_halves(c[0][w], c[1][w]);
}

static void words(uint64_t seed, uint64_t offset, uint64_t group, uint32_t out[MX_RNG_GROUP])
{
    keys k;
    set_keys(&k, seed);
    for (int j = 0; j < 16; j += VL) {
        vi word[4];
        draw(&k, offset, 16 * group + (uint64_t)j, word);
        for (int w = 0; w < 4; w++)
            vi_store((int32_t *)out + 16 * w + j, word[w]);
    }
}

static void normals(const uint32_t in[MX_RNG_GROUP], float out[MX_RNG_GROUP])
{
    for (int i = 0; i < MX_RNG_GROUP; i += VL) {
        if (i & 16)
            continue;
        vi first = vi_load((const int32_t *)in + i), second = vi_load((const int32_t *)in + i + 16);
        vf unit = vf_fma(vi_to_vf(vi_shr(first, 1)), vf_set1(0x1p-31f), vf_set1(0x1p-32f));
        vf radius = vf_sqrt(vf_log_normal(unit) * vf_set1(-2.0f));
        vi turn = vi_sub(vi_and(second, vi_set1(0x3fffffff)), vi_set1(0x20000000));
        vf sine, cosine;
        vf_sincos_octant(vi_to_vf(turn) * vf_set1(1.46291807926716e-9f), &sine, &cosine);
        vf_turn(vi_shr(second, 30), &sine, &cosine);
        vf_store(out + i, radius * cosine);
        vf_store(out + i + 16, radius * sine);
    }
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

MX_INLINE uint32_t drop_as(mx_stream s, uint64_t group, int64_t n, uint32_t threshold, float scale, const char *x,
                           char *y, const bool bf16, const bool stream)
{
    const int64_t size = bf16 ? 2 : 4, bytes = MX_RNG_MASK_GROUP * size;
    const vi limit = vi_set1((int32_t)(threshold | threshold << 16));
    uint32_t ties = 0;
    keys k;
    set_keys(&k, s.seed);
    for (int64_t g = 0; g < n; g++, x += bytes, y += bytes) {
        bool tie = false;
        for (int b = 0; b < bytes; b += 64)
            _mm_prefetch(x + PREFETCH_AHEAD + b, _MM_HINT_T0);
        for (int j = 0; j < 16; j += VL) {
            vi word[4];
            draw(&k, s.offset, 16 * (group + (uint64_t)g) + (uint64_t)j, word);
            for (int w = 0; w < 4; w++) {
                int64_t at = (32 * w + 2 * j) * size;
                drop_some(word[w], limit, vf_set1(scale), x + at, y + at, bf16, stream, &tie);
            }
        }
        ties |= (uint32_t)tie << g;
    }
    if (stream)
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

const mx_random_paths MX_SIMD_NAME(mx_random) = {.words = words, .normals = normals, .drop = drop};
