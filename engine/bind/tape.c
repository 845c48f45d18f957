/* Scopes, rematerialisation, tapes and backward passes for Lua. */
#include "tape/tape.h"
#include "bind/bind.h"
#include "bind/step.h"
#include "bind/value.h"
#include "core/intern.h"
#include "core/scope.h"

#define GUARD "mx.guard"
#define TAPE "mx.tape"

/* A guard is a to-be-closed value. If the guarded function raises an error, Lua closes the guard while it unwinds. The
 * error keeps its whole traceback, which a protected call would cut. */

typedef struct mxl_guard {
    uint64_t scope;  /* the id of an open region's scope, or 0 */
    bool recording;  /* the state to restore */
    mx_tape *before; /* the tape to restore, if one was entered; or NULL */
    mx_tape *own;    /* that tape, if it ends with the guard; or NULL */
} mxl_guard;

static int guard_close(lua_State *L)
{
    mxl_guard *guard = luaL_checkudata(L, 1, GUARD);
    mx_scope *scope = guard->scope ? mx_scope_find(guard->scope) : NULL;
    if (scope)
        mx_tape_region_abandon(scope);
    guard->scope = 0;
    mx_tape_set_recording(guard->recording);
    if (guard->before)
        mx_tape_leave(guard->before);
    guard->before = NULL;
    if (guard->own)
        mx_tape_free(guard->own); /* it was left */
    guard->own = NULL;
    return 0;
}

/* Inserts a guard below the function at stack index `function`, which moves up by one. */
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

/* mx.scope(fn, ...) -> the results of fn. All other tensors made in fn are released, except those that backward will
 * read. */
static int scope(lua_State *L)
{
    static const mx_remat_policy keep_held = {.keep_held = true};
    luaL_checktype(L, 1, LUA_TFUNCTION);
    return run_region(L, 1, &keep_held);
}

enum { MAX_NAMES = 64 };

/* The names of a policy, in a box. */
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

/* Adds the names in the list at stack index `index`; returns their number. */
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

/* remat_region(kept, offloaded, fn, ...): lists of tensor names. With kept = false, everything that backward reads is
 * kept, and the second list names tensors that are computed again instead. */
static int remat_region(lua_State *L)
{
    mx_remat_policy policy = {.keep_held = !lua_toboolean(L, 1), .regathers = true};
    luaL_checktype(L, 3, LUA_TFUNCTION);
    mxl_names *names = mxl_push_box(L, sizeof *names, let_go_of_names);
    lua_insert(L, 3);
    if (policy.keep_held) {
        policy.n_dropped = read_names(L, 2, names);
        policy.dropped = names->names;
        return run_region(L, 4, &policy);
    }
    policy.n_kept = read_names(L, 1, names);
    policy.n_offloaded = read_names(L, 2, names);
    policy.kept = names->names;
    policy.offloaded = names->names + policy.n_kept;
    return run_region(L, 4, &policy);
}

/* mx.name(t, "query_proj") -> t */
static int name(lua_State *L)
{
    mx_tensor_set_name(mxl_check_tensor(L, 1), luaL_checkstring(L, 2));
    lua_settop(L, 1);
    return 1;
}

/* mx.no_grad(fn, ...) -> the results of fn; nothing is recorded. */
static int no_grad(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    push_guard(L, 1);
    mx_tape_set_recording(false);
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    return lua_gettop(L) - 1; /* on return the guard is closed and restores the recording state */
}

/* mx.enable_grad(fn, ...) -> the results of fn; operations are recorded, even inside mx.no_grad. Inside backward they
 * are recorded on a tape of their own, which ends with fn. */
static int enable_grad(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    mxl_guard *guard = push_guard(L, 1);
    if (mx_tape_is_any_walking()) {
        if (mx_tape_is_recording())
            mxl_try(L, mx_fail(MX_ERR_STATE, "enable_grad: the gradients that a backward function takes by mx.grad "
                                             "cannot be differentiated again; leave out record, or compute them of "
                                             "operations"));
        mx_tape *tape = NULL;
        mxl_try(L, mx_tape_new(&tape));
        guard->own = tape;
        guard->before = mx_tape_enter(tape);
    }
    mx_tape_set_recording(true);
    lua_call(L, lua_gettop(L) - 2, LUA_MULTRET);
    return lua_gettop(L) - 1;
}

/* ---- backward ---- */

/* Reads the gradient at the top of the stack, and pops it. */
static void read_gradient(lua_State *L, mx_root *root)
{
    if (mxl_test_tensor(L, -1))
        root->grad = mxl_check_tensor(L, -1);
    else if (lua_type(L, -1) == LUA_TNUMBER)
        root->seed = lua_tonumber(L, -1);
    else
        luaL_error(L, "backward: a root's gradient is a tensor, or a number where the root has one element; not %s",
                   luaL_typename(L, -1));
    lua_pop(L, 1);
}

