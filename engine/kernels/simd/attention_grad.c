/* Attention backward by tiles. As in the forward pass, scores are computed transposed: keys down, rows (queries)
 * across.
 *
 *   P = 2^(c S - lse)   dP = V dO^T   dS = P (dP - delta)   dV += P dO   dK += dS Q   dQ^T += K^T dS
 *
 * P and dS need no other layout. Read along their rows they are operand A of the sums over queries (dV, dK). The panel
 * of dS is the packed operand B of the sum over keys (dQ). Only the inputs are transposed, once each. */
#include "kernels/simd/attention_scores.h"

typedef struct backward {
    const mx_attention_plan *plan;
    const mx_attention_share *share;
    int64_t start, first; /* first key of the panel of keys in turn; first panel of rows of the block of rows in turn */
    int64_t head_dim, words, height; /* in words; up to a multiple of MR */
    int64_t value_dim, value_words;  /* in words */
    int64_t block_words, row_words;  /* of k: in a block of keys, in a block of rows */
    packed_keys *packed;
    float *k, *v;                /* panels of MR keys: [words][MR], [value_words][MR] */
    float *q, *dout;             /* by panel of NR rows: [words][NR], [value_words][NR] */
    float *k_along;              /* for dq. By block: panels of MR of head_dim, [block_words][MR] */
    float *dq;                   /* by panel of rows: [height][NR] */
    float *q_along, *dout_along; /* for dk and dv. By block of rows: panels of NR of the width, [row_words][NR] */
    int64_t q_step, dout_step;   /* floats from one block to the next */
    float *lse, *delta;          /* by row: lse log2(e); sum of dout out */
    float *s, *dp;               /* keys of a block down; rows of the block (of one panel, for pairs) across */
    int64_t s_row, s_panel;      /* floats from one key, one panel to the next */
    float *p, *ds;               /* words, keys down: operand A. Without pairs they are s and dp */
    int64_t p_row;               /* words from one key to the next */
    float *ds_pairs;             /* one panel, [block_words][NR]: operand B. Without pairs it is in dp */
    panel *panels;
    range *live;   /* by vector of rows of the block of rows: keys of the current block whose P and dS are set */
    range *groups; /* by group of MR keys of the block: the vectors that it is multiplied with */
} backward;

static int64_t backward_layout(int kind, const mx_attention_plan *p, backward *f, void *scratch)
{
    carver c = {scratch, 0};
    int64_t rows = p->super_rows, panels = rows / NR, keys = p->panel_keys, float_bytes = sizeof(float);
    f->plan = p;
    f->head_dim = p->a->head_dim;
    f->words = words_of_width(kind, f->head_dim);
    f->height = mx_round_up(f->head_dim, MR);
    f->value_dim = p->a->value_dim;
    f->value_words = words_of_width(kind, f->value_dim);
    f->block_words = words_of(kind, p->block_keys);
    f->row_words = words_of(kind, p->block_rows);
    f->packed = carve(&c, sizeof *f->packed);
    f->k = carve(&c, keys * f->words * float_bytes);
    f->v = carve(&c, keys * f->value_words * float_bytes);
    f->q = carve(&c, rows * f->words * float_bytes);
    f->dout = carve(&c, rows * f->value_words * float_bytes);
    f->k_along = carve(&c, words_of(kind, keys) * f->height * float_bytes);
    f->dq = carve(&c, panels * f->height * NR * float_bytes);
    f->q_step = f->row_words * mx_round_up(f->head_dim, NR);
    f->dout_step = f->row_words * mx_round_up(f->value_dim, NR);
    f->q_along = carve(&c, rows / p->block_rows * f->q_step * float_bytes);
    f->dout_along = carve(&c, rows / p->block_rows * f->dout_step * float_bytes);
    f->lse = carve(&c, rows * float_bytes);
    f->delta = carve(&c, rows * float_bytes);
    f->s_row = kind == WORD_PAIR ? NR : p->block_rows;
    f->s_panel = kind == WORD_PAIR ? 0 : NR;
    f->s = carve(&c, p->block_keys * f->s_row * float_bytes);
    f->dp = carve(&c, p->block_keys * f->s_row * float_bytes);
    f->p_row = f->row_words;
    f->p = kind == WORD_PAIR ? carve(&c, p->block_keys * f->p_row * float_bytes) : f->s;
    f->ds = kind == WORD_PAIR ? carve(&c, p->block_keys * f->p_row * float_bytes) : f->dp;
    f->ds_pairs = kind == WORD_PAIR ? carve(&c, f->block_words * NR * float_bytes) : NULL;
    f->panels = carve(&c, panels * (int64_t)sizeof(panel));
    f->live = carve(&c, p->block_rows / VL * (int64_t)sizeof *f->live);
    f->groups = carve(&c, p->block_keys / MR * (int64_t)sizeof *f->groups);
    return c.used;
}

