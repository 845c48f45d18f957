/* Attention forward by tiles. Scores are computed transposed: a key is a row of the tile, a query is a lane of the
 * vectors. So maximum, sum and scaling need no step across lanes. And a tile of probabilities already has the packed
 * layout that the product with v needs. */
#include "kernels/context.h"
#include "kernels/simd/attention_scores.h"

typedef struct forward {
    const mx_attention_plan *plan;
    int64_t head;
    int64_t head_dim, words;   /* in words */
    int64_t value_dim, height; /* up to a multiple of MR */
    int64_t block_words;       /* of v in a block of keys */
    int64_t start;             /* first key of the panel of keys in turn */
    packed_keys *packed;
    float *k, *v;     /* k: panels of MR keys, [words][MR]; v by block: panels of MR values, [block_words][MR] */
    float *q;         /* by panel of NR rows: [words][NR] */
    float *out;       /* by panel: [height][NR] */
    float *top, *sum; /* by panel: largest score so far times log2(e), sum of the probabilities */
    float *s, *p;     /* one panel: scores [block_keys][NR], probabilities [block_words][NR] */
    panel *panels;
} forward;

static int64_t forward_layout(int kind, const mx_attention_plan *p, forward *f, void *scratch)
{
    carver c = {scratch, 0};
    int64_t rows = p->super_rows, panels = rows / NR, keys = p->panel_keys, float_bytes = sizeof(float);
    f->plan = p;
    f->head_dim = p->a->head_dim;
    f->words = words_of_width(kind, f->head_dim);
    f->value_dim = p->a->value_dim;
    f->height = mx_round_up(f->value_dim, MR);
    f->block_words = words_of(kind, p->block_keys);
    f->packed = carve(&c, sizeof *f->packed);
    f->k = carve(&c, keys * f->words * float_bytes);
    f->v = carve(&c, words_of(kind, keys) * f->height * float_bytes);
    f->q = carve(&c, rows * f->words * float_bytes);
    f->out = carve(&c, panels * f->height * NR * float_bytes);
    f->top = carve(&c, rows * float_bytes);
    f->sum = carve(&c, rows * float_bytes);
    f->s = carve(&c, p->block_keys * NR * float_bytes);
    f->p = kind == WORD_PAIR ? carve(&c, f->block_words * NR * float_bytes) : f->s;
    f->panels = carve(&c, panels * (int64_t)sizeof(panel));
    return c.used;
}

/* A run of keys of the panel in turn. */
MX_INLINE void pack_keys(int kind, forward *f, mx_attention_run run)
{
    const mx_attention_plan *p = f->plan;
    int64_t end = mx_min(f->start + p->panel_keys, p->keys);
    run = unpacked(f->packed, f->head, f->start, end, run);
    mx_attention_rows k = mx_attention_key_rows(p, p->a->k, p->a->dtype, f->head, f->head_dim);
    mx_attention_rows v = mx_attention_key_rows(p, p->a->v, p->a->dtype, f->head, f->value_dim);
    while (run.first < run.end) {
        int64_t start = run.first / p->block_keys * p->block_keys, at = run.first - start;
        int64_t n = mx_min(start + p->block_keys, run.end) - run.first;
        pack_across(kind, SIDE_A, &k, run.first, n, f->head_dim, f->k + (run.first - f->start) * f->words);
        /* The product takes whole groups of MR keys. Missing keys have probability 0, and their values are filled
         * with 0, because 0 times a NaN is NaN. */
        float *block = f->v + (start - f->start) / p->block_keys * f->block_words * f->height;
        pack_along(kind, SIDE_A, &v, run.first, n, mx_round_up(n, MR), f->value_dim, f->block_words,
                   block + words_of(kind, at) * MR);
        run.first += n;
    }
}

/* Computes the probabilities 2^(c s - top) of a vector of rows and n keys, packed for the product with v. Then *sum =
 * *sum * keep + their sum. */
