/* Attention of a few rows (queries) over many keys: decoding from a cache. Reading k and v takes most of the time. They
 * are read once, in the order of memory: all heads of a key, then the next key. Reading head by head would be slower:
 * the processor would not prefetch such short pieces, so far apart. */
#include "kernels/simd/attention_tile.h"

enum {
    BLOCK = MX_ATTENTION_DECODE_BLOCK, /* keys between two steps of the running maximum */
    AHEAD_BYTES = 4096,
};

typedef struct decoder {
    const mx_attention_plan *plan;
    int64_t batch;
    int64_t head_dim, q_floats; /* floats of one row of q */
    int64_t value_dim, floats;  /* floats of a part of one row */
    float *q, *s;               /* by kv head and row: [q_floats] values, [BLOCK] scores */
    float *part;                /* by kv head and row: [floats] */
} decoder;

/* Prefetches the row some keys ahead. An address beyond the end does no harm. */
MX_INLINE void fetch_ahead(const char *row, int64_t bytes)
{
    for (int64_t at = AHEAD_BYTES; at < AHEAD_BYTES + bytes; at += 64)
        __builtin_prefetch((const void *)((uintptr_t)row + (uintptr_t)at));
}

/* 2 VL values of a row as f32, zeros beyond its width. bf16 is split into even and odd
 * elements, which is cheapest. q and the sums of v keep that order until `reorder`. */
MX_INLINE void load_two(int kind, const void *row, int64_t at, int64_t width, vf x[2])
{
    if (kind == WORD_F32) {
        x[0] = load_words(WORD_F32, row, at, width);
        x[1] = load_words(WORD_F32, row, at + VL, width);
    } else {
        vi words = vf_bits(load_words(WORD_PAIR, row, at, width));
        x[0] = vi_float(vi_shl(words, 16));
        x[1] = vi_float(vi_and(words, vi_set1((int32_t)0xffff0000u)));
    }
}

static void reorder(float *x, int64_t width)
{
    for (int64_t d = 0; d < width; d += 2 * VL) {
        float two[2 * VL];
        memcpy(two, x + d, sizeof two);
        for (int i = 0; i < VL; i++) {
            x[d + 2 * i] = two[i];
            x[d + 2 * i + 1] = two[VL + i];
        }
    }
}

/* s[r][t] = q_r k_t for `count` (1 or 4) rows. */
MX_INLINE void dot(int kind, int count, const float *q, int64_t q_row, const void *key, int64_t width, float *s)
{
    vf even[4], odd[4];
    for (int r = 0; r < count; r++)
        even[r] = odd[r] = vf_zero();
    for (int64_t d = 0; d < width; d += 2 * VL) {
        vf x[2];
        load_two(kind, key, d, width, x);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++) {
            even[r] = vf_fma(vf_load(q + r * q_row + d), x[0], even[r]);
            odd[r] = vf_fma(vf_load(q + r * q_row + d + VL), x[1], odd[r]);
        }
    }
    for (int r = 0; r < count; r++)
        s[r * BLOCK] = vf_sum(even[r] + odd[r]);
}

MX_INLINE void score_block(int kind, const decoder *f, int64_t start, int64_t n)
{
    const mx_attention *a = f->plan->a;
    int64_t rows = f->plan->rows, bytes = f->head_dim * (int64_t)mx_dtype_bytes(dtype_of(kind));
    const char *key = (const char *)a->k + (f->batch * a->keys + start) * a->n_kv_heads * bytes;
    for (int64_t t = 0; t < n; t++)
        for (int64_t head = 0; head < a->n_kv_heads; head++, key += bytes) {
            fetch_ahead(key, bytes);
            const float *q = f->q + head * rows * f->q_floats;
            float *s = f->s + head * rows * BLOCK + t;
            int64_t r = 0;
            for (; r + 4 <= rows; r += 4)
                dot(kind, 4, q + r * f->q_floats, f->q_floats, key, f->head_dim, s + r * BLOCK);
            for (; r < rows; r++)
                dot(kind, 1, q + r * f->q_floats, f->q_floats, key, f->head_dim, s + r * BLOCK);
        }
}

/* Caps and masks the scores of row r; beyond n they are -inf. */
static void finish_scores(const decoder *f, int64_t r, int64_t start, int64_t n, float *s)
{
    const mx_attention_plan *p = f->plan;
    const mx_attention *a = p->a;
    mx_attention_run run = mx_attention_run_of(p, f->batch * a->n_kv_heads, r);
    for (int64_t t = 0; a->softcap > 0 && t < BLOCK; t += VL)
        vf_store(s + t, vf_tanh_cap(vf_load(s + t) * vf_set1(p->scale / a->softcap)) * vf_set1(a->softcap));
    if (n == BLOCK && start >= run.first && start + n <= run.end)
        return;
    for (int64_t t = 0; t < BLOCK; t++)
        if (t >= n || start + t < run.first || start + t >= run.end)
            s[t] = -INFINITY;
}

