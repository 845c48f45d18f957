/* The tensor as a Lua value: reading, computing, lifetimes. Operations become methods in ops.c. */
#include "bind/tensor.h"
#include "bind/bind.h"
#include "core/element.h"
#include "core/offload.h"
#include "core/pool.h"
#include "core/scope.h"
#include "ops/compose.h"
#include "ops/table.h"
#include "tape/tape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mxl_box {
    mx_tensor *t; /* NULL once collected */
} mxl_box;

mx_tensor *mxl_test_tensor(lua_State *L, int i)
{
    mxl_box *box = luaL_testudata(L, i, MXL_TENSOR);
    return box ? box->t : NULL;
}

mx_tensor *mxl_any_tensor(lua_State *L, int i)
{
    mxl_running = L;
    mx_tensor *t = ((mxl_box *)luaL_checkudata(L, i, MXL_TENSOR))->t;
    if (!t)
        luaL_error(L, "this tensor is gone: its __gc was called");
    return t;
}

mx_tensor *mxl_check_tensor(lua_State *L, int i)
{
    mx_tensor *t = mxl_any_tensor(L, i);
    if (!t->released)
        mxl_try(L, mx_tensor_fetch(t));
    if (t->released || !t->storage)
        mxl_try(L, mx_fail(MX_ERR_STATE,
                           "%s has been released: its scope has closed, or t:release() was called; return it from "
                           "mx.scope, or call t:keep() inside",
                           mx_tensor_text(t)));
    return t;
}

mx_tensor *mxl_check_values(lua_State *L, int i, bool for_writing)
{
    mx_tensor *t = mxl_check_tensor(L, i);
    mxl_try(L, mx_tensor_wait(t, for_writing));
    return t;
}

/* Outside scopes only Lua's collector frees tensors, but it does not see tensor memory. So this counts the bytes of new
 * tensors, and runs the collector when they reach half of the memory in use (at least 64 MiB). */
static void account(lua_State *L, const mx_tensor *t)
{
    static int64_t since_collection;
    if (t->scope)
        return;
    since_collection += mx_bytes(t);
    int64_t in_use = mx_device_current->memory(mx_device_current).in_use_bytes;
    if (since_collection < (64 << 20) || since_collection < in_use / 2)
        return;
    since_collection = 0;
    lua_gc(L, LUA_GCCOLLECT);
}

void mxl_push_tensor(lua_State *L, mx_tensor *t)
{
    account(L, t);
    mxl_box *box = lua_newuserdatauv(L, sizeof *box, 0);
    box->t = t;
    luaL_setmetatable(L, MXL_TENSOR);
}

static int tensor_gc(lua_State *L)
{
    mxl_box *box = luaL_checkudata(L, 1, MXL_TENSOR);
    mx_release(box->t);
    box->t = NULL;
    return 0;
}

/* Elements as doubles. On a device without values, all are NaN, and setting one has no effect. */

double mxl_element(lua_State *L, const mx_tensor *t, int64_t i)
{
    _Alignas(8) char value[8];
    if (!mx_has_values(t))
        return NAN;
    mxl_try(L, mx_tensor_read(t, i, 1, value));
    return mx_get_number(value, 0, t->dtype);
}

static void push_number(lua_State *L, double value)
{
    lua_pushnumber(L, isnan(value) ? (double)NAN : value); /* print would show the sign of a NaN */
}

static void push_value(lua_State *L, const void *values, int64_t i, mx_dtype dtype)
{
    if (mx_dtype_is_integer(dtype))
        lua_pushinteger(L, mx_get_int(values, i, dtype));
    else
        push_number(L, mx_get_number(values, i, dtype));
}

void mxl_push_element(lua_State *L, const mx_tensor *t, int64_t i)
{
    _Alignas(8) char value[8];
    if (!mx_has_values(t)) {
        push_number(L, NAN);
        return;
    }
    mxl_try(L, mx_tensor_read(t, i, 1, value));
    push_value(L, value, 0, t->dtype);
}

bool mxl_to_value(lua_State *L, int number, void *values, int64_t i, mx_dtype dtype)
{
    int is_whole = 0;
    lua_Integer whole = lua_tointegerx(L, number, &is_whole);
    if (is_whole && mx_dtype_is_integer(dtype)) { /* a double would round it */
        bool fits = whole == mx_dtype_saturate(dtype, whole);
        if (fits)
            mx_set_int(values, i, whole, dtype);
        return fits;
    }
    double real = lua_tonumber(L, number);
    if (mx_dtype_is_integer(dtype))
        return false;
    mx_set_number(values, i, real, dtype);
    return true;
}

