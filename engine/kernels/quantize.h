/* Quantizing: reals to codes of one byte and scales, so that code x scale is near the real.
 *
 * Each step is one f32 operation on every path, so all paths give the same bits: the real is multiplied by its factors,
 * then by 1 / scale, limited to the range of the codes, and rounded to the nearest code, ties to even. The scale is the
 * largest magnitude times 1 / bound. So JAX's compiler computes both divisions of Qwix's rules.
 *
 * The scale of a block is the least power of two that is not below that: MXFP8's rule. So bf16 holds code x scale. */
#ifndef MX_KERNELS_QUANTIZE_H
#define MX_KERNELS_QUANTIZE_H

#include "core/dtype.h"
#include "kernels/gemm.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mx_quantize_by {
    MX_BY_ROW,
    MX_BY_COLUMN,
    MX_BY_TENSOR,
    MX_BY_ROW_BLOCK,   /* MX_BLOCK neighbours of a row */
    MX_BY_COLUMN_BLOCK /* MX_BLOCK neighbours of a column */
} mx_quantize_by;

typedef struct mx_quantize {
    int64_t rows, columns;
    const void *x;
    mx_dtype dtype; /* of x: f32 or bf16 */
    bool rounded;   /* x of f32 is rounded to bf16 first */
    void *codes;
    mx_dtype code; /* mx_dtype_is_code */
    mx_quantize_by by;
    float *scale; /* of the rows, the columns, the tensor (one), or (rows, columns / MX_BLOCK) or (rows / MX_BLOCK,
                     columns): these sizes are multiples of MX_BLOCK */
    bool given;   /* the scales, of the tensor or its columns, are inputs; else largest magnitude x 1 / bound */
    const float *row_factor, *column_factor; /* x is multiplied by these first; NULL: 1 */
    float *largest;                          /* raised to the largest magnitude of x, if that is more; NULL: not */
    bool stochastic;                         /* round up with the probability that keeps the mean */
    uint64_t seed;
} mx_quantize;

/* The scale is 1 below the square root of the smallest normal f32, as Qwix has it. A NaN in x gives a
 * scale of NaN. With a given scale a NaN becomes the code NaN, or 0 as i8. */
void mx_quantize_run(const mx_quantize *q);

/* So many columns are walked down fastest: a cache line of codes a row. Numbers for each column stay in registers. */
enum { MX_QUANTIZE_STRIP = 64 };

/* Part of a tensor, and what its values are multiplied by in turn. */
typedef struct mx_quantize_part {
    const void *x;
    mx_dtype dtype; /* f32 or bf16 */
    bool rounded;   /* f32 is rounded to bf16 first */
    int64_t rows, n, stride;
    const float *row, *column; /* rows and n values; NULL: 1 */
    float inverse;
} mx_quantize_part;

/* What each path provides. Magnitudes are bits of f32 without the sign: they order as the numbers do, and a NaN is the
 * largest. They are found before the multiplication by `inverse`. */
typedef struct mx_quantize_paths {
    int32_t (*largest)(const mx_quantize_part *p);
    void (*largest_each)(const mx_quantize_part *p, int32_t *largest);   /* of each column, raised */
    void (*largest_blocks)(const mx_quantize_part *p, int32_t *largest); /* of MX_BLOCK neighbours of one row */
    void (*multiply)(const mx_quantize_part *p, float *values);          /* of one row */
    /* Moves values to a neighbour in the grid of the codes; `number` is that of the first in the tensor. */
    void (*scatter)(float *values, int64_t n, mx_dtype code, uint64_t seed, int64_t number);
    void (*round)(const mx_quantize_part *p, mx_dtype code, uint8_t *codes); /* rows `stride` apart, too */
    /* Codes (rows, n), `stride` apart, as bf16, which holds each of them: dense. */
    void (*widen)(int64_t rows, int64_t n, const uint8_t *codes, int64_t stride, mx_dtype code, mx_bf16 *values);
    /* Value i times scale[i / run], `run` being 1 or MX_BLOCK. Scales are powers of two. */
    void (*scale)(mx_bf16 *values, int64_t n, const float *scale, int run);
} mx_quantize_paths;

#endif
