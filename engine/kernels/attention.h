/* Attention by tiles, forward and backward: out = softmax(mask(cap(scale q k^T) + bias)) v, and never a tokens x tokens
 * array.
 *
 *   q, dq       (batch, queries, n_heads, head_dim)
 *   k, dk       (batch, keys, n_kv_heads, head_dim)       query head h uses head h / (n_heads / n_kv_heads)
 *   v, dv       (batch, keys, n_kv_heads, value_dim)
 *   out, dout   (batch, queries, n_heads, value_dim)
 *   lse         (batch, n_heads, queries)                 log of the sum of e^score over what a query attends to
 *
 * Query i stands at position offset + i, key j at position j. Query i >= first_query at position x attends to the key
 * at y if all of these hold:
 *
 *   y < kv_length;   causal: y <= x or y < prefix;   window: |x - y| < window;   chunk: x / chunk = y / chunk, rounded
 *   down;   intervals: first <= y < end of this query
 *
 * These masks leave each query one run of keys. A query without any key has out = 0, lse = -inf (or its sink) and
 * no gradient. Blocks of keys that no query of a block attends to take no time. Sinks (GPT-OSS) take a part of each
 * query's probability; lse includes them, so the backward pass needs no more.
 *
 * Scores, sums and gradients are f32 whatever the dtype. With bf16 operands the probabilities and score gradients are
 * rounded to bf16 for the second product where the machine multiplies bf16 (AVX512-BF16), and stay f32 elsewhere.
 * The same input gives the same bits on any number of threads. */
#ifndef MX_KERNELS_ATTENTION_H
#define MX_KERNELS_ATTENTION_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    MX_ATTENTION_MAX_KEYS = 1 << 24, /* positions are compared as f32 */
    MX_ATTENTION_MASK_KEYS = 8,      /* of one query, whose dropout one block of random numbers decides */
    MX_ATTENTION_MASK_HEADS = 4096,  /* heads from here on have the mask of a later sequence */
};

/* Dropout of the probabilities, after their sum is taken: out = (mask o softmax(...)) v. The mask is not stored:
 * backward computes it again. It depends on the seed, the numbers of sequence and head, the position of the query and
 * the key. One block of the generator (core/rng.h) has 8 numbers of 16 bits, for 8 neighbouring keys of one query. The
 * mask is 0 where the number is below `threshold`, and `scale` elsewhere. */
typedef struct mx_attention_dropout {
    uint32_t threshold; /* below 2^16; 0: no dropout */
    float scale;        /* 1 / (1 - threshold / 2^16), so that the mean of the mask is 1 */
    uint64_t seed;
    uint32_t draw;
    bool drawn;                         /* as of mx_stream (kernels/random.h) */
    int64_t first_sequence, first_head; /* numbers of the first ones */
} mx_attention_dropout;

typedef struct mx_attention {
    int64_t batch, queries, keys, n_heads, n_kv_heads, head_dim, value_dim;
    mx_dtype dtype; /* of q, k, v, out and dout: f32 or bf16 */
    const void *q, *k, *v;
    const int32_t *intervals; /* (batch, queries, 2): first key of each query, and last + 1. NULL: no limit */

    bool causal;
    int64_t window;      /* 0: none */
    int64_t chunk;       /* 0: none */
    int64_t prefix;      /* keys that all queries may attend to although causal; 0: none */
    int64_t offset;      /* position of the first query, >= 0 */
    int64_t first_query; /* those before attend to nothing */
    int64_t kv_length;   /* keys from here on are ignored; 0: all of them count */
    float softcap;       /* cap(s) = softcap tanh(s / softcap); 0: none */
    float scale;         /* > 0; 0: 1 / sqrt(head_dim) */

    /* Added to the scores; with u8, where it is 0 the query does not attend to the key. Element (b, h, i, j) is b
     * bias_batch + h bias_head + i bias_query + j from the first one; a step is 0 where it is shared. No soft cap,
     * except with u8. NULL: none. */
    const void *bias;
    mx_dtype bias_dtype; /* f32, bf16 or u8 */
    int64_t bias_batch, bias_head, bias_query;
    const float *slopes; /* (n_heads): -slope |x - y| is added to the scores; NULL: none */
    mx_attention_dropout dropout;
    const float *sinks; /* (n_heads): the score of one more key, whose value is 0; NULL: none */

    void *out;
    float *lse;

    /* Backward alone. */
    const void *dout;
    void *dq, *dk, *dv;
    mx_dtype dq_dtype, dk_dtype, dv_dtype; /* f32 or bf16 */
    float *dbias; /* in the layout of bias; the sums over what is shared are added to it. NULL: not wanted */
} mx_attention;

/* Writes out and lse. One or a few queries a head (decoding from a cache) read k and v once, at memory speed. Scratch
 * is below 2 MiB a thread, for any number of keys, unless one tile of a huge width needs more. MX_ERR_MEMORY when it
 * cannot be had. */
mx_status mx_attention_forward(const mx_attention *a);

/* Writes dq, dk and dv from q, k, v, out, lse and dout. MX_ERR_MEMORY as above. Scratch is below 2 MiB a thread for any
 * number of keys, in proportion more for heads wider than 64. Sums of dk and dv that do not fit are in dk and dv
 * themselves while there are rows left that add to them: in f32, or rounded to 24 bits with bf16 gradients. Of these,
 * 8 bits are in rows of dq that are not set yet or, if queries attend to keys after them, in memory of the call, half
 * as much as dk and dv have. */
mx_status mx_attention_backward(const mx_attention *a);

/* The mask of dropout, (batch, n_heads, queries, keys); of a, only sizes, offset and dropout are read. */
void mx_attention_dropout_mask(const mx_attention *a, float *mask);

/* The interval of each query, (batch, queries, 2): the keys that have its segment, (0, 0) without any. Segments are
 * (batch, queries) and (batch, keys). *second: -1, or the number of a key that begins a second run of its segment; then
 * intervals are not set. MX_ERR_MEMORY. */
mx_status mx_attention_intervals(int64_t batch, int64_t queries, int64_t keys, const int32_t *q_segments,
                                 const int32_t *k_segments, int32_t *intervals, int64_t *second);

/* The gradient of the sinks from sinks, out, lse and dout: dsinks (n_heads) = -sum over batch and queries of
 * e^(sink - lse) (out . dout). */
void mx_attention_sinks_backward(const mx_attention *a, float *dsinks);

/* Puts what the queries get from two sets of keys together: `sums` (f32, of the shape of out) and `lse` hold what they
 * got from some, part->out and part->lse what they got from others; then sums and lse hold what all of them give. Where
 * lse is -inf, sums need not be set. */
void mx_attention_merge(const mx_attention *part, float *sums, float *lse);

/* Pairs of query and key that may attend to each other by position (intervals ignored), of one head and one sequence.
 */
double mx_attention_pairs(const mx_attention *a);

/* The same, counted in whole blocks of block_q queries by block_kv keys: a block counts if it has such a pair. */
double mx_attention_block_pairs_of(const mx_attention *a, int64_t block_q, int64_t block_kv);

#endif
