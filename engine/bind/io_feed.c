/* mx.io.feed: prefetches batches of sequences from token files (data/feed.h, data/sampler.h). Samples count from 0. */
#include "bind/bind.h"
#include "bind/io.h"
#include "bind/value.h"
#include "data/feed.h"
#include "data/permutation.h"

#include <stdlib.h>
#include <string.h>

#define FEED_CLASS "mx.io.feed"

typedef struct feed_box {
    mx_feed *feed; /* NULL: closed */
    int64_t rows, length;
} feed_box;

/* Opened sources, before the sampler takes them over. */
typedef struct source_list {
    mx_tokens **tokens;
    int64_t *weights;
    int count;
} source_list;

static void free_sources(void *data)
{
    source_list *list = data;
    for (int i = 0; list->tokens && i < list->count; i++)
        mx_tokens_close(list->tokens[i]);
    free(list->tokens);
    free(list->weights);
}

static const char *check_text(lua_State *L, int table, const char *name)
{
    if (lua_getfield(L, table, name) != LUA_TSTRING)
        luaL_error(L, "a source of a feed needs '%s', a string", name);
    return lua_tostring(L, -1); /* the table keeps it */
}

static void open_source(lua_State *L, source_list *list, int i)
{
    int top = lua_gettop(L);
    luaL_argcheck(L, lua_rawgeti(L, -1, i + 1) == LUA_TTABLE, 1, "each source must be a table");
    const char *path = check_text(L, top + 1, "path"), *format = check_text(L, top + 1, "format");
    list->weights[i] = mxl_field_integer(L, top + 1, "weight", 1);
    mxl_try(L, mx_tokens_open(path, format, &list->tokens[i]));
    list->count++;
    lua_settop(L, top);
}

/* Opens the field `sources` of the table at index 1; the list is in a box. */
static source_list *open_sources(lua_State *L)
{
    source_list *list = mxl_push_box(L, sizeof *list, free_sources);
    luaL_argcheck(L, lua_getfield(L, 1, "sources") == LUA_TTABLE, 1, "sources must be a table");
    lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
    luaL_argcheck(L, count >= 1 && count <= 10000, 1, "expected 1 to 10000 sources");
    list->tokens = calloc((size_t)count, sizeof(mx_tokens *));
    list->weights = calloc((size_t)count, sizeof *list->weights);
    if (!list->tokens || !list->weights) {
        luaL_error(L, "out of memory for %d sources", (int)count);
        return NULL; /* not reached */
    }
    for (int i = 0; i < (int)count; i++)
        open_source(L, list, i);
    lua_pop(L, 1);
    return list;
}

/* feed{sources = {{path =, format =, weight = 1}, ...}, length =, rows =, stride = rows, depth = 0, packing = true,
 * shuffle = true, seed = 0, vocab_size =} -> feed */
static int feed_new(lua_State *L)
{
    static const char *const names[] = {"sources", "length",  "rows", "stride",     "depth",
                                        "packing", "shuffle", "seed", "vocab_size", NULL};
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    mxl_check_fields(L, 1, names, "feed");
    mx_sampler_options o = {.length = mxl_field_integer(L, 1, "length", 0),
                            .packing = mxl_field_boolean(L, 1, "packing", true),
                            .shuffle = mxl_field_boolean(L, 1, "shuffle", true),
                            .seed = (uint64_t)mxl_field_integer(L, 1, "seed", 0),
                            .vocab_size = mxl_field_integer(L, 1, "vocab_size", 0)};
    int64_t rows = mxl_field_integer(L, 1, "rows", 0), stride = mxl_field_integer(L, 1, "stride", rows);
    int64_t depth = mxl_field_integer(L, 1, "depth", 0);
    luaL_argcheck(L, depth >= 0 && depth <= 1000, 1, "depth must be 0 to 1000");
    source_list *list = open_sources(L);
    feed_box *box = lua_newuserdatauv(L, sizeof *box, 0);
    *box = (feed_box){.rows = rows, .length = o.length};
    luaL_setmetatable(L, FEED_CLASS);
    mx_sampler *sampler;
    int count = list->count;
    list->count = 0; /* the sampler takes them over */
    mxl_try(L, mx_sampler_new(list->tokens, list->weights, count, &o, &sampler));
    mxl_try(L, mx_feed_new(sampler, rows, o.length, stride, (int)depth, &box->feed));
    return 1;
}

static feed_box *check_feed(lua_State *L)
{
    feed_box *box = luaL_checkudata(L, 1, FEED_CLASS);
    if (!box->feed)
        luaL_error(L, "the feed is closed");
    return box;
}

static int feed_close(lua_State *L)
{
    feed_box *box = luaL_checkudata(L, 1, FEED_CLASS);
    mx_feed_free(box->feed);
    box->feed = NULL;
    return 0;
}

/* Pushes a (rows, length) tensor with these values. The batch stays valid during a garbage collection, because nothing
 * else uses the feed. */
static void push_copy(lua_State *L, const feed_box *box, mx_dtype dtype, const void *values)
{
    mx_tensor *t;
    mx_shape shape = {.n_dims = 2, .size = {box->rows, box->length}};
    mxl_try(L, mx_tensor_new(dtype, &shape, &t));
    mxl_push_tensor(L, t);
    mxl_try(L, mx_tensor_write(t, 0, mx_count(t), values));
}

