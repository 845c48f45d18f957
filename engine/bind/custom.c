/* mx.custom: operations whose forward and backward are functions of the script.
 *
 * A call is one record of the tape. Its attribute is a frame: in Lua, the functions, the context and the arguments.
 * Operations inside forward are not recorded. The tape holds what forward saves for backward as it holds all values
 * that gradients read: inputs and results by themselves, other tensors as hidden outputs. So a region may drop them,
 * and rematerialisation runs forward again. */
#include "bind/bind.h"
#include "bind/callback.h"
#include "core/scope.h"
#include "ops/rows.h"
#include "tape/tape.h"

#include <stdlib.h>
#include <string.h>

#define CONTEXT "mx.custom.context"

enum { MAX_SAVED = MX_MAX_INPUTS + MX_MAX_OUTPUTS };

/* Positions in the frame's table. Tensors among the arguments are left out: the call has them. */
enum { FORWARD = 1, BACKWARD, COST, THE_CONTEXT, ARGUMENTS };

typedef struct frame {
    const char *name; /* interned */
    int table;        /* held */
    int n_arguments;
    int8_t input_at[MX_MAX_INPUTS]; /* which argument each input is, from 0 */
    double flops, bytes;            /* of forward, where the script says so; otherwise flops < 0 */
    mx_seed seed;                   /* the position of the stream of random numbers before forward */
    int n_results;                  /* of the outputs; those after them are saved */
    int n_saved;
    int8_t saved[MAX_SAVED]; /* an input: its number from 0; an output: -1 - its number */
} frame;

typedef struct custom_attr {
    frame *frame;
} custom_attr;

static frame *frame_of(const mx_call *call) { return ((const custom_attr *)mx_call_attr(call))->frame; }

static void free_frame(frame *f)
{
    mxl_forget_value(f->table);
    free(f);
}

static void custom_forget(mx_call *call) { free_frame(frame_of(call)); }

/* ---- forward ---- */

static char saved_key; /* its address is the key of the saved tensors in a context */

static bool same_values(const mx_tensor *a, const mx_tensor *b)
{
    return a == b || (a->storage == b->storage && a->offset == b->offset && a->dtype == b->dtype &&
                      mx_shape_equal(&a->shape, &b->shape));
}

/* Adds an output with the values of t, or gives the next one of a call that runs again its values. */
static mx_status set_output(mx_call *call, int i, const mx_tensor *t)
{
    const char *name = frame_of(call)->name;
    if (i == MX_MAX_OUTPUTS)
        return mx_fail(MX_ERR_VALUE,
                       "%s: forward returns and saves more than %d tensors beside its inputs; save fewer, and compute "
                       "them again in backward",
                       name, MX_MAX_OUTPUTS);
    if (i == call->n_out) {
        MX_TRY(mx_tensor_new_empty(t->dtype, &t->shape, &call->out[i]));
        call->n_out++;
    }
    mx_tensor *out = call->out[i];
    if (out->dtype != t->dtype || !mx_shape_equal(&out->shape, &t->shape))
        return mx_fail(MX_ERR_VALUE, "%s: forward ran again and made %s where it made %s before", name,
                       mx_tensor_text(t), mx_tensor_text(out));
    mx_tensor_alias(out, t, 0);
    return MX_OK;
}

/* The results of forward are at stack index `first` and above. */
static mx_status take_results(lua_State *L, mx_call *call, int first, bool again)
{
    frame *f = frame_of(call);
    int n = lua_gettop(L) - first + 1;
    if (n == 0 || (again && n != f->n_results))
        return mx_fail(MX_ERR_VALUE, "%s: forward returned %d tensors; expected %s", f->name, n,
                       again ? "as many as before" : "at least one");
    for (int i = 0; i < n; i++) {
        const mx_tensor *t = mxl_test_tensor(L, first + i);
        if (!t || !t->storage)
            return mx_fail(MX_ERR_VALUE, "%s: result %d of forward is %s; expected a tensor with values", f->name,
                           i + 1, t ? mx_tensor_text(t) : luaL_typename(L, first + i));
        MX_TRY(set_output(call, i, t));
    }
    f->n_results = n;
    return MX_OK;
}

