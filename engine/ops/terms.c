#include "ops/terms.h"

#include "ops/reduction.h"
#include "ops/rows.h"

mx_status mx_terms_release(mx_terms *s)
{
    for (int i = 0; i < s->n; i++)
        mx_release(s->t[i]);
    s->n = 0;
    return s->status;
}

void mx_term_give(mx_terms *s, mx_vjp *v, int i, mx_tensor *t)
{
    if (t && s->status == MX_OK)
        s->status = mx_give_grad(v, i, mx_retain(t));
}

mx_tensor *mx_term_keep(mx_terms *s, mx_status status, mx_tensor **t)
{
    if (status == MX_OK && s->n == (int)(sizeof s->t / sizeof *s->t)) {
        mx_release(*t);
        status = mx_fail(MX_ERR_STATE, "an expression of more than %d operations", s->n);
    }
    s->status = status;
    return status == MX_OK ? s->t[s->n++] = *t : NULL;
}

mx_tensor *mx_term(mx_terms *s, const mx_op *op, mx_attrs attrs, mx_tensor *a, mx_tensor *b, mx_tensor *c)
{
    mx_tensor *y[MX_MAX_OUTPUTS] = {NULL};
    if (s->status != MX_OK)
        return NULL;
    mx_status status = mx_apply(op, (mx_tensor *[]){a, b, c}, c ? 3 : b ? 2 : 1, attrs, y);
    for (int i = 1; i < op->n_out; i++)
        mx_release(y[i]);
    return mx_term_keep(s, status, y);
}

mx_tensor *mx_term_one(mx_terms *s, const mx_op *op, mx_tensor *x)
{
    return mx_term(s, op, MX_NO_ATTRS, x, NULL, NULL);
}

mx_tensor *mx_term_two(mx_terms *s, const mx_op *op, mx_tensor *a, mx_tensor *b)
{
    return mx_term(s, op, MX_NO_ATTRS, a, b, NULL);
}

mx_tensor *mx_term_add(mx_terms *s, mx_tensor *a, mx_tensor *b) { return mx_term_two(s, &mx_op_add, a, b); }
mx_tensor *mx_term_sub(mx_terms *s, mx_tensor *a, mx_tensor *b) { return mx_term_two(s, &mx_op_sub, a, b); }
mx_tensor *mx_term_mul(mx_terms *s, mx_tensor *a, mx_tensor *b) { return mx_term_two(s, &mx_op_mul, a, b); }
mx_tensor *mx_term_div(mx_terms *s, mx_tensor *a, mx_tensor *b) { return mx_term_two(s, &mx_op_div, a, b); }

mx_tensor *mx_term_affine(mx_terms *s, mx_tensor *x, double scale, double shift)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : mx_term_keep(s, mx_apply_affine(x, scale, shift, &y), &y);
}

mx_tensor *mx_term_pow(mx_terms *s, mx_tensor *x, double exponent)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : mx_term_keep(s, mx_apply_pow(x, exponent, &y), &y);
}

mx_tensor *mx_term_where(mx_terms *s, mx_tensor *cond, mx_tensor *a, mx_tensor *b)
{
    return mx_term(s, &mx_op_where, MX_NO_ATTRS, cond, a, b);
}

mx_tensor *mx_term_compare(mx_terms *s, const mx_op *op, mx_tensor *x, double number)
{
    return s->status != MX_OK ? NULL : mx_term_two(s, op, x, mx_term_number(s, x->dtype, number));
}

mx_tensor *mx_term_indicator(mx_terms *s, const mx_op *op, mx_tensor *x, double number)
{
    mx_tensor *is = mx_term_compare(s, op, x, number);
    return is ? mx_term_cast(s, is, x->dtype) : NULL;
}

mx_tensor *mx_term_number(mx_terms *s, mx_dtype dtype, double number)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : mx_term_keep(s, mx_apply_full(&(mx_shape){0}, dtype, number, &y), &y);
}

mx_tensor *mx_term_reduce(mx_terms *s, const mx_op *op, mx_tensor *x, uint32_t mask)
{
    mx_reduce_attr attr = {.keepdim = true};
    if (s->status != MX_OK)
        return NULL;
    for (int d = 0; d < x->shape.n_dims; d++)
        if (mask >> d & 1u)
            attr.dim.dim[attr.dim.n++] = d;
    return attr.dim.n > 0 ? mx_term(s, op, MX_ATTRS(attr), x, NULL, NULL) : x;
}

mx_tensor *mx_term_reshape(mx_terms *s, mx_tensor *x, const mx_shape *shape)
{
    mx_tensor *y = NULL;
    return s->status != MX_OK ? NULL : mx_term_keep(s, mx_apply_reshape(x, shape, &y), &y);
}

mx_tensor *mx_term_cast(mx_terms *s, mx_tensor *x, mx_dtype dtype)
{
    mx_tensor *y = NULL;
    if (s->status != MX_OK || x->dtype == dtype)
        return s->status != MX_OK ? NULL : x;
    return mx_term_keep(s, mx_apply_cast(x, dtype, &y), &y);
}

mx_tensor *mx_term_wide(mx_terms *s, mx_tensor *x)
{
    return s->status != MX_OK ? NULL : mx_term_cast(s, x, x->dtype == MX_BF16 ? MX_F32 : x->dtype);
}

mx_tensor *mx_term_constant(mx_terms *s, mx_tensor *x)
{
    mx_tensor *y = NULL;
    if (s->status != MX_OK)
        return NULL;
    if (mx_term_keep(s, mx_tensor_new_empty(x->dtype, &x->shape, &y), &y))
        mx_tensor_alias(y, x, 0);
    return y;
}