/* A run of keys of the panel in turn. */
MX_INLINE void pack_keys(int kind, backward *f, mx_attention_run run)
{
    const mx_attention_plan *p = f->plan;
    int64_t head = f->share->head, end = mx_min(f->start + p->panel_keys, p->keys);
    run = unpacked(f->packed, head, f->start, end, run);
    mx_attention_rows k = mx_attention_key_rows(p, p->a->k, p->a->dtype, head, f->head_dim);
    mx_attention_rows v = mx_attention_key_rows(p, p->a->v, p->a->dtype, head, f->value_dim);
    while (run.first < run.end) {
        int64_t start = run.first / p->block_keys * p->block_keys, at = run.first - start;
        int64_t n = mx_min(start + p->block_keys, run.end) - run.first, panel_at = run.first - f->start;
        pack_across(kind, SIDE_A, &k, run.first, n, f->head_dim, f->k + panel_at * f->words);
        pack_across(kind, SIDE_A, &v, run.first, n, f->value_dim, f->v + panel_at * f->value_words);
        float *block = f->k_along + (start - f->start) / p->block_keys * f->block_words * f->height;
        pack_along(kind, SIDE_A, &k, run.first, n, mx_round_up(n, MR), f->head_dim, f->block_words,
                   block + words_of(kind, at) * MR);
        run.first += n;
    }
}

/* Packs the rows and prepares lse and delta. Lanes without a row get lse = inf, hence P = 0. */
MX_INLINE void load_rows(int kind, backward *f, int64_t row, int64_t n)
{
    const mx_attention_plan *p = f->plan;
    const mx_attention *a = p->a;
    mx_attention_rows q = mx_attention_query_rows(p, a->q, a->dtype, f->share->head, f->head_dim);
    mx_attention_rows out = mx_attention_query_rows(p, a->out, a->dtype, f->share->head, f->value_dim);
    mx_attention_rows dout = mx_attention_query_rows(p, a->dout, a->dtype, f->share->head, f->value_dim);
    int64_t lanes = mx_round_up(n, NR);
    int plain = kind == WORD_F32 ? WORD_F32 : WORD_WIDE;
    pack_across(kind, SIDE_B, &q, row, n, f->head_dim, f->q);
    pack_across(kind, SIDE_B, &dout, row, n, f->value_dim, f->dout);
    for (int64_t b = 0; b * p->block_rows < n; b++) {
        int64_t at = b * p->block_rows, part = mx_min(p->block_rows, n - at), filled = mx_round_up(part, NR);
        pack_along(kind, SIDE_B, &q, row + at, part, filled, f->head_dim, f->row_words, f->q_along + b * f->q_step);
        pack_along(kind, SIDE_B, &dout, row + at, part, filled, f->value_dim, f->row_words,
                   f->dout_along + b * f->dout_step);
    }
    for (int64_t r = 0; r < lanes; r++) {
        if (r % VL == 0)
            fetch_rows(&out, a->dtype, row + r + ROWS_AHEAD, f->value_dim);
        f->lse[r] = INFINITY;
        f->delta[r] = 0;
        float lse = r < n ? a->lse[mx_attention_lse_at(p, f->share->head, row + r)] : -INFINITY;
        if (lse == -INFINITY)
            continue;
        const void *x = mx_attention_row(&out, a->dtype, row + r), *dx = mx_attention_row(&dout, a->dtype, row + r);
        vf sum = vf_zero();
        for (int64_t d = 0; d < f->value_dim; d += VL)
            sum = vf_fma(load_words(plain, x, d, f->value_dim), load_words(plain, dx, d, f->value_dim), sum);
        f->lse[r] = lse * LOG2E;
        f->delta[r] = vf_sum(sum);
    }
}

