#include "kernels/context.h"

#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "kernels/simd/simd.h"

MX_INLINE vf get(const void *p, bool bf16, int64_t i, int64_t lanes)
{
    if (bf16)
        return lanes == VL ? vf_load_bf16((const mx_bf16 *)p + i) : vf_load_bf16_part((const mx_bf16 *)p + i, lanes);
    return lanes == VL ? vf_load((const float *)p + i) : vf_load_part((const float *)p + i, lanes);
}

MX_INLINE void put(void *p, bool bf16, int64_t i, int64_t lanes, vf x)
{
    if (bf16 && lanes == VL)
        vf_store_bf16((mx_bf16 *)p + i, x);
    else if (bf16)
        vf_store_bf16_part((mx_bf16 *)p + i, x, lanes);
    else if (lanes == VL)
        vf_store((float *)p + i, x);
    else
        vf_store_part((float *)p + i, x, lanes);
}

/* How param is stored. */
typedef enum kind { F32, NEAREST, STOCHASTIC } kind;

/* As chance and round_by of portable/optimizer.c, for elements i to i + VL. */
MX_INLINE vi chance(const mx_rounding_run *run, int64_t i)
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vi h = vi_add(vi_set1((int32_t)((uint32_t)i + run->shift + run->key0)), vi_load(lanes));
    h = vi_mullo(vi_xor(h, vi_shr(h, 16)), vi_set1(0x7feb352d));
    h = vi_add(vi_xor(h, vi_shr(h, 15)), vi_set1((int32_t)run->key1));
    h = vi_mullo(h, vi_set1((int32_t)0x846ca68bu));
    return vi_xor(h, vi_shr(h, 16));
}

MX_INLINE vf round_by(vi random, vf x)
{
    vi rounded = vi_and(vi_add(vf_bits(x), random), vi_set1((int32_t)0xffff0000u));
    return vf_select(vf_is_nan(x), x, vi_float(rounded));
}

/* `a` and `run` are copies of the caller's, so that stores cannot change them in the compiler's eyes. */
MX_INLINE void adamw_step(const mx_adamw *a, const mx_rounding_run *run, kind param, bool grad_bf16, bool m_bf16,
                          kind second, int64_t i, int64_t lanes)
{
    vf p = get(a->param.data, param != F32, i, lanes);
    vf g = vf_set1(a->grad_scale) * get(a->grad.data, grad_bf16, i, lanes);
    vf m = vf_set1(1.0f - a->beta1) * g, v = vf_set1(1.0f - a->beta2) * g * g;
    m = vf_fma(vf_set1(a->beta1), get(a->m.data, m_bf16, i, lanes), m);
    v = vf_fma(vf_set1(a->beta2), get(a->v.data, second != F32, i, lanes), v);
    vf root = vf_sqrt(vf_fma(v, vf_set1(a->correct2), vf_set1(a->eps_root))) + vf_set1(a->eps);
    vf step = vf_fma(vf_set1(a->weight_decay), p, m * vf_set1(a->correct1) / root);
    p = vf_fma(vf_set1(-a->lr), step, p);
    p = param == STOCHASTIC ? round_by(vi_shr(chance(run, i), 16), p) : p;
    v = second == STOCHASTIC ? round_by(vi_and(chance(run, i), vi_set1(0xffff)), v) : v;
    put(a->m.data, m_bf16, i, lanes, m);
    put(a->v.data, second != F32, i, lanes, v);
    put(a->param.data, param != F32, i, lanes, p);
    if (a->copy)
        put(a->copy, true, i, lanes, p);
}

MX_INLINE void adamw_loop(const mx_adamw *given, const mx_rounding_run *given_run, kind param, bool grad_bf16,
                          bool m_bf16, kind second, int64_t first, int64_t last)
{
    const mx_adamw a = *given;
    const mx_rounding_run run = given_run ? *given_run : (mx_rounding_run){0};
    int64_t i = first;
    for (; i + VL <= last; i += VL)
        adamw_step(&a, &run, param, grad_bf16, m_bf16, second, i, VL);
    if (i < last)
        adamw_step(&a, &run, param, grad_bf16, m_bf16, second, i, last - i);
}

static kind kind_of(mx_array a, const mx_rounding_run *run)
{
    return !mx_is_bf16(a.dtype) ? F32 : run ? STOCHASTIC : NEAREST;
}

