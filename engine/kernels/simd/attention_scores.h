/* Scores of tiled attention between the products: which keys the rows of a panel attend to, masks, caps, slopes and
 * biases. Rows (queries) are in lanes, as in attention_tile.h. */
#ifndef MX_KERNELS_SIMD_ATTENTION_SCORES_H
#define MX_KERNELS_SIMD_ATTENTION_SCORES_H

#include "kernels/simd/attention_tile.h"
#include "kernels/simd/philox.h"

/* ---- rows in lanes ---- */

/* The keys that VL rows may attend to. */
typedef struct vector_keys {
    int64_t first_min, end_max; /* keys that any row attends to */
    int64_t first_max, end_min; /* keys that all rows attend to */
} vector_keys;

/* The keys that NR rows (queries) may attend to, one row a lane. Lanes beyond the last row repeat it. */
typedef struct panel {
    int64_t row;                /* the first */
    float first[NR], end[NR];   /* by row: positions of its first key, and of its last + 1 */
    int64_t first_min, end_max; /* keys that any row attends to */
    vector_keys by[NV];
} panel;

static inline void panel_set(panel *w, const mx_attention_plan *p, int64_t head, int64_t row)
{
    w->row = row;
    w->first_min = p->keys;
    w->end_max = 0;
    for (int j = 0; j < NV; j++) {
        vector_keys l = {p->keys, 0, 0, p->keys};
        for (int i = j * VL; i < (j + 1) * VL; i++) {
            mx_attention_run run = mx_attention_run_of(p, head, mx_min(row + i, p->rows - 1));
            w->first[i] = (float)run.first;
            w->end[i] = (float)run.end;
            l.first_max = mx_max(l.first_max, run.first);
            l.end_min = mx_min(l.end_min, run.end);
            if (run.first < run.end) {
                l.first_min = mx_min(l.first_min, run.first);
                l.end_max = mx_max(l.end_max, run.end);
            }
        }
        w->by[j] = l;
        w->first_min = mx_min(w->first_min, l.first_min);
        w->end_max = mx_max(w->end_max, l.end_max);
    }
}

/* Keys from to before to, in whole groups of MR; those of each vector of a panel's rows; none: 0 to 0. */
typedef struct range {
    int64_t from, to;
} range;

MX_INLINE range range_of(const vector_keys *l, int64_t start, int64_t end)
{
    int64_t low = mx_max(start, l->first_min), high = mx_min(end, l->end_max);
    return low < high ? (range){low / MR * MR, mx_round_up(high, MR)} : (range){0, 0};
}

/* Keys that the same vectors of a panel's rows need: those from vector `first` to before `last`, and perhaps not all
 * between. */
typedef struct segment {
    range keys;
    int first, last;
} segment;
enum { MAX_SEGMENTS = 2 * NV };

/* Cuts the keys of block [start, end) that a panel needs into segments, in order; returns their number. `by`: the keys
 * of each vector. */
static inline int cut_segments(const panel *w, int64_t start, int64_t end, range *by, segment *segments)
{
    int64_t from = INT64_MAX, to = 0;
    for (int j = 0; j < NV; j++) {
        by[j] = range_of(&w->by[j], start, end);
        if (by[j].to > 0) {
            from = mx_min(from, by[j].from);
            to = mx_max(to, by[j].to);
        }
    }
    int n = 0;
    while (from < to) {
        segment s = {{from, to}, NV, 0};
        for (int j = 0; j < NV; j++) {
            bool in = by[j].from <= from && from < by[j].to;
            if (in) {
                s.first = mx_min(s.first, j);
                s.last = j + 1;
            }
            int64_t next = in ? by[j].to : by[j].from > from ? by[j].from : to;
            s.keys.to = mx_min(s.keys.to, next);
        }
        from = s.keys.to;
        if (s.last > 0)
            segments[n++] = s;
    }
    return n;
}

/* The keys that any of n panels needs, of keys start to before end; empty: first >= end. */
static inline mx_attention_run run_of_panels(const panel *w, int64_t n, int64_t start, int64_t end)
{
    mx_attention_run run = {INT64_MAX, 0};
    for (int64_t i = 0; i < n; i++) {
        run.first = mx_min(run.first, w[i].first_min);
        run.end = mx_max(run.end, w[i].end_max);
    }
    run.first = mx_max(run.first, start);
    run.end = mx_min(run.end, end);
    return run.first < run.end ? run : (mx_attention_run){start, start};
}

/* Which keys of which head are packed: first to before end of the panel of keys from `start` on. */
typedef struct packed_keys {
    int64_t head, start, first, end;
} packed_keys;

/* The keys of a run that are not packed yet, in whole units of what is packed at a time. From then on they count as
 * packed. */