/* dS of VL rows at one key from its score and dP; *s becomes P. `cap` is 0 or the soft cap that s went through. */
MX_INLINE vf score_gradient(int kind, vf *s, vf dp, float c, float cap, vf lse, vf delta)
{
    vf x = *s, p = vf_exp2_whole(kind != WORD_F32, vf_fma(x, vf_set1(c), vf_zero() - lse));
    vf ds = p * (dp - delta);
    if (cap > 0) {
        vf t = vf_max(vf_set1(-cap), x) * vf_set1(1.0f / cap); /* a masked score is -inf */
        ds = ds * (vf_set1(1.0f) - t * t);
    }
    *s = p;
    return ds;
}

/* P and dS of vector j of the rows of panel i of the block of rows, for n keys from key `at` of the block on, from the
 * scores s and from dp. `key`: the number of the block's first key. With dropout P becomes mask o P. */
MX_INLINE void differentiate_by(int kind, const bool drops, backward *f, int64_t i, int j, int64_t at, int64_t n,
                                float c, int64_t key)
{
    const vf drop_scale = vf_set1(f->plan->a->dropout.scale);
    drop_rows rows;
    vi word[4];
    if (drops)
        rows = drop_rows_of(f->plan, f->share->head, &f->panels[f->first + i], j);
    float cap = f->plan->a->softcap;
    int64_t row = (f->first + i) * NR + j * VL;
    vf lse = vf_load(f->lse + row), delta = vf_load(f->delta + row);
    float *s = f->s + at * f->s_row + i * f->s_panel + j * VL;
    float *dp = f->dp + at * f->s_row + i * f->s_panel + j * VL;
    for (int64_t t = 0; t < n; t += 2, s += 2 * f->s_row, dp += 2 * f->s_row) {
        vf p0 = vf_load(s), p1 = vf_load(s + f->s_row), dp0 = vf_load(dp), dp1 = vf_load(dp + f->s_row);
        int64_t place = (key + at + t) % MX_ATTENTION_MASK_KEYS;
        if (drops && (t == 0 || place == 0))
            drop_words(f->plan, &rows, key + at + t, word);
        if (drops) {
            dp0 = keep_lanes(vi_shl(word[place / 2], 16), rows.threshold, dp0 * drop_scale);
            dp1 = keep_lanes(word[place / 2], rows.threshold, dp1 * drop_scale);
        }
        vf ds0 = score_gradient(kind, &p0, dp0, c, cap, lse, delta);
        vf ds1 = score_gradient(kind, &p1, dp1, c, cap, lse, delta);
        if (drops) {
            p0 = keep_lanes(vi_shl(word[place / 2], 16), rows.threshold, p0 * drop_scale);
            p1 = keep_lanes(word[place / 2], rows.threshold, p1 * drop_scale);
        }
        if (kind == WORD_PAIR) {
            int64_t to = (at + t) * f->p_row + (i * NR + j * VL) / 2;
            bf16_lanes h0 = vf_to_bf16(ds0), h1 = vf_to_bf16(ds1);
            store_bf16(f->p + to, vf_to_bf16(p0));
            store_bf16(f->p + to + f->p_row, vf_to_bf16(p1));
            store_bf16(f->ds + to, h0);
            store_bf16(f->ds + to + f->p_row, h1);
            vf_store(f->ds_pairs + (at + t) / 2 * NR + j * VL, pair_words(h0, h1));
            if (f->plan->a->dbias) {
                vf_store(dp, ds0);
                vf_store(dp + f->s_row, ds1);
            }
        } else {
            vf_store(s, p0);
            vf_store(s + f->s_row, p1);
            vf_store(dp, ds0);
            vf_store(dp + f->s_row, ds1);
        }
    }
}

