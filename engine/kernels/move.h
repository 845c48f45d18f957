/* How elements change places, for one instruction set: squares turned over, blocks of vectors rearranged, elements
 * chosen by index. Elements have 1, 2, 4 or 8 bytes and no meaning. */
#ifndef MX_KERNELS_MOVE_H
#define MX_KERNELS_MOVE_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A rearrangement of blocks of whole vectors. Lane i of result a is lane number i of lane[a], of the input b for which
 * bit i of from[a][b] is set. */
enum { MX_PATTERN_VECTORS = 8, MX_PATTERN_LANES = 32 };
typedef struct mx_pattern {
    _Alignas(64) char lane[MX_PATTERN_VECTORS][64]; /* as integers of an element's size */
    uint32_t from[MX_PATTERN_VECTORS][MX_PATTERN_VECTORS];
    int ins, outs; /* vectors of a block, at most MX_PATTERN_VECTORS each */
} mx_pattern;

/* Keys are signed integers of the size of values, in the order of the values, or the other way round if the sign or all
 * bits are flipped. NaNs are the greatest keys either way. */
typedef struct mx_key_order {
    uint64_t flip;    /* bits that change first */
    uint64_t most;    /* the greatest one that is not NaN; ~most: the least key */
    uint64_t below_0; /* bits that change in negative ones */
} mx_key_order;

/* Elements chosen within their columns: to[k][i] = from[index[k][i]][i] for k below `rows` and i below n. Meanwhile
 * `limit` rows of `next_bytes` are copied, whose steps are in bytes. */
typedef struct mx_gather_rows {
    char *to;
    const char *from; /* `limit` rows */
    const int32_t *index;
    int64_t rows, n, limit;
    int64_t step, across; /* elements from a row to the next: of the index and of `to`, and of `from` */
    const char *next;
    char *copy;
    int64_t next_bytes, next_step, copy_step; /* next_bytes 0: nothing is copied */
} mx_gather_rows;

/* `stream`: results go past the caches where they lie at multiples of a vector, until a store fence. */
typedef struct mx_move_paths {
    /* to[c to_stride + r] = from[r from_stride + c]; strides in elements */
    void (*transpose)(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows, int64_t columns,
                      size_t element_bytes, bool stream);
    /* Copies runs of bytes that begin so many bytes apart. */
    void (*runs)(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs, int64_t bytes,
                 bool stream);
    /* Does `blocks` blocks. Input b of the first is at from[b], result a goes to to[a]; the next ones are so many bytes
     * on. */
    void (*shuffle)(const mx_pattern *p, size_t element_bytes, char *const *to, int64_t to_step,
                    const char *const *from, int64_t from_step, int64_t blocks, bool stream);
    int lanes[9]; /* of a vector for shuffle, by an element's bytes; 0: it does not take these elements */
    /* to[i] = from[index[i]] for i below n. false: an index is not in 0 .. limit - 1; then some of `to` is undefined.
     */
    bool (*gather)(void *to, const void *from, const int32_t *index, int64_t n, int64_t limit, size_t element_bytes);
    bool (*gather_rows)(const mx_gather_rows *g, size_t element_bytes, bool stream);
    bool copies; /* whether gather_rows can copy meanwhile, in elements of 2 and 4 bytes, up to 2^30 of them */
    bool (*within)(const int32_t *index, int64_t n, int64_t limit); /* whether all are in 0 .. limit - 1 */
    /* sums[index[i]] += y[i] for i below n, in this order; with `pairs` also 1 to the count behind each sum. y: f32, or
     * bf16. Asks for `more` bytes at `then` on the way. */
    void (*add)(double *sums, const int32_t *index, const void *y, int64_t n, bool bf16, bool pairs, const char *then,
                int64_t more);
    /* to[i] = from[i] + sums[i], rounded once; sums[i] = 0. f32, or bf16. from: NULL: zeros. */
    void (*add_sums)(void *to, const void *from, double *sums, int64_t n, bool bf16, bool stream);
    /* to[i] = the mean of from[i] and of pairs[2 i + 1] numbers whose sum is pairs[2 i], rounded once; these become 0.
     * afresh: from[i] only counts if there are no others. f32, bf16 or f64. */
    void (*put_means)(void *to, const void *from, double *pairs, int64_t n, mx_dtype dtype, bool afresh, bool stream);
    /* Values become keys; keys become values. `to` may be `from`. */
    void (*keys)(void *to, const void *from, int64_t n, const mx_key_order *order, size_t element_bytes);
    void (*values)(void *x, int64_t n, const mx_key_order *order, size_t element_bytes);
} mx_move_paths;

/* Patterns that the current path has vectors for; false: it has none, or too few. `lanes` is set to elements of a
 * vector. */
typedef struct mx_shuffle {
    mx_pattern pattern;
    int lanes;
    size_t element_bytes;
} mx_shuffle;

/* Each block: a vector of each of k arrays -> k vectors, with runs of `run` elements from each array in turn. */
bool mx_shuffle_join(mx_shuffle *s, int k, int64_t run, size_t element_bytes);

/* Each block: k neighbouring vectors -> a vector for each of k results, element i to result i % k. */
bool mx_shuffle_part(mx_shuffle *s, int k, size_t element_bytes);

/* Each block: lanes / run rows of `row` elements, of which there are as many vectors as hold the runs -> one vector, of
 * the first `run` elements of each row. */
bool mx_shuffle_take(mx_shuffle *s, int64_t run, int64_t row, size_t element_bytes);

/* Each block: the last element of a vector first. */
bool mx_shuffle_reverse(mx_shuffle *s, size_t element_bytes);

/* Each block: each of the first elements of a vector so many times -> vectors. */
bool mx_shuffle_repeat(mx_shuffle *s, int64_t times, size_t element_bytes);

#endif