/* The loop for f32 moments has no branches for their dtypes. */
MX_INLINE void adamw_as(const mx_adamw *a, const mx_rounding_run *run, kind param, bool grad_bf16, int64_t first,
                        int64_t last)
{
    bool m_bf16 = mx_is_bf16(a->m.dtype);
    kind second = kind_of(a->v, run);
    if (m_bf16 || second != F32)
        adamw_loop(a, run, param, grad_bf16, m_bf16, second, first, last);
    else
        adamw_loop(a, run, param, grad_bf16, false, F32, first, last);
}

static void adamw(const mx_adamw *a, const mx_rounding_run *run, int64_t first, int64_t last)
{
    kind param = kind_of(a->param, run);
    bool grad_bf16 = mx_is_bf16(a->grad.dtype);
    if (param == STOCHASTIC && grad_bf16)
        adamw_as(a, run, STOCHASTIC, true, first, last);
    else if (param == STOCHASTIC)
        adamw_as(a, run, STOCHASTIC, false, first, last);
    else if (param == NEAREST && grad_bf16)
        adamw_as(a, run, NEAREST, true, first, last);
    else if (param == NEAREST)
        adamw_as(a, run, NEAREST, false, first, last);
    else if (grad_bf16)
        adamw_as(a, run, F32, true, first, last);
    else
        adamw_as(a, run, F32, false, first, last);
}

/* The sign of what Lion goes by, from its old u, which becomes the new one. */
MX_INLINE vf lion_sign(const mx_sgd *s, vf g, int64_t i, int64_t lanes)
{
    vf u = get(s->state, false, i, lanes), zero = vf_set1(0), one = vf_set1(1);
    vf c = vf_fma(vf_set1(s->momentum), u, vf_set1(1.0f - s->momentum) * g);
    put(s->state, false, i, lanes, vf_fma(vf_set1(s->decay), u, vf_set1(1.0f - s->decay) * g));
    return vf_select(vf_gt(c, zero), one, zero) - vf_select(vf_gt(zero, c), one, zero);
}

MX_INLINE void sgd_step(const mx_sgd *s, const mx_rounding_run *run, kind param, bool grad_bf16, int64_t i,
                        int64_t lanes)
{
    vf p = get(s->param.data, param != F32, i, lanes), momentum = vf_set1(s->momentum);
    vf g = vf_set1(s->grad_scale) * get(s->grad.data, grad_bf16, i, lanes);
    g = vf_fma(vf_set1(s->weight_decay), p, s->lion ? lion_sign(s, g, i, lanes) : g);
    if (s->state && !s->lion) {
        vf u = vf_fma(momentum, get(s->state, false, i, lanes), g);
        put(s->state, false, i, lanes, u);
        g = s->nesterov ? vf_fma(momentum, u, g) : u;
    }
    p = vf_fma(vf_set1(-s->lr), g, p);
    put(s->param.data, param != F32, i, lanes, param == STOCHASTIC ? round_by(vi_shr(chance(run, i), 16), p) : p);
}

MX_INLINE void sgd_as(const mx_sgd *given, const mx_rounding_run *given_run, kind param, bool grad_bf16, int64_t first,
                      int64_t last)
{
    const mx_sgd s = *given;
    const mx_rounding_run run = param == STOCHASTIC ? *given_run : (mx_rounding_run){0};
    int64_t i = first;
    for (; i + VL <= last; i += VL)
        sgd_step(&s, &run, param, grad_bf16, i, VL);
    if (i < last)
        sgd_step(&s, &run, param, grad_bf16, i, last - i);
}

static void sgd(const mx_sgd *s, const mx_rounding_run *run, int64_t first, int64_t last)
{
    kind param = kind_of(s->param, run);
    bool grad_bf16 = mx_is_bf16(s->grad.dtype);
    if (param == STOCHASTIC && grad_bf16)
        sgd_as(s, run, STOCHASTIC, true, first, last);
    else if (param == STOCHASTIC)
        sgd_as(s, run, STOCHASTIC, false, first, last);
    else if (param == NEAREST && grad_bf16)
        sgd_as(s, run, NEAREST, true, first, last);
    else if (param == NEAREST)
        sgd_as(s, run, NEAREST, false, first, last);
    else if (grad_bf16)
        sgd_as(s, run, F32, true, first, last);
    else
        sgd_as(s, run, F32, false, first, last);
}

const mx_optimizer_paths MX_SIMD_NAME(mx_optimizer) = {.adamw = adamw, .sgd = sgd};
