/* t[mask], t[ids], and assignment to them: elements and rows chosen by another tensor. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/compose.h"
#include "ops/table.h"
#include "ops/terms.h"
#include "tape/tape.h"

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

/* ---- assignment ---- */

mx_status mxl_write_rows(mx_tensor *t, int dim, mx_tensor *ids, mx_tensor *value)
{
    mx_shape shape = {.n_dims = t->shape.n_dims};
    const int64_t along = dim;
    for (int d = 0; d < shape.n_dims; d++)
        shape.size[d] = d == dim ? mx_count(ids) : 1;
    bool recording = mx_tape_set_recording(false); /* the copy alone is the change */
    mx_terms s = {.n = 0};
    mx_tensor *index = mx_term_reshape(&s, ids, &shape);
    index = mx_term(&s, &mx_op_expand, MX_ATTRS(value->shape), index, NULL, NULL);
    mx_tensor *out = mx_term(&s, &mx_op_scatter, MX_ATTRS(along), t, index, value);
    mx_tape_set_recording(recording);
    mx_status status = out ? mx_apply(&mx_op_copy, (mx_tensor *[]){t, out}, 2, MX_NO_ATTRS, NULL) : s.status;
    mx_terms_release(&s);
    return status;
}

mx_status mxl_assigned_number(lua_State *L, const mx_tensor *t, const char *what, double *number)
{
    *number = lua_tonumber(L, 3);
    if (mx_dtype_holds(t->dtype, *number))
        return MX_OK;
    lua_pushvalue(L, 3);
    return mx_fail(
        MX_ERR_VALUE, "%s = %s: %s cannot hold it%s", what, lua_tostring(L, -1), mx_tensor_text(t),
        t->dtype == MX_I64 && lua_isinteger(L, 3)
            ? "; numbers from 2^53 on are not exact here: t:set sets one, mx.tensor(n, \"i64\") makes a tensor"
            : "");
}

/* A number, in the shape of the rows that are written; or the tensor, which must have their shape: that of t[by]. */
static mx_status rows_of_value(lua_State *L, const mx_tensor *t, const mx_shape *rows, const mx_shape *shape,
                               mx_tensor **out)
{
    mx_tensor *value = mxl_test_tensor(L, 3);
    if (!value) {
        double number = 0;
        MX_TRY(mxl_assigned_number(L, t, "t[x]", &number));
        return mx_apply_full(rows, t->dtype, number, out);
    }
    if (value->dtype != t->dtype)
        return mx_fail(MX_ERR_DTYPE, "t[x] = value: the value is %s and the tensor %s; value:to(\"%s\") converts",
                       mx_tensor_text(value), mx_tensor_text(t), mx_dtype_name(t->dtype));
    if (!mx_shape_equal(&value->shape, shape))
        return mx_fail(MX_ERR_SHAPE, "t[x] = value: the value is %s, and t[x] has shape %s", mx_tensor_text(value),
                       mx_shape_text(shape));
    return mx_apply_reshape(value, rows, out);
}

/* A number where a mask is not 0. */
static mx_status fill_masked(lua_State *L, mx_tensor *t, mx_tensor *mask)
{
    double number = 0;
    MX_TRY(mxl_assigned_number(L, t, "t[mask]", &number));
    mx_shape shape = mask->shape; /* further dimensions have size 1 */
    for (; shape.n_dims < t->shape.n_dims; shape.n_dims++)
        shape.size[shape.n_dims] = 1;
    bool recording = mx_tape_set_recording(false);
    mx_terms s = {.n = 0};
    mx_tensor *wide = mx_term_reshape(&s, mask, &shape);
    mx_tensor *out = mx_term_where(&s, wide, mx_term_number(&s, t->dtype, number), t);
    mx_tape_set_recording(recording);
    mx_status status = out ? mx_apply(&mx_op_copy, (mx_tensor *[]){t, out}, 2, MX_NO_ATTRS, NULL) : s.status;
    mx_terms_release(&s);
    return status;
}

/* Refuses ids that are no rows of t. Simulated ids have no values. */
static mx_status check_ids(const mx_tensor *t, mx_tensor *ids)
{
    mx_map map;
    if (!mx_has_values(ids))
        return MX_OK;
    MX_TRY(mx_tensor_wait(ids, false));
    MX_TRY(mx_tensor_map(ids, 0, mx_count(ids), MX_MAP_READ, &map));
    const int32_t *id = map.data;
    int64_t rows = t->shape.size[0], bad = 0;
    while (bad < mx_count(ids) && id[bad] >= 0 && id[bad] < rows)
        bad++;
    mx_status status = MX_OK;
    if (bad < mx_count(ids))
        status = mx_fail(MX_ERR_VALUE, "t[ids] = value: id %d is outside 0 .. %lld (ids count from 0) of %s", id[bad],
                         (long long)rows - 1, mx_tensor_text(t));
    mx_tensor_unmap(&map);
    return status;
}

static mx_status write_chosen(lua_State *L, mx_tensor *t, mx_tensor *by, bool by_mask)
{
    int joined = by_mask ? by->shape.n_dims : 1;
    mx_tensor *ids = NULL, *rows = NULL, *value = NULL;
    if (!by_mask)
        MX_TRY(check_ids(t, by));
    MX_TRY(by_mask ? numbers_of(by, &ids)
                   : mx_apply_reshape(by, &(mx_shape){.n_dims = 1, .size = {mx_count(by)}}, &ids));
    mx_status status = join(t, joined, &rows);
    mx_shape written = rows ? rows->shape : (mx_shape){0}, shape = by_mask ? ids->shape : by->shape;
    written.size[0] = mx_count(ids);
    for (int d = joined; d < t->shape.n_dims && shape.n_dims < MX_MAX_DIMS; d++)
        shape.size[shape.n_dims++] = t->shape.size[d];
    if (status == MX_OK)
        status = rows_of_value(L, t, &written, &shape, &value);
    if (status == MX_OK && rows)
        status = mxl_write_rows(rows, 0, ids, value);
    mx_release(ids);
    mx_release(rows);
    mx_release(value);
    return status;
}

void mxl_write_chosen(lua_State *L, mx_tensor *t, mx_tensor *by)
{
    bool by_mask = is_mask(L, by);
    if (t->shape.n_dims == 0)
        mxl_try(L, mx_fail(MX_ERR_SHAPE, "t[x] = value: %s has no dimensions", mx_tensor_text(t)));
    if (by_mask)
        check_mask(L, t, by);
    bool is_number = !mxl_test_tensor(L, 3);
    mxl_try(L, by_mask && is_number ? fill_masked(L, t, by) : write_chosen(L, t, by, by_mask));
}
