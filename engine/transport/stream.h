/* Streams: the values of tensors in the order in which they travel.
 *
 * A collective moves parts of tensors: whole ones, or slices along any dimension. A block says where the elements of
 * one tensor's part lie, and a stream is several blocks in a row, so that tensors that travel together are one message.
 * Elements are counted, not bytes; on the way they may have another float dtype than in the tensor. */
#ifndef MX_TRANSPORT_STREAM_H
#define MX_TRANSPORT_STREAM_H

#include "core/tensor.h"

/* `rows` runs of `row` neighbouring elements, `stride` apart; part p of the tensor lies p * `part` elements further on.
 */
typedef struct mx_block {
    char *data;
    mx_dtype dtype;
    int64_t rows, row, stride, part;
} mx_block;

typedef struct mx_stream {
    mx_block *blocks; /* all of one dtype */
    int n;
    int64_t count;    /* elements of one part */
    bool past_caches; /* whether writing goes past them: mx_stream_fence must follow before others read */
} mx_stream;

/* The block of a tensor of which a part is all. */
mx_block mx_block_whole(const mx_tensor *t);

/* The block of a tensor that is cut into `parts` along dimension `dim` (0-based), which they divide. */
mx_block mx_block_split(const mx_tensor *t, int dim, int parts);

/* Elements first .. first + n of a part to `to`, or from `from`, cast to (from) `wire`. */
void mx_stream_read(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, void *to);
void mx_stream_write(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, const void *from);

void mx_stream_fence(void);

/* Where they are, when they are neighbours in memory and of the dtype `wire`; else NULL. */
void *mx_stream_find(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire);

#endif
