/* Softmax and log-softmax along a dimension, and their gradients. Sums are f32, whatever the dtype; the largest value
 * is taken off first, so nothing overflows. A row of only -inf gives NaN, as does one that holds NaN. */
#ifndef MX_KERNELS_SOFTMAX_H
#define MX_KERNELS_SOFTMAX_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdint.h>

typedef struct mx_softmax {
    int64_t rows, width;
    int64_t inner;  /* 1: each array is (rows, width); else it is (rows / inner, width, inner), with rows along width */
    mx_dtype dtype; /* of all, f32 or bf16 */
    bool log;       /* the logarithm of the softmax */
    /* forward, without log: a factor for the results of each row, in the order of (rows / inner, inner); NULL: 1. Then
     * rows with an infinite value are NaN there and 0 elsewhere, as the gradient of logsumexp. */
    const float *scale;
    const void *x; /* forward: x to y */
    void *y;       /* backward: y (as forward made it) and dy to dx */
    const void *dy;
    void *dx;
} mx_softmax;

/* y may be x. MX_ERR_MEMORY when scratch for columns cannot be had. */
mx_status mx_softmax_forward(const mx_softmax *s);

/* softmax: dx = y (dy - sum of y dy); log: dx = dy - e^y sum of dy. dx may be dy. MX_ERR_MEMORY
 * as above. */
mx_status mx_softmax_backward(const mx_softmax *s);

/* The loops for one instruction set, on one thread. stream: write past the caches; runs of columns then start at
 * cache lines. */
typedef struct mx_softmax_paths {
    /* Rows (inner is 1) `first` to before `last`. */
    void (*forward)(const mx_softmax *s, int64_t first, int64_t last, bool stream);
    void (*backward)(const mx_softmax *s, int64_t first, int64_t last, bool stream);
    /* n columns from `at`, the place of the first element in each array, on: y = e^(x - center) factor, with log
     * x - center - factor; and dx, by the sums of the gradient's terms. */
    void (*forward_columns)(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                            bool stream);
    void (*backward_columns)(const mx_softmax *s, int64_t at, int64_t n, const float *sum, bool stream);
    /* sum[c] += the terms, y dy or with log dy, of the first `height` elements of n columns from `at` on. The sums are
     * in an order of the path's own. */
    void (*column_terms)(const mx_softmax *s, int64_t at, int64_t height, int64_t n, float *sum);
} mx_softmax_paths;

#endif
