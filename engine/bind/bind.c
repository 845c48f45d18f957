#include "bind/bind.h"

#include "mesh/comm.h"
#include "transport/mpi.h"

#include <lualib.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST_ERROR "mx.engine_error" /* in the registry: the message that mxl_try raised last */

void mxl_push_where(lua_State *L)
{
    lua_Debug frame;
    for (int level = 1; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "Sl", &frame);
        if (frame.currentline > 0 && !strstr(frame.source, "lua/mx/")) {
            lua_pushfstring(L, "%s:%d: ", frame.short_src, frame.currentline);
            return;
        }
    }
    luaL_where(L, 1);
}

/* ---- mx_site_ask ---- */

lua_State *mxl_running;

typedef struct source {
    char text[LUA_IDSIZE]; /* name as shortened by Lua */
    const char *file;      /* the same, interned */
    bool is_ours;          /* in lua/mx */
} source;

/* A cache of source files: calls mostly come from the same few files. */
static const source *find_source(const lua_Debug *frame)
{
    enum { KNOWN = 4 };
    static source known[KNOWN];
    static int next;
    for (int i = 0; i < KNOWN; i++)
        if (strcmp(known[i].text, frame->short_src) == 0)
            return &known[i];
    source *made = &known[next++ % KNOWN];
    memcpy(made->text, frame->short_src, sizeof made->text);
    made->file = mx_intern(made->text);
    made->is_ours = strstr(frame->source, "lua/mx/") != NULL;
    return made;
}

/* The user's line, as found by mxl_push_where. */
static mx_site ask_for_site(void)
{
    mx_site innermost = {0};
    lua_Debug frame;
    for (int level = 1; mxl_running && lua_getstack(mxl_running, level, &frame); level++) {
        lua_getinfo(mxl_running, "Sl", &frame);
        if (frame.currentline <= 0)
            continue;
        const source *from = find_source(&frame);
        mx_site site = {from->file, frame.currentline};
        if (!from->is_ours)
            return site;
        if (!innermost.file)
            innermost = site;
    }
    return innermost;
}

void mxl_set_site(lua_State *L)
{
    if (mx_ranks() == 1)
        return;
    mxl_push_where(L);
    size_t bytes;
    const char *where = lua_tolstring(L, -1, &bytes);
    char site[112];
    if (bytes >= 2 && bytes < sizeof site) { /* without the trailing ": " */
        memcpy(site, where, bytes - 2);
        site[bytes - 2] = '\0';
        mx_comm_set_site(mx_intern(site));
    }
    lua_pop(L, 1);
}

void mxl_try(lua_State *L, mx_status status)
{
    if (status == MX_OK)
        return;
    mxl_push_where(L);
    lua_pushstring(L, mx_message());
    lua_concat(L, 2);
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, LAST_ERROR);
    lua_error(L);
}

bool mxl_is_engine_error(lua_State *L, int i)
{
    i = lua_absindex(L, i);
    bool same = lua_getfield(L, LUA_REGISTRYINDEX, LAST_ERROR) == LUA_TSTRING && lua_rawequal(L, i, -1);
    lua_pop(L, 1);
    return same;
}

void mxl_hide_metatable(lua_State *L, const char *name)
{
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__metatable");
}

void mxl_check_shape(lua_State *L, int i, const char *what, mx_shape *shape)
{
    i = lua_absindex(L, i);
    luaL_argexpected(L, lua_istable(L, i), i, what);
    lua_Integer n = luaL_len(L, i);
    if (n > MX_MAX_DIMS)
        luaL_error(L, "%s has %d dimensions; a tensor has at most %d", what, (int)n, MX_MAX_DIMS);
    shape->n_dims = (int)n;
    for (int d = 0; d < shape->n_dims; d++) {
        int is_integer = 0;
        lua_rawgeti(L, i, d + 1);
        shape->size[d] = lua_tointegerx(L, -1, &is_integer);
        if (!is_integer)
            luaL_error(L, "%s: entry %d is %s, expected an integer", what, d + 1, luaL_tolstring(L, -1, NULL));
        lua_pop(L, 1);
    }
    if (!mx_shape_is_countable(shape))
        luaL_error(L, "%s: a tensor of shape %s is larger than any memory", what, mx_shape_text(shape));
}

