/* The simulated pod for Lua; lua/mx/sim/init.lua reads hardware files and calls these. */
#include "bind/bind.h"
#include "sim/device.h"

#include <string.h>

static double positive(lua_State *L, int i, const char *name)
{
    double value = mxl_field_number(L, i, name, -1);
    if (!(value > 0))
        luaL_error(L, "sim_start: '%s' must be a number above 0", name);
    return value;
}

static double share(lua_State *L, int i, const char *name)
{
    double value = mxl_field_number(L, i, name, 1);
    if (!(value > 0 && value <= 1))
        luaL_error(L, "sim_start: '%s' = %f must be above 0 and at most 1", name, value);
    return value;
}

static mx_blocks blocks(lua_State *L, int i, const char *q, const char *kv)
{
    return (mx_blocks){(int64_t)positive(L, i, q), (int64_t)positive(L, i, kv)};
}

/* Reads chip.attention. */
static mx_attention_kernel read_attention(lua_State *L, int i)
{
    lua_getfield(L, i, "attention");
    luaL_checktype(L, -1, LUA_TTABLE);
    i = lua_gettop(L);
    mx_attention_kernel kernel = {.scores_in_memory = mxl_field_boolean(L, i, "scores_in_memory", false),
                                  .fused_backward = mxl_field_boolean(L, i, "fused_backward", false),
                                  .document = (int64_t)mxl_field_number(L, i, "document", 0),
                                  .skips_documents = mxl_field_boolean(L, i, "skips_documents", false),
                                  .fixed_maximum = mxl_field_boolean(L, i, "fixed_maximum", false),
                                  .forward = blocks(L, i, "block_q", "block_kv"),
                                  .dkv = blocks(L, i, "block_q_dkv", "block_kv_dkv"),
                                  .dq = blocks(L, i, "block_q_dq", "block_kv_dq")};
    lua_pop(L, 1);
    return kernel;
}

static void read_chip(lua_State *L, int i, mx_sim_chip *chip)
{
    *chip = (mx_sim_chip){.tile = (int)positive(L, i, "tile"),
                          .memory_bytes = positive(L, i, "memory_bytes"),
                          .memory_Bps = positive(L, i, "memory_Bps"),
                          .host_Bps = positive(L, i, "host_Bps"),
                          .launch_s = mxl_field_number(L, i, "launch_s", 0),
                          .fuses = mxl_field_boolean(L, i, "fuses", true),
                          .library_products = mxl_field_boolean(L, i, "library_products", false),
                          .collective_share = mxl_field_number(L, i, "collective_share", 0),
                          .matrix_efficiency = share(L, i, "matrix_efficiency"),
                          .attention_efficiency = share(L, i, "attention_efficiency"),
                          .memory_efficiency = share(L, i, "memory_efficiency")};
    chip->offloads[MX_ALL_GATHER] = mxl_field_boolean(L, i, "offloads_all_gather", false);
    chip->offloads[MX_REDUCE_SCATTER] = mxl_field_boolean(L, i, "offloads_reduce_scatter", false);
    chip->offloads[MX_ALL_REDUCE] = mxl_field_boolean(L, i, "offloads_all_reduce", false);
    chip->multiprocessors = (int)mxl_field_number(L, i, "multiprocessors", 0);
    if (chip->multiprocessors > 0) {
        chip->product_tile[0] = (int)positive(L, i, "product_tile_m");
        chip->product_tile[1] = (int)positive(L, i, "product_tile_n");
    }
    chip->peak_flops[MX_BF16] = positive(L, i, "bf16_flops");
    chip->peak_flops[MX_F32] = positive(L, i, "f32_flops");
    chip->peak_flops[MX_I8] = mxl_field_number(L, i, "i8_flops", 0);
    chip->peak_flops[MX_E4M3] = mxl_field_number(L, i, "f8_flops", 0);
    chip->peak_flops[MX_E4M3FNUZ] = mxl_field_number(L, i, "f8_fnuz_flops", 0);
    chip->f4_flops = mxl_field_number(L, i, "f4_flops", 0);
    chip->vector_flops = mxl_field_number(L, i, "vector_flops", 0);
    chip->product_block = (int)mxl_field_number(L, i, "product_block", 0);
    chip->product_s = mxl_field_number(L, i, "product_s", 0);
    chip->attention_step_s = mxl_field_number(L, i, "attention_step_s", 0);
    chip->logits_again = mxl_field_boolean(L, i, "logits_again", false);
    chip->logit_bytes = mxl_field_number(L, i, "logit_bytes", 0);
    chip->one_hot_embedding = mxl_field_boolean(L, i, "one_hot_embedding", false);
    chip->group_tile = (int)mxl_field_number(L, i, "group_tile", 0);
    chip->expert_masks = mxl_field_boolean(L, i, "expert_masks", false);
    chip->attention = read_attention(L, i);
}

