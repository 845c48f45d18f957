/* Sorts and selects along a dimension. An array is (outer, n, inner), row-major; each of its outer * inner lines of n
 * elements is sorted by itself. Ids count from 0 along the line.
 *
 * The order: NaN is greater than every number, and 0 equals -0. Equal elements stay in the order of their ids, in both
 * directions. So each result is unique: it depends on neither threads nor instruction set. */
#ifndef MX_KERNELS_SORT_H
#define MX_KERNELS_SORT_H

#include "kernels/reduce.h"

/* values (outer, n, inner), of x's dtype, and ids of the same shape; either may be NULL. n fits i32. x has a dtype with
 * arithmetic. MX_ERR_MEMORY without memory for 20 bytes per element of a line, for each thread. */
mx_status mx_sort(mx_array x, mx_extent e, bool descending, void *values, int32_t *ids);

/* The k greatest elements of each line (the k least, with `smallest`) in their order: values and ids (outer, k, inner);
 * 0 <= k <= n. Otherwise as mx_sort. */
mx_status mx_topk(mx_array x, mx_extent e, int64_t k, bool smallest, void *values, int32_t *ids);

/* For one instruction set: the first i in [from, n) for which x[i] <= bound does not hold (with `below`: x[i] >=
 * bound), or n. So NaN is found. x f32 or bf16. */
typedef int64_t mx_beyond_path(const void *x, mx_dtype dtype, int64_t from, int64_t n, float bound, bool below);

#endif
