/* t[mask], t[ids] and t[mask] = number: elements and rows chosen by another tensor. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/compose.h"
#include "ops/table.h"

#include <string.h>

/* The mask must have the first sizes of t. */
static void check_mask(lua_State *L, const mx_tensor *t, const mx_tensor *mask)
{
    bool fits = mask->shape.n_dims > 0 && mask->shape.n_dims <= t->shape.n_dims;
    for (int d = 0; fits && d < mask->shape.n_dims; d++)
        fits = mask->shape.size[d] == t->shape.size[d];
    if (!fits)
        mxl_try(L,
                mx_fail(MX_ERR_SHAPE, "t[mask]: the mask is %s, and the tensor %s; a mask has its first sizes, or all",
                        mx_tensor_text(mask), mx_tensor_text(t)));
    if (!mx_has_values(mask) && mx_count(mask) > 0)
        mxl_try(L,
                mx_fail(MX_ERR_STATE, "t[mask]: a simulated mask has no values, so the size of the result is unknown; "
                                      "mx.where keeps the size"));
}

/* The numbers of the mask's elements that are not 0, row-major, from 0. */
static mx_status numbers_of(mx_tensor *mask, mx_tensor **ids)
{
    mx_tensor *flat = NULL, *places = NULL;
    MX_TRY(mx_apply_reshape(mask, &(mx_shape){.n_dims = 1, .size = {mx_count(mask)}}, &flat));
    mx_status status = mx_apply(&mx_op_nonzero, &flat, 1, MX_NO_ATTRS, &places);
    mx_release(flat);
    if (status == MX_OK)
        status = mx_apply_reshape(places, &(mx_shape){.n_dims = 1, .size = {mx_count(places)}}, ids);
    mx_release(places);
    return status;
}

/* t with its first n dimensions joined. */
static mx_status join(mx_tensor *t, int n, mx_tensor **out)
{
    mx_shape shape = {.n_dims = t->shape.n_dims - n + 1, .size = {1}};
    for (int d = 0; d < t->shape.n_dims; d++)
        if (d < n)
            shape.size[0] *= t->shape.size[d];
        else
            shape.size[d - n + 1] = t->shape.size[d];
    return mx_apply_reshape(t, &shape, out);
}

/* Refuses a tensor that is neither a mask nor ids. */
static bool is_mask(lua_State *L, const mx_tensor *by)
{
    if (by->dtype != MX_U8 && by->dtype != MX_I32)
        mxl_try(L, mx_fail(MX_ERR_DTYPE,
                           "t[x]: x is %s; expected a mask (u8, as comparisons give it) or ids (i32, from 0)",
                           mx_tensor_text(by)));
    return by->dtype == MX_U8;
}

int mxl_push_chosen(lua_State *L, mx_tensor *t, mx_tensor *by)
{
    mx_tensor *rows = NULL, *ids = NULL, *out = NULL;
    int joined = 1;
    if (t->shape.n_dims == 0)
        mxl_try(L, mx_fail(MX_ERR_SHAPE, "t[x]: %s has no dimensions", mx_tensor_text(t)));
    if (is_mask(L, by)) {
        check_mask(L, t, by);
        joined = by->shape.n_dims;
        mxl_try(L, numbers_of(by, &ids));
    } else {
        ids = mx_retain(by);
    }
    mx_status status = join(t, joined, &rows);
    if (status == MX_OK)
        status = mx_apply_index_select(rows, ids, 0, &out);
    mx_release(rows);
    mx_release(ids);
    mxl_try(L, status);
    mxl_push_tensor(L, out);
    return 1;
}

mx_status mxl_fill_chosen(lua_State *L, mx_tensor *t, mx_tensor *mask, double number)
{
    mx_tensor *value = NULL, *wide = NULL, *out = NULL;
    if (!is_mask(L, mask))
        return mx_fail(MX_ERR_VALUE, "t[ids] = value is no assignment; mx.scatter returns a tensor with other rows");
    check_mask(L, t, mask);
    if (!mx_dtype_holds(t->dtype, number))
        return mx_fail(MX_ERR_VALUE, "t[mask] = %g: %s cannot hold it", number, mx_tensor_text(t));
    mx_shape shape = mask->shape; /* further dimensions have size 1 */
    for (; shape.n_dims < t->shape.n_dims; shape.n_dims++)
        shape.size[shape.n_dims] = 1;
    MX_TRY(mx_apply_full(&(mx_shape){0}, t->dtype, number, &value));
    mx_status status = mx_apply_reshape(mask, &shape, &wide);
    if (status == MX_OK)
        status = mx_apply(&mx_op_where, (mx_tensor *[]){wide, value, t}, 3, MX_NO_ATTRS, &out);
    if (status == MX_OK)
        status = mx_apply(&mx_op_copy, (mx_tensor *[]){t, out}, 2, MX_NO_ATTRS, NULL);
    mx_release(value);
    mx_release(wide);
    mx_release(out);
    return status;
}
