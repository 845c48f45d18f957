/* Bytes for scripts that read and write other programs' files: numbers to tensors and back, deflate, drafts of files.
 */
#include "bind/bind.h"
#include "bind/io.h"
#include "io/bytes.h"
#include "io/file.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

#define STREAM "mx.io.deflate"
#define DRAFT "mx.io.draft"

/* ---- numbers ---- */

/* layout_dtype("<i2") -> "i32", 2: the dtype that holds all numbers of a layout of numpy (mx_number_layout_dtype), and
 * the bytes of a number in the layout. nil if numpy has no such layout. */
static int layout_dtype(lua_State *L)
{
    mx_number_layout layout;
    if (!mx_number_layout_parse(luaL_checkstring(L, 1), &layout))
        return 0;
    lua_pushstring(L, mx_dtype_name(mx_number_layout_dtype(&layout)));
    lua_pushinteger(L, layout.bytes);
    return 2;
}

/* put_bytes(t, first, layout, bytes): the numbers in `bytes` become the values of t from number `first` (from 1) on.
 * The layout is numpy's name, or the dtype of t: as get_bytes gives them. */
static int put_bytes(lua_State *L)
{
    mx_tensor *t = mxl_check_values(L, 1, true);
    int64_t first = luaL_checkinteger(L, 2);
    const char *name = luaL_checkstring(L, 3);
    size_t length;
    const char *data = luaL_checklstring(L, 4, &length);
    bool is_raw = strcmp(name, mx_dtype_name(t->dtype)) == 0;
    mx_number_layout layout = {.bytes = (int)mx_dtype_bytes(t->dtype)};
    if (!is_raw && !mx_number_layout_parse(name, &layout))
        return luaL_error(L, "put_bytes: '%s' is no layout of numbers; such are <f4, >i8 and |b1", name);
    int64_t bytes = (int64_t)length, count = bytes / layout.bytes;
    if (bytes % layout.bytes != 0 || first < 1 || first - 1 > mx_count(t) - count)
        return luaL_error(L, "put_bytes: %I bytes of %s from value %I on do not fit %s", (LUAI_UACINT)bytes, name,
                          (LUAI_UACINT)first, mx_tensor_text(t));
    mxl_try(L, is_raw ? mx_tensor_write(t, first - 1, count, data) : mx_bytes_put(t, first - 1, &layout, data, count));
    return 0;
}

/* get_bytes(t, first, count) -> the bytes of these values, little-endian */
static int get_bytes(lua_State *L)
{
    const mx_tensor *t = mxl_check_values(L, 1, false);
    int64_t first = luaL_checkinteger(L, 2), count = luaL_checkinteger(L, 3);
    if (first < 1 || count < 0 || first - 1 > mx_count(t) - count)
        return luaL_error(L, "get_bytes: %I values from value %I on are outside of %s", (LUAI_UACINT)count,
                          (LUAI_UACINT)first, mx_tensor_text(t));
    size_t bytes = (size_t)count * mx_dtype_bytes(t->dtype);
    luaL_Buffer text;
    char *to = luaL_buffinitsize(L, &text, bytes);
    memset(to, 0, bytes); /* a simulated tensor has no values */
    mxl_try(L, mx_tensor_read(t, first - 1, count, to));
    luaL_pushresultsize(&text, bytes);
    return 1;
}

/* crc32(text, before = 0) -> the CRC-32 of zip files, continued from `before` */
static int crc_of_zip(lua_State *L)
{
    size_t bytes;
    const char *data = luaL_checklstring(L, 1, &bytes);
    lua_pushinteger(L, (lua_Integer)crc32_z((uLong)luaL_optinteger(L, 2, 0), (const Bytef *)data, bytes));
    return 1;
}

/* adler32(text, before = 1) -> the Adler-32 of zlib streams, continued from `before` */
static int adler_of_zlib(lua_State *L)
{
    size_t bytes;
    const char *data = luaL_checklstring(L, 1, &bytes);
    lua_pushinteger(L, (lua_Integer)adler32_z((uLong)luaL_optinteger(L, 2, 1), (const Bytef *)data, bytes));
    return 1;
}

/* ---- deflate without headers, as in zip files: z = inflater() or deflater(); z:push(bytes, at_end) ---- */

typedef struct stream {
    z_stream z;
    bool is_open, inflates, has_ended;
} stream;

static int new_stream(lua_State *L, bool inflates)
{
    stream *s = lua_newuserdatauv(L, sizeof *s, 0);
    *s = (stream){.inflates = inflates};
    luaL_setmetatable(L, STREAM);
    int result = inflates ? inflateInit2(&s->z, -15)
                          : deflateInit2(&s->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY);
    s->is_open = result == Z_OK;
    if (!s->is_open)
        mxl_try(L, mx_fail(MX_ERR_MEMORY, "out of memory for zlib"));
    return 1;
}

