/* The packed micro-kernels under mx_gemm_run, one set per path.
 *
 * Packing cuts an operand into panels of mr rows of A (nr columns of B) and lays each panel out in the order in which
 * the kernel reads it. The unit is a word of 32 bits: one f32 that is a bf16, or two bf16 neighbours in k, the one of
 * even p in the lower half, or two i16, or four i8; so `k_group` (1, 2 or 4) elements of k share a word.
 *
 *     words of k           K = (k + k_group - 1) / k_group + k_extra
 *     word of op(A)[i, p]  (i / mr) * mr * K + (p / k_group) * mr + i % mr
 *     word of op(B)[p, j]  (j / nr) * nr * K + (p / k_group) * nr + j % nr
 *
 * Tiles (AMX) take `k_unit` = 16 words of k at a time, to which K is rounded up, and 16 items, rows of A or columns of
 * B. A panel is a row of blocks, one for each 16 words of k; a block is its tiles of 16 lines of 16 words in turn, and
 * a line is an item of A or a word of B.
 *
 * Some kernels need another word of k at the end of each panel (`k_extra`), which packing writes as they want it.
 *
 * The last panel, the last word and the last unit are filled up with zeros; packing writes nothing beyond them. Nothing
 * here allocates, fails or starts threads; buffers are the caller's and aligned to 64 bytes. */
#ifndef MX_KERNELS_GEMM_MICRO_H
#define MX_KERNELS_GEMM_MICRO_H

#include "kernels/gemm.h"

#include <stdbool.h>
#include <stdint.h>

/* The largest register block of any path: room for a tile on the stack. */
enum { MX_MICRO_MAX_TILE = 32 * 32 };

/* Packs `length` rows of op(A) or columns of op(B), `k` elements each. The stored matrix is row-major, of `dtype` (f32
 * or bf16; of the kernels of i8 that), with `stride` elements from one of its rows to the next; `trans` as in
 * mx_matrix. */
typedef void mx_micro_pack(int64_t length, int64_t k, const void *src, mx_dtype dtype, int64_t stride, bool trans,
                           void *packed);

typedef void mx_micro_store(int64_t m, int64_t n, const float *tile, int64_t ld_tile, const float *bias, void *c,
                            mx_dtype dtype, int64_t ldc, bool accumulate);

/* Sums of codes (m, n), f32, or i32 if `whole`, and the scales of their rows and columns. */
typedef struct mx_code_sums {
    const float *tile;
    int64_t ld;
    bool whole, rounded; /* rounded: as of mx_gemm */
    mx_scale of_rows, of_columns;
} mx_code_sums;

/* Stores the sums times their scales as mx_micro_store stores a tile. */
typedef void mx_micro_store_codes(int64_t m, int64_t n, const mx_code_sums *sums, const float *bias, void *c,
                                  mx_dtype dtype, int64_t ldc, bool accumulate);

/* Memory that is needed soon: `rows` pieces of `bytes`, `step` bytes apart. */
typedef struct mx_ahead {
    const char *at;
    int64_t bytes, step, rows;
} mx_ahead;

typedef struct mx_micro {
    const char *instruction; /* the one that multiplies */
    int mr, nr, k_group, k_unit, k_extra;
    int k_words; /* words of k in a block that is packed at once */

    /* What a thread calls before its first and after its last kernel; NULL: nothing. */
    void (*begin)(void), (*end)(void);

    /* op(A) (m, k) and op(B) (k, n), rounded to bf16. Not trans: A is stored (m, k), B (k, n). trans: A is stored
     * (k, m), B (n, k). Those of `micro_f32` do not round. Its pack_b is NULL on paths that leave f32 products to
     * OpenBLAS; convolutions pack their B themselves. */
    mx_micro_pack *pack_a, *pack_b;

    /* One full tile of mr x nr of C, f32, row stride ldc, from one panel of each operand of `k_words` words of k, a
     * multiple of k_unit, 0 allowed: C = alpha A B, or C += alpha A B. The sum over k is taken in f32. Of i8, C is i32
     * and alpha 1. Meanwhile it may prefetch what `ahead` lists, up to one of no rows; NULL: nothing. */
    void (*kernel)(int64_t k_words, const void *a, const void *b, float alpha, float *c, int64_t ldc, bool accumulate,
                   const mx_ahead *ahead);

    /* The same for the first n columns of a tile, n <= nr, in less time where that is possible; what C has in the
     * others is undefined. NULL: there is only `kernel`. */
    void (*part)(int64_t n, int64_t k_words, const void *a, const void *b, float alpha, float *c, int64_t ldc,
                 bool accumulate, const mx_ahead *ahead);

    /* C (m, n) of `dtype` = tile (+ bias) or C += tile (+ bias), rounded once. bias: n values or NULL. */
    mx_micro_store *store;
    mx_micro_store_codes *store_codes;
} mx_micro;

/* At least n columns of a tile. */
static inline void mx_micro_multiply(const mx_micro *u, int64_t n, int64_t k_words, const void *a, const void *b,
                                     float alpha, float *c, int64_t ldc, bool accumulate, const mx_ahead *ahead)
{
    if (n < u->nr && u->part)
        u->part(n, k_words, a, b, alpha, c, ldc, accumulate, ahead);
    else
        u->kernel(k_words, a, b, alpha, c, ldc, accumulate, ahead);
}

#endif
