/* Makes every operation a Lua function from its mx_op: mx.NAME(tensor, ..., {attribute = value}). */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/pointwise.h"
#include "ops/table.h"

#include <math.h>
#include <string.h>

/* The dtype of a number among the n inputs. It is that of the first tensor (other than a condition) if that is an
 * integer, or if the number comes first and so determines the result's dtype; otherwise f32. */
static mx_dtype scalar_dtype(lua_State *L, const mx_op *op, int i, int n)
{
    int first = op->inputs[0] && strcmp(op->inputs[0], "cond") == 0 ? 2 : 1;
    for (int k = first; k <= n; k++) {
        const mx_tensor *t = mxl_test_tensor(L, k);
        if (t)
            return (i == 1 && !(op->flags & MX_OP_LIKE_SECOND)) || !mx_dtype_computes(t->dtype) ? t->dtype : MX_F32;
    }
    return MX_F32;
}

static mx_tensor *scalar(lua_State *L, const mx_op *op, int i, mx_dtype dtype)
{
    mx_tensor *t = NULL;
    mxl_try(L, mx_tensor_new(dtype, &(mx_shape){0}, &t));
    if (!mxl_set_element(L, t, 0, i)) {
        mx_release(t);
        mxl_try(L, mx_want_number(op->name, "", dtype, lua_tonumber(L, i)));
    }
    mxl_push_tensor(L, t);
    lua_replace(L, i);
    return t;
}

/* Makes comparisons of integers with any number exact: replaces the comparison by an equivalent one with a value of the
 * integer dtype, which it puts at stack index i; if there is none, by one with the lowest value, which is never less.
 */
static const mx_op *compare_exactly(lua_State *L, const mx_op *op, int i, mx_dtype dtype)
{
    static const mx_op *const mirrored[][2] = {{&mx_op_eq, &mx_op_eq}, {&mx_op_ne, &mx_op_ne}, {&mx_op_lt, &mx_op_gt},
                                               {&mx_op_le, &mx_op_ge}, {&mx_op_gt, &mx_op_lt}, {&mx_op_ge, &mx_op_le}};
    int64_t lowest = mx_dtypes[dtype].lowest, highest = mx_dtypes[dtype].highest;
    double x = lua_tonumber(L, i), low = (double)lowest, high = (double)highest;
    for (int k = 0; i == 1 && k < 6; k++) /* x < t is t > x */
        if (mirrored[k][0] == op) {
            op = mirrored[k][1];
            break;
        }
    int is_whole = 0;
    lua_Integer whole = lua_tointegerx(L, i, &is_whole);
    if (is_whole && whole == mx_dtype_saturate(dtype, whole))
        return op;
    bool below = x < low; /* false for NaN, for which only ne holds */
    bool above = x > high || x >= 0x1p63;
    bool always = op == &mx_op_ne || (below && (op == &mx_op_gt || op == &mx_op_ge)) ||
                  (above && (op == &mx_op_lt || op == &mx_op_le));
    bool between = !isnan(x) && !below && !above && op != &mx_op_eq && op != &mx_op_ne;
    lua_pushinteger(L, between ? (lua_Integer)ceil(x) : lowest);
    lua_replace(L, i);
    if (between) /* greater than the number means at least its ceiling */
        return op == &mx_op_gt || op == &mx_op_ge ? &mx_op_ge : &mx_op_lt;
    return always ? &mx_op_ge : &mx_op_lt;
}

static bool is_comparison(const mx_op *op)
{
    return op == &mx_op_eq || op == &mx_op_ne || op == &mx_op_lt || op == &mx_op_le || op == &mx_op_gt ||
           op == &mx_op_ge;
}

/* Reads the inputs of a call: tensors, or numbers, which become tensors. May replace a comparison *op by an equivalent
 * one.
 */
