/* Chunks: describe which elements of a larger tensor a range of memory or of a file holds.
 *
 * A box is a rectangular part of the tensor. A chunk is the elements [first, first + count) of a box in row-major
 * order. It can describe the shard of a parameter on a mesh, and the share of such a shard that one of several ranks
 * writes. Pure arithmetic on sizes and memory; nothing here fails. */
#ifndef MX_CHECKPOINT_CHUNK_H
#define MX_CHECKPOINT_CHUNK_H

#include "core/tensor.h"

typedef struct mx_chunk {
    int n_dims;                                       /* 0: a scalar, a box of one element */
    int64_t offset[MX_MAX_DIMS], extent[MX_MAX_DIMS]; /* the box, in elements of the whole tensor */
    int64_t first, count;
} mx_chunk;

/* Whether the box fits a tensor of this shape, and the elements fit the box. */
bool mx_chunk_fits(const mx_chunk *chunk, const mx_shape *whole);

/* The number of elements that both chunks hold. [*from, *to) becomes the smallest range of `have`, counted like
 * `first`, that contains them all. */
int64_t mx_chunk_overlap(const mx_chunk *want, const mx_chunk *have, int64_t *from, int64_t *to);

/* Copies the elements that both chunks hold. `values` holds the elements of `have` from `start` (counted like `first`)
 * to the end of the overlap; `out` has room for all of `want`. */
void mx_chunk_copy(const mx_chunk *want, void *out, const mx_chunk *have, int64_t start, const void *values,
                   size_t element_bytes);

#endif
