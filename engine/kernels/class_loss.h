/* Cross-entropy of rows of logits x (rows, classes) and one target class per row. With lse = log sum_c e^x_c, and class
 * weights w, which are 1 where none are given:
 *
 *   loss = (1 - smoothing) w_t (lse - x_t) + smoothing / classes sum_c w_c (lse - x_c)
 *
 * A row whose target is `ignore` has loss 0 and no gradient. Sums are f32, or f64 where x is f64. */
#ifndef MX_KERNELS_CLASS_LOSS_H
#define MX_KERNELS_CLASS_LOSS_H

#include "core/dtype.h"

#include <stdint.h>

typedef struct mx_class_loss {
    int64_t rows, classes;
    mx_dtype dtype; /* of x and dx: f32, bf16 or f64 */
    const void *x;
    const int32_t *targets; /* in [0, classes), or `ignore` */
    const float *weight;    /* (classes) or NULL */
    int64_t ignore;
    double smoothing;
    void *loss, *lse; /* (rows) of f32, or f64 for f64; backward reads lse */

    /* Backward. */
    const void *dloss; /* one value for all rows, or (rows): f32, or f64 for f64 */
    int dloss_step;
    double scale; /* of dloss */
    void *dx;
} mx_class_loss;

/* The first row whose target is neither a class nor `ignore`, or -1. */
int64_t mx_class_loss_find_bad(const mx_class_loss *c);

/* Writes loss and lse. */
void mx_class_loss_forward(const mx_class_loss *c);

/* Writes dx. */
void mx_class_loss_backward(const mx_class_loss *c);

/* The weights of the targets of all rows that are not ignored, added up. */
double mx_class_loss_total(const mx_class_loss *c);

/* For one instruction set, one row of f32 or bf16. */
typedef struct mx_class_paths {
    /* Returns lse. *weighted = sum of weight x (weight NULL: of x), unless it is NULL. */
    float (*lse)(const void *x, mx_dtype dtype, int64_t n, const float *weight, float *weighted);
    /* dx = factor e^(x - lse) - spread weight (weight NULL: - spread). stream: write past the caches. */
    void (*grad)(const void *x, mx_dtype dtype, int64_t n, float lse, float factor, const float *weight, float spread,
                 void *dx, bool stream);
} mx_class_paths;

#endif
