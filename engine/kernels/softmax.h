/* Softmax and log-softmax along a dimension, and their gradients. Sums are f32, whatever the dtype; the largest value
 * is taken off first, so nothing overflows. A row of only -inf gives NaN, as does one that holds NaN. */
#ifndef MX_KERNELS_SOFTMAX_H
#define MX_KERNELS_SOFTMAX_H

#include "core/dtype.h"
#include "core/status.h"

typedef struct mx_softmax {
    int64_t rows, width;
    int64_t inner;  /* 1: each array is (rows, width); else it is (rows / inner, width, inner), with rows along width */
    mx_dtype dtype; /* of all, f32 or bf16 */
    bool log;       /* the logarithm of the softmax */
    const void *x;  /* forward: x to y */
    void *y;        /* backward: y (as forward made it) and dy to dx */
    const void *dy;
    void *dx;
} mx_softmax;

/* y may be x. MX_ERR_MEMORY without memory for 64 rows of f32 for each thread, if inner is not 1. */
mx_status mx_softmax_forward(const mx_softmax *s);

/* softmax: dx = y (dy - sum of y dy); log: dx = dy - e^y sum of dy. dx may be dy. Memory: as forward,
 * twice. */
mx_status mx_softmax_backward(const mx_softmax *s);

/* Rows that are done together where they are columns. */
enum { MX_SOFTMAX_COLUMNS = 64 };

/* The loops for one instruction set, on one thread. stream: write past the caches; what is written together starts at
 * cache lines. */
typedef struct mx_softmax_paths {
    /* Rows (inner is 1) `first` to before `last`. */
    void (*forward)(const mx_softmax *s, int64_t first, int64_t last, bool stream);
    void (*backward)(const mx_softmax *s, int64_t first, int64_t last, bool stream);
    /* The n <= MX_SOFTMAX_COLUMNS columns from `at`, the place of the first element in each array, on. scratch:
     * (width, MX_SOFTMAX_COLUMNS), backward two of them, at a cache line. */
    void (*forward_columns)(const mx_softmax *s, int64_t at, int64_t n, float *scratch, bool stream);
    void (*backward_columns)(const mx_softmax *s, int64_t at, int64_t n, float *scratch, bool stream);
} mx_softmax_paths;

#endif
