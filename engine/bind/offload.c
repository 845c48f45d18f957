/* The directory of offloaded values and statistics of offloading, for Lua. */
#include "core/offload.h"
#include "bind/bind.h"
#include "core/device.h"
#include "core/spill.h"

/* mx.offload_open(directory): sets the directory for offloaded values; "": $TMPDIR, or /var/tmp. */
static int offload_open(lua_State *L)
{
    mxl_try(L, mx_device_current->open_ranges(mx_device_current, luaL_checkstring(L, 1)));
    return 0;
}

/* mx.offload_stats([reset]) -> directory, file_bytes, away_bytes (offloaded now), and since the last reset:
 * written_bytes, read_bytes, exposed_s (seconds that the script waited for the file), busy_s (seconds of writing or
 * reading). */
static int offload_stats(lua_State *L)
{
    mx_offload_stats stats = mx_offload_get_stats(lua_toboolean(L, 1));
    lua_createtable(L, 0, 7);
    lua_pushstring(L, mx_spill_directory());
    lua_setfield(L, -2, "directory");
    lua_pushinteger(L, mx_spill_file_bytes());
    lua_setfield(L, -2, "file_bytes");
    lua_pushinteger(L, stats.away_bytes);
    lua_setfield(L, -2, "away_bytes");
    lua_pushinteger(L, stats.written_bytes);
    lua_setfield(L, -2, "written_bytes");
    lua_pushinteger(L, stats.read_bytes);
    lua_setfield(L, -2, "read_bytes");
    lua_pushnumber(L, stats.exposed_s);
    lua_setfield(L, -2, "exposed_s");
    lua_pushnumber(L, stats.busy_s);
    lua_setfield(L, -2, "busy_s");
    return 1;
}

int mxl_open_offload(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"offload_open", offload_open}, {"offload_stats", offload_stats}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
