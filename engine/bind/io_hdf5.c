/* mx.io.h5_*: tensors in HDF5 files (io/hdf5.h). Rows count from 1 here, as in t[i]. */
#include "bind/bind.h"
#include "bind/io.h"
#include "bind/value.h"
#include "io/hdf5.h"

#include <stdlib.h>

#define FILE_CLASS "mx.io.h5_file"
#define WRITER_CLASS "mx.io.h5_writer"

/* ---- writing: w = h5_writer(path); w:put(name, t); w:attributes{...}; w:commit() ----
 *
 * w:put(name, t, sizes): t has the next rows of a tensor of these sizes. */

static mx_h5_writer **check_writer(lua_State *L)
{
    mx_h5_writer **w = luaL_checkudata(L, 1, WRITER_CLASS);
    if (!*w)
        luaL_error(L, "the file has been committed or aborted already");
    return w;
}

static mx_h5_writer **push_writer(lua_State *L, const char *path)
{
    mx_h5_writer **w = lua_newuserdatauv(L, sizeof *w, 0);
    *w = NULL;
    luaL_setmetatable(L, WRITER_CLASS);
    mxl_try(L, mx_h5_create(path, w));
    return w;
}

static int writer_new(lua_State *L)
{
    push_writer(L, luaL_checkstring(L, 1));
    return 1;
}

static int writer_put(lua_State *L)
{
    mx_h5_writer **w = check_writer(L);
    const mx_tensor *t = mxl_check_tensor(L, 3);
    mx_shape shape = t->shape;
    if (!lua_isnoneornil(L, 4))
        mxl_check_shape(L, 4, "the sizes of the whole", &shape);
    mxl_try(L, mx_h5_put_rows(*w, luaL_checkstring(L, 2), &shape, t));
    return 0;
}

static void put_attributes(lua_State *L, mx_h5_writer *w, int i)
{
    luaL_checktype(L, i, LUA_TTABLE);
    mx_value *map = mxl_push_value_box(L);
    mxl_check_value(L, i, map);
    mxl_try(L, mx_h5_put_attributes(w, map));
    lua_pop(L, 1);
}

static int writer_attributes(lua_State *L)
{
    mx_h5_writer **w = check_writer(L);
    put_attributes(L, *w, 2);
    return 0;
}

static void commit(lua_State *L, mx_h5_writer **w)
{
    mx_h5_writer *writer = *w;
    *w = NULL; /* commit frees it, whatever the outcome */
    mxl_try(L, mx_h5_commit(writer));
}

static int writer_commit(lua_State *L)
{
    commit(L, check_writer(L));
    return 0;
}

static int writer_abort(lua_State *L)
{
    mx_h5_writer **w = luaL_checkudata(L, 1, WRITER_CLASS);
    mx_h5_abort(*w);
    *w = NULL;
    return 0;
}

static void free_names(void *names) { free(*(void **)names); }

/* h5_write(path, {name = tensor}, attributes?): writes the whole file, in the order of the names. */
static int h5_write(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 3);
    mx_value *map = mxl_push_value_box(L);
    map->kind = MX_MAP;
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        mx_entry *entry;
        if (lua_type(L, -2) != LUA_TSTRING)
            return luaL_error(L, "h5_write: a tensor's name is %s, expected a string", luaL_typename(L, -2));
        if (!mxl_test_tensor(L, -1))
            return luaL_error(L, "h5_write: '%s' is %s, expected a tensor", lua_tostring(L, -2), luaL_typename(L, -1));
        mxl_try(L, mx_value_append(map, lua_tostring(L, -2), &entry));
    }
    const mx_entry ***sorted = mxl_push_box(L, sizeof *sorted, free_names);
    mxl_try(L, mx_value_sorted(map, sorted));
    mx_h5_writer **w = push_writer(L, path);
    lua_toclose(L, -1);
    for (size_t i = 0; i < map->count; i++) {
        lua_getfield(L, 2, (*sorted)[i]->key);
        mxl_try(L, mx_h5_put(*w, (*sorted)[i]->key, mxl_check_tensor(L, -1)));
        lua_pop(L, 1);
    }
    if (!lua_isnil(L, 3))
        put_attributes(L, *w, 3);
    commit(L, w);
    return 0;
}

/* ---- reading ---- */

static mx_h5 *check_file(lua_State *L)
{
    mx_h5 **file = luaL_checkudata(L, 1, FILE_CLASS);
    if (!*file)
        luaL_error(L, "the file is closed");
    return *file;
}

static mx_h5 *push_file(lua_State *L, const char *path)
{
    mx_h5 **file = lua_newuserdatauv(L, sizeof *file, 0);
    *file = NULL;
    luaL_setmetatable(L, FILE_CLASS);
    mxl_try(L, mx_h5_open(path, file));
    return *file;
}

static int file_close(lua_State *L)
{
    mx_h5 **file = luaL_checkudata(L, 1, FILE_CLASS);
    mx_h5_close(*file);
    *file = NULL;
    return 0;
}

static int h5_open(lua_State *L)
{
    push_file(L, luaL_checkstring(L, 1));
    return 1;
}

/* Pushes {name =, dtype = in the file, shape = {...}, bytes = in memory, checked =}; shape and bytes are nil if a
 * tensor cannot hold the dataset.
 */
