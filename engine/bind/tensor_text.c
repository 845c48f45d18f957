#include "bind/bind.h"
#include "bind/tensor.h"
#include "core/offload.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Prints tensors: at most EDGE entries from either end of a dimension. */

enum { EDGE = 5, MATRIX_ROWS = 60 };

static void add_value(luaL_Buffer *text, const mx_tensor *t, int64_t i)
{
    char value[32];
    double x = mxl_element(text->L, t, i);
    if (mx_dtypes[t->dtype].is_float)
        snprintf(value, sizeof value, "%11.4g", isnan(x) ? (double)NAN : x); /* without the sign of a NaN */
    else
        snprintf(value, sizeof value, " %5lld", (long long)x); /* always with a space */
    luaL_addstring(text, value);
}

static void add_row(luaL_Buffer *text, const mx_tensor *t, int64_t first, int64_t n)
{
    int64_t edge = mx_dtypes[t->dtype].is_float ? EDGE - 2 : EDGE;
    for (int64_t i = 0; i < n; i++) {
        if (n > 2 * edge && i == edge) {
            luaL_addstring(text, "   ...");
            i = n - edge;
        }
        add_value(text, t, first + i);
    }
    luaL_addchar(text, '\n');
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
    int n_dims = t->shape.n_dims;
    int64_t columns = n_dims ? t->shape.size[n_dims - 1] : 1;
    int64_t rows = columns ? mx_count(t) / columns : 0;
    int64_t in_matrix = n_dims > 1 ? t->shape.size[n_dims - 2] : 1;
    int printed = 0;
    for (int64_t r = 0; readable && r < rows; r++) {
        int64_t i = r % in_matrix;
        if (printed >= MATRIX_ROWS) {
            luaL_addstring(&text, "   ...\n");
            break;
        }
        if (n_dims > 2 && i == 0) {
            char at[64];
            snprintf(at, sizeof at, "(%lld,.,.) =\n", (long long)(r / in_matrix) + 1);
            luaL_addstring(&text, at);
        }
        if (in_matrix > 2 * EDGE && i == EDGE) {
            luaL_addstring(&text, "   ...\n");
            r += in_matrix - 2 * EDGE - 1;
            continue;
        }
        add_row(&text, t, r * columns, columns);
        printed++;
    }
    char sizes[128] = "";
    for (int d = 0; d < n_dims; d++) {
        size_t used = strlen(sizes);
        snprintf(sizes + used, sizeof sizes - used, d ? "x%lld" : " of size %lld", (long long)t->shape.size[d]);
    }
    lua_pushfstring(L, "[%s%s%s%s%s%s%s]", there ? "" : "released ", mx_dtype_name(t->dtype), " tensor",
                    n_dims ? sizes : ", a scalar", t->name ? " " : "", t->name ? t->name : "",
                    there && !readable ? ", simulated: without values" : "");
    luaL_addvalue(&text);
    luaL_pushresult(&text);
    return 1;
}
