/* mx.io for preparing a corpus: reads texts as streams (data/text.h), writes and merges parts (data/token_part.h). */
#include "bind/bind.h"
#include "bind/io.h"
#include "bind/value.h"
#include "data/json_line.h"
#include "data/text.h"
#include "data/token_part.h"
#include "io/file.h"
#include "io/format.h"
#include "io/paths.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_CLASS "mx.io.text"
#define PART_CLASS "mx.io.token_part"

static void free_list(void *list) { free(*(void **)list); }

/* ---- texts ---- */

static mx_text *check_text(lua_State *L)
{
    mx_text **text = luaL_checkudata(L, 1, TEXT_CLASS);
    if (!*text)
        luaL_error(L, "the text is closed");
    return *text;
}

/* text_open(path, {start = 0, stop = -1, separator = "", limit = 2^28}?) -> text: the pieces that begin in the bytes
 * [start, stop) */
static int text_open(lua_State *L)
{
    static const char *const names[] = {"start", "stop", "separator", "limit", NULL};
    const char *path = luaL_checkstring(L, 1), *separator = "";
    size_t bytes = 0;
    lua_settop(L, 2);
    mxl_check_fields(L, 2, names, "text_open");
    int64_t start = mxl_field_integer(L, 2, "start", 0), stop = mxl_field_integer(L, 2, "stop", -1);
    int64_t limit = mxl_field_integer(L, 2, "limit", 1 << 28);
    luaL_argcheck(L, limit >= 1 && limit <= (int64_t)1 << 40, 2, "limit must be 1 to 2^40 bytes");
    if (lua_istable(L, 2) && lua_getfield(L, 2, "separator") != LUA_TNIL)
        separator = luaL_checklstring(L, -1, &bytes);
    mx_text **text = lua_newuserdatauv(L, sizeof *text, 0);
    *text = NULL;
    luaL_setmetatable(L, TEXT_CLASS);
    mxl_try(L, mx_text_open(path, start, stop, separator, bytes, (size_t)limit, text));
    return 1;
}

static int text_close(lua_State *L)
{
    mx_text **text = luaL_checkudata(L, 1, TEXT_CLASS);
    mx_text_close(*text);
    *text = NULL;
    return 0;
}

/* text:next() -> the next piece, or nil */
static int text_next(lua_State *L)
{
    const char *piece;
    size_t bytes;
    mxl_try(L, mx_text_next(check_text(L), &piece, &bytes));
    if (piece)
        lua_pushlstring(L, piece, bytes);
    else
        lua_pushnil(L);
    return 1;
}

/* text:offset() -> where the last piece begins in the text */
static int text_offset(lua_State *L)
{
    lua_pushinteger(L, mx_text_offset(check_text(L)));
    return 1;
}

/* text:consumed() -> bytes of the file read so far */
static int text_consumed(lua_State *L)
{
    lua_pushinteger(L, mx_text_consumed(check_text(L)));
    return 1;
}

/* text_head(path) -> the first bytes of the text, up to 64 KiB; whether the file is compressed */
static int text_head(lua_State *L)
{
    static char head[1 << 16];
    size_t bytes;
    bool compressed;
    mxl_try(L, mx_text_head(luaL_checkstring(L, 1), head, sizeof head, &bytes, &compressed));
    lua_pushlstring(L, head, bytes);
    lua_pushboolean(L, compressed);
    return 2;
}

/* format_of(head) -> the format of a file that starts with these bytes ("a Parquet file"), and advice; nil: text */
static int format_of(lua_State *L)
{
    size_t bytes;
    const char *head = luaL_checklstring(L, 1, &bytes);
    const mx_format *format = mx_format_of(head, bytes);
    lua_pushstring(L, format ? format->name : NULL);
    lua_pushstring(L, format ? format->advice : NULL);
    return 2;
}

/* json_line_text(line, field) -> the text of the field in a line of JSON; nil for an empty line; nil and a message for
 * an invalid line */
static int json_line_text(lua_State *L)
{
    size_t bytes, text_bytes;
    const char *line = luaL_checklstring(L, 1, &bytes), *field = luaL_checkstring(L, 2);
    char **text = mxl_push_box(L, sizeof *text, free_list);
    mx_status status = mx_json_line_text(line, bytes, field, text, &text_bytes);
    if (status == MX_ERR_VALUE) {
        lua_pushnil(L);
        lua_pushstring(L, mx_message());
        return 2;
    }
    mxl_try(L, status);
    if (*text)
        lua_pushlstring(L, *text, text_bytes);
    else
        lua_pushnil(L);
    free(*text); /* at once: Lua's collector does not know its size */
    *text = NULL;
    return 1;
}

