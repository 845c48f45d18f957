/* The functions of attention that each path provides, and the geometry that driver and paths share.
 *
 * The query heads of one kv head are handled together. Their queries form `rows`: row r is query r / group of head
 * r % group of the group, so that neighbouring rows share a position and its keys. A `head` is a (batch, kv head). */
#ifndef MX_KERNELS_ATTENTION_PATHS_H
#define MX_KERNELS_ATTENTION_PATHS_H

#include "kernels/attention.h"

typedef struct mx_attention_plan {
    const mx_attention *a;
    int64_t group, rows; /* query heads per kv head; queries * group */
    int64_t keys;        /* that count */
    float scale;
    int64_t block_rows, block_keys; /* of a tile: multiples of the path's row_unit and key_unit */
    int64_t chunks;                 /* into which the backward of one head is cut, by blocks of rows taken in turn */
} mx_attention_plan;

enum {
    MX_ATTENTION_DECODE_ROWS = 16,  /* up to so many rows are decoded */
    MX_ATTENTION_DECODE_KEYS = 256, /* in one part */
    MX_ATTENTION_DECODE_BLOCK = 32,
};

static inline int64_t mx_attention_part_floats(int64_t width) { return (width + 31) / 32 * 32 + 16; }

/* One set of loops. `scratch` holds forward_bytes (or backward_bytes) and belongs to one thread; its first 64 bytes are
 * 0xff before the first call. A path may keep data there for its next call of the same plan. */
typedef struct mx_attention_path {
    int row_unit, key_unit;
    int word_bytes;                      /* of one packed element, for the choice of block sizes */
    int64_t (*sum_width)(int64_t width); /* floats of one key in the sums of dk and dv */

    int64_t (*forward_bytes)(const mx_attention_plan *p);
    void (*forward)(const mx_attention_plan *p, int64_t head, int64_t first_row, int64_t last_row, void *scratch);

    /* The chunk's share of dk / scale and dv, each (keys up to a multiple of block_keys, sum_width), and its rows
     * of dq. */
    int64_t (*backward_bytes)(const mx_attention_plan *p);
    void (*backward)(const mx_attention_plan *p, int64_t head, int64_t chunk, float *dk, float *dv, void *scratch);

    /* One key of dk or dv: `scale` times the sum of `n` chunks, `step` floats apart, in order; zero without any. */
    void (*store)(mx_dtype dtype, void *row, int64_t width, const float *sum, int64_t n, int64_t step, float scale);

    /* For few rows: what keys first to before last of a sequence give each row of each kv head, part_floats a row: the
     * largest score times log2(e), the sum of the probabilities relative to it, and from 16 on the sums of probability
     * times v. `scratch` holds for each such row part_floats and DECODE_BLOCK floats. NULL: not offered. */
    void (*decode)(const mx_attention_plan *p, int64_t batch, int64_t first, int64_t last, float *part, float *scratch);
} mx_attention_path;

/* The driver with a given path, for tests. */
mx_status mx_attention_forward_by(const mx_attention_path *path, const mx_attention *a);
mx_status mx_attention_backward_by(const mx_attention_path *path, const mx_attention *a);

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
    int64_t at = r / rows->group * rows->outer + r % rows->group * rows->inner;
    return (const char *)rows->base + at * (int64_t)mx_dtype_bytes(dtype);
}

/* The rows of a head in a tensor shaped like q, and the keys of a head in one shaped like k. */
static inline mx_attention_rows mx_attention_query_rows(const mx_attention_plan *p, const void *x, mx_dtype dtype,
                                                        int64_t head)
{
    const mx_attention *a = p->a;
    int64_t batch = head / a->n_kv_heads, kv_head = head % a->n_kv_heads;
    int64_t at = (batch * a->queries * a->n_heads + kv_head * p->group) * a->head_dim;
    const char *base = (const char *)x + at * (int64_t)mx_dtype_bytes(dtype);
    return (mx_attention_rows){base, p->group, a->n_heads * a->head_dim, a->head_dim};
}

static inline mx_attention_rows mx_attention_key_rows(const mx_attention_plan *p, const void *x, mx_dtype dtype,
                                                      int64_t head)
{
    const mx_attention *a = p->a;
    int64_t batch = head / a->n_kv_heads, kv_head = head % a->n_kv_heads;
    int64_t at = (batch * a->keys * a->n_kv_heads + kv_head) * a->head_dim;
    const char *base = (const char *)x + at * (int64_t)mx_dtype_bytes(dtype);
    return (mx_attention_rows){base, 1, a->n_kv_heads * a->head_dim, 0};
}

/* Where lse of a row is. */
static inline int64_t mx_attention_lse_at(const mx_attention_plan *p, int64_t head, int64_t row)
{
    const mx_attention *a = p->a;
    int64_t q_head = head / a->n_kv_heads * a->n_heads + head % a->n_kv_heads * p->group + row % p->group;
    return q_head * a->queries + row / p->group;
}

/* The bias of a row for key 0, and where it is; and the position of a row and its slope. */
static inline int64_t mx_attention_bias_at(const mx_attention_plan *p, int64_t head, int64_t row)
{
    const mx_attention *a = p->a;
    int64_t q_head = head % a->n_kv_heads * p->group + row % p->group;
    return head / a->n_kv_heads * a->bias_batch + q_head * a->bias_head + row / p->group * a->bias_query;
}

static inline float mx_attention_slope(const mx_attention_plan *p, int64_t head, int64_t row)
{
    return p->a->slopes ? p->a->slopes[head % p->a->n_kv_heads * p->group + row % p->group] : 0.0f;
}

/* The keys that a row may attend to by position: *first to *last, empty when *first > *last. Both grow with row. */
static inline void mx_attention_interval(const mx_attention_plan *p, int64_t row, int64_t *first, int64_t *last)
{
    const mx_attention *a = p->a;
    int64_t position = a->offset + row / p->group;
    if (row / p->group < a->first_query) {
        *first = 0;
        *last = -1;
        return;
    }
    *first = a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
    *last = p->keys - 1;
    if (a->causal && position < *last)
        *last = position;
    if (!a->causal && a->window > 0 && a->window - 1 < *last - position)
        *last = position + a->window - 1;
    if (*first > p->keys)
        *first = p->keys;
}

#endif
