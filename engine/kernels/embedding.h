/* Embedding: looks up rows of a table by id, and adds to them for the gradient. Also the two row primitives behind
 * both. The table may be a part of a larger one: then ids of other rows give zeros, and nothing is added for them. */
#ifndef MX_KERNELS_EMBEDDING_H
#define MX_KERNELS_EMBEDDING_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>

/* The first position in ids[0 .. n) that is not in [0, vocab); -1 when all are. */
int64_t mx_embedding_find_bad(const int32_t *ids, int64_t n, int64_t vocab);

typedef struct mx_embedding {
    int64_t tokens, width;
    int64_t vocab, first; /* rows of the table, and the id of the first one */
    const int32_t *ids;   /* (tokens) */
    const void *table;    /* (vocab, width) */
    void *out;            /* (tokens, width) */
    mx_dtype table_dtype, out_dtype;
    float scale;
} mx_embedding;

/* out[t] = scale table[ids[t] - first] */
void mx_embedding_gather(const mx_embedding *e);

/* grad[ids[t] - first] += scale dy[t] for dy (tokens, width), f32 or bf16, and grad (vocab, width) f32. `replace`: grad
 * need not have values, and counts as zeros. A row is summed in the caches and written once. Each element is
 * summed in the order of t by one thread, so the bits do not depend on how many threads there are. An id that occurs
 * often is summed in f32 over 256 tokens at a time; these sums are added in f64. MX_ERR_MEMORY when there is no room
 * for them. */
typedef struct mx_embedding_sum {
    int64_t tokens, width, vocab, first;
    const int32_t *ids;
    const void *dy;
    mx_dtype dtype;
    float scale;
    float *grad;
    bool replace;
} mx_embedding_sum;
mx_status mx_embedding_add(const mx_embedding_sum *e);

/* Row primitives: to[i] = scale from[i]; to[i] += scale from[i] (rounded once), for i in [0, n); and the sum of
 * a[i] b[i] in f32. */
typedef struct mx_row_paths {
    void (*convert)(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n);
    void (*add)(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n);
    float (*dot)(const void *a, const void *b, mx_dtype dtype, int64_t n);
} mx_row_paths;

#endif
