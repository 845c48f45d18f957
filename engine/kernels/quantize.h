/* Quantizing: reals to codes of one byte and scales, so that code x scale is near the real.
 *
 * Each step is one f32 operation on every path, so all paths give the same bits: the real is multiplied by its factors,
 * then by 1 / scale, limited to the range of the codes, and rounded to the nearest code, ties to even. The scale is the
 * largest magnitude times 1 / bound. So JAX's compiler computes both divisions of Qwix's rules. */
#ifndef MX_KERNELS_QUANTIZE_H
#define MX_KERNELS_QUANTIZE_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mx_quantize_by { MX_BY_ROW, MX_BY_COLUMN, MX_BY_TENSOR } mx_quantize_by;

typedef struct mx_quantize {
    int64_t rows, columns;
    const void *x;
    mx_dtype dtype; /* of x: f32 or bf16 */
    void *codes;
    mx_dtype code; /* mx_dtype_is_code */
    mx_quantize_by by;
    float *scale; /* of the rows, the columns or (one) the tensor */
    bool given;   /* the scales, of the tensor or its columns, are inputs; else largest magnitude x 1 / bound */
    const float *row_factor, *column_factor; /* x is multiplied by these first; NULL: 1 */
    float *largest;                          /* raised to the largest magnitude of x, if that is more; NULL: not */
    bool stochastic;                         /* round up with the probability that keeps the mean */
    uint64_t seed;
} mx_quantize;

/* The scale is 1 below the square root of the smallest normal f32, as Qwix has it. A NaN in x gives a
 * scale of NaN. With a given scale a NaN becomes the code NaN, or 0 as i8. */
void mx_quantize_run(const mx_quantize *q);

/* What each path provides, for at most MX_QUANTIZE_BLOCK neighbours of a row. Magnitudes are bits of f32 without the
 * sign: they order as the numbers do, and a NaN is the largest. */
enum { MX_QUANTIZE_BLOCK = 1024 };
typedef struct mx_quantize_paths {
    void (*load)(const void *x, mx_dtype dtype, int64_t n, float row_factor, const float *column_factor, float *values);
    int32_t (*largest)(const float *values, int64_t n, int32_t largest);
    void (*largest_each)(const float *values, int64_t n, int32_t *largest);
    void (*divide)(float *values, int64_t n, float scale, const float *scale_each); /* scale_each NULL: all by scale */
    /* Moves values to a neighbour in the grid of the codes; `number` is that of the first in the tensor. */
    void (*scatter)(float *values, int64_t n, mx_dtype code, uint64_t seed, int64_t number);
    void (*round)(const float *values, int64_t n, mx_dtype code, void *codes);
} mx_quantize_paths;

#endif