/* ---- names of files ---- */

static void free_paths(void *paths) { mx_paths_free(paths); }

/* file_list(pattern) -> the matching files, sorted */
static int file_list(lua_State *L)
{
    const char *pattern = luaL_checkstring(L, 1);
    mx_paths *paths = mxl_push_box(L, sizeof *paths, free_paths);
    mxl_try(L, mx_paths_add(paths, pattern));
    lua_newtable(L);
    for (size_t i = 0; i < paths->count; i++) {
        lua_pushstring(L, paths->path[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return 1;
}

/* file_size(path) -> bytes, time of the last change in seconds; nil if it does not exist */
static int file_size(lua_State *L)
{
    struct stat about;
    if (stat(luaL_checkstring(L, 1), &about) != 0) {
        lua_pushnil(L);
        return 1;
    }
    lua_pushinteger(L, about.st_size);
    lua_pushinteger(L, about.st_mtime);
    return 2;
}

/* file_sum(path) -> a checksum (io/file.h) */
static int file_sum(lua_State *L)
{
    uint32_t sum;
    mxl_try(L, mx_file_sum(luaL_checkstring(L, 1), &sum));
    lua_pushinteger(L, sum);
    return 1;
}

/* is_terminal("stdout" or "stderr") -> whether it is a terminal; default: stdout */
static int is_terminal(lua_State *L)
{
    static const char *const names[] = {"stdout", "stderr", NULL};
    lua_pushboolean(L, isatty(luaL_checkoption(L, 1, "stdout", names) == 0 ? STDOUT_FILENO : STDERR_FILENO));
    return 1;
}

/* ---- parts ---- */

static mx_part_writer **check_part(lua_State *L)
{
    mx_part_writer **part = luaL_checkudata(L, 1, PART_CLASS);
    if (!*part)
        luaL_error(L, "the part has been committed or aborted already");
    return part;
}

/* token_part(path, token_bytes) -> part */
static int part_new(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    lua_Integer bytes = luaL_checkinteger(L, 2);
    mx_part_writer **part = lua_newuserdatauv(L, sizeof *part, 0);
    *part = NULL;
    luaL_setmetatable(L, PART_CLASS);
    luaL_argcheck(L, bytes == 2 || bytes == 4, 2, "expected 2 or 4");
    mxl_try(L, mx_part_create(path, (int)bytes, part));
    return 1;
}

/* part:add(tokens): a document, i32 (n) */
static int part_add(lua_State *L)
{
    mx_part_writer *part = *check_part(L);
    mx_tensor *t = mxl_check_values(L, 2, false);
    luaL_argcheck(L, t->dtype == MX_I32 && t->shape.n_dims == 1 && (mx_has_values(t) || mx_count(t) == 0), 2,
                  "expected an i32 tensor of one dimension");
    mx_map tokens;
    mxl_try(L, mx_tensor_map(t, 0, mx_count(t), MX_MAP_READ, &tokens));
    mx_status status = mx_part_add(part, tokens.data, mx_count(t));
    mx_tensor_unmap(&tokens);
    mxl_try(L, status);
    return 0;
}

/* part:copy(path, format, separator = -1, vocab_size = 2^31): all tokens of a file; each must be below vocab_size */
static int part_copy(lua_State *L)
{
    mx_part_writer *part = *check_part(L);
    lua_Integer separator = luaL_optinteger(L, 4, -1), vocab_size = luaL_optinteger(L, 5, (lua_Integer)1 << 31);
    luaL_argcheck(L, separator >= -1 && separator <= INT32_MAX, 4, "expected a token id, or -1 for none");
    mx_tokens *from;
    mxl_try(L, mx_tokens_open(luaL_checkstring(L, 2), luaL_checkstring(L, 3), &from));
    mx_status status = mx_part_copy(part, from, (int32_t)separator, vocab_size);
    mx_tokens_close(from);
    mxl_try(L, status);
    return 0;
}

/* part:commit(skipped = 0) */
static int part_commit(lua_State *L)
{
    mx_part_writer **part = check_part(L), *writer = *part;
    lua_Integer skipped = luaL_optinteger(L, 2, 0);
    *part = NULL; /* commit frees it, whatever the outcome */
    mxl_try(L, mx_part_commit(writer, skipped));
    return 0;
}

static int part_abort(lua_State *L)
{
    mx_part_writer **part = luaL_checkudata(L, 1, PART_CLASS);
    mx_part_abort(*part);
    *part = NULL;
    return 0;
}

static void set_integer(lua_State *L, const char *name, int64_t value)
{
    lua_pushinteger(L, value);
    lua_setfield(L, -2, name);
}

/* token_part_read(path) -> {token_bytes =, tokens =, documents =, skipped =} */
static int part_read(lua_State *L)
{
    mx_part_about about;
    mxl_try(L, mx_part_read_about(luaL_checkstring(L, 1), &about));
    lua_newtable(L);
    set_integer(L, "token_bytes", about.token_bytes);
    set_integer(L, "tokens", about.tokens);
    set_integer(L, "documents", about.documents);
    set_integer(L, "skipped", about.skipped);
    return 1;
}

static const char *text_field(lua_State *L, int table, const char *name)
{
    if (lua_getfield(L, table, name) != LUA_TSTRING)
        luaL_error(L, "token_parts_merge needs '%s', a string", name);
    return lua_tostring(L, -1); /* stays on the stack */
}

/* token_parts_merge({path, ...}, path, {vocab_size =, bos = -1, eos = -1, tokenizer =, fingerprint =}) -> tokens,
 * documents */
static int parts_merge(lua_State *L)
{
    static const char *const names[] = {"vocab_size", "bos", "eos", "tokenizer", "fingerprint", NULL};
    luaL_checktype(L, 1, LUA_TTABLE);
    const char *path = luaL_checkstring(L, 2);
    luaL_checktype(L, 3, LUA_TTABLE);
    mxl_check_fields(L, 3, names, "token_parts_merge");
    lua_Integer count = (lua_Integer)lua_rawlen(L, 1);
    const char ***paths = mxl_push_box(L, sizeof *paths, free_list);
    *paths = calloc((size_t)count + 1, sizeof **paths);
    if (!*paths)
        return luaL_error(L, "out of memory for %d names", (int)count);
    for (lua_Integer i = 0; i < count; i++) {
        luaL_argcheck(L, lua_rawgeti(L, 1, i + 1) == LUA_TSTRING, 1, "expected names of files");
        (*paths)[i] = lua_tostring(L, -1); /* the table keeps it */
        lua_pop(L, 1);
    }
    mx_store_about about = {.vocab_size = mxl_field_integer(L, 3, "vocab_size", 0),
                            .bos = mxl_field_integer(L, 3, "bos", -1),
                            .eos = mxl_field_integer(L, 3, "eos", -1),
                            .tokenizer = text_field(L, 3, "tokenizer"),
                            .fingerprint = text_field(L, 3, "fingerprint")};
    mxl_try(L, mx_parts_merge(*paths, count, path, &about));
    lua_pushinteger(L, about.tokens);
    lua_pushinteger(L, about.documents);
    return 2;
}

/* ---- the module ---- */

static const luaL_Reg text_methods[] = {
    {"next", text_next}, {"offset", text_offset}, {"consumed", text_consumed}, {"close", text_close}, {NULL, NULL}};
static const luaL_Reg text_meta[] = {{"__gc", text_close}, {"__close", text_close}, {NULL, NULL}};

static const luaL_Reg part_methods[] = {
    {"add", part_add}, {"copy", part_copy}, {"commit", part_commit}, {"abort", part_abort}, {NULL, NULL}};
static const luaL_Reg part_meta[] = {{"__gc", part_abort}, {"__close", part_abort}, {NULL, NULL}};

static const luaL_Reg functions[] = {
    {"text_open", text_open},       {"text_head", text_head},           {"format_of", format_of},
    {"file_sum", file_sum},         {"json_line_text", json_line_text}, {"file_list", file_list},
    {"file_size", file_size},       {"is_terminal", is_terminal},       {"token_part", part_new},
    {"token_part_read", part_read}, {"token_parts_merge", parts_merge}, {NULL, NULL}};

void mxl_add_corpus_fields(lua_State *L)
{
    mxl_new_class(L, TEXT_CLASS, text_meta, text_methods);
    mxl_new_class(L, PART_CLASS, part_meta, part_methods);
    luaL_setfuncs(L, functions, 0);
}
