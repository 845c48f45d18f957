/* What the products of codes share: their options and their gradients (scaled_matmul.c). */
#ifndef MX_OPS_SCALED_H
#define MX_OPS_SCALED_H

#include "kernels/gemm.h"
#include "ops/op.h"

typedef struct mx_scaled_attr {
    bool trans_a, trans_b;
    int dtype;    /* of the result */
    int grad;     /* of the gradient's codes; -1: those of b */
    bool rounded; /* the result is f32 and gets what bf16 would hold; scripts do not set it */
} mx_scaled_attr;

/* The inputs of both. The fifth is a bias, or the counts of a grouped product. */
enum {
    MX_SCALED_A,
    MX_SCALED_B,
    MX_SCALED_SCALE_A,
    MX_SCALED_SCALE_B,
    MX_SCALED_BIAS,
    MX_SCALED_COUNTS = MX_SCALED_BIAS,
    MX_SCALED_GRAD_SCALE,
    MX_SCALED_GRAD_LARGEST
};

/* i32 holds the sum of so many products of i8. */
enum { MX_MOST_I8_PRODUCTS = 131071 };

extern const mx_attr mx_scaled_attrs[];

/* MX_ERR_DTYPE unless a and b are codes, or one is and the other bf16 or f32. */
mx_status mx_want_scaled_operands(const mx_call *call);

/* MX_ERR_SHAPE unless the scales of an m x n product have 1 value, or m and n; also checks grad and its inputs. */
mx_status mx_want_scales(const mx_call *call, int64_t m, int64_t n);

/* The factors in input i of the rows or columns from `first` on. */
mx_scale mx_scale_from(const mx_call *call, int i, int64_t first);

/* Gives the gradients of a and b. Both are products of the codes of dy, which `times` computes with `attr`, rounded to
 * bf16. That of a weight is stored as f32 where the weight is a leaf, so that nothing has to convert it. */
typedef mx_status mx_scaled_multiply(const mx_call *call, mx_tensor *a, mx_tensor *b, mx_tensor *scale_a,
                                     mx_tensor *scale_b, const mx_scaled_attr *attr, mx_tensor **y);
mx_status mx_scaled_vjp(mx_vjp *v, mx_scaled_multiply *times);

#endif