MX_INLINE void differentiate(int kind, backward *f, int64_t i, int j, int64_t at, int64_t n, float c, int64_t key)
{
    if (f->plan->a->dropout.threshold > 0)
        differentiate_by(kind, true, f, i, j, at, n, c, key);
    else
        differentiate_by(kind, false, f, i, j, at, n, c, key);
}

/* Sets dS to 0 where a segment of panel i lies between the keys of some vectors and not in theirs. */
MX_INLINE void clear_gaps(int kind, backward *f, int64_t i, const segment *s, const range *by, int64_t at)
{
    float *ds = kind == WORD_PAIR ? f->ds_pairs : f->dp + i * f->s_panel;
    int64_t step = kind == WORD_PAIR ? NR : f->s_row, from = words_of(kind, at);
    for (int j = s->first + 1; j < s->last - 1; j++)
        if (by[j].from > s->keys.from || s->keys.from >= by[j].to)
            for (int64_t w = 0; w < words_of(kind, s->keys.to - s->keys.from); w++)
                vf_store(ds + (from + w) * step + j * VL, vf_zero());
}

/* P, dS and dQ of panel i of the block of rows and a block of keys. */
MX_INLINE void differentiate_panel(int kind, backward *f, int64_t i, int64_t block)
{
    const mx_attention_plan *p = f->plan;
    int64_t start = block * p->block_keys;
    const panel *rows = &f->panels[f->first + i];
    range by[NV];
    segment segments[MAX_SEGMENTS];
    int n = cut_segments(rows, start, mx_min(start + p->block_keys, p->keys), by, segments);
    const float *q = f->q + (f->first + i) * f->words * NR, *dout = f->dout + (f->first + i) * f->value_words * NR;
    const float *k = f->k + (start - f->start) * f->words, *v = f->v + (start - f->start) * f->value_words;
    float *all_s = f->s + i * f->s_panel, *all_dp = f->dp + i * f->s_panel;
    for (const segment *s = segments; s < segments + n; s++) {
        tile_packed *multiply = tile_packed_of(kind, s->last - s->first);
        int64_t lane = s->first * VL, from = s->keys.from - start, to = s->keys.to - start;
        for (int64_t t = from; t < to; t += MR)
            multiply(f->words, k + t * f->words, q + lane, NR, all_s + t * f->s_row + lane, f->s_row, false);
        for (int64_t t = from; t < to; t += MR)
            multiply(f->value_words, v + t * f->value_words, dout + lane, NR, all_dp + t * f->s_row + lane, f->s_row,
                     false);
    }

    for (int j = 0; j < NV; j++) {
        int64_t keys = by[j].to - by[j].from, at = by[j].from - start;
        f->live[i * NV + j] = keys > 0 ? (range){at, at + keys} : (range){0, 0};
        if (keys == 0)
            continue;
        float *s = all_s + at * f->s_row + j * VL;
        float c = adjust_scores(p, f->share->head, rows, j, by[j], s, f->s_row) * LOG2E;
        differentiate(kind, f, i, j, at, keys, c, start);
        if (p->a->dbias)
            add_bias_gradient(p, f->share->head, rows, j * VL, by[j].from, by[j].to, all_dp + at * f->s_row, f->s_row);
    }

    const float *ds = kind == WORD_PAIR ? f->ds_pairs : all_dp;
    int64_t ds_row = kind == WORD_PAIR ? NR : f->s_row;
    const float *along = f->k_along + (start - f->start) / p->block_keys * f->block_words * f->height;
    float *dq = f->dq + (f->first + i) * f->height * NR;
    for (const segment *s = segments; s < segments + n; s++) {
        tile_packed *multiply = tile_packed_of(kind, s->last - s->first);
        int64_t at = words_of(kind, s->keys.from - start), words = words_of(kind, s->keys.to - s->keys.from);
        int64_t lane = s->first * VL;
        clear_gaps(kind, f, i, s, by, s->keys.from - start);
        for (int64_t d = 0; d < f->height; d += MR)
            multiply(words, along + d * f->block_words + at * MR, ds + at * ds_row + lane, ds_row, dq + d * NR + lane,
                     NR, true);
    }
}

