/* mx.io.writer and mx.io.chunk_*, which lua/mx/checkpoint/init.lua uses (checkpoint/writer.h, checkpoint/chunk.h). */
#include "bind/bind.h"
#include "bind/io.h"
#include "bind/value.h"
#include "checkpoint/chunk.h"
#include "checkpoint/writer.h"

#include <stdlib.h>
#include <string.h>

#define WRITER "mx.io.writer"

/* ---- writer(path, {name = tensor}, attributes) -> w; w:finished(), w:wait() ---- */

static mx_writer *check_writer(lua_State *L)
{
    mx_writer **w = luaL_checkudata(L, 1, WRITER);
    if (!*w)
        luaL_error(L, "the file has been waited for already");
    return *w;
}

/* Reads the names of the tensors in the table at index 2 into *map; its values stay null. */
static void check_tensors(lua_State *L, mx_value *map)
{
    map->kind = MX_MAP;
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        mx_entry *entry;
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "writer: a tensor's name is %s, expected a string", luaL_typename(L, -2));
        if (!mxl_test_tensor(L, -1))
            luaL_error(L, "writer: '%s' is %s, expected a tensor", lua_tostring(L, -2), luaL_typename(L, -1));
        mxl_check_tensor(L, -1);
        mxl_try(L, mx_value_append(map, lua_tostring(L, -2), &entry));
    }
}

static void free_array(void *array) { free(*(void **)array); }

static void *push_array(lua_State *L, size_t count, size_t bytes)
{
    void **array = mxl_push_box(L, sizeof *array, free_array);
    *array = calloc(count + 1, bytes);
    if (!*array)
        luaL_error(L, "writer: out of memory for %d tensors", (int)count);
    return *array;
}

static int writer_new(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 3);
    mx_value *map = mxl_push_value_box(L), *attributes = mxl_push_value_box(L);
    check_tensors(L, map);
    attributes->kind = MX_MAP;
    if (!lua_isnil(L, 3)) {
        luaL_checktype(L, 3, LUA_TTABLE);
        if (lua_next(L, (lua_pushnil(L), 3))) { /* an empty table would be read as an array */
            lua_pop(L, 2);
            mxl_check_value(L, 3, attributes);
        }
    }
    const mx_entry ***sorted = mxl_push_box(L, sizeof *sorted, free_array);
    mxl_try(L, mx_value_sorted(map, sorted));
    const char **names = push_array(L, map->count, sizeof *names);
    mx_tensor **tensors = push_array(L, map->count, sizeof *tensors);
    for (size_t i = 0; i < map->count; i++) {
        names[i] = (*sorted)[i]->key;
        lua_getfield(L, 2, names[i]);
        tensors[i] = mxl_check_tensor(L, -1);
        lua_pop(L, 1);
    }
    mx_writer **w = lua_newuserdatauv(L, sizeof *w, 0);
    *w = NULL;
    luaL_setmetatable(L, WRITER);
    for (size_t i = 0; i < map->count; i++)
        mx_retain(tensors[i]);
    mxl_try(L, mx_writer_start(path, (int64_t)map->count, names, tensors, attributes, w));
    return 1;
}

static int writer_finished(lua_State *L)
{
    lua_pushboolean(L, mx_writer_finished(check_writer(L)));
    return 1;
}

static int writer_wait(lua_State *L)
{
    mxl_try(L, mx_writer_wait(check_writer(L)));
    return 0;
}

static int writer_free(lua_State *L)
{
    mx_writer **w = luaL_checkudata(L, 1, WRITER);
    mx_writer *writer = *w;
    *w = NULL;
    mx_writer_free(writer);
    return 0;
}

/* ---- chunks: tables {offset = {...}, extent = {...}, first =, count =}, all counted from 0 as in the files ---- */

