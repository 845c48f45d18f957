/* Moving values about: runs of bytes, permuted dimensions, gathers. Elements have 1, 2 or 4 bytes and no meaning, but
 * where values are added. */
#ifndef MX_KERNELS_SHAPE_H
#define MX_KERNELS_SHAPE_H

#include "core/dtype.h"
#include "core/status.h"

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

/* Of x, and of index and y of one shape, of as many dimensions, where `index` counts from 0 along dimension `dim`. In
 * two dimensions and dim = 0:
 *
 *   gather       y[j][i] = x[index[j][i]][i]
 *   scatter_add  x[index[j][i]][i] += y[j][i]; x is f32, y f32 or bf16 */
typedef struct mx_gather {
    int n_dims, dim;
    const int64_t *x_size, *index_size; /* index_size[d] <= x_size[d], but for dim */
    const int32_t *index;
} mx_gather;
int64_t mx_gather_find_bad(const mx_gather *g); /* the first place in index whose value is out of range, or -1 */
void mx_gather_run(const mx_gather *g, void *y, const void *x, size_t element_bytes);

/* x is what was there plus sums taken in f64, in the order of j. MX_ERR_MEMORY when there is no room for them. */
mx_status mx_scatter_add_run(const mx_gather *g, float *x, const void *y, mx_dtype dtype);

/* Transposes a tile for one instruction set: to[c * to_stride + r] = from[r * from_stride + c], strides in elements,
 * rows and columns up to MX_TILE. */
enum { MX_TILE = 64 };
typedef void mx_transpose_path(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
                               int64_t columns, size_t element_bytes);

#endif