/* Finds the vectors of the block's rows that see each group of MR of n keys, from the first to the last. Those between
 * that do not see it get P and dS of 0. A product takes whole panels where it takes 16 words of k at a time. */
MX_INLINE void set_groups(int kind, backward *f, int64_t panels, int64_t n)
{
    enum { UNIT = K_UNIT > 1 ? NV : 1 };
    size_t bytes = (size_t)words_of(kind, VL) * sizeof(float);
    for (int64_t at = 0; at < n; at += MR) {
        range found = {panels * NV, 0};
        for (int64_t j = 0; j < panels * NV; j++)
            if (f->live[j].from <= at && at < f->live[j].to) {
                found.from = mx_min(found.from, j / UNIT * UNIT);
                found.to = mx_round_up(j + 1, UNIT);
            }
        f->groups[at / MR] = found;
        for (int64_t j = found.from; j < found.to; j++) {
            bool live = f->live[j].from <= at && at < f->live[j].to;
            for (int64_t t = at; t < at + MR && !live; t++) {
                memset(f->p + t * f->p_row + words_of(kind, j * VL), 0, bytes);
                memset(f->ds + t * f->p_row + words_of(kind, j * VL), 0, bytes);
            }
        }
    }
}

/* sums += A B for n keys, the first of which is at `start` in them, `width` columns: dV += P dO, or dK += dS Q. */
MX_INLINE void add_key_gradient(int kind, const backward *f, int64_t start, int64_t n, const float *a, const float *b,
                                int64_t width, float *sums)
{
    int64_t vectors = mx_ceil_div(width, VL), columns = vectors * VL;
    for (int64_t i = 0; panel_start(vectors, i) < vectors; i++, b += f->row_words * NR) {
        int64_t d = panel_start(vectors, i) * VL;
        tile_rows *multiply = tile_rows_of(kind, mx_min(panel_start(vectors, i + 1), vectors) - d / VL);
        for (int64_t t = 0; t < n; t += MR) {
            range rows = f->groups[t / MR];
            if (rows.from >= rows.to)
                continue;
            int64_t at = words_of(kind, rows.from * VL), k = words_of(kind, (rows.to - rows.from) * VL);
            multiply(k, a + t * f->p_row + at, f->p_row, b + at * NR, sums + (start + t) * columns + d, columns);
        }
    }
}

/* dk and dv of a block of keys. */
MX_INLINE void add_key_gradients(int kind, backward *f, int64_t panels, int64_t block)
{
    const mx_attention_plan *p = f->plan;
    int64_t start = block * p->block_keys, n = mx_min(p->block_keys, p->keys - start);
    set_groups(kind, f, panels, n);
    start %= p->sum_keys;
    int64_t rows = f->first * NR / p->block_rows;
    add_key_gradient(kind, f, start, n, f->p, f->dout_along + rows * f->dout_step, f->value_dim, f->share->dv);
    add_key_gradient(kind, f, start, n, f->ds, f->q_along + rows * f->q_step, f->head_dim, f->share->dk);
}

