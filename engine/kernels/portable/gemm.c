/* Matrix products in plain C: the packed scheme for any processor, and the three loops that all else is tested by. */
#include "kernels/gemm.h"
#include "core/element.h"
#include "kernels/context.h"
#include "kernels/gemm_internal.h"
#include "kernels/gemm_micro.h"

#include <string.h>

enum { MR = 4, NR = 8 };

static float rounded(float x) { return mx_from_bf16(mx_to_bf16(x)); }

/* bf16 and f32 hold all codes. */
static float element(const void *src, int64_t i, mx_dtype dtype) { return (float)mx_get_number(src, i, dtype); }

static void pack(int64_t length, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool along, int width,
                 float *packed)
{
    for (int64_t first = 0; first < length; first += width)
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = first; i < first + width; i++)
                *packed++ = i < length ? rounded(element(src, along ? i * stride + p : p * stride + i, dtype)) : 0.0f;
}

static void pack_a(int64_t m, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    pack(m, k, src, dtype, stride, !trans, MR, packed);
}

static void pack_b(int64_t n, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    pack(n, k, src, dtype, stride, trans, NR, packed);
}

static void kernel(int64_t k_words, const void *packed_a, const void *packed_b, float alpha, float *c, int64_t ldc,
                   bool accumulate, const mx_ahead *ahead)
{
    (void)ahead;
    const float *a = packed_a, *b = packed_b;
    float sum[MR][NR] = {{0}};
    for (int64_t p = 0; p < k_words; p++, a += MR, b += NR)
        for (int i = 0; i < MR; i++)
            for (int j = 0; j < NR; j++)
                sum[i][j] += a[i] * b[j];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++)
            c[i * ldc + j] = (accumulate ? c[i * ldc + j] : 0.0f) + alpha * sum[i][j];
}

static void store(int64_t m, int64_t n, const float *tile, int64_t ld_tile, const float *bias, void *c, mx_dtype dtype,
                  int64_t ldc, bool accumulate)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float x = tile[i * ld_tile + j] + (bias ? bias[j] : 0.0f);
            if (accumulate)
                x += mx_get_float(c, i * ldc + j, dtype);
            mx_set_float(c, i * ldc + j, x, dtype);
        }
}

static void store_codes(int64_t m, int64_t n, const mx_code_sums *sums, const float *bias, void *c, mx_dtype dtype,
                        int64_t ldc, bool accumulate)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float x = sums->tile[i * sums->ld + j];
            int32_t bits;
            memcpy(&bits, &x, sizeof bits);
            x = sums->whole ? (float)bits : x;
            x *= sums->of_rows.value ? sums->of_rows.value[i * sums->of_rows.step] : 1.0f;
            x *= sums->of_columns.value ? sums->of_columns.value[j * sums->of_columns.step] : 1.0f;
            x = sums->rounded ? mx_from_bf16(mx_to_bf16(x)) : x;
            char *to = (char *)c + (size_t)(i * ldc + j) * mx_dtype_bytes(dtype);
            store(1, 1, &x, 1, bias ? bias + j : NULL, to, dtype, ldc, accumulate);
        }
}

const mx_micro mx_micro_portable = {.instruction = "MULPS",
                                    .mr = MR,
                                    .nr = NR,
                                    .k_group = 1,
                                    .k_unit = 1,
                                    .k_words = 512,
                                    .pack_a = pack_a,
                                    .pack_b = pack_b,
                                    .kernel = kernel,
                                    .store = store,
                                    .store_codes = store_codes};

static void pack_a_f32(int64_t m, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans, void *packed)
{
    float *to = packed;
    for (int64_t first = 0; first < m; first += MR)
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = first; i < first + MR; i++)
                *to++ = i < m ? element(src, trans ? p * stride + i : i * stride + p, dtype) : 0.0f;
}

const mx_micro mx_micro_f32_portable = {.instruction = "MULPS",
                                        .mr = MR,
                                        .nr = NR,
                                        .k_group = 1,
                                        .k_unit = 1,
                                        .k_words = 512,
                                        .pack_a = pack_a_f32,
                                        .kernel = kernel,
                                        .store = store,
                                        .store_codes = store_codes};