static void read_inputs(lua_State *L, const mx_op **op, int n, mx_tensor **in)
{
    for (int i = 1; i <= n; i++) {
        if (lua_isnil(L, i))
            continue;
        if (lua_type(L, i) != LUA_TNUMBER) {
            in[i - 1] = mxl_check_tensor(L, i);
            continue;
        }
        mx_dtype dtype = scalar_dtype(L, *op, i, n);
        bool exact = is_comparison(*op) && n == 2 && mx_dtype_is_integer(dtype);
        if (exact)
            *op = compare_exactly(L, *op, i, dtype);
        in[i - 1] = scalar(L, *op, i, dtype);
        if (exact && i == 1) { /* the comparison is mirrored */
            in[0] = mxl_check_tensor(L, 2);
            in[1] = mxl_check_tensor(L, 1);
            return;
        }
    }
}

/* Replaces a first argument that is a sequence of tensors by its entries. */
static void spread(lua_State *L)
{
    if (lua_type(L, 1) != LUA_TTABLE || luaL_len(L, 1) == 0)
        return;
    lua_rawgeti(L, 1, 1);
    bool tensors = mxl_test_tensor(L, -1) != NULL;
    lua_pop(L, 1);
    if (!tensors)
        return;
    int n = (int)luaL_len(L, 1);
    luaL_checkstack(L, n, "too many tensors");
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, 1, i);
        lua_insert(L, i + 1);
    }
    lua_remove(L, 1);
}

/* Copies the fields of the table at index `from` to the table on top of the stack. */
static void copy_fields(lua_State *L, int from)
{
    for (lua_pushnil(L); lua_next(L, from);) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_settable(L, -4);
    }
}

/* mx.arange(first, last, step, options or dtype): the numbers before `last`, as one table. */
static void join_range(lua_State *L)
{
    int numbers = lua_type(L, 3) == LUA_TNUMBER ? 3 : 2;
    double first = lua_tonumber(L, 1), last = lua_tonumber(L, 2), step = numbers == 3 ? lua_tonumber(L, 3) : 1;
    double n = ceil((last - first) / step);
    int rest = lua_type(L, numbers + 1);
    bool is_options = rest == LUA_TNONE || rest == LUA_TNIL || rest == LUA_TTABLE || rest == LUA_TSTRING;
    if (!(fabs(n) <= 0x1p53) || !is_options || lua_gettop(L) > numbers + 1)
        mxl_try(L, mx_fail(MX_ERR_VALUE,
                           "arange takes (n), (first, last) or (first, last, step), step not 0, and then options or a "
                           "dtype; got %.14g, %.14g, %.14g",
                           first, last, step));
    lua_newtable(L);
    if (lua_istable(L, numbers + 1)) {
        copy_fields(L, numbers + 1);
    } else if (lua_type(L, numbers + 1) == LUA_TSTRING) {
        lua_pushvalue(L, numbers + 1);
        lua_setfield(L, -2, "dtype");
    }
    lua_pushinteger(L, n > 0 ? (lua_Integer)n : 0);
    lua_setfield(L, -2, "n");
    lua_pushnumber(L, first);
    lua_setfield(L, -2, "start");
    lua_pushnumber(L, step);
    lua_setfield(L, -2, "step");
    lua_replace(L, 1);
    lua_settop(L, 1);
}

/* For operations without inputs: numbers before the options. mx.randn(2, 3) is mx.randn{2, 3}, mx.arange(6) is
 * mx.arange{n = 6}. */
static void join_numbers(lua_State *L, const mx_op *op)
{
    const mx_attr *first = op->attrs;
    if (lua_type(L, 1) != LUA_TNUMBER || !first || !first->name || op == &mx_op_full)
        return;
    if (op == &mx_op_arange && lua_type(L, 2) == LUA_TNUMBER) {
        join_range(L);
    } else if (first->kind == MX_ATTR_SHAPE) {
        mxl_join_sizes(L);
    } else if (first->kind == MX_ATTR_INT && lua_gettop(L) <= 2) {
        lua_newtable(L);
        if (lua_istable(L, 2)) {
            copy_fields(L, 2);
        } else if (!lua_isnil(L, 2) && lua_gettop(L) > 2) {
            lua_pushvalue(L, 2);
            lua_setfield(L, -2, "dtype");
        }
        lua_pushvalue(L, 1);
        lua_setfield(L, -2, first->name);
        lua_replace(L, 1);
        lua_settop(L, 1);
    }
}

