/* Products with few rows, as when a model generates a token: each element of B is used only a few times, so
 * packing it would cost more than it saves. B is read once, in place, at the speed of memory. Products are f32. The sum
 * of columns is the same loop with all elements of A equal to 1. */
#include "kernels/context.h"
#include "kernels/gemm.h"
#include "kernels/gemm_internal.h"
#include "kernels/simd/simd.h"

enum { STEP = 8 }; /* elements of k between two visits to the sums */

MX_INLINE vf rounded(vf x) { return vf_from_bf16(vf_to_bf16(x)); }

MX_INLINE vf load(const void *data, mx_dtype dtype, int64_t at, int64_t n)
{
    if (mx_is_bf16(dtype))
        return n >= VL ? vf_load_bf16((const mx_bf16 *)data + at) : vf_load_bf16_part((const mx_bf16 *)data + at, n);
    return n >= VL ? vf_load((const float *)data + at) : vf_load_part((const float *)data + at, n);
}

/* As a bf16 operand. */
MX_INLINE vf load_operand(const void *data, mx_dtype dtype, int64_t at, int64_t n)
{
    vf x = load(data, dtype, at, n);
    return mx_is_bf16(dtype) ? x : rounded(x);
}

static void round_row(const void *data, mx_dtype dtype, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf x = load_operand(data, dtype, i, n - i);
        if (n - i >= VL)
            vf_store(out + i, x);
        else
            vf_store_part(out + i, x, n - i);
    }
}

/* B as stored, (k, n): sums (m, n) += a (m, steps) times `steps` rows of B. */
MX_INLINE void add_rows(int64_t m, int64_t n, int steps, const float *a, int64_t lda, const void *b, mx_dtype dtype,
                        int64_t offset, int64_t ldb, float *sums, int64_t ld_sums)
{
    for (int64_t j = 0; j < n; j += VL) {
        int64_t left = n - j;
        vf row[STEP];
        for (int p = 0; p < steps; p++)
            row[p] = load_operand(b, dtype, offset + p * ldb + j, left);
        for (int64_t i = 0; i < m; i++) {
            float *out = sums + i * ld_sums + j; /* the sums have room for a whole vector */
            vf even = vf_load(out), odd = vf_zero();
            for (int p = 0; p < steps; p += 2)
                even = vf_fma(vf_set1(a[i * lda + p]), row[p], even);
            for (int p = 1; p < steps; p += 2)
                odd = vf_fma(vf_set1(a[i * lda + p]), row[p], odd);
            vf_store(out, even + odd);
        }
    }
}

MX_INLINE void columns_of(const mx_gemm *g, const float *a, int64_t column, int64_t n, mx_dtype dtype, float *sums,
                          int64_t ld_sums)
{
    int64_t p = 0;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < ld_sums; j += VL)
            vf_store(sums + i * ld_sums + j, vf_zero());
    for (; p + STEP <= g->k; p += STEP)
        add_rows(g->m, n, STEP, a + p, g->k, g->b.data, dtype, p * g->b.stride + column, g->b.stride, sums, ld_sums);
    for (; p < g->k; p++)
        add_rows(g->m, n, 1, a + p, g->k, g->b.data, dtype, p * g->b.stride + column, g->b.stride, sums, ld_sums);
}

/* B transposed, (n, k): `rows` rows of A against `columns` rows of B, vectors along k. */
MX_INLINE void dot_products(int rows, int columns, int64_t k, const float *a, const void *b, mx_dtype dtype,
                            int64_t offset, int64_t ldb, float *sums, int64_t ld_sums)
{
    vf sum[4][4];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            sum[i][j] = vf_zero();
    for (int64_t p = 0; p < k; p += VL) {
        vf x[4], y[4];
        for (int j = 0; j < columns; j++)
            y[j] = load_operand(b, dtype, offset + j * ldb + p, k - p);
        for (int i = 0; i < rows; i++)
            x[i] = load(a, MX_F32, i * k + p, k - p);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++)
                sum[i][j] = vf_fma(x[i], y[j], sum[i][j]);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++)
            sums[i * ld_sums + j] = vf_sum(sum[i][j]);
}

/* Two rows of A against four of B, so that the sums of the narrowest path stay in registers. */
MX_INLINE void dots_of(const mx_gemm *g, const float *a, int64_t column, int64_t n, mx_dtype dtype, float *sums,
                       int64_t ld_sums)
{
    for (int64_t j = 0; j < n;) {
        int columns = n - j >= 4 ? 4 : 1;
        int64_t offset = (column + j) * g->b.stride;
        for (int64_t i = 0; i < g->m;) {
            int rows = g->m - i >= 2 ? 2 : 1;
            const float *from = a + i * g->k;
            float *to = sums + i * ld_sums + j;
            if (columns == 4 && rows == 2)
                dot_products(2, 4, g->k, from, g->b.data, dtype, offset, g->b.stride, to, ld_sums);
            else if (columns == 4)
                dot_products(1, 4, g->k, from, g->b.data, dtype, offset, g->b.stride, to, ld_sums);
            else
                for (int r = 0; r < rows; r++)
                    dot_products(1, 1, g->k, from + r * g->k, g->b.data, dtype, offset, g->b.stride, to + r * ld_sums,
                                 ld_sums);
            i += rows;
        }
        j += columns;
    }
}

static void columns(const mx_gemm *g, const float *a, int64_t column, int64_t n, float *sums, int64_t ld_sums)
{
    bool bf16 = mx_is_bf16(g->b.dtype);
    if (g->b.trans)
        bf16 ? dots_of(g, a, column, n, MX_BF16, sums, ld_sums) : dots_of(g, a, column, n, MX_F32, sums, ld_sums);
    else
        bf16 ? columns_of(g, a, column, n, MX_BF16, sums, ld_sums) : columns_of(g, a, column, n, MX_F32, sums, ld_sums);
}

const mx_thin_paths MX_SIMD_NAME(mx_thin) = {.round = round_row, .columns = columns};

/* `sums` has room for whole vectors. */
static void column_sums(int64_t rows, int64_t n, const void *x, mx_dtype dtype, int64_t stride, float *sums)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j += VL)
            vf_store(sums + j, vf_load(sums + j) + load(x, dtype, i * stride + j, n - j));
}

const mx_column_paths MX_SIMD_NAME(mx_columns) = {.sums = column_sums};