void mxl_check_list(lua_State *L, int i, const char *what)
{
    lua_Integer n = luaL_len(L, i);
    i = lua_absindex(L, i);
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        lua_Integer key = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
        if (key < 1 || key > n) {
            mxl_push_where(L);
            lua_pushfstring(L, "%s is a list, as in {2, 3}; the table given has a field '%s'", what,
                            luaL_tolstring(L, -3, NULL));
            lua_remove(L, -2);
            lua_concat(L, 2);
            lua_error(L);
        }
    }
}

mx_dtype mxl_check_dtype(lua_State *L, int i, mx_dtype standard)
{
    mx_dtype dtype = standard;
    if (lua_isnoneornil(L, i))
        return standard;
    const char *name = luaL_checkstring(L, i);
    if (!mx_dtype_parse(name, &dtype)) {
        char names[MX_DTYPE_LIST_BYTES];
        mx_dtype_list(NULL, names);
        luaL_error(L, "unknown dtype '%s'; expected %s", name, names);
    }
    return dtype;
}

static _Noreturn void bad_field(lua_State *L, const char *name, const char *expected)
{
    luaL_error(L, "option '%s' is %s; expected %s", name, luaL_typename(L, -1), expected);
    abort(); /* not reached */
}

double mxl_field_number(lua_State *L, int i, const char *name, double standard)
{
    if (!lua_istable(L, i))
        return standard;
    int is_number = 1;
    double value = standard;
    if (lua_getfield(L, i, name) != LUA_TNIL)
        value = lua_tonumberx(L, -1, &is_number);
    if (!is_number)
        bad_field(L, name, "a number");
    lua_pop(L, 1);
    return value;
}

int64_t mxl_field_integer(lua_State *L, int i, const char *name, int64_t standard)
{
    if (!lua_istable(L, i))
        return standard;
    int is_integer = 1;
    int64_t value = standard;
    if (lua_getfield(L, i, name) != LUA_TNIL)
        value = lua_tointegerx(L, -1, &is_integer);
    if (!is_integer)
        bad_field(L, name, "an integer");
    lua_pop(L, 1);
    return value;
}

bool mxl_field_boolean(lua_State *L, int i, const char *name, bool standard)
{
    if (!lua_istable(L, i))
        return standard;
    bool value = standard;
    if (lua_getfield(L, i, name) != LUA_TNIL) {
        if (!lua_isboolean(L, -1))
            bad_field(L, name, "true or false");
        value = lua_toboolean(L, -1);
    }
    lua_pop(L, 1);
    return value;
}

/* Upvalues: the methods, and the name of the object's kind. */
static int index_methods(lua_State *L)
{
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL)
        return 1;
    const char *what = lua_pushfstring(L, "%s has no method", lua_tostring(L, lua_upvalueindex(2)));
    mxl_unknown_field(L, what, luaL_tolstring(L, 2, NULL), lua_upvalueindex(1));
    return 0; /* not reached */
}

void mxl_set_methods(lua_State *L, const char *what)
{
    lua_pushstring(L, what);
    lua_pushcclosure(L, index_methods, 2);
    lua_setfield(L, -2, "__index");
}

void mxl_check_fields(lua_State *L, int i, const char *const *names, const char *what)
{
    i = lua_absindex(L, i);
    if (!lua_istable(L, i))
        return;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            continue;
        const char *given = lua_tostring(L, -2);
        bool known = false;
        for (const char *const *name = names; *name; name++)
            known = known || strcmp(*name, given) == 0;
        if (!known)
            mxl_unknown_name(L, given, names, what);
    }
}

/* Moves the fields of the table on top into the table below it. */
static void merge(lua_State *L)
{
    for (lua_pushnil(L); lua_next(L, -2);) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_settable(L, -5);
    }
    lua_pop(L, 1);
}

int luaopen_mx_core(lua_State *L)
{
    static int (*const parts[])(lua_State *) = {
        mxl_open_tensor,  mxl_open_ops,    mxl_open_op_info, mxl_open_tape, mxl_open_memory, mxl_open_offload,
        mxl_open_profile, mxl_open_check,  mxl_open_step,    mxl_open_mesh, mxl_open_sim,    mxl_open_system,
        mxl_open_trace,   mxl_open_stream, mxl_open_nearest, mxl_open_grad, mxl_open_custom};
    mx_site_ask = ask_for_site;
    lua_newtable(L);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i](L);
        merge(L);
    }
    mxl_open_io(L);
    lua_setfield(L, -2, "io");
    return 1;
}
