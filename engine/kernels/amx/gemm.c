/* The matrix products of bf16 and of i8 in the tile registers of AMX (Intel,
 * Software Developer's Manual 1, chapter 18).
 *
 * The register block is 32 x 32: four tiles of sums, two of A and two of B. A panel, of 32 rows of A or columns of B,
 * is a row of blocks of 16 words of k, and a block is the two tiles that are loaded together. A word is two bf16 or
 * four i8, whose products are summed in i32: tiles move words, so only packing and one instruction differ. */
#include "kernels/amx/tiles.h"
#include "kernels/context.h"
#include "kernels/gemm_internal.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/transpose.h"

enum { MR = 32, NR = 32, BLOCK_WORDS = 2 * TILE_WORDS };

/* ---- tiles ---- */

typedef struct config { /* the operand of LDTILECFG */
    uint8_t palette, start_line, reserved[14];
    uint16_t line_bytes[16];
    uint8_t lines[16];
} config;

void mx_amx_begin(void)
{
    static const _Alignas(64) config all = {
        .palette = 1,
        .line_bytes = {LINE_BYTES, LINE_BYTES, LINE_BYTES, LINE_BYTES, LINE_BYTES, LINE_BYTES, LINE_BYTES, LINE_BYTES},
        .lines = {TILE_LINES, TILE_LINES, TILE_LINES, TILE_LINES, TILE_LINES, TILE_LINES, TILE_LINES, TILE_LINES}};
    _tile_loadconfig(&all);
}

void mx_amx_end(void) { _tile_release(); }

/* ---- packing ---- */

/* n elements from `at` on, none or up to 16; zeros beyond. */
static inline vf load_floats(const void *src, int64_t at, int64_t n)
{
    return vf_load_part((const float *)src + at, n < 0 ? 0 : n < VL ? n : VL);
}

/* 16 words along k from element `at` on, of which n elements exist; zeros beyond. */
static inline vi words_along(int group, const void *src, mx_dtype dtype, int64_t at, int64_t n)
{
    if (n <= 0)
        return vi_set1(0);
    if (group == 4)
        return _mm512_maskz_loadu_epi8(n >= 4 * VL ? UINT64_MAX : (1ull << n) - 1, (const int8_t *)src + at);
    if (dtype == MX_BF16)
        return _mm512_maskz_loadu_epi16(n >= 2 * VL ? UINT32_MAX : (1u << n) - 1u, (const mx_bf16 *)src + at);
    return vf_pack_bf16(load_floats(src, at, n), load_floats(src, at + VL, n - VL));
}

/* A byte of each of n items, in words; zeros if it is not `there`. */
static inline vi bytes_across(const int8_t *p, int64_t n, bool there)
{
    return there ? _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(vm_first(n), p)) : vi_set1(0);
}

/* A word of 16 neighbouring items, n of which exist: its first element at `at`, each next one `stride` later, of which
 * `elements`, at least one, exist. */
static inline vi words_across(int group, const void *src, mx_dtype dtype, int64_t at, int64_t stride, int64_t n,
                              int64_t elements)
{
    bool pair = elements > 1;
    if (group == 4) {
        const int8_t *p = (const int8_t *)src + at;
        vi first = vi_or(bytes_across(p, n, true), vi_shl(bytes_across(p + stride, n, pair), 8));
        vi second = vi_or(bytes_across(p + 2 * stride, n, elements > 2),
                          vi_shl(bytes_across(p + 3 * stride, n, elements > 3), 8));
        return vi_or(first, vi_shl(second, 16));
    }
    if (dtype == MX_BF16) {
        const mx_bf16 *p = (const mx_bf16 *)src + at;
        vi even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vm_first(n), p));
        vi odd = pair ? _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(vm_first(n), p + stride)) : vi_set1(0);
        return vi_or(even, vi_shl(odd, 16));
    }
    return vf_join_bf16(load_floats(src, at, n), pair ? load_floats(src, at + stride, n) : vf_zero());
}

/* A tile's lines, `items` by 16 words of `group` elements, of which n exist from element p of k on. `item_lines`: a
 * line is an item, as A wants it; else a word. */
static inline void pack_tile(int group, bool along, bool item_lines, int64_t items, int64_t n, const void *src,
                             mx_dtype dtype, int64_t stride, int64_t item, int64_t p, uint32_t *tile)
{
    vf line[TILE_LINES];
    for (int i = 0; i < TILE_LINES; i++) {
        vi words = vi_set1(0);
        if (along && i < items)
            words = words_along(group, src, dtype, (item + i) * stride + p, n);
        else if (!along && items > 0 && group * i < n)
            words = words_across(group, src, dtype, (p + group * i) * stride + item, stride, mx_min(items, VL),
                                 n - group * i);
        line[i] = vi_float(words);
    }
    if (along != item_lines)
        transpose(line);
    for (int i = 0; i < TILE_LINES; i++)
        vf_store((float *)tile + i * VL, line[i]);
}

static inline void pack(int group, bool along, bool item_lines, int64_t length, int64_t k, const void *src,
                        mx_dtype dtype, int64_t stride, uint32_t *tile)
{
    for (int64_t first = 0; first < length; first += 2 * TILE_LINES)
        for (int64_t p = 0; p < k; p += group * TILE_LINES)
            for (int64_t item = first; item < first + 2 * TILE_LINES; item += TILE_LINES, tile += TILE_WORDS)
                pack_tile(group, along, item_lines, length - item, k - p, src, dtype, stride, item, p, tile);
}