static inline mx_attention_run unpacked(packed_keys *p, int64_t head, int64_t start, int64_t keys, mx_attention_run run)
{
    enum { UNIT = 2 * VL };
    int64_t first = mx_max(run.first / UNIT * UNIT, start), end = mx_min(mx_round_up(run.end, UNIT), keys);
    bool same = p->head == head && p->start == start;
    if (same && p->first <= first && first <= p->end) {
        run = (mx_attention_run){p->end, end};
        p->end = mx_max(p->end, end);
    } else if (same && p->first <= end && end <= p->end) {
        run = (mx_attention_run){first, p->first};
        p->first = first;
    } else {
        run = (mx_attention_run){first, end};
        *p = (packed_keys){head, start, first, end};
    }
    return run;
}

/* Scores of vector j of the rows of a panel with some keys, ld apart: those of pairs that may not attend become -inf.
 */
MX_INLINE void mask_scores(const panel *w, int j, range keys, float *s, int64_t ld)
{
    vf first = vf_load(w->first + j * VL), end = vf_load(w->end + j * VL), never = vf_set1(-INFINITY);
    for (int64_t t = keys.from; t < keys.to; t++, s += ld) {
        if (t >= w->by[j].first_max && t < w->by[j].end_min) {
            int64_t all = mx_min(keys.to, w->by[j].end_min) - 1;
            s += (all - t) * ld;
            t = all;
            continue;
        }
        vf key = vf_set1((float)t);
        vf_store(s, vf_select(vm_and(vf_ge(key, first), vf_gt(end, key)), vf_load(s), never));
    }
}

/* s = cap tanh(s scale / cap) for a vector of rows and n keys. */
MX_INLINE void cap_scores(float scale, float cap, int64_t n, float *s, int64_t ld)
{
    for (int64_t t = 0; t < n; t++, s += ld)
        vf_store(s, vf_tanh_cap(vf_load(s) * vf_set1(scale / cap)) * vf_set1(cap));
}

/* ---- bias: its rows run along the keys, so tiles of it are transposed ---- */

/* VL values of a row of bias from key t on: zeros beyond n more keys. A mask gives 0 or -inf. */
MX_INLINE vf bias_along(const mx_attention *a, int64_t at, int64_t n)
{
    if (a->bias_dtype == MX_F32)
        return load_words(WORD_F32, (const float *)a->bias + at, 0, n);
    if (a->bias_dtype == MX_BF16)
        return load_words(WORD_WIDE, (const mx_bf16 *)a->bias + at, 0, n);
    const uint8_t *mask = (const uint8_t *)a->bias + at;
    float lane[VL];
    for (int i = 0; i < VL; i++)
        lane[i] = i < n && !mask[i] ? -INFINITY : 0.0f;
    return vf_load(lane);
}

/* s = scale s + bias of VL rows from lane r on, for keys from to before to. */
static inline void add_bias(const mx_attention_plan *p, int64_t head, const panel *w, int r, int64_t from, int64_t to,
                            vf scale, float *s, int64_t ld)
{
    for (int64_t t = from; t < to; t += VL) {
        vf x[VL];
        for (int i = 0; i < VL; i++) {
            bool there = w->row + r + i < p->rows && t < p->keys;
            x[i] = there ? bias_along(p->a, mx_attention_bias_at(p, head, w->row + r + i) + t, p->keys - t) : vf_zero();
        }
        transpose(x);
        for (int64_t i = 0; i < VL && t + i < to; i++) {
            float *at = s + (t - from + i) * ld + r;
            vf_store(at, vf_fma(vf_load(at), scale, x[i]));
        }
    }
}

/* s = scale s - slope |position - key| of VL rows from lane r on. */
static inline void add_slopes(const mx_attention_plan *p, int64_t head, const panel *w, int r, int64_t from, int64_t to,
                              vf scale, float *s, int64_t ld)
{
    float slope[VL], position[VL];
    for (int i = 0; i < VL; i++) {
        int64_t row = mx_min(w->row + r + i, p->rows - 1);
        slope[i] = -mx_attention_slope(p, head, row);
        int64_t query = mx_attention_query(p, row);
        position[i] = (float)(p->a->offset + query);
    }
    vf by = vf_load(slope), x = vf_load(position);
    for (int64_t t = from; t < to; t++, s += ld)
        vf_store(s + r, vf_fma(by, vf_abs(x - vf_set1((float)t)), vf_load(s + r) * scale));
}

/* Caps the scores of vector j of the rows of a panel with some keys, adds the bias, and masks them. Returns the factor
 * that they have yet to be multiplied by. */
MX_INLINE float adjust_scores(const mx_attention_plan *p, int64_t head, const panel *w, int j, range keys, float *s,
                              int64_t ld)
{
    const mx_attention *a = p->a;
    float scale = p->scale, *panel_s = s - j * VL;
    if (a->softcap > 0) {
        cap_scores(scale, a->softcap, keys.to - keys.from, s, ld);
        scale = 1;
    }
    if (a->slopes)
        add_slopes(p, head, w, j * VL, keys.from, keys.to, vf_set1(scale), panel_s, ld);
    if (a->bias)
        add_bias(p, head, w, j * VL, keys.from, keys.to, vf_set1(a->slopes ? 1.0f : scale), panel_s, ld);
    mask_scores(w, j, keys, s, ld);
    return a->slopes || a->bias ? 1.0f : scale;
}

