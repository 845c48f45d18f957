/* The attributes of the steps of a norm whose rows are split over ranks; mesh/norm.c applies them. */
#ifndef MX_OPS_SPLIT_NORM_H
#define MX_OPS_SPLIT_NORM_H

#include "ops/op.h"

/* For mx_op_norm_sums. */
typedef struct mx_norm_sums_attr {
    bool squares;
} mx_norm_sums_attr;

/* For mx_op_norm_grad_part. */
typedef struct mx_norm_grad_attr {
    int64_t features; /* the length of the whole rows */
} mx_norm_grad_attr;

#endif