/* i8 is packed as all else, since f32 holds it; the sums are i32. */
static void kernel_i8(int64_t k_words, const void *packed_a, const void *packed_b, float alpha, float *c, int64_t ldc,
                      bool accumulate, const mx_ahead *ahead)
{
    (void)alpha, (void)ahead;
    const float *a = packed_a, *b = packed_b;
    int32_t *sums = (int32_t *)c;
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NR; j++) {
            int32_t sum = accumulate ? sums[i * ldc + j] : 0;
            for (int64_t p = 0; p < k_words; p++)
                sum += (int32_t)a[p * MR + i] * (int32_t)b[p * NR + j];
            sums[i * ldc + j] = sum;
        }
}

const mx_micro mx_micro_i8_portable = {.instruction = "IMUL",
                                       .mr = MR,
                                       .nr = NR,
                                       .k_group = 1,
                                       .k_unit = 1,
                                       .k_words = 512,
                                       .pack_a = pack_a,
                                       .pack_b = pack_b,
                                       .kernel = kernel_i8,
                                       .store = store,
                                       .store_codes = store_codes};

static void whole(const int16_t *a, const int8_t *b, int64_t stride, int64_t k, int64_t n, int32_t *sums)
{
    for (int64_t j = 0; j < n; j++) {
        sums[j] = 0;
        for (int64_t p = 0; p < k; p++)
            sums[j] += (int32_t)a[p] * b[j * stride + p];
    }
}

static void blocks(const float *a, const int8_t *b, int64_t stride, const float *scale, int64_t k, int64_t n,
                   float *sums)
{
    for (int64_t j = 0; j < n; j++) {
        sums[j] = 0;
        for (int64_t first = 0; first < k; first += MX_BLOCK) {
            float sum = 0;
            for (int64_t p = first; p < first + MX_BLOCK; p++)
                sum += a[p] * (float)b[j * stride + p];
            sums[j] += sum * scale[(j * k + first) / MX_BLOCK];
        }
    }
}

const mx_thin_i8_paths mx_thin_i8_portable = {.whole = whole, .blocks = blocks};

static void column_sums(int64_t rows, int64_t n, const void *x, mx_dtype dtype, int64_t stride, float *sums)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            sums[j] += mx_get_float(x, i * stride + j, dtype);
}

/* Element i of the items, p of k, of an operand times the scale of its block. `along`: items are contiguous in k. */
static float scaled_element(const mx_matrix *x, const float *block, bool along, int64_t i, int64_t p, int64_t items,
                            int64_t k)
{
    float value = element(x->data, along ? i * x->stride + p : p * x->stride + i, x->dtype);
    return !block ? value : value * block[along ? (i * k + p) / MX_BLOCK : p / MX_BLOCK * items + i];
}

void mx_gemm_reference(const mx_gemm *g)
{
    bool codes = mx_dtype_is_code(g->a.dtype) || mx_dtype_is_code(g->b.dtype);
    bool round = codes || mx_is_bf16(g->a.dtype) || mx_is_bf16(g->b.dtype);
    bool whole = g->a.dtype == MX_I8 && g->b.dtype == MX_I8;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            float sum = 0.0f;
            int64_t exact = 0;
            for (int64_t p = 0; p < g->k; p++) {
                float a = scaled_element(&g->a, g->block_a, !g->a.trans, i, p, g->m, g->k);
                float b = scaled_element(&g->b, g->block_b, g->b.trans, j, p, g->n, g->k);
                sum += round ? rounded(a) * rounded(b) : a * b;
                exact += whole ? (int64_t)a * (int64_t)b : 0;
            }
            sum = whole ? (float)exact : sum * g->alpha;
            sum *= g->scale_a.value ? g->scale_a.value[i * g->scale_a.step] : 1.0f;
            sum *= g->scale_b.value ? g->scale_b.value[j * g->scale_b.step] : 1.0f;
            sum = g->rounded ? rounded(sum) : sum;
            store(1, 1, &sum, 1, g->bias ? g->bias + j : NULL,
                  (char *)g->c.data + (i * g->c.stride + j) * (int64_t)mx_dtype_bytes(g->c.dtype), g->c.dtype, 1,
                  g->accumulate);
        }
}

const mx_column_paths mx_columns_portable = {.sums = column_sums};
