/* Cuts a tensor into parts along a dimension: mx.split, mx.chunk, and the methods of the same names. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "ops/compose.h"

/* Checks that index 2 is a table of options. */
static void want_options(lua_State *L, const char *example)
{
    if (!lua_istable(L, 2))
        mxl_try(L, mx_fail(MX_ERR_VALUE, "options are given by name, as in %s", example));
}

/* The option `dim` of the table at index 2, from 0; the first if it is not given. */
static int dim_of(lua_State *L, const char *what, const mx_tensor *t)
{
    int n = t->shape.n_dims;
    int64_t dim = mxl_field_integer(L, 2, "dim", 1);
    if (dim == 0 || dim < -n || dim > n)
        mxl_try(L, mx_fail(MX_ERR_VALUE, "%s: dim = %lld is none of the %d dimensions of %s", what, (long long)dim, n,
                           mx_tensor_text(t)));
    return (int)(dim < 0 ? dim + n : dim - 1);
}

/* Pushes `length` elements along `dim` and returns where the next ones begin. */
static int64_t push_part(lua_State *L, mx_tensor *t, int dim, int64_t first, int64_t length)
{
    mx_tensor *part = NULL;
    luaL_checkstack(L, 1, "too many parts");
    mxl_try(L, mx_apply_narrow(t, dim, first, length, &part));
    mxl_push_tensor(L, part);
    return first + length;
}

/* Pushes parts of `size` elements, the last one of what is left; returns their number. */
static int push_equal(lua_State *L, mx_tensor *t, int dim, int64_t size)
{
    int64_t n = t->shape.size[dim];
    int parts = 0;
    for (int64_t first = 0; first < n || parts == 0; parts++)
        first = push_part(L, t, dim, first, n - first < size ? n - first : size);
    return parts;
}

/* split(t, {size = n, dim = 1}) -> parts of n elements, the last one shorter; split(t, {sizes = {a, b, ...}}) -> parts
 * of these sizes */
static int split(lua_State *L)
{
    static const char *const names[] = {"size", "sizes", "dim", NULL};
    mx_tensor *t = mxl_check_tensor(L, 1);
    want_options(L, "mx.split(t, { size = 2, dim = 1 })");
    mxl_check_fields(L, 2, names, "split");
    int dim = dim_of(L, "split", t);
    bool listed = lua_getfield(L, 2, "sizes") != LUA_TNIL;
    int64_t size = mxl_field_integer(L, 2, "size", 0), n = t->shape.size[dim];
    if (listed == (size != 0) || size < 0)
        mxl_try(L,
                mx_fail(MX_ERR_VALUE, "split: expected either size, the elements of each part (1 or more), or sizes, "
                                      "a list of them"));
    if (!listed)
        return push_equal(L, t, dim, size);
    mxl_check_list(L, 3, "split: sizes");
    int parts = (int)luaL_len(L, 3);
    int64_t sum = 0;
    bool good = true;
    for (int i = 1; i <= parts; i++) {
        int whole = 1;
        lua_rawgeti(L, 3, i);
        int64_t length = lua_tointegerx(L, -1, &whole);
        lua_pop(L, 1);
        good = good && whole && length >= 0 && length <= n - sum;
        sum += good ? length : 0;
    }
    if (!good || sum != n)
        mxl_try(L,
                mx_fail(MX_ERR_VALUE, "split: sizes must be whole numbers whose sum is %lld, the size of dim %d of %s",
                        (long long)n, dim + 1, mx_tensor_text(t)));
    int64_t first = 0;
    for (int i = 1; i <= parts; i++) {
        lua_rawgeti(L, 3, i);
        int64_t length = lua_tointeger(L, -1);
        lua_pop(L, 1);
        first = push_part(L, t, dim, first, length);
    }
    return parts;
}

/* chunk(t, {n = parts, dim = 1}) -> at most n parts of one size, the last one shorter */
static int chunk(lua_State *L)
{
    static const char *const names[] = {"n", "dim", NULL};
    mx_tensor *t = mxl_check_tensor(L, 1);
    want_options(L, "mx.chunk(t, { n = 2, dim = 1 })");
    mxl_check_fields(L, 2, names, "chunk");
    int dim = dim_of(L, "chunk", t);
    int64_t n = mxl_field_integer(L, 2, "n", 0);
    if (n < 1)
        mxl_try(L, mx_fail(MX_ERR_VALUE, "chunk: n must be given, the number of parts, 1 or more"));
    int64_t size = t->shape.size[dim] / n + (t->shape.size[dim] % n > 0);
    return push_equal(L, t, dim, size > 0 ? size : 1);
}

const luaL_Reg mxl_tensor_parts[] = {{"split", split}, {"chunk", chunk}, {NULL, NULL}};
