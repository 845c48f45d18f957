/* Embedding bags: each result is the sum or the maximum of some rows of a table, without a copy of the rows. */
#ifndef MX_KERNELS_BAG_H
#define MX_KERNELS_BAG_H

#include "core/status.h"
#include "kernels/elementwise.h"

#include <stdbool.h>

typedef struct mx_bag {
    int64_t bags, tokens, width;
    const int32_t *ids;    /* (tokens): rows of the table */
    const int32_t *starts; /* (bags): the first token of each bag, ascending; the last bag ends at `tokens` */
    int64_t length;        /* starts is NULL: so many tokens in each bag */
    mx_array table;        /* (rows, width): f32, bf16 or f64 */
    mx_array weights;      /* (tokens), of the table's dtype or f32, factors of the rows of a sum; .data NULL: none */
    mx_array out;          /* (bags, width), of the table's dtype; zeros for an empty bag */
    bool is_max, is_mean;  /* otherwise the sum */
    int32_t *row;          /* (bags, width): the row whose element is the maximum, the first of equal ones; 0 for an
                              empty bag; NULL: not wanted */
} mx_bag;

/* The tokens of bag b: first to before end. */
static inline int64_t mx_bag_first(const mx_bag *b, int64_t bag)
{
    return b->starts ? b->starts[bag] : bag * b->length;
}
static inline int64_t mx_bag_end(const mx_bag *b, int64_t bag)
{
    return bag + 1 < b->bags ? mx_bag_first(b, bag + 1) : b->tokens;
}

/* Sums are f32 and rounded once. MX_ERR_MEMORY: no row of f32 for each thread. */
mx_status mx_bag_run(const mx_bag *b);

#endif