static void check_sizes(lua_State *L, int i, const char *name, int64_t *sizes, int *n_dims)
{
    lua_getfield(L, i, name);
    if (!lua_istable(L, -1) || lua_rawlen(L, -1) > MX_MAX_DIMS)
        luaL_error(L, "a chunk's '%s' must be a list of at most %d sizes", name, MX_MAX_DIMS);
    *n_dims = (int)lua_rawlen(L, -1);
    for (int d = 0; d < *n_dims; d++) {
        int is_integer;
        lua_rawgeti(L, -1, d + 1);
        sizes[d] = lua_tointegerx(L, -1, &is_integer);
        if (!is_integer || sizes[d] < 0)
            luaL_error(L, "a chunk's '%s' must be whole numbers from 0 on", name);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static int64_t check_count(lua_State *L, int i, const char *name)
{
    int is_integer;
    lua_getfield(L, i, name);
    lua_Integer value = lua_tointegerx(L, -1, &is_integer);
    if (!is_integer || value < 0)
        luaL_error(L, "a chunk's '%s' must be a whole number from 0 on", name);
    lua_pop(L, 1);
    return value;
}

static mx_chunk check_chunk(lua_State *L, int i, const mx_shape *whole)
{
    mx_chunk chunk = {0};
    int n_extents;
    luaL_checktype(L, i, LUA_TTABLE);
    check_sizes(L, i, "offset", chunk.offset, &chunk.n_dims);
    check_sizes(L, i, "extent", chunk.extent, &n_extents);
    chunk.first = check_count(L, i, "first");
    chunk.count = check_count(L, i, "count");
    if (n_extents != chunk.n_dims || !mx_chunk_fits(&chunk, whole))
        luaL_error(L, "a chunk does not lie in a tensor of shape %s", mx_shape_text(whole));
    return chunk;
}

/* chunk_overlap(shape, want, have) -> number of common elements, and the start and end of their range in `have` */
static int chunk_overlap(lua_State *L)
{
    mx_shape whole;
    int64_t from, to;
    mxl_check_shape(L, 1, "chunk_overlap", &whole);
    mx_chunk want = check_chunk(L, 2, &whole), have = check_chunk(L, 3, &whole);
    lua_pushinteger(L, mx_chunk_overlap(&want, &have, &from, &to));
    lua_pushinteger(L, from);
    lua_pushinteger(L, to);
    return 3;
}

/* chunk_copy(shape, want, out, have, values, start): out holds the elements of want, values those of have from `start`
 * on
 */
static int chunk_copy(lua_State *L)
{
    mx_shape whole;
    int64_t from, to;
    mxl_check_shape(L, 1, "chunk_copy", &whole);
    mx_chunk want = check_chunk(L, 2, &whole), have = check_chunk(L, 4, &whole);
    mx_tensor *out = mxl_check_values(L, 3, true), *values = mxl_check_values(L, 5, false);
    int64_t start = luaL_checkinteger(L, 6);
    if (out->dtype != values->dtype)
        return luaL_error(L, "chunk_copy: from %s to %s", mx_dtype_name(values->dtype), mx_dtype_name(out->dtype));
    int64_t elements = mx_chunk_overlap(&want, &have, &from, &to);
    if (elements > 0 && (mx_count(out) < want.count || from < start || to - start > mx_count(values)))
        return luaL_error(L, "chunk_copy: the tensors are smaller than the chunks");
    mx_map target = {0}, held;
    mxl_try(L, mx_tensor_map(values, 0, mx_count(values), MX_MAP_READ, &held));
    mx_status status = mx_tensor_map(out, 0, mx_count(out), MX_MAP_UPDATE, &target);
    if (target.data && held.data) /* a simulated device has no values */
        mx_chunk_copy(&want, target.data, &have, start, held.data, mx_dtype_bytes(out->dtype));
    mx_tensor_unmap(&target);
    mx_tensor_unmap(&held);
    mxl_try(L, status);
    lua_pushinteger(L, elements);
    return 1;
}

static const luaL_Reg writer_methods[] = {{"finished", writer_finished}, {"wait", writer_wait}, {NULL, NULL}};
static const luaL_Reg writer_meta[] = {{"__gc", writer_free}, {"__close", writer_free}, {NULL, NULL}};
static const luaL_Reg functions[] = {
    {"writer", writer_new}, {"chunk_overlap", chunk_overlap}, {"chunk_copy", chunk_copy}, {NULL, NULL}};

void mxl_add_checkpoint_fields(lua_State *L)
{
    mxl_new_class(L, WRITER, writer_meta, writer_methods);
    luaL_setfuncs(L, functions, 0);
}