MX_INLINE void exponentiate(int kind, int64_t n, const float *s, float c, vf top, vf keep, float *p, float *sum)
{
    vf even = vf_zero(), odd = vf_zero(), shift = vf_zero() - top;
    for (int64_t t = 0; t < n; t += 2, s += 2 * NR) {
        vf a = vf_exp2_whole(kind != WORD_F32, vf_fma(vf_load(s), vf_set1(c), shift));
        vf b = vf_exp2_whole(kind != WORD_F32, vf_fma(vf_load(s + NR), vf_set1(c), shift));
        even = even + a;
        odd = odd + b;
        if (kind == WORD_PAIR) {
            vf_store(p, pair_words(vf_to_bf16(a), vf_to_bf16(b)));
            p += NR;
        } else {
            vf_store(p, a);
            vf_store(p + NR, b);
            p += 2 * NR;
        }
    }
    vf_store(sum, vf_fma(vf_load(sum), keep, even + odd));
}

/* Raises *top of a vector of rows to the maximum of c s over n keys, and scales the sums of probability times v so far
 * from the old maximum to the new one; *keep is the factor. Returns the number to subtract from c s. */
MX_INLINE vf raise_top(int kind, int64_t n, const float *s, float c, float *top, vf *keep, float *out, int64_t height)
{
    vf old = vf_load(top), even = vf_set1(-INFINITY), odd = even;
    for (int64_t t = 0; t < n; t += 2) {
        even = vf_max(even, vf_load(s + t * NR));
        odd = vf_max(odd, vf_load(s + (t + 1) * NR));
    }
    vf most = vf_max(old, vf_max(even, odd) * vf_set1(c));
    vf_store(top, most);
    /* Without any key so far the maximum is -inf, and -inf - (-inf) would be NaN: subtract 0 instead. */
    vf safe = vf_select(vf_gt(most, vf_set1(-INFINITY)), most, vf_zero());
    *keep = vf_exp2_whole(kind != WORD_F32, old - safe);
    bool raised = vm_any(vf_gt(most, old));
    for (int64_t d = 0; raised && d < height; d++)
        vf_store(out + d * NR, vf_load(out + d * NR) * *keep);
    return safe;
}

/* Sets P to 0 where a segment lies between the keys of some vectors and not in theirs. */
MX_INLINE void clear_gaps(int kind, const segment *s, const range *by, float *p)
{
    for (int j = s->first + 1; j < s->last - 1; j++)
        if (by[j].from > s->keys.from || s->keys.from >= by[j].to)
            for (int64_t w = 0; w < words_of(kind, s->keys.to - s->keys.from); w++)
                vf_store(p + w * NR + j * VL, vf_zero());
}