/* The number of t among inputs and outputs, as in frame.saved; MAX_SAVED: none. */
static int find_tensor(const mx_call *call, const mx_tensor *t)
{
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && same_values(call->in[i], t))
            return i;
    for (int i = 0; i < call->n_out; i++)
        if (same_values(call->out[i], t))
            return -1 - i;
    return MAX_SAVED;
}

static mx_status take_one_saved(mx_call *call, int i, const mx_tensor *t, bool again, int *hidden)
{
    frame *f = frame_of(call);
    if (!t || !t->storage)
        return mx_fail(MX_ERR_VALUE, "%s: ctx:save takes tensors with values", f->name);
    if (!again)
        f->saved[i] = (int8_t)find_tensor(call, t);
    if (again ? f->saved[i] != -1 - *hidden : f->saved[i] != MAX_SAVED)
        return MX_OK;
    f->saved[i] = (int8_t)(-1 - *hidden);
    return set_output(call, (*hidden)++, t);
}

/* Takes the tensors that ctx:save has put into the context. */
static mx_status take_saved(lua_State *L, mx_call *call, bool again)
{
    frame *f = frame_of(call);
    lua_rawgeti(L, LUA_REGISTRYINDEX, f->table);
    lua_rawgeti(L, -1, THE_CONTEXT);
    lua_rawgetp(L, -1, &saved_key);
    int list = lua_gettop(L), n = lua_istable(L, list) ? (int)lua_rawlen(L, list) : 0, hidden = f->n_results;
    if (n > MAX_SAVED || (again && n != f->n_saved))
        return mx_fail(MX_ERR_VALUE, "%s: forward saved %d tensors; %s", f->name, n,
                       again ? "expected as many as before" : "it may save 20");
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, list, i + 1);
        MX_TRY(take_one_saved(call, i, mxl_test_tensor(L, -1), again, &hidden));
        lua_pop(L, 1);
    }
    f->n_saved = n;
    lua_pushnil(L);
    lua_rawsetp(L, list - 1, &saved_key);
    return MX_OK;
}

static void push_context(lua_State *L)
{
    lua_createtable(L, 0, 4);
    luaL_setmetatable(L, CONTEXT);
}

/* Pushes a view of t that the current scope releases, whether or not that of t has closed: a handle of t itself would
 * keep the values until Lua collects it. With recording on, its gradient is recorded. */
static mx_status push_view(lua_State *L, mx_tensor *t)
{
    mx_tensor *view = NULL;
    if (mx_tape_is_recording()) {
        MX_TRY(mx_apply_reshape(t, &t->shape, &view));
    } else {
        MX_TRY(mx_tensor_new_empty(t->dtype, &t->shape, &view));
        mx_tensor_alias(view, t, 0);
    }
    mxl_push_tensor(L, view);
    return MX_OK;
}

/* Pushes forward, the context and the arguments. */
static mx_status push_forward(lua_State *L, const mx_call *call, bool again)
{
    const frame *f = frame_of(call);
    lua_rawgeti(L, LUA_REGISTRYINDEX, f->table);
    int table = lua_gettop(L);
    if (again) {
        push_context(L);
        lua_rawseti(L, table, THE_CONTEXT);
    }
    lua_rawgeti(L, table, FORWARD);
    lua_rawgeti(L, table, THE_CONTEXT);
    for (int i = 0, input = 0; i < f->n_arguments; i++) {
        if (input < call->n_in && f->input_at[input] == i)
            MX_TRY(push_view(L, call->in[input++]));
        else
            lua_rawgeti(L, table, ARGUMENTS + i);
    }
    lua_remove(L, table);
    return MX_OK;
}

