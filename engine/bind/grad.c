/* Gradients of chosen tensors, and hooks that see a tensor's gradient during backward. */
#include "bind/bind.h"
#include "bind/callback.h"
#include "bind/value.h"
#include "core/scope.h"
#include "ops/rows.h"
#include "tape/tape.h"

#include <stdlib.h>

/* ---- mx.grad ---- */

/* What a call of mx.grad owns: in a box, because reading its arguments may raise an error. */
typedef struct request {
    int n_roots, n_targets;
    mx_root *roots;
    mx_tensor **targets, **grads;
} request;

static void free_request(void *box)
{
    request *r = box;
    for (int i = 0; r->grads && i < r->n_targets; i++)
        mx_release(r->grads[i]);
    free(r->roots);
    free((void *)r->targets);
    free((void *)r->grads);
}

/* A root's gradient, at the top of the stack; pops it. */
static void read_seed(lua_State *L, mx_root *root)
{
    if (mxl_test_tensor(L, -1))
        root->grad = mxl_check_tensor(L, -1);
    else if (lua_type(L, -1) == LUA_TNUMBER)
        root->seed = lua_tonumber(L, -1);
    else if (!lua_isnil(L, -1))
        luaL_error(L, "grad: option 'grad' is a tensor, or a number where y has one element; not %s",
                   luaL_typename(L, -1));
    lua_pop(L, 1);
}

/* The number of values of the table at index i, which must be tensors. */
static int count_tensors(lua_State *L, int i)
{
    int n = 0;
    for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1), n++)
        if (!mxl_test_tensor(L, -1))
            luaL_error(L, "grad: entry '%s' of the table is no tensor but %s", luaL_tolstring(L, -2, NULL),
                       luaL_typename(L, -2));
    return n;
}

static void read_targets(lua_State *L, request *r)
{
    bool many = lua_istable(L, 2);
    int n = many ? count_tensors(L, 2) : 1, at = 0;
    if (n <= 0) {
        luaL_argerror(L, 2, "an empty table of tensors");
        return; /* not reached */
    }
    r->targets = calloc((size_t)n, sizeof *r->targets);
    r->grads = calloc((size_t)n, sizeof *r->grads);
    if (!r->targets || !r->grads) {
        luaL_error(L, "grad: no memory");
        return; /* not reached */
    }
    r->n_targets = n;
    if (!many) {
        r->targets[0] = mxl_check_tensor(L, 2);
        return;
    }
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1))
        r->targets[at++] = mxl_check_tensor(L, -1);
}

/* Pushes gradient i. It belongs to the current scope, unless it is a tensor of the script: the gradient of the root. */
static void push_gradient(lua_State *L, request *r, int i)
{
    mx_tensor *t = r->grads[i];
    mx_scope *scope = mx_scope_current();
    bool given = r->roots[0].grad == t;
    r->grads[i] = NULL;
    if (!t) {
        lua_pushnil(L);
        return;
    }
    mxl_push_tensor(L, t);
    if (scope && !t->scope && !given)
        mx_scope_add(scope, t);
}

/* mx.grad(y, x or {x ...}, [{grad = 1, retain = false, record = false}]) -> the gradient of y by x: a tensor, or a
 * table with the keys of the given one. Gradients of leaves (t:grad()) do not change. Collective where backward is. */
static int grad(lua_State *L)
{
    static const char *const fields[] = {"grad", "retain", "record", NULL};
    lua_settop(L, 3);
    if (!lua_isnil(L, 3))
        luaL_checktype(L, 3, LUA_TTABLE);
    mxl_check_fields(L, 3, fields, "grad");
    bool retain = mxl_field_boolean(L, 3, "retain", false), record = mxl_field_boolean(L, 3, "record", false);
    request *r = mxl_push_box(L, sizeof *r, free_request);
    r->roots = calloc(1, sizeof *r->roots);
    if (!r->roots)
        return luaL_error(L, "grad: no memory");
    *r->roots = (mx_root){.t = mxl_check_tensor(L, 1), .seed = 1};
    if (lua_istable(L, 3)) {
        lua_getfield(L, 3, "grad");
        read_seed(L, r->roots);
    }
    read_targets(L, r);
    mxl_set_site(L); /* for the collectives in it */
    mxl_try(L, mx_tape_grad(mx_tape_current(), r->roots, 1, r->targets, r->n_targets, retain, record, r->grads));
    if (!lua_istable(L, 2)) {
        push_gradient(L, r, 0);
        return 1;
    }
    lua_createtable(L, 0, r->n_targets);
    int at = 0;
    for (lua_pushnil(L); lua_next(L, 2); lua_pop(L, 1)) {
        lua_pushvalue(L, -2);
        push_gradient(L, r, at++);
        lua_settable(L, -5);
    }
    return 1;
}

