/* Streams: the order in which the elements of one or more tensors travel.
 *
 * A collective moves parts of tensors: whole tensors, or slices along any dimension. A block says where the elements of
 * one tensor's part are in memory. A stream is a sequence of blocks, so that several tensors can travel as one message.
 * Counts are in elements. On the wire elements may have another float dtype than in the tensor, and all parts have the
 * same number of elements: if the parts of a tensor differ, the shorter ones are padded with zeros. Padding has no
 * place in memory: reading gives zeros, and writing discards it. */
#ifndef MX_TRANSPORT_STREAM_H
#define MX_TRANSPORT_STREAM_H

#include "core/tensor.h"

/* `rows` runs of `row` contiguous elements, `stride` elements apart; part p starts p * `part` elements after `data`. If
 * the parts differ, `row` is that of parts 0 to `full` - 1, and each row of the later parts has `lack` elements less.
 */
typedef struct mx_block {
    char *data; /* on the device; the functions below want host memory */
    mx_dtype dtype;
    int64_t rows, row, stride, part;
    int64_t full, lack; /* lack 0: the parts are equal */
} mx_block;

typedef struct mx_stream {
    mx_block *blocks; /* all of one dtype */
    int n;
    int64_t count;    /* elements of one part */
    bool past_caches; /* writes bypass the caches: call mx_stream_fence before others read */
} mx_stream;

/* The block of a whole tensor as one part. */
mx_block mx_block_whole(const mx_tensor *t);

/* How many of `size` elements part p of `parts` has. Parts differ by at most one element, and the first ones are
 * larger.
 */
static inline int64_t mx_part_size(int64_t size, int parts, int p) { return size / parts + (p < size % parts); }

/* Its first element. */
static inline int64_t mx_part_first(int64_t size, int parts, int p)
{
    return size / parts * p + (p < size % parts ? p : size % parts);
}

/* The block of a tensor that is split along dimension `dim` (0-based) into parts of mx_part_size. */
mx_block mx_block_split(const mx_tensor *t, int dim, int parts);

/* The block of a tensor whose elements are those of part p of the split tensor of `whole`. */
mx_block mx_block_alone(const mx_tensor *t, const mx_block *whole, int p);

/* Part p of a block, as a block with this part alone. */
mx_block mx_block_part(const mx_block *whole, int p);

/* Copies the n elements of a part that begin at `first` to `to` (from `from`), cast to (from) the dtype `wire`. */
void mx_stream_read(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, void *to);
void mx_stream_write(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire, const void *from);

void mx_stream_fence(void);

/* The address of these elements if they are contiguous in memory and have the dtype `wire`; otherwise NULL. */
void *mx_stream_find(const mx_stream *s, int part, int64_t first, int64_t n, mx_dtype wire);

#endif
