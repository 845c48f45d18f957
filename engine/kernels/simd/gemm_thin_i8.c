/* One row of A against rows of a B of i8: as fast as memory delivers B. Vectors lie along k, four rows of B at a time;
 * the next four are prefetched, since the processor's own prefetching ends with each row. */
#include "kernels/context.h"
#include "kernels/gemm.h"
#include "kernels/gemm_internal.h"
#include "kernels/simd/simd.h"

enum { LANES = 16, PARTS = LANES / VL, AT_ONCE = 4 };

/* Sums of a dot product in 16 lanes on every path, so that all of them give the same bits. */
typedef struct lanes {
    vf part[PARTS];
} lanes;

MX_INLINE vf load_i8(const int8_t *p)
{
#if MX_SIMD_512
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#endif
}

MX_INLINE float sum_of(lanes x)
{
    vf sum = x.part[0];
    for (int v = 1; v < PARTS; v++)
        sum = sum + x.part[v];
    return vf_sum(sum);
}

/* The products of a block in turn, then times its scale. */
MX_INLINE void add_block(lanes *total, const vf a[2 * PARTS], const int8_t *b, float scale)
{
    for (int v = 0; v < PARTS; v++) {
        vf sum = a[v] * load_i8(b + v * VL);
        sum = vf_fma(a[PARTS + v], load_i8(b + LANES + v * VL), sum);
        total->part[v] = vf_fma(sum, vf_set1(scale), total->part[v]);
    }
}

MX_INLINE void dots_of_blocks(int rows, const float *a, const int8_t *b, int64_t stride, const float *scale, int64_t k,
                              float *sums)
{
    lanes total[AT_ONCE];
    int64_t blocks = k / MX_BLOCK;
    for (int j = 0; j < rows; j++)
        for (int v = 0; v < PARTS; v++)
            total[j].part[v] = vf_zero();
    for (int64_t i = 0; i < blocks; i++) {
        vf x[2 * PARTS];
        for (int v = 0; v < 2 * PARTS; v++)
            x[v] = vf_load(a + i * MX_BLOCK + v * VL);
        for (int j = 0; j < rows; j++) {
            _mm_prefetch(b + (j + AT_ONCE) * stride + i * MX_BLOCK, _MM_HINT_T0);
            add_block(&total[j], x, b + j * stride + i * MX_BLOCK, scale[j * blocks + i]);
        }
    }
    for (int j = 0; j < rows; j++)
        sums[j] = sum_of(total[j]);
}

static void blocks(const float *a, const int8_t *b, int64_t stride, const float *scale, int64_t k, int64_t n,
                   float *sums)
{
    int64_t j = 0, per_row = k / MX_BLOCK;
    for (; j + AT_ONCE <= n; j += AT_ONCE)
        dots_of_blocks(AT_ONCE, a, b + j * stride, stride, scale + j * per_row, k, sums + j);
    for (; j < n; j++)
        dots_of_blocks(1, a, b + j * stride, stride, scale + j * per_row, k, sums + j);
}

/* Pairs of i16: VPMADDWD adds both products. */
MX_INLINE vi add_pairs(vi sum, const int16_t *a, const int8_t *b)
{
#if MX_SIMD_512
    __m512i y = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)b));
    return vi_add(sum, _mm512_madd_epi16(_mm512_loadu_si512(a), y));
#else
    __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));
    return vi_add(sum, _mm256_madd_epi16(_mm256_loadu_si256((const __m256i *)a), y));
#endif
}

MX_INLINE void whole_dots(int rows, const int16_t *a, const int8_t *b, int64_t stride, int64_t k, int32_t *sums)
{
    vi sum[AT_ONCE];
    int64_t p = 0;
    for (int j = 0; j < rows; j++)
        sum[j] = vi_set1(0);
    for (; p + 2 * VL <= k; p += 2 * VL)
        for (int j = 0; j < rows; j++) {
            _mm_prefetch(b + (j + AT_ONCE) * stride + p, _MM_HINT_T0);
            sum[j] = add_pairs(sum[j], a + p, b + j * stride + p);
        }
    for (int j = 0; j < rows; j++) {
        int32_t lane[VL], all = 0;
        vi_store(lane, sum[j]);
        for (int v = 0; v < VL; v++)
            all += lane[v];
        for (int64_t q = p; q < k; q++)
            all += (int32_t)a[q] * b[j * stride + q];
        sums[j] = all;
    }
}

static void whole(const int16_t *a, const int8_t *b, int64_t stride, int64_t k, int64_t n, int32_t *sums)
{
    int64_t j = 0;
    for (; j + AT_ONCE <= n; j += AT_ONCE)
        whole_dots(AT_ONCE, a, b + j * stride, stride, k, sums + j);
    for (; j < n; j++)
        whole_dots(1, a, b + j * stride, stride, k, sums + j);
}

const mx_thin_i8_paths MX_SIMD_NAME(mx_thin_i8) = {.whole = whole, .blocks = blocks};