/* For operations without inputs: mx.randn({2, 3}, {std = 0.1}), mx.randn({2, 3}, "bf16") and mx.full({2, 3}, 7, "i32")
 * become one table. */
static void join_shape(lua_State *L, const mx_op *op)
{
    join_numbers(L, op);
    int top = lua_gettop(L);
    if (top < 2 || !lua_istable(L, 1))
        return;
    mxl_check_list(L, 1, "a shape");
    if (top > 3 || (top == 3 && lua_istable(L, 2)))
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s takes a shape and options, or a shape, a value and a dtype", op->name));
    lua_newtable(L);
    if (lua_istable(L, 2)) {
        copy_fields(L, 2);
    } else {
        lua_pushvalue(L, 2);
        lua_setfield(L, -2, lua_type(L, 2) == LUA_TSTRING ? "dtype" : "value");
    }
    if (top > 2) {
        lua_pushvalue(L, 3);
        lua_setfield(L, -2, "dtype");
    }
    lua_pushvalue(L, 1);
    lua_setfield(L, -2, "shape");
    lua_replace(L, 1);
    lua_settop(L, 1);
}

/* For operations on one tensor that have a list and no other option: t:reshape(2, -1) is t:reshape{2, -1}. */
static void join_list(lua_State *L, const mx_op *op)
{
    int top = lua_gettop(L);
    if (!op->inputs[0] || op->inputs[1] || !op->attrs || mxl_listed_attr(op) != op->attrs || op->attrs[1].name)
        return;
    for (int i = 2; i <= top; i++)
        if (lua_type(L, i) != LUA_TNUMBER)
            return;
    if (top < 2)
        return;
    lua_createtable(L, top - 1, 0);
    for (int i = 2; i <= top; i++) {
        lua_pushvalue(L, i);
        lua_rawseti(L, -2, i - 1);
    }
    lua_replace(L, 2);
    lua_settop(L, 2);
}

static bool is_empty(lua_State *L, int table)
{
    lua_pushnil(L);
    bool empty = lua_next(L, table) == 0;
    if (!empty)
        lua_pop(L, 2);
    return empty;
}

/* Pushes arguments from `first` on as the first options: "dim1 = 1, dim2 = 2". */
static const char *push_named(lua_State *L, const mx_op *op, int first, int n)
{
    lua_pushfstring(L, "%s = ...", op->attrs->name);
    for (int i = first; i <= n && op->attrs[i - first].name; i++) {
        if (lua_type(L, i) != LUA_TNUMBER && lua_type(L, i) != LUA_TBOOLEAN)
            break;
        const char *before = i > first ? lua_pushfstring(L, "%s, ", lua_tostring(L, -1)) : "";
        lua_pushfstring(L, "%s%s = %s", before, op->attrs[i - first].name, luaL_tolstring(L, i, NULL));
    }
    return lua_tostring(L, -1);
}

/* Refuses an empty list of tensors, and options without a name: values that are not tensors, or one number too many. */
static void check_input_kinds(lua_State *L, const mx_op *op, int n)
{
    bool variadic; /* optional inputs are no numbers: these are options without their names */
    int numbers = mx_op_inputs(op, &variadic);
    while (numbers > 0 && strchr(op->inputs[numbers - 1], '?'))
        numbers--;
    for (int i = 1; i <= n; i++) {
        int type = lua_type(L, i);
        bool is_input = type == LUA_TNIL || type == LUA_TUSERDATA || (type == LUA_TNUMBER && !variadic && i <= numbers);
        if (is_input)
            continue;
        if (variadic && type == LUA_TTABLE && is_empty(L, i))
            mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: the list of tensors is empty", op->name));
        const char *given = luaL_tolstring(L, i, NULL);
        if (!op->attrs || !op->attrs->name) {
            mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: argument %d, %s, is no tensor", op->name, i, given));
            continue; /* not reached */
        }
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: argument %d, %s, is no tensor; options are given by name, as in {%s}: %s",
                           op->name, i, given, push_named(L, op, i, n), mxl_push_attr_names(L, op)));
    }
}

