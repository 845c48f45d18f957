/* mx.io.weights_open and mx.io.safetensors_writer: weight files of other programs (weights/weights.h,
 * weights/safetensors.h). Rows count from 1 here, as in t[i]. */
#include "bind/bind.h"
#include "bind/io.h"
#include "bind/value.h"
#include "io/file.h"
#include "io/format.h"
#include "weights/safetensors.h"

#include <stdlib.h>
#include <unistd.h>

#define FILE_CLASS "mx.io.weights_file"
#define WRITER_CLASS "mx.io.safetensors_writer"

/* ---- reading: f = weights_open(path); f:info(); f:metadata(); f:format(); f:read(name, {first, rows}?);
 * f:read_codes(name, {first, rows}?) ---- */

static mx_weights *check_file(lua_State *L)
{
    mx_weights **file = luaL_checkudata(L, 1, FILE_CLASS);
    if (!*file)
        luaL_error(L, "the file is closed");
    return *file;
}

/* file_format(path) -> "gguf", "safetensors", "hdf5", "pickle", "zip", "git-lfs" by the first bytes; nil: anything
 * else. Raises an error if the file cannot be read. */
static int file_format_of(lua_State *L)
{
    static const char *const names[] = {
        [MX_FORMAT_HDF5] = "hdf5",     [MX_FORMAT_GGUF] = "gguf", [MX_FORMAT_SAFETENSORS] = "safetensors",
        [MX_FORMAT_PICKLE] = "pickle", [MX_FORMAT_ZIP] = "zip",   [MX_FORMAT_POINTER] = "git-lfs",
    };
    const char *path = luaL_checkstring(L, 1);
    const mx_format *format;
    int fd;
    int64_t bytes;
    mxl_try(L, mx_file_open(path, &fd, &bytes));
    mx_status status = mx_format_read(fd, path, bytes, &format);
    close(fd);
    mxl_try(L, status);
    lua_pushstring(L, format ? names[format->kind] : NULL);
    return 1;
}

static int weights_open(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    mx_weights **file = lua_newuserdatauv(L, sizeof *file, 0);
    *file = NULL;
    luaL_setmetatable(L, FILE_CLASS);
    mxl_try(L, mx_weights_open(path, file));
    return 1;
}

static int file_close(lua_State *L)
{
    mx_weights **file = luaL_checkudata(L, 1, FILE_CLASS);
    mx_weights_close(*file);
    *file = NULL;
    return 0;
}

/* Pushes {name =, type = "BF16", dtype = "bf16", shape = {...}, bytes =}; dtype is that of a read, nil if the type is
 * not supported. */
static void push_tensor(lua_State *L, const mx_stored_tensor *t)
{
    lua_createtable(L, 0, 5);
    lua_pushstring(L, t->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, t->type.name);
    lua_setfield(L, -2, "type");
    if (t->type.dtype >= 0) {
        lua_pushstring(L, mx_dtype_name((mx_dtype)t->type.dtype));
        lua_setfield(L, -2, "dtype");
    }
    lua_pushinteger(L, t->bytes);
    lua_setfield(L, -2, "bytes");
    lua_createtable(L, t->shape.n_dims, 0);
    for (int d = 0; d < t->shape.n_dims; d++) {
        lua_pushinteger(L, t->shape.size[d]);
        lua_rawseti(L, -2, d + 1);
    }
    lua_setfield(L, -2, "shape");
}

