/* What the grouped products share: rows in runs, each multiplied by a matrix of its own. */
#ifndef MX_OPS_GROUPED_H
#define MX_OPS_GROUPED_H

#include "kernels/gemm.h"
#include "ops/op.h"

/* Groups, rows of x altogether, and the matrices: (k, n) after transposition. */
typedef struct mx_grouped {
    int64_t groups, rows, k, n;
    bool trans; /* stored (n, k) */
} mx_grouped;

/* The products of all groups on average: what a tile of a matrix unit pads is the rows of one group, not of all. */
mx_cost mx_grouped_cost(const mx_call *call, const mx_grouped *g, bool rows_are_summed);

/* MX_ERR_* unless input i is i32 and has one count for each group. Reads no values. */
mx_status mx_want_counts(const mx_call *call, int i, int64_t groups);

/* MX_ERR_VALUE if a count is negative or they add up to more than `rows`; *used: their sum. */
mx_status mx_check_counts(const mx_call *call, const mx_tensor *counts, int64_t rows, int64_t *used);

/* A list of `groups` products, all 0, to be freed with free(). */
mx_status mx_new_products(const mx_call *call, int64_t groups, mx_gemm **products);

mx_matrix mx_rows_from(const mx_tensor *t, int64_t row, bool trans);         /* t (rows, width) */
mx_matrix mx_matrix_of_group(const mx_tensor *t, int64_t group, bool trans); /* t (groups, rows, columns) */
void mx_zero_rows(const mx_tensor *t, int64_t from);                         /* rows `from` to the last of t */

#endif
