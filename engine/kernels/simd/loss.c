#include "kernels/context.h"

#include "kernels/loss.h"
#include "kernels/simd/rows.h"

#include <math.h>

/* The largest logit. With a soft cap the row becomes capped logits; otherwise it stays products, whose scale the later
 * passes apply. */
MX_INLINE float row_max(const mx_loss_row *row, const bool cap)
{
    vf scale = vf_set1(row->logit_scale), limit = vf_set1(row->softcap);
    vf per_limit = vf_set1(cap ? row->logit_scale / row->softcap : 0.0f);
    vf low = vf_set1(-INFINITY), largest[2] = {low, low};
    int64_t i = 0;
    for (; i + 2 * VL <= row->vocab; i += 2 * VL)
        for (int u = 0; u < 2; u++) {
            vf z = vf_load(row->logits + i + u * VL);
            if (cap) {
                z = limit * vf_tanh(z * per_limit);
                vf_store(row->logits + i + u * VL, z);
            } else {
                z = z * scale;
            }
            largest[u] = vf_max(largest[u], z);
        }
    for (; i < row->vocab; i += VL) {
        int64_t n = lanes_left(row->vocab, i);
        vf z = vf_load_part(row->logits + i, n);
        if (cap) {
            z = limit * vf_tanh(z * per_limit);
            vf_store_part(row->logits + i, z, n);
        } else {
            z = z * scale;
        }
        largest[0] = vf_max(largest[0], vf_select(vm_first(n), z, low));
    }
    return vf_hmax(vf_max(largest[0], largest[1]));
}

MX_INLINE float row_sum_exp(const float *x, int64_t vocab, float factor, float largest)
{
    vf scale = vf_set1(factor), shift = vf_set1(-largest), sum[2] = {vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 2 * VL <= vocab; i += 2 * VL)
        for (int u = 0; u < 2; u++)
            sum[u] = sum[u] + vf_exp(vf_fma(vf_load(x + i + u * VL), scale, shift));
    for (; i < vocab; i += VL) {
        int64_t n = lanes_left(vocab, i);
        vf e = vf_exp(vf_fma(vf_load_part(x + i, n), scale, shift));
        sum[0] = sum[0] + vf_select(vm_first(n), e, vf_zero());
    }
    return vf_sum(sum[0] + sum[1]);
}

typedef struct gradient_terms {
    vf scale, shift; /* e^(scale x + shift) is the numerator of the softmax */
    vf factor;       /* by which it becomes the gradient */
    vf per_limit;    /* 1 / softcap */
} gradient_terms;

MX_INLINE vf gradient(vf x, const gradient_terms *t, const bool cap)
{
    vf d = vf_exp(vf_fma(x, t->scale, t->shift)) * t->factor;
    if (!cap)
        return d;
    vf bent = x * t->per_limit;
    return d * (vf_set1(1.0f) - bent * bent);
}

/* In place for either dtype: what is stored lies at or before what was loaded. */
MX_INLINE void row_gradient(const mx_loss_row *row, const gradient_terms *t, const bool cap, const bool bf16)
{
    int64_t i = 0;
    for (; i + 2 * VL <= row->vocab; i += 2 * VL) {
        vf a = gradient(vf_load(row->logits + i), t, cap), b = gradient(vf_load(row->logits + i + VL), t, cap);
        row_store2(row->dlogits, i, a, b, bf16, false);
    }
    for (; i < row->vocab; i += VL) {
        int64_t n = lanes_left(row->vocab, i);
        row_store_part(row->dlogits, i, gradient(vf_load_part(row->logits + i, n), t, cap), n, bf16);
    }
}

static mx_loss_sums sums(const mx_loss_row *row)
{
    bool cap = row->softcap > 0;
    float scale = cap ? 1.0f : row->logit_scale;
    mx_loss_sums s = {.largest = cap ? row_max(row, true) : row_max(row, false)};
    s.sum = row_sum_exp(row->logits, row->vocab, scale, s.largest);
    s.target = row->target < 0 ? 0 : row->logits[row->target] * scale;
    return s;
}

static void set_gradient(const mx_loss_row *row, const mx_loss_sums *all)
{
    bool cap = row->softcap > 0, bf16 = mx_is_bf16(row->dtype);
    float lse = all->largest + logf(all->sum);
    float outer = row->logit_scale * row->factor, probability = (1 + 2 * row->z_loss * lse) / all->sum;
    gradient_terms t = {.scale = vf_set1(cap ? 1.0f : row->logit_scale),
                        .shift = vf_set1(-all->largest),
                        .factor = vf_set1(probability * outer),
                        .per_limit = vf_set1(cap ? 1 / row->softcap : 0.0f)};
    if (cap)
        bf16 ? row_gradient(row, &t, true, true) : row_gradient(row, &t, true, false);
    else
        bf16 ? row_gradient(row, &t, false, true) : row_gradient(row, &t, false, false);
    if (row->target < 0)
        return;
    float bent = cap ? all->target / row->softcap : 0.0f;
    float d = (expf(all->target - all->largest) * probability - 1) * (1 - bent * bent) * outer;
    if (bf16)
        ((mx_bf16 *)row->dlogits)[row->target] = mx_to_bf16(d);
    else
        ((float *)row->dlogits)[row->target] = d;
}

const mx_loss_paths MX_SIMD_NAME(mx_loss) = {.sums = sums, .gradient = set_gradient};
