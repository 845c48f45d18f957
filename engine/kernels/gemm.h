/* Matrix products: C = op(A) op(B) (+ bias) or C += op(A) op(B), row-major.
 *
 * Where an operand is bf16, both are rounded to bf16 as they are packed (so f32 master weights need no bf16 copy),
 * products are summed in f32, and C is rounded once. OpenBLAS multiplies f64 x f64. It also multiplies f32 x f32 on the
 * paths portable and avx2, and on the others where m x n x k is below 64^3.
 *
 * Codes (i8 and 8-bit floats) become bf16 as they are packed, which holds each of them. i8 x i8 is summed in i32
 * instead, without any rounding: k is at most 131,071. The sums are then multiplied by the scales of both operands.
 *
 * MX_BLOCK neighbours in k may share a scale (`block_a`, `block_b`). Those of 8-bit floats are powers of two, so bf16
 * holds code x scale. Those of i8 are any f32, for B alone; A is f32 or bf16: up to MX_THIN_ROWS rows multiply codes
 * and scales in f32; more rows multiply what B stands for, rounded to A's dtype. */
#ifndef MX_KERNELS_GEMM_H
#define MX_KERNELS_GEMM_H

#include "core/cpu.h"
#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    MX_BLOCK = 32,   /* neighbours in k that share a scale, as in MXFP8 and GGUF's Q8_0 */
    MX_THIN_ROWS = 8 /* of A: with so few, B is read in place */
};

typedef struct mx_matrix {
    void *data;
    mx_dtype dtype; /* f32 or bf16; f64 for all three or none; of A and B also codes */
    int64_t stride; /* elements from one row to the next */
    bool trans;     /* use the transpose of what is stored; false for C */
} mx_matrix;

/* Factors of the rows or columns of C: value[i * step]. */
typedef struct mx_scale {
    const float *value; /* NULL: 1 */
    int step;           /* 0: one for all */
} mx_scale;

typedef struct mx_gemm {
    int64_t m, n, k; /* of the product: op(A) is m x k, op(B) is k x n, C is m x n. Any may be 0. */
    mx_matrix a, b, c;
    const float *bias;         /* n values added to each row; NULL: none, as always in f64 */
    float alpha;               /* C = alpha op(A) op(B) + ... */
    bool accumulate;           /* add to what C holds */
    bool rounded;              /* of codes: C is f32 and gets what bf16 would hold; neither bias nor accumulate */
    mx_scale scale_a, scale_b; /* of codes: of the rows of op(A) and the columns of op(B); then alpha is 1 */
    /* Scales of blocks, NULL: none. Dense, in the shape in which the operand is stored but for k / MX_BLOCK in place of
     * k. Of i8, B is transposed and A is not. mx_gemm_many takes none. */
    const float *block_a, *block_b;
} mx_gemm;

/* Uses all OpenMP threads; called from inside a parallel region it uses the calling thread alone. C overlaps no
 * operand. MX_ERR_MEMORY when the packing buffers cannot be had. */
mx_status mx_gemm_run(const mx_gemm *g);

/* `batch` independent products; operand x of product i starts x_step elements after that of product i - 1 (0: shared).
 * Threads split the batch when it is at least as long as there are threads, the products otherwise. */
mx_status mx_gemm_batched(const mx_gemm *first, int64_t batch, int64_t a_step, int64_t b_step, int64_t c_step);

/* `n` independent products of any sizes: those of the groups of a grouped product. Each has the bits of mx_gemm_run.
 * Threads share small products out and split large ones. MX_ERR_MEMORY as above; what C holds is then undefined. */
mx_status mx_gemm_many(const mx_gemm *products, int64_t n);

/* sums[j] = the sum over rows of x (rows, n), dense, f32 or bf16: the gradient of a bias. Added in f32, in blocks of
 * rows, in the same order on any number of threads. */
void mx_column_sum(int64_t rows, int64_t n, const void *x, mx_dtype dtype, float *sums);

/* Block sizes of the packed product, in elements (gemm_packed.c says which loop is which). They follow from the cache
 * sizes; for tuning, MXLUA_GEMM_BLOCKS=mc,nc,kc in the environment or mx_gemm_set_blocks (NULL: as at the start) sets
 * them for all paths. Only kc touches results: it says where a sum over k is cut. */
typedef struct mx_gemm_blocks {
    int64_t mc, nc, kc;
} mx_gemm_blocks;

mx_gemm_blocks mx_gemm_blocks_of(mx_isa isa);
void mx_gemm_set_blocks(const mx_gemm_blocks *blocks);

/* "VDPBF16PS, 512 bits", "OpenBLAS" and so on: what multiplies two operands of `dtype`, f32, bf16 or i8, on the path in
 * use. */
const char *mx_gemm_instruction(mx_dtype dtype);

/* The sums computed by three plain loops in f32, operands rounded as above: what the fast path is tested against. */
void mx_gemm_reference(const mx_gemm *g);

#endif
