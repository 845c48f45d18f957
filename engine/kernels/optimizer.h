/* Optimizer updates, in place, in one pass over parameter, gradient and state. */
#ifndef MX_KERNELS_OPTIMIZER_H
#define MX_KERNELS_OPTIMIZER_H

#include "kernels/elementwise.h"

/* How a bf16 param, and the bf16 v of AdamW, take their new values. To the nearest, ties to even; or, where
 * `stochastic`, to one of its two neighbours, with the probabilities that make their mean the exact value: an update
 * far smaller than the distance of two bf16 numbers is not lost, but made now and then. Which neighbour depends on
 * `key` and the number of the element in the whole parameter alone, so that it is the same however a parameter is cut,
 * on every path and on any number of threads. The array holds the elements from `first` on of a part of `width`
 * columns, of a whole of `stride` columns in which the part begins at element `origin`. A part that is not cut along
 * columns has width = stride. */
typedef struct mx_rounding {
    bool stochastic;
    uint64_t key;
    int64_t first, origin, width, stride;
} mx_rounding;

/* AdamW with decoupled decay and bias correction, as optax.adamw has it; all arithmetic in f32:
 *
 *   g = grad_scale grad        m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
 *   param -= lr ((m correct1) / (sqrt(v correct2 + eps_root) + eps) + weight_decay param)
 *
 * with correct1 = 1 / (1 - beta1^step), correct2 = 1 / (1 - beta2^step), step counted from 1. The update uses m and v
 * before they are rounded to bf16. A bf16 m is rounded to the nearest. A bf16 v is rounded as param: to the nearest it
 * could not fall with a beta2 above 1 - 2^-9, because v - beta2 v would be less than half the distance of two bf16
 * numbers. */
typedef struct mx_adamw {
    mx_array param, grad, m, v; /* n values each, f32 or bf16 */
    mx_bf16 *copy;              /* NULL, or receives the new param, rounded to the nearest */
    mx_rounding rounding;
    float lr, beta1, beta2, eps, eps_root, weight_decay, grad_scale;
    float correct1, correct2;
} mx_adamw;
void mx_adamw_run(const mx_adamw *a, int64_t n);

/* g = grad_scale grad + weight_decay param; u = momentum u + g; param -= lr (nesterov ? g + momentum u : u). Without
 * `state` there is no momentum: param -= lr g.
 *
 * With `lion` (Chen et al., 2023): g = grad_scale grad; c = momentum u + (1 - momentum) g; u = decay u + (1 - decay) g;
 * param -= lr (sign of c + weight_decay param). */
typedef struct mx_sgd {
    mx_array param, grad;
    float *state; /* u; NULL, but not with lion */
    mx_rounding rounding;
    float lr, momentum, decay, weight_decay, grad_scale;
    bool nesterov, lion;
} mx_sgd;
void mx_sgd_run(const mx_sgd *s, int64_t n);

/* Elements that are rounded by consecutive numbers: element i by mx_rng_hash(key0, key1, i + shift), of which param
 * takes the upper 16 bits and v the lower ones. */
typedef struct mx_rounding_run {
    uint32_t key0, key1, shift;
} mx_rounding_run;

/* The loops for one instruction set, on one thread: elements first to before last. Without `run` bf16 values are
 * rounded to the nearest; with one all paths give the same bits: each step is an IEEE f32 operation (fma where the
 * vector paths have it). */
typedef struct mx_optimizer_paths {
    void (*adamw)(const mx_adamw *a, const mx_rounding_run *run, int64_t first, int64_t last);
    void (*sgd)(const mx_sgd *s, const mx_rounding_run *run, int64_t first, int64_t last);
} mx_optimizer_paths;

#endif
