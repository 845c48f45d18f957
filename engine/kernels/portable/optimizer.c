#include "kernels/optimizer.h"

#include <math.h>

static float load(mx_array x, int64_t i)
{
    return x.dtype == MX_BF16 ? mx_from_bf16(((const mx_bf16 *)x.data)[i]) : ((const float *)x.data)[i];
}

static void store(mx_array y, int64_t i, float value)
{
    if (y.dtype == MX_BF16)
        ((mx_bf16 *)y.data)[i] = mx_to_bf16(value);
    else
        ((float *)y.data)[i] = value;
}

static void adamw(const mx_adamw *a, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        float p = load(a->param, i), g = a->grad_scale * load(a->grad, i);
        float m = a->beta1 * a->m[i] + (1.0f - a->beta1) * g;
        float v = a->beta2 * a->v[i] + (1.0f - a->beta2) * g * g;
        float step = m * a->correct1 / (sqrtf(v * a->correct2 + a->eps_root) + a->eps) + a->weight_decay * p;
        p -= a->lr * step;
        a->m[i] = m;
        a->v[i] = v;
        store(a->param, i, p);
        if (a->copy)
            a->copy[i] = mx_to_bf16(p);
    }
}

static void sgd(const mx_sgd *s, int64_t first, int64_t last)
{
    for (int64_t i = first; i < last; i++) {
        float p = load(s->param, i), g = s->grad_scale * load(s->grad, i) + s->weight_decay * p;
        if (s->state) {
            float u = s->momentum * s->state[i] + g;
            s->state[i] = u;
            g = s->nesterov ? g + s->momentum * u : u;
        }
        store(s->param, i, p - s->lr * g);
    }
}

const mx_optimizer_paths mx_optimizer_portable = {.adamw = adamw, .sgd = sgd};