/* All panels of rows with the keys of the panel in turn, block by block. */
MX_INLINE void differentiate_keys(int kind, backward *f, int64_t panels)
{
    const mx_attention_plan *p = f->plan;
    int64_t end = mx_min(f->start + p->panel_keys, f->share->last_key), step = p->block_rows / NR;
    pack_keys(kind, f, run_of_panels(f->panels, panels, f->start, end));
    for (f->first = 0; f->first < panels; f->first += step) {
        int64_t n = mx_min(step, panels - f->first);
        mx_attention_run keys = run_of_panels(f->panels + f->first, n, f->start, end);
        for (int64_t b = keys.first / p->block_keys; b * p->block_keys < keys.end; b++) {
            for (int64_t i = 0; i < n; i++)
                differentiate_panel(kind, f, i, b);
            add_key_gradients(kind, f, n, b);
        }
    }
}

MX_INLINE void store_rows(const backward *f, int64_t panels)
{
    const mx_attention_plan *p = f->plan;
    float scale[NR];
    for (int i = 0; i < NR; i++)
        scale[i] = p->scale;
    mx_attention_rows dq = mx_attention_query_rows(p, p->a->dq, p->a->dq_dtype, f->share->head, f->head_dim);
    for (int64_t i = 0; i < panels; i++) {
        int64_t row = f->share->first_row + i * NR;
        store_across(p->a->dq_dtype, p->stream, &dq, row, mx_min(NR, f->share->last_row - row), f->head_dim,
                     f->dq + i * f->height * NR, scale);
    }
}

MX_INLINE void backward_share(int kind, const mx_attention_plan *p, const mx_attention_share *share, void *scratch)
{
    backward f = {.share = share};
    backward_layout(kind, p, &f, scratch);
    int64_t panels = mx_ceil_div(share->last_row - share->first_row, NR);
    if (share->begins) {
        for (int64_t i = 0; i < panels; i++)
            panel_set(&f.panels[i], p, share->head, share->first_row + i * NR);
        load_rows(kind, &f, share->first_row, share->last_row - share->first_row);
        memset(f.dq, 0, (size_t)(panels * f.height * NR) * sizeof(float));
    }
    mx_attention_run keys = run_of_panels(f.panels, panels, share->first_key, share->last_key);
    products_begin();
    for (f.start = keys.first / p->panel_keys * p->panel_keys; f.start < keys.end; f.start += p->panel_keys)
        differentiate_keys(kind, &f, panels);
    products_end();
    if (share->ends)
        store_rows(&f, panels);
    if (share->ends && p->stream)
        _mm_sfence();
}

/* n <= VL values from d on of the sum that a key's row holds between two chunks; the others are 0. */
MX_INLINE vf load_sum(const bool bf16, const void *row, const uint8_t *low, int64_t d, int64_t n)
{
    if (!bf16)
        return n == VL ? vf_load((const float *)row + d) : vf_load_part((const float *)row + d, n);
    uint8_t part[VL] = {0};
    low += d;
    if (n < VL)
        low = memcpy(part, low, (size_t)n);
    const mx_bf16 *values = (const mx_bf16 *)row + d;
    vf upper = n == VL ? vf_load_bf16(values) : vf_load_bf16_part(values, n);
    return vi_float(vi_or(vf_bits(upper), vi_shl(load_bytes(low), 8)));
}

/* Rounds to 24 bits; a NaN stays one. */
MX_INLINE void store_sum(void *row, uint8_t *low, int64_t d, int64_t n, vf x)
{
    mx_bf16 part[VL];
    uint8_t low_part[VL];
    vf rounded = vi_float(vi_add(vf_bits(x), vi_set1(0x80)));
    vi bits = vf_bits(vf_select(vf_equal(x, x), rounded, x));
    store_bf16(n == VL ? (mx_bf16 *)row + d : part, upper_halves(bits));
    store_bytes(n == VL ? low + d : low_part, vi_shr(bits, 8));
    if (n < VL) {
        memcpy((mx_bf16 *)row + d, part, (size_t)n * sizeof *part);
        memcpy(low + d, low_part, (size_t)n);
    }
}

