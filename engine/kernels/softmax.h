/* Softmax and log-softmax over rows, and their gradients. Sums are f32, whatever the dtype; the largest value is taken
 * off first, so nothing overflows. A row of only -inf gives NaN, as does one that holds NaN. */
#ifndef MX_KERNELS_SOFTMAX_H
#define MX_KERNELS_SOFTMAX_H

#include "core/dtype.h"

typedef struct mx_softmax {
    int64_t rows, width;
    mx_dtype dtype; /* of all, f32 or bf16; each is (rows, width) */
    bool log;       /* the logarithm of the softmax */
    const void *x;  /* forward: x to y */
    void *y;        /* backward: y (as forward made it) and dy to dx */
    const void *dy;
    void *dx;
} mx_softmax;

/* y may be x. */
void mx_softmax_forward(const mx_softmax *s);

/* softmax: dx = y (dy - sum of y dy); log: dx = dy - e^y sum of dy. dx may be dy. */
void mx_softmax_backward(const mx_softmax *s);

/* The loops over rows `first` to before `last`, for one instruction set. stream: write past the caches; rows start at
 * cache lines. */
typedef struct mx_softmax_paths {
    void (*forward)(const mx_softmax *s, int64_t first, int64_t last, bool stream);
    void (*backward)(const mx_softmax *s, int64_t first, int64_t last, bool stream);
} mx_softmax_paths;

#endif
