/* mx.io.tokenizer_open, tokenizer_parse: tokenizers (tokenizer/tokenizer.h). Scripts use lua/mx/data/tokenizer.lua. */
#include "bind/bind.h"
#include "bind/io.h"
#include "bind/value.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENIZER_CLASS "mx.io.tokenizer"
#define STREAM_CLASS "mx.io.token_stream"

typedef struct memory {
    void *data;
} memory;

static void destroy_memory(void *m) { free(((memory *)m)->data); }

static mx_tokenizer *check_tokenizer(lua_State *L, int i)
{
    mx_tokenizer **tokenizer = luaL_checkudata(L, i, TOKENIZER_CLASS);
    if (!*tokenizer)
        luaL_error(L, "the tokenizer is closed");
    return *tokenizer;
}

static mx_tokenizer **push_tokenizer(lua_State *L)
{
    mx_tokenizer **tokenizer = lua_newuserdatauv(L, sizeof(mx_tokenizer *), 0);
    *tokenizer = NULL;
    luaL_setmetatable(L, TOKENIZER_CLASS);
    return tokenizer;
}

/* tokenizer_open(path) -> tokenizer */
static int tokenizer_open(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1);
    mxl_try(L, mx_tokenizer_open(path, push_tokenizer(L)));
    return 1;
}

/* tokenizer_parse(json, name = "tokenizer.json") -> tokenizer */
static int tokenizer_parse(lua_State *L)
{
    size_t bytes;
    const char *json = luaL_checklstring(L, 1, &bytes), *name = luaL_optstring(L, 2, "tokenizer.json");
    mxl_try(L, mx_tokenizer_parse(json, bytes, name, push_tokenizer(L)));
    return 1;
}

static int tokenizer_close(lua_State *L)
{
    mx_tokenizer **tokenizer = luaL_checkudata(L, 1, TOKENIZER_CLASS);
    mx_tokenizer_close(*tokenizer);
    *tokenizer = NULL;
    return 0;
}

static int vocab_size(lua_State *L)
{
    lua_pushinteger(L, mx_tokenizer_vocab_size(check_tokenizer(L, 1)));
    return 1;
}

static int push_id(lua_State *L, int32_t id)
{
    if (id >= 0)
        lua_pushinteger(L, id);
    else
        lua_pushnil(L);
    return 1;
}

static int get_bos(lua_State *L) { return push_id(L, mx_tokenizer_bos(check_tokenizer(L, 1))); }

static int get_eos(lua_State *L) { return push_id(L, mx_tokenizer_eos(check_tokenizer(L, 1))); }

/* tokenizer:set_bos(id), set_eos(id); nil: none */
static int set_bos(lua_State *L)
{
    mxl_try(L, mx_tokenizer_set_bos(check_tokenizer(L, 1), luaL_optinteger(L, 2, -1)));
    return 0;
}

static int set_eos(lua_State *L)
{
    mxl_try(L, mx_tokenizer_set_eos(check_tokenizer(L, 1), luaL_optinteger(L, 2, -1)));
    return 0;
}

/* tokenizer:id(text) -> integer or nil */
static int token_id(lua_State *L)
{
    size_t bytes;
    const char *text = luaL_checklstring(L, 2, &bytes);
    return push_id(L, mx_tokenizer_id(check_tokenizer(L, 1), text, bytes));
}

/* tokenizer:piece(id) -> string or nil */
static int token_piece(lua_State *L)
{
    const char *text;
    size_t bytes;
    if (mx_tokenizer_piece(check_tokenizer(L, 1), luaL_checkinteger(L, 2), &text, &bytes))
        lua_pushlstring(L, text, bytes);
    else
        lua_pushnil(L);
    return 1;
}

/* tokenizer:fingerprint() -> 8 hexadecimal digits: mx_tokenizer_fingerprint */
static int fingerprint(lua_State *L)
{
    uint32_t sum;
    char text[16];
    mxl_try(L, mx_tokenizer_fingerprint(check_tokenizer(L, 1), &sum));
    (void)snprintf(text, sizeof text, "%08x", sum);
    lua_pushstring(L, text);
    return 1;
}

/* tokenizer:encode(text, bos = false, eos = false) -> i32 tensor (n) */
static int encode(lua_State *L)
{
    mx_tokenizer *tokenizer = check_tokenizer(L, 1);
    size_t bytes;
    const char *text = luaL_checklstring(L, 2, &bytes);
    int flags = (lua_toboolean(L, 3) ? MX_ENCODE_BOS : 0) | (lua_toboolean(L, 4) ? MX_ENCODE_EOS : 0);
    mx_tensor *t;
    int32_t *ids;
    int64_t count;
    mxl_try(L, mx_tokenizer_encode(tokenizer, text, bytes, flags, &ids, &count));
    mx_shape shape = {.n_dims = 1, .size = {count}};
    mx_status status = mx_tensor_new(MX_I32, &shape, &t);
    if (status == MX_OK) {
        status = mx_tensor_write(t, 0, count, ids);
        mxl_push_tensor(L, t);
    }
    free(ids);
    mxl_try(L, status);
    return 1;
}

