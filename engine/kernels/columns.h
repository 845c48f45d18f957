/* Loops over the columns of an array (outer, n, inner) that find a number for each column, use it, and put results that
 * depend on it. The rows of a large array are shared by all threads, in blocks: sums are found in each block
 * and added in the order of the blocks. Blocks are up to MX_MOST_COLUMNS columns wide, so most memory is read in its
 * own order. They are cut by the sizes alone, so the bits do not depend on the number of threads. */
#ifndef MX_KERNELS_COLUMNS_H
#define MX_KERNELS_COLUMNS_H

#include "kernels/reduce.h"

/* Some rows of some columns. */
typedef struct mx_column_block {
    int64_t item;      /* below mx_column_items(): no other block has it from `find` to `put` */
    int64_t at;        /* the first element, in the array */
    int64_t row, rows; /* from 0 to n */
    int64_t line;      /* the first column, of outer times inner */
    int64_t width;     /* of how many columns */
    double *sum;       /* what is found of these columns in this block */
    float *used[2];    /* what `use` has set for these columns */
} mx_column_block;

/* `what` is the caller's. Called by several threads. */
typedef struct mx_column_steps {
    void (*find)(const void *what, const mx_column_block *b);  /* sets `sum` */
    void (*use)(const void *what, const mx_column_block *all); /* sets `used` from the sums of all rows */
    void (*put)(const void *what, const mx_column_block *b);
} mx_column_steps;

int64_t mx_column_items(mx_extent e, bool shared);

/* Without `shared`, and where arrays are small or have many columns, a thread takes as many columns as
 * mx_panel_columns() says, as one block. MX_ERR_MEMORY when scratch cannot be had. */
mx_status mx_run_columns(mx_extent e, mx_dtype dtype, int read_twice, bool shared, const mx_column_steps *steps,
                         const void *what);

#endif
