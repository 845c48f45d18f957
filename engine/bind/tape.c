/* Scopes, gradients, rematerialisation, offloading, memory and the profiler for Lua. */
#include "tape/tape.h"
#include "bind/bind.h"
#include "bind/step.h"
#include "bind/value.h"
#include "core/offload.h"
#include "core/pool.h"
#include "core/scope.h"
#include "core/spill.h"
#include "ops/check.h"
#include "ops/profile.h"

#include <stdlib.h>
#include <string.h>

#define GUARD "mx.guard"

/* A guard is a to-be-closed value: when the guarded function raises, Lua closes it while it unwinds, and the error goes
 * on with its traceback whole, which a protected call would cut. */

typedef struct mxl_guard {
    uint64_t scope; /* the id of that of an open region, or 0 */
    bool recording; /* what to go back to */
} mxl_guard;

static int guard_close(lua_State *L)
{
    mxl_guard *guard = luaL_checkudata(L, 1, GUARD);
    mx_scope *scope = guard->scope ? mx_scope_find(guard->scope) : NULL;
    if (scope)
        mx_tape_region_abandon(scope);
    guard->scope = 0;
    mx_tape_set_recording(guard->recording);
    return 0;
}

/* Puts a guard below the function at stack index `function`, which moves up by one. */
static mxl_guard *push_guard(lua_State *L, int function)
{
    mxl_guard *guard = lua_newuserdatauv(L, sizeof *guard, 0);
    *guard = (mxl_guard){.recording = mx_tape_is_recording()};
    luaL_setmetatable(L, GUARD);
    lua_insert(L, function);
    lua_toclose(L, function);
    return guard;
}

/* Runs the function at `function` with the arguments after it inside a region; its results escape. */
static int run_region(lua_State *L, int function, const mx_remat_policy *policy)
{
    mxl_guard *guard = push_guard(L, function);
    mx_scope *scope = NULL;
    mxl_try(L, mx_tape_region_open(policy, &scope));
    guard->scope = scope->id;
    lua_call(L, lua_gettop(L) - function - 1, LUA_MULTRET);
    int n_results = lua_gettop(L) - function;
    mx_tensor *results[MX_MAX_INPUTS];
    int n_tensors = 0;
    for (int i = 1; i <= n_results; i++) {
        mx_tensor *t = mxl_test_tensor(L, function + i);
        if (t && n_tensors == MX_MAX_INPUTS)
            return luaL_error(L, "a scope returns at most %d tensors", MX_MAX_INPUTS);
        if (t)
            results[n_tensors++] = t;
    }
    mxl_check_inner_steps(L, scope);
    guard->scope = 0;
    mxl_try(L, mx_tape_region_close(scope, results, n_tensors));
    return n_results;
}

/* mx.scope(fn, ...) -> what fn returns: all else that it made is released, but for what backward will read. */
static int scope(lua_State *L)
{
    static const mx_remat_policy keep_held = {.keep_held = true};
    luaL_checktype(L, 1, LUA_TFUNCTION);
    return run_region(L, 1, &keep_held);
}

enum { MAX_NAMES = 64 };

/* The names of a policy, in a box that lets them go. */
typedef struct mxl_names {
    int n;
    const char *names[2 * MAX_NAMES];
} mxl_names;

static void let_go_of_names(void *box)
{
    const mxl_names *names = box;
    for (int i = 0; i < names->n; i++)
        mx_text_let_go(names->names[i]);
}

/* Adds those of the list at stack index `index`; how many there are. */
static int read_names(lua_State *L, int index, mxl_names *names)
{
    luaL_checktype(L, index, LUA_TTABLE);
    int n = (int)luaL_len(L, index);
    if (n > MAX_NAMES)
        luaL_error(L, "a policy names at most %d tensors, %d given", MAX_NAMES, n);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, index, i + 1);
        names->names[names->n] = mx_text_hold(luaL_checkstring(L, -1));
        names->n++;
        lua_pop(L, 1);
    }
    return n;
}

/* remat_region(kept or false, offloaded, fn, ...): lists of the tensors' names; false: keep all that backward reads. */
static int remat_region(lua_State *L)
{
    mx_remat_policy policy = {.keep_held = !lua_toboolean(L, 1), .regathers = true};
    luaL_checktype(L, 3, LUA_TFUNCTION);
    if (policy.keep_held)
        return run_region(L, 3, &policy);
    mxl_names *names = mxl_push_box(L, sizeof *names, let_go_of_names);
    lua_insert(L, 3);
    policy.n_kept = read_names(L, 1, names);
    policy.n_offloaded = read_names(L, 2, names);
    policy.kept = names->names;
    policy.offloaded = names->names + policy.n_kept;
    return run_region(L, 4, &policy);
}

