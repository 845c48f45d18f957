/* The stream of seeds for random operations without a seed. It is the same on every rank, as long as all ranks draw
 * alike. Its numbers differ from those of any given seed (kernels/random.h). */
#include "bind/bind.h"

static mx_seed stream; /* the key, and the number of draws so far */

mx_seed mxl_draw_seed(void)
{
    stream.draw++;
    return stream;
}

mx_seed mxl_seed_stream(const mx_seed *position)
{
    mx_seed before = stream;
    if (position)
        stream = *position;
    return before;
}

/* mx.manual_seed(n): restarts the stream with seed n. A program starts with seed 0. */
static int manual_seed(lua_State *L)
{
    stream = (mx_seed){.key = luaL_checkinteger(L, 1)};
    return 0;
}

/* mx.random_state() -> {seed =, draws =}, a plain table; mx.random_state(state) continues from there. Not collective.
 */
static int random_state(lua_State *L)
{
    static const char *const names[] = {"seed", "draws", NULL};
    if (!lua_isnoneornil(L, 1)) {
        luaL_checktype(L, 1, LUA_TTABLE);
        mxl_check_fields(L, 1, names, "random_state");
        mx_seed state = {mxl_field_integer(L, 1, "seed", 0), mxl_field_integer(L, 1, "draws", -1)};
        luaL_argcheck(L, state.draw >= 0, 1, "expected what mx.random_state() gives: {seed =, draws =}");
        stream = state;
        return 0;
    }
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, stream.key);
    lua_setfield(L, -2, "seed");
    lua_pushinteger(L, stream.draw);
    lua_setfield(L, -2, "draws");
    return 1;
}

int mxl_open_stream(lua_State *L)
{
    static const luaL_Reg functions[] = {{"manual_seed", manual_seed}, {"random_state", random_state}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