/* ---- dropout ---- */

/* The counters of vector j of the rows of a panel (attention_paths.h), without the keys. */
typedef struct drop_rows {
    vi query, head, threshold; /* threshold: in both halves of a lane */
} drop_rows;

static inline drop_rows drop_rows_of(const mx_attention_plan *p, int64_t head, const panel *w, int j)
{
    int64_t row = w->row + j * VL, query = mx_attention_query(p, row), part = row - query * p->group;
    int64_t batch = head / p->a->n_kv_heads, first = head % p->a->n_kv_heads * p->group;
    int32_t queries[VL], heads[VL];
    for (int i = 0; i < VL; i++) {
        queries[i] = (int32_t)mx_attention_counter_query(p, query);
        heads[i] = (int32_t)mx_attention_counter_head(p, batch, first + part);
        part++;
        query += part == p->group;
        part = part == p->group ? 0 : part;
    }
    int32_t threshold = (int32_t)(p->a->dropout.threshold * 0x10001u);
    return (drop_rows){vi_load(queries), vi_load(heads), vi_set1(threshold)};
}

/* The numbers of the rows and MX_ATTENTION_MASK_KEYS keys from `key` on: word u has those of keys 2 u and 2 u + 1 in
 * the lower and the upper half of each lane. */
MX_INLINE void drop_words(const mx_attention_plan *p, const drop_rows *rows, int64_t key, vi word[4])
{
    const mx_attention_dropout *d = &p->a->dropout;
    const vi counter[4] = {rows->query, vi_set1((int32_t)mx_attention_counter_keys(p, key)), vi_set1((int32_t)d->draw),
                           rows->head};
    philox(d->seed, counter, word);
}

/* x where the numbers in the upper halves of lanes are not below those of the threshold, otherwise 0. */
MX_INLINE vf keep_lanes(vi number, vi threshold, vf x)
{
    threshold = vi_and(threshold, vi_set1((int32_t)0xffff0000));
#if MX_SIMD_512
    return _mm512_maskz_mov_ps(_mm512_cmpge_epu32_mask(number, threshold), x);
#else
    return _mm256_and_ps(x, vi_float(_mm256_cmpeq_epi32(_mm256_max_epu32(number, threshold), number)));
#endif
}

/* The same of pairs of bf16 and of numbers. */
MX_INLINE vf keep_pairs(vi numbers, vi threshold, vf x)
{
#if MX_SIMD_512
    return vi_float(_mm512_maskz_mov_epi16(_mm512_cmpge_epu16_mask(numbers, threshold), vf_bits(x)));
#else
    return _mm256_and_ps(x, vi_float(_mm256_cmpeq_epi16(_mm256_max_epu16(numbers, threshold), numbers)));
#endif
}

/* Drops some of the probabilities of vector j of the rows of a panel and some keys; `keys` begin at word 0 of p. */
MX_INLINE void drop_probabilities(int kind, const mx_attention_plan *plan, int64_t head, const panel *w, int j,
                                  range keys, float *p)
{
    enum { GROUP = MX_ATTENTION_MASK_KEYS };
    const drop_rows rows = drop_rows_of(plan, head, w, j);
    for (int64_t t = keys.from / GROUP * GROUP; t < keys.to; t += GROUP) {
        vi word[4];
        drop_words(plan, &rows, t, word);
        for (int64_t u = mx_max(keys.from - t, 0) / 2; u < GROUP / 2 && t + 2 * u < keys.to; u++) {
            float *at = p + words_of(kind, t + 2 * u - keys.from) * NR;
            if (kind == WORD_PAIR) {
                vf_store(at, keep_pairs(word[u], rows.threshold, vf_load(at)));
            } else {
                vf_store(at, keep_lanes(vi_shl(word[u], 16), rows.threshold, vf_load(at)));
                vf_store(at + NR, keep_lanes(word[u], rows.threshold, vf_load(at + NR)));
            }
        }
    }
}

/* Adds the gradient of the scores of VL rows from lane r on to that of the bias. */
static inline void add_bias_gradient(const mx_attention_plan *p, int64_t head, const panel *w, int r, int64_t from,
                                     int64_t to, const float *ds, int64_t ld)
{
    to = mx_min(to, p->keys);
    for (int64_t t = from; t < to; t += VL) {
        vf x[VL];
        int64_t n = mx_min(VL, to - t);
        for (int64_t i = 0; i < VL; i++)
            x[i] = i < n ? vf_load(ds + (t - from + i) * ld + r) : vf_zero();
        transpose(x);
        for (int i = 0; i < VL && w->row + r + i < p->rows; i++) {
            float *sum = p->a->dbias + mx_attention_bias_at(p, head, w->row + r + i) + t;
            if (n == VL)
                vf_store(sum, vf_load(sum) + x[i]);
            else
                vf_store_part(sum, vf_load_part(sum, n) + x[i], n);
        }
    }
}

#endif
