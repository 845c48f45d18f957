/* Attention in plain C, one row (query) at a time: nothing is shared with the vector paths but the geometry. */
#include "core/element.h"
#include "kernels/attention_paths.h"

#include <math.h>
#include <string.h>

static float dot(const void *x, const void *y, mx_dtype dtype, int64_t width)
{
    float sum = 0;
    for (int64_t d = 0; d < width; d++)
        sum += mx_get_float(x, d, dtype) * mx_get_float(y, d, dtype);
    return sum;
}

static float cap(const mx_attention_plan *p, float score)
{
    float c = p->a->softcap;
    return c > 0 ? c * tanhf(score / c) : score;
}

/* What is added to the score of a row and a key. */
static float bias_of(const mx_attention_plan *p, int64_t head, int64_t row, int64_t key)
{
    const mx_attention *a = p->a;
    int64_t at = a->bias ? mx_attention_bias_at(p, head, row) + key : 0,
            apart = a->offset + mx_attention_query(p, row) - key;
    float bias = -mx_attention_slope(p, head, row) * fabsf((float)apart);
    if (a->bias && a->bias_dtype == MX_U8)
        return ((const uint8_t *)a->bias)[at] ? bias : -INFINITY;
    return a->bias ? bias + mx_get_float(a->bias, at, a->bias_dtype) : bias;
}

/* What dropout multiplies the probability of a row and a key by. */
static float mask_of(const mx_attention_plan *p, int64_t head, int64_t row, int64_t key)
{
    if (p->a->dropout.threshold == 0)
        return 1;
    return mx_attention_mask_at(p, head / p->a->n_kv_heads, mx_attention_q_head(p, head, row),
                                mx_attention_query(p, row), key);
}

/* -inf where a bias masks the pair. */
static float score(const mx_attention_plan *p, int64_t head, int64_t row, int64_t key)
{
    const mx_attention *a = p->a;
    mx_attention_rows q = mx_attention_query_rows(p, a->q, a->dtype, head, a->head_dim);
    mx_attention_rows k = mx_attention_key_rows(p, a->k, a->dtype, head, a->head_dim);
    const void *x = mx_attention_row(&q, a->dtype, row), *y = mx_attention_row(&k, a->dtype, key);
    return cap(p, p->scale * dot(x, y, a->dtype, a->head_dim)) + bias_of(p, head, row, key);
}

/* Scratch: 64 bytes, and a row of out; or the rows of dq. */
static int64_t forward_bytes(const mx_attention_plan *p) { return 64 + p->a->value_dim * (int64_t)sizeof(float); }

static int64_t backward_bytes(const mx_attention_plan *p)
{
    return 64 + p->super_rows * p->a->head_dim * (int64_t)sizeof(float);
}

static void forward_row(const mx_attention_plan *p, int64_t head, int64_t row, float *sums)
{
    const mx_attention *a = p->a;
    int64_t width = a->value_dim;
    mx_attention_rows v = mx_attention_key_rows(p, a->v, a->dtype, head, width);
    mx_attention_rows out = mx_attention_query_rows(p, a->out, a->dtype, head, width);
    mx_attention_run run = mx_attention_run_of(p, head, row);
    float most = -INFINITY, sum = 0;
    memset(sums, 0, (size_t)width * sizeof *sums);
    for (int64_t t = run.first; t < run.end; t++) {
        float s = score(p, head, row, t);
        if (s == -INFINITY)
            continue;
        float top = s > most ? s : most, keep = expf(most - top), e = expf(s - top);
        most = top;
        sum = sum * keep + e;
        float mask = mask_of(p, head, row, t);
        e = mask == 0 ? 0 : mask * e;
        for (int64_t d = 0; d < width; d++)
            sums[d] = sums[d] * keep + e * mx_get_float(mx_attention_row(&v, a->dtype, t), d, a->dtype);
    }
    float sink = a->sinks ? a->sinks[mx_attention_q_head(p, head, row)] : -INFINITY;
    if (sink != -INFINITY) { /* as a key with the value 0 */
        float top = sink > most ? sink : most, keep = expf(most - top);
        for (int64_t d = 0; d < width; d++)
            sums[d] *= keep;
        sum = sum * keep + expf(sink - top);
        most = top;
    }
    a->lse[mx_attention_lse_at(p, head, row)] = sum == 0 ? -INFINITY : most + logf(sum);
    for (int64_t d = 0; d < width; d++)
        mx_set_float((void *)mx_attention_row(&out, a->dtype, row), d, sum == 0 ? 0 : sums[d] / sum, a->dtype);
}

static void forward(const mx_attention_plan *p, int64_t head, int64_t first_row, int64_t last_row, void *scratch)
{
    for (int64_t row = first_row; row < last_row; row++)
        forward_row(p, head, row, (float *)((char *)scratch + 64));
}