/* mx.offload_open(directory): where offloaded values go; "": $TMPDIR, or /var/tmp. */
static int offload_open(lua_State *L)
{
    mxl_try(L, mx_device_current->open_ranges(mx_device_current, luaL_checkstring(L, 1)));
    return 0;
}

/* mx.offload_stats([reset]) -> directory, file_bytes, away_bytes, and since the last reset: written_bytes, read_bytes,
 * exposed_s (seconds that the script waited for the file), busy_s (seconds that it was written or read). */
static int offload_stats(lua_State *L)
{
    mx_offload_stats stats = mx_offload_get_stats(lua_toboolean(L, 1));
    lua_createtable(L, 0, 7);
    lua_pushstring(L, mx_spill_directory());
    lua_setfield(L, -2, "directory");
    lua_pushinteger(L, mx_spill_file_bytes());
    lua_setfield(L, -2, "file_bytes");
    lua_pushinteger(L, stats.away_bytes);
    lua_setfield(L, -2, "away_bytes");
    lua_pushinteger(L, stats.written_bytes);
    lua_setfield(L, -2, "written_bytes");
    lua_pushinteger(L, stats.read_bytes);
    lua_setfield(L, -2, "read_bytes");
    lua_pushnumber(L, stats.exposed_s);
    lua_setfield(L, -2, "exposed_s");
    lua_pushnumber(L, stats.busy_s);
    lua_setfield(L, -2, "busy_s");
    return 1;
}

/* mx.name(t, "query_proj") -> t */
static int name(lua_State *L)
{
    mx_tensor_set_name(mxl_check_tensor(L, 1), luaL_checkstring(L, 2));
    lua_settop(L, 1);
    return 1;
}

/* mx.backward(loss, [scale = 1], [{retain = false}]): gradients of scale times the loss. retain: the records stay, to
 * be walked again. Collective where collectives or mx.reduce_gradient are in it. */
static int backward(lua_State *L)
{
    static const char *const fields[] = {"retain", NULL};
    mx_tensor *loss = mxl_check_tensor(L, 1);
    int options = lua_istable(L, 2) ? 2 : 3;
    double scale = options == 2 ? 1.0 : luaL_optnumber(L, 2, 1.0);
    if (!lua_isnoneornil(L, options))
        luaL_checktype(L, options, LUA_TTABLE);
    mxl_check_fields(L, options, fields, "mx.backward");
    bool retain = mxl_field_boolean(L, options, "retain", false);
    mxl_check_lost_steps(L);
    mxl_set_site(L); /* of the collectives in it */
    const mx_root root = {.t = loss, .seed = scale};
    mxl_try(L, mx_tape_backward(mx_tape_current(), &root, 1, retain));
    return 0;
}

/* mx.no_grad(fn, ...) -> what fn returns, with nothing recorded. */
static int no_grad(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    push_guard(L, 1);
    mx_tape_set_recording(false);
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    return lua_gettop(L) - 1; /* the guard is closed on return and turns recording back */
}

/* Memory, in bytes. */

static int memory(lua_State *L)
{
    mx_pool_stats stats = mx_device_current->memory(mx_device_current);
    lua_newtable(L);
    lua_pushinteger(L, stats.in_use_bytes);
    lua_setfield(L, -2, "in_use");
    lua_pushinteger(L, stats.peak_bytes);
    lua_setfield(L, -2, "peak");
    lua_pushinteger(L, stats.reserved_bytes);
    lua_setfield(L, -2, "reserved");
    lua_pushinteger(L, stats.limit_bytes);
    lua_setfield(L, -2, "limit");
    return 1;
}

static int reset_peak(lua_State *L)
{
    (void)L;
    mx_device_current->reset_peak(mx_device_current);
    return 0;
}

static int memory_limit(lua_State *L)
{
    lua_Integer bytes = luaL_checkinteger(L, 1);
    luaL_argcheck(L, bytes >= 0, 1, "bytes, 0 for no limit");
    mx_pool_set_limit(bytes);
    return 0;
}

static int trim(lua_State *L)
{
    (void)L;
    mx_pool_trim();
    return 0;
}

/* mx.profile(true) starts, mx.profile(false) stops. */
static int profile(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TBOOLEAN);
    if (lua_toboolean(L, 1))
        mx_profile_start();
    else
        mx_profile_stop();
    return 0;
}

