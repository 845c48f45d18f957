/* What the files of the matrix product offer each other; callers use gemm.h and gemm_micro.h. */
#ifndef MX_KERNELS_GEMM_INTERNAL_H
#define MX_KERNELS_GEMM_INTERNAL_H

#include "kernels/gemm.h"
#include "kernels/gemm_micro.h"

/* One table per path and arithmetic. */
extern const mx_micro mx_micro_bf16_portable, mx_micro_f32_portable;
extern const mx_micro mx_micro_bf16_avx2, mx_micro_f32_avx2;
extern const mx_micro mx_micro_bf16_avx512, mx_micro_f32_avx512;
extern const mx_micro mx_micro_bf16_avx512_bf16; /* its f32 products are those of avx512 */

/* The product by packing and micro-kernels `u`, m, n and k at least 1, on up to `threads` threads. */
mx_status mx_gemm_packed(const mx_gemm *g, const mx_micro *u, int threads);

/* `bytes` of scratch of the calling thread, aligned to 64 bytes and valid until its next call; NULL when there is none.
 * It grows as needed, is kept between calls and freed at exit. */
void *mx_gemm_scratch(int64_t bytes);

#endif