/* Reads the ids at index i, an i32 tensor or a list of integers, into a box. */
static int32_t *check_ids(lua_State *L, int i, int64_t *count)
{
    memory *ids = mxl_push_box(L, sizeof *ids, destroy_memory);
    if (mxl_test_tensor(L, i)) {
        mx_tensor *t = mxl_check_values(L, i, false);
        luaL_argcheck(L, t->dtype == MX_I32, i, "token ids must be i32");
        *count = mx_count(t);
        luaL_argcheck(L, mx_has_values(t) || *count == 0, i, "these token ids have no values: the device is simulated");
        ids->data = malloc((size_t)(*count + 1) * sizeof(int32_t));
        luaL_argcheck(L, ids->data, i, "out of memory for the token ids");
        mxl_try(L, mx_tensor_read(t, 0, *count, ids->data));
        return ids->data;
    }
    luaL_argexpected(L, lua_istable(L, i), i, "an i32 tensor or a list of token ids");
    *count = (int64_t)lua_rawlen(L, i);
    ids->data = malloc((size_t)(*count + 1) * sizeof(int32_t));
    luaL_argcheck(L, ids->data, i, "out of memory for the token ids");
    for (int64_t k = 0; k < *count; k++) {
        int is_integer;
        lua_rawgeti(L, i, k + 1);
        lua_Integer id = lua_tointegerx(L, -1, &is_integer);
        luaL_argcheck(L, is_integer && id >= INT32_MIN && id <= INT32_MAX, i,
                      "token ids must be whole numbers of 32 bits");
        ((int32_t *)ids->data)[k] = (int32_t)id;
        lua_pop(L, 1);
    }
    return ids->data;
}

/* tokenizer:decode(ids, skip_special = false) -> string */
static int decode(lua_State *L)
{
    mx_tokenizer *tokenizer = check_tokenizer(L, 1);
    int flags = lua_toboolean(L, 3) ? MX_DECODE_SKIP_SPECIAL : 0;
    int64_t count;
    size_t bytes;
    const int32_t *ids = check_ids(L, 2, &count);
    memory *text = mxl_push_box(L, sizeof *text, destroy_memory);
    mxl_try(L, mx_tokenizer_decode(tokenizer, ids, count, flags, (char **)&text->data, &bytes));
    lua_pushlstring(L, text->data, bytes);
    return 1;
}

/* tokenizer:stream(skip_special = false) -> stream: stream:put(id) -> string, stream:finish() -> string */
typedef struct stream {
    mx_token_stream state;
    int flags;
} stream;

static int new_stream(lua_State *L)
{
    check_tokenizer(L, 1);
    stream *s = lua_newuserdatauv(L, sizeof *s, 1);
    *s = (stream){.flags = lua_toboolean(L, 2) ? MX_DECODE_SKIP_SPECIAL : 0};
    luaL_setmetatable(L, STREAM_CLASS);
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 1);
    return 1;
}

static int stream_put(lua_State *L)
{
    stream *s = luaL_checkudata(L, 1, STREAM_CLASS);
    lua_Integer id = luaL_checkinteger(L, 2);
    const char *text;
    size_t bytes;
    lua_getiuservalue(L, 1, 1);
    mxl_try(L, mx_tokenizer_stream(check_tokenizer(L, -1), &s->state, id, s->flags, &text, &bytes));
    lua_pushlstring(L, text, bytes);
    return 1;
}

/* Returns the bytes of an incomplete character and resets the stream. */
static int stream_finish(lua_State *L)
{
    stream *s = luaL_checkudata(L, 1, STREAM_CLASS);
    lua_pushlstring(L, (const char *)s->state.held, (size_t)s->state.n_held);
    s->state = (mx_token_stream){0};
    return 1;
}

static const luaL_Reg methods[] = {{"vocab_size", vocab_size},
                                   {"bos", get_bos},
                                   {"eos", get_eos},
                                   {"set_bos", set_bos},
                                   {"set_eos", set_eos},
                                   {"id", token_id},
                                   {"piece", token_piece},
                                   {"encode", encode},
                                   {"decode", decode},
                                   {"stream", new_stream},
                                   {"close", tokenizer_close},
                                   {"fingerprint", fingerprint},
                                   {NULL, NULL}};
static const luaL_Reg meta[] = {{"__gc", tokenizer_close}, {"__close", tokenizer_close}, {NULL, NULL}};
static const luaL_Reg stream_methods[] = {{"put", stream_put}, {"finish", stream_finish}, {NULL, NULL}};
static const luaL_Reg no_meta[] = {{NULL, NULL}};
static const luaL_Reg functions[] = {
    {"tokenizer_open", tokenizer_open}, {"tokenizer_parse", tokenizer_parse}, {NULL, NULL}};

void mxl_add_tokenizer_fields(lua_State *L)
{
    mxl_new_class(L, TOKENIZER_CLASS, meta, methods);
    mxl_new_class(L, STREAM_CLASS, no_meta, stream_methods);
    luaL_setfuncs(L, functions, 0);
}
