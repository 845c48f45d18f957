#include "bind/callback.h"

#include "bind/bind.h"

#include <stdio.h>

static lua_State *main_thread; /* NULL: Lua has not started, or has ended */

static int ended(lua_State *L)
{
    (void)L;
    main_thread = NULL;
    return 0;
}

/* Registers, once, a value that Lua collects last, when it ends. */
static void watch_end(lua_State *L)
{
    if (main_thread)
        return;
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    main_thread = lua_tothread(L, -1);
    lua_pop(L, 1);
    lua_newuserdatauv(L, 0, 0);
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, ended);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    luaL_ref(L, LUA_REGISTRYINDEX);
}

int mxl_hold_value(lua_State *L)
{
    watch_end(L);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

void mxl_forget_value(int held)
{
    if (main_thread)
        luaL_unref(main_thread, LUA_REGISTRYINDEX, held);
}

mx_status mxl_callback(lua_State *L, int n_arguments, int n_results, const char *what)
{
    if (lua_pcall(L, n_arguments, n_results, 0) == LUA_OK)
        return MX_OK;
    mx_status status = mx_fail(MX_ERR_STATE, "%s: %s", what, luaL_tolstring(L, -1, NULL));
    lua_pop(L, 2);
    return status;
}
