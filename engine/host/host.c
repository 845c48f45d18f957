/* This machine as a device: operations run here, in the memory of this process. */
#include "core/clock.h"
#include "core/offload.h"
#include "core/spill.h"
#include "mesh/comm.h"
#include "mesh/gather.h"
#include "ops/op.h"
#include "transport/board.h"
#include "transport/mpi.h"

#include <stdio.h>

static struct mx_offload_state offload;
static struct mx_mesh_state mesh;
static struct mx_comm_state comm;
static struct mx_gather_state gathers;

static mx_status run(mx_device *device, mx_call *call)
{
    (void)device;
    return call->op->host(call);
}

static mx_status take_memory(mx_device *device, int64_t bytes, void **data)
{
    (void)device;
    return mx_pool_alloc(bytes, data);
}

static void give_memory(mx_device *device, void *data, int64_t bytes)
{
    (void)device;
    mx_pool_free(data, bytes);
}

static mx_pool_stats memory(mx_device *device)
{
    (void)device;
    return mx_pool_get_stats();
}

static void reset_peak(mx_device *device)
{
    (void)device;
    mx_pool_reset_peak();
}

static mx_status map(mx_device *device, void *data, int64_t bytes, mx_map_mode mode, void **host)
{
    (void)device, (void)bytes, (void)mode;
    *host = data;
    return MX_OK;
}

static void unmap(mx_device *device, void *data, int64_t bytes, mx_map_mode mode, void *host)
{
    (void)device, (void)data, (void)bytes, (void)mode, (void)host;
}

/* The two ranks of a message, in ascending order. */
static void find_pair(const mx_batch *b, int *pair)
{
    bool first = mx_rank() < b->peer;
    pair[0] = first ? mx_rank() : b->peer;
    pair[1] = first ? b->peer : mx_rank();
}

static mx_status get_pair(mx_batch *b)
{
    int pair[2];
    find_pair(b, pair);
    MX_TRY(mx_group_get(pair, 2, true, &b->group));
    if (!b->group->node && !mx_mpi_has_threads())
        return mx_fail(MX_ERR_MPI,
                       "messages between nodes need an MPI library with thread level multiple; this one "
                       "has %s",
                       mx_mpi_thread_level());
    return MX_OK;
}

static bool has_group(mx_batch *b)
{
    int pair[2];
    if (b->x.what.kind != MX_POINT)
        return mx_mesh_has_group(b->axes);
    find_pair(b, pair);
    return mx_group_find(pair, 2, true) != NULL;
}

static mx_status get_group(mx_batch *b)
{
    return b->x.what.kind == MX_POINT ? get_pair(b) : mx_mesh_group(b->axes, &b->group);
}

/* The script's thread creates new groups. It may use MPI only while the lanes' threads do not. */
static mx_status join(mx_job *job)
{
    mx_batch *b = (mx_batch *)job;
    if (has_group(b))
        return get_group(b);
    MX_TRY(mx_comm_finish());
    char text[256];
    snprintf(text, sizeof text, "the first %s over %s%s%s", mx_exchange_name(b->x.what.kind), b->over,
             b->tag.site[0] ? " at " : "", b->tag.site);
    mx_board_begin(text, MX_BOARD_COLLECTIVE);
    mx_status status = get_group(b);
    mx_board_finish();
    return status;
}

static mx_status begin(const mx_batch *b)
{
    if (b->group->flat && b->strict) /* over all nodes, so that all of them fail */
        return mx_team_begin(b->group->flat, &b->tag, true);
    return b->group->node ? mx_team_begin(b->group->node, &b->tag, b->strict) : MX_OK;
}

static mx_status exchange(mx_job *job)
{
    mx_batch *b = (mx_batch *)job;
    char text[256];
    snprintf(text, sizeof text, "%s%s%s", b->tag.text, b->tag.site[0] ? " at " : "", b->tag.site);
    mx_board_begin(text, b->x.what.kind == MX_POINT ? MX_BOARD_MESSAGE : MX_BOARD_COLLECTIVE);
    mx_status status = begin(b);
    if (status == MX_OK)
        status = mx_exchange_run(b->group, &b->x);
    mx_board_finish();
    return status;
}

static mx_status copy(mx_device *device, const mx_block *from, const mx_block *to, int64_t count)
{
    (void)device;
    mx_block block = *to;
    const mx_stream out = {.blocks = &block, .n = 1, .count = count};
    mx_stream_write(&out, 0, 0, count, from->dtype, from->data);
    return MX_OK;
}

static double now(mx_device *device)
{
    (void)device;
    return mx_host_clock();
}

mx_device mx_host = {
    .name = "host",
    .has_values = true,
    .host_memory = true,
    .has_threads = true,
    .ranks = 1,
    .refs = 1, /* never destroyed */
    .run = run,
    .alloc = take_memory,
    .free = give_memory,
    .memory = memory,
    .reset_peak = reset_peak,
    .map = map,
    .unmap = unmap,
    .submit = mx_thread_submit,
    .is_done = mx_thread_is_done,
    .wait = mx_thread_wait,
    .open_ranges = mx_spill_open,
    .take_range = mx_spill_take_range,
    .give_range = mx_spill_give_range,
    .move = mx_spill_move,
    .join = join,
    .exchange = exchange,
    .copy = copy,
    .now = now,
    .offload = &offload,
    .mesh = &mesh,
    .comm = &comm,
    .gathers = &gathers,
};
