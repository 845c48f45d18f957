/* Chunks: which elements of a larger tensor a stretch of memory or of a file holds.
 *
 * A chunk is a run of the elements of a box: the elements [first, first + count) of the box in row-major order. So it
 * says alike a part that a mesh cuts out of a parameter, and the share of such a part that one of several ranks writes.
 * Pure arithmetic on sizes and memory; nothing here fails. */
#ifndef MX_CHECKPOINT_CHUNK_H
#define MX_CHECKPOINT_CHUNK_H

#include "core/tensor.h"

typedef struct mx_chunk {
    int n_dims;                                       /* 0: a scalar, a box of one element */
    int64_t offset[MX_MAX_DIMS], extent[MX_MAX_DIMS]; /* of the box, in elements of the whole tensor */
    int64_t first, count;
} mx_chunk;

/* Whether the box lies in a tensor of this shape, and the run in the box. */
bool mx_chunk_fits(const mx_chunk *chunk, const mx_shape *whole);

/* How many elements both chunks hold; of these, [*from, *to) is the smallest run of `have` (counted as `first` is) that
 * has them all. */
int64_t mx_chunk_overlap(const mx_chunk *want, const mx_chunk *have, int64_t *from, int64_t *to);

/* Copies what both hold: `values` has the elements of `have` from its element `start` (counted as `first` is) on, up to
 * the end of that overlap; `out` has room for all of `want`. */
void mx_chunk_copy(const mx_chunk *want, void *out, const mx_chunk *have, int64_t start, const void *values,
                   size_t element_bytes);

#endif
