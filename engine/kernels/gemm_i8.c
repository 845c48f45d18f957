/* Products with a B of i8 that is transposed, as models generate tokens from weights of one byte. Few rows read B once,
 * in place; work is split by rows of B, so no sum is cut. More rows multiply blocks of B that were made real first. */
#include "core/element.h"
#include "kernels/context.h"
#include "kernels/gemm.h"
#include "kernels/gemm_internal.h"
#include "kernels/gemm_micro.h"
#include "kernels/inline.h"

#include <omp.h>
#include <stdlib.h>

enum {
    SUMS = 4096,           /* of a strip of columns of C */
    STRIP_BYTES = 1 << 18, /* of B: they stay in a cache while all rows of A read them */
    WIDE_BYTES = 1 << 23   /* of B made real */
};

bool mx_gemm_is_thin_i8(const mx_gemm *g)
{
    return g->m <= MX_THIN_ROWS && g->b.dtype == MX_I8 && g->b.trans && !g->a.trans && !g->rounded &&
           (g->block_b || g->a.dtype == MX_I8);
}

/* op(A) as the paths read it: i16 of i8, else f32. */
static void *new_rows(const mx_gemm *g)
{
    bool whole = g->a.dtype == MX_I8;
    char *rows = mx_gemm_scratch(g->m * g->k * 4);
    for (int64_t i = 0; rows && i < g->m; i++) {
        const char *from = (const char *)g->a.data + (size_t)(i * g->a.stride) * mx_dtype_bytes(g->a.dtype);
        for (int64_t p = 0; whole && p < g->k; p++)
            ((int16_t *)(void *)rows)[i * g->k + p] = ((const int8_t *)from)[p];
        for (int64_t p = 0; !whole && p < g->k; p++)
            ((float *)(void *)rows)[i * g->k + p] = mx_get_float(from, p, g->a.dtype);
    }
    return rows;
}

/* The sums of row i of A and n columns of C from `column` on, times their scales. */
static void row_of_strip(const mx_gemm *g, const void *rows, int64_t i, int64_t column, int64_t n, float *sums)
{
    const mx_thin_i8_paths *path = mx_kernels_current()->thin_i8;
    const int8_t *b = (const int8_t *)g->b.data + column * g->b.stride;
    float scale = g->scale_a.value ? g->scale_a.value[i * g->scale_a.step] : 1.0f;
    if (g->block_b) {
        path->blocks((const float *)rows + i * g->k, b, g->b.stride, g->block_b + column * (g->k / MX_BLOCK), g->k, n,
                     sums);
        for (int64_t j = 0; j < n; j++)
            sums[j] *= scale;
        return;
    }
    int32_t whole[SUMS];
    path->whole((const int16_t *)rows + i * g->k, b, g->b.stride, g->k, n, whole);
    for (int64_t j = 0; j < n; j++) {
        float other = g->scale_b.value ? g->scale_b.value[(column + j) * g->scale_b.step] : 1.0f;
        sums[j] = (float)whole[j] * scale * other;
    }
}

mx_status mx_gemm_thin_i8(const mx_gemm *g, int threads)
{
    const void *rows = new_rows(g);
    if (!rows)
        return mx_fail(MX_ERR_MEMORY, "matrix product: no memory for %lld bytes of rows", (long long)(g->m * g->k * 4));
    int64_t share = mx_round_up(mx_ceil_div(g->n, threads), 4), cached = STRIP_BYTES / g->k / 4 * 4;
    int64_t width = mx_min(mx_min(share, SUMS), g->m > 1 ? mx_max(cached, 4) : SUMS);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t column = 0; column < g->n; column += width) {
        float sums[SUMS];
        int64_t n = mx_min(width, g->n - column);
        for (int64_t i = 0; i < g->m; i++) {
            row_of_strip(g, rows, i, column, n, sums);
            char *c = (char *)g->c.data + (size_t)(i * g->c.stride + column) * mx_dtype_bytes(g->c.dtype);
            mx_kernels_current()->micro->store(1, n, sums, n, g->bias ? g->bias + column : NULL, c, g->c.dtype,
                                               g->c.stride, g->accumulate);
        }
    }
    return MX_OK;
}

mx_status mx_gemm_widened(const mx_gemm *g)
{
    size_t bytes = mx_dtype_bytes(g->a.dtype);
    int64_t width = mx_min(g->n, mx_max(WIDE_BYTES / (g->k * (int64_t)bytes), 64)), blocks = g->k / MX_BLOCK;
    void *wide = malloc((size_t)(width * g->k) * bytes);
    if (!wide)
        return mx_fail(MX_ERR_MEMORY, "matrix product: no memory for %lld values", (long long)(width * g->k));
    mx_status status = MX_OK;
    for (int64_t column = 0; status == MX_OK && column < g->n; column += width) {
        mx_gemm part = *g;
        part.n = mx_min(width, g->n - column);
        part.b = (mx_matrix){wide, g->a.dtype, g->k, true};
        part.c.data = (char *)g->c.data + (size_t)column * mx_dtype_bytes(g->c.dtype);
        part.bias = g->bias ? g->bias + column : NULL;
        part.block_b = NULL;
#pragma omp parallel for if (!omp_in_parallel())
        for (int64_t j = 0; j < part.n; j++) {
            const int8_t *code = (const int8_t *)g->b.data + (column + j) * g->b.stride;
            for (int64_t p = 0; p < g->k; p++)
                mx_set_float(wide, j * g->k + p, (float)code[p] * g->block_b[(column + j) * blocks + p / MX_BLOCK],
                             g->a.dtype);
        }
        status = mx_gemm_run(&part);
    }
    free(wide);
    return status;
}
