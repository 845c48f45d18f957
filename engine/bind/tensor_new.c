/* Creates tensors from Lua values: mx.tensor, mx.zeros and mx.ones; and lists the dtypes: mx.dtypes. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "core/element.h"

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

/* `values` are those of t. */
static void fill_nested(lua_State *L, const mx_tensor *t, void *values, int depth, int64_t *next)
{
    if (depth == t->shape.n_dims) {
        int is_number = 0;
        double value = lua_tonumberx(L, -1, &is_number);
        if (!is_number)
            luaL_error(L, "mx.tensor: an entry is %s, expected a number%s", luaL_typename(L, -1),
                       mxl_test_tensor(L, -1) ? "; of a tensor, t:item() is the number" : "");
        if (!mxl_to_value(L, -1, values, (*next)++, t->dtype))
            luaL_error(L, "mx.tensor: %f does not fit %s", value, mx_dtype_name(t->dtype));
        return;
    }
    int64_t n = t->shape.size[depth];
    if (!lua_istable(L, -1) || luaL_len(L, -1) != n)
        luaL_error(L, "mx.tensor: rows differ in length: expected %d entries at level %d", (int)n, depth + 1);
    for (int64_t i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        fill_nested(L, t, values, depth + 1, next);
        lua_pop(L, 1);
    }
}

/* The dtype at index 2: a name or {dtype = ...}. No further argument is allowed. */
static mx_dtype check_dtype_argument(lua_State *L, const char *what)
{
    static const char *const names[] = {"dtype", NULL};
    if (lua_gettop(L) > 2)
        luaL_error(L, "%s takes two arguments, the second a dtype; %d given", what, lua_gettop(L));
    if (!lua_istable(L, 2))
        return mxl_check_dtype(L, 2, MX_F32);
    mxl_check_fields(L, 2, names, what);
    lua_getfield(L, 2, "dtype");
    return mxl_check_dtype(L, -1, MX_F32);
}

/* mx.tensor(number or nested table, [dtype = "f32"]) */
static int new_from_table(lua_State *L)
{
    mx_dtype dtype = check_dtype_argument(L, "mx.tensor");
    lua_settop(L, 1);
    luaL_argexpected(L, lua_istable(L, 1) || lua_isnumber(L, 1), 1, "a number or a nested table of numbers");
    if (lua_istable(L, 1))
        mxl_check_list(L, 1, "the values of mx.tensor(values, dtype)");
    mx_shape shape = {0};
    measure(L, &shape);
    mx_tensor *t = NULL;
    mxl_try(L, mx_tensor_new(dtype, &shape, &t));
    mxl_push_tensor(L, t);
    void *values = lua_newuserdatauv(L, (size_t)mx_bytes(t), 0);
    lua_pushvalue(L, 1);
    int64_t next = 0;
    fill_nested(L, t, values, 0, &next);
    mxl_try(L, mx_tensor_write(t, 0, mx_count(t), values));
    lua_pop(L, 2);
    return 1;
}

/* mx.zeros(2, 3, ...) becomes mx.zeros({2, 3}, ...). */
void mxl_join_sizes(lua_State *L)
{
    int n = 0;
    while (lua_type(L, n + 1) == LUA_TNUMBER)
        n++;
    if (n == 0)
        return;
    lua_createtable(L, n, 0);
    for (int i = 1; i <= n; i++) {
        lua_pushvalue(L, i);
        lua_rawseti(L, -2, i);
    }
    lua_replace(L, 1);
    for (int i = 1; i < n; i++)
        lua_remove(L, 2);
}

/* mx.zeros(2, 3), mx.zeros{2, 3}, mx.zeros({2, 3}, dtype), mx.zeros{shape = {2, 3}, dtype = dtype} */
static void check_shape_and_dtype(lua_State *L, const char *what, mx_shape *shape, mx_dtype *dtype)
{
    static const char *const names[] = {"shape", "dtype", NULL};
    mxl_join_sizes(L);
    if (!lua_istable(L, 1))
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: expected a shape, as in %s{2, 3}, got %s", what, what,
                           luaL_tolstring(L, 1, NULL)));
    *dtype = check_dtype_argument(L, what);
    mxl_check_fields(L, 1, names, what);
    if (lua_getfield(L, 1, "dtype") != LUA_TNIL)
        *dtype = mxl_check_dtype(L, -1, MX_F32);
    bool is_list = lua_getfield(L, 1, "shape") == LUA_TNIL;
    if (!is_list && luaL_len(L, 1) > 0)
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: 'shape' is given twice: by name, and as a list", what));
    if (!is_list && lua_istable(L, -1))
        mxl_check_list(L, -1, "shape");
    mxl_check_shape(L, is_list ? 1 : lua_gettop(L), "a shape, as in {2, 3}", shape);
}

static int new_filled(lua_State *L, const char *what, double value)
{
    mx_shape shape = {0};
    mx_dtype dtype;
    check_shape_and_dtype(L, what, &shape, &dtype);
    mx_tensor *t = NULL;
    mxl_try(L, mx_tensor_new(dtype, &shape, &t));
    mxl_push_tensor(L, t);
    mxl_try(L, mx_tensor_fill(t, value));
    return 1;
}

static int new_zeros(lua_State *L) { return new_filled(L, "mx.zeros", 0); }

static int new_ones(lua_State *L) { return new_filled(L, "mx.ones", 1); }

/* mx.dtypes: name -> {bytes =, long_name = "bfloat16", is_float =, is_real =, computes =, may_have_gradient =,
 * accumulates_in =, bound =}: the fields of mx_dtype_traits. */
static void push_dtypes(lua_State *L)
{
    lua_createtable(L, 0, MX_DTYPES);
    for (int d = 0; d < MX_DTYPES; d++) {
        const mx_dtype_traits *t = &mx_dtypes[d];
        lua_createtable(L, 0, 8);
        lua_pushinteger(L, (lua_Integer)t->bytes);
        lua_setfield(L, -2, "bytes");
        lua_pushstring(L, t->long_name);
        lua_setfield(L, -2, "long_name");
        lua_pushboolean(L, t->is_float);
        lua_setfield(L, -2, "is_float");
        lua_pushboolean(L, t->is_real);
        lua_setfield(L, -2, "is_real");
        lua_pushboolean(L, t->computes);
        lua_setfield(L, -2, "computes");
        lua_pushboolean(L, t->may_have_gradient);
        lua_setfield(L, -2, "may_have_gradient");
        lua_pushstring(L, mx_dtype_name(t->accumulates_in));
        lua_setfield(L, -2, "accumulates_in");
        if (t->is_code)
            lua_pushnumber(L, (lua_Number)t->bound), lua_setfield(L, -2, "bound");
        lua_setfield(L, -2, t->name);
    }
}

int mxl_open_tensor_new(lua_State *L)
{
    static const luaL_Reg functions[] = {{"tensor", new_from_table},
                                         {"zeros", new_zeros},
                                         {"ones", new_ones},
                                         {"print_options", mxl_print_options},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    luaL_setfuncs(L, mxl_tensor_parts, 0);
    push_dtypes(L);
    lua_setfield(L, -2, "dtypes");
    return 1;
}
