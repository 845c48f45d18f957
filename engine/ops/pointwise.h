/* Functions and attributes that the elementwise operations share. A table in unary.c lists those of one tensor, y =
 * f(x). */
#ifndef MX_OPS_POINTWISE_H
#define MX_OPS_POINTWISE_H

#include "kernels/elementwise.h"
#include "ops/rows.h"

static inline mx_array mx_array_of(const mx_tensor *t) { return (mx_array){mx_data(t), t->dtype}; }

mx_status mx_unary_infer(mx_call *call); /* y has the shape and dtype of x, a real */
mx_cost mx_unary_cost(const mx_call *call);
mx_status mx_unary_host(mx_call *call);
mx_status mx_unary_vjp(mx_vjp *v);          /* by unary_grad, from x, or from y if that suffices */
mx_status mx_unary_vjp_recorded(mx_vjp *v); /* the same, composed of operations with gradients (unary_recorded.c) */

/* For unary_recorded.c: the first parameter of a call of a function that has one; and f'(x) as a constant. */
double mx_unary_parameter(const mx_call *call);
struct mx_terms;
mx_tensor *mx_unary_constant_slope(struct mx_terms *s, const mx_call *call);

/* For operations whose inputs broadcast: the shape they have together; how they are walked; whether inputs i and j are
 * reals that mix, or integers of one dtype. mx_give_reduced makes t, which has the output's shape and is taken over,
 * the gradient of input i: summed over the dimensions that were broadcast. */
mx_status mx_want_broadcast(const mx_call *call, mx_shape *shape);
mx_broadcast mx_plan_of(const mx_call *call);
mx_status mx_want_alike(const mx_call *call, int i, int j);
mx_status mx_give_reduced(mx_vjp *v, int i, mx_tensor *t);

/* y, of a shape that x broadcasts to, becomes x. */
void mx_expand_into(const mx_tensor *x, const mx_shape *shape, void *y);

/* binary_grad: dy times the derivative of f by b (by_b) or by a, in `dtype`. */
mx_status mx_apply_binary_grad(mx_pair f, bool by_b, mx_tensor *a, mx_tensor *b, mx_tensor *dy, mx_dtype dtype,
                               mx_tensor **out);

/* MX_ERR_VALUE unless the dtype can hold x (mx_dtype_holds): "full: value = 0.5 is no value of i32 ...". */
static inline mx_status mx_want_number(const char *op, const char *what, mx_dtype dtype, double x)
{
    if (mx_dtype_holds(dtype, x))
        return MX_OK;
    if (dtype == MX_I64 && x == (double)(int64_t)(x > -0x1p63 && x < 0x1p63 ? x : 0.5))
        return mx_fail(MX_ERR_VALUE,
                       "%s: %s%s%.14g is 2^53 or more, where numbers are not exact; use a tensor: "
                       "mx.tensor(n, \"i64\")",
                       op, what, *what ? " = " : "", x);
    return mx_fail(
        MX_ERR_VALUE,
        "%s: %s%s%.14g is no value of %s, which holds whole numbers from %lld to %lld; use t:to(\"f32\"), or a "
        "whole number",
        op, what, *what ? " = " : "", x, mx_dtype_name(dtype), (long long)mx_dtypes[dtype].lowest,
        (long long)mx_dtypes[dtype].highest);
}

/* Attributes of the activations. */
typedef struct mx_gelu_attr {
    int approximate; /* 0: tanh, 1: none (the error function) */
} mx_gelu_attr;
extern const char *const mx_gelu_choices[];

/* Attributes of reduce_to. */
typedef struct mx_reduce_to_attr {
    mx_shape shape; /* broadcasts to the shape of x */
    int dtype;      /* of the result; -1: that of x */
} mx_reduce_to_attr;

#endif
