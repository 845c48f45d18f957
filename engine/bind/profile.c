/* The profiler for Lua. */
#include "ops/profile.h"
#include "bind/bind.h"

/* mx.profile(true) starts, mx.profile(false) stops. */
static int profile(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TBOOLEAN);
    if (lua_toboolean(L, 1))
        mx_profile_start();
    else
        mx_profile_stop();
    return 0;
}

/* mx.profile_report() -> rows {op, shapes, calls, seconds, flops, bytes}, longest time first. */
static int profile_report(lua_State *L)
{
    const mx_profile_row *rows = NULL;
    int n = mx_profile_rows(&rows);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_createtable(L, 0, 6);
        lua_pushstring(L, rows[i].op->name);
        lua_setfield(L, -2, "op");
        lua_pushstring(L, rows[i].shapes);
        lua_setfield(L, -2, "shapes");
        lua_pushinteger(L, rows[i].calls);
        lua_setfield(L, -2, "calls");
        lua_pushnumber(L, rows[i].seconds);
        lua_setfield(L, -2, "seconds");
        lua_pushnumber(L, rows[i].flops);
        lua_setfield(L, -2, "flops");
        lua_pushnumber(L, rows[i].bytes);
        lua_setfield(L, -2, "bytes");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

int mxl_open_profile(lua_State *L)
{
    static const luaL_Reg functions[] = {{"profile", profile}, {"profile_report", profile_report}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