/* feed:next(first) -> tokens, targets (rows, length) i32; with documents also segments, positions (i32), mask (u8) */
static int feed_next(lua_State *L)
{
    feed_box *box = check_feed(L);
    const mx_samples *batch;
    mxl_try(L, mx_feed_next(box->feed, luaL_checkinteger(L, 2), &batch));
    push_copy(L, box, MX_I32, batch->tokens);
    push_copy(L, box, MX_I32, batch->targets);
    if (!mx_feed_has_documents(box->feed))
        return 2;
    push_copy(L, box, MX_I32, batch->segments);
    push_copy(L, box, MX_I32, batch->positions);
    push_copy(L, box, MX_U8, batch->mask);
    return 5;
}

static void set_integer(lua_State *L, const char *name, int64_t value)
{
    lua_pushinteger(L, value);
    lua_setfield(L, -2, name);
}

static void set_text(lua_State *L, const char *name, const char *text)
{
    lua_pushstring(L, text);
    lua_setfield(L, -2, name);
}

static void push_source(lua_State *L, const mx_sampler *sampler, int i)
{
    mx_tokens *tokens = mx_sampler_source(sampler, i);
    const mx_store *store = mx_tokens_store(tokens);
    uint32_t fingerprint;
    mxl_try(L, mx_tokens_fingerprint(tokens, &fingerprint));
    lua_newtable(L);
    set_text(L, "path", mx_tokens_path(tokens));
    set_text(L, "format", mx_tokens_format(tokens));
    set_integer(L, "tokens", mx_tokens_count(tokens));
    set_integer(L, "samples", mx_sampler_epoch(sampler, i));
    set_integer(L, "fingerprint", fingerprint);
    if (!store)
        return;
    const mx_store_about *about = mx_store_get_about(store);
    set_integer(L, "documents", about->documents);
    set_integer(L, "vocab_size", about->vocab_size);
    set_integer(L, "bos", about->bos);
    set_integer(L, "eos", about->eos);
    set_text(L, "tokenizer", about->tokenizer);
    set_text(L, "tokenizer_fingerprint", about->fingerprint);
}

/* feed:sources() -> list of {path =, format =, tokens =, samples = of an epoch, fingerprint =}; of a token store also
 * documents, vocab_size, bos, eos, tokenizer, tokenizer_fingerprint */
static int feed_sources(lua_State *L)
{
    const mx_sampler *sampler = mx_feed_sampler(check_feed(L)->feed);
    lua_newtable(L);
    for (int i = 0; i < mx_sampler_sources(sampler); i++) {
        push_source(L, sampler, i);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* feed:samples_of(epochs) -> samples of the run until a first source has been read that often */
static int feed_samples_of(lua_State *L)
{
    lua_Integer epochs = luaL_checkinteger(L, 2);
    luaL_argcheck(L, epochs >= 1, 2, "must be at least 1");
    lua_pushinteger(L, mx_sampler_until(mx_feed_sampler(check_feed(L)->feed), epochs));
    return 1;
}

static int feed_describe(lua_State *L)
{
    char text[1024];
    mxl_try(L, mx_sampler_describe(mx_feed_sampler(check_feed(L)->feed), luaL_checkinteger(L, 2), text, sizeof text));
    lua_pushstring(L, text);
    return 1;
}

static int feed_documents(lua_State *L)
{
    lua_pushboolean(L, mx_feed_has_documents(check_feed(L)->feed));
    return 1;
}

/* feed:waited() -> seconds that next has waited since the last call of this function */
static int feed_waited(lua_State *L)
{
    lua_pushnumber(L, mx_feed_waited(check_feed(L)->feed));
    return 1;
}

/* permutation(n, seed, first, count) -> the numbers at positions first ... first + count - 1 (from 0) of a random
 * permutation of 0 ... n - 1, which is not stored (data/permutation.h) */
static int permutation(lua_State *L)
{
    int64_t n = luaL_checkinteger(L, 1), seed = luaL_checkinteger(L, 2);
    int64_t first = luaL_checkinteger(L, 3), count = luaL_checkinteger(L, 4);
    luaL_argcheck(L, n >= 0 && n <= 1LL << 53, 1, "expected 0 to 2^53");
    luaL_argcheck(L, first >= 0 && count >= 0 && count <= 1 << 24 && first <= n - count, 3, "outside of the numbers");
    mx_permutation p = mx_permutation_new((uint64_t)n, (uint64_t)seed, true);
    lua_createtable(L, (int)count, 0);
    for (int64_t i = 0; i < count; i++) {
        lua_pushinteger(L, (lua_Integer)mx_permutation_at(&p, (uint64_t)(first + i)));
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static const luaL_Reg methods[] = {{"next", feed_next},
                                   {"sources", feed_sources},
                                   {"samples_of", feed_samples_of},
                                   {"describe", feed_describe},
                                   {"has_documents", feed_documents},
                                   {"waited", feed_waited},
                                   {"close", feed_close},
                                   {NULL, NULL}};
static const luaL_Reg meta[] = {{"__gc", feed_close}, {"__close", feed_close}, {NULL, NULL}};
static const luaL_Reg functions[] = {{"feed", feed_new}, {"permutation", permutation}, {NULL, NULL}};

void mxl_add_feed_fields(lua_State *L)
{
    mxl_new_class(L, FEED_CLASS, meta, methods);
    luaL_setfuncs(L, functions, 0);
}
