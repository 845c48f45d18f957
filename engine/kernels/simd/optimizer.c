#include "kernels/optimizer.h"

#include "kernels/simd/simd.h"

#define MX_INLINE static inline __attribute__((always_inline))

MX_INLINE vf get(const void *p, bool half, int64_t i, int64_t lanes)
{
    if (half)
        return lanes == VL ? vf_load_bf16((const mx_bf16 *)p + i) : vf_load_bf16_part((const mx_bf16 *)p + i, lanes);
    return lanes == VL ? vf_load((const float *)p + i) : vf_load_part((const float *)p + i, lanes);
}

MX_INLINE void put(void *p, bool half, int64_t i, int64_t lanes, vf x)
{
    if (half && lanes == VL)
        vf_store_bf16((mx_bf16 *)p + i, x);
    else if (half)
        vf_store_bf16_part((mx_bf16 *)p + i, x, lanes);
    else if (lanes == VL)
        vf_store((float *)p + i, x);
    else
        vf_store_part((float *)p + i, x, lanes);
}

/* `a` is a copy of the caller's, so that stores cannot change it in the compiler's eyes. */
MX_INLINE void adamw_step(const mx_adamw *a, bool param_half, bool grad_half, int64_t i, int64_t lanes)
{
    vf p = get(a->param.data, param_half, i, lanes);
    vf g = vf_set1(a->grad_scale) * get(a->grad.data, grad_half, i, lanes);
    vf m = vf_set1(1.0f - a->beta1) * g, v = vf_set1(1.0f - a->beta2) * g * g;
    m = vf_fma(vf_set1(a->beta1), get(a->m, false, i, lanes), m);
    v = vf_fma(vf_set1(a->beta2), get(a->v, false, i, lanes), v);
    vf root = vf_sqrt(vf_fma(v, vf_set1(a->correct2), vf_set1(a->eps_root))) + vf_set1(a->eps);
    vf step = vf_fma(vf_set1(a->weight_decay), p, m * vf_set1(a->correct1) / root);
    p = vf_fma(vf_set1(-a->lr), step, p);
    put(a->m, false, i, lanes, m);
    put(a->v, false, i, lanes, v);
    put(a->param.data, param_half, i, lanes, p);
    if (a->copy)
        put(a->copy, true, i, lanes, p);
}

MX_INLINE void adamw_as(const mx_adamw *given, bool param_half, bool grad_half, int64_t first, int64_t last)
{
    const mx_adamw a = *given;
    int64_t i = first;
    for (; i + VL <= last; i += VL)
        adamw_step(&a, param_half, grad_half, i, VL);
    if (i < last)
        adamw_step(&a, param_half, grad_half, i, last - i);
}

static void adamw(const mx_adamw *a, int64_t first, int64_t last)
{
    bool param_half = a->param.dtype == MX_BF16, grad_half = a->grad.dtype == MX_BF16;
    if (param_half && grad_half)
        adamw_as(a, true, true, first, last);
    else if (param_half)
        adamw_as(a, true, false, first, last);
    else if (grad_half)
        adamw_as(a, false, true, first, last);
    else
        adamw_as(a, false, false, first, last);
}

MX_INLINE void sgd_step(const mx_sgd *s, bool param_half, bool grad_half, int64_t i, int64_t lanes)
{
    vf p = get(s->param.data, param_half, i, lanes), momentum = vf_set1(s->momentum);
    vf g = vf_set1(s->grad_scale) * get(s->grad.data, grad_half, i, lanes);
    g = vf_fma(vf_set1(s->weight_decay), p, g);
    if (s->state) {
        vf u = vf_fma(momentum, get(s->state, false, i, lanes), g);
        put(s->state, false, i, lanes, u);
        g = s->nesterov ? vf_fma(momentum, u, g) : u;
    }
    put(s->param.data, param_half, i, lanes, vf_fma(vf_set1(-s->lr), g, p));
}

MX_INLINE void sgd_as(const mx_sgd *given, bool param_half, bool grad_half, int64_t first, int64_t last)
{
    const mx_sgd s = *given;
    int64_t i = first;
    for (; i + VL <= last; i += VL)
        sgd_step(&s, param_half, grad_half, i, VL);
    if (i < last)
        sgd_step(&s, param_half, grad_half, i, last - i);
}

static void sgd(const mx_sgd *s, int64_t first, int64_t last)
{
    bool param_half = s->param.dtype == MX_BF16, grad_half = s->grad.dtype == MX_BF16;
    if (param_half && grad_half)
        sgd_as(s, true, true, first, last);
    else if (param_half)
        sgd_as(s, true, false, first, last);
    else if (grad_half)
        sgd_as(s, false, true, first, last);
    else
        sgd_as(s, false, false, first, last);
}

const mx_optimizer_paths MX_SIMD_NAME(mx_optimizer) = {.adamw = adamw, .sgd = sgd};
