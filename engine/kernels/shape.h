/* Moving values about: runs of bytes, permuted dimensions. Elements have 1, 2, 4 or 8 bytes and no meaning, but where
 * values are added. */
#ifndef MX_KERNELS_SHAPE_H
#define MX_KERNELS_SHAPE_H

#include "core/dtype.h"

#include <stdbool.h>

/* Copies `runs` runs of `bytes`, which begin to_step and from_step bytes apart. */
void mx_copy_runs(void *to, int64_t to_step, const void *from, int64_t from_step, int64_t runs, int64_t bytes);

/* One run of each row of a part, dense from `from` on. */
typedef struct mx_row_part {
    const void *from;
    int64_t bytes;
} mx_row_part;

/* `to` gets rows of all parts beside each other. */
void mx_join_rows(void *to, int64_t rows, int parts, const mx_row_part *part);

/* Sets such runs to zero. */
void mx_zero_runs(void *to, int64_t to_step, int64_t runs, int64_t bytes);

/* Adds runs of `n` values of f32 or bf16; steps in values. */
void mx_add_runs(void *to, int64_t to_step, const void *from, int64_t from_step, mx_dtype dtype, int64_t runs,
                 int64_t n);

/* Dimension d of `to` is dimension order[d] of `from`, whose sizes are `size`; at most 8 dimensions. */
void mx_permute(void *to, const void *from, int n_dims, const int64_t *size, const int *order, size_t element_bytes);

/* values[i] *= factor, in place. */
void mx_scale_values(void *values, mx_dtype dtype, float factor, int64_t n);

/* Copies to a dense array of at most MX_STRIDED_DIMS dimensions from one that begins at `from` and has steps, in
 * elements: 0 repeats elements, negative ones go backwards. Of the dimensions above size 1, the last one has a step of
 * 1, 0 or -1. Elements of 1, 2, 4 or 8 bytes. */
enum { MX_STRIDED_DIMS = 12 };
void mx_copy_strided(void *to, const void *from, int n_dims, const int64_t *size, const int64_t *step,
                     size_t element_bytes);

/* A dimension of n elements with further ones on both sides. */
typedef struct mx_margins {
    int64_t before, n, after;
} mx_margins;

/* to = from, of the sizes n, with margins in each of at most 8 dimensions; the margins get the element *value. */
void mx_pad(void *to, const void *from, int n_dims, const mx_margins *margins, const void *value, size_t element_bytes);

/* Rows of n elements, m of them in each of `count` matrices: in row i those before i + diagonal + 1 (with `upper`: from
 * i + diagonal on) are copied, the others are zero. */
void mx_triangle(void *to, const void *from, int64_t count, int64_t m, int64_t n, int64_t diagonal, bool upper,
                 size_t element_bytes);

/* to (outer, n_ids, run) = rows ids[t] of from (outer, n, run): runs of `bytes` each. */
void mx_take_runs(void *to, const void *from, const int32_t *ids, int64_t outer, int64_t n, int64_t n_ids,
                  int64_t bytes);

/* to[(i k + j) run + e] = from[j][i run + e] for e below `run`: k arrays of n runs of elements, beside each other. */
void mx_interleave(void *to, const void *const *from, int k, int64_t n, int64_t run, size_t element_bytes);

#endif
