/* Tensors out of Lua values: mx.tensor, mx.zeros and mx.ones. */
#include "bind/bind.h"
#include "bind/tensor.h"

#include <stdlib.h>
#include <string.h>

/* Sizes of the nested table at the top of the stack. */
static void measure(lua_State *L, mx_shape *shape)
{
    int top = lua_gettop(L);
    lua_pushvalue(L, -1);
    while (lua_istable(L, -1)) {
        if (shape->n_dims == MX_MAX_DIMS)
            luaL_error(L, "mx.tensor: the table is nested deeper than %d levels", MX_MAX_DIMS);
        shape->size[shape->n_dims++] = luaL_len(L, -1);
        lua_rawgeti(L, -1, 1);
    }
    lua_settop(L, top);
}

static void fill_nested(lua_State *L, mx_tensor *t, int depth, int64_t *next)
{
    if (depth == t->shape.n_dims) {
        int is_number = 0;
        double value = lua_tonumberx(L, -1, &is_number);
        if (!is_number)
            luaL_error(L, "mx.tensor: an entry is %s, expected a number", luaL_typename(L, -1));
        if (!mxl_set_element(t, (*next)++, value))
            luaL_error(L, "mx.tensor: %f does not fit %s", value, mx_dtype_name(t->dtype));
        return;
    }
    int64_t n = t->shape.size[depth];
    if (!lua_istable(L, -1) || luaL_len(L, -1) != n)
        luaL_error(L, "mx.tensor: rows differ in length: expected %d entries at level %d", (int)n, depth + 1);
    for (int64_t i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        fill_nested(L, t, depth + 1, next);
        lua_pop(L, 1);
    }
}

/* mx.tensor(number or nested table, [dtype = "f32"]) */
static int new_from_table(lua_State *L)
{
    mx_dtype dtype = mxl_check_dtype(L, 2, MX_F32);
    lua_settop(L, 1);
    luaL_argexpected(L, lua_istable(L, 1) || lua_isnumber(L, 1), 1, "a number or a nested table of numbers");
    mx_shape shape = {0};
    measure(L, &shape);
    mx_tensor *t = NULL;
    mxl_try(L, mx_tensor_new(dtype, &shape, &t));
    mxl_push_tensor(L, t);
    lua_pushvalue(L, 1);
    int64_t next = 0;
    fill_nested(L, t, 0, &next);
    lua_pop(L, 1);
    return 1;
}

static int new_filled(lua_State *L, double value)
{
    mx_shape shape = {0};
    mxl_check_shape(L, 1, "a shape, as in {2, 3}", &shape);
    mx_dtype dtype = mxl_check_dtype(L, 2, MX_F32);
    mx_tensor *t = NULL;
    mxl_try(L, mx_tensor_new(dtype, &shape, &t));
    mxl_push_tensor(L, t);
    if (value == 0 && mx_data(t))
        memset(mx_data(t), 0, (size_t)mx_bytes(t));
    for (int64_t i = 0; value != 0 && mx_data(t) && i < mx_count(t); i++)
        mxl_set_element(t, i, value);
    return 1;
}

static int new_zeros(lua_State *L) { return new_filled(L, 0); }

static int new_ones(lua_State *L) { return new_filled(L, 1); }

int mxl_open_tensor_new(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"tensor", new_from_table}, {"zeros", new_zeros}, {"ones", new_ones}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
