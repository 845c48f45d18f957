/* t[i], t[{...}] and t.name: rows, parts, elements and methods of a tensor; and t[...] = value. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/compose.h"
#include "ops/table.h"
#include "tape/tape.h"

#include <stdlib.h>
#include <string.h>

/* Which part of a tensor an index names: `length` elements from `first` on (from 0) in each dimension, `step` apart (0
 * stands for 1). A dimension that a single number indexes has length 1, and the result lacks it. */
typedef struct part {
    int64_t first[MX_MAX_DIMS], length[MX_MAX_DIMS], step[MX_MAX_DIMS];
    bool is_single[MX_MAX_DIMS];
    mx_shape shape; /* of the result */
} part;

/* ---- reading an index ---- */

/* The position, from 0, for the number `i` that a script wrote: from 1, or negative from the end. */
static int64_t position(lua_State *L, const mx_tensor *t, int dim, lua_Integer i)
{
    int64_t size = t->shape.size[dim];
    if (i == 0 || i > size || i < -size) {
        mxl_try(L,
                mx_fail(MX_ERR_VALUE,
                        "index %lld of dimension %d is outside of %s: positions count from 1, and negative ones from "
                        "the end",
                        (long long)i, dim + 1, mx_tensor_text(t)));
    }
    return i > 0 ? i - 1 : size + i;
}

/* {first, last}, {first, last, step} or {}, the table on top of the stack. A range that ends just before it begins is
 * empty. */
static void read_range(lua_State *L, const mx_tensor *t, int dim, part *p)
{
    lua_Integer n = luaL_len(L, -1);
    int64_t size = t->shape.size[dim];
    mxl_check_list(L, -1, "a range");
    p->length[dim] = size;
    if (n == 0)
        return;
    int n_integers = 0, is_integer = 0;
    lua_Integer given[3] = {0, 0, 1};
    for (int k = 0; k < 3 && k < n; k++) {
        lua_rawgeti(L, -1, k + 1);
        given[k] = lua_tointegerx(L, -1, &is_integer);
        n_integers += is_integer;
        lua_pop(L, 1);
    }
    if (n < 2 || n > 3 || n_integers != n || given[2] == 0) {
        mxl_try(L, mx_fail(MX_ERR_VALUE,
                           "a range is {first, last}, both whole numbers ({3, 3} is position 3 alone), {first, last, "
                           "step} with a step other than "
                           "0, or {} for all of dimension %d",
                           dim + 1));
        return; /* not reached */
    }
    lua_Integer sign = given[2] < 0 ? -1 : 1;
    bool is_empty = given[0] > 0 && given[1] == given[0] - sign && given[1] >= 0 && given[1] <= size + (sign < 0);
    int64_t first = is_empty ? given[0] - 1 : position(L, t, dim, given[0]);
    int64_t last = is_empty ? first - sign : position(L, t, dim, given[1]);
    if ((last - first) * sign < -1)
        mxl_try(L, mx_fail(MX_ERR_VALUE,
                           "the range {%lld, %lld} of dimension %d ends before it begins; a step of %s "
                           "walks in the other direction",
                           (long long)given[0], (long long)given[1], dim + 1, sign < 0 ? "1" : "-1"));
    p->first[dim] = first;
    p->step[dim] = given[2] > size ? size : (given[2] < -size ? -size : given[2]); /* longer ones take one, too */
    p->length[dim] = (last - first + sign) * sign <= 0 ? 0 : (last - first) / given[2] + 1;
}

/* The table at index 2: for each dimension a number or a range; all of the dimensions that it does not reach. */
static void read_part(lua_State *L, const mx_tensor *t, part *p)
{
    lua_Integer n = luaL_len(L, 2);
    mxl_check_list(L, 2, "the index t[{...}]");
    memset(p, 0, sizeof *p);
    if (n > t->shape.n_dims)
        mxl_try(L, mx_fail(MX_ERR_VALUE,
                           "t[{...}] has %lld entries, one for each dimension, and %s has %d; a range of rows is "
                           "t[{ {first, last} }]",
                           (long long)n, mx_tensor_text(t), t->shape.n_dims));
    for (int d = 0; d < t->shape.n_dims; d++) {
        p->length[d] = t->shape.size[d];
        int kind = d < n ? lua_rawgeti(L, 2, d + 1) : (lua_pushnil(L), LUA_TNIL), is_integer = 0;
        lua_Integer i = lua_tointegerx(L, -1, &is_integer);
        if (kind == LUA_TTABLE) {
            read_range(L, t, d, p);
        } else if (kind == LUA_TNUMBER && is_integer) {
            p->first[d] = position(L, t, d, i);
            p->length[d] = 1;
            p->is_single[d] = true;
        } else if (d < n) {
            mxl_try(
                L,
                mx_fail(
                    MX_ERR_VALUE,
                    "entry %d of t[{...}] is %s; expected a whole number, {first, last}, {first, last, step} or {}%s",
                    d + 1, mxl_test_tensor(L, -1) ? "a tensor" : luaL_tolstring(L, -1, NULL),
                    mxl_test_tensor(L, -1) ? "; mx.index_select takes ids along a dimension" : ""));
        }
        lua_pop(L, 1);
        if (!p->is_single[d])
            p->shape.size[p->shape.n_dims++] = p->length[d];
    }
}

