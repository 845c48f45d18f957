/* mx.io.tokens_open: token files (data/tokens.h). Positions count from 0, as offsets into a file do. */
#include "bind/bind.h"
#include "bind/io.h"
#include "data/tokens.h"

#define TOKENS_CLASS "mx.io.tokens"

static mx_tokens *check_tokens(lua_State *L)
{
    mx_tokens **tokens = luaL_checkudata(L, 1, TOKENS_CLASS);
    if (!*tokens)
        luaL_error(L, "the token file is closed");
    return *tokens;
}

/* tokens_open(path, format = "auto") -> reader */
static int tokens_open(lua_State *L)
{
    const char *path = luaL_checkstring(L, 1), *format = luaL_optstring(L, 2, "auto");
    mx_tokens **tokens = lua_newuserdatauv(L, sizeof *tokens, 0);
    *tokens = NULL;
    luaL_setmetatable(L, TOKENS_CLASS);
    mxl_try(L, mx_tokens_open(path, format, tokens));
    return 1;
}

static int tokens_close(lua_State *L)
{
    mx_tokens **tokens = luaL_checkudata(L, 1, TOKENS_CLASS);
    mx_tokens_close(*tokens);
    *tokens = NULL;
    return 0;
}

static int tokens_count(lua_State *L)
{
    lua_pushinteger(L, mx_tokens_count(check_tokens(L)));
    return 1;
}

static int tokens_path(lua_State *L)
{
    lua_pushstring(L, mx_tokens_path(check_tokens(L)));
    return 1;
}

static int tokens_format(lua_State *L)
{
    lua_pushstring(L, mx_tokens_format(check_tokens(L)));
    return 1;
}

/* reader:store() -> {documents =, vocab_size =, bos =, eos =, tokenizer =, fingerprint =} of a token store; else nil */
static int tokens_store(lua_State *L)
{
    const mx_store *store = mx_tokens_store(check_tokens(L));
    if (!store) {
        lua_pushnil(L);
        return 1;
    }
    const mx_store_about *about = mx_store_get_about(store);
    const char *const names[] = {"documents", "vocab_size", "bos", "eos"};
    const int64_t values[] = {about->documents, about->vocab_size, about->bos, about->eos};
    lua_newtable(L);
    for (int i = 0; i < 4; i++) {
        lua_pushinteger(L, values[i]);
        lua_setfield(L, -2, names[i]);
    }
    lua_pushstring(L, about->tokenizer);
    lua_setfield(L, -2, "tokenizer");
    lua_pushstring(L, about->fingerprint);
    lua_setfield(L, -2, "fingerprint");
    return 1;
}

/* reader:max() -> the largest id; reads the whole file the first time */
static int tokens_max(lua_State *L)
{
    int32_t max;
    mxl_try(L, mx_tokens_max(check_tokens(L), &max));
    lua_pushinteger(L, max);
    return 1;
}

/* reader:read(start, n) -> i32 tensor (n) */
static int tokens_read(lua_State *L)
{
    mx_tokens *tokens = check_tokens(L);
    int64_t start = luaL_checkinteger(L, 2), count = luaL_checkinteger(L, 3);
    mx_tensor *t;
    /* Never allocates more than the file has. */
    mx_shape shape = {.n_dims = 1, .size = {count >= 0 && count <= mx_tokens_count(tokens) ? count : 0}};
    mxl_try(L, mx_tensor_new(MX_I32, &shape, &t));
    mxl_push_tensor(L, t);
    mx_map values;
    mxl_try(L, mx_tensor_map(t, 0, mx_count(t), MX_MAP_WRITE, &values));
    mx_status status = mx_has_values(t) ? mx_tokens_read(tokens, start, count, values.data) : MX_OK;
    mx_tensor_unmap(&values);
    mxl_try(L, status);
    return 1;
}

/* reader:rows({start, ...}, n) -> i32 tensor (#starts, n): a batch */
static int tokens_rows(lua_State *L)
{
    mx_tokens *tokens = check_tokens(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    int64_t rows = (int64_t)lua_rawlen(L, 2), count = luaL_checkinteger(L, 3);
    luaL_argcheck(L, count >= 0 && count <= mx_tokens_count(tokens), 3, "more tokens than the file has");
    for (int64_t r = 0; r < rows; r++) {
        lua_rawgeti(L, 2, r + 1);
        luaL_argcheck(L, lua_isinteger(L, -1), 2, "positions must be integers");
        lua_pop(L, 1);
    }
    mx_tensor *t;
    mx_shape shape = {.n_dims = 2, .size = {rows, count}};
    mxl_try(L, mx_tensor_new(MX_I32, &shape, &t));
    mxl_push_tensor(L, t);
    mx_map values;
    mxl_try(L, mx_tensor_map(t, 0, mx_count(t), MX_MAP_WRITE, &values));
    mx_status status = MX_OK;
    for (int64_t r = 0; r < rows && status == MX_OK && mx_has_values(t); r++) {
        int32_t *row = values.data;
        lua_rawgeti(L, 2, r + 1);
        status = mx_tokens_read(tokens, lua_tointeger(L, -1), count, row ? row + r * count : NULL);
        lua_pop(L, 1);
    }
    mx_tensor_unmap(&values);
    mxl_try(L, status);
    return 1;
}

static const luaL_Reg methods[] = {{"count", tokens_count}, {"path", tokens_path},   {"format", tokens_format},
                                   {"max", tokens_max},     {"store", tokens_store}, {"read", tokens_read},
                                   {"rows", tokens_rows},   {"close", tokens_close}, {NULL, NULL}};
static const luaL_Reg meta[] = {
    {"__gc", tokens_close}, {"__close", tokens_close}, {"__len", tokens_count}, {NULL, NULL}};
static const luaL_Reg functions[] = {{"tokens_open", tokens_open}, {NULL, NULL}};

void mxl_add_tokens_fields(lua_State *L)
{
    mxl_new_class(L, TOKENS_CLASS, meta, methods);
    luaL_setfuncs(L, functions, 0);
}
