/* Moving values about: runs of bytes, permuted dimensions. Elements have 1, 2 or 4 bytes and no meaning, but where
 * values are added. */
#ifndef MX_KERNELS_SHAPE_H
#define MX_KERNELS_SHAPE_H

#include "core/dtype.h"

/* Copies `runs` runs of `bytes`, which begin to_step and from_step bytes apart. */
void mx_copy_runs(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t runs, int64_t bytes);

/* Sets such runs to zero. */
void mx_zero_runs(void *to, int64_t to_step, int64_t runs, int64_t bytes);

/* Adds runs of `n` values of f32 or bf16; steps in values. */
void mx_add_runs(void *to, int64_t to_step, const void *from, int64_t from_step, mx_dtype dtype, int64_t runs,
                 int64_t n);

/* Dimension d of `to` is dimension order[d] of `from`, whose sizes are `size`; at most 8 dimensions. */
void mx_permute(void *to, const void *from, int n_dims, const int64_t *size, const int *order, size_t element_bytes);

/* values[i] *= factor, in place. */
void mx_scale_values(void *values, mx_dtype dtype, float factor, int64_t n);

/* Transposes a tile for one instruction set: to[c * to_stride + r] = from[r * from_stride + c], strides in elements,
 * rows and columns up to MX_TILE. */
enum { MX_TILE = 64 };
typedef void mx_transpose_path(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
                               int64_t columns, size_t element_bytes);

#endif
