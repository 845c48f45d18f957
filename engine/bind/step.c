/* mx.step(): a scope that ends with the Lua block that holds it: local step <close> = mx.step(). */
#include "bind/step.h"
#include "bind/bind.h"
#include "tape/tape.h"

#define STEP "mx.step"

typedef struct mxl_step {
    uint64_t scope; /* its id; 0 once closed */
} mxl_step;

/* Pushes "train.lua:12". */
static const char *push_site(lua_State *L, mx_site site)
{
    return site.file ? lua_pushfstring(L, "%s:%d", site.file, site.line) : lua_pushstring(L, "an unknown line");
}

static const char *push_unclosed(lua_State *L, const mx_scope *scope)
{
    return lua_pushfstring(L,
                           "the step that was opened at %s was never closed: write local step <close> = mx.step(), or "
                           "call step:close()",
                           push_site(L, scope->site));
}

static void close_scope(mx_scope *scope)
{
    if (!scope->parent)
        mx_tape_forget_since(scope->records); /* records that no backward has used are not needed any more */
    mx_tape_regions_leave(scope);
    (void)mx_scope_close(scope); /* it is open */
}

static mx_scope *find_lost(void)
{
    mx_scope *scope = mx_scope_current();
    while (scope && !scope->is_lost)
        scope = scope->parent;
    return scope;
}

/* Closes a lost step as soon as no step is open inside it, so that a script that catches the error can continue. */
void mxl_check_lost_steps(lua_State *L)
{
    mx_scope *lost = find_lost();
    if (!lost)
        return;
    const char *text = push_unclosed(L, lost);
    if (lost == mx_scope_current())
        close_scope(lost);
    mxl_try(L, mx_fail(MX_ERR_STATE, "%s", text));
}

static const mx_scope *find_inner_step(const mx_scope *scope)
{
    const mx_scope *inner = NULL;
    for (const mx_scope *s = mx_scope_current(); s && s != scope; s = s->parent)
        inner = s->is_step ? s : inner;
    return inner;
}

void mxl_check_inner_steps(lua_State *L, const mx_scope *scope)
{
    const mx_scope *inner = find_inner_step(scope);
    if (inner)
        mxl_try(L, mx_fail(MX_ERR_STATE, "%s", push_unclosed(L, inner)));
}

bool mxl_push_open_step(lua_State *L)
{
    const mx_scope *step = find_inner_step(NULL);
    if (step)
        push_unclosed(L, step);
    return step != NULL;
}

/* If a step of the same line is still open, either the loop around it forgot to close it, or it belongs to a caller.
 * Lua's collector can tell: it collects a forgotten step. The same holds for a long chain of open steps. */
static void collect_lost_steps(lua_State *L, mx_site site)
{
    enum { DEEP = 32 };
    int depth = 0;
    for (const mx_scope *scope = mx_scope_current(); scope; scope = scope->parent) {
        bool same_line = scope->is_step && site.file && scope->site.file == site.file && scope->site.line == site.line;
        if (same_line || ++depth == DEEP) {
            lua_gc(L, LUA_GCCOLLECT);
            return;
        }
    }
}

static int step_open(lua_State *L)
{
    mxl_running = L;
    mx_site site = mx_site_now();
    collect_lost_steps(L, site);
    mxl_check_lost_steps(L);
    mxl_step *step = lua_newuserdatauv(L, sizeof *step, 0);
    step->scope = 0;
    luaL_setmetatable(L, STEP);
    mx_scope *scope = NULL;
    mxl_try(L, mx_scope_open(&scope));
    scope->is_step = true;
    scope->site = site;
    scope->records = mx_tape_count();
    step->scope = scope->id;
    return 1;
}

/* Called as a __close metamethod, it gets a second argument: the current error or nil. An error raised here would hide
 * that one. step:close() closes early; closing twice is allowed. */
static int step_close(lua_State *L)
{
    mxl_step *step = luaL_checkudata(L, 1, STEP);
    mx_scope *scope = step->scope ? mx_scope_find(step->scope) : NULL;
    step->scope = 0;
    if (!scope)
        return 0;
    const mx_scope *inner = lua_isnoneornil(L, 2) ? find_inner_step(scope) : NULL;
    const char *text = NULL;
    if (inner) {
        const char *outer_line = push_site(L, scope->site), *inner_line = push_site(L, inner->site);
        text =
            lua_pushfstring(L,
                            "the step of %s ended while the one that was opened inside it at %s was still open: write "
                            "local step <close> = mx.step(), and close steps in the opposite order of opening",
                            outer_line, inner_line);
    }
    close_scope(scope);
    if (text)
        mxl_try(L, mx_fail(MX_ERR_STATE, "%s", text));
    return 0;
}

/* Closes nothing: Lua may collect at any time, even while the scope is in use. */
static int step_collect(lua_State *L)
{
    const mxl_step *step = luaL_checkudata(L, 1, STEP);
    mx_scope *scope = step->scope ? mx_scope_find(step->scope) : NULL;
    if (scope)
        scope->is_lost = true;
    return 0;
}

int mxl_open_step(lua_State *L)
{
    static const luaL_Reg metamethods[] = {{"__close", step_close}, {"__gc", step_collect}, {NULL, NULL}};
    static const luaL_Reg methods[] = {{"close", step_close}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"step", step_open}, {NULL, NULL}};
    luaL_newmetatable(L, STEP);
    mxl_hide_metatable(L, STEP);
    luaL_setfuncs(L, metamethods, 0);
    luaL_newlib(L, methods);
    mxl_set_methods(L, "a step");
    lua_pop(L, 1);
    luaL_newlib(L, functions);
    return 1;
}
