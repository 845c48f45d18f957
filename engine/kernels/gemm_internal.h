/* What the files of the matrix product offer each other; callers use gemm.h. */
#ifndef MX_KERNELS_GEMM_INTERNAL_H
#define MX_KERNELS_GEMM_INTERNAL_H

#include "kernels/gemm.h"
#include "kernels/gemm_micro.h"

/* The stores of each vector path; those of tiles are the last. */
mx_micro_store mx_gemm_store_avx2, mx_gemm_store_avx512, mx_gemm_store_avx512_bf16;
mx_micro_store_codes mx_gemm_store_codes_avx2, mx_gemm_store_codes_avx512, mx_gemm_store_codes_avx512_bf16;

/* The micro-kernels of a product on the path in use. */
const mx_micro *mx_gemm_micro(const mx_gemm *g);

/* The product by packing and micro-kernels, m, n and k at least 1, on up to `threads` threads. */
mx_status mx_gemm_packed(const mx_gemm *g, int threads);

/* The product for at most MX_THIN_ROWS rows, on any path but the portable; m, n and k at least 1. */
mx_status mx_gemm_thin(const mx_gemm *g, int threads);

/* Its parts. round() makes n values of op(A) f32, rounded to bf16. columns() takes op(A) (m, k) so and writes `sums`
 * (m, n) of the columns from `column` on, for whole vectors: ld_sums is a multiple of 16. */
typedef struct mx_thin_paths {
    void (*round)(const void *data, mx_dtype dtype, int64_t n, float *out);
    void (*columns)(const mx_gemm *g, const float *a, int64_t column, int64_t n, float *sums, int64_t ld_sums);
} mx_thin_paths;

/* The same for a B of i8 that is transposed, on any path: whether it is one, and the product. */
bool mx_gemm_is_thin_i8(const mx_gemm *g);
mx_status mx_gemm_thin_i8(const mx_gemm *g, int threads);

/* Its parts: the sums of one row a (k) and n rows of B, `stride` apart. whole() multiplies i8. blocks() multiplies
 * reals, k a multiple of MX_BLOCK, with the scales (n, k / MX_BLOCK). All vector paths give the same bits. */
typedef struct mx_thin_i8_paths {
    void (*whole)(const int16_t *a, const int8_t *b, int64_t stride, int64_t k, int64_t n, int32_t *sums);
    void (*blocks)(const float *a, const int8_t *b, int64_t stride, const float *scale, int64_t k, int64_t n,
                   float *sums);
} mx_thin_i8_paths;

/* The product with blocks of i8, for any number of rows: they become real first. */
mx_status mx_gemm_widened(const mx_gemm *g);

typedef struct mx_column_paths {
    /* sums[j] += the sum over i < rows of x[i * stride + j], j < n. */
    void (*sums)(int64_t rows, int64_t n, const void *x, mx_dtype dtype, int64_t stride, float *sums);
} mx_column_paths;

/* `bytes` of scratch of the calling thread, aligned to 64 bytes and valid until its next call; NULL when there is none.
 * It grows as needed, is kept between calls and freed at exit. */
void *mx_gemm_scratch(int64_t bytes);

#endif