static const mx_op *op_of_call(const mx_call *call);

static mx_status run_forward(lua_State *L, mx_call *call, bool again)
{
    const frame *f = frame_of(call);
    int first = lua_gettop(L) + 1;
    mx_scope *scope, *outer = mx_scope_current();
    MX_TRY(mx_scope_open(&scope)); /* releases what forward makes; the outputs share storage with some of it */
    mx_status status = push_forward(L, call, again);
    if (status == MX_OK)
        status = mxl_callback(L, f->n_arguments + 1, LUA_MULTRET, f->name);
    mx_scope_swap(outer);
    if (status == MX_OK)
        status = take_results(L, call, first, again);
    if (status == MX_OK)
        status = take_saved(L, call, again);
    if (status == MX_OK && !again)
        call->op = op_of_call(call);
    mx_scope_swap(scope);
    mx_status closed = mx_scope_close(scope);
    return status != MX_OK ? status : closed;
}

/* The first time, the call has no outputs yet. */
static mx_status custom_host(mx_call *call)
{
    lua_State *L = mxl_running;
    frame *f = frame_of(call);
    int top = lua_gettop(L), charged = f->flops >= 0;
    bool again = call->n_out > 0;
    if (!lua_checkstack(L, f->n_arguments + 16))
        return mx_fail(MX_ERR_MEMORY, "%s: no memory for Lua's stack", f->name);
    mx_seed now = mxl_seed_stream(again ? &f->seed : NULL);
    if (!again)
        f->seed = now;
    bool recording = mx_tape_set_recording(false);
    mx_apply_uncharged += charged;
    mx_status status = run_forward(L, call, again);
    mx_apply_uncharged -= charged;
    mx_tape_set_recording(recording);
    if (again)
        mxl_seed_stream(&now);
    lua_settop(L, top);
    return status;
}

static mx_status custom_infer(mx_call *call)
{
    call->n_out = 0; /* forward makes the outputs */
    return MX_OK;
}

static mx_cost custom_cost(const mx_call *call)
{
    const frame *f = frame_of(call);
    mx_cost cost = {.work = f->flops > 0 ? MX_WORK_PRODUCT : MX_WORK_BYTES};
    if (f->flops < 0)
        return cost;
    cost.flops = f->flops;
    cost.bytes_read = f->bytes;
    return cost;
}

/* ---- backward ---- */

/* Puts handles of the saved tensors into the context at the top of the stack. */
static mx_status give_saved(lua_State *L, const mx_vjp *v)
{
    const frame *f = frame_of(v->call);
    lua_createtable(L, f->n_saved, 0);
    for (int i = 0; i < f->n_saved; i++) {
        int at = f->saved[i];
        if (at < -f->n_results && mx_tape_is_recording())
            return mx_fail(MX_ERR_STATE,
                           "%s: the gradient cannot be recorded, because forward saved a tensor that is neither an "
                           "input nor a result; save those, and compute the rest in backward",
                           f->name);
        MX_TRY(push_view(L, at >= 0 ? v->call->in[at] : v->call->out[-1 - at]));
        lua_rawseti(L, -2, i + 1);
    }
    lua_rawsetp(L, -2, &saved_key);
    return MX_OK;
}

static mx_status push_backward(lua_State *L, const mx_vjp *v)
{
    const frame *f = frame_of(v->call);
    lua_rawgeti(L, LUA_REGISTRYINDEX, f->table);
    if (lua_rawgeti(L, -1, BACKWARD) == LUA_TNIL)
        return mx_fail(MX_ERR_STATE,
                       "%s has no gradient; give mx.custom a backward function, or use t:detach() where "
                       "none is wanted",
                       f->name);
    lua_rawgeti(L, -2, THE_CONTEXT);
    MX_TRY(give_saved(L, v));
    for (int i = 0; i < f->n_results; i++) {
        if (v->out_grad[i])
            MX_TRY(push_view(L, v->out_grad[i]));
        else
            lua_pushnil(L);
    }
    return MX_OK;
}

