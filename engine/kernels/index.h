/* Elements chosen by an index along a dimension.
 *
 * x, and index and y of one shape, have the same number of dimensions. The index counts from 0 along dimension `dim`.
 * In two dimensions and dim = 0, `gather` is y[j][i] = x[index[j][i]][i]. Element (o, j, i) of the index, with its
 * sizes seen as (outer, n, inner) around dim, refers to the line of x through (o, i). One thread does all of a line in
 * the order of j, so the bits do not depend on the number of threads. */
#ifndef MX_KERNELS_INDEX_H
#define MX_KERNELS_INDEX_H

#include "core/status.h"
#include "kernels/elementwise.h"

typedef struct mx_gather {
    int n_dims, dim;
    const int64_t *x_size, *index_size; /* index_size[d] <= x_size[d], but for dim */
    const int32_t *index;               /* of 0 .. x_size[dim] - 1, which the functions check */
} mx_gather;

/* y[j] = x[index[j]]; elements of 1, 2, 4 or 8 bytes. *good: whether the index is as promised; if not, y is undefined.
 * MX_ERR_MEMORY without memory for strips (index_internal.h), here and below. */
mx_status mx_gather_run(const mx_gather *g, void *y, const void *x, size_t element_bytes, bool *good);

/* to = x, of x's shape; then to[index[j]] = y[j]; where several j name one element, the last one counts. x: NULL: the
 * other elements of `to` stay as they are. */
mx_status mx_scatter_run(const mx_gather *g, void *to, const void *x, const void *y, size_t element_bytes, bool *good);

/* to = x + y[j] at index[j]: sums are f64, in the order of j, and added to x rounded once. The arrays are floats, or of
 * one integer dtype, which saturates. `to` and x have one dtype; x.data NULL: x is 0. */
mx_status mx_scatter_add_run(const mx_gather *g, mx_array to, mx_array x, mx_array y, bool *good);

/* Which of several elements with one index counts: the last, the greatest or least, or the mean of them. */
typedef enum mx_scatter_kind { MX_SCATTER_LAST, MX_SCATTER_MAX, MX_SCATTER_MIN, MX_SCATTER_MEAN } mx_scatter_kind;

/* to = x, and where the index names an element, the greatest (MX_SCATTER_MAX) or least (MX_SCATTER_MIN) of its y[j],
 * and with_x of x. A NaN is greater and less than all. The arrays have one real or integer dtype. */
mx_status mx_scatter_extreme_run(const mx_gather *g, mx_scatter_kind kind, bool with_x, mx_array to, mx_array x,
                                 mx_array y, bool *good);

/* The same with the mean, of one real dtype: sums are f64, and means are rounded once. */
mx_status mx_scatter_mean_run(const mx_gather *g, bool with_x, mx_array to, mx_array x, mx_array y, bool *good);

/* y (n, classes) of any dtype: 1 at the ids, which are 0 .. classes - 1, else 0. */
void mx_one_hot(const int32_t *ids, int64_t n, int64_t classes, mx_array y);

/* Marks those of the n elements of x, of any dtype, that are not 0: bit i % 64 of mask[i / 64] is element i's. Returns
 * their number; before[k] is the number of those in front of element k MX_MARK_CHUNK. */
enum { MX_MARK_CHUNK = 16384 };
int64_t mx_mark_nonzero(mx_array x, int64_t n, uint64_t *mask, int64_t *before);

/* y (marks, n_dims) = the indices, from 0, of the marked elements of a tensor of these sizes, row-major; n_dims is
 * at most 8. */
void mx_list_marks(const uint64_t *mask, const int64_t *before, const int64_t *size, int n_dims, int32_t *y);

/* For one instruction set: the marks of n elements, whose number is returned; the places of the marks in words, counted
 * from the first bit, whose number is returned, and up to MX_MARK_MORE values that do not matter behind them; and y (n,
 * 2) = first and place[i] - less. */
enum { MX_MARK_MORE = 16 };
typedef struct mx_mark_paths {
    int64_t (*mark)(mx_dtype dtype, const void *x, uint64_t *mask, int64_t n);
    int64_t (*places)(const uint64_t *mask, int64_t words, int32_t *place);
    void (*pairs)(const int32_t *place, int64_t n, int32_t first, int32_t less, int32_t *y);
} mx_mark_paths;

#endif
