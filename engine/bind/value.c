#include "bind/value.h"

#include "bind/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOX "mx.box"
#define ARRAY "mx.io.array"

/* ---- boxes ---- */

typedef struct box {
    void (*destroy)(void *);
    _Alignas(max_align_t) char content[];
} box;

static int destroy_box(lua_State *L)
{
    box *b = luaL_checkudata(L, 1, BOX);
    if (b->destroy)
        b->destroy(b->content);
    b->destroy = NULL;
    return 0;
}

void *mxl_push_box(lua_State *L, size_t bytes, void (*destroy)(void *))
{
    box *b = lua_newuserdatauv(L, sizeof *b + bytes, 0);
    memset(b, 0, sizeof *b + bytes);
    if (luaL_newmetatable(L, BOX)) {
        mxl_hide_metatable(L, BOX);
        lua_pushcfunction(L, destroy_box);
        lua_setfield(L, -2, "__gc");
        lua_pushcfunction(L, destroy_box);
        lua_setfield(L, -2, "__close");
    }
    lua_setmetatable(L, -2);
    b->destroy = destroy;
    return b->content;
}

static void destroy_value(void *value) { mx_value_free(value); }

mx_value *mxl_push_value_box(lua_State *L) { return mxl_push_box(L, sizeof(mx_value), destroy_value); }

/* ---- to Lua ---- */

static const char null_key; /* its address is the registry's key */

static int null_to_string(lua_State *L)
{
    lua_pushliteral(L, "null");
    return 1;
}

static void push_null(lua_State *L)
{
    if (lua_rawgetp(L, LUA_REGISTRYINDEX, &null_key) != LUA_TNIL)
        return;
    lua_pop(L, 1);
    lua_newuserdatauv(L, 0, 0);
    luaL_newmetatable(L, "mx.io.null");
    mxl_hide_metatable(L, "mx.io.null");
    lua_pushcfunction(L, null_to_string);
    lua_setfield(L, -2, "__tostring");
    lua_setmetatable(L, -2);
    lua_pushvalue(L, -1);
    lua_rawsetp(L, LUA_REGISTRYINDEX, &null_key);
}

static bool is_null(lua_State *L, int i)
{
    push_null(L);
    bool same = lua_rawequal(L, i, -1);
    lua_pop(L, 1);
    return same;
}

static void push_entries(lua_State *L, const mx_value *value)
{
    bool array = value->kind == MX_ARRAY;
    int count = value->count < 1 << 20 ? (int)value->count : 1 << 20;
    luaL_checkstack(L, 8, "value nested too deeply");
    lua_createtable(L, array ? count : 0, array ? 0 : count);
    for (size_t i = 0; i < value->count; i++) {
        const mx_entry *entry = &value->entries[i];
        if (!array)
            lua_pushstring(L, entry->key);
        mxl_push_value(L, &entry->value);
        if (array)
            lua_rawseti(L, -2, (lua_Integer)i + 1);
        else
            lua_rawset(L, -3);
    }
    if (array)
        luaL_setmetatable(L, ARRAY);
}

void mxl_push_value(lua_State *L, const mx_value *value)
{
    switch (value->kind) {
    case MX_NULL:
        push_null(L);
        break;
    case MX_BOOL:
        lua_pushboolean(L, value->boolean);
        break;
    case MX_INT:
        lua_pushinteger(L, value->integer);
        break;
    case MX_FLOAT:
        lua_pushnumber(L, value->number);
        break;
    case MX_STRING:
        lua_pushlstring(L, value->text, value->length);
        break;
    default:
        push_entries(L, value);
    }
}

/* ---- from Lua ---- */

/* The path from the value being read up to the root, for messages. */
typedef struct place {
    const struct place *up;
    const char *key; /* NULL: `index` is used */
    lua_Integer index;
    int depth;
} place;

static size_t write_place(const place *at, char *text, size_t room)
{
    if (!at || !at->up)
        return 0;
    size_t used = write_place(at->up, text, room);
    if (used >= room)
        return used;
    return used + (size_t)(at->key ? snprintf(text + used, room - used, "%s%.100s", used ? "." : "", at->key)
                                   : snprintf(text + used, room - used, "[%lld]", (long long)at->index));
}

static _Noreturn void refuse(lua_State *L, const place *at, const char *problem)
{
    char text[512] = "";
    size_t used = write_place(at, text, sizeof text);
    mxl_try(L, mx_fail(MX_ERR_VALUE, "%s%s%s", text, used ? ": " : "", problem));
    abort(); /* not reached */
}

