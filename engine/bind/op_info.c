/* What scripts are told of operations: their names, and the inputs and options of one. */
#include "bind/bind.h"
#include "ops/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const mx_op *check_op(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    const mx_op *op = mx_op_find(name);
    if (op)
        return op;
    lua_createtable(L, 0, 128);
    for (const mx_op *const *known = mx_ops; *known; known++) {
        lua_pushboolean(L, 1);
        lua_setfield(L, -2, (*known)->name);
    }
    mxl_unknown_field(L, "no operation is called", name, lua_gettop(L));
    return NULL; /* not reached */
}

/* The value of an attribute that is not given, as text. */
static const char *push_standard(lua_State *L, const mx_attr *attr)
{
    if (isnan(attr->standard))
        return lua_pushstring(L, attr->kind == MX_ATTR_SEED ? "optional" : "required");
    switch (attr->kind) {
    case MX_ATTR_BOOL:
        return lua_pushstring(L, attr->standard != 0 ? "true" : "false");
    case MX_ATTR_ENUM:
        return lua_pushstring(L, attr->choices[(int)attr->standard]);
    case MX_ATTR_INT:
    case MX_ATTR_FLOAT: {
        char number[32];
        snprintf(number, sizeof number, "%g", attr->standard);
        return lua_pushstring(L, number);
    }
    default:
        return lua_pushliteral(L, "optional");
    }
}

/* {{name =, standard =, doc =}, ...} */
static void push_options(lua_State *L, const mx_op *op)
{
    lua_newtable(L);
    for (const mx_attr *attr = op->attrs; attr && attr->name; attr++) {
        lua_newtable(L);
        lua_pushstring(L, attr->name);
        lua_setfield(L, -2, "name");
        push_standard(L, attr);
        lua_setfield(L, -2, "standard");
        lua_pushstring(L, attr->doc);
        lua_setfield(L, -2, "doc");
        lua_rawseti(L, -2, attr - op->attrs + 1);
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const mx_op *const *)a)->name, (*(const mx_op *const *)b)->name);
}

/* The names, in lines that fit a screen. */
static int ops_to_string(lua_State *L)
{
    enum { COLUMNS = 100 };
    luaL_Buffer text;
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_buffinit(L, &text);
    size_t column = 0;
    lua_Integer n = luaL_len(L, 1);
    for (lua_Integer i = 1; i <= n; i++) {
        size_t bytes;
        lua_rawgeti(L, 1, i);
        const char *name = lua_tolstring(L, -1, &bytes);
        lua_pop(L, 1); /* the table keeps it; the buffer must be on the top of the stack when it grows */
        if (column > 0)
            luaL_addchar(&text, column + 1 + bytes > COLUMNS ? '\n' : ' ');
        column = column > 0 && column + 1 + bytes <= COLUMNS ? column + 1 + bytes : bytes;
        luaL_addlstring(&text, name, bytes);
    }
    luaL_pushresult(&text);
    return 1;
}

/* ops() -> the names of all operations, sorted; can be printed. */
static int list_ops(lua_State *L)
{
    int n = 0;
    while (mx_ops[n])
        n++;
    const mx_op **sorted = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof(mx_op *), 0);
    memcpy(sorted, mx_ops, (size_t)n * sizeof(mx_op *));
    qsort(sorted, (size_t)n, sizeof *sorted, compare_names);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushstring(L, sorted[i]->name);
        lua_rawseti(L, -2, i + 1);
    }
    if (luaL_newmetatable(L, "mx.ops")) {
        lua_pushcfunction(L, ops_to_string);
        lua_setfield(L, -2, "__tostring");
    }
    lua_setmetatable(L, -2);
    return 1;
}

/* op_info(name) -> {doc =, inputs = {...}, options = {{name =, standard =, doc =}, ...}, results = n,
 * differentiable = bool, mutates = bool} */
static int op_info(lua_State *L)
{
    const mx_op *op = check_op(L);
    lua_newtable(L);
    lua_newtable(L);
    for (int i = 0; op->inputs[i]; i++) {
        lua_pushstring(L, op->inputs[i]);
        lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "inputs");
    push_options(L, op);
    lua_setfield(L, -2, "options");
    lua_pushstring(L, op->doc);
    lua_setfield(L, -2, "doc");
    lua_pushinteger(L, op->n_results);
    lua_setfield(L, -2, "results");
    lua_pushboolean(L, op->vjp != NULL);
    lua_setfield(L, -2, "differentiable");
    lua_pushboolean(L, (op->flags & MX_OP_MUTATES) != 0);
    lua_setfield(L, -2, "mutates");
    return 1;
}

int mxl_open_op_info(lua_State *L)
{
    static const luaL_Reg functions[] = {{"ops", list_ops}, {"op_info", op_info}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
