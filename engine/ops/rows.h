/* Functions that operations on rows and shapes share: a tensor as rows, dimensions counted from the end, and gradients
 * in the requested dtype. */
#ifndef MX_OPS_ROWS_H
#define MX_OPS_ROWS_H

#include "ops/compose.h"
#include "ops/table.h"

#include <stdio.h>

/* The result as `rows` rows, each of which has a row of every input beside the others; the host's part of such calls.
 */
mx_status mx_join_inputs(const mx_call *call, int64_t rows);

/* The size of the last dimension, and the number of such rows. */
static inline int64_t mx_row_width(const mx_tensor *t) { return t->shape.size[t->shape.n_dims - 1]; }
static inline int64_t mx_row_count(const mx_tensor *t)
{
    int64_t rows = 1;
    for (int d = 0; d + 1 < t->shape.n_dims; d++)
        rows *= t->shape.size[d];
    return rows;
}

static inline mx_shape mx_shape_of_rows(const mx_tensor *t)
{
    mx_shape shape = t->shape;
    shape.n_dims--;
    return shape;
}

static inline mx_shape mx_vector(int64_t n) { return (mx_shape){.n_dims = 1, .size = {n}}; }

/* The name of input i without the marks for "optional" and "one or more". */
static inline const char *mx_input_name(const mx_call *call, int i, char *text)
{
    snprintf(text, 32, "%.*s", (int)strcspn(call->op->inputs[i], "?."), call->op->inputs[i]);
    return text;
}

/* Checks that input i, if given, is f32, bf16 or f64. */
static inline mx_status mx_want_real(const mx_call *call, int i)
{
    if (!call->in[i] || mx_dtype_is_real(call->in[i]->dtype))
        return MX_OK;
    return mx_bad_dtype(call, "'%s' must be f32, bf16 or f64", mx_input_name(call, i, (char[32]){0}));
}

/* Checks that input i has at least one dimension and a dtype of computation. */
static inline mx_status mx_want_rows(const mx_call *call, int i)
{
    MX_TRY(mx_want_float(call, i));
    if (call->in[i]->shape.n_dims < 1)
        return mx_bad_shape(call, "'%s' must have at least one dimension", mx_input_name(call, i, (char[32]){0}));
    return MX_OK;
}

/* Checks that input i, if given, has the shape `want`. */
static inline mx_status mx_want_shape(const mx_call *call, int i, const mx_shape *want)
{
    if (!call->in[i] || mx_shape_equal(&call->in[i]->shape, want))
        return MX_OK;
    return mx_bad_shape(call, "'%s' must be %s", mx_input_name(call, i, (char[32]){0}), mx_shape_text(want));
}

/* An MX_ATTR_DIM as an index from 0. */
static inline mx_status mx_want_dim(const mx_call *call, const char *name, int64_t given, int n_dims, int *dim)
{
    int64_t d = given < 0 ? given + n_dims : given;
    if (d < 0 || d >= n_dims)
        return mx_bad_value(call, "%s = %lld is none of the %d dimensions", name,
                            (long long)(given < 0 ? given : given + 1), n_dims);
    *dim = (int)d;
    return MX_OK;
}

/* MX_ATTR_DIMS as a mask of the dimensions, from 0; all of them if none is given. Each may be named once. */
static inline mx_status mx_want_dims(const mx_call *call, const mx_dims *dims, int n_dims, uint32_t *mask)
{
    *mask = dims->n == 0 ? (1u << n_dims) - 1 : 0;
    for (int i = 0; i < dims->n; i++) {
        int dim = 0;
        MX_TRY(mx_want_dim(call, "dim", dims->dim[i], n_dims, &dim));
        if (*mask >> dim & 1u)
            return mx_bad_value(call, "dim names dimension %d twice", dim + 1);
        *mask |= 1u << dim;
    }
    return MX_OK;
}

/* Products of the sizes before and after a dimension. */
static inline int64_t mx_outer_size(const mx_shape *shape, int dim)
{
    int64_t n = 1;
    for (int d = 0; d < dim; d++)
        n *= shape->size[d];
    return n;
}
static inline int64_t mx_inner_size(const mx_shape *shape, int dim)
{
    int64_t n = 1;
    for (int d = dim + 1; d < shape->n_dims; d++)
        n *= shape->size[d];
    return n;
}

/* "[2, 7]": the indices of element `i`, from 1, for messages. `text` has room for 128 bytes. */
static inline const char *mx_place_text(char *text, const mx_shape *shape, int64_t i)
{
    int64_t at[MX_MAX_DIMS];
    for (int d = shape->n_dims - 1; d >= 0; d--) {
        at[d] = i % shape->size[d] + 1;
        i /= shape->size[d];
    }
    int used = snprintf(text, 128, "[");
    for (int d = 0; d < shape->n_dims; d++)
        used += snprintf(text + used, 128 - (size_t)used, d ? ", %lld" : "%lld", (long long)at[d]);
    snprintf(text + used, 128 - (size_t)used, "]");
    return text;
}

/* Converts *t to `dtype` if necessary; takes over the reference and returns one. */
static inline mx_status mx_grad_cast(mx_tensor **t, mx_dtype dtype)
{
    if ((*t)->dtype == dtype)
        return MX_OK;
    mx_tensor *cast = NULL;
    mx_status status = mx_apply_cast(*t, dtype, &cast);
    mx_release(*t);
    *t = cast;
    return status;
}

/* The gradient of output i, in the output's dtype, with one reference for the caller. */
static inline mx_status mx_out_grad(const mx_vjp *v, int i, mx_tensor **grad)
{
    *grad = mx_retain(v->out_grad[i]);
    return mx_grad_cast(grad, v->call->out[i]->dtype);
}

/* Sets the gradient of input i to t, which is taken over; releases t if the gradient is not wanted. */
static inline mx_status mx_give_grad(mx_vjp *v, int i, mx_tensor *t)
{
    if (!v->want[i]) {
        mx_release(t);
        return MX_OK;
    }
    mx_status status = mx_grad_cast(&t, mx_vjp_dtype(v, i));
    v->grad[i] = t;
    return status;
}

#endif
