/* Reads tensors by name from weight files of other programs: safetensors and GGUF.
 *
 * Opening reads the list of tensors and checks it against the file: every tensor is inside the file, no two share a
 * byte, and types and shapes give the sizes. Values are read on request, a whole tensor or some rows, directly into
 * tensor memory if the file has a dtype that tensors have.
 *
 * Failures are MX_ERR_IO with a message of one line that names the file and the tensor. Not thread-safe. Not
 * collective: any number of ranks may read a file. */
#ifndef MX_WEIGHTS_WEIGHTS_H
#define MX_WEIGHTS_WEIGHTS_H

#include "core/tensor.h"
#include "io/value.h"

/* Converts `values` values in a file's format at `from` to a tensor's memory. */
typedef mx_status mx_decode(const unsigned char *from, int64_t values, void *to);

/* A type of values in a file. Each dtype has one (mx_stored_as_dtype). A reader lists only the other types: those that
 * it converts, and those that it knows but cannot read. */
typedef struct mx_stored_type {
    const char *name;           /* the format's name: "BF16", "Q4_1" */
    int64_t block, block_bytes; /* number of values that are stored as one block, and the bytes of a block */
    int dtype;                  /* dtype of the tensors that are read; -1: the type is not supported */
    mx_decode *decode;          /* NULL: the bytes are used unchanged */
} mx_stored_type;

typedef struct mx_stored_tensor {
    char *name;
    mx_stored_type type;
    mx_shape shape; /* row-major */
    int64_t offset; /* in the file */
    int64_t bytes;
} mx_stored_tensor;

typedef struct mx_weights {
    char *path;
    const char *format; /* "safetensors", "gguf" */
    int fd;
    int64_t bytes; /* size of the file */
    mx_stored_tensor *tensors;
    int64_t count, room;
    mx_value metadata; /* a map: GGUF's keys, or "__metadata__" of safetensors (strings) */
} mx_weights;

/* Opens a file of either format, recognised by its first bytes. */
mx_status mx_weights_open(const char *path, mx_weights **out);
void mx_weights_close(mx_weights *w); /* NULL is allowed */

const mx_stored_tensor *mx_weights_find(const mx_weights *w, const char *name); /* NULL if there is none */

/* A new tensor with the rows [first, first + rows) of dimension 0; rows -1: up to the end. For a scalar, pass first 0
 * and rows -1. F16 and quantised values become f32, BOOL becomes u8. MX_ERR_DTYPE for a type that
 * is not supported. */
mx_status mx_weights_read(mx_weights *w, const char *name, int64_t first, int64_t rows, mx_tensor **out);

/* The same rows of a matrix, or matrices of a stack, of type Q8_0 as they are stored: codes i8 in its shape, and the
 * f32 scales of each 32 neighbours. MX_ERR_DTYPE for another type. */
mx_status mx_weights_read_codes(mx_weights *w, const char *name, int64_t first, int64_t rows, mx_tensor **codes,
                                mx_tensor **scales);

/* ---- for the readers of the formats: safetensors.c, gguf.c ---- */

/* Appends a tensor at `offset` of the file; copies the name. Checks that the shape and the type give a valid size. */
mx_status mx_weights_add(mx_weights *w, const char *name, const mx_stored_type *type, const mx_shape *shape,
                         int64_t offset);

/* The type of values that are stored exactly as a tensor of this dtype holds them. */
mx_stored_type mx_stored_as_dtype(mx_dtype dtype);

/* MX_ERR_IO if two tensors share a name or a byte, or if one begins before `start` or ends after the file. With
 * `dense`, the tensors must fill the file from `start` to its end. Sorts the tensors by offset. */
mx_status mx_weights_check_layout(mx_weights *w, int64_t start, bool dense);

mx_decode mx_decode_f16;

#endif
