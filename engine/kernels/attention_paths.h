/* The functions of attention that each path provides, and the geometry that driver and paths share.
 *
 * The query heads of one kv head are handled together. Their queries form `rows`: row r is query r / group of head
 * r % group of the group, so that neighbouring rows share a position and its keys. A `head` is a (batch, kv head). */
#ifndef MX_KERNELS_ATTENTION_PATHS_H
#define MX_KERNELS_ATTENTION_PATHS_H

#include "core/rng.h"
#include "kernels/attention.h"
#include "kernels/inline.h"

#include <math.h>

typedef struct mx_attention_plan {
    const mx_attention *a;
    int64_t group, rows; /* query heads per kv head; queries * group */
    int64_t keys;        /* that count */
    float scale;
    int64_t block_rows, block_keys; /* of a tile: multiples of the path's row_unit and key_unit */
    int64_t super_rows, panel_keys; /* rows that a call takes at most, keys packed at a time: multiples of the above */
    int64_t sum_keys;               /* backward: that the sums of dk and dv hold, a multiple of block_keys */
    bool stream;                    /* results are written past the caches */
} mx_attention_plan;

/* What one call of backward computes: the gradients between these rows and keys of a head. first_key is a multiple of
 * block_keys. Several calls in a row may have the same rows and scratch: the first begins their dq, the last stores it.
 */
typedef struct mx_attention_share {
    int64_t head, first_row, last_row, first_key, last_key; /* to before last */
    bool begins, ends;
    float *dk, *dv; /* dk / scale and dv are added, (sum_keys, sum_width of the width), key t to the one at t modulo
                       sum_keys */
} mx_attention_share;

/* Rows of dk or dv, one a key, while several chunks of rows add their sums to them, one after the other. Before the
 * last one a row holds a sum that is not yet scaled: in f32, or with bf16 the upper 16 of its bits, whose next 8 are in
 * `low`. */
typedef struct mx_attention_keys {
    mx_dtype dtype;
    int64_t n, width;
    char *row, *low;            /* of the first key */
    int64_t row_step, low_step; /* bytes from one key to the next */
    bool first, last;           /* of these chunks */
    bool stream;
} mx_attention_keys;

enum {
    MX_ATTENTION_DECODE_ROWS = 16,  /* up to so many rows are decoded */
    MX_ATTENTION_DECODE_KEYS = 256, /* in one part */
    MX_ATTENTION_DECODE_BLOCK = 32,
};

static inline int64_t mx_attention_part_floats(int64_t width) { return (width + 31) / 32 * 32 + 16; }

/* Rows first to before last of a head, `step` a call. */
typedef struct mx_attention_piece {
    int64_t head, first, last, step;
} mx_attention_piece;

/* One set of loops. `scratch` holds forward_bytes (or backward_bytes) and belongs to one thread; its first 64 bytes are
 * 0xff before the first call. A path may keep data there for its next call of the same plan. */
typedef struct mx_attention_path {
    int row_unit, key_unit;
    int word_bytes;                      /* of one packed element, for the choice of block sizes */
    int64_t (*sum_width)(int64_t width); /* floats of one key in the sums of dk, or of dv */

    /* first_row is a multiple of block_rows, as in backward. */
    int64_t (*forward_bytes)(const mx_attention_plan *p);
    void (*forward)(const mx_attention_plan *p, int64_t head, int64_t first_row, int64_t last_row, void *scratch);

    int64_t (*backward_bytes)(const mx_attention_plan *p);
    void (*backward)(const mx_attention_plan *p, const mx_attention_share *share, void *scratch);

    /* Adds the sums of a chunk, sum_width floats a key, to keys of dk or dv. The last chunk multiplies by `scale`. */
    void (*add)(const mx_attention_keys *keys, const float *sum, float scale);

    /* For few rows: what keys first to before last of a sequence give each row of each kv head, part_floats of v's
     * width a row: the largest score times log2(e), the sum of the probabilities relative to it, and from 16 on the
     * sums of probability times v. `scratch` holds for each such row part_floats of the larger width and DECODE_BLOCK
     * floats. NULL: not offered. */
    void (*decode)(const mx_attention_plan *p, int64_t batch, int64_t first, int64_t last, float *part, float *scratch);
} mx_attention_path;

enum {
    MX_ATTENTION_SUPER_ROWS = 2048,               /* of a call */
    MX_ATTENTION_SCRATCH = (2 << 20) - (8 << 10), /* bytes of scratch of a thread; rounded up below 2 MiB */
};

/* The driver with a given path, for tests. A thread takes up to `scratch`, or what one tile needs. */
mx_status mx_attention_forward_by(const mx_attention_path *path, const mx_attention *a, int64_t scratch);
mx_status mx_attention_backward_by(const mx_attention_path *path, const mx_attention *a, int64_t scratch);

/* ---- what the drivers of both directions share ---- */

