/* Prints tensors: at most `edge` entries from either end of a dimension, and what the whole tensor is. */
#include "bind/bind.h"
#include "bind/tensor.h"
#include "core/element.h"
#include "core/offload.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MATRIX_ROWS = 60, MOST_DIGITS = 17 };

/* mx.print_options{precision = 4, edge = 5} */
static struct {
    int precision; /* significant digits of floats */
    int edge;      /* entries at either end of a dimension; floats have two fewer, to fit a screen */
} options = {4, 5};

int mxl_print_options(lua_State *L)
{
    static const char *const names[] = {"precision", "edge", NULL};
    if (!lua_isnoneornil(L, 1))
        luaL_checktype(L, 1, LUA_TTABLE);
    mxl_check_fields(L, 1, names, "print_options");
    int64_t precision = mxl_field_integer(L, 1, "precision", options.precision);
    int64_t edge = mxl_field_integer(L, 1, "edge", options.edge);
    if (precision < 1 || precision > MOST_DIGITS)
        luaL_error(L, "print_options: precision = %d is outside 1 .. %d digits", (int)precision, MOST_DIGITS);
    if (edge < 3 || edge > 10000)
        luaL_error(L, "print_options: edge = %d is outside 3 .. 10000", (int)edge);
    options.precision = (int)precision;
    options.edge = (int)edge;
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, precision);
    lua_setfield(L, -2, "precision");
    lua_pushinteger(L, edge);
    lua_setfield(L, -2, "edge");
    return 1;
}

static void add_value(luaL_Buffer *text, const mx_tensor *t, int64_t i)
{
    char value[48];
    double x = mxl_element(text->L, t, i);
    int64_t whole = 0;
    if (t->dtype == MX_I64)
        mxl_try(text->L, mx_tensor_read(t, i, 1, &whole));
    if (mx_dtypes[t->dtype].is_float) /* NaN without its sign */
        snprintf(value, sizeof value, "%*.*g", options.precision + 7, options.precision, isnan(x) ? (double)NAN : x);
    else
        snprintf(value, sizeof value, " %5lld",
                 t->dtype == MX_I64 ? (long long)whole : (long long)x); /* always with a space */
    luaL_addstring(text, value);
}

static void add_row(luaL_Buffer *text, const mx_tensor *t, int64_t first, int64_t n)
{
    int64_t edge = mx_dtypes[t->dtype].is_float ? options.edge - 2 : options.edge;
    for (int64_t i = 0; i < n; i++) {
        if (n > 2 * edge && i == edge) {
            luaL_addstring(text, "   ...");
            i = n - edge;
        }
        add_value(text, t, first + i);
    }
    luaL_addchar(text, '\n');
}

static void add_rows(luaL_Buffer *text, const mx_tensor *t)
{
    int n_dims = t->shape.n_dims, printed = 0;
    int64_t columns = n_dims ? t->shape.size[n_dims - 1] : 1;
    int64_t rows = columns ? mx_count(t) / columns : 0;
    int64_t in_matrix = n_dims > 1 ? t->shape.size[n_dims - 2] : 1;
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = r % in_matrix;
        if (printed >= MATRIX_ROWS && printed >= 2 * options.edge) {
            luaL_addstring(text, "   ...\n");
            break;
        }
        if (n_dims > 2 && i == 0) {
            char at[64];
            snprintf(at, sizeof at, "(%lld,.,.) =\n", (long long)(r / in_matrix) + 1);
            luaL_addstring(text, at);
        }
        if (in_matrix > 2 * options.edge && i == options.edge) {
            luaL_addstring(text, "   ...\n");
            r += in_matrix - 2 * options.edge - 1;
            continue;
        }
        add_row(text, t, r * columns, columns);
        printed++;
    }
}

/* Counts NaN and infinities of a float tensor, a piece at a time. */
static mx_status count_nonfinite(const mx_tensor *t, int64_t *nan, int64_t *infinite)
{
    enum { PIECE = 1024 };
    char values[PIECE * 8];
    int64_t n = mx_count(t);
    *nan = *infinite = 0;
    for (int64_t first = 0; mx_dtypes[t->dtype].is_float && first < n; first += PIECE) {
        int64_t count = n - first < PIECE ? n - first : PIECE;
        MX_TRY(mx_tensor_read(t, first, count, values));
        for (int64_t i = 0; i < count; i++) {
            double x = mx_get_number(values, i, t->dtype);
            *nan += isnan(x);
            *infinite += isinf(x) != 0;
        }
    }
    return MX_OK;
}

/* "[bf16 tensor of size 2x3 on host, 1 NaN]" */
static void add_summary(luaL_Buffer *text, const mx_tensor *t, bool there, bool readable)
{
    char sizes[160] = "", bad[80] = "";
    int64_t nan = 0, infinite = 0;
    if (readable && mx_has_values(t))
        mxl_try(text->L, count_nonfinite(t, &nan, &infinite));
    for (int d = 0; d < t->shape.n_dims; d++) {
        size_t used = strlen(sizes);
        snprintf(sizes + used, sizeof sizes - used, d ? "x%lld" : " of size %lld", (long long)t->shape.size[d]);
    }
    if (nan > 0)
        snprintf(bad, sizeof bad, ", %lld NaN", (long long)nan);
    size_t used = strlen(bad);
    if (infinite > 0)
        snprintf(bad + used, sizeof bad - used, ", %lld infinite", (long long)infinite);
    lua_pushfstring(text->L, "[%s%s tensor%s%s%s%s%s%s%s]", there ? "" : "released ", mx_dtype_name(t->dtype),
                    t->shape.n_dims ? sizes : ", a scalar", t->name ? " " : "", t->name ? t->name : "",
                    there ? " on " : "", there ? t->storage->device->name : "", bad,
                    there && !readable ? ": without values" : "");
    luaL_addvalue(text);
}

int mxl_tensor_tostring(lua_State *L)
{
    mx_tensor *t = mxl_any_tensor(L, 1);
    if (!t->released)
        mxl_try(L, mx_tensor_fetch(t));
    bool there = !t->released && t->storage, readable = there && (mx_has_values(t) || mx_count(t) == 0);
    if (readable)
        mxl_try(L, mx_tensor_wait(t, false));
    luaL_Buffer text;
    luaL_buffinit(L, &text);
    if (readable)
        add_rows(&text, t);
    add_summary(&text, t, there, readable);
    luaL_pushresult(&text);
    return 1;
}
