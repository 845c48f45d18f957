/* Attributes of operations from tables of Lua: their values, what they are where none is given, and what is refused. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *attr_kind_text(mx_attr_kind kind)
{
    static const char *const texts[] = {
        [MX_ATTR_BOOL] = "true or false",
        [MX_ATTR_INT] = "an integer, at most 2^53 in size",
        [MX_ATTR_DIM] = "a dimension",
        [MX_ATTR_DIMS] = "a dimension or a list of dimensions",
        [MX_ATTR_FLOAT] = "a number",
        [MX_ATTR_DTYPE] = "a dtype",
        [MX_ATTR_ENUM] = "a string",
        [MX_ATTR_SHAPE] = "an integer or a table of integers",
        [MX_ATTR_SEED] = "an integer",
        [MX_ATTR_SEED_IF] = "an integer",
        [MX_ATTR_AXES] = "an axis of the mesh or a list of axes",
    };
    return texts[kind];
}

static _Noreturn void bad_attr(lua_State *L, const mx_op *op, const mx_attr *attr)
{
    mx_fail(MX_ERR_VALUE, "%s: attribute '%s' is %s; expected %s", op->name, attr->name, luaL_tolstring(L, -1, NULL),
            attr_kind_text(attr->kind));
    mxl_try(L, MX_ERR_VALUE);
    abort(); /* not reached */
}

static int choice_index(lua_State *L, const mx_op *op, const mx_attr *attr)
{
    if (lua_type(L, -1) != LUA_TSTRING)
        bad_attr(L, op, attr);
    const char *given = lua_tostring(L, -1);
    char all[256] = "";
    for (int i = 0; attr->choices[i]; i++) {
        if (strcmp(attr->choices[i], given) == 0)
            return i;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, used ? ", %s" : "%s", attr->choices[i]);
    }
    mx_fail(MX_ERR_VALUE, "%s: attribute '%s' is '%s'; expected one of: %s", op->name, attr->name, given, all);
    mxl_try(L, MX_ERR_VALUE);
    return 0;
}

/* Integers that operations may add and subtract without overflow. */
static bool is_small(int64_t value) { return value >= -(1LL << 53) && value <= 1LL << 53; }

/* A dimension, or a list of them, on top of the stack. */
static bool read_dims(lua_State *L, mx_dims *dims)
{
    bool list = lua_istable(L, -1);
    lua_Integer n = list ? luaL_len(L, -1) : 1;
    for (lua_Integer i = 1; i <= n && n <= MX_MAX_DIMS; i++) {
        int good = 1;
        if (list)
            lua_rawgeti(L, -1, i);
        int64_t dim = lua_tointegerx(L, -1, &good);
        lua_pop(L, list ? 1 : 0);
        if (!good || dim == 0 || dim < -MX_MAX_DIMS || dim > MX_MAX_DIMS)
            return false;
        dims->dim[i - 1] = (int)(dim > 0 ? dim - 1 : dim);
    }
    dims->n = (int)n;
    return n > 0 && n <= MX_MAX_DIMS;
}

/* Stores the value on top of the stack. */
static void set_attr(lua_State *L, const mx_op *op, const mx_attr *attr, char *block)
{
    void *to = block + attr->offset;
    int good = 1;
    switch (attr->kind) {
    case MX_ATTR_BOOL:
        good = lua_isboolean(L, -1);
        *(bool *)to = lua_toboolean(L, -1);
        break;
    case MX_ATTR_INT:
        *(int64_t *)to = lua_tointegerx(L, -1, &good);
        good = good && is_small(*(int64_t *)to);
        break;
    case MX_ATTR_SEED:
    case MX_ATTR_SEED_IF:
        *(mx_seed *)to = (mx_seed){.key = lua_tointegerx(L, -1, &good)};
        break;
    case MX_ATTR_DIM: {
        int64_t dim = lua_tointegerx(L, -1, &good);
        good = good && dim != 0 && is_small(dim);
        *(int64_t *)to = dim > 0 ? dim - 1 : dim;
        break;
    }
    case MX_ATTR_DIMS:
        good = read_dims(L, to);
        break;
    case MX_ATTR_FLOAT:
        *(double *)to = lua_tonumber(L, -1);
        good = lua_type(L, -1) == LUA_TNUMBER;
        break;
    case MX_ATTR_DTYPE: {
        mx_dtype dtype = MX_F32;
        good = lua_type(L, -1) == LUA_TSTRING && mx_dtype_parse(lua_tostring(L, -1), &dtype);
        *(int *)to = (int)dtype;
        break;
    }
    case MX_ATTR_ENUM:
        *(int *)to = choice_index(L, op, attr);
        break;
    case MX_ATTR_SHAPE:
        if (lua_type(L, -1) == LUA_TSTRING && attr->choices) {
            *(mx_shape *)to = (mx_shape){.n_dims = -1 - choice_index(L, op, attr)};
            break;
        }
        if (lua_type(L, -1) == LUA_TNUMBER && !isnan(attr->standard)) { /* one for all dimensions */
            *(mx_shape *)to = (mx_shape){1, {lua_tointegerx(L, -1, &good)}};
            good = good && is_small(((const mx_shape *)to)->size[0]);
            break;
        }
        good = lua_istable(L, -1);
        if (good) { /* a list inside a table of options, which has been checked */
            lua_pushfstring(L, "%s: attribute '%s'", op->name, attr->name);
            mxl_check_shape(L, -2, lua_tostring(L, -1), to);
            lua_pop(L, 1);
        }
        break;
    case MX_ATTR_AXES:
        good = lua_type(L, -1) == LUA_TSTRING || lua_istable(L, -1);
        if (good)
            *(uint32_t *)to = mxl_check_axes(L, -1);
        break;
    }
    if (!good)
        bad_attr(L, op, attr);
}