int mx_attention_threads(void);
const mx_attention_path *mx_attention_path_of(const mx_attention *a);
mx_attention_plan mx_attention_plan_of(const mx_attention *a);
bool mx_attention_is_empty(const mx_attention *a);

/* Chooses the rows and keys of a tile, about square. It touches `per_row` bytes for each row, `per_key` for each key
 * and `per_pair` for each pair; all of that fits into `cache` bytes. */
void mx_attention_choose_blocks(mx_attention_plan *p, const mx_attention_path *path, int64_t per_row, int64_t per_key,
                                double per_pair, double cache);

/* If the scratch of a thread, and key_bytes for each key of a panel, stay within `limit`, the keys of a head are packed
 * as a whole, and a call takes a block of rows. Otherwise keys are packed in panels, for each call again, and a call
 * takes as many rows as fit, at most max_rows and as many queries as a query has keys in the mean. */
void mx_attention_choose_panels(mx_attention_plan *p, int64_t (*bytes)(const mx_attention_plan *), int64_t key_bytes,
                                int64_t max_rows, int64_t limit);

/* The pieces into which the rows of each head are cut for threads, and piece i of all heads. */
int64_t mx_attention_pieces(const mx_attention_plan *p, int64_t heads, int threads);
mx_attention_piece mx_attention_piece_of(const mx_attention_plan *p, int64_t pieces, int64_t i);

/* One scratch a thread, each ready for the first call; again ready for the first call of another plan. */
mx_status mx_attention_scratch_new(int threads, int64_t bytes, char **scratch);
void mx_attention_scratch_reset(int threads, int64_t bytes, char *scratch);

extern const mx_attention_path mx_attention_portable; /* of either dtype */

/* The AVX512-BF16 path with two multiplications in place of its dot product of pairs. Its packing can then be tested on
 * processors that lack the instruction. */
extern const mx_attention_path mx_attention_pairs_avx2, mx_attention_pairs_avx512;

/* Rows of a tensor as the paths see them: row r starts at base + (r / group) * outer + (r % group) * inner elements. */
typedef struct mx_attention_rows {
    const void *base;
    int64_t group, outer, inner;
} mx_attention_rows;

static inline const void *mx_attention_row(const mx_attention_rows *rows, mx_dtype dtype, int64_t r)
{
    int64_t group = rows->group, at = group == 1 ? r * rows->outer : r / group * rows->outer + r % group * rows->inner;
    return (const char *)rows->base + at * (int64_t)mx_dtype_bytes(dtype);
}

/* The rows of a head in a tensor like q or out, and the keys of a head in one like k or v, with `width` features. */
static inline mx_attention_rows mx_attention_query_rows(const mx_attention_plan *p, const void *x, mx_dtype dtype,
                                                        int64_t head, int64_t width)
{
    const mx_attention *a = p->a;
    int64_t batch = head / a->n_kv_heads, kv_head = head % a->n_kv_heads;
    int64_t at = (batch * a->queries * a->n_heads + kv_head * p->group) * width;
    const char *base = (const char *)x + at * (int64_t)mx_dtype_bytes(dtype);
    return (mx_attention_rows){base, p->group, a->n_heads * width, width};
}

static inline mx_attention_rows mx_attention_key_rows(const mx_attention_plan *p, const void *x, mx_dtype dtype,
                                                      int64_t head, int64_t width)
{
    const mx_attention *a = p->a;
    int64_t batch = head / a->n_kv_heads, kv_head = head % a->n_kv_heads;
    int64_t at = (batch * a->keys * a->n_kv_heads + kv_head) * width;
    const char *base = (const char *)x + at * (int64_t)mx_dtype_bytes(dtype);
    return (mx_attention_rows){base, 1, a->n_kv_heads * width, 0};
}

/* The query of a row; a division takes as long as packing some values. */
static inline int64_t mx_attention_query(const mx_attention_plan *p, int64_t row)
{
    return p->group == 1 ? row : row / p->group;
}

/* Where lse of a row is. */
static inline int64_t mx_attention_lse_at(const mx_attention_plan *p, int64_t head, int64_t row)
{
    const mx_attention *a = p->a;
    int64_t q_head = head / a->n_kv_heads * a->n_heads + head % a->n_kv_heads * p->group,
            query = mx_attention_query(p, row);
    return (q_head + row - query * p->group) * a->queries + query;
}

/* The number of a row's query head, from 0. */
static inline int64_t mx_attention_q_head(const mx_attention_plan *p, int64_t head, int64_t row)
{
    return head % p->a->n_kv_heads * p->group + row - mx_attention_query(p, row) * p->group;
}

/* Ends the sums of a row: `top` is its largest score times log2(e), *sum that of the probabilities relative to it. Adds
 * the sink and writes lse. The row's result is its sums of probability times v, times what is returned, over *sum. */
