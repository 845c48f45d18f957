/* The micro-kernels: a register block of mr x nr sums over packed panels. */
#include "kernels/context.h"
#include "kernels/gemm_internal.h"
#include "kernels/simd/gemm_simd.h"

enum { MR = GEMM_MR, NR = GEMM_NR, NV = GEMM_NR / VL };

/* Words between the one in use and the one prefetched. The panels of A follow one another, so that the next tile's
 * comes in while this one is in use. */
enum { AHEAD = 8 * NR, AHEAD_A = 16 * MR };

#if defined(MX_SIMD_AVX512_BF16)
/* One word is two bf16: VDPBF16PS adds both products. */
static inline vf multiply_add(vf sum, vi a, vi b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
static inline vi broadcast(const uint32_t *p) { return vi_set1((int32_t)*p); }
static inline vi load_words(const uint32_t *p) { return vi_load((const int32_t *)p); }
typedef vi words;
#else
static inline vf multiply_add(vf sum, vf a, vf b) { return vf_fma(a, b, sum); }
static inline vf broadcast(const uint32_t *p) { return vf_set1(*(const float *)p); }
static inline vf load_words(const uint32_t *p) { return vf_load((const float *)p); }
typedef vf words;
#endif

/* Adds the products of one word of k, whose words follow a and b, to nv vectors of columns. */
MX_INLINE void add_word(const int nv, vf sum[MR][NV], const uint32_t *a, const uint32_t *b)
{
    words column[NV];
#pragma GCC unroll 3
    for (int j = 0; j < nv; j++)
        column[j] = load_words(b + j * VL);
    for (int j = 0; j < nv * VL; j += 16)
        _mm_prefetch((const char *)(b + AHEAD + j), _MM_HINT_T0);
    _mm_prefetch((const char *)(a + AHEAD_A), _MM_HINT_T0);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
        words row = broadcast(a + i);
#pragma GCC unroll 3
        for (int j = 0; j < nv; j++)
            sum[i][j] = multiply_add(sum[i][j], row, column[j]);
    }
}

MX_INLINE void multiply(const int nv, int64_t k_words, const void *packed_a, const void *packed_b, float alpha,
                        float *c, int64_t ldc, bool accumulate, const mx_ahead *ahead)
{
    enum { STEP = 4 };
    const uint32_t *a = packed_a, *b = packed_b;
    prefetcher others = prefetcher_of((mx_ahead){(const char *)c, nv * VL * 4, ldc * 4, MR}, ahead, k_words / STEP);
    vf sum[MR][NV]; /* in registers: every loop over it is unrolled */
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < nv; j++)
            sum[i][j] = vf_zero();
    int64_t p = 0;
    for (; p + STEP <= k_words; p += STEP, a += STEP * MR, b += STEP * NR) {
        prefetch_some(&others);
#pragma GCC unroll 4
        for (int w = 0; w < STEP; w++)
            add_word(nv, sum, a + w * MR, b + w * NR);
    }
    for (; p < k_words; p++, a += MR, b += NR)
        add_word(nv, sum, a, b);
    vf scale = vf_set1(alpha);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < nv; j++) {
            float *out = c + i * ldc + j * VL;
            vf x = scale * sum[i][j];
            if (accumulate)
                x = vf_fma(scale, sum[i][j], vf_load(out));
            vf_store(out, x);
        }
}

static void kernel(int64_t k_words, const void *a, const void *b, float alpha, float *c, int64_t ldc, bool accumulate,
                   const mx_ahead *ahead)
{
    multiply(NV, k_words, a, b, alpha, c, ldc, accumulate, ahead);
}

static void part(int64_t n, int64_t k_words, const void *a, const void *b, float alpha, float *c, int64_t ldc,
                 bool accumulate, const mx_ahead *ahead)
{
    if (n <= VL)
        multiply(1, k_words, a, b, alpha, c, ldc, accumulate, ahead);
    else if (n <= 2 * VL)
        multiply(2, k_words, a, b, alpha, c, ldc, accumulate, ahead);
    else
        multiply(NV, k_words, a, b, alpha, c, ldc, accumulate, ahead);
}

static inline vf load_c(const void *c, bool bf16, int64_t at, int64_t n)
{
    if (bf16)
        return n >= VL ? vf_load_bf16((const mx_bf16 *)c + at) : vf_load_bf16_part((const mx_bf16 *)c + at, n);
    return n >= VL ? vf_load((const float *)c + at) : vf_load_part((const float *)c + at, n);
}

static inline void store_c(void *c, bool bf16, int64_t at, int64_t n, vf x)
{
    if (bf16)
        n >= VL ? vf_store_bf16((mx_bf16 *)c + at, x) : vf_store_bf16_part((mx_bf16 *)c + at, x, n);
    else
        n >= VL ? vf_store((float *)c + at, x) : vf_store_part((float *)c + at, x, n);
}