static void pack_a(int64_t m, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    pack(2, !trans, true, m, k, src, dtype, stride, packed);
}

static void pack_b(int64_t n, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    pack(2, trans, false, n, k, src, dtype, stride, packed);
}

static void pack_a_i8(int64_t m, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    (void)dtype;
    pack(4, !trans, true, m, k, src, MX_I8, stride, packed);
}

static void pack_b_i8(int64_t n, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    (void)dtype;
    pack(4, trans, false, n, k, src, MX_I8, stride, packed);
}

/* ---- the kernels ---- */

/* The numbers of tiles must be literals. */
#define ADD_PRODUCT(bytes, sums, a, b)                                                                                 \
    do {                                                                                                               \
        if (bytes)                                                                                                     \
            _tile_dpbssd(sums, a, b);                                                                                  \
        else                                                                                                           \
            _tile_dpbf16ps(sums, a, b);                                                                                \
    } while (0)

/* Tiles 0 to 3 += A B. A passes by without pushing the panel of B, which every panel of A meets, out of the first-level
 * cache. In each step two rows of the block of C below this one, most often the next, are asked for, and some
 * lines of what is ahead. */
MX_INLINE void multiply(bool bytes, int64_t k_words, const uint32_t *a, const uint32_t *b, const float *c, int64_t ldc,
                        const mx_ahead *ahead)
{
    static const mx_ahead nothing = {0};
    const mx_ahead *first = ahead ? ahead : &nothing;
    prefetcher others = prefetcher_of(*first, first->rows > 0 ? first + 1 : NULL, k_words / TILE_LINES);
    const char *next = (const char *)c + MR * ldc * (int64_t)sizeof *c;
    for (int64_t w = 0; w < k_words; w += TILE_LINES, a += BLOCK_WORDS, b += BLOCK_WORDS) {
        for (int64_t row = w / 8; w < 8 * MR && row < w / 8 + 2; row++) {
            _mm_prefetch(next + row * ldc * (int64_t)sizeof *c, _MM_HINT_T0);
            _mm_prefetch(next + row * ldc * (int64_t)sizeof *c + LINE_BYTES, _MM_HINT_T0);
        }
        prefetch_some(&others);
        _tile_stream_loadd(4, a, LINE_BYTES);
        _tile_loadd(6, b, LINE_BYTES);
        ADD_PRODUCT(bytes, 0, 4, 6);
        _tile_loadd(7, b + TILE_WORDS, LINE_BYTES);
        ADD_PRODUCT(bytes, 2, 4, 7);
        _tile_stream_loadd(5, a + TILE_WORDS, LINE_BYTES);
        ADD_PRODUCT(bytes, 1, 5, 6);
        ADD_PRODUCT(bytes, 3, 5, 7);
    }
}

static void kernel(int64_t k_words, const void *a, const void *b, float alpha, float *c, int64_t ldc, bool accumulate,
                   const mx_ahead *ahead)
{
    int64_t bytes = ldc * (int64_t)sizeof *c;
    if (alpha == 1.0f && accumulate)
        sums_load(c, bytes);
    else
        sums_zero();
    multiply(false, k_words, a, b, c, ldc, ahead);
    if (alpha == 1.0f) {
        sums_store(c, bytes);
        return;
    }
    _Alignas(64) float sums[MR * NR];
    sums_store(sums, NR * (int64_t)sizeof *sums);
    vf scale = vf_set1(alpha);
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j += VL) {
            float *out = c + i * ldc + j;
            vf x = scale * vf_load(sums + i * NR + j);
            if (accumulate)
                x = x + vf_load(out);
            vf_store(out, x);
        }
}

static void kernel_i8(int64_t k_words, const void *a, const void *b, float alpha, float *c, int64_t ldc,
                      bool accumulate, const mx_ahead *ahead)
{
    (void)alpha;
    int64_t bytes = ldc * (int64_t)sizeof *c;
    if (accumulate)
        sums_load(c, bytes);
    else
        sums_zero();
    multiply(true, k_words, a, b, c, ldc, ahead);
    sums_store(c, bytes);
}

/* 256 words of k: a panel of B then takes two thirds of the first-level cache of the processors that have AMX. */
const mx_micro mx_micro_amx = {.instruction = "TDPBF16PS, tiles of 16 x 16",
                               .mr = MR,
                               .nr = NR,
                               .k_group = 2,
                               .k_unit = TILE_LINES,
                               .k_words = 256,
                               .begin = mx_amx_begin,
                               .end = mx_amx_end,
                               .pack_a = pack_a,
                               .pack_b = pack_b,
                               .kernel = kernel,
                               .store = mx_gemm_store_avx512_bf16,
                               .store_codes = mx_gemm_store_codes_avx512_bf16};

const mx_micro mx_micro_i8_tiles_amx = {.instruction = "TDPBSSD, tiles of 16 x 16",
                                        .mr = MR,
                                        .nr = NR,
                                        .k_group = 4,
                                        .k_unit = TILE_LINES,
                                        .k_words = 256,
                                        .begin = mx_amx_begin,
                                        .end = mx_amx_end,
                                        .pack_a = pack_a_i8,
                                        .pack_b = pack_b_i8,
                                        .kernel = kernel_i8,
                                        .store = mx_gemm_store_avx512_bf16,
                                        .store_codes = mx_gemm_store_codes_avx512_bf16};