bool mxl_set_element(lua_State *L, const mx_tensor *t, int64_t i, int number)
{
    _Alignas(8) char value[8];
    if (!mxl_to_value(L, number, value, 0, t->dtype))
        return false;
    mxl_try(L, mx_tensor_write(t, i, 1, value));
    return true;
}

/* Reading and writing. */

static int tensor_size(lua_State *L)
{
    const mx_tensor *t = mxl_any_tensor(L, 1);
    if (!lua_isnoneornil(L, 2)) {
        lua_Integer d = luaL_checkinteger(L, 2);
        lua_Integer at = d < 0 ? t->shape.n_dims + d : d - 1;
        if (at < 0 || at >= t->shape.n_dims)
            return luaL_error(L, "size(%d): %s has %d dimensions, counted from 1", (int)d, mx_tensor_text(t),
                              t->shape.n_dims);
        lua_pushinteger(L, t->shape.size[at]);
        return 1;
    }
    lua_createtable(L, t->shape.n_dims, 0);
    for (int d = 0; d < t->shape.n_dims; d++) {
        lua_pushinteger(L, t->shape.size[d]);
        lua_rawseti(L, -2, d + 1);
    }
    return 1;
}

static int tensor_dim(lua_State *L)
{
    lua_pushinteger(L, mxl_any_tensor(L, 1)->shape.n_dims);
    return 1;
}

static int tensor_numel(lua_State *L)
{
    lua_pushinteger(L, mx_count(mxl_any_tensor(L, 1)));
    return 1;
}

static int tensor_dtype(lua_State *L)
{
    lua_pushstring(L, mx_dtype_name(mxl_any_tensor(L, 1)->dtype));
    return 1;
}

static int tensor_bytes(lua_State *L)
{
    lua_pushinteger(L, mx_bytes(mxl_any_tensor(L, 1)));
    return 1;
}

static int tensor_name(lua_State *L)
{
    lua_pushstring(L, mxl_any_tensor(L, 1)->name);
    return 1;
}

static int tensor_item(lua_State *L)
{
    const mx_tensor *t = mxl_check_values(L, 1, false);
    if (mx_count(t) != 1)
        return luaL_error(L, "item: %s has more than one element; use t:get(i, ...) or t:totable()", mx_tensor_text(t));
    mxl_push_element(L, t, 0);
    return 1;
}

static void push_nested(lua_State *L, const mx_tensor *t, const void *values, int depth, int64_t *next)
{
    if (depth == t->shape.n_dims) {
        if (mx_has_values(t))
            push_value(L, values, (*next)++, t->dtype);
        else
            push_number(L, NAN);
        return;
    }
    int64_t n = t->shape.size[depth];
    lua_createtable(L, (int)n, 0);
    for (int64_t i = 1; i <= n; i++) {
        push_nested(L, t, values, depth + 1, next);
        lua_rawseti(L, -2, i);
    }
}

static int tensor_totable(lua_State *L)
{
    int64_t next = 0;
    const mx_tensor *t = mxl_check_values(L, 1, false);
    void *values = lua_newuserdatauv(L, mx_has_values(t) ? (size_t)mx_bytes(t) : 0, 0);
    mxl_try(L, mx_tensor_read(t, 0, mx_count(t), values));
    push_nested(L, t, values, 0, &next);
    return 1;
}

/* The element number for the 1-based indices at stack positions 2 ... */
static int64_t element_at(lua_State *L, const mx_tensor *t)
{
    int64_t at = 0;
    for (int d = 0; d < t->shape.n_dims; d++) {
        lua_Integer i = luaL_checkinteger(L, d + 2);
        if (i < 1 || i > t->shape.size[d])
            luaL_error(L, "index %d of dimension %d is outside 1 .. %d of %s", (int)i, d + 1, (int)t->shape.size[d],
                       mx_tensor_text(t));
        at = at * t->shape.size[d] + i - 1;
    }
    return at;
}

/* t:wait() -> t, after jobs in flight that change its values. */
static int tensor_wait(lua_State *L)
{
    mxl_check_values(L, 1, false);
    lua_settop(L, 1);
    return 1;
}

/* t:is_pending() -> whether an asynchronous operation has not yet written its values. */
static int tensor_is_pending(lua_State *L)
{
    lua_pushboolean(L, mxl_check_tensor(L, 1)->storage->writer != NULL);
    return 1;
}

