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

/* The dtype that holds all numbers of a layout: f16 becomes f32, a boolean u8, and i16, u16, u32 the next wider integer
 * with a sign. Of unsigned integers of 64 bits i64 holds those below 2^63. */
mx_dtype mx_number_layout_dtype(const mx_number_layout *layout);

/* Converts `count` numbers to values of a dtype. Floats are rounded to it. MX_ERR_VALUE names an integer that an
 * integer dtype cannot hold; MX_ERR_DTYPE: floats do not go into integers. */
mx_status mx_numbers_convert(mx_dtype dtype, void *to, const mx_number_layout *layout, const void *bytes,
                             int64_t count);

/* The same, stored as the values of t from the one with index `first` on, which t must have. */
mx_status mx_bytes_put(mx_tensor *t, int64_t first, const mx_number_layout *layout, const void *bytes, int64_t count);

#endif