static void backward_row(const mx_attention_plan *p, const mx_attention_share *share, int64_t row, float *dq)
{
    const mx_attention *a = p->a;
    int64_t head = share->head, width = a->head_dim, value_dim = a->value_dim;
    mx_attention_rows qs = mx_attention_query_rows(p, a->q, a->dtype, head, width);
    mx_attention_rows ks = mx_attention_key_rows(p, a->k, a->dtype, head, width);
    mx_attention_rows vs = mx_attention_key_rows(p, a->v, a->dtype, head, value_dim);
    mx_attention_rows outs = mx_attention_query_rows(p, a->out, a->dtype, head, value_dim);
    mx_attention_rows douts = mx_attention_query_rows(p, a->dout, a->dtype, head, value_dim);
    const void *q = mx_attention_row(&qs, a->dtype, row), *dout = mx_attention_row(&douts, a->dtype, row);
    mx_attention_run run = mx_attention_run_of(p, head, row);
    float lse = a->lse[mx_attention_lse_at(p, head, row)];
    float delta = dot(mx_attention_row(&outs, a->dtype, row), dout, a->dtype, value_dim);
    for (int64_t t = mx_max(run.first, share->first_key); t < mx_min(run.end, share->last_key); t++) {
        float s = score(p, head, row, t);
        if (s == -INFINITY)
            continue;
        const void *k = mx_attention_row(&ks, a->dtype, t), *v = mx_attention_row(&vs, a->dtype, t);
        float e = expf(s - lse), mask = mask_of(p, head, row, t);
        float dp = mask == 0 ? 0 : mask * dot(dout, v, a->dtype, value_dim), ds = e * (dp - delta);
        e = mask == 0 ? 0 : mask * e;
        if (a->dbias)
            a->dbias[mx_attention_bias_at(p, head, row) + t] += ds;
        ds *= p->scale;
        if (a->softcap > 0)
            ds *= 1 - (s / a->softcap) * (s / a->softcap);
        for (int64_t d = 0; d < width; d++)
            dq[d] += ds * mx_get_float(k, d, a->dtype);
        int64_t key = t % p->sum_keys;
        for (int64_t d = 0; d < width; d++)
            share->dk[key * width + d] += ds * mx_get_float(q, d, a->dtype) / p->scale;
        for (int64_t d = 0; d < value_dim; d++)
            share->dv[key * value_dim + d] += e * mx_get_float(dout, d, a->dtype);
    }
}

static void backward(const mx_attention_plan *p, const mx_attention_share *share, void *scratch)
{
    const mx_attention *a = p->a;
    mx_attention_rows dqs = mx_attention_query_rows(p, a->dq, a->dq_dtype, share->head, a->head_dim);
    float *all = (float *)((char *)scratch + 64);
    for (int64_t row = share->first_row; row < share->last_row; row++) {
        float *dq = all + (row - share->first_row) * a->head_dim;
        if (share->begins)
            memset(dq, 0, (size_t)a->head_dim * sizeof *dq);
        backward_row(p, share, row, dq);
        for (int64_t d = 0; d < a->head_dim && share->ends; d++)
            mx_set_float((void *)mx_attention_row(&dqs, a->dq_dtype, row), d, dq[d], a->dq_dtype);
    }
}

static void add_key(const mx_attention_keys *keys, void *row, uint8_t *low, const float *sum, float scale)
{
    for (int64_t d = 0; d < keys->width; d++) {
        bool is_bf16 = mx_is_bf16(keys->dtype);
        float x = sum[d], before = keys->first ? 0 : mx_get_float(row, d, keys->dtype);
        uint32_t bits = mx_bits_of_float(before) | (is_bf16 && !keys->first ? (uint32_t)low[d] << 8 : 0);
        x += mx_float_of_bits(bits);
        if (keys->last || !is_bf16) {
            mx_set_float(row, d, keys->last ? scale * x : x, keys->dtype);
            continue;
        }
        bits = mx_bits_of_float(x) + (isnan(x) ? 0 : 0x80); /* to the nearest of 24 bits */
        ((mx_bf16 *)row)[d] = (mx_bf16)(bits >> 16);
        low[d] = (uint8_t)(bits >> 8);
    }
}

static void add(const mx_attention_keys *keys, const float *sum, float scale)
{
    for (int64_t i = 0; i < keys->n; i++)
        add_key(keys, keys->row + i * keys->row_step, (uint8_t *)keys->low + i * keys->low_step, sum + i * keys->width,
                scale);
}

static int64_t sum_width(int64_t width) { return width; }

const mx_attention_path mx_attention_portable = {
    .row_unit = 16,
    .key_unit = 1,
    .word_bytes = 4,
    .sum_width = sum_width,
    .forward_bytes = forward_bytes,
    .forward = forward,
    .backward_bytes = backward_bytes,
    .backward = backward,
    .add = add,
    .decode = NULL,
};
