/* What the files of the matrix product offer each other; callers use gemm.h. */
#ifndef MX_KERNELS_GEMM_INTERNAL_H
#define MX_KERNELS_GEMM_INTERNAL_H

#include "kernels/gemm.h"
#include "kernels/gemm_micro.h"

extern const mx_micro mx_micro_portable, mx_micro_avx2, mx_micro_avx512, mx_micro_avx512_bf16, mx_micro_amx;
mx_micro_store mx_gemm_store_avx2, mx_gemm_store_avx512, mx_gemm_store_avx512_bf16;

/* The product by packing and micro-kernels, m, n and k at least 1, on up to `threads` threads. */
mx_status mx_gemm_packed(const mx_gemm *g, int threads);

/* The product for at most MX_THIN_ROWS rows, on any path but the portable; m, n and k at least 1. */
enum { MX_THIN_ROWS = 8 };
mx_status mx_gemm_thin(const mx_gemm *g, int threads);

/* Its parts, one set per path. op(A) arrives as f32 (m, k), rounded. `sums` (m, n) of the columns from `column` on are
 * written for whole vectors: ld_sums is a multiple of 16. */
typedef void mx_thin_round_part(const void *data, mx_dtype dtype, int64_t n, float *out);
typedef void mx_thin_columns_part(const mx_gemm *g, const float *a, int64_t column, int64_t n, float *sums,
                                  int64_t ld_sums);
typedef void mx_column_sums_part(int64_t rows, int64_t n, const void *x, mx_dtype dtype, int64_t stride, float *sums);
mx_thin_round_part mx_thin_round_avx2, mx_thin_round_avx512, mx_thin_round_avx512_bf16;
mx_thin_columns_part mx_thin_columns_avx2, mx_thin_columns_avx512, mx_thin_columns_avx512_bf16;
mx_column_sums_part mx_column_sums_portable, mx_column_sums_avx2, mx_column_sums_avx512, mx_column_sums_avx512_bf16;

/* `bytes` of scratch of the calling thread, aligned to 64 bytes and valid until its next call; NULL when there is none.
 * It grows as needed, is kept between calls and freed at exit. */
void *mx_gemm_scratch(int64_t bytes);

#endif
