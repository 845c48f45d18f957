/* Numbers in the bytes of other programs' files: converts between them and the values of tensors. Not collective. */
#ifndef MX_IO_BYTES_H
#define MX_IO_BYTES_H

#include "core/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* The layout of one number: f (float, of 2, 4 or 8 bytes), i or u (integer, of 1, 2, 4 or 8 bytes), b (boolean, one
 * byte). */
typedef struct mx_number_layout {
    char kind;
    int bytes;
    bool is_big_endian;
} mx_number_layout;

/* Parses numpy's name of a layout: "<f8", ">i4", "|b1", "f2". False if it is none of the above. */
bool mx_number_layout_parse(const char *name, mx_number_layout *out);

/* Converts `count` numbers and stores them as the values of t from the one with index `first` on, which t must have.
 * Floats are rounded to the dtype of t. MX_ERR_VALUE names an integer that an integer dtype cannot hold; floats do not
 * go into integers. */
mx_status mx_bytes_put(mx_tensor *t, int64_t first, const mx_number_layout *layout, const void *bytes, int64_t count);

#endif