MX_INLINE void attend_block(int kind, forward *f, int64_t i, int64_t block)
{
    const mx_attention_plan *p = f->plan;
    int64_t start = block * p->block_keys;
    const panel *rows = &f->panels[i];
    range by[NV];
    segment segments[MAX_SEGMENTS];
    int n = cut_segments(rows, start, mx_min(start + p->block_keys, p->keys), by, segments);
    const float *q = f->q + i * f->words * NR, *k = f->k + (start - f->start) * f->words;
    for (const segment *s = segments; s < segments + n; s++) {
        tile_packed *multiply = tile_packed_of(kind, s->last - s->first);
        int64_t lane = s->first * VL;
        for (int64_t t = s->keys.from - start; t < s->keys.to - start; t += MR)
            multiply(f->words, k + t * f->words, q + lane, NR, f->s + t * NR + lane, NR, false);
    }

    float *out = f->out + i * f->height * NR;
    for (int j = 0; j < NV; j++) {
        int64_t keys = by[j].to - by[j].from, at = by[j].from - start;
        if (keys == 0)
            continue;
        float *s = f->s + at * NR + j * VL, *state = f->top + i * NR + j * VL, *sum = f->sum + i * NR + j * VL;
        float c = adjust_scores(p, f->head, rows, j, by[j], s, NR) * LOG2E;
        vf keep, top = raise_top(kind, keys, s, c, state, &keep, out + j * VL, f->height);
        float *probabilities = f->p + words_of(kind, at) * NR + j * VL;
        exponentiate(kind, keys, s, c, top, keep, probabilities, sum);
        if (p->a->dropout.threshold > 0)
            drop_probabilities(kind, p, f->head, rows, j, by[j], probabilities);
    }

    const float *v = f->v + (start - f->start) / p->block_keys * f->block_words * f->height;
    for (const segment *s = segments; s < segments + n; s++) {
        tile_packed *multiply = tile_packed_of(kind, s->last - s->first);
        int64_t at = words_of(kind, s->keys.from - start), words = words_of(kind, s->keys.to - s->keys.from);
        int64_t lane = s->first * VL;
        clear_gaps(kind, s, by, f->p + at * NR);
        for (int64_t d = 0; d < f->height; d += MR)
            multiply(words, v + d * f->block_words + at * MR, f->p + at * NR + lane, NR, out + d * NR + lane, NR, true);
    }
}

MX_INLINE void finish_panel(int kind, forward *f, int64_t i, int64_t row)
{
    const mx_attention_plan *p = f->plan;
    int64_t n = mx_min(NR, p->rows - row);
    float inverse[NR];
    for (int64_t r = 0; r < NR; r++) {
        float sum = f->sum[i * NR + r];
        float keep = r < n ? mx_attention_end_row(p, f->head, row + r, f->top[i * NR + r], &sum) : 1.0f;
        inverse[r] = sum == 0.0f ? 0.0f : keep / sum;
        if (p->a->dropout.threshold > 0)
            inverse[r] *= p->a->dropout.scale;
    }
    mx_attention_rows out = mx_attention_query_rows(p, p->a->out, p->a->dtype, f->head, f->value_dim);
    store_across(dtype_of(kind), p->stream, &out, row, n, f->value_dim, f->out + i * f->height * NR, inverse);
}

/* All panels of rows with the keys of the panel in turn, block by block. */
MX_INLINE void attend_panel(int kind, forward *f, int64_t panels)
{
    const mx_attention_plan *p = f->plan;
    int64_t end = f->start + p->panel_keys, step = p->block_rows / NR;
    pack_keys(kind, f, run_of_panels(f->panels, panels, f->start, end));
    for (int64_t first = 0; first < panels; first += step) {
        int64_t last = mx_min(first + step, panels);
        mx_attention_run keys = run_of_panels(f->panels + first, last - first, f->start, end);
        for (int64_t b = keys.first / p->block_keys; b * p->block_keys < keys.end; b++)
            for (int64_t i = first; i < last; i++)
                attend_block(kind, f, i, b);
    }
}

MX_INLINE void forward_rows(int kind, const mx_attention_plan *p, int64_t head, int64_t row, int64_t end, void *scratch)
{
    forward f;
    forward_layout(kind, p, &f, scratch);
    f.head = head;
    int64_t panels = mx_ceil_div(end - row, NR);
    mx_attention_rows q = mx_attention_query_rows(p, p->a->q, p->a->dtype, head, f.head_dim);
    pack_across(kind, SIDE_B, &q, row, end - row, f.head_dim, f.q);
    for (int64_t i = 0; i < panels; i++)
        panel_set(&f.panels[i], p, head, row + i * NR);
    memset(f.out, 0, (size_t)(panels * f.height * NR) * sizeof(float));
    memset(f.sum, 0, (size_t)(panels * NR) * sizeof(float));
    for (int64_t r = 0; r < panels * NR; r++)
        f.top[r] = -INFINITY;
    mx_attention_run keys = run_of_panels(f.panels, panels, 0, p->keys);
    products_begin();
    for (f.start = keys.first / p->panel_keys * p->panel_keys; f.start < keys.end; f.start += p->panel_keys)
        attend_panel(kind, &f, panels);
    products_end();
    for (int64_t i = 0; i < panels; i++)
        finish_panel(kind, &f, i, row + i * NR);
    if (p->stream)
        _mm_sfence();
}

