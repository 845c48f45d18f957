/* What operations share that reduce dimensions: their options, and a tensor as (outer, n, inner) around the dimensions
 * that go. */
#ifndef MX_OPS_REDUCTION_H
#define MX_OPS_REDUCTION_H

#include "kernels/reduce.h"
#include "ops/pointwise.h"

typedef struct mx_reduce_attr {
    mx_dims dim;
    bool keepdim;
} mx_reduce_attr;

extern const mx_attr mx_reduce_attrs[];

/* The shape of x without the dimensions of the mask, or with 1 in their places. */
mx_shape mx_reduced_shape(const mx_shape *x, uint32_t mask, bool keep);

/* The number of elements in the dimensions of the mask. */
int64_t mx_reduced_count(const mx_shape *x, uint32_t mask);

/* Checks input 0 and the option `dim`; output i gets the reduced shape. */
mx_status mx_infer_reduced(mx_call *call, int i, mx_dtype dtype);

/* x as the kernels reduce it. Dimensions that are not neighbours are brought together in a copy, which
 * mx_reduction_close frees. */
typedef struct mx_reduction {
    uint32_t mask;
    mx_array x;
    mx_extent e;
    int64_t copy_bytes; /* 0: x is the tensor's own memory */
} mx_reduction;
mx_status mx_reduction_open(const mx_call *call, const mx_tensor *x, const mx_dims *dims, mx_reduction *r);
void mx_reduction_close(mx_reduction *r);

/* Where a kernel writes the gradient of x, element by element of r->x: in dx, or in the copy. Then brings it to dx, and
 * closes. */
mx_array mx_reduction_gradient(const mx_reduction *r, mx_tensor *dx);
void mx_reduction_return(mx_reduction *r, mx_tensor *dx);

#endif