/* Row i. */
static void row_part(lua_State *L, const mx_tensor *t, lua_Integer i, part *p)
{
    memset(p, 0, sizeof *p);
    if (t->shape.n_dims == 0)
        luaL_error(L, "index %I is outside of %s, which has no dimensions; t:item() is its value", (LUAI_UACINT)i,
                   mx_tensor_text(t));
    memcpy(p->length, t->shape.size, sizeof p->length);
    p->first[0] = position(L, t, 0, i);
    p->length[0] = 1;
    p->is_single[0] = true;
    p->shape.n_dims = t->shape.n_dims - 1;
    for (int d = 0; d < p->shape.n_dims; d++)
        p->shape.size[d] = t->shape.size[d + 1];
}

/* ---- t[part] ---- */

static bool is_run(const part *p, int dim) { return p->step[dim] == 0 || p->step[dim] == 1; }

/* first, first + step ...: the ids of a range with a step, i32. */
static mx_status ids_of(const part *p, int dim, mx_tensor **ids)
{
    mx_tensor *count = NULL;
    MX_TRY(mx_apply_arange(p->length[dim], MX_I32, 0, &count));
    mx_status status = mx_apply_affine(count, (double)p->step[dim], (double)p->first[dim], ids);
    mx_release(count);
    return status;
}

/* The elements of t that the part names in one dimension. */
static mx_status take(mx_tensor *t, const part *p, int dim, mx_tensor **out)
{
    if (is_run(p, dim))
        return mx_apply_narrow(t, dim, p->first[dim], p->length[dim], out);
    mx_tensor *ids = NULL;
    MX_TRY(ids_of(p, dim, &ids));
    mx_status status = mx_apply_index_select(t, ids, dim, out);
    mx_release(ids);
    return status;
}

/* Pushes the part: a view if its values are contiguous, otherwise a copy. Gradients flow through either. */
static void push_part(lua_State *L, mx_tensor *t, const part *p)
{
    mx_tensor *now = mx_retain(t), *next = NULL;
    mx_status status = MX_OK;
    for (int d = 0; d < t->shape.n_dims && status == MX_OK; d++) {
        if (p->length[d] == t->shape.size[d] && is_run(p, d))
            continue;
        status = take(now, p, d, &next);
        mx_release(now);
        now = next;
    }
    if (status == MX_OK) {
        status = mx_apply_reshape(now, &p->shape, &next);
        mx_release(now);
    }
    mxl_try(L, status);
    mxl_push_tensor(L, next);
}

/* Pushes an element as a number, or, if gradients are recorded for t, as a tensor without dimensions. */
static void push_element(lua_State *L, mx_tensor *t, const part *p)
{
    if ((t->requires_grad || t->gone.op) && mx_tape_is_recording()) {
        push_part(L, t, p);
        return;
    }
    int64_t at = 0;
    for (int d = 0; d < t->shape.n_dims; d++)
        at = at * t->shape.size[d] + p->first[d];
    mxl_try(L, mx_tensor_wait(t, false));
    mxl_push_element(L, t, at);
}

/* Whether the caller is the iterator of ipairs, which is upvalue 2. */
static bool asked_by_ipairs(lua_State *L)
{
    lua_Debug frame;
    if (!lua_getstack(L, 1, &frame))
        return false;
    lua_getinfo(L, "f", &frame);
    bool same = lua_rawequal(L, -1, lua_upvalueindex(2));
    lua_pop(L, 1);
    return same;
}

/* Reads the index at stack index 2 of the tensor at 1; false if it is neither a whole number nor a table. */
static bool read_index(lua_State *L, const mx_tensor *t, part *p)
{
    int is_integer = 0;
    lua_Integer i = lua_type(L, 2) == LUA_TNUMBER ? lua_tointegerx(L, 2, &is_integer) : 0;
    if (is_integer)
        row_part(L, t, i, p);
    else if (lua_type(L, 2) == LUA_TTABLE)
        read_part(L, t, p);
    else
        return false;
    return true;
}