/* Takes the gradient of input i at stack index `at`. */
static mx_status take_gradient(lua_State *L, mx_vjp *v, int i, int at)
{
    const mx_tensor *x = v->call->in[i];
    mx_tensor *g = mxl_test_tensor(L, at);
    if (lua_isnil(L, at) || !v->want[i])
        return MX_OK;
    if (!g || !g->storage || g->released || !mx_dtype_is_real(g->dtype) || !mx_shape_equal(&g->shape, &x->shape))
        return mx_fail(MX_ERR_SHAPE, "%s: result %d of backward is %s; expected nil, or a gradient for %s",
                       frame_of(v->call)->name, i + 1, g ? mx_tensor_text(g) : luaL_typename(L, at), mx_tensor_text(x));
    v->grad[i] = mx_retain(g);
    MX_TRY(mx_grad_cast(&v->grad[i], mx_vjp_dtype(v, i)));
    mx_scope_keep(v->grad[i]); /* a cast has made another tensor */
    return MX_OK;
}

static mx_status run_backward(lua_State *L, mx_vjp *v)
{
    const frame *f = frame_of(v->call);
    int first = lua_gettop(L) + 2; /* above the frame's table */
    MX_TRY(push_backward(L, v));
    MX_TRY(mxl_callback(L, f->n_results + 1, LUA_MULTRET, f->name));
    int n = lua_gettop(L) - first + 1;
    for (; n > v->call->n_in && lua_isnil(L, -1); n--)
        lua_pop(L, 1);
    if (n > v->call->n_in)
        return mx_fail(MX_ERR_VALUE,
                       "%s: backward returned %d gradients; expected one for each of the %d tensors that forward was "
                       "given, in their order",
                       f->name, n, v->call->n_in);
    for (int i = 0; i < n; i++)
        MX_TRY(take_gradient(L, v, i, first + i));
    lua_rawgeti(L, first - 1, THE_CONTEXT);
    lua_pushnil(L);
    lua_rawsetp(L, -2, &saved_key);
    return MX_OK;
}

static mx_status custom_vjp(mx_vjp *v)
{
    lua_State *L = mxl_running;
    int top = lua_gettop(L);
    if (!lua_checkstack(L, 32))
        return mx_fail(MX_ERR_MEMORY, "%s: no memory for Lua's stack", frame_of(v->call)->name);
    mx_scope *scope; /* releases what backward computes, but for its results */
    MX_TRY(mx_scope_open(&scope));
    mx_status status = run_backward(L, v);
    mx_status closed = mx_scope_close(scope);
    lua_settop(L, top);
    return status != MX_OK ? status : closed;
}

/* ---- the operations: one for each name, cost and set of saved tensors; they live as long as the program ---- */

typedef struct known_op {
    mx_op op;
    struct known_op *next;
} known_op;

static const mx_op *op_with(const char *name, bool charged, int n_results, uint32_t reads_in, uint32_t reads_out)
{
    static known_op *known;
    int flags = MX_OP_OWN_STORAGE | (charged ? 0 : MX_OP_COMPOSITE);
    for (known_op **k = &known; *k; k = &(*k)->next) {
        known_op *found = *k;
        const mx_op *op = &found->op;
        if (op->name != name || op->flags != flags || op->n_results != n_results || op->reads_in != reads_in ||
            op->reads_out != reads_out)
            continue;
        *k = found->next; /* to the front: it is likely to be asked for again */
        found->next = known;
        known = found;
        return op;
    }
    static const char *const inputs[] = {"x...?", NULL};
    known_op *made = malloc(sizeof *made);
    if (!made)
        return NULL;
    mx_op op = {.name = name,
                .doc = "an operation of the script (mx.custom)",
                .inputs = inputs,
                .n_out = MX_MAX_OUTPUTS,
                .n_results = n_results,
                .flags = flags,
                .attr_bytes = sizeof(custom_attr),
                .reads_in = reads_in,
                .reads_out = reads_out,
                .infer = custom_infer,
                .cost = custom_cost,
                .host = custom_host,
                .vjp = custom_vjp,
                .vjp_recorded = custom_vjp,
                .forget = custom_forget};
    memcpy(&made->op, &op, sizeof op);
    made->next = known;
    known = made;
    return &made->op;
}