/* mx.profile_report() -> rows {op, shapes, calls, seconds, flops, bytes}, the longest first. */
static int profile_report(lua_State *L)
{
    const mx_profile_row *rows = NULL;
    int n = mx_profile_rows(&rows);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_createtable(L, 0, 6);
        lua_pushstring(L, rows[i].op->name);
        lua_setfield(L, -2, "op");
        lua_pushstring(L, rows[i].shapes);
        lua_setfield(L, -2, "shapes");
        lua_pushinteger(L, rows[i].calls);
        lua_setfield(L, -2, "calls");
        lua_pushnumber(L, rows[i].seconds);
        lua_setfield(L, -2, "seconds");
        lua_pushnumber(L, rows[i].flops);
        lua_setfield(L, -2, "flops");
        lua_pushnumber(L, rows[i].bytes);
        lua_setfield(L, -2, "bytes");
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

static void add_kept(void *context, const mx_op *op, const mx_tensor *t)
{
    lua_State *L = context;
    lua_createtable(L, 0, 4);
    lua_pushstring(L, t->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, op->name);
    lua_setfield(L, -2, "op");
    lua_pushinteger(L, t->storage->bytes);
    lua_setfield(L, -2, "bytes");
    lua_pushlightuserdata(L, t->storage);
    lua_setfield(L, -2, "storage");
    lua_rawseti(L, -2, luaL_len(L, -2) + 1);
}

/* mx.kept() -> rows {name (nil: none), op, bytes, storage}: the results that the tape has recorded and that still have
 * values, in the order of the calls. Those with the same storage share its bytes. */
static int kept(lua_State *L)
{
    lua_newtable(L);
    bool collects = lua_gc(L, LUA_GCISRUNNING);
    lua_gc(L, LUA_GCSTOP); /* a tensor that is collected may take its record off the tape */
    mx_tape_for_each_kept(add_kept, L);
    if (collects)
        lua_gc(L, LUA_GCRESTART);
    return 1;
}

/* ---- where a value went wrong ---- */

/* mx.place(text or nil): where the script is, in its own words ("layer 3"), for mx.find_bad */
static int place(lua_State *L)
{
    const char *before = mx_place;
    mx_place = lua_isnoneornil(L, 1) ? NULL : mx_text_hold(luaL_checkstring(L, 1));
    mx_text_let_go(before);
    return 0;
}

static void push_finding(lua_State *L, const mx_finding *f)
{
    lua_createtable(L, 0, 8);
    lua_pushstring(L, f->op->name);
    lua_setfield(L, -2, "op");
    lua_pushstring(L, f->place);
    lua_setfield(L, -2, "place");
    lua_pushboolean(L, f->backward);
    lua_setfield(L, -2, "backward");
    lua_pushfstring(L, "%s %s", mx_dtype_name(f->dtype), mx_shape_text(&f->shape));
    lua_setfield(L, -2, "tensor");
    lua_pushinteger(L, f->nans);
    lua_setfield(L, -2, "nans");
    lua_pushinteger(L, f->infinities);
    lua_setfield(L, -2, "infinities");
    lua_pushinteger(L, f->first + 1);
    lua_setfield(L, -2, "first");
    lua_pushinteger(L, mx_shape_count(&f->shape));
    lua_setfield(L, -2, "elements");
}

/* mx.find_bad(fn, ...) -> what was the first result of an operation inside fn with a NaN or an infinity in it, or nil:
 * {op, place (of mx.place), backward, tensor ("bf16 (2, 3)"), nans, infinities, first (element, from 1), elements}.
 * What fn raises ends the search and is not told. */
static int find_bad(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    mx_check_start();
    int code = lua_pcall(L, lua_gettop(L) - 1, 0, 0);
    mx_finding finding = mx_check_stop();
    if (code == LUA_ERRMEM)
        return lua_error(L);
    if (!finding.op)
        return 0;
    push_finding(L, &finding);
    return 1;
}

int mxl_open_tape(lua_State *L)
{
    static const luaL_Reg functions[] = {{"scope", scope},
                                         {"remat_region", remat_region},
                                         {"name", name},
                                         {"backward", backward},
                                         {"no_grad", no_grad},
                                         {"memory", memory},
                                         {"reset_peak", reset_peak},
                                         {"memory_limit", memory_limit},
                                         {"trim", trim},
                                         {"kept", kept},
                                         {"place", place},
                                         {"find_bad", find_bad},
                                         {"offload_open", offload_open},
                                         {"offload_stats", offload_stats},
                                         {"profile", profile},
                                         {"profile_report", profile_report},
                                         {NULL, NULL}};
    static const luaL_Reg guard_methods[] = {{"__close", guard_close}, {NULL, NULL}};
    luaL_newmetatable(L, GUARD);
    mxl_hide_metatable(L, GUARD);
    luaL_setfuncs(L, guard_methods, 0);
    lua_pop(L, 1);
    luaL_newlib(L, functions);
    return 1;
}