void MX_SIMD_NAME(mx_gemm_store)(int64_t m, int64_t n, const float *tile, int64_t ld_tile, const float *bias, void *c,
                                 mx_dtype dtype, int64_t ldc, bool accumulate)
{
    bool bf16 = mx_is_bf16(dtype);
    for (int64_t j = 0; j < n; j += VL) {
        int64_t left = n - j;
        vf shift = !bias ? vf_zero() : left >= VL ? vf_load(bias + j) : vf_load_part(bias + j, left);
        for (int64_t i = 0; i < m; i++) {
            const float *from = tile + i * ld_tile + j;
            vf x = (left >= VL ? vf_load(from) : vf_load_part(from, left)) + shift;
            if (accumulate)
                x = x + load_c(c, bf16, i * ldc + j, left);
            store_c(c, bf16, i * ldc + j, left, x);
        }
    }
}

/* One vector of columns: n of it (VL or more: all), from column j on. */
MX_INLINE void store_code_columns(int64_t m, int64_t j, int64_t n, const mx_code_sums *s, const float *bias, void *c,
                                  bool bf16, int64_t ldc, bool accumulate)
{
    const float *column = s->of_columns.value ? s->of_columns.value + j * s->of_columns.step : NULL;
    vf one = vf_set1(1), shift = !bias ? vf_zero() : n >= VL ? vf_load(bias + j) : vf_load_part(bias + j, n);
    vf by = !column ? one : s->of_columns.step == 0 ? vf_set1(*column) : vf_load_part(column, mx_min(n, VL));
    for (int64_t i = 0; i < m; i++) {
        const float *from = s->tile + i * s->ld + j;
        vf x = n >= VL ? vf_load(from) : vf_load_part(from, n);
        vf row = s->of_rows.value ? vf_set1(s->of_rows.value[i * s->of_rows.step]) : one;
        x = (s->whole ? vi_to_vf(vf_bits(x)) : x) * row * by;
        x = (s->rounded ? vf_from_bf16(vf_to_bf16(x)) : x) + shift;
        if (accumulate)
            x = x + load_c(c, bf16, i * ldc + j, n);
        store_c(c, bf16, i * ldc + j, n, x);
    }
}

void MX_SIMD_NAME(mx_gemm_store_codes)(int64_t m, int64_t n, const mx_code_sums *sums, const float *bias, void *c,
                                       mx_dtype dtype, int64_t ldc, bool accumulate)
{
    bool bf16 = mx_is_bf16(dtype);
    int64_t j = 0;
    for (; j + VL <= n; j += VL)
        store_code_columns(m, j, VL, sums, bias, c, bf16, ldc, accumulate);
    if (j < n)
        store_code_columns(m, j, n - j, sums, bias, c, bf16, ldc, accumulate);
}

/* 512 words of k: loading and storing the sums of a tile then takes no noticeable time. More words are not faster. */
const mx_micro MX_SIMD_NAME(mx_micro) = {.mr = MR,
                                         .nr = NR,
                                         .k_unit = 1,
                                         .k_words = 512,
#if defined(MX_SIMD_AVX512_BF16)
                                         .instruction = "VDPBF16PS, 512 bits",
                                         .k_group = 2,
                                         .pack_a = mx_pack_a_pairs_avx512_bf16,
                                         .pack_b = mx_pack_b_pairs_avx512_bf16,
#else
                                         .instruction = MX_SIMD_512 ? "VFMADD231PS, 512 bits" : "VFMADD231PS, 256 bits",
                                         .k_group = 1,
                                         .pack_a = MX_SIMD_NAME(mx_pack_a_singles),
                                         .pack_b = MX_SIMD_NAME(mx_pack_b_singles),
#endif
                                         .kernel = kernel,
                                         .part = part,
                                         .store = MX_SIMD_NAME(mx_gemm_store),
                                         .store_codes = MX_SIMD_NAME(mx_gemm_store_codes)};

#if !defined(MX_SIMD_AVX512_BF16)
const mx_micro MX_SIMD_NAME(mx_micro_f32) = {.mr = MR,
                                             .nr = NR,
                                             .k_group = 1,
                                             .k_unit = 1,
                                             .k_words = 512,
                                             .instruction = MX_SIMD_512 ? "VFMADD231PS, 512 bits"
                                                                        : "VFMADD231PS, 256 bits",
                                             .pack_a = MX_SIMD_NAME(mx_pack_a_exact),
#if MX_SIMD_512
                                             .pack_b = MX_SIMD_NAME(mx_pack_b_exact),
#endif
                                             .kernel = kernel,
                                             .part = part,
                                             .store = MX_SIMD_NAME(mx_gemm_store),
                                             .store_codes = MX_SIMD_NAME(mx_gemm_store_codes)};
#endif