static void set_standard(const mx_attr *attr, char *block)
{
    void *to = block + attr->offset;
    switch (attr->kind) {
    case MX_ATTR_BOOL:
        *(bool *)to = attr->standard != 0;
        break;
    case MX_ATTR_INT:
    case MX_ATTR_DIM:
        *(int64_t *)to = (int64_t)attr->standard;
        break;
    case MX_ATTR_FLOAT:
        *(double *)to = attr->standard;
        break;
    case MX_ATTR_DTYPE:
    case MX_ATTR_ENUM:
        *(int *)to = (int)attr->standard;
        break;
    case MX_ATTR_SHAPE:
        *(mx_shape *)to = (mx_shape){0};
        break;
    case MX_ATTR_DIMS:
        *(mx_dims *)to = (mx_dims){0};
        break;
    case MX_ATTR_SEED:
        *(mx_seed *)to = mxl_draw_seed();
        break;
    case MX_ATTR_SEED_IF:
        *(mx_seed *)to = *(const double *)(const void *)(block + attr[-1].offset) > 0 ? mxl_draw_seed() : (mx_seed){0};
        break;
    case MX_ATTR_AXES:
        *(uint32_t *)to = 0;
        break;
    }
}

const mx_attr *mxl_listed_attr(const mx_op *op)
{
    for (const mx_attr *attr = op->attrs; attr && attr->name; attr++)
        if (attr->kind == MX_ATTR_SHAPE)
            return attr;
    return NULL;
}

const char *mxl_push_attr_names(lua_State *L, const mx_op *op)
{
    lua_pushliteral(L, "");
    for (const mx_attr *attr = op->attrs; attr && attr->name; attr++) {
        lua_pushfstring(L, attr == op->attrs ? "%s" : ", %s", attr->name);
        lua_concat(L, 2);
    }
    return lua_tostring(L, -1);
}

const char *mxl_optional_input(const mx_op *op, int i, char name[32])
{
    const char *mark = strchr(op->inputs[i], '?');
    if (!mark)
        return NULL;
    snprintf(name, 32, "%.*s", (int)(mark - op->inputs[i]), op->inputs[i]);
    return name;
}

/* Checks the keys of the table of options, among which optional inputs may be. Keys that would be ignored are refused.
 */
static void check_attr_names(lua_State *L, const mx_op *op, int table)
{
    const char *names[32] = {NULL};
    char inputs[MX_MAX_INPUTS][32];
    int n = 0;
    bool offset = false, seed = true;
    for (const mx_attr *attr = op->attrs; attr && attr->name && n < 31; attr++) {
        names[n++] = attr->name;
        bool given = lua_getfield(L, table, attr->name) != LUA_TNIL;
        lua_pop(L, 1);
        if (attr->kind == MX_ATTR_SEED)
            seed = given;
        offset = offset || (given && strcmp(attr->name, "offset") == 0);
        if (given && attr == mxl_listed_attr(op) && luaL_len(L, table) > 0)
            mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: '%s' is given twice: by name, and as a list", op->name, attr->name));
    }
    for (int i = 0; i < MX_MAX_INPUTS && op->inputs[i]; i++)
        if (n < 31 && mxl_optional_input(op, i, inputs[i]))
            names[n++] = inputs[i];
    mxl_check_fields(L, table, names, op->name);
    if (luaL_len(L, table) > 0 && !mxl_listed_attr(op))
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: options are given by name: %s", op->name,
                           n ? mxl_push_attr_names(L, op) : "there are none"));
    if (offset && !seed)
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: 'offset' chooses a stream of a seed, and no seed is given", op->name));
}

void mxl_read_attrs(lua_State *L, const mx_op *op, int table, void *to)
{
    char *block = to;
    memset(block, 0, op->attr_bytes);
    bool is_sequence = table && luaL_len(L, table) > 0;
    if (table)
        check_attr_names(L, op, table);
    for (const mx_attr *attr = op->attrs; attr && attr->name; attr++) {
        int kind = LUA_TNIL;
        if (is_sequence && attr == mxl_listed_attr(op)) {
            lua_pushvalue(L, table);
            kind = LUA_TTABLE;
        } else if (table) {
            kind = lua_getfield(L, table, attr->name);
            if (kind == LUA_TTABLE && attr->kind == MX_ATTR_SHAPE)
                mxl_check_list(L, -1, attr->name);
        } else {
            lua_pushnil(L);
        }
        bool must_be_given = isnan(attr->standard);
        if (kind != LUA_TNIL) {
            set_attr(L, op, attr, block);
        } else if (must_be_given && attr->kind != MX_ATTR_SEED) {
            mx_fail(MX_ERR_VALUE, "%s: attribute '%s' must be given: %s", op->name, attr->name, attr->doc);
            mxl_try(L, MX_ERR_VALUE);
        } else {
            set_standard(attr, block);
        }
        lua_pop(L, 1);
    }
}