/* Reads the list of roots at index `roots` and, if there is one, the list of their gradients after it. The array of
 * roots is Lua's memory and stays on the stack. */
static int read_lists(lua_State *L, int roots, bool has_gradients, mx_root **out)
{
    int n = (int)luaL_len(L, roots);
    luaL_argcheck(L, n > 0, roots, "an empty list of roots");
    if (has_gradients) {
        luaL_checktype(L, roots + 1, LUA_TTABLE);
        int given = (int)luaL_len(L, roots + 1);
        if (given != n)
            return luaL_error(L, "backward: %d roots and %d gradients; give one for each, or none", n, given);
    }
    *out = lua_newuserdatauv(L, (size_t)n * sizeof **out, 0);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, roots, i + 1);
        if (!mxl_test_tensor(L, -1))
            return luaL_error(L, "backward: root %d is no tensor but %s", i + 1, luaL_typename(L, -1));
        (*out)[i] = (mx_root){.t = mxl_check_tensor(L, -1), .seed = 1};
        lua_pop(L, 1);
        if (has_gradients) {
            lua_rawgeti(L, roots + 1, i + 1);
            read_gradient(L, &(*out)[i]);
        }
    }
    return n;
}

/* Whether a table holds options: unlike a list of gradients, it has no first entry. */
static bool is_options(lua_State *L, int i) { return lua_istable(L, i) && lua_rawlen(L, i) == 0; }

/* Reads the field `inputs` of the options, a tensor or a list of tensors, and returns the number of tensors: 0 without
 * the field. Their array is memory of Lua: it is valid as long as it is on Lua's stack. */
static int read_inputs(lua_State *L, int options, mx_tensor ***out)
{
    if (!lua_istable(L, options) || lua_getfield(L, options, "inputs") == LUA_TNIL)
        return 0;
    int list = lua_gettop(L), n = lua_istable(L, list) ? (int)luaL_len(L, list) : 1;
    *out = (mx_tensor **)lua_newuserdatauv(L, ((size_t)n + 1) * sizeof(mx_tensor *), 0);
    for (int i = 0; i < n; i++) {
        if (lua_istable(L, list))
            lua_rawgeti(L, list, i + 1);
        else
            lua_pushvalue(L, list);
        if (!mxl_test_tensor(L, -1))
            return luaL_error(L, "backward: inputs must be a tensor or a list of tensors, not %s",
                              luaL_typename(L, -1));
        (*out)[i] = mxl_check_tensor(L, -1);
        lua_pop(L, 1);
    }
    return n == 0 ? luaL_error(L, "backward: an empty list of inputs") : n;
}

/* Reads roots, [gradients], [{retain = false}] from index `roots` on: a root or a list of roots; likewise for
 * gradients. `halves`: also the option `inputs`. */
static int backward_on(lua_State *L, mx_tape *tape, int roots, bool halves)
{
    const char *const fields[] = {"retain", halves ? "inputs" : NULL, NULL};
    mx_tensor **inputs = NULL;
    mx_root one = {.seed = 1}, *list = &one;
    int n = 1, options = is_options(L, roots + 1) ? roots + 1 : roots + 2;
    bool has_gradients = options > roots + 1 && !lua_isnoneornil(L, roots + 1);
    if (!lua_isnoneornil(L, options))
        luaL_checktype(L, options, LUA_TTABLE);
    mxl_check_fields(L, options, fields, "backward");
    bool retain = mxl_field_boolean(L, options, "retain", false);
    if (lua_istable(L, roots)) {
        n = read_lists(L, roots, has_gradients, &list);
    } else {
        one.t = mxl_check_tensor(L, roots);
        if (has_gradients) {
            lua_pushvalue(L, roots + 1);
            read_gradient(L, &one);
        }
    }
    int n_inputs = read_inputs(L, options, &inputs);
    if (n_inputs > 0 && retain)
        return luaL_error(L, "backward: retain is not possible with inputs: the second half, tape:backward_weights, "
                             "walks the records again");
    mxl_check_lost_steps(L);
    mxl_set_site(L); /* for the collectives in it */
    mxl_try(L, n_inputs > 0 ? mx_tape_backward_inputs(tape, list, n, inputs, n_inputs)
                            : mx_tape_backward(tape, list, n, retain));
    return 0;
}

/* mx.backward(loss or {losses}, [gradients], [{retain = false}]): adds the gradients of the losses to those of the
 * leaves. A gradient is a number (default: 1), or a tensor of the loss's shape. retain: keep the records for another
 * backward pass. Collective if the passes contain collectives or mx.reduce_gradient. */
static int backward(lua_State *L) { return backward_on(L, mx_tape_current(), 1, false); }

/* ---- tapes of scripts ---- */

