/* The gradient of index_select, for operations that pick elements by lists of their own. */
#ifndef MX_OPS_SELECT_H
#define MX_OPS_SELECT_H

#include "ops/op.h"

/* The gradient by an x with n elements in dimension `dim`, from 0, of which dy holds those that ids names: i32, one
 * dimension, as many as dimension `dim` of dy. What belongs to one element is added up. *dx gets one reference. */
mx_status mx_apply_index_select_grad(mx_tensor *ids, mx_tensor *dy, int dim, int64_t n, mx_tensor **dx);

#endif