static void push_entry(lua_State *L, const mx_h5_entry *entry)
{
    lua_createtable(L, 0, 5);
    lua_pushstring(L, entry->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, entry->type);
    lua_setfield(L, -2, "dtype");
    lua_pushboolean(L, entry->checked);
    lua_setfield(L, -2, "checked");
    if (entry->shape.n_dims < 0)
        return;
    lua_createtable(L, entry->shape.n_dims, 0);
    for (int d = 0; d < entry->shape.n_dims; d++) {
        lua_pushinteger(L, entry->shape.size[d]);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
    if (entry->dtype >= 0) {
        lua_pushinteger(L, mx_shape_count(&entry->shape) * (int64_t)mx_dtype_bytes((mx_dtype)entry->dtype));
        lua_setfield(L, -2, "bytes");
    }
}

static void push_entries(lua_State *L, const mx_h5 *file)
{
    int64_t count = mx_h5_count(file);
    lua_newtable(L);
    for (int64_t i = 0; i < count; i++) {
        push_entry(L, mx_h5_entry_at(file, i));
        lua_rawseti(L, -2, i + 1);
    }
}

static int file_info(lua_State *L)
{
    push_entries(L, check_file(L));
    return 1;
}

static int file_attributes(lua_State *L)
{
    mxl_push_value(L, mx_h5_attributes(check_file(L)));
    return 1;
}

static const char *const row_options[] = {"first", "rows", NULL};

/* Reads {first = 1, rows = all that follow} at stack index i; *first counts from 0. */
static void check_rows(lua_State *L, int i, int64_t *first, int64_t *rows)
{
    mxl_check_fields(L, i, row_options, "reading rows");
    *first = mxl_field_integer(L, i, "first", 1) - 1;
    *rows = mxl_field_integer(L, i, "rows", -1);
}

static void push_read(lua_State *L, mx_h5 *file, const char *name, int i)
{
    int64_t first, rows;
    mx_tensor *t;
    check_rows(L, i, &first, &rows);
    mxl_try(L, mx_h5_read(file, name, first, rows, &t));
    mxl_push_tensor(L, t);
}

/* file:read(name, {first = 1, rows = n}?) -> tensor */
static int file_read(lua_State *L)
{
    mx_h5 *file = check_file(L);
    lua_settop(L, 3);
    push_read(L, file, luaL_checkstring(L, 2), 3);
    return 1;
}

/* file:read_into(name, tensor, {first = 1, rows = n}?) -> tensor */
static int file_read_into(lua_State *L)
{
    mx_h5 *file = check_file(L);
    int64_t first, rows;
    lua_settop(L, 4);
    check_rows(L, 4, &first, &rows);
    mxl_try(L, mx_h5_read_into(file, luaL_checkstring(L, 2), first, rows, mxl_check_tensor(L, 3)));
    lua_settop(L, 3);
    return 1;
}

/* h5_info(path) -> list of entries, attributes */
static int h5_info(lua_State *L)
{
    mx_h5 *file = push_file(L, luaL_checkstring(L, 1));
    lua_toclose(L, -1);
    push_entries(L, file);
    mxl_push_value(L, mx_h5_attributes(file));
    return 2;
}

/* h5_read(path) -> {name = tensor}, attributes; h5_read(path, name, {first =, rows =}?) -> tensor */
static int h5_read(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1), *name = luaL_optstring(L, 2, NULL);
    lua_settop(L, 3);
    mx_h5 *file = push_file(L, path);
    lua_toclose(L, -1);
    if (name) {
        push_read(L, file, name, 3);
        return 1;
    }
    lua_newtable(L);
    for (int64_t i = 0; i < mx_h5_count(file); i++) {
        push_read(L, file, mx_h5_entry_at(file, i)->name, 3);
        lua_setfield(L, -2, mx_h5_entry_at(file, i)->name);
    }
    mxl_push_value(L, mx_h5_attributes(file));
    return 2;
}

static const luaL_Reg writer_methods[] = {{"put", writer_put},
                                          {"attributes", writer_attributes},
                                          {"commit", writer_commit},
                                          {"abort", writer_abort},
                                          {NULL, NULL}};
static const luaL_Reg writer_meta[] = {{"__gc", writer_abort}, {"__close", writer_abort}, {NULL, NULL}};

static const luaL_Reg file_methods[] = {{"info", file_info},   {"attributes", file_attributes},
                                        {"read", file_read},   {"read_into", file_read_into},
                                        {"close", file_close}, {NULL, NULL}};
static const luaL_Reg file_meta[] = {{"__gc", file_close}, {"__close", file_close}, {NULL, NULL}};

static const luaL_Reg functions[] = {{"h5_write", h5_write}, {"h5_writer", writer_new}, {"h5_open", h5_open},
                                     {"h5_info", h5_info},   {"h5_read", h5_read},      {NULL, NULL}};

void mxl_add_hdf5_fields(lua_State *L)
{
    mxl_new_class(L, WRITER_CLASS, writer_meta, writer_methods);
    mxl_new_class(L, FILE_CLASS, file_meta, file_methods);
    luaL_setfuncs(L, functions, 0);
}