/* s becomes the probabilities relative to the largest score so far. The sums in `part` are scaled to that score. */
MX_INLINE void exponentiate(int kind, float c, float *s, float *part, int64_t width)
{
    vf most = vf_set1(-INFINITY);
    for (int64_t t = 0; t < BLOCK; t += VL)
        most = vf_max(most, vf_load(s + t));
    float old = part[0], top = vf_hmax(most) * c;
    top = old > top ? old : top;
    vf shift = vf_set1(top == -INFINITY ? 0.0f : -top), sum = vf_zero();
    for (int64_t t = 0; t < BLOCK; t += VL) {
        vf x = vf_exp2_whole(kind != WORD_F32, vf_fma(vf_load(s + t), vf_set1(c), shift));
        vf_store(s + t, x);
        sum = sum + x;
    }
    float keep[VL];
    vf_store(keep, vf_exp2_whole(false, vf_set1(old) + shift));
    part[0] = top;
    part[1] = part[1] * keep[0] + vf_sum(sum);
    for (int64_t d = 0; top > old && d < mx_round_up(width, 2 * VL); d += VL)
        vf_store(part + 16 + d, vf_load(part + 16 + d) * vf_set1(keep[0]));
}

/* Adds the probabilities of 4 keys times v to all rows of a head. */
MX_INLINE void add_values(int kind, const char *const v[4], int64_t width, int64_t rows, const float *s, float *part,
                          int64_t floats)
{
    for (int64_t d = 0; d < width; d += 2 * VL) {
        vf x[4][2];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            load_two(kind, v[i], d, width, x[i]);
        for (int64_t r = 0; r < rows; r++) {
            float *to = part + r * floats + 16 + d;
            vf even = vf_load(to), odd = vf_load(to + VL);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                vf p = vf_set1(s[r * BLOCK + i]);
                even = vf_fma(p, x[i][0], even);
                odd = vf_fma(p, x[i][1], odd);
            }
            vf_store(to, even);
            vf_store(to + VL, odd);
        }
    }
}

MX_INLINE void value_block(int kind, const decoder *f, int64_t start, int64_t n)
{
    const mx_attention *a = f->plan->a;
    int64_t rows = f->plan->rows, bytes = f->value_dim * (int64_t)mx_dtype_bytes(dtype_of(kind));
    int64_t step = a->n_kv_heads * bytes;
    const char *value = (const char *)a->v + (f->batch * a->keys + start) * step;
    for (int64_t t = 0; t < n; t += 4)
        for (int64_t head = 0; head < a->n_kv_heads; head++) {
            const char *v[4]; /* beyond n the probability is 0 */
            for (int i = 0; i < 4; i++) {
                v[i] = value + mx_min(t + i, n - 1) * step + head * bytes;
                fetch_ahead(v[i], bytes);
            }
            add_values(kind, v, f->value_dim, rows, f->s + head * rows * BLOCK + t, f->part + head * rows * f->floats,
                       f->floats);
        }
}

MX_INLINE void load_queries(int kind, const decoder *f)
{
    const mx_attention_plan *p = f->plan;
    for (int64_t head = 0; head < p->a->n_kv_heads; head++) {
        mx_attention_rows q =
            mx_attention_query_rows(p, p->a->q, dtype_of(kind), f->batch * p->a->n_kv_heads + head, f->head_dim);
        for (int64_t r = 0; r < p->rows; r++) {
            float *to = f->q + (head * p->rows + r) * f->q_floats;
            for (int64_t d = 0; d < f->head_dim; d += 2 * VL) {
                vf x[2];
                load_two(kind, mx_attention_row(&q, dtype_of(kind), r), d, f->head_dim, x);
                vf_store(to + d, x[0]);
                vf_store(to + d + VL, x[1]);
            }
        }
    }
}

MX_INLINE void decode(int kind, const mx_attention_plan *p, int64_t batch, int64_t first, int64_t last, float *part,
                      float *scratch)
{
    const mx_attention *a = p->a;
    int64_t rows = a->n_kv_heads * p->rows, q_floats = mx_attention_part_floats(a->head_dim);
    int64_t floats = mx_attention_part_floats(a->value_dim);
    decoder f = {.plan = p, .batch = batch, .head_dim = a->head_dim, .q_floats = q_floats, .value_dim = a->value_dim};
    f.floats = floats;
    f.q = scratch;
    f.s = scratch + rows * q_floats;
    f.part = part;
    float c = (a->softcap > 0 ? 1.0f : p->scale) * 1.44269504f;
    memset(part, 0, (size_t)(rows * floats) * sizeof(float));
    for (int64_t r = 0; r < rows; r++)
        part[r * floats] = -INFINITY;
    load_queries(kind, &f);
    for (int64_t start = first; start < last; start += BLOCK) {
        int64_t n = mx_min(BLOCK, last - start);
        score_block(kind, &f, start, n);
        for (int64_t r = 0; r < rows; r++) {
            finish_scores(&f, r % p->rows, start, n, f.s + r * BLOCK);
            exponentiate(kind, c, f.s + r * BLOCK, part + r * floats, f.value_dim);
        }
        value_block(kind, &f, start, n);
    }
    for (int64_t r = 0; r < rows && kind != WORD_F32; r++)
        reorder(part + r * floats + 16, f.value_dim);
}

void MX_SIMD_NAME(mx_attention_decode_f32)(const mx_attention_plan *p, int64_t batch, int64_t first, int64_t last,
                                           float *part, float *scratch)
{
    decode(WORD_F32, p, batch, first, last, part, scratch);
}
void MX_SIMD_NAME(mx_attention_decode_bf16)(const mx_attention_plan *p, int64_t batch, int64_t first, int64_t last,
                                            float *part, float *scratch)
{
    decode(WORD_WIDE, p, batch, first, last, part, scratch);
}
