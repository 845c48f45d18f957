/* Attention of a few rows (queries) over many keys: decoding from a cache. Bound by reading k and v, which it does
 * once, unpacked; the rows share what was read. */
#include "kernels/simd/attention_tile.h"

enum {
    BLOCK = 64, /* keys between two steps of the running maximum */
    ROWS = MX_ATTENTION_DECODE_ROWS,
    AHEAD = 8, /* keys to fetch ahead: a row of k ends long before the next one of its head starts */
};

INLINE void fetch(const void *row, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64)
        __builtin_prefetch((const char *)row + at);
}

/* s[r][t] = q_r k_t for `count` (1 or 4) rows from r on. */
INLINE void dot(int kind, int count, const float *q, int64_t q_row, const void *key, int64_t width, float *s)
{
    vf acc[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t d = 0;
    for (; d + VL <= width; d += VL) {
        vf x = kind == WORD_F32 ? vf_load((const float *)key + d) : vf_load_bf16((const mx_bf16 *)key + d);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++)
            acc[r] = vf_fma(vf_load(q + r * q_row + d), x, acc[r]);
    }
    if (d < width) {
        vf x = load_words(kind, key, d, width);
        for (int r = 0; r < count; r++)
            acc[r] = vf_fma(vf_load(q + r * q_row + d), x, acc[r]);
    }
    for (int r = 0; r < count; r++)
        s[r * BLOCK] = vf_sum(acc[r]);
}

INLINE void score_block(int kind, const mx_attention_plan *p, const mx_attention_rows *k, int64_t start, int64_t n,
                        const float *q, int64_t q_row, float s[ROWS][BLOCK])
{
    int64_t width = p->a->head_dim, bytes = width * (int64_t)mx_dtype_bytes(p->a->dtype);
    for (int64_t t = 0; t < n; t++) {
        const void *key = mx_attention_row(k, dtype_of(kind), start + t);
        if (start + t + AHEAD < p->keys)
            fetch(mx_attention_row(k, dtype_of(kind), start + t + AHEAD), bytes);
        int64_t r = 0;
        for (; r + 4 <= p->rows; r += 4)
            dot(kind, 4, q + r * q_row, q_row, key, width, &s[r][t]);
        for (; r < p->rows; r++)
            dot(kind, 1, q + r * q_row, q_row, key, width, &s[r][t]);
    }
}

/* Caps and masks the scores of row r; beyond n they are -inf. */
static void finish_scores(const mx_attention_plan *p, int64_t head, int64_t r, int64_t start, int64_t n, float *s)
{
    const mx_attention *a = p->a;
    const int32_t *segments = a->k_segments ? a->k_segments + head / a->n_kv_heads * a->keys : NULL;
    int32_t own = segments ? a->q_segments[head / a->n_kv_heads * a->queries + r / p->group] : 0;
    int64_t first, last;
    mx_attention_interval(p, r, &first, &last);
    for (int64_t t = 0; a->softcap > 0 && t < BLOCK; t += VL)
        vf_store(s + t, tanh_of(vf_load(s + t) * vf_set1(p->scale / a->softcap)) * vf_set1(a->softcap));
    for (int64_t t = 0; t < BLOCK; t++)
        if (t >= n || start + t < first || start + t > last || (segments && segments[start + t] != own))
            s[t] = -INFINITY;
}

/* s becomes the probabilities relative to the largest score so far; what `part` sums is scaled to it. */
INLINE void exponentiate(int kind, float c, float *s, float *part, int64_t width)
{
    vf most = vf_set1(-INFINITY);
    for (int64_t t = 0; t < BLOCK; t += VL)
        most = vf_max(most, vf_load(s + t));
    float old = part[0], top = vf_hmax(most) * c;
    top = old > top ? old : top;
    vf shift = vf_set1(top == -INFINITY ? 0.0f : -top), sum = vf_zero();
    for (int64_t t = 0; t < BLOCK; t += VL) {
        vf x = exp2_of(kind, vf_fma(vf_load(s + t), vf_set1(c), shift));
        vf_store(s + t, x);
        sum = sum + x;
    }
    float keep[VL];
    vf_store(keep, exp2_of(WORD_F32, vf_set1(old) + shift));
    part[0] = top;
    part[1] = part[1] * keep[0] + vf_sum(sum);
    for (int64_t d = 0; top > old && d < width; d += VL)
        vf_store(part + 16 + d, vf_load(part + 16 + d) * vf_set1(keep[0]));
}

/* Adds the probabilities of 4 keys times v to all rows. */
INLINE void add_values(int kind, const mx_attention_plan *p, const void *const v[4], int64_t t, float s[ROWS][BLOCK],
                       float *part, int64_t floats)
{
    for (int64_t d = 0; d < p->a->head_dim; d += VL) {
        vf x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            x[i] = load_words(kind, v[i], d, p->a->head_dim);
        for (int64_t r = 0; r < p->rows; r++) {
            float *to = part + r * floats + 16 + d;
            vf sum = vf_load(to);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sum = vf_fma(vf_set1(s[r][t + i]), x[i], sum);
            vf_store(to, sum);
        }
    }
}

INLINE void decode(int kind, const mx_attention_plan *p, int64_t head, int64_t first, int64_t last, float *part,
                   float *scratch)
{
    const mx_attention *a = p->a;
    int64_t width = a->head_dim, floats = mx_attention_part_floats(width),
            bytes = width * (int64_t)mx_dtype_bytes(a->dtype);
    mx_attention_rows q = mx_attention_query_rows(p, a->q, a->dtype, head);
    mx_attention_rows k = mx_attention_key_rows(p, a->k, a->dtype, head);
    mx_attention_rows v = mx_attention_key_rows(p, a->v, a->dtype, head);
    float c = a->softcap > 0 ? 1.44269504f : p->scale * 1.44269504f, s[ROWS][BLOCK];
    memset(part, 0, (size_t)(p->rows * floats) * sizeof(float));
    for (int64_t r = 0; r < p->rows; r++) {
        part[r * floats] = -INFINITY;
        for (int64_t d = 0; d < width; d += VL)
            vf_store(scratch + r * floats + d, load_words(kind, mx_attention_row(&q, a->dtype, r), d, width));
    }
    for (int64_t start = first; start < last; start += BLOCK) {
        int64_t n = at_most(BLOCK, last - start);
        score_block(kind, p, &k, start, n, scratch, floats, s);
        for (int64_t r = 0; r < p->rows; r++) {
            finish_scores(p, head, r, start, n, s[r]);
            exponentiate(kind, c, s[r], part + r * floats, width);
        }
        for (int64_t t = 0; t < n; t += 4) {
            const void *value[4]; /* beyond n the probability is 0 */
            for (int i = 0; i < 4; i++) {
                value[i] = mx_attention_row(&v, a->dtype, at_most(start + t + i, last - 1));
                fetch(mx_attention_row(&v, a->dtype, at_most(start + t + i + AHEAD, last - 1)), bytes);
            }
            add_values(kind, p, value, t, s, part, floats);
        }
    }
}

void MX_SIMD_NAME(mx_attention_decode_f32)(const mx_attention_plan *p, int64_t head, int64_t first, int64_t last,
                                           float *part, float *scratch)
{
    decode(WORD_F32, p, head, first, last, part, scratch);
}
void MX_SIMD_NAME(mx_attention_decode_bf16)(const mx_attention_plan *p, int64_t head, int64_t first, int64_t last,
                                            float *part, float *scratch)
{
    decode(WORD_WIDE, p, head, first, last, part, scratch);
}
