/* mx.io.lock: lets one process at a time write in a folder (io/lock.h). */
#include "bind/bind.h"
#include "bind/io.h"
#include "io/lock.h"
#include "transport/mpi.h"

#define LOCK "mx.io.lock"

static mx_lock *check_lock(lua_State *L)
{
    mx_lock **lock = luaL_checkudata(L, 1, LOCK);
    if (!*lock)
        luaL_error(L, "the lock has been released");
    return *lock;
}

/* lock(path, hint) -> lock, note: takes the lock at `path`, or raises an error that names its holder. hint: what the
 * user can do instead of waiting. note: whose lock was taken over, or "". */
static int lock_take(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1), *hint = luaL_optstring(L, 2, "write elsewhere");
    char note[MX_LOCK_TEXT];
    mx_lock **lock = lua_newuserdatauv(L, sizeof(mx_lock *), 0);
    *lock = NULL;
    luaL_setmetatable(L, LOCK);
    mxl_try(L, mx_lock_take(path, hint, lock, note));
    lua_pushstring(L, note);
    return 2;
}

/* lock:beat(): shows other machines that the holder is alive; raises an error if another process has the lock */
static int lock_beat(lua_State *L)
{
    mxl_try(L, mx_lock_beat(check_lock(L)));
    return 0;
}

/* lock:id() -> the unique id of the lock, a part of the file's text */
static int lock_id(lua_State *L)
{
    lua_pushstring(L, mx_lock_id(check_lock(L)));
    return 1;
}

/* lock:release(); may be called again */
static int lock_release(lua_State *L)
{
    mx_lock **lock = luaL_checkudata(L, 1, LOCK);
    mx_lock *was = *lock;
    *lock = NULL;
    mx_lock_release(was);
    return 0;
}

static const luaL_Reg methods[] = {{"beat", lock_beat}, {"id", lock_id}, {"release", lock_release}, {NULL, NULL}};
static const luaL_Reg meta[] = {{"__gc", lock_release}, {"__close", lock_release}, {NULL, NULL}};

void mxl_add_lock_fields(lua_State *L)
{
    mx_mpi_before_abort(mx_lock_release_all);
    mxl_new_class(L, LOCK, meta, methods);
    lua_pushcfunction(L, lock_take);
    lua_setfield(L, -2, "lock");
}
