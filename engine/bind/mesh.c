/* The mesh and communication for Lua. */
#include "mesh/mesh.h"
#include "bind/bind.h"
#include "mesh/comm.h"
#include "mesh/gather.h"
#include "mesh/reference.h"
#include "mesh/share.h"
#include "sim/device.h"
#include "tape/tape.h"
#include "transport/board.h"
#include "transport/mpi.h"

#include <stdlib.h>
#include <string.h>

static mx_axes axis_of(lua_State *L, int i)
{
    mx_axes axis = 0;
    mxl_try(L, mx_mesh_find(luaL_checkstring(L, i), &axis));
    return axis;
}

uint32_t mxl_check_axes(lua_State *L, int i)
{
    if (lua_isnoneornil(L, i))
        return 0;
    if (!lua_istable(L, i))
        return axis_of(L, i);
    mx_axes axes = 0;
    i = lua_absindex(L, i);
    for (lua_Integer k = 1; lua_rawgeti(L, i, k) != LUA_TNIL; k++) {
        axes |= axis_of(L, -1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    luaL_argcheck(L, axes != 0, i, "a list of axes has at least one name");
    return axes;
}

/* Reads the axes {{name =, ici =, dcn =}, ...} at stack index i; returns their number. */
static int check_axis_list(lua_State *L, int i, mx_axis *axes)
{
    int n = 0;
    luaL_checktype(L, i, LUA_TTABLE);
    for (; lua_rawgeti(L, i, n + 1) != LUA_TNIL; n++) {
        luaL_argcheck(L, n < MX_MAX_AXES, i, "too many axes");
        luaL_checktype(L, -1, LUA_TTABLE);
        lua_getfield(L, -1, "name");
        strncpy(axes[n].name, luaL_checkstring(L, -1), sizeof axes[n].name - 1);
        axes[n].name[sizeof axes[n].name - 1] = '\0';
        lua_pop(L, 1);
        axes[n].ici = (int)mxl_field_integer(L, -1, "ici", 1);
        axes[n].dcn = (int)mxl_field_integer(L, -1, "dcn", 1);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    if (n > 0)
        return n;
    lua_pushnil(L);
    if (lua_next(L, i) != 0)
        luaL_argerror(L, i, "axes are a list, such as {{name = 'data', ici = mx.ranks()}}");
    return 0;
}

static int check_layout(lua_State *L, mx_axis *axes)
{
    int n = check_axis_list(L, 1, axes);
    for (int a = 0; a < n; a++)
        luaL_argcheck(L, axes[a].ici > 0 && axes[a].dcn > 0, 1, "sizes of axes are at least 1");
    return n;
}

/* mx.axes_coordinates(axes, rank) -> {name = coordinate}, from 0, in the layout of these axes (mesh/mesh.h). */
static int axes_coordinates(lua_State *L)
{
    mx_axis axes[MX_MAX_AXES];
    int coordinate[MX_MAX_AXES] = {0}, n = check_layout(L, axes);
    lua_Integer rank = luaL_checkinteger(L, 2);
    luaL_argcheck(L, rank >= 0, 2, "ranks count from 0");
    mx_axes_coordinates(axes, n, rank, coordinate);
    lua_createtable(L, 0, n);
    for (int a = 0; a < n; a++) {
        lua_pushinteger(L, coordinate[a]);
        lua_setfield(L, -2, axes[a].name);
    }
    return 1;
}

/* mx.axes_rank(axes, {name = coordinate}) -> the rank there; a missing coordinate is 0. */
static int axes_rank(lua_State *L)
{
    mx_axis axes[MX_MAX_AXES];
    int coordinate[MX_MAX_AXES] = {0}, n = check_layout(L, axes);
    luaL_checktype(L, 2, LUA_TTABLE);
    for (int a = 0; a < n; a++) {
        lua_getfield(L, 2, axes[a].name);
        lua_Integer c = luaL_optinteger(L, -1, 0);
        luaL_argcheck(L, c >= 0 && c < (lua_Integer)axes[a].ici * axes[a].dcn, 2, "a coordinate is outside its axis");
        coordinate[a] = (int)c;
        lua_pop(L, 1);
    }
    lua_pushinteger(L, mx_axes_rank(axes, n, coordinate));
    return 1;
}

/* mx.mesh_define{{name =, ici =, dcn =}, ...}: sets the mesh. All ranks must call it with the same axes; not
 * collective. */
static int mesh_define(lua_State *L)
{
    mx_axis axes[MX_MAX_AXES];
    int n = check_axis_list(L, 1, axes);
    mxl_try(L, mx_sim_place_mesh(axes, n));
    mxl_try(L, mx_comm_finish());
    mx_collective_forget();
    mxl_try(L, mx_mesh_define(axes, n));
    return 0;
}

/* mx.axis_size(axes) -> number of ranks that differ from this one only in their coordinates on these axes, with itself.
 */
static int axis_size(lua_State *L)
{
    lua_pushinteger(L, mx_mesh_size(mxl_check_axes(L, 1)));
    return 1;
}

/* mx.axis_index(axes) -> index of this rank among them, from 0. */
static int axis_index(lua_State *L)
{
    lua_pushinteger(L, mx_mesh_index(mxl_check_axes(L, 1)));
    return 1;
}

/* mx.axis_ranks(axes) -> their ranks, in ascending order. */
static int axis_ranks(lua_State *L)
{
    mx_axes axes = mxl_check_axes(L, 1);
    int *ranks = lua_newuserdatauv(L, (size_t)mx_ranks() * sizeof *ranks, 0);
    int n = mx_mesh_ranks(axes, ranks);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        lua_pushinteger(L, ranks[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* mx.barrier([axes]): waits for all ranks (along the axes). Collective. */
static int barrier(lua_State *L)
{
    mx_axes axes = mxl_check_axes(L, 1);
    mxl_set_site(L);
    mxl_try(L, mx_barrier(axes));
    return 0;
}

/* mx.prefetch(x, {axis, dim, dtype}): starts the all_gather of x with these options. A later call of all_gather uses
 * its result, unless x has changed. Collective. */
static int prefetch(lua_State *L)
{
    mx_tensor *in[MX_MAX_INPUTS] = {mxl_check_tensor(L, 1)};
    mx_call call = {.op = mx_op_find("all_gather"), .n_in = 1, .n_out = 1, .in = in};
    mxl_read_attrs(L, call.op, lua_istable(L, 2) ? 2 : 0, call.attr);
    mxl_set_site(L);
    mxl_try(L, mx_collective_prefetch(&call));
    return 0;
}

/* mx.reduce_gradient(t, axes) -> t: from now on backward all-reduces the gradient of the leaf t over these axes (nil:
 * all ranks) in the background, as soon as it is complete; false ends that. Not collective, but backward then is. */
static int reduce_gradient(lua_State *L)
{
    mx_tensor *t = mxl_check_tensor(L, 1);
    luaL_argcheck(L, t->requires_grad && !t->node, 1, "a leaf that requires a gradient is expected");
    bool is_off = lua_isboolean(L, 2) && !lua_toboolean(L, 2);
    t->reduce_axes = is_off ? 0 : mxl_check_axes(L, 2);
    if (t->reduce_axes == 0 && !is_off)
        t->reduce_axes = MX_ALL_RANKS;
    lua_settop(L, 1);
    return 1;
}

/* mx.flush(): starts asynchronous collectives that wait in an open bucket. */
static int flush(lua_State *L)
{
    mxl_try(L, mx_comm_flush());
    return 0;
}

/* mx.comm_options{all_gather_combine_bytes =, reduce_scatter_combine_bytes =, all_reduce_combine_bytes =,
 * permute_decomposer_bytes =, prefetch_bytes =, prefetch_below_bytes =, prefetch_layers =, async_all_reduce =,
 * gradients_in_bf16 =, debug =, timeout_s =}: missing options stay unchanged. All ranks must call it alike; not
 * collective. */
static int comm_options(lua_State *L)
{
    static const char *const fields[] = {"all_gather_combine_bytes",
                                         "reduce_scatter_combine_bytes",
                                         "all_reduce_combine_bytes",
                                         "permute_decomposer_bytes",
                                         "prefetch_bytes",
                                         "prefetch_below_bytes",
                                         "prefetch_layers",
                                         "async_all_reduce",
                                         "gradients_in_bf16",
                                         "debug",
                                         "timeout_s",
                                         NULL};
    static const mx_exchange_kind kinds[] = {MX_ALL_GATHER, MX_REDUCE_SCATTER, MX_ALL_REDUCE};
    luaL_checktype(L, 1, LUA_TTABLE);
    mxl_check_fields(L, 1, fields, "mx.comm_options");
    mxl_try(L, mx_comm_flush());
    for (int k = 0; k < 3; k++)
        mx_comm.combine_bytes[kinds[k]] = mxl_field_integer(L, 1, fields[k], mx_comm.combine_bytes[kinds[k]]);
    mx_comm.permute_decomposer_bytes =
        mxl_field_integer(L, 1, "permute_decomposer_bytes", mx_comm.permute_decomposer_bytes);
    mx_comm.prefetch_bytes = mxl_field_integer(L, 1, "prefetch_bytes", mx_comm.prefetch_bytes);
    mx_comm.prefetch_below_bytes = mxl_field_integer(L, 1, "prefetch_below_bytes", mx_comm.prefetch_below_bytes);
    if (lua_getfield(L, 1, "prefetch_layers") != LUA_TNIL)
        mx_tape_set_prefetch(mx_tape_current(), (int)luaL_checkinteger(L, -1));
    lua_pop(L, 1);
    mx_comm.async_all_reduce = mxl_field_boolean(L, 1, "async_all_reduce", mx_comm.async_all_reduce);
    mx_comm.gradients_in_bf16 = mxl_field_boolean(L, 1, "gradients_in_bf16", mx_comm.gradients_in_bf16);
    mx_comm.debug = mxl_field_boolean(L, 1, "debug", mx_comm.debug);
    mx_board_set_timeout(mxl_field_number(L, 1, "timeout_s", mx_board_timeout()));
    return 0;
}

/* mx.comm_stats([reset = false]) -> {exposed_s, busy_s, calls, bytes} since the last reset: seconds that the script
 * waited for communication, seconds that communication took, number of exchanges, and bytes that this rank sent. */
static int comm_stats(lua_State *L)
{
    mx_comm_stats stats = mx_comm_get_stats(lua_toboolean(L, 1));
    lua_createtable(L, 0, 4);
    lua_pushnumber(L, stats.exposed_s);
    lua_setfield(L, -2, "exposed_s");
    lua_pushnumber(L, stats.busy_s);
    lua_setfield(L, -2, "busy_s");
    lua_pushinteger(L, stats.calls);
    lua_setfield(L, -2, "calls");
    lua_pushnumber(L, stats.bytes);
    lua_setfield(L, -2, "bytes");
    return 1;
}

/* mx.mpi_reference(kind, in, out, bytes): calls the MPI library's own collective, for comparison (mesh/reference.h);
 * f32 tensors. Collective. */
static int mpi_reference(lua_State *L)
{
    const char *kinds[MX_BARRIER + 1] = {NULL}; /* a barrier moves no tensor */
    for (int k = 0; k < MX_BARRIER; k++)
        kinds[k] = mx_exchange_name((mx_exchange_kind)k);
    int kind = luaL_checkoption(L, 1, NULL, kinds);
    const mx_tensor *in = mxl_check_values(L, 2, false), *out = mxl_check_values(L, 3, true);
    lua_Integer bytes = luaL_checkinteger(L, 4);
    luaL_argcheck(L, in->dtype == MX_F32 && out->dtype == MX_F32, 2, "f32 tensors are measured");
    bool in_whole = kind != MX_ALL_GATHER, out_whole = kind != MX_REDUCE_SCATTER;
    luaL_argcheck(L, bytes >= 0 && mx_bytes(in) >= (in_whole ? bytes : bytes / mx_ranks()), 4,
                  "more bytes than `in` has");
    luaL_argcheck(L, mx_bytes(out) >= (out_whole ? bytes : bytes / mx_ranks()), 4, "more bytes than `out` has");
    mx_map from, to = {0};
    mxl_try(L, mx_tensor_map(in, 0, mx_count(in), MX_MAP_READ, &from));
    mx_status status = mx_tensor_map(out, 0, mx_count(out), MX_MAP_UPDATE, &to);
    if (status == MX_OK)
        status = mx_reference_run((mx_exchange_kind)kind, from.data, to.data, bytes);
    mx_tensor_unmap(&to);
    mx_tensor_unmap(&from);
    mxl_try(L, status);
    return 0;
}

int mxl_open_mesh(lua_State *L)
{
    static const luaL_Reg functions[] = {{"mesh_define", mesh_define},
                                         {"axes_coordinates", axes_coordinates},
                                         {"axes_rank", axes_rank},
                                         {"axis_size", axis_size},
                                         {"axis_index", axis_index},
                                         {"axis_ranks", axis_ranks},
                                         {"barrier", barrier},
                                         {"prefetch", prefetch},
                                         {"flush", flush},
                                         {"comm_options", comm_options},
                                         {"comm_stats", comm_stats},
                                         {"mpi_reference", mpi_reference},
                                         {"reduce_gradient", reduce_gradient},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
