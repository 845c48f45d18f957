/* Streams: the order in which the elements of one or more tensors travel.
 *
 * A collective moves parts of tensors: whole tensors, or slices along any dimension. A block says where the elements of
 * one tensor's part are in memory. A stream is a sequence of blocks, so that several tensors can travel as one message.
 * Counts are in elements. On the wire elements may have another float dtype than in the tensor. */
#ifndef MX_TRANSPORT_STREAM_H
#define MX_TRANSPORT_STREAM_H

#include "core/tensor.h"

/* `rows` runs of `row` contiguous elements, `stride` elements apart; part p starts p * `part` elements after `data`. */
typedef struct mx_block {
    char *data; /* on the device; the functions below want host memory */
    mx_dtype dtype;
    int64_t rows, row, stride, part;
} mx_block;

typedef struct mx_stream {
    mx_block *blocks; /* all of one dtype */
    int n;
    int64_t count;    /* elements of one part */
    bool past_caches; /* writes bypass the caches: call mx_stream_fence before others read */
} mx_stream;

/* The block of a whole tensor as one part. */
mx_block mx_block_whole(const mx_tensor *t);

/* The block of a tensor that is split into `parts` equal parts along dimension `dim` (0-based); `parts` divides it. */
mx_block mx_block_split(const mx_tensor *t, int dim, int parts);

/* Copies the n elements of a part that begin at `first` to `to` (from `from`), cast to (from) the dtype `wire`. */
void mx_stream_read(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, void *to);
void mx_stream_write(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, const void *from);

void mx_stream_fence(void);

/* The address of these elements if they are contiguous in memory and have the dtype `wire`; otherwise NULL. */
void *mx_stream_find(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire);

#endif