/* ---- hooks ---- */

typedef struct lua_hook {
    mx_grad_hook hook;
    int function; /* in the registry */
} lua_hook;

static void destroy_hook(mx_grad_hook *hook)
{
    mxl_forget_value(((lua_hook *)hook)->function);
    free(hook);
}

/* The function's result takes the place of the gradient; nil leaves it. */
static mx_status replace(lua_State *L, mx_tensor **gradient)
{
    if (lua_isnil(L, -1) || !*gradient)
        return MX_OK;
    mx_tensor *t = mxl_test_tensor(L, -1);
    if (!t || t->released || !mx_shape_equal(&t->shape, &(*gradient)->shape) || !mx_dtype_is_real(t->dtype))
        return mx_fail(MX_ERR_VALUE, "a hook returns nil, or a gradient like the one that it was given, %s; not %s",
                       mx_tensor_text(*gradient), t ? mx_tensor_text(t) : luaL_typename(L, -1));
    mx_dtype dtype = (*gradient)->dtype;
    mx_release(*gradient);
    *gradient = mx_retain(t);
    return mx_grad_cast(gradient, dtype);
}

static mx_status call_hook(mx_grad_hook *hook, mx_tensor **gradient)
{
    lua_State *L = mxl_running;
    int top = lua_gettop(L);
    if (!lua_checkstack(L, 8))
        return mx_fail(MX_ERR_MEMORY, "a gradient hook: no memory for Lua's stack");
    lua_rawgeti(L, LUA_REGISTRYINDEX, ((lua_hook *)hook)->function);
    mxl_push_tensor(L, mx_retain(*gradient));
    mx_status status = mxl_callback(L, 1, 1, "a gradient hook");
    if (status == MX_OK)
        status = replace(L, gradient);
    lua_settop(L, top);
    return status;
}

/* t:register_hook(function(g) ... end) -> t. Backward calls it with the gradient of t, before it computes those of what
 * t was computed from, or adds it to t:grad(). A tensor that it returns takes the gradient's place. */
static int register_hook(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    if (!t->requires_grad)
        mxl_try(L, mx_fail(MX_ERR_STATE, "register_hook: %s has no gradient; call t:requires_grad() first",
                           mx_tensor_text(t)));
    lua_hook *hook = malloc(sizeof *hook);
    if (!hook)
        return luaL_error(L, "register_hook: no memory");
    lua_pushvalue(L, 2);
    *hook = (lua_hook){{NULL, call_hook, destroy_hook}, mxl_hold_value(L)};
    mx_grad_hook **last = &t->hooks;
    while (*last)
        last = &(*last)->next;
    *last = &hook->hook;
    lua_settop(L, 1);
    return 1;
}

/* mx.stop_gradient(t) is t:detach(). */
static int stop_gradient(lua_State *L)
{
    mxl_check_tensor(L, 1);
    luaL_getmetafield(L, 1, "methods");
    lua_getfield(L, -1, "detach");
    lua_pushvalue(L, 1);
    lua_call(L, 1, 1);
    return 1;
}

int mxl_open_grad(lua_State *L)
{
    static const luaL_Reg functions[] = {{"grad", grad}, {"stop_gradient", stop_gradient}, {NULL, NULL}};
    static const luaL_Reg methods[] = {{"register_hook", register_hook}, {NULL, NULL}};
    luaL_getmetatable(L, MXL_TENSOR);
    lua_getfield(L, -1, "methods");
    luaL_setfuncs(L, methods, 0);
    lua_pop(L, 2);
    luaL_newlib(L, functions);
    return 1;
}
