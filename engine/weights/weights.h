/* Weight files of other programs: tensors by name out of a safetensors or a GGUF file.
 *
 * Opening reads what the file says about its tensors and checks it against the file: every tensor lies inside, no two
 * share a byte, types and shapes give the sizes. Values are read when asked for, a tensor or some rows of it at a time,
 * straight into tensor memory where the file has a tensor's own dtype.
 *
 * Failures are MX_ERR_IO in one line that names the file and the tensor. Not thread-safe. Not collective: any number of
 * ranks may read a file. */
#ifndef MX_WEIGHTS_WEIGHTS_H
#define MX_WEIGHTS_WEIGHTS_H

#include "core/tensor.h"
#include "io/value.h"

/* `values` values at `from`, as a file has them, into a tensor's memory. MX_ERR_VALUE for one that does not fit. */
typedef mx_status mx_decode(const unsigned char *from, int64_t values, void *to);

/* How a file stores a type of values. */
typedef struct mx_stored_type {
    const char *name;           /* as the format calls it: "BF16", "Q4_1" */
    int64_t block, block_bytes; /* values that are stored together, and their bytes */
    int dtype;                  /* of the tensors that are read; -1: the type is not read */
    mx_decode *decode;          /* NULL: the bytes are the tensor's */
} mx_stored_type;

typedef struct mx_stored_tensor {
    char *name;
    const mx_stored_type *type;
    mx_shape shape; /* row-major */
    int64_t offset; /* in the file */
    int64_t bytes;
} mx_stored_tensor;

typedef struct mx_weights {
    char *path;
    const char *format; /* "safetensors", "gguf" */
    int fd;
    int64_t bytes; /* of the file */
    mx_stored_tensor *tensors;
    int64_t count, room;
    mx_value metadata; /* a map: of GGUF its keys, of safetensors "__metadata__" (strings) */
} mx_weights;

/* Opens a file of either format; the first bytes say which. */
mx_status mx_weights_open(const char *path, mx_weights **out);
void mx_weights_close(mx_weights *w); /* NULL is allowed */

const mx_stored_tensor *mx_weights_find(const mx_weights *w, const char *name); /* NULL: there is none */

/* A new tensor with the rows [first, first + rows) of dimension 0; rows -1: up to the end. A scalar has no rows: 0 and
 * -1. F16, F64 and quantised values become f32, I64 becomes i32, BOOL u8. MX_ERR_DTYPE for a type that is not read. */
mx_status mx_weights_read(mx_weights *w, const char *name, int64_t first, int64_t rows, mx_tensor **out);

/* ---- for the readers of a format: safetensors.c, gguf.c ---- */

/* Appends a tensor that lies at `offset`; the name is copied. Checks that the shape and the type give a size. */
mx_status mx_weights_add(mx_weights *w, const char *name, const mx_stored_type *type, const mx_shape *shape,
                         int64_t offset);

/* MX_ERR_IO where two tensors share a name or a byte, or one begins before `start` or ends after the file. With `dense`
 * the tensors must fill the file from `start` to its end. Sorts them by offset. */
mx_status mx_weights_check_layout(mx_weights *w, int64_t start, bool dense);

float mx_from_f16(uint16_t h);

mx_decode mx_decode_f16, mx_decode_f64, mx_decode_i64;

#endif