typedef struct mxl_tape {
    mx_tape *tape; /* NULL: closed */
    mx_site made, closed;
} mxl_tape;

/* mx.tape() -> an empty tape: local tape <close> = mx.tape() */
static int tape_new(lua_State *L)
{
    mxl_running = L;
    mxl_tape *tape = lua_newuserdatauv(L, sizeof *tape, 0);
    *tape = (mxl_tape){.made = mx_site_now()};
    luaL_setmetatable(L, TAPE);
    mxl_try(L, mx_tape_new(&tape->tape));
    return 1;
}

static mx_tape *check_tape(lua_State *L)
{
    const mxl_tape *tape = luaL_checkudata(L, 1, TAPE);
    if (!tape->tape)
        mxl_try(L, mx_fail(MX_ERR_STATE, "the tape made%s has been closed%s; make another one with mx.tape()",
                           mx_site_text(tape->made), mx_site_text(tape->closed)));
    return tape->tape;
}

/* tape:run(fn, ...) -> the results of fn; operations inside are recorded on the tape. */
static int tape_run(lua_State *L)
{
    mx_tape *tape = check_tape(L);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    mxl_guard *guard = push_guard(L, 2);
    guard->before = mx_tape_enter(tape);
    lua_call(L, lua_gettop(L) - 3, LUA_MULTRET);
    return lua_gettop(L) - 2; /* on return the guard is closed and leaves the tape */
}

/* tape:backward(roots, [gradients], [{retain = false, inputs}]): as mx.backward, for roots that the tape has recorded.
 * inputs: only the first half, the gradients that lead to these tensors. */
static int tape_backward(lua_State *L) { return backward_on(L, check_tape(L), 2, true); }

/* tape:backward_weights(): the second half of tape:backward(roots, gradients, {inputs}). Collective as mx.backward. */
static int tape_backward_weights(lua_State *L)
{
    mx_tape *tape = check_tape(L);
    mxl_check_lost_steps(L);
    mxl_set_site(L);
    mxl_try(L, mx_tape_backward_weights(tape));
    return 0;
}

static mx_status check_weights(mx_tape *tape)
{
    if (!mx_tape_waits(tape))
        return MX_OK;
    return mx_fail(MX_ERR_STATE,
                   "%s is closed or cleared before tape:backward_weights(), which computes the gradients of weights",
                   mx_tape_text(tape));
}

/* tape:clear(): forgets all records. */
static int tape_clear(lua_State *L)
{
    mx_tape *tape = check_tape(L);
    if (mx_tape_is_walking(tape))
        mxl_try(L, mx_fail(MX_ERR_STATE, "%s cannot be cleared inside its own backward", mx_tape_text(tape)));
    mxl_try(L, check_weights(tape));
    mx_tape_clear(tape);
    return 0;
}

static int tape_collect(lua_State *L)
{
    mxl_tape *tape = luaL_checkudata(L, 1, TAPE);
    if (!tape->tape)
        return 0;
    mxl_try(L, mx_tape_free(tape->tape));
    tape->tape = NULL;
    mxl_running = L;
    tape->closed = mx_site_now();
    return 0;
}

/* tape:close(): frees the tape and its records; may be called twice. While an error unwinds, Lua passes it on. */
static int tape_close(lua_State *L)
{
    const mxl_tape *tape = luaL_checkudata(L, 1, TAPE);
    if (tape->tape && lua_isnoneornil(L, 2))
        mxl_try(L, check_weights(tape->tape));
    return tape_collect(L);
}

int mxl_open_tape(lua_State *L)
{
    static const luaL_Reg functions[] = {{"scope", scope},
                                         {"remat_region", remat_region},
                                         {"name", name},
                                         {"no_grad", no_grad},
                                         {"backward", backward},
                                         {"tape", tape_new},
                                         {"enable_grad", enable_grad},
                                         {NULL, NULL}};
    static const luaL_Reg guard_methods[] = {{"__close", guard_close}, {NULL, NULL}};
    static const luaL_Reg tape_metamethods[] = {{"__close", tape_close}, {"__gc", tape_collect}, {NULL, NULL}};
    static const luaL_Reg tape_methods[] = {
        {"run", tape_run},     {"backward", tape_backward}, {"backward_weights", tape_backward_weights},
        {"clear", tape_clear}, {"close", tape_close},       {NULL, NULL}};
    luaL_newmetatable(L, GUARD);
    mxl_hide_metatable(L, GUARD);
    luaL_setfuncs(L, guard_methods, 0);
    lua_pop(L, 1);
    luaL_newmetatable(L, TAPE);
    mxl_hide_metatable(L, TAPE);
    luaL_setfuncs(L, tape_metamethods, 0);
    luaL_newlib(L, tape_methods);
    mxl_set_methods(L, "a tape");
    lua_pop(L, 1);
    luaL_newlib(L, functions);
    return 1;
}