static int tensor_get(lua_State *L)
{
    const mx_tensor *t = mxl_check_values(L, 1, false);
    mxl_push_element(L, t, element_at(L, t));
    return 1;
}

static int tensor_set(lua_State *L)
{
    const mx_tensor *t = mxl_check_values(L, 1, true);
    int64_t at = element_at(L, t);
    double value = luaL_checknumber(L, t->shape.n_dims + 2);
    if (!mxl_set_element(L, t, at, t->shape.n_dims + 2))
        return luaL_error(L, "set: %f does not fit %s", value, mx_dtype_name(t->dtype));
    t->storage->changed_by = "set";
    lua_settop(L, 1);
    return 1;
}

/* A tensor that shares t's values and takes no part in gradients. */
static int tensor_detach(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1);
    mx_tensor *alias = NULL;
    mxl_try(L, mx_tensor_new_empty(t->dtype, &t->shape, &alias));
    mx_tensor_alias(alias, t, 0);
    mx_tensor_set_name(alias, t->name);
    mxl_push_tensor(L, alias);
    return 1;
}

static int tensor_len(lua_State *L)
{
    const mx_tensor *t = mxl_any_tensor(L, 1);
    lua_pushinteger(L, t->shape.n_dims ? t->shape.size[0] : 1);
    return 1;
}

/* t:view(2, -1) or t:view{2, -1}: reshape. */
static int tensor_view(lua_State *L)
{
    int n = lua_gettop(L) - 1;
    if (!(n == 1 && lua_istable(L, 2))) {
        lua_createtable(L, n, 0);
        for (int i = 1; i <= n; i++) {
            lua_pushvalue(L, i + 1);
            lua_rawseti(L, -2, i);
        }
        lua_replace(L, 2);
    }
    lua_settop(L, 2);
    luaL_getmetafield(L, 1, "methods");
    lua_getfield(L, -1, "reshape");
    lua_pushvalue(L, 1);
    lua_pushvalue(L, 2);
    lua_call(L, 2, 1);
    return 1;
}

/* The option `dim` of the table at index 2, from 0, among n dimensions; `standard` if it is not given. */
static int dim_option(lua_State *L, const char *what, int n, int standard)
{
    static const char *const names[] = {"dim", NULL};
    if (!lua_isnoneornil(L, 2) && !lua_istable(L, 2))
        luaL_error(L, "%s: options are given by name, as in %s(t, { dim = %s })", what, what,
                   luaL_tolstring(L, 2, NULL));
    mxl_check_fields(L, 2, names, what);
    int64_t dim = mxl_field_integer(L, 2, "dim", standard + 1);
    if (dim == standard + 1 || (dim != 0 && dim >= -n && dim <= n))
        return (int)(dim < 0 ? n + dim : dim - 1);
    mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: dim = %lld is outside 1 .. %d for %s", what, (long long)dim, n,
                       mx_tensor_text(mxl_check_tensor(L, 1))));
    return 0; /* not reached */
}

static int push_reshaped(lua_State *L, mx_tensor *t, const mx_shape *shape)
{
    mx_tensor *out = NULL;
    mxl_try(L, mx_apply_reshape(t, shape, &out));
    mxl_push_tensor(L, out);
    return 1;
}

/* t:squeeze() -> a view without the dimensions of size 1; t:squeeze{dim = d}: without that one, which must have size 1
 */
static int tensor_squeeze(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1);
    mx_shape shape = {0};
    int dim = dim_option(L, "squeeze", t->shape.n_dims, -1);
    if (dim >= 0 && t->shape.size[dim] != 1)
        mxl_try(L, mx_fail(MX_ERR_SHAPE, "squeeze: dimension %d of %s has size %lld, not 1", dim + 1, mx_tensor_text(t),
                           (long long)t->shape.size[dim]));
    for (int d = 0; d < t->shape.n_dims; d++)
        if (dim >= 0 ? d != dim : t->shape.size[d] != 1)
            shape.size[shape.n_dims++] = t->shape.size[d];
    return push_reshaped(L, t, &shape);
}

/* t:unsqueeze{dim = d} -> a view with a further dimension of size 1, which becomes dimension d */
static int tensor_unsqueeze(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1);
    mx_shape shape = {.n_dims = t->shape.n_dims + 1};
    if (shape.n_dims > MX_MAX_DIMS)
        mxl_try(L, mx_fail(MX_ERR_SHAPE, "unsqueeze: %s has %d dimensions, and no tensor has more", mx_tensor_text(t),
                           MX_MAX_DIMS));
    int dim = dim_option(L, "unsqueeze", shape.n_dims, 0);
    for (int d = 0; d < shape.n_dims; d++)
        shape.size[d] = d < dim ? t->shape.size[d] : d == dim ? 1 : t->shape.size[d - 1];
    return push_reshaped(L, t, &shape);
}