/* Optional inputs that are given by name among the options. Returns the number of inputs. */
static int read_named_inputs(lua_State *L, const mx_op *op, int table, int n_in, mx_tensor **in)
{
    char name[32];
    int n = n_in;
    for (int i = 0; table && i < MX_MAX_INPUTS && op->inputs[i]; i++) {
        if (!mxl_optional_input(op, i, name))
            continue;
        if (lua_getfield(L, table, name) != LUA_TNIL) {
            if (!mxl_test_tensor(L, -1))
                mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: '%s' is %s; expected a tensor", op->name, name,
                                   luaL_tolstring(L, -1, NULL)));
            if (i < n_in && in[i])
                mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: '%s' is given twice: in its place, and by name", op->name, name));
            in[i] = mxl_test_tensor(L, -1);
            n = n > i + 1 ? n : i + 1;
        }
        lua_settop(L, table);
    }
    return n;
}

static int call_op(lua_State *L)
{
    const mx_op *op = lua_touserdata(L, lua_upvalueindex(1));
    spread(L);
    if (op->flags & MX_OP_SOURCE)
        join_shape(L, op);
    else
        join_list(L, op);
    int top = lua_gettop(L);
    while (top > 0 &&
           lua_isnil(L, top)) /* trailing nils: options or inputs that a wrapper function passes on but did not get */
        top--;
    lua_settop(L, top);
    int table = top > 0 && lua_istable(L, top) ? top : 0;
    int n_in = table ? top - 1 : top;
    mx_tensor *few[MX_MAX_INPUTS] = {NULL}, **in = few;
    if (n_in > MX_MAX_INPUTS) {
        luaL_checkstack(L, 8, "too many tensors");
        in = lua_newuserdatauv(L, (size_t)n_in * sizeof *in, 0); /* on the stack until the end */
        memset((void *)in, 0, (size_t)n_in * sizeof *in);
    }
    check_input_kinds(L, op, n_in);
    read_inputs(L, &op, n_in, in);
    n_in = read_named_inputs(L, op, table, n_in, in);
    _Alignas(16) char attr[MX_ATTR_BYTES];
    mxl_read_attrs(L, op, table, attr);
    if (op->flags & MX_OP_COLLECTIVE)
        mxl_set_site(L);
    mx_tensor *out[MX_MAX_OUTPUTS] = {NULL};
    mxl_try(L, mx_apply(op, in, n_in, (mx_attrs){attr, op->attr_bytes}, out));
    for (int i = op->n_results; i < op->n_out; i++)
        mx_release(out[i]);
    for (int i = 0; i < op->n_results; i++)
        mxl_push_tensor(L, out[i]);
    if (op->n_results == 0 && n_in > 0) /* in-place operations return their first input, so that calls can be chained */
        lua_pushvalue(L, 1);
    return op->n_results > 0 ? op->n_results : n_in > 0;
}

int mxl_open_ops(lua_State *L)
{
    lua_createtable(L, 0, 256);
    luaL_getmetatable(L, MXL_TENSOR);
    lua_getfield(L, -1, "methods");
    for (const mx_op *const *op = mx_ops; *op; op++) {
        lua_pushlightuserdata(L, (void *)*op);
        lua_pushcclosure(L, call_op, 1);
        lua_pushvalue(L, -1);
        lua_setfield(L, -5, (*op)->name);
        if (lua_getfield(L, -2, (*op)->name) == LUA_TNIL) {
            lua_pop(L, 1);
            lua_setfield(L, -2, (*op)->name);
        } else {
            lua_pop(L, 2); /* tensor.c has a method of the same name, which takes precedence */
        }
    }
    lua_pop(L, 2);
    return 1;
}
