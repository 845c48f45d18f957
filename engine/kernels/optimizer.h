/* Optimizer updates, in place, in one pass over parameter, gradient and state. */
#ifndef MX_KERNELS_OPTIMIZER_H
#define MX_KERNELS_OPTIMIZER_H

#include "kernels/elementwise.h"

/* AdamW with decoupled decay and bias correction, as optax.adamw has it; all arithmetic in f32:
 *
 *   g = grad_scale grad        m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
 *   param -= lr ((m correct1) / (sqrt(v correct2 + eps_root) + eps) + weight_decay param)
 *
 * with correct1 = 1 / (1 - beta1^step), correct2 = 1 / (1 - beta2^step), step counted from 1. */
typedef struct mx_adamw {
    mx_array param, grad; /* n values each, f32 or bf16 */
    float *m, *v;
    mx_bf16 *copy; /* NULL, or receives the new param, rounded */
    float lr, beta1, beta2, eps, eps_root, weight_decay, grad_scale;
    float correct1, correct2;
} mx_adamw;
void mx_adamw_run(const mx_adamw *a, int64_t n);

/* g = grad_scale grad + weight_decay param; u = momentum u + g; param -= lr (nesterov ? g + momentum u : u). Without
 * `state` there is no momentum: param -= lr g. */
typedef struct mx_sgd {
    mx_array param, grad;
    float *state; /* u; NULL */
    float lr, momentum, weight_decay, grad_scale;
    bool nesterov;
} mx_sgd;
void mx_sgd_run(const mx_sgd *s, int64_t n);

/* The loops for one instruction set, on one thread: elements first to before last. */
typedef struct mx_optimizer_paths {
    void (*adamw)(const mx_adamw *a, int64_t first, int64_t last);
    void (*sgd)(const mx_sgd *s, int64_t first, int64_t last);
} mx_optimizer_paths;
extern const mx_optimizer_paths mx_optimizer_portable, mx_optimizer_avx2, mx_optimizer_avx512, mx_optimizer_avx512_bf16;

#endif