/* ---- the tables ---- */

static int64_t sum_width(int64_t width) { return mx_round_up(width, VL); }

#if !defined(MX_SIMD_AMX)
static int64_t forward_bytes_f32(const mx_attention_plan *p)
{
    forward f;
    return forward_layout(WORD_F32, p, &f, NULL);
}
static void forward_f32(const mx_attention_plan *p, int64_t head, int64_t first_row, int64_t last_row, void *scratch)
{
    forward_rows(WORD_F32, p, head, first_row, last_row, scratch);
}

const mx_attention_path MX_SIMD_NAME(mx_attention_f32) = {
    .row_unit = NR,
    .key_unit = KEY_UNIT,
    .word_bytes = 4,
    .sum_width = sum_width,
    .forward_bytes = forward_bytes_f32,
    .forward = forward_f32,
    .backward_bytes = MX_SIMD_NAME(mx_attention_grad_bytes_f32),
    .backward = MX_SIMD_NAME(mx_attention_grad_f32),
    .add = MX_SIMD_NAME(mx_attention_grad_add),
    .decode = MX_SIMD_NAME(mx_attention_decode_f32),
};
#endif

static int64_t forward_bytes_bf16(const mx_attention_plan *p)
{
    forward f;
    return forward_layout(WORD_BF16, p, &f, NULL);
}
static void forward_bf16(const mx_attention_plan *p, int64_t head, int64_t first_row, int64_t last_row, void *scratch)
{
    forward_rows(WORD_BF16, p, head, first_row, last_row, scratch);
}

#if defined(MX_SIMD_AMX) /* on processors with AMX, VDPBF16PS has half the rate of f32 FMA */
#define DECODE_BF16 mx_attention_decode_bf16_avx512
attention_decode DECODE_BF16;
#else
#define DECODE_BF16 MX_SIMD_NAME(mx_attention_decode_bf16)
#endif

const mx_attention_path MX_SIMD_NAME(mx_attention_bf16) = {
    .row_unit = NR,
    .key_unit = KEY_UNIT,
    .word_bytes = WORD_BF16 == WORD_PAIR ? 2 : 4,
    .sum_width = sum_width,
    .forward_bytes = forward_bytes_bf16,
    .forward = forward_bf16,
    .backward_bytes = MX_SIMD_NAME(mx_attention_grad_bytes_bf16),
    .backward = MX_SIMD_NAME(mx_attention_grad_bf16),
    .add = MX_SIMD_NAME(mx_attention_grad_add),
    .decode = DECODE_BF16,
};

#if !defined(MX_SIMD_AVX512_BF16)
static int64_t forward_bytes_pairs(const mx_attention_plan *p)
{
    forward f;
    return forward_layout(WORD_PAIR, p, &f, NULL);
}
static void forward_pairs(const mx_attention_plan *p, int64_t head, int64_t first_row, int64_t last_row, void *scratch)
{
    forward_rows(WORD_PAIR, p, head, first_row, last_row, scratch);
}

const mx_attention_path MX_SIMD_NAME(mx_attention_pairs) = {
    .row_unit = NR,
    .key_unit = KEY_UNIT,
    .word_bytes = 2,
    .sum_width = sum_width,
    .forward_bytes = forward_bytes_pairs,
    .forward = forward_pairs,
    .backward_bytes = MX_SIMD_NAME(mx_attention_grad_bytes_pairs),
    .backward = MX_SIMD_NAME(mx_attention_grad_pairs),
    .add = MX_SIMD_NAME(mx_attention_grad_add),
    .decode = NULL,
};
#endif
