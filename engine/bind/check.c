/* The search for the first NaN or infinity, for Lua. */
#include "ops/check.h"
#include "bind/bind.h"
#include "core/intern.h"

/* mx.place(text or nil): names the current part of the script ("layer 3") for mx.find_bad */
static int place(lua_State *L)
{
    const char *before = mx_place;
    mx_place = lua_isnoneornil(L, 1) ? NULL : mx_text_hold(luaL_checkstring(L, 1));
    mx_text_let_go(before);
    return 0;
}

static void push_finding(lua_State *L, const mx_finding *f)
{
    lua_createtable(L, 0, 8);
    lua_pushstring(L, f->op->name);
    lua_setfield(L, -2, "op");
    lua_pushstring(L, f->place);
    lua_setfield(L, -2, "place");
    lua_pushboolean(L, f->backward);
    lua_setfield(L, -2, "backward");
    lua_pushfstring(L, "%s %s", mx_dtype_name(f->dtype), mx_shape_text(&f->shape));
    lua_setfield(L, -2, "tensor");
    lua_pushinteger(L, f->nans);
    lua_setfield(L, -2, "nans");
    lua_pushinteger(L, f->infinities);
    lua_setfield(L, -2, "infinities");
    lua_pushinteger(L, f->first + 1);
    lua_setfield(L, -2, "first");
    lua_pushinteger(L, mx_shape_count(&f->shape));
    lua_setfield(L, -2, "elements");
}

/* mx.find_bad(fn, ...) -> the first result of an operation inside fn that contains a NaN or an infinity, or nil: {op,
 * place (of mx.place), backward, tensor ("bf16 (2, 3)"), nans, infinities, first (element, from 1), elements}. An error
 * in fn ends the search and is ignored. */
static int find_bad(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    mx_check_start();
    int code = lua_pcall(L, lua_gettop(L) - 1, 0, 0);
    mx_finding finding = mx_check_stop();
    if (code == LUA_ERRMEM)
        return lua_error(L);
    if (!finding.op)
        return 0;
    push_finding(L, &finding);
    return 1;
}

int mxl_open_check(lua_State *L)
{
    static const luaL_Reg functions[] = {{"place", place}, {"find_bad", find_bad}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
