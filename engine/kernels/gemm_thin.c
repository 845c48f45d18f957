/* Products with few rows, and sums of columns: work is split by columns, so no sum is cut. */
#include "core/element.h"
#include "kernels/gemm_internal.h"

#include "kernels/context.h"
#include "kernels/elementwise.h"

#include <omp.h>
#include <string.h>

enum { SUMS = 16384 };    /* f32 sums of a strip of columns: as wide as the caches allow, for rows are read in place */
enum { STRIP = 256 };     /* columns of a sum of columns that one thread does at a time */
enum { SUM_BLOCK = 128 }; /* rows added up before they join the sum of all: keeps rounding errors from growing */

static void round_a(const mx_gemm *g, float *a)
{
    const mx_thin_paths *path = mx_kernels_current()->thin;
    size_t bytes = mx_dtype_bytes(g->a.dtype);
    for (int64_t i = 0; i < g->m; i++) {
        const char *row = (const char *)g->a.data + (size_t)i * (g->a.trans ? 1 : (size_t)g->a.stride) * bytes;
        if (!g->a.trans) {
            path->round(row, g->a.dtype, g->k, a + i * g->k);
            continue;
        }
        for (int64_t p = 0; p < g->k; p++) {
            const char *from = row + (size_t)(p * g->a.stride) * bytes;
            a[i * g->k + p] = mx_from_bf16(mx_to_bf16(mx_get_float(from, 0, g->a.dtype)));
        }
    }
}

static void strip(const mx_gemm *g, const mx_micro *u, const float *a, int64_t column, int64_t width)
{
    _Alignas(64) float sums[SUMS];
    int64_t n = g->n - column < width ? g->n - column : width;
    mx_kernels_current()->thin->columns(g, a, column, n, sums, width);
    if (g->alpha != 1.0f)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < n; j++)
                sums[i * width + j] *= g->alpha;
    u->store(g->m, n, sums, width, g->bias ? g->bias + column : NULL,
             (char *)g->c.data + (size_t)column * mx_dtype_bytes(g->c.dtype), g->c.dtype, g->c.stride, g->accumulate);
}

mx_status mx_gemm_thin(const mx_gemm *g, int threads)
{
    const mx_micro *u = mx_kernels_current()->micro;
    float *a = mx_gemm_scratch(g->m * g->k * 4);
    if (!a)
        return mx_fail(MX_ERR_MEMORY, "matrix product: no memory for %lld bytes of rounded rows",
                       (long long)(g->m * g->k * 4));
    round_a(g, a);
    int64_t most = SUMS / g->m / 16 * 16, share = ((g->n + threads - 1) / threads + 15) / 16 * 16;
    int64_t width = share < most ? share : most;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t column = 0; column < g->n; column += width)
        strip(g, u, a, column, width);
    return MX_OK;
}

void mx_column_sum(int64_t rows, int64_t n, const void *x, mx_dtype dtype, float *sums)
{
    const mx_column_paths *path = mx_kernels_current()->columns;
#pragma omp parallel for if (rows * n >= MX_PARALLEL_FROM && !omp_in_parallel()) schedule(static)
    for (int64_t column = 0; column < n; column += STRIP) {
        _Alignas(64) float total[STRIP] = {0}, block[STRIP];
        int64_t width = n - column < STRIP ? n - column : STRIP;
        for (int64_t row = 0; row < rows; row += SUM_BLOCK) {
            memset(block, 0, sizeof block);
            path->sums(rows - row < SUM_BLOCK ? rows - row : SUM_BLOCK, width,
                       (const char *)x + (size_t)(row * n + column) * mx_dtype_bytes(dtype), dtype, n, block);
            for (int64_t j = 0; j < width; j++)
                total[j] += block[j];
        }
        memcpy(sums + column, total, (size_t)width * sizeof *total);
    }
}