/* ---- fields ---- */

static int push_transposed(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1), *out = NULL;
    if (t->shape.n_dims != 2)
        mxl_try(
            L, mx_fail(MX_ERR_SHAPE, "t.T is for matrices, not %s; mx.permute reorders dimensions", mx_tensor_text(t)));
    mxl_try(L, mx_apply_transpose(t, -2, -1, &out));
    mxl_push_tensor(L, out);
    return 1;
}

static _Noreturn void bad_index(lua_State *L)
{
    mx_fail(
        MX_ERR_VALUE,
        "a tensor is indexed by a whole number, a table or a tensor, not by %s: t[i] is row i, t[{ {1, 3}, -1 }] the "
        "last column of rows 1 to 3, t[mask] the elements where a mask is not 0",
        luaL_tolstring(L, 2, NULL));
    mxl_try(L, MX_ERR_VALUE);
    abort(); /* not reached */
}

/* Whether the module mx at stack index `mx` has a function of this name, or loads one when it is first used. */
static bool has_function(lua_State *L, int mx, const char *name)
{
    lua_pushstring(L, name);
    if (lua_rawget(L, mx) == LUA_TFUNCTION)
        return true;
    return luaL_getmetafield(L, mx, "functions") == LUA_TTABLE && lua_getfield(L, -1, name) != LUA_TNIL;
}

/* Whether mx.help says what to write instead of this name. */
static bool is_elsewhere(lua_State *L, int mx, const char *name)
{
    if (luaL_getmetafield(L, mx, "is_elsewhere") != LUA_TFUNCTION)
        return false;
    lua_pushstring(L, name);
    lua_call(L, 1, 1);
    return lua_toboolean(L, -1);
}