/* Reads network.dims: {{size =, wraps =, link_Bps =}, ...}; none: a switch. */
static void read_network(lua_State *L, int i, mx_network *network)
{
    *network = (mx_network){.hop_s = mxl_field_number(L, i, "hop_s", 0),
                            .dcn_Bps = positive(L, i, "dcn_Bps"),
                            .dcn_hop_s = mxl_field_number(L, i, "dcn_hop_s", 0),
                            .switch_Bps = mxl_field_number(L, i, "switch_Bps", 0),
                            .one_stream = mxl_field_boolean(L, i, "one_stream", false),
                            .slice_chips = (int)positive(L, i, "slice_chips"),
                            .has_dies = mxl_field_boolean(L, i, "has_dies", false),
                            .ring_order = mxl_field_boolean(L, i, "ring_order", false),
                            .rings = (int)mxl_field_number(L, i, "rings", 0),
                            .splits_sides = mxl_field_boolean(L, i, "splits_sides", false),
                            .ici_efficiency = share(L, i, "ici_efficiency"),
                            .dcn_efficiency = share(L, i, "dcn_efficiency")};
    int chips = 1;
    lua_getfield(L, i, "dims");
    luaL_checktype(L, -1, LUA_TTABLE);
    for (int d = 0; lua_rawgeti(L, -1, d + 1) == LUA_TTABLE; d++) {
        if (d == MX_NETWORK_DIMS)
            luaL_error(L, "sim_start: a torus has at most %d dimensions", MX_NETWORK_DIMS);
        int at = lua_gettop(L);
        mx_network_dim *dim = &network->dim[network->n_dims++];
        *dim = (mx_network_dim){.size = (int)positive(L, at, "size"),
                                .wraps = mxl_field_boolean(L, at, "wraps", false),
                                .link_Bps = positive(L, at, "link_Bps")};
        chips *= dim->size;
        lua_pop(L, 1);
    }
    lua_pop(L, 2);
    if (network->n_dims > 0 && chips != network->slice_chips)
        luaL_error(L, "sim_start: the torus has %d chips and the slice %d", chips, network->slice_chips);
    if (network->n_dims == 0 && network->slice_chips > 1)
        positive(L, i, "switch_Bps");
}

/* Reads a pod and the number of a rank in it: {slices =, chip = {...}, network = {...}, rank = 0}. */
static mx_sim_pod read_pod(lua_State *L, int *rank)
{
    mx_sim_pod pod = {0};
    luaL_checktype(L, 1, LUA_TTABLE);
    pod.slices = (int)positive(L, 1, "slices");
    lua_getfield(L, 1, "chip");
    luaL_checktype(L, -1, LUA_TTABLE);
    read_chip(L, lua_gettop(L), &pod.chip);
    lua_getfield(L, 1, "network");
    luaL_checktype(L, -1, LUA_TTABLE);
    read_network(L, lua_gettop(L), &pod.network);
    int ranks = pod.network.slice_chips * pod.slices;
    double number = mxl_field_number(L, 1, "rank", 0);
    if (!(number >= 0 && number < ranks))
        luaL_error(L, "sim_start: 'rank' = %f, expected 0 to %d", number, ranks - 1);
    *rank = (int)number;
    return pod;
}

/* mx.sim_start{slices =, chip = {...}, network = {...}, rank = 0}: this process is a rank of a simulated pod from here
 * on, in SI units (bytes, seconds, FLOP/s). Not collective: each process simulates by itself. */
