/* mx.io: texts, files and logs for scripts; the files io_*.c add the rest. The functions only convert arguments and
 * results; engine/io does the work. */
#include "bind/io.h"

#include "bind/bind.h"
#include "bind/value.h"
#include "io/checksum.h"
#include "io/file.h"
#include "io/folder.h"
#include "io/json.h"
#include "io/log.h"
#include "io/yaml.h"

#include <stdlib.h>
#include <string.h>

#define LOG "mx.io.log"

typedef struct text {
    char *data;
    size_t bytes;
} text;

static void destroy_text(void *t) { free(((text *)t)->data); }

/* ---- YAML and JSON ---- */

/* yaml_load(text, name?) -> value, lines, keys: `lines` maps the keys of the outermost map to their lines, `keys` lists
 * them in order. A text without content gives an empty table. */
static int yaml_load(lua_State *L)
{
    size_t bytes;
    const char *source = luaL_checklstring(L, 1, &bytes);
    const char *name = luaL_optstring(L, 2, "yaml");
    mx_value *value = mxl_push_value_box(L);
    mxl_try(L, mx_yaml_parse(source, bytes, name, value));
    if (value->kind == MX_NULL)
        lua_newtable(L);
    else
        mxl_push_value(L, value);
    lua_newtable(L);
    lua_newtable(L);
    for (size_t i = 0; value->kind == MX_MAP && i < value->count; i++) {
        lua_pushinteger(L, value->entries[i].line);
        lua_setfield(L, -3, value->entries[i].key);
        lua_pushstring(L, value->entries[i].key);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 3;
}

/* json_decode(text, name?) -> value */
static int json_decode(lua_State *L)
{
    size_t bytes;
    const char *source = luaL_checklstring(L, 1, &bytes);
    const char *name = luaL_optstring(L, 2, "json");
    mx_value *value = mxl_push_value_box(L);
    mxl_try(L, mx_json_parse(source, bytes, name, value));
    mxl_push_value(L, value);
    return 1;
}

/* json_encode(value, {indent = 0}) -> text */
static int json_encode(lua_State *L)
{
    static const char *const names[] = {"indent", NULL};
    luaL_checkany(L, 1);
    mxl_check_fields(L, 2, names, "json_encode");
    int64_t indent = mxl_field_integer(L, 2, "indent", 0);
    luaL_argcheck(L, indent >= 0 && indent <= 16, 2, "indent must be between 0 and 16");
    mx_value *value = mxl_push_value_box(L);
    mxl_check_value(L, 1, value);
    text *out = mxl_push_box(L, sizeof *out, destroy_text);
    mxl_try(L, mx_json_encode(value, (int)indent, &out->data, &out->bytes));
    lua_pushlstring(L, out->data, out->bytes);
    return 1;
}

/* ---- files ---- */

static int read_file(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    text *content = mxl_push_box(L, sizeof *content, destroy_text);
    mxl_try(L, mx_file_read(path, 0, &content->data, &content->bytes));
    lua_pushlstring(L, content->data, content->bytes);
    return 1;
}

/* write_file_atomic(path, text, {sync = true}): writes the complete file or leaves it unchanged. sync = false: the file
 * may be lost in a crash of the machine. */
static int write_file_atomic(lua_State *L)
{
    static const char *const names[] = {"sync", NULL};
    size_t bytes;
    const char *path = luaL_checkstring(L, 1);
    const char *content = luaL_checklstring(L, 2, &bytes);
    mxl_check_fields(L, 3, names, "write_file_atomic");
    bool sync = mxl_field_boolean(L, 3, "sync", true);
    mxl_try(L, sync ? mx_file_write(path, content, bytes) : mx_file_write_unsynced(path, content, bytes));
    return 0;
}

/* check_writable(path): raises an error if write_file_atomic could not write it now; leaves nothing behind. */
static int check_writable(lua_State *L)
{
    mxl_try(L, mx_file_check_writable(luaL_checkstring(L, 1)));
    return 0;
}

static int exists(lua_State *L)
{
    lua_pushboolean(L, mx_file_exists(luaL_checkstring(L, 1)));
    return 1;
}

static int mkdir_p(lua_State *L)
{
    mxl_try(L, mx_file_make_folders(luaL_checkstring(L, 1)));
    return 0;
}

/* about(path) -> {kind =, is_link =, bytes =, identity =}: what a path refers to (io/file.h) */
static void destroy_info(void *info) { free(((mx_file_info *)info)->identity); }

static int about(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    mx_file_info *info = mxl_push_box(L, sizeof *info, destroy_info);
    mxl_try(L, mx_file_about(path, info));
    lua_createtable(L, 0, 4);
    lua_pushstring(L, info->kind);
    lua_setfield(L, -2, "kind");
    lua_pushboolean(L, info->is_link);
    lua_setfield(L, -2, "is_link");
    lua_pushinteger(L, info->bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushstring(L, info->identity);
    lua_setfield(L, -2, "identity");
    return 1;
}

/* append_line(path, text): opens, appends, closes. */
static int append_line(lua_State *L)
{
    size_t bytes;
    const char *path = luaL_checkstring(L, 1);
    const char *line = luaL_checklstring(L, 2, &bytes);
    mx_log log;
    mx_status status = mx_log_open(&log, path, true);
    if (status == MX_OK) {
        status = mx_log_line(&log, line, bytes);
        mx_status closed = mx_log_close(&log);
        status = status == MX_OK ? closed : status;
    }
    mxl_try(L, status);
    return 0;
}

/* ---- folders ---- */

/* list(path) -> the names in a folder, sorted */
static int list(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    mx_value *names = mxl_push_value_box(L);
    mxl_try(L, mx_folder_list(path, names));
    mxl_push_value(L, names);
    return 1;
}

/* move_folder(from, to): durable and in one step; an error if `to` exists */
static int move_folder(lua_State *L)
{
    mxl_try(L, mx_folder_move(luaL_checkstring(L, 1), luaL_checkstring(L, 2)));
    return 0;
}

/* replace_folder(from, to, old): renames `to` to `old` and `from` to `to` */
static int replace_folder(lua_State *L)
{
    mxl_try(L, mx_folder_replace(luaL_checkstring(L, 1), luaL_checkstring(L, 2), luaL_checkstring(L, 3)));
    return 0;
}

/* remove_folder(path): removes a folder with everything in it */
static int remove_folder(lua_State *L)
{
    mxl_try(L, mx_folder_remove(luaL_checkstring(L, 1)));
    return 0;
}

/* crc32c(text) -> its CRC-32C as an integer */
static int crc32c(lua_State *L)
{
    size_t bytes;
    const char *data = luaL_checklstring(L, 1, &bytes);
    lua_pushinteger(L, mx_crc32c(0, data, bytes));
    return 1;
}

/* ---- logs: open_log(path, {append = false, own = false}) -> log; log:line(text); log:bytes(data); log:close() ---- */

static int log_line(lua_State *L)
{
    mx_log *log = luaL_checkudata(L, 1, LOG);
    size_t bytes;
    const char *line = luaL_checklstring(L, 2, &bytes);
    mxl_try(L, mx_log_line(log, line, bytes));
    return 0;
}

static int log_bytes(lua_State *L)
{
    mx_log *log = luaL_checkudata(L, 1, LOG);
    size_t bytes;
    const char *data = luaL_checklstring(L, 2, &bytes);
    mxl_try(L, mx_log_bytes(log, data, bytes));
    return 0;
}

static int log_close(lua_State *L)
{
    mxl_try(L, mx_log_close(luaL_checkudata(L, 1, LOG)));
    return 0;
}

static int log_collect(lua_State *L)
{
    mx_log_close(luaL_checkudata(L, 1, LOG));
    return 0;
}

static const luaL_Reg log_methods[] = {{"line", log_line}, {"bytes", log_bytes}, {"close", log_close}, {NULL, NULL}};
static const luaL_Reg log_meta[] = {{"__gc", log_collect}, {"__close", log_close}, {NULL, NULL}};

/* own: a file in a run's folder, appended to and never opened through a symbolic link */
static int open_log(lua_State *L)
{
    static const char *const names[] = {"append", "own", NULL};
    const char *path = luaL_checkstring(L, 1);
    mxl_check_fields(L, 2, names, "open_log");
    bool append = mxl_field_boolean(L, 2, "append", false), own = mxl_field_boolean(L, 2, "own", false);
    mx_log *log = lua_newuserdatauv(L, sizeof *log, 0);
    *log = (mx_log){.fd = -1};
    luaL_setmetatable(L, LOG);
    mxl_try(L, own ? mx_log_open_own(log, path) : mx_log_open(log, path, append));
    return 1;
}

/* ---- the module ---- */

void mxl_new_class(lua_State *L, const char *name, const luaL_Reg *meta, const luaL_Reg *methods)
{
    luaL_newmetatable(L, name);
    mxl_hide_metatable(L, name);
    luaL_setfuncs(L, meta, 0);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    mxl_set_methods(L, name);
    lua_pop(L, 1);
}

static const luaL_Reg functions[] = {
    {"yaml_load", yaml_load},
    {"json_decode", json_decode},
    {"json_encode", json_encode},
    {"read_file", read_file},
    {"write_file_atomic", write_file_atomic},
    {"check_writable", check_writable},
    {"exists", exists},
    {"about", about},
    {"mkdir_p", mkdir_p},
    {"append_line", append_line},
    {"open_log", open_log},
    {"list", list},
    {"move_folder", move_folder},
    {"replace_folder", replace_folder},
    {"remove_folder", remove_folder},
    {"crc32c", crc32c},
    {NULL, NULL},
};

int mxl_open_io(lua_State *L)
{
    mxl_new_class(L, LOG, log_meta, log_methods);
    luaL_newlib(L, functions);
    mxl_add_value_fields(L);
    mxl_add_hdf5_fields(L);
    mxl_add_tokens_fields(L);
    mxl_add_checkpoint_fields(L);
    mxl_add_lock_fields(L);
    mxl_add_feed_fields(L);
    mxl_add_corpus_fields(L);
    mxl_add_tokenizer_fields(L);
    mxl_add_weights_fields(L);
    mxl_add_pattern_fields(L);
    mxl_add_bytes_fields(L);
    return 1;
}
