/* Operations that others are composed of, as C functions: each is mx_apply() with the attributes of the operation of
 * that name, and is recorded, timed and charged as a call from Lua is. *y gets one reference for the caller; on failure
 * it is NULL. */
#ifndef MX_OPS_COMPOSE_H
#define MX_OPS_COMPOSE_H

#include "ops/op.h"

mx_status mx_apply_cast(mx_tensor *x, mx_dtype dtype, mx_tensor **y);
mx_status mx_apply_add_to(mx_tensor *c, mx_tensor *x, double alpha);                /* c += alpha x in place */
mx_status mx_apply_affine(mx_tensor *x, double scale, double shift, mx_tensor **y); /* scale x + shift */
mx_status mx_apply_pow(mx_tensor *x, double exponent, mx_tensor **y);
mx_status mx_apply_full(const mx_shape *shape, mx_dtype dtype, double value, mx_tensor **y);
mx_status mx_apply_fill(mx_tensor *x, double value);                                            /* in place */
mx_status mx_apply_reshape(mx_tensor *x, const mx_shape *shape, mx_tensor **y);                 /* a view */
mx_status mx_apply_narrow(mx_tensor *x, int dim, int64_t first, int64_t length, mx_tensor **y); /* from 0; a view */
mx_status mx_apply_write_slice(mx_tensor *to, mx_tensor *from, int dim, int64_t first);         /* from 0; in place */
mx_status mx_apply_transpose(mx_tensor *x, int dim1, int dim2, mx_tensor **y); /* from 0, or negative */
mx_status mx_apply_matmul(mx_tensor *a, mx_tensor *b, bool trans_a, bool trans_b, mx_tensor **c);
mx_status mx_apply_arange(int64_t n, mx_dtype dtype, double start, mx_tensor **y);
mx_status mx_apply_gather(mx_tensor *x, mx_tensor *index, int64_t dim, mx_tensor **y); /* from 0 */
mx_status mx_apply_index_select(mx_tensor *x, mx_tensor *ids, int dim, mx_tensor **y);
mx_status mx_apply_reduce_to(mx_tensor *x, const mx_shape *shape, mx_tensor **y);
mx_status mx_apply_embedding_acc(mx_tensor *grad, mx_tensor *ids, mx_tensor *dy); /* in place */
mx_status mx_apply_embedding_grad(mx_tensor *ids, mx_tensor *dy, int64_t vocab, mx_tensor **dtable);
mx_status mx_apply_gather_grad(mx_tensor *index, mx_tensor *dy, int64_t dim, const mx_shape *shape, mx_tensor **dx);

#endif
