/* NVFP4: reals to codes of 4 bits with two levels of scales, as Transformer Engine's recipe NVFP4BlockScaling.
 *
 * A code is e2m1: a sign, two bits of exponent and one of mantissa, for 0, 0.5, 1, 1.5, 2, 3, 4 and 6. Runs of 16
 * neighbours along the dimension that a product sums share a block scale in e4m3; the tensor has one f32 scale. A real
 * is near code x block scale x scale:
 *
 *     encode      = 2688 / the largest magnitude of the tensor; 2688 = 6 x 448, the largest code times block scale
 *     block scale = e4m3(largest magnitude of the block x (encode / 6)), at most 448
 *     code        = e2m1(real x 1 / (block scale x (1 / encode))), at most 6, to nearest with ties to even
 *     scale       = the largest magnitude of the tensor / 2688
 *
 * Each step is one f32 operation on every path, so all paths and any number of threads give the same bits. Reals of f32
 * are rounded to bf16 first. Lines of codes are contiguous along the summed dimension, two codes a byte, the first in
 * the low bits; bf16 holds each code times its block scale. */
#ifndef MX_KERNELS_NVFP4_H
#define MX_KERNELS_NVFP4_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum { MX_FP4_RUN = 16 }; /* codes that share a block scale, and points of the Hadamard transform */

typedef struct mx_fp4_quantize {
    int64_t rows, columns; /* multiples of MX_FP4_RUN: the dimension of runs; with `square` both */
    const void *x;
    mx_dtype dtype; /* of x: bf16, or f32, which is rounded to bf16 first */
    bool square;    /* 16 x 16 share a block scale, so that x and its transpose have the same codes */
    bool trans; /* runs and lines along columns of x: codes (columns, rows / 2). Else along rows: (rows, columns / 2) */
    bool hadamard; /* with trans: the random Hadamard transform of each run first, whose values are rounded to bf16 */
    uint8_t *codes;
    uint8_t *scales; /* e4m3, one for each run of a line: those of a square are repeated */
    float *scale;    /* one */
    /* Round a real between two codes to either, so that the mean is the real. The choice for an element follows from
     * seed, stream, the number of its row and its column. */
    bool stochastic;
    uint64_t seed, stream;
    const int32_t *numbers; /* of the rows; NULL: counted from 0. `first` is added. */
    int64_t first;
} mx_fp4_quantize;

/* A NaN or an infinity in x makes the scale NaN or infinite. */
void mx_fp4_quantize_run(const mx_fp4_quantize *q);

/* Lines of codes of `length` elements as bf16: each code times its block scale, which bf16 holds. */
void mx_fp4_widen(int64_t lines, int64_t length, const uint8_t *codes, const uint8_t *scales, mx_bf16 *values);

/* The part of a tensor that one call of a path's kernel takes: at most 16 rows, all 16 with `trans`. */
enum { MX_FP4_COLUMNS = 128 };
typedef struct mx_fp4_part {
    const void *x;
    mx_dtype dtype;
    int64_t rows, n, stride; /* n columns, at most MX_FP4_COLUMNS */
    bool square, trans, hadamard;
    float encode;
    uint8_t *codes, *scales;
    int64_t code_stride, scale_stride; /* bytes from one line to the next */
    bool stochastic;
    uint32_t keys[MX_FP4_RUN][2]; /* of the rows */
    int64_t column;               /* the number of the first */
} mx_fp4_part;

/* What each path provides. A magnitude is the bits of an f32 without the sign, which order as the numbers do. */
typedef struct mx_fp4_paths {
    int32_t (*largest)(const mx_fp4_part *p); /* after the transform */
    void (*quantize)(const mx_fp4_part *p);
    void (*widen)(int64_t length, const uint8_t *codes, const uint8_t *scales, mx_bf16 *values); /* one line */
} mx_fp4_paths;

#endif