/* Fails if mx has a function of this name that is no method, such as mx.backward, or says what to write instead. */
static void suggest_function(lua_State *L, const char *name)
{
    luaL_getsubtable(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    bool is_loaded = lua_getfield(L, -1, "mx") == LUA_TTABLE;
    int mx = lua_gettop(L);
    if (is_loaded && has_function(L, mx, name))
        mxl_try(L, mx_fail(MX_ERR_VALUE, "a tensor has no method '%s'; use mx.%s(t)", name, name));
    if (is_loaded && is_elsewhere(L, mx, name))
        mxl_try(L,
                mx_fail(MX_ERR_VALUE, "a tensor has no method '%s'; print(mx.help \"%s\") says what to write instead",
                        name, name));
    lua_settop(L, 2);
}

/* Upvalues: the methods, and the iterator of ipairs. */
static int tensor_index(lua_State *L)
{
    if (lua_type(L, 2) == LUA_TSTRING) {
        const char *name = lua_tostring(L, 2);
        lua_pushvalue(L, 2);
        if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
            return 1;
        luaL_checkudata(L, 1, MXL_TENSOR);
        if (strcmp(name, "T") == 0)
            return push_transposed(L);
        suggest_function(L, name);
        mxl_unknown_field(L, "a tensor has no method", name, lua_upvalueindex(1));
    }
    mx_tensor *t = mxl_check_tensor(L, 1);
    bool is_past_end = t->shape.n_dims > 0 && lua_isinteger(L, 2) && lua_tointeger(L, 2) == t->shape.size[0] + 1;
    if (is_past_end && asked_by_ipairs(L))
        return 0;
    if (mxl_test_tensor(L, 2))
        return mxl_push_chosen(L, t, mxl_check_tensor(L, 2));
    part p;
    if (!read_index(L, t, &p))
        bad_index(L);
    bool is_element = t->shape.n_dims > 0 && p.shape.n_dims == 0;
    if (is_element)
        push_element(L, t, &p);
    else
        push_part(L, t, &p);
    return 1;
}

/* ---- t[part] = value ---- */

static mx_status write_back(mx_tensor *t, const part *p, int dim, mx_tensor *value)
{
    mx_tensor *ids = NULL;
    if (is_run(p, dim))
        return mx_apply_write_slice(t, value, dim, p->first[dim]);
    MX_TRY(ids_of(p, dim, &ids));
    mx_status status = mxl_write_rows(t, dim, ids, value);
    mx_release(ids);
    return status;
}

/* Writes `value`, of the part's shape with single dimensions, into dimensions `dim` and later of t. Only a range of one
 * dimension can be written at once: further ranges are written into a narrower tensor first, which is a view or is then
 * written back. */
static mx_status write_part(mx_tensor *t, const part *p, int dim, mx_tensor *value)
{
    while (dim < t->shape.n_dims && p->length[dim] == t->shape.size[dim] && is_run(p, dim))
        dim++;
    if (dim == t->shape.n_dims)
        return mx_apply(&mx_op_copy, (mx_tensor *[]){t, value}, 2, MX_NO_ATTRS, NULL);
    bool is_last = true;
    for (int d = dim + 1; d < t->shape.n_dims; d++)
        is_last = is_last && p->length[d] == t->shape.size[d] && is_run(p, d);
    if (is_last)
        return write_back(t, p, dim, value);
    mx_tensor *narrow = NULL;
    MX_TRY(take(t, p, dim, &narrow));
    mx_status status = write_part(narrow, p, dim + 1, value);
    if (status == MX_OK && narrow->storage != t->storage)
        status = write_back(t, p, dim, narrow);
    mx_release(narrow);
    return status;
}

/* A new tensor with the shape of the part before single dimensions are dropped: the value at stack index 3. */
static mx_status make_value(lua_State *L, const mx_tensor *t, const part *p, mx_tensor **out)
{
    mx_shape shape = {.n_dims = t->shape.n_dims};
    memcpy(shape.size, p->length, sizeof p->length);
    mx_tensor *value = mxl_test_tensor(L, 3);
    if (!value) {
        double number = 0;
        MX_TRY(mxl_assigned_number(L, t, "t[...]", &number));
        return mx_apply_full(&shape, t->dtype, number, out);
    }
    if (value->dtype != t->dtype)
        return mx_fail(MX_ERR_DTYPE, "t[...] = value: the value is %s and the tensor %s; value:to(\"%s\") converts",
                       mx_tensor_text(value), mx_tensor_text(t), mx_dtype_name(t->dtype));
    if (!mx_shape_equal(&value->shape, &p->shape))
        return mx_fail(MX_ERR_SHAPE, "t[...] = value: the value is %s, the part of the tensor has shape %s",
                       mx_tensor_text(value), mx_shape_text(&p->shape));
    return mx_apply_reshape(value, &shape, out);
}

/* Assignments are not recorded: the gradient of a recorded tensor would be that before the assignment. */
static void refuse_recorded(lua_State *L, const mx_tensor *t)
{
    const mx_tensor *value = mxl_test_tensor(L, 3);
    if (!mx_tape_is_recording())
        return;
    if (value && value->requires_grad)
        mxl_try(L, mx_fail(MX_ERR_STATE,
                           "t[...] = value: %s requires a gradient, which would be lost because assignments are not "
                           "recorded; assign value:detach(), or use mx.where or mx.concat",
                           mx_tensor_text(value)));
    if (t->node || t->gone.op)
        mxl_try(L, mx_fail(MX_ERR_STATE,
                           "t[...] = value: %s was computed by recorded operations, and assignments are not recorded, "
                           "so its gradient would be wrong; assign to t:detach():clone(), or use mx.where or mx.concat",
                           mx_tensor_text(t)));
}

static int tensor_newindex(lua_State *L)
{
    luaL_checkudata(L, 1, MXL_TENSOR);
    if (lua_type(L, 2) == LUA_TSTRING)
        return luaL_error(L, "a tensor has no fields to assign, such as '%s'; mx.name names it", lua_tostring(L, 2));
    mx_tensor *t = mxl_check_tensor(L, 1), *value = NULL;
    if (!mxl_test_tensor(L, 3) && lua_type(L, 3) != LUA_TNUMBER)
        return luaL_error(L, "t[...] = value: the value is %s; expected a number or a tensor", luaL_typename(L, 3));
    if (mxl_test_tensor(L, 3))
        mxl_check_tensor(L, 3);
    if (mxl_test_tensor(L, 2)) {
        refuse_recorded(L, t);
        mxl_write_chosen(L, t, mxl_check_tensor(L, 2));
        return 0;
    }
    part p;
    if (!read_index(L, t, &p))
        bad_index(L);
    refuse_recorded(L, t);
    mxl_try(L, make_value(L, t, &p, &value));
    mx_status status = write_part(t, &p, 0, value);
    mx_release(value);
    mxl_try(L, status);
    return 0;
}

void mxl_set_tensor_index(lua_State *L)
{
    lua_getglobal(L, "ipairs");
    lua_newtable(L);
    lua_call(L, 1, 1);
    lua_pushcclosure(L, tensor_index, 2);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, tensor_newindex);
    lua_setfield(L, -2, "__newindex");
}