/* Adds the sum of one key to its row. */
MX_INLINE void add_key(const bool bf16, const mx_attention_keys *keys, void *row, uint8_t *low, const float *sum,
                       vf factor)
{
    bool final = keys->last || !bf16;
    for (int64_t d = 0; d < keys->width; d += VL) {
        int64_t n = mx_min(VL, keys->width - d);
        vf x = vf_load(sum + d);
        if (!keys->first)
            x = x + load_sum(bf16, row, low, d, n);
        if (final)
            store_values(bf16 ? MX_BF16 : MX_F32, row, d, x * factor, n);
        else
            store_sum(row, low, d, n, x);
    }
}

/* Sets rows of whole cache lines. */
MX_INLINE void set_keys(const bool bf16, const bool stream, const mx_attention_keys *keys, const float *sum, vf factor)
{
    int64_t sum_step = mx_round_up(keys->width, VL);
    for (int64_t i = 0; i < keys->n; i++, sum += sum_step)
        for (int64_t d = 0; d < keys->width; d += 2 * VL)
            row_store2(keys->row + i * keys->row_step, d, vf_load(sum + d) * factor, vf_load(sum + d + VL) * factor,
                       bf16, stream);
}

/* Keys that are asked for while sums are added. */
enum { KEYS_AHEAD = 16 };

void MX_SIMD_NAME(mx_attention_grad_add)(const mx_attention_keys *keys, const float *sum, float scale)
{
    vf factor = vf_set1(keys->last ? scale : 1.0f);
    const bool bf16 = mx_is_bf16(keys->dtype);
    if (keys->stream && keys->width % (2 * VL) == 0 && are_lines(keys->row, keys->row_step, keys->dtype, keys->width)) {
        bf16 ? set_keys(true, true, keys, sum, factor) : set_keys(false, true, keys, sum, factor);
        _mm_sfence();
        return;
    }
    int64_t bytes = keys->width * (int64_t)mx_dtype_bytes(keys->dtype);
    int64_t low_bytes = bf16 && !(keys->first && keys->last) ? keys->width : 0;
    for (int64_t i = 0; i < keys->n; i++, sum += mx_round_up(keys->width, VL)) {
        char *row = keys->row + i * keys->row_step, *low = keys->low + i * keys->low_step;
        for (int64_t at = 0; at < bytes; at += 64)
            __builtin_prefetch(row + KEYS_AHEAD * keys->row_step + at, 1, 2);
        for (int64_t at = 0; at < low_bytes; at += 64)
            __builtin_prefetch(low + KEYS_AHEAD * keys->low_step + at, 1, 2);
        bf16 ? add_key(true, keys, row, (uint8_t *)low, sum, factor)
             : add_key(false, keys, row, (uint8_t *)low, sum, factor);
    }
}

#if !defined(MX_SIMD_AMX)
int64_t MX_SIMD_NAME(mx_attention_grad_bytes_f32)(const mx_attention_plan *p)
{
    backward f;
    return backward_layout(WORD_F32, p, &f, NULL);
}
void MX_SIMD_NAME(mx_attention_grad_f32)(const mx_attention_plan *p, const mx_attention_share *share, void *scratch)
{
    backward_share(WORD_F32, p, share, scratch);
}
#endif

int64_t MX_SIMD_NAME(mx_attention_grad_bytes_bf16)(const mx_attention_plan *p)
{
    backward f;
    return backward_layout(WORD_BF16, p, &f, NULL);
}
void MX_SIMD_NAME(mx_attention_grad_bf16)(const mx_attention_plan *p, const mx_attention_share *share, void *scratch)
{
    backward_share(WORD_BF16, p, share, scratch);
}

#if !defined(MX_SIMD_AVX512_BF16)
int64_t MX_SIMD_NAME(mx_attention_grad_bytes_pairs)(const mx_attention_plan *p)
{
    backward f;
    return backward_layout(WORD_PAIR, p, &f, NULL);
}
void MX_SIMD_NAME(mx_attention_grad_pairs)(const mx_attention_plan *p, const mx_attention_share *share, void *scratch)
{
    backward_share(WORD_PAIR, p, share, scratch);
}
#endif