static int sim_start(lua_State *L)
{
    int rank;
    mx_sim_pod pod = read_pod(L, &rank);
    mxl_try(L, mx_sim_start(&pod, rank));
    return 0;
}

/* mx.sim_add(as for sim_start) -> number: one more chip beside those that are simulated, which is current from here on.
 * Each has its own clock, links, memory and mesh. */
static int sim_add(lua_State *L)
{
    int rank, number;
    mx_sim_pod pod = read_pod(L, &rank);
    mxl_try(L, mx_sim_add(&pod, rank, &number));
    lua_pushinteger(L, number);
    return 1;
}

/* mx.sim_use(number): makes that chip current. */
static int sim_use(lua_State *L)
{
    mxl_try(L, mx_sim_use((int)luaL_checkinteger(L, 1)));
    return 0;
}

/* mx.sim_stop(): returns to this machine. Tensors that were created without values stay without. */
static int sim_stop(lua_State *L)
{
    (void)L;
    mx_sim_stop();
    return 0;
}

/* mx.is_simulated() -> whether a chip is simulated: tensors have no values, and time is that of the chip. */
static int is_simulated(lua_State *L)
{
    lua_pushboolean(L, mx_sim_is_on());
    return 1;
}

/* mx.sim_placement() -> axis -> its chips along each of four dimensions, as in {fsdp = {1, 16, 1, 1}, ...}; those of
 * the torus come first. nil if no mesh is placed on a torus. */
static int sim_placement(lua_State *L)
{
    const mx_placement *placement = mx_sim_placement();
    if (!placement)
        return 0;
    const mx_axis *axes;
    int n = mx_mesh_axes(&axes);
    lua_createtable(L, 0, n);
    for (int a = 0; a < n; a++) {
        lua_createtable(L, MX_NETWORK_DIMS, 0);
        for (int d = 0; d < MX_NETWORK_DIMS; d++) {
            lua_pushinteger(L, placement->part[a][d]);
            lua_rawseti(L, -2, d + 1);
        }
        lua_setfield(L, -2, axes[a].name);
    }
    return 1;
}

/* mx.sim_times([reset = false]) -> table: the chip's seconds since the last reset, by purpose (sim/device.h). */
static int sim_times(lua_State *L)
{
    mx_sim_times t = mx_sim_get_times(lua_toboolean(L, 1));
    const struct {
        const char *name;
        double value;
    } fields[] = {{"matrix_s", t.matrix_s},
                  {"attention_s", t.attention_s},
                  {"memory_s", t.memory_s},
                  {"ici_s", t.ici_s},
                  {"dcn_s", t.dcn_s},
                  {"host_s", t.host_s},
                  {"bubble_s", t.bubble_s},
                  {"ici_busy_s", t.ici_busy_s},
                  {"dcn_busy_s", t.dcn_busy_s},
                  {"host_busy_s", t.host_busy_s},
                  {"flops", t.flops},
                  {"arrival_s", t.arrival_s},
                  {"ici_bytes", t.ici_bytes},
                  {"dcn_bytes", t.dcn_bytes},
                  {"operations", (double)t.operations},
                  {"collectives", (double)t.collectives}};
    lua_newtable(L);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        lua_pushnumber(L, fields[i].value);
        lua_setfield(L, -2, fields[i].name);
    }
    return 1;
}

/* mx.sim_wait_until(seconds): the simulated chip waits until mx.now() is so much, for other stages of a pipeline. Does
 * nothing if that time has passed, or if nothing is simulated. */
static int sim_wait_until(lua_State *L)
{
    double seconds = luaL_checknumber(L, 1);
    mxl_set_site(L);
    mxl_try(L, mx_sim_wait_until(seconds));
    return 0;
}

int mxl_open_sim(lua_State *L)
{
    static const luaL_Reg functions[] = {{"sim_start", sim_start},
                                         {"sim_add", sim_add},
                                         {"sim_use", sim_use},
                                         {"sim_stop", sim_stop},
                                         {"is_simulated", is_simulated},
                                         {"sim_times", sim_times},
                                         {"sim_placement", sim_placement},
                                         {"sim_wait_until", sim_wait_until},
                                         {NULL, NULL}};
    luaL_newlib(L, functions);
    return 1;
}