/* The operation whose gradient reads what forward has saved. */
static const mx_op *op_of_call(const mx_call *call)
{
    const frame *f = frame_of(call);
    uint32_t in = 0, out = 0;
    for (int i = 0; i < f->n_saved; i++)
        *(f->saved[i] >= 0 ? &in : &out) |= 1u << (f->saved[i] >= 0 ? f->saved[i] : -1 - f->saved[i]);
    const mx_op *op = op_with(f->name, f->flops >= 0, f->n_results, in, out);
    return op ? op : call->op;
}

/* ---- calls ---- */

/* Upvalues of the function that mx.custom returns. */
enum { UP_NAME = 1, UP_FORWARD, UP_BACKWARD, UP_COST };

/* Calls the cost function with the arguments: FLOPs of products, and bytes read and written (default: of the inputs).
 */
static void read_cost(lua_State *L, frame *f, int n)
{
    f->flops = -1;
    if (lua_isnil(L, lua_upvalueindex(UP_COST)))
        return;
    luaL_checkstack(L, n + 4, "arguments");
    lua_pushvalue(L, lua_upvalueindex(UP_COST));
    for (int i = 1; i <= n; i++)
        lua_pushvalue(L, i);
    lua_call(L, n, 2);
    for (int i = 1; i <= n; i++) {
        const mx_tensor *t = mxl_test_tensor(L, i);
        f->bytes += t ? (double)mx_bytes(t) : 0;
    }
    f->flops = luaL_checknumber(L, -2);
    f->bytes = luaL_optnumber(L, -1, f->bytes);
    if (!(f->flops >= 0) || !(f->bytes >= 0))
        luaL_error(L, "%s: cost returned %f and %f; expected FLOPs and bytes, at least 0", f->name, f->flops, f->bytes);
    lua_pop(L, 2);
}

static frame *new_frame(lua_State *L, int n)
{
    frame f = {.name = lua_tostring(L, lua_upvalueindex(UP_NAME)), .n_arguments = n};
    read_cost(L, &f, n);
    lua_createtable(L, ARGUMENTS + n, 0);
    for (int i = UP_FORWARD; i <= UP_BACKWARD; i++) {
        lua_pushvalue(L, lua_upvalueindex(i));
        lua_rawseti(L, -2, i == UP_FORWARD ? FORWARD : BACKWARD);
    }
    push_context(L);
    lua_rawseti(L, -2, THE_CONTEXT);
    for (int i = 0; i < n; i++) {
        if (mxl_test_tensor(L, i + 1))
            continue;
        lua_pushvalue(L, i + 1);
        lua_rawseti(L, -2, ARGUMENTS + i);
    }
    frame *made = malloc(sizeof *made);
    if (!made) {
        luaL_error(L, "%s: no memory", f.name);
        return NULL; /* not reached */
    }
    *made = f;
    made->table = mxl_hold_value(L);
    return made;
}