/* Gradients and lifetimes. */

static int tensor_requires_grad(lua_State *L)
{
    bool on = lua_isnone(L, 2) || lua_toboolean(L, 2);
    if (!lua_isnone(L, 2))
        luaL_checktype(L, 2, LUA_TBOOLEAN);
    mxl_try(L, mx_tape_require_grad(mxl_check_tensor(L, 1), on));
    lua_settop(L, 1);
    return 1;
}

static int tensor_grad(lua_State *L)
{
    mx_tensor *t = mxl_any_tensor(L, 1);
    if (!t->grad)
        return 0;
    mxl_push_tensor(L, mx_retain(t->grad));
    return 1;
}

static int tensor_zero_grad(lua_State *L)
{
    mx_tape_zero_grad(mxl_any_tensor(L, 1));
    lua_settop(L, 1);
    return 1;
}

static int tensor_keep(lua_State *L)
{
    mx_scope_keep(mxl_check_tensor(L, 1));
    lua_settop(L, 1);
    return 1;
}

static int tensor_release(lua_State *L)
{
    mx_tensor *t = mxl_any_tensor(L, 1);
    t->released = true;
    if (t->held == 0)
        mx_tensor_drop(t);
    mx_scope_keep(t);
    return 0;
}

static int tensor_is_released(lua_State *L)
{
    const mx_tensor *t = mxl_any_tensor(L, 1);
    lua_pushboolean(L, t->released || (!t->storage && !t->away));
    return 1;
}

/* Conversions. */

static void cast(lua_State *L, mx_dtype dtype)
{
    mx_tensor *t = mxl_check_tensor(L, 1), *out = NULL;
    mxl_try(L, mx_apply_cast(t, dtype, &out));
    mxl_push_tensor(L, out);
}

/* t:to(dtype): t itself if it has that dtype. */
static int tensor_to(lua_State *L)
{
    const mx_tensor *t = mxl_check_tensor(L, 1);
    mx_dtype dtype = mxl_check_dtype(L, 2, t->dtype);
    if (dtype == t->dtype)
        lua_settop(L, 1);
    else
        cast(L, dtype);
    return 1;
}

static int tensor_clone(lua_State *L)
{
    cast(L, mxl_check_tensor(L, 1)->dtype);
    return 1;
}

int mxl_open_tensor(lua_State *L)
{
    static const luaL_Reg methods[] = {{"size", tensor_size},
                                       {"dim", tensor_dim},
                                       {"numel", tensor_numel},
                                       {"dtype", tensor_dtype},
                                       {"bytes", tensor_bytes},
                                       {"name", tensor_name},
                                       {"item", tensor_item},
                                       {"totable", tensor_totable},
                                       {"tolist", tensor_totable},
                                       {"get", tensor_get},
                                       {"set", tensor_set},
                                       {"wait", tensor_wait},
                                       {"is_pending", tensor_is_pending},
                                       {"view", tensor_view},
                                       {"squeeze", tensor_squeeze},
                                       {"unsqueeze", tensor_unsqueeze},
                                       {"to", tensor_to},
                                       {"clone", tensor_clone},
                                       {"detach", tensor_detach},
                                       {"requires_grad", tensor_requires_grad},
                                       {"grad", tensor_grad},
                                       {"zero_grad", tensor_zero_grad},
                                       {"keep", tensor_keep},
                                       {"release", tensor_release},
                                       {"is_released", tensor_is_released},
                                       {NULL, NULL}};
    static const luaL_Reg metamethods[] = {
        {"__gc", tensor_gc}, {"__tostring", mxl_tensor_tostring}, {"__len", tensor_len}, {NULL, NULL}};
    luaL_newmetatable(L, MXL_TENSOR);
    mxl_hide_metatable(L, MXL_TENSOR);
    luaL_setfuncs(L, metamethods, 0);
    luaL_setfuncs(L, mxl_tensor_operators, 0);
    luaL_newlib(L, methods);
    luaL_setfuncs(L, mxl_tensor_parts, 0);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "methods");
    mxl_set_tensor_index(L);
    lua_pop(L, 1);
    return mxl_open_tensor_new(L);
}
