/* t[i] and t.name: rows, elements and methods of a tensor. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/compose.h"
#include "tape/tape.h"

#include <stdlib.h>

/* ---- rows ---- */

/* Row i, counted from 0, as a view with one dimension less. */
static void push_row(lua_State *L, mx_tensor *t, int64_t i)
{
    mx_shape shape = {.n_dims = t->shape.n_dims - 1};
    for (int d = 0; d < shape.n_dims; d++)
        shape.size[d] = t->shape.size[d + 1];
    mx_tensor *narrowed = NULL, *row = NULL;
    mxl_try(L, mx_apply_narrow(t, 0, i, 1, &narrowed));
    mx_status status = mx_apply_reshape(narrowed, &shape, &row);
    mx_release(narrowed);
    mxl_try(L, status);
    mxl_push_tensor(L, row);
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

/* t[i]: row i as a view. For a tensor of one dimension: the element, as a tensor without dimensions if gradients are
 * recorded for it, otherwise as a number. */
static int tensor_row(lua_State *L, lua_Integer i)
{
    mx_tensor *t = mxl_check_tensor(L, 1);
    int64_t rows = t->shape.n_dims > 0 ? t->shape.size[0] : 0;
    if (i == rows + 1 && t->shape.n_dims > 0 && asked_by_ipairs(L))
        return 0;
    if (i < 1 || i > rows)
        return luaL_error(L, "index %I is outside of %s, counted from 1", (LUAI_UACINT)i, mx_tensor_text(t));
    if (t->shape.n_dims == 1 && !((t->requires_grad || t->gone.op) && mx_tape_is_recording())) {
        mxl_try(L, mx_tensor_wait(t, false));
        mxl_push_element(L, t, i - 1);
    } else {
        push_row(L, t, i - 1);
    }
    return 1;
}

/* ---- fields ---- */

/* Upvalues: the methods, and the iterator of ipairs. */
static int tensor_index(lua_State *L)
{
    int is_integer = 0;
    lua_Integer i = lua_type(L, 2) == LUA_TNUMBER ? lua_tointegerx(L, 2, &is_integer) : 0;
    if (is_integer)
        return tensor_row(L, i);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    luaL_checkudata(L, 1, MXL_TENSOR);
    if (lua_type(L, 2) == LUA_TSTRING)
        mxl_unknown_field(L, "a tensor has no method", lua_tostring(L, 2), lua_upvalueindex(1));
    return luaL_error(L,
                      "a tensor is indexed by a whole number, not by %s: t[i] is row i, t:get(i, j) an element, "
                      "mx.narrow a range",
                      luaL_tolstring(L, 2, NULL));
}

static int tensor_newindex(lua_State *L)
{
    luaL_checkudata(L, 1, MXL_TENSOR);
    return luaL_error(L,
                      "t[%s] cannot be assigned: t:set(i, j, value) sets an element, mx.write_slice a range, mx.fill "
                      "all of a tensor; mx.name names it",
                      luaL_tolstring(L, 2, NULL));
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