static int call_custom(lua_State *L)
{
    int n = lua_gettop(L), n_in = 0;
    mx_tensor *in[MX_MAX_INPUTS], *out[MX_MAX_OUTPUTS] = {NULL};
    int8_t input_at[MX_MAX_INPUTS];
    const char *name = mx_intern(lua_tostring(L, lua_upvalueindex(UP_NAME)));
    mxl_running = L;
    if (n > 100)
        return luaL_error(L, "%s: at most 100 arguments, %d given", name, n);
    for (int i = 1; i <= n; i++) {
        if (!mxl_test_tensor(L, i))
            continue;
        if (n_in == MX_MAX_INPUTS)
            return luaL_error(L, "%s: at most %d tensors may be given", name, MX_MAX_INPUTS);
        input_at[n_in] = (int8_t)(i - 1);
        in[n_in++] = mxl_check_tensor(L, i);
    }
    frame *f = new_frame(L, n);
    f->name = name;
    memcpy(f->input_at, input_at, (size_t)n_in);
    const mx_op *op = op_with(name, f->flops >= 0, 0, 0, 0);
    custom_attr attr = {f};
    mx_status status = op ? mx_apply(op, in, n_in, MX_ATTRS(attr), out) : mx_fail(MX_ERR_MEMORY, "%s: no memory", name);
    int n_results = f->n_results;
    if (status != MX_OK || !out[0]->node)
        free_frame(f);
    mxl_try(L, status);
    for (int i = n_results; i < MX_MAX_OUTPUTS && out[i]; i++) { /* from now on only the record refers to them */
        out[i]->released = true;
        mx_scope_keep(out[i]);
        mx_release(out[i]);
    }
    for (int i = 0; i < n_results; i++)
        mxl_push_tensor(L, out[i]);
    return n_results;
}

static void push_function(lua_State *L, const char *field, bool required)
{
    int type = lua_getfield(L, 1, field);
    if (type != LUA_TFUNCTION && (type != LUA_TNIL || required))
        luaL_error(L, "custom: field '%s' is %s; expected a function", field, luaL_typename(L, -1));
}

/* mx.custom { forward = function(ctx, ...) end, backward = function(ctx, dy ...) end, cost =, name = } -> a function
 * that takes the arguments of forward and returns its tensors. Options are described in lua/tensors.md. */
static int custom(lua_State *L)
{
    static const char *const fields[] = {"forward", "backward", "cost", "name", NULL};
    luaL_checktype(L, 1, LUA_TTABLE);
    mxl_check_fields(L, 1, fields, "custom");
    if (lua_getfield(L, 1, "name") == LUA_TNIL)
        lua_pushliteral(L, "custom");
    mx_intern(luaL_checkstring(L, -1));
    lua_pushstring(L, lua_tostring(L, -1));
    push_function(L, "forward", true);
    push_function(L, "backward", false);
    push_function(L, "cost", false);
    lua_pushcclosure(L, call_custom, 4);
    return 1;
}

/* ctx:save(t, ...): keeps the tensors for backward. */
static int context_save(lua_State *L)
{
    int n = lua_gettop(L) - 1;
    luaL_checktype(L, 1, LUA_TTABLE);
    for (int i = 2; i <= n + 1; i++)
        mxl_check_tensor(L, i);
    lua_createtable(L, n, 0);
    lua_insert(L, 2);
    for (int i = n; i >= 1; i--)
        lua_rawseti(L, 2, i);
    lua_rawsetp(L, 1, &saved_key);
    return 0;
}

/* ctx:saved() -> the tensors that ctx:save was given. */
static int context_saved(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (lua_rawgetp(L, 1, &saved_key) != LUA_TTABLE)
        return 0;
    int n = (int)lua_rawlen(L, -1);
    luaL_checkstack(L, n, "saved tensors");
    for (int i = 1; i <= n; i++)
        lua_rawgeti(L, 2, i);
    return n;
}

int mxl_open_custom(lua_State *L)
{
    static const luaL_Reg functions[] = {{"custom", custom}, {NULL, NULL}};
    static const luaL_Reg methods[] = {{"save", context_save}, {"saved", context_saved}, {NULL, NULL}};
    luaL_newmetatable(L, CONTEXT);
    mxl_hide_metatable(L, CONTEXT);
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
    luaL_newlib(L, functions);
    return 1;
}