static int new_inflater(lua_State *L) { return new_stream(L, true); }

static int new_deflater(lua_State *L) { return new_stream(L, false); }

static int stream_gc(lua_State *L)
{
    stream *s = luaL_checkudata(L, 1, STREAM);
    if (s->is_open)
        (s->inflates ? inflateEnd : deflateEnd)(&s->z);
    s->is_open = false;
    return 0;
}

/* z:push(bytes, at_end?) -> what they give so far, whether the stream has ended. `bytes` are few: all that an inflater
 * makes of them, at most 1032 times as much, is one string. nil and a message for bytes that are no deflate stream. */
static int stream_push(lua_State *L)
{
    stream *s = luaL_checkudata(L, 1, STREAM);
    size_t bytes;
    const char *data = luaL_checklstring(L, 2, &bytes);
    luaL_argcheck(L, s->is_open, 1, "closed");
    luaL_argcheck(L, bytes <= 1 << 20, 2, "at most 1 MiB at once");
    int flush = !s->inflates && lua_toboolean(L, 3) ? Z_FINISH : Z_NO_FLUSH;
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    s->z.next_in = (Bytef *)(uintptr_t)data; /* zlib only reads it */
    s->z.avail_in = (uInt)bytes;
    while (!s->has_ended) {
        char *to = luaL_prepbuffsize(&text, 1 << 16);
        s->z.next_out = (Bytef *)to;
        s->z.avail_out = 1 << 16;
        int result = s->inflates ? inflate(&s->z, Z_NO_FLUSH) : deflate(&s->z, flush);
        luaL_addsize(&text, (1 << 16) - s->z.avail_out);
        s->has_ended = result == Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
            lua_pushnil(L);
            lua_pushliteral(L, "the compressed bytes are damaged");
            return 2;
        }
        if (s->z.avail_out > 0) /* all that was pushed is consumed */
            break;
    }
    luaL_pushresult(&text);
    lua_pushboolean(L, s->has_ended);
    return 2;
}

/* ---- drafts: d = draft(path); d:write(bytes) ...; d:commit() replaces the file in one step ---- */

typedef struct draft {
    mx_draft file;
    int64_t bytes; /* written so far */
} draft;

static int new_draft(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    draft *d = lua_newuserdatauv(L, sizeof *d, 0);
    *d = (draft){0};
    luaL_setmetatable(L, DRAFT);
    mxl_try(L, mx_draft_open(&d->file, path));
    return 1;
}

static draft *check_draft(lua_State *L)
{
    draft *d = luaL_checkudata(L, 1, DRAFT);
    luaL_argcheck(L, d->file.temporary, 1, "committed or discarded");
    return d;
}

/* d:write(bytes) -> the number of bytes written so far */
static int draft_write(lua_State *L)
{
    draft *d = check_draft(L);
    size_t bytes;
    const char *data = luaL_checklstring(L, 2, &bytes);
    mxl_try(L, mx_draft_write_at(&d->file, d->bytes, data, (int64_t)bytes));
    d->bytes += (int64_t)bytes;
    lua_pushinteger(L, d->bytes);
    return 1;
}

static int draft_commit(lua_State *L)
{
    mxl_try(L, mx_draft_commit(&check_draft(L)->file));
    return 0;
}

static int draft_discard(lua_State *L)
{
    draft *d = luaL_checkudata(L, 1, DRAFT);
    mx_draft_discard(&d->file);
    return 0;
}

void mxl_add_bytes_fields(lua_State *L)
{
    static const luaL_Reg stream_methods[] = {{"push", stream_push}, {NULL, NULL}};
    static const luaL_Reg stream_meta[] = {{"__gc", stream_gc}, {"__close", stream_gc}, {NULL, NULL}};
    static const luaL_Reg draft_methods[] = {
        {"write", draft_write}, {"commit", draft_commit}, {"discard", draft_discard}, {NULL, NULL}};
    static const luaL_Reg draft_meta[] = {{"__gc", draft_discard}, {"__close", draft_discard}, {NULL, NULL}};
    static const luaL_Reg functions[] = {
        {"layout_dtype", layout_dtype}, {"put_bytes", put_bytes},   {"get_bytes", get_bytes},
        {"crc32", crc_of_zip},          {"adler32", adler_of_zlib}, {"inflater", new_inflater},
        {"deflater", new_deflater},     {"draft", new_draft},       {NULL, NULL}};
    mxl_new_class(L, STREAM, stream_meta, stream_methods);
    mxl_new_class(L, DRAFT, draft_meta, draft_methods);
    luaL_setfuncs(L, functions, 0);
}
