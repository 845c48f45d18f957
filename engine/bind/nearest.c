/* Suggests the name that is nearest to one that does not exist: for methods, options, operations and fields. */
#include "bind/bind.h"

#include <stdlib.h>
#include <string.h>

/* The number of edits (insert, delete, replace, swap two neighbours) that turn a into b; long names count as far away.
 */
static int edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 96 };
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > LONGEST || m > LONGEST)
        return LONGEST;
    int rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= m; j++)
        last[j] = j;
    for (int i = 1; i <= n; i++) {
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            row[j] = swapped && before[j - 2] + 1 < best ? before[j - 2] + 1 : best;
        }
        int *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[m];
}

/* Names in other libraries, and here. A name may be called differently in different places. */
static const char *const words[][2] = {
    {"t", "transpose"},
    {"swapaxes", "transpose"},
    {"dim0", "dim1"},
    {"shape", "size"},
    {"ndim", "dim"},
    {"axis", "dim"},
    {"dims", "dim"},
    {"axes", "dim"},
    {"keepdims", "keepdim"},
    {"type", "dtype"},
    {"astype", "to"},
    {"type_as", "to"},
    {"float", "to"},
    {"int", "to"},
    {"long", "to"},
    {"bool", "to"},
    {"half", "to"},
    {"cuda", "to"},
    {"numpy", "totable"},
    {"contiguous", "clone"},
    {"nelement", "numel"},
    {"element_size", "bytes"},
    {"cat", "concat"},
    {"concatenate", "concat"},
    {"mm", "matmul"},
    {"bmm", "matmul"},
    {"mv", "matmul"},
    {"dot", "matmul"},
    {"amax", "max"},
    {"amin", "min"},
    {"multiply", "mul"},
    {"divide", "div"},
    {"subtract", "sub"},
    {"zero_", "fill"},
    {"fill_", "fill"},
    {"copy_", "copy"},
    {"requires_grad_", "requires_grad"},
    {"slice", "narrow"},
    {"take", "index_select"},
    {"repeat", "tile"},
    {"broadcast_to", "expand"},
    {"unbind", "split"},
    {"num_classes", "classes"},
    {"largest", "smallest"},
    {"randperm", "permutation"},
    {"stride", "step"},
    {"kernel_size", "size"},
    {"attn_mask", "bias"},
    {"unbiased", "correction"},
    {"ddof", "correction"},
    {"num_heads", "heads"},
    {"scale_factor", "scale"},
    {"slope", "negative_slope"},
    {"batch_size", "batch"},
    {"length", "n"},
    {"size", "n"},
    {"num", "n"},
    {"generator", "seed"},
    {"random_seed", "seed"},
    {"epsilon", "eps"},
    {"lr", "learning_rate"},
    {"learning_rate", "lr"},
    {"betas", "beta1"},
    {"wd", "weight_decay"},
    {"max_norm", "clip"},
    {"grad_clip", "clip"},
    {"max_grad_norm", "clip"},
    {"transpose_a", "trans_a"},
    {"transpose_b", "trans_b"},
    {"p", "rate"},
    {"is_causal", "causal"},
    {"space", "grid"},
    {"search_space", "grid"},
    {"save_for_backward", "save"},
};

static bool is_other_word(const char *given, const char *name)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i][0], given) == 0 && strcmp(words[i][1], name) == 0)
            return true;
    return false;
}

/* Keeps in *nearest the name that is nearest to `given`, at *best edits. */
static void consider(const char *given, const char *name, const char **nearest, int *best)
{
    int distance = is_other_word(given, name) ? 0 : edit_distance(given, name);
    if (distance < *best || (distance == *best && *nearest && strcmp(name, *nearest) < 0)) {
        *best = distance;
        *nearest = name;
    }
}

/* Names with more edits than this are not suggested. */
static int most_edits(const char *given)
{
    int third = (int)strlen(given) / 3;
    return third > 2 ? third : 2;
}

static _Noreturn void raise_unknown(lua_State *L, const char *what, const char *given, const char *nearest)
{
    mxl_push_where(L);
    if (nearest)
        lua_pushfstring(L, "%s '%s'; did you mean '%s'?", what, given, nearest);
    else
        lua_pushfstring(L, "%s '%s'", what, given);
    lua_concat(L, 2);
    lua_error(L);
    abort(); /* not reached */
}

void mxl_unknown_name(lua_State *L, const char *given, const char *const *names, const char *what)
{
    const char *nearest = NULL;
    int best = most_edits(given) + 1;
    for (int i = 0; names[i]; i++)
        consider(given, names[i], &nearest, &best);
    const char *none = lua_pushfstring(L, "%s has no option", what);
    if (nearest || !names[0])
        raise_unknown(L, none, given, nearest);
    mxl_push_where(L);
    lua_pushfstring(L, "%s '%s'; it has %s", none, given, names[0]);
    for (int i = 1; names[i]; i++) {
        lua_pushfstring(L, names[i + 1] ? ", %s" : " and %s", names[i]);
        lua_concat(L, 2);
    }
    lua_concat(L, 2);
    lua_error(L);
    abort(); /* not reached */
}

void mxl_unknown_field(lua_State *L, const char *what, const char *given, int table)
{
    const char *nearest = NULL;
    int best = most_edits(given) + 1;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1))
        if (lua_type(L, -2) == LUA_TSTRING)
            consider(given, lua_tostring(L, -2), &nearest, &best);
    raise_unknown(L, what, given, nearest);
}

/* nearest(word, {name, ...} [, edits]) -> the nearest name, or nil if none is near. edits: how many letters may differ;
 * by default a third of the word. */
static int nearest_name(lua_State *L)
{
    const char *given = luaL_checkstring(L, 1), *nearest = NULL;
    luaL_checktype(L, 2, LUA_TTABLE);
    int best = (int)luaL_optinteger(L, 3, most_edits(given)) + 1;
    lua_Integer n = luaL_len(L, 2);
    luaL_checkstack(L, 2, "names");
    for (lua_Integer i = 1; i <= n; i++) {
        if (lua_rawgeti(L, 2, i) == LUA_TSTRING) /* the table keeps the string alive */
            consider(given, lua_tostring(L, -1), &nearest, &best);
        lua_pop(L, 1);
    }
    lua_pushstring(L, nearest);
    return 1;
}

int mxl_open_nearest(lua_State *L)
{
    static const luaL_Reg functions[] = {{"nearest", nearest_name}, {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
