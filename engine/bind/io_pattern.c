/* mx.io.pattern: regular expressions for config keys. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "bind/io.h"

#include "bind/bind.h"
#include "bind/value.h"

#include <pcre2.h>

#define PATTERN "mx.io.pattern"
#define MOST_STEPS 1000000 /* of one search, so that it ends */

typedef struct pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
} pattern;

static int pattern_gc(lua_State *L)
{
    pattern *p = luaL_checkudata(L, 1, PATTERN);
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    *p = (pattern){0};
    return 0;
}

/* pattern(text): a compiled regular expression of PCRE2; or nil and a message if the text is none. */
static int new_pattern(lua_State *L)
{
    size_t bytes;
    const char *text = luaL_checklstring(L, 1, &bytes);
    pattern *p = lua_newuserdatauv(L, sizeof *p, 0);
    *p = (pattern){0};
    luaL_setmetatable(L, PATTERN);
    int error;
    PCRE2_SIZE offset;
    p->code = pcre2_compile((PCRE2_SPTR)text, bytes, PCRE2_NEVER_BACKSLASH_C, &error, &offset, NULL);
    if (!p->code) {
        char message[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        lua_pushnil(L);
        lua_pushfstring(L, "'%s' is no regular expression: %s", text, message);
        return 2;
    }
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (!p->match || !p->context)
        mxl_try(L, mx_fail(MX_ERR_MEMORY, "out of memory for a regular expression"));
    pcre2_set_match_limit(p->context, MOST_STEPS);
    return 1;
}

/* pattern:search(text): whether the expression matches anywhere in a text. */
static int search(lua_State *L)
{
    pattern *p = luaL_checkudata(L, 1, PATTERN);
    size_t bytes;
    const char *text = luaL_checklstring(L, 2, &bytes);
    luaL_argcheck(L, p->code, 1, "the expression has been released");
    int found = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, 0, 0, p->match, p->context);
    if (found < 0 && found != PCRE2_ERROR_NOMATCH)
        mxl_try(L, mx_fail(MX_ERR_VALUE, "a regular expression needs too many steps for '%s'", text));
    lua_pushboolean(L, found >= 0);
    return 1;
}

void mxl_add_pattern_fields(lua_State *L)
{
    static const luaL_Reg meta[] = {{"__gc", pattern_gc}, {NULL, NULL}};
    static const luaL_Reg methods[] = {{"search", search}, {NULL, NULL}};
    mxl_new_class(L, PATTERN, meta, methods);
    lua_pushcfunction(L, new_pattern);
    lua_setfield(L, -2, "pattern");
}