/* Whether the keys are exactly 1..n. */
static bool is_sequence(lua_State *L, int i)
{
    lua_Integer length = (lua_Integer)lua_rawlen(L, i), count = 0;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        count++;
        if (!lua_isinteger(L, -2) || lua_tointeger(L, -2) < 1 || lua_tointeger(L, -2) > length) {
            lua_pop(L, 2);
            return false;
        }
    }
    return count == length && count > 0;
}

static bool is_marked_array(lua_State *L, int i)
{
    if (!lua_getmetatable(L, i))
        return false;
    luaL_getmetatable(L, ARRAY);
    bool same = lua_rawequal(L, -1, -2);
    lua_pop(L, 2);
    return same;
}

static void read_value(lua_State *L, int i, const place *at, mx_value *out);

static void read_array(lua_State *L, int i, const place *at, mx_value *out)
{
    out->kind = MX_ARRAY;
    lua_Integer length = (lua_Integer)lua_rawlen(L, i);
    for (lua_Integer n = 1; n <= length; n++) {
        mx_entry *entry;
        mxl_try(L, mx_value_append(out, NULL, &entry));
        lua_rawgeti(L, i, n);
        read_value(L, lua_gettop(L), &(place){at, NULL, n, at->depth + 1}, &entry->value);
        lua_pop(L, 1);
    }
}

static void read_map(lua_State *L, int i, const place *at, mx_value *out)
{
    out->kind = MX_MAP;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            refuse(L, at, "a table's keys must be all strings, or exactly 1, 2, ... n");
        size_t length;
        const char *key = lua_tolstring(L, -2, &length);
        if (strlen(key) != length)
            refuse(L, at, "a key contains a zero byte");
        mx_entry *entry;
        mxl_try(L, mx_value_append(out, key, &entry));
        read_value(L, lua_gettop(L), &(place){at, key, 0, at->depth + 1}, &entry->value);
    }
}

static void read_table(lua_State *L, int i, const place *at, mx_value *out)
{
    luaL_checkstack(L, 8, "value nested too deeply");
    if (at->depth == MX_VALUE_DEPTH)
        refuse(L, at, "a table nested deeper than 64 levels, or inside itself");
    bool marked = is_marked_array(L, i), sequence = is_sequence(L, i);
    lua_pushnil(L);
    bool empty = !lua_next(L, i);
    if (!empty)
        lua_pop(L, 2);
    if (marked && !empty && !sequence)
        refuse(L, at, "an array's keys must be exactly 1, 2, ... n");
    if (marked || sequence)
        read_array(L, i, at, out);
    else
        read_map(L, i, at, out);
}

static void read_value(lua_State *L, int i, const place *at, mx_value *out)
{
    size_t length;
    switch (lua_type(L, i)) {
    case LUA_TNIL:
        break;
    case LUA_TBOOLEAN:
        out->kind = MX_BOOL;
        out->boolean = lua_toboolean(L, i);
        break;
    case LUA_TNUMBER:
        out->kind = lua_isinteger(L, i) ? MX_INT : MX_FLOAT;
        if (out->kind == MX_INT)
            out->integer = lua_tointeger(L, i);
        else
            out->number = lua_tonumber(L, i);
        break;
    case LUA_TSTRING: {
        const char *text = lua_tolstring(L, i, &length);
        mxl_try(L, mx_value_set_string(out, text, length));
        break;
    }
    case LUA_TTABLE:
        read_table(L, i, at, out);
        break;
    default:
        if (!is_null(L, i))
            refuse(L, at,
                   mxl_test_tensor(L, i) ? "a tensor is no plain value: use t:item() or t:totable()"
                                         : "only strings, numbers, booleans, tables and mx.io.null are plain values");
    }
}

void mxl_check_value(lua_State *L, int i, mx_value *out) { read_value(L, lua_absindex(L, i), &(place){0}, out); }

/* array(t): marks t, so that it is written as an array even if it is empty. */
static int mark_array(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    luaL_setmetatable(L, ARRAY);
    return 1;
}

void mxl_add_value_fields(lua_State *L)
{
    luaL_newmetatable(L, ARRAY);
    lua_pop(L, 1);
    push_null(L);
    lua_setfield(L, -2, "null");
    lua_pushcfunction(L, mark_array);
    lua_setfield(L, -2, "array");
}
