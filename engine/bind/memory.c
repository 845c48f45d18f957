/* Memory in use, its limit, and the values that the tapes keep, for Lua. All in bytes. */
#include "bind/bind.h"
#include "core/device.h"
#include "core/offload.h"
#include "core/pool.h"
#include "tape/tape.h"

static int memory(lua_State *L)
{
    mx_pool_stats stats = mx_device_current->memory(mx_device_current);
    lua_newtable(L);
    lua_pushinteger(L, stats.in_use_bytes);
    lua_setfield(L, -2, "in_use");
    lua_pushinteger(L, stats.peak_bytes);
    lua_setfield(L, -2, "peak");
    lua_pushinteger(L, stats.reserved_bytes);
    lua_setfield(L, -2, "reserved");
    lua_pushinteger(L, stats.limit_bytes);
    lua_setfield(L, -2, "limit");
    return 1;
}

static int reset_peak(lua_State *L)
{
    (void)L;
    mx_device_current->reset_peak(mx_device_current);
    return 0;
}

static int memory_limit(lua_State *L)
{
    lua_Integer bytes = luaL_checkinteger(L, 1);
    luaL_argcheck(L, bytes >= 0, 1, "bytes, 0 for no limit");
    mx_pool_set_limit(bytes);
    return 0;
}

static int trim(lua_State *L)
{
    mxl_try(L, mx_offload_drain());
    mx_pool_trim();
    return 0;
}

static void add_kept(void *context, const mx_op *op, const mx_tensor *t)
{
    lua_State *L = context;
    lua_createtable(L, 0, 4);
    lua_pushstring(L, t->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, op->name);
    lua_setfield(L, -2, "op");
    lua_pushinteger(L, t->storage->bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushlightuserdata(L, t->storage);
    lua_setfield(L, -2, "storage");
    lua_rawseti(L, -2, luaL_len(L, -2) + 1);
}

/* mx.kept() -> rows {name (nil: none), op, bytes, storage}: the recorded results that still have values, tape by tape
 * in the order of the calls. Those with the same storage share its bytes. */
static int kept(lua_State *L)
{
    lua_newtable(L);
    bool collects = lua_gc(L, LUA_GCISRUNNING);
    lua_gc(L, LUA_GCSTOP); /* collecting a tensor may remove its record from the tape */
    mx_tape_for_each_kept(add_kept, L);
    if (collects)
        lua_gc(L, LUA_GCRESTART);
    return 1;
}

int mxl_open_memory(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"memory", memory}, {"reset_peak", reset_peak}, {"memory_limit", memory_limit}, {"trim", trim}, {"kept", kept},
        {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
