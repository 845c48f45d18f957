/* The micro-kernels of i8: sums in i32, exact in any order. The blocks of registers are those of gemm_kernel.c. */
#include "kernels/context.h"
#include "kernels/gemm_internal.h"
#include "kernels/simd/gemm_simd.h"

enum { MR = GEMM_MR, NR = GEMM_NR, NV = GEMM_NR / VL };
enum { AHEAD = 8 * NR, AHEAD_A = 16 * MR }; /* words between the one in use and the one prefetched */
enum { STEP = 4 };                          /* words from line to line of what is prefetched besides */

/* A word is two i16: VPMADDWD adds both products. (VPMADDUBSW on bytes would saturate.) */
MX_INLINE vi add_products(vi sum, vi a, vi b)
{
#if MX_SIMD_512
    return vi_add(sum, _mm512_madd_epi16(a, b));
#else
    return vi_add(sum, _mm256_madd_epi16(a, b));
#endif
}

MX_INLINE void store_sums(vi sum[MR][NV], float *c, int64_t ldc, bool accumulate)
{
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++) {
            int32_t *out = (int32_t *)(c + i * ldc + j * VL);
            vi_store(out, accumulate ? vi_add(sum[i][j], vi_load(out)) : sum[i][j]);
        }
}

/* The words of B for one word of k; what follows in both panels is asked for. */
MX_INLINE void load_columns(vi column[NV], const int32_t *a, const int32_t *b)
{
#pragma GCC unroll 3
    for (int j = 0; j < NV; j++)
        column[j] = vi_load(b + j * VL);
    for (int j = 0; j < NR; j += 16)
        _mm_prefetch((const char *)(b + AHEAD + j), _MM_HINT_T0);
    _mm_prefetch((const char *)(a + AHEAD_A), _MM_HINT_T0);
}

MX_INLINE void add_shorts(vi sum[MR][NV], const int32_t *a, const int32_t *b)
{
    vi column[NV];
    load_columns(column, a, b);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
        vi row = vi_set1(a[i]);
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            sum[i][j] = add_products(sum[i][j], row, column[j]);
    }
}

static void kernel_shorts(int64_t k_words, const void *packed_a, const void *packed_b, float alpha, float *c,
                          int64_t ldc, bool accumulate, const mx_ahead *ahead)
{
    (void)alpha;
    const int32_t *a = packed_a, *b = packed_b;
    prefetcher others = prefetcher_of((mx_ahead){(const char *)c, NR * 4, ldc * 4, MR}, ahead, k_words / STEP);
    vi sum[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            sum[i][j] = vi_set1(0);
    int64_t p = 0;
    for (; p + STEP <= k_words; p += STEP, a += STEP * MR, b += STEP * NR) {
        prefetch_some(&others);
#pragma GCC unroll 4
        for (int w = 0; w < STEP; w++)
            add_shorts(sum, a + w * MR, b + w * NR);
    }
    for (; p < k_words; p++, a += MR, b += NR)
        add_shorts(sum, a, b);
    store_sums(sum, c, ldc, accumulate);
}

const mx_micro MX_SIMD_NAME(mx_micro_i8) = {.instruction = MX_SIMD_512 ? "VPMADDWD, 512 bits" : "VPMADDWD, 256 bits",
                                            .mr = MR,
                                            .nr = NR,
                                            .k_unit = 1,
                                            .k_words = 512,
                                            .k_group = 2,
                                            .pack_a = MX_SIMD_NAME(mx_pack_a_shorts),
                                            .pack_b = MX_SIMD_NAME(mx_pack_b_shorts),
                                            .kernel = kernel_shorts,
                                            .store = MX_SIMD_NAME(mx_gemm_store),
                                            .store_codes = MX_SIMD_NAME(mx_gemm_store_codes)};

#if MX_SIMD_512

/* A word is four bytes: VPDPBUSD adds four products of unsigned and signed ones. So A is packed as a + 128, and the
 * sums start at -128 times the sum of each column of B, which the last word of B's panel holds. What passes i32 in
 * between wraps around and comes back. */
__attribute__((target("avx512vnni"))) static inline void add_bytes(vi sum[MR][NV], const int32_t *a, const int32_t *b)
{
    vi column[NV];
    load_columns(column, a, b);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
        vi row = vi_set1(a[i]);
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], row, column[j]);
    }
}

__attribute__((target("avx512vnni"))) static void kernel_bytes(int64_t k_words, const void *packed_a,
                                                               const void *packed_b, float alpha, float *c, int64_t ldc,
                                                               bool accumulate, const mx_ahead *ahead)
{
    (void)alpha;
    const int32_t *a = packed_a, *b = packed_b, *start = b + (k_words - 1) * NR;
    prefetcher others = prefetcher_of((mx_ahead){(const char *)c, NR * 4, ldc * 4, MR}, ahead, k_words / STEP);
    vi sum[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            sum[i][j] = vi_load(start + j * VL);
    int64_t p = 0;
    for (; p + STEP <= k_words - 1; p += STEP, a += STEP * MR, b += STEP * NR) {
        prefetch_some(&others);
#pragma GCC unroll 4
        for (int w = 0; w < STEP; w++)
            add_bytes(sum, a + w * MR, b + w * NR);
    }
    for (; p < k_words - 1; p++, a += MR, b += NR)
        add_bytes(sum, a, b);
    store_sums(sum, c, ldc, accumulate);
}

__attribute__((target("avx512vnni"))) static void pack_b(int64_t n, int64_t k, const void *src, mx_dtype dtype,
                                                         int64_t stride, bool trans, void *packed)
{
    MX_SIMD_NAME(mx_pack_b_bytes)(n, k, src, dtype, stride, trans, packed);
    int64_t words = mx_ceil_div(k, 4);
    const vi offset = vi_set1((int32_t)0x80808080u);
    for (int64_t first = 0; first < n; first += NR) {
        int32_t *panel = (int32_t *)packed + first * (words + 1);
        for (int j = 0; j < NR; j += VL) {
            vi sum = vi_set1(0);
            for (int64_t w = 0; w < words; w++)
                sum = _mm512_dpbusd_epi32(sum, offset, vi_load(panel + w * NR + j));
            vi_store(panel + words * NR + j, vi_sub(vi_set1(0), sum));
        }
    }
}

const mx_micro MX_SIMD_NAME(mx_micro_vnni) = {.instruction = "VPDPBUSD, 512 bits",
                                              .mr = MR,
                                              .nr = NR,
                                              .k_unit = 1,
                                              .k_words = 512,
                                              .k_group = 4,
                                              .k_extra = 1,
                                              .pack_a = MX_SIMD_NAME(mx_pack_a_bytes),
                                              .pack_b = pack_b,
                                              .kernel = kernel_bytes,
                                              .store = MX_SIMD_NAME(mx_gemm_store),
                                              .store_codes = MX_SIMD_NAME(mx_gemm_store_codes)};

#endif
