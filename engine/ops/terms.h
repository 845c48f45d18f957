/* Expressions: what a C function composes of several operations. Intermediate results are released together.
 *
 *     mx_terms s = {0};
 *     mx_tensor *y = mx_term_mul(&s, x, mx_term_affine(&s, x, 2, 1));    x (2 x + 1)
 *     ... y, or s.status if y is NULL; mx_retain(y) keeps it ...
 *     return mx_terms_release(&s);
 *
 * After a failure all functions return NULL and apply nothing, so only the last result is checked. */
#ifndef MX_OPS_TERMS_H
#define MX_OPS_TERMS_H

#include "ops/op.h"

typedef struct mx_terms {
    mx_status status;
    int n;
    mx_tensor *t[64];
} mx_terms;

/* Returns s->status. */
mx_status mx_terms_release(mx_terms *s);

/* Gives t as the gradient of input i (mx_give_grad of rows.h); nothing if t is NULL or s has failed. */
void mx_term_give(mx_terms *s, mx_vjp *v, int i, mx_tensor *t);

/* Takes over *t, the result of an operation with that status. */
mx_tensor *mx_term_keep(mx_terms *s, mx_status status, mx_tensor **t);

/* The first result of an operation of 1 to 3 tensors; b and c may be NULL. */
mx_tensor *mx_term(mx_terms *s, const mx_op *op, mx_attrs attrs, mx_tensor *a, mx_tensor *b, mx_tensor *c);

/* An operation without options, of one or two tensors. */
mx_tensor *mx_term_one(mx_terms *s, const mx_op *op, mx_tensor *x);
mx_tensor *mx_term_two(mx_terms *s, const mx_op *op, mx_tensor *a, mx_tensor *b);

mx_tensor *mx_term_add(mx_terms *s, mx_tensor *a, mx_tensor *b);
mx_tensor *mx_term_sub(mx_terms *s, mx_tensor *a, mx_tensor *b);
mx_tensor *mx_term_mul(mx_terms *s, mx_tensor *a, mx_tensor *b);
mx_tensor *mx_term_div(mx_terms *s, mx_tensor *a, mx_tensor *b);
mx_tensor *mx_term_affine(mx_terms *s, mx_tensor *x, double scale, double shift);
mx_tensor *mx_term_pow(mx_terms *s, mx_tensor *x, double exponent);
mx_tensor *mx_term_where(mx_terms *s, mx_tensor *cond, mx_tensor *a, mx_tensor *b);

/* x compared with a number (op: eq, gt ...), in u8; and in x's dtype. Both are constants. */
mx_tensor *mx_term_compare(mx_terms *s, const mx_op *op, mx_tensor *x, double number);
mx_tensor *mx_term_indicator(mx_terms *s, const mx_op *op, mx_tensor *x, double number);

/* One number, which broadcasts. */
mx_tensor *mx_term_number(mx_terms *s, mx_dtype dtype, double number);

/* op (sum, mean, max) over the dimensions of the mask, which stay with size 1. */
mx_tensor *mx_term_reduce(mx_terms *s, const mx_op *op, mx_tensor *x, uint32_t mask);

mx_tensor *mx_term_reshape(mx_terms *s, mx_tensor *x, const mx_shape *shape);
mx_tensor *mx_term_cast(mx_terms *s, mx_tensor *x, mx_dtype dtype);
mx_tensor *mx_term_wide(mx_terms *s, mx_tensor *x);     /* bf16 as f32, everything else as it is */
mx_tensor *mx_term_constant(mx_terms *s, mx_tensor *x); /* the same values without a gradient */

#endif