static inline float mx_attention_end_row(const mx_attention_plan *p, int64_t head, int64_t row, float top, float *sum)
{
    const mx_attention *a = p->a;
    float sink = a->sinks ? a->sinks[mx_attention_q_head(p, head, row)] * 1.44269504f : -INFINITY, keep = 1;
    if (sink != -INFINITY) {
        float most = sink > top ? sink : top;
        keep = exp2f(top - most);
        *sum = *sum * keep + exp2f(sink - most);
        top = most;
    }
    a->lse[mx_attention_lse_at(p, head, row)] = *sum == 0.0f ? -INFINITY : (top + log2f(*sum)) * 0.693147181f;
    return keep;
}

/* The bias of a row for key 0, and where it is; and the position of a row and its slope. */
static inline int64_t mx_attention_bias_at(const mx_attention_plan *p, int64_t head, int64_t row)
{
    const mx_attention *a = p->a;
    return head / a->n_kv_heads * a->bias_batch + mx_attention_q_head(p, head, row) * a->bias_head +
           mx_attention_query(p, row) * a->bias_query;
}

static inline float mx_attention_slope(const mx_attention_plan *p, int64_t head, int64_t row)
{
    return p->a->slopes ? p->a->slopes[mx_attention_q_head(p, head, row)] : 0.0f;
}

/* Three of the four words of the generator's counter, for dropout. The fourth is `draw`. Bit 29 of the keys' word is
 * set in no counter of other draws. */
static inline uint32_t mx_attention_counter_query(const mx_attention_plan *p, int64_t query)
{
    return (uint32_t)(p->a->offset + query);
}
static inline uint32_t mx_attention_counter_head(const mx_attention_plan *p, int64_t batch, int64_t q_head)
{
    const mx_attention_dropout *d = &p->a->dropout;
    return (uint32_t)((d->first_sequence + batch) * MX_ATTENTION_MASK_HEADS + d->first_head + q_head);
}
static inline uint32_t mx_attention_counter_keys(const mx_attention_plan *p, int64_t key)
{
    return 1u << 29 | (p->a->dropout.drawn ? 1u << 31 : 0) | (uint32_t)(key / MX_ATTENTION_MASK_KEYS);
}

/* What the probability of a query of a head and a key is multiplied by, one at a time. */
static inline float mx_attention_mask_at(const mx_attention_plan *p, int64_t batch, int64_t q_head, int64_t query,
                                         int64_t key)
{
    const mx_attention_dropout *d = &p->a->dropout;
    uint64_t block = (uint64_t)mx_attention_counter_keys(p, key) << 32 | mx_attention_counter_query(p, query);
    uint32_t word[4];
    mx_philox(d->seed, (uint64_t)mx_attention_counter_head(p, batch, q_head) << 32 | d->draw, block, word);
    int64_t i = key % MX_ATTENTION_MASK_KEYS;
    return (word[i / 2] >> 16 * (i % 2) & 0xffff) < d->threshold ? 0 : d->scale;
}

/* A run of keys: first to before end; empty if first >= end. */
typedef struct mx_attention_run {
    int64_t first, end;
} mx_attention_run;

/* The keys of query i by its position alone. */
static inline mx_attention_run mx_attention_positions(const mx_attention_plan *p, int64_t i)
{
    const mx_attention *a = p->a;
    int64_t x = a->offset + i, start = a->chunk > 0 ? x / a->chunk * a->chunk : 0;
    mx_attention_run run = {start, i < a->first_query ? 0 : p->keys};
    if (a->causal)
        run.end = mx_min(run.end, mx_max(x + 1, a->prefix));
    if (a->window > 0 && x - a->window >= run.first)
        run.first = x - a->window + 1;
    if (a->window > 0 && a->window < run.end - x)
        run.end = x + a->window;
    if (a->chunk > 0 && a->chunk < run.end - start)
        run.end = start + a->chunk;
    return run;
}

/* The keys of a row of a head. */
static inline mx_attention_run mx_attention_run_of(const mx_attention_plan *p, int64_t head, int64_t row)
{
    const mx_attention *a = p->a;
    int64_t i = mx_attention_query(p, row);
    mx_attention_run run = mx_attention_positions(p, i);
    if (a->intervals) {
        const int32_t *own = a->intervals + 2 * (head / a->n_kv_heads * a->queries + i);
        run.first = mx_max(run.first, own[0]);
        run.end = mx_min(run.end, own[1]);
    }
    return run;
}

/* The smallest run that contains the keys of rows first to before last. */
static inline mx_attention_run mx_attention_run_of_rows(const mx_attention_plan *p, int64_t head, int64_t first,
                                                        int64_t last)
{
    mx_attention_run all = {p->keys, 0};
    for (int64_t row = first; row < last; row = (mx_attention_query(p, row) + 1) * p->group) {
        mx_attention_run run = mx_attention_run_of(p, head, row);
        if (run.first < run.end) {
            all.first = mx_min(all.first, run.first);
            all.end = mx_max(all.end, run.end);
        }
    }
    return all;
}

#endif