/* file:info() -> the tensors, in the order of the file */
static int file_info(lua_State *L)
{
    mx_weights *file = check_file(L);
    lua_newtable(L);
    for (int64_t i = 0; i < file->count; i++) {
        push_tensor(L, &file->tensors[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static int file_metadata(lua_State *L)
{
    mxl_push_value(L, &check_file(L)->metadata);
    return 1;
}

static int file_format(lua_State *L)
{
    lua_pushstring(L, check_file(L)->format);
    return 1;
}

/* The arguments name and {first = 1, rows = all that follow}?. */
static const char *check_rows(lua_State *L, int64_t *first, int64_t *rows)
{
    static const char *const names[] = {"first", "rows", NULL};
    const char *name = luaL_checkstring(L, 2);
    lua_settop(L, 3);
    mxl_check_fields(L, 3, names, "reading rows");
    *first = mxl_field_integer(L, 3, "first", 1) - 1;
    *rows = mxl_field_integer(L, 3, "rows", -1);
    return name;
}

/* file:read(name, {first = 1, rows = all that follow}?) -> tensor */
static int file_read(lua_State *L)
{
    mx_weights *file = check_file(L);
    int64_t first, rows;
    const char *name = check_rows(L, &first, &rows);
    mx_tensor *t;
    mxl_try(L, mx_weights_read(file, name, first, rows, &t));
    mxl_push_tensor(L, t);
    return 1;
}

/* file:read_codes(name, {first = 1, rows = all that follow}?) -> codes, scales: those of a matrix of Q8_0 */
static int file_read_codes(lua_State *L)
{
    mx_weights *file = check_file(L);
    int64_t first, rows;
    const char *name = check_rows(L, &first, &rows);
    mx_tensor *codes, *scales;
    mxl_try(L, mx_weights_read_codes(file, name, first, rows, &codes, &scales));
    mxl_push_tensor(L, codes);
    mxl_push_tensor(L, scales);
    return 2;
}

/* ---- writing: w = safetensors_writer(path, {{name =, dtype =, shape =}, ...}); w:put(name, t); w:commit() ---- */

static mx_safetensors_writer **check_writer(lua_State *L)
{
    mx_safetensors_writer **w = luaL_checkudata(L, 1, WRITER_CLASS);
    if (!*w)
        luaL_error(L, "the file has been committed or aborted already");
    return w;
}

/* Reads the table at the top of the stack; the name stays Lua's, and the list keeps it alive. */
static void check_planned(lua_State *L, mx_planned_tensor *planned)
{
    int i = lua_gettop(L);
    luaL_checktype(L, i, LUA_TTABLE);
    if (lua_getfield(L, i, "name") != LUA_TSTRING)
        luaL_error(L, "safetensors_writer: a planned tensor has no name");
    planned->name = lua_tostring(L, -1);
    lua_getfield(L, i, "dtype");
    planned->dtype = mxl_check_dtype(L, -1, MX_F32);
    lua_getfield(L, i, "shape");
    mxl_check_shape(L, lua_gettop(L), "a shape, as in {2, 3}", &planned->shape);
    lua_settop(L, i - 1);
}

static int writer_new(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_settop(L, 2);
    int64_t count = luaL_len(L, 2);
    mx_planned_tensor *plan = mxl_push_box(L, ((size_t)count + 1) * sizeof *plan, NULL);
    for (int64_t i = 0; i < count; i++) {
        lua_rawgeti(L, 2, i + 1);
        check_planned(L, &plan[i]);
    }
    mx_safetensors_writer **w = lua_newuserdatauv(L, sizeof *w, 0);
    *w = NULL;
    luaL_setmetatable(L, WRITER_CLASS);
    mxl_try(L, mx_safetensors_create(path, plan, count, w));
    return 1;
}

static int writer_put(lua_State *L)
{
    mx_safetensors_writer **w = check_writer(L);
    mxl_try(L, mx_safetensors_put(*w, luaL_checkstring(L, 2), mxl_check_values(L, 3, false)));
    return 0;
}

static int writer_commit(lua_State *L)
{
    mx_safetensors_writer **w = check_writer(L), *writer = *w;
    *w = NULL; /* commit frees it, whatever the outcome */
    mxl_try(L, mx_safetensors_commit(writer));
    return 0;
}

static int writer_abort(lua_State *L)
{
    mx_safetensors_writer **w = luaL_checkudata(L, 1, WRITER_CLASS);
    mx_safetensors_abort(*w);
    *w = NULL;
    return 0;
}

static const luaL_Reg file_methods[] = {{"info", file_info}, {"metadata", file_metadata},     {"format", file_format},
                                        {"read", file_read}, {"read_codes", file_read_codes}, {"close", file_close},
                                        {NULL, NULL}};
static const luaL_Reg file_meta[] = {{"__gc", file_close}, {"__close", file_close}, {NULL, NULL}};

static const luaL_Reg writer_methods[] = {
    {"put", writer_put}, {"commit", writer_commit}, {"abort", writer_abort}, {NULL, NULL}};
static const luaL_Reg writer_meta[] = {{"__gc", writer_abort}, {"__close", writer_abort}, {NULL, NULL}};

static const luaL_Reg functions[] = {
    {"weights_open", weights_open}, {"file_format", file_format_of}, {"safetensors_writer", writer_new}, {NULL, NULL}};

void mxl_add_weights_fields(lua_State *L)
{
    mxl_new_class(L, FILE_CLASS, file_meta, file_methods);
    mxl_new_class(L, WRITER_CLASS, writer_meta, writer_methods);
    luaL_setfuncs(L, functions, 0);
}
