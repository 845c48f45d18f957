#include "sim/device.h"

#include "core/offload.h"
#include "mesh/comm.h"
#include "mesh/gather.h"
#include "sim/placement.h"
#include "tape/tape.h"
#include "transport/mpi.h"

#include <math.h>
#include <stdlib.h>

/* A simulated chip. The device is the first member, so that its functions can find the rest. */
struct mx_sim_context {
    mx_device device;
    mx_sim_pod pod;
    mx_sim_times times;
    mx_pool_stats memory;
    double clock_s;                                 /* the time up to which the chip has computed */
    double dim_free_s[MX_NETWORK_DIMS], dcn_free_s; /* when each link is free again */
    double host_free_s[2];                          /* the same of the way out and of the way back */
    double others_s;                                /* when other stages are ready */
    mx_job others;                                  /* the wait for them */
    uint64_t fusion;                                /* number of the current fusion */
    mx_placement placement;                         /* of the mesh */
    struct mx_offload_state offload;
    struct mx_mesh_state mesh;
    struct mx_comm_state comm;
    struct mx_gather_state gathers;
};

static mx_sim_context *context_of(mx_device *device) { return (mx_sim_context *)device; }

static void advance_to(mx_sim_context *c, double seconds) { c->clock_s = seconds > c->clock_s ? seconds : c->clock_s; }

/* ---- operations ---- */

static double bandwidth(const mx_sim_context *c) { return mx_sim_memory_rate(&c->pod.chip); }

/* Memory traffic of an operation. `late`: of writing the results of earlier fusions, which nobody has written yet. */
typedef struct traffic {
    double own, late;
} traffic;

/* Adds the reading of a value: nothing if the current fusion computed it. */
static void add_read(const mx_sim_context *c, mx_storage *storage, double bytes, bool fuses, traffic *t)
{
    if (fuses && storage->fusion == c->fusion)
        return;
    t->own += bytes;
    t->late += storage->fusion != 0 ? bytes : 0;
    storage->fusion = 0;
}

/* Of an operation that a compiler fuses with its neighbours. Outputs are written when something outside the fusion
 * reads them. */
static traffic fused_traffic(const mx_sim_context *c, mx_call *call, const mx_cost *cost)
{
    traffic t = {0, 0};
    double named = 0;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->storage) {
            double bytes = (double)mx_bytes(call->in[i]);
            named += bytes;
            add_read(c, call->in[i]->storage, bytes, true, &t);
        }
    double written = cost->bytes_written;
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i]->storage) {
            call->out[i]->storage->fusion = c->fusion;
            written -= (double)mx_bytes(call->out[i]);
        }
    double extra = cost->bytes_read - named; /* negative if only parts of an input are read, such as rows of a table */
    t.own = fmax(0, t.own + extra) + fmax(0, written);
    return t;
}

static traffic plain_traffic(const mx_sim_context *c, mx_call *call, const mx_cost *cost)
{
    traffic t = {cost->bytes_read + cost->bytes_written, 0};
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->storage) {
            double all = (double)mx_bytes(call->in[i]);
            t.own -= all;
            add_read(c, call->in[i]->storage, all, false, &t);
        }
    return t;
}

static void charge(mx_sim_context *c, mx_call *call)
{
    const mx_sim_chip *chip = &c->pod.chip;
    mx_cost cost = call->op->cost(call);
    bool fuses = chip->fuses && cost.work == MX_WORK_BYTES;
    traffic moved = fuses ? fused_traffic(c, call, &cost) : plain_traffic(c, call, &cost);
    if (!fuses)
        c->fusion++;
    mx_chip_time t = mx_sim_op_time(chip, call, &cost, moved.own, moved.late);
    mx_sim_times *times = &c->times;
    double *by_units = t.unit == MX_WORK_ATTENTION ? &times->attention_s
                       : t.unit == MX_WORK_PRODUCT ? &times->matrix_s
                                                   : &times->memory_s;
    double *part = t.arithmetic_s > t.memory_s ? by_units : &times->memory_s;
    *part += fmax(t.memory_s, t.arithmetic_s);
    times->memory_s += t.passes_s + chip->launch_s;
    times->flops += cost.work == MX_WORK_BYTES ? 0 : cost.flops;
    times->operations++;
    advance_to(c, c->clock_s + fmax(t.memory_s, t.arithmetic_s) + t.passes_s + chip->launch_s);
}

/* Views, collectives and what is composed of other operations run as on the host: they move no values themselves. */
static mx_status run(mx_device *device, mx_call *call)
{
    int flags = call->op->flags;
    if (!(flags & (MX_OP_COLLECTIVE | MX_OP_COMPOSITE)) && mx_apply_uncharged == 0)
        charge(context_of(device), call);
    return flags & (MX_OP_COLLECTIVE | MX_OP_VIEW | MX_OP_OWN_STORAGE) ? call->op->host(call) : MX_OK;
}

/* ---- memory: counted but not allocated ---- */

static mx_status take_memory(mx_device *device, int64_t bytes, void **data)
{
    *data = NULL;
    return mx_pool_count(&context_of(device)->memory, bytes);
}

static void give_memory(mx_device *device, void *data, int64_t bytes)
{
    (void)data;
    context_of(device)->memory.in_use_bytes -= bytes;
}

static mx_pool_stats memory(mx_device *device)
{
    mx_pool_stats stats = context_of(device)->memory;
    stats.reserved_bytes = stats.in_use_bytes;
    return stats;
}

static void reset_peak(mx_device *device)
{
    mx_pool_stats *stats = &context_of(device)->memory;
    stats->peak_bytes = stats->in_use_bytes;
}

/* ---- collectives ---- */

static mx_status join(mx_job *job)
{
    (void)job;
    return MX_OK;
}

static bool is_exchange(mx_exchange_kind kind) { return kind == MX_ALL_TO_ALL || kind == MX_ALL_TO_ALL_ROWS; }

/* The size of the whole array in the dtype on the wire: of all parts; for all_to_all, of all ranks, and if it exchanges
 * rows, as if all had as many as this one; for collective_permute, of one rank. */
static double array_bytes(const mx_batch *b)
{
    double n = mx_mesh_size(b->axes);
    mx_exchange_kind kind = b->x.what.kind;
    if (kind == MX_ALL_TO_ALL_ROWS)
        return n * fmax((double)b->x.in.blocks[0].row, (double)b->x.out.blocks[0].row) *
               (double)mx_dtype_bytes(b->x.what.wire);
    bool parts = kind == MX_ALL_GATHER || kind == MX_REDUCE_SCATTER;
    return (double)b->bytes * (parts ? n : kind == MX_ALL_TO_ALL ? n * n : 1);
}

/* Of a collective that overlaps with computation: takes the chip's time. */
static void take_time(mx_sim_context *c, const mx_batch *b, double bytes, double ici_s)
{
    double start_s = c->clock_s, times = 1;
    mx_exchange_kind kind = b->x.what.kind;
    if (kind == MX_ALL_REDUCE || kind == MX_REDUCE_SCATTER)
        times = 3;
    else if (is_exchange(kind))
        times = 2.0 / mx_mesh_size(b->axes);
    double seconds = times * bytes / bandwidth(c) + c->pod.chip.collective_share * ici_s;
    c->times.memory_s += seconds;
    advance_to(c, start_s + seconds);
    if (mx_job_observer.copied)
        mx_job_observer.copied(&b->job, start_s, c->clock_s);
}

/* The route of the ranks along axes of the mesh, which mx_sim_place_mesh has placed; without a mesh: of all ranks. */
static mx_route route_of(const mx_sim_context *c, mx_axes wanted)
{
    const mx_network *network = &c->pod.network;
    const mx_axis *axes, all = {"all", network->slice_chips, c->pod.slices};
    int n = mx_mesh_axes(&axes);
    if (n > 0)
        return mx_network_route(network, &c->placement, axes, n, wanted);
    mx_placement whole = {0};
    for (int d = 0; d < network->n_dims; d++)
        whole.part[0][d] = network->dim[d].size;
    return mx_network_route(network, &whole, &all, 1, 0);
}

/* The route of a message and its time. Ranks of one slice do not use the network between slices. */
static mx_network_time message_time(const mx_sim_context *c, const mx_batch *b, mx_route *route)
{
    int chips = c->pod.network.slice_chips, me = c->device.rank;
    if (me / chips == b->peer / chips)
        route->slices = 1;
    mx_network_time t = mx_network_cost(&c->pod.network, route, MX_POINT, (double)b->bytes);
    t.ici_s *= mx_network_hops(&c->pod.network, route, b->distance);
    return t;
}

static mx_status exchange(mx_job *job)
{
    const mx_batch *b = (const mx_batch *)job;
    mx_sim_context *c = context_of(job->device);
    mx_sim_times *times = &c->times;
    double bytes = array_bytes(b);
    mx_route route = route_of(c, b->axes);
    bool point = b->x.what.kind == MX_POINT, receives = point && !b->kept[0];
    mx_network_time t =
        point ? message_time(c, b, &route) : mx_network_cost(&c->pod.network, &route, b->x.what.kind, bytes);
    if (b->async && !point && !c->pod.chip.offloads[b->x.what.kind])
        take_time(c, b, bytes, t.ici_s);
    double start = fmax(c->clock_s, b->ready_s);
    if (receives) { /* over links of the sender, which this chip does not simulate */
        job->start_s = start;
        job->end_s = start + t.ici_s + t.dcn_s;
        job->exposed_s = t.dcn_s > t.ici_s ? &times->dcn_s : &times->ici_s;
        return MX_OK;
    }
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        if (t.ici_s > 0 && route.size[d] > 1)
            start = fmax(start, c->dim_free_s[d]);
    if (t.dcn_s > 0)
        start = fmax(start, c->dcn_free_s);
    job->start_s = start;
    job->end_s = start + t.ici_s + t.dcn_s;
    job->exposed_s = t.dcn_s > t.ici_s ? &times->dcn_s : &times->ici_s;
    times->arrival_s = point ? job->end_s : times->arrival_s;
    double across = b->bytes_sent * mx_network_share_across(&route, b->x.what.kind);
    int n_parts = 0;
    if (t.ici_s > 0)
        job->part[n_parts++] = (mx_job_part){"network in the slice", t.ici_s, b->bytes_sent - across};
    if (t.dcn_s > 0)
        job->part[n_parts++] = (mx_job_part){"network between slices", t.dcn_s, across};
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        if (t.ici_s > 0 && route.size[d] > 1)
            c->dim_free_s[d] = job->end_s;
    c->dcn_free_s = t.dcn_s > 0 ? job->end_s : c->dcn_free_s;
    times->ici_busy_s += t.ici_s;
    times->dcn_busy_s += t.dcn_s;
    times->ici_bytes += t.ici_s > 0 ? bytes : 0;
    times->dcn_bytes += t.dcn_s > 0 ? bytes : 0;
    times->collectives++;
    if (b->async && c->pod.network.one_stream && t.dcn_s > 0) {
        times->dcn_s += fmax(0, job->end_s - c->clock_s);
        advance_to(c, job->end_s);
    }
    return MX_OK;
}

static mx_status copy(mx_device *device, const mx_block *from, const mx_block *to, int64_t count)
{
    (void)device, (void)from, (void)to, (void)count;
    return MX_OK;
}

/* ---- jobs ---- */

static bool is_done(const mx_job *job) { return job->end_s <= context_of(job->device)->clock_s; }

static void wait_for(const mx_job *job) { advance_to(context_of(job->device), job->end_s); }

static double now(mx_device *device) { return context_of(device)->clock_s; }

/* ---- transfers to the host ---- */

static mx_status open_ranges(mx_device *device, const char *directory)
{
    (void)device, (void)directory;
    return MX_OK;
}

static mx_status take_range(mx_device *device, int64_t bytes, mx_range *range)
{
    (void)device;
    *range = (mx_range){.bytes = bytes};
    return MX_OK;
}

static void give_range(mx_device *device, mx_range range) { (void)device, (void)range; }

static mx_status move(mx_job *job, void *data, mx_range range, int64_t bytes, bool out)
{
    (void)data, (void)range;
    mx_sim_context *c = context_of(job->device);
    double *free_s = &c->host_free_s[out];
    job->start_s = fmax(c->clock_s, *free_s);
    job->end_s = job->start_s + (double)bytes / c->pod.chip.host_Bps;
    job->exposed_s = &c->times.host_s;
    job->part[0] = (mx_job_part){"transfers to the host", job->end_s - job->start_s, (double)bytes};
    *free_s = job->end_s;
    c->times.host_busy_s += job->end_s - job->start_s;
    return MX_OK;
}

/* ---- contexts ---- */

static void destroy(mx_device *device)
{
    mx_lane_free(context_of(device)->offload.lane);
    mx_lane_free(context_of(device)->comm.lane);
    mx_lane_free(context_of(device)->comm.points);
    free(context_of(device));
}

static const mx_device table = {
    .name = "simulated chip",
    .refs = 1,
    .destroy = destroy,
    .run = run,
    .alloc = take_memory,
    .free = give_memory,
    .memory = memory,
    .reset_peak = reset_peak,
    .submit = mx_job_submit_here,
    .is_done = is_done,
    .wait = wait_for,
    .open_ranges = open_ranges,
    .take_range = take_range,
    .give_range = give_range,
    .move = move,
    .join = join,
    .exchange = exchange,
    .copy = copy,
    .now = now,
};

mx_status mx_sim_context_new(const mx_sim_pod *pod, int rank, mx_sim_context **out)
{
    mx_sim_context *c = *out = calloc(1, sizeof *c);
    if (!c)
        return mx_fail(MX_ERR_MEMORY, "no memory for a simulated chip");
    c->device = table;
    c->device.rank = rank;
    c->device.ranks = pod->network.slice_chips * pod->slices;
    c->device.offload = &c->offload;
    c->device.mesh = &c->mesh;
    c->device.comm = &c->comm;
    c->device.gathers = &c->gathers;
    c->pod = *pod;
    c->memory.limit_bytes = (int64_t)pod->chip.memory_bytes;
    c->fusion = 1;
    return MX_OK;
}

mx_device *mx_sim_context_device(mx_sim_context *c) { return &c->device; }

void mx_sim_context_free(mx_sim_context *c)
{
    mx_device *before = mx_device_current;
    mx_device_use(&c->device);
    (void)mx_comm_finish(); /* simulated jobs do not fail */
    mx_collective_forget();
    if (c->offload.lane)
        (void)mx_lane_drain(c->offload.lane);
    mx_device_use(before);
    mx_device_release(&c->device);
}

/* The current context; NULL if the current device is not simulated. */
static mx_sim_context *current(void) { return mx_device_current->run == run ? context_of(mx_device_current) : NULL; }

mx_sim_times mx_sim_get_times(bool reset)
{
    mx_sim_context *c = current();
    if (!c)
        return (mx_sim_times){0};
    mx_sim_times copy = c->times;
    if (reset)
        c->times = (mx_sim_times){0};
    return copy;
}

static mx_status run_others(mx_job *job)
{
    job->start_s = job->end_s = context_of(job->device)->others_s;
    job->exposed_s = &context_of(job->device)->times.bubble_s;
    return MX_OK;
}

static void end_others(mx_job *job) { (void)job; }

static mx_job_about describe_others(const mx_job *job)
{
    (void)job;
    return (mx_job_about){.kind = "other stages", .over = "stage"};
}

mx_status mx_sim_wait_until(double seconds)
{
    mx_sim_context *c = current();
    if (!c || seconds <= c->clock_s)
        return MX_OK;
    if (!c->comm.points)
        MX_TRY(mx_lane_new("mx-point", &c->comm.points));
    c->others_s = seconds;
    c->others = (mx_job){.run = run_others, .done = end_others, .describe = describe_others, .lane = c->comm.points};
    return mx_lane_do(&c->others);
}

mx_status mx_sim_place_mesh(const mx_axis *axes, int n)
{
    mx_sim_context *c = current();
    if (!c)
        return MX_OK;
    int chips = 1, slices = 1;
    for (int a = 0; a < n; a++) {
        chips *= axes[a].ici;
        slices *= axes[a].dcn;
    }
    const mx_network *network = &c->pod.network;
    if (chips != network->slice_chips || slices != c->pod.slices)
        return mx_fail(MX_ERR_VALUE,
                       "the mesh has %d slices of %d devices, and the simulated pod has %d of %d: set slices, "
                       "dcn_*_parallelism and ici_*_parallelism to these",
                       slices, chips, c->pod.slices, network->slice_chips);
    return mx_placement_choose(network, axes, n, &c->placement);
}

const mx_placement *mx_sim_placement(void)
{
    const mx_sim_context *c = current();
    const mx_axis *axes;
    return c && c->pod.network.n_dims > 0 && mx_mesh_axes(&axes) > 0 ? &c->placement : NULL;
}

/* ---- the chips that a script starts ---- */

static mx_sim_context **chips;
static int n_chips;
static mx_device *machine; /* the device that was current before them */

bool mx_sim_is_on(void) { return current() != NULL; }

/* Ends what belongs to the current device: records, collectives in flight, prefetched gathers and the mesh. */
static mx_status forget(void)
{
    mx_tape_forget_since(0);
    MX_TRY(mx_comm_finish());
    mx_collective_forget();
    mx_mesh_forget();
    return MX_OK;
}

mx_status mx_sim_add(const mx_sim_pod *pod, int rank, int *number)
{
    mx_sim_context *c, **all = realloc(chips, (size_t)(n_chips + 1) * sizeof(mx_sim_context *));
    if (!all)
        return mx_fail(MX_ERR_MEMORY, "no memory for a simulated chip");
    chips = all;
    if (n_chips == 0)
        MX_TRY(forget());
    MX_TRY(mx_sim_context_new(pod, rank, &c));
    if (n_chips == 0)
        machine = mx_device_current;
    *number = n_chips;
    chips[n_chips++] = c;
    mx_device_use(&c->device);
    return MX_OK;
}

mx_status mx_sim_use(int number)
{
    if (number < 0 || number >= n_chips)
        return mx_fail(MX_ERR_VALUE, "there is no simulated chip number %d: %d are simulated", number, n_chips);
    mx_device_use(&chips[number]->device);
    return MX_OK;
}

mx_status mx_sim_start(const mx_sim_pod *pod, int rank)
{
    int number;
    mx_sim_stop();
    return mx_sim_add(pod, rank, &number);
}

void mx_sim_stop(void)
{
    for (int i = 0; i < n_chips; i++) {
        mx_device_use(&chips[i]->device);
        (void)forget(); /* simulated collectives do not fail */
    }
    if (n_chips > 0)
        mx_device_use(machine);
    for (int i = 0; i < n_chips; i++)
        mx_sim_context_free(chips[i]);
    n_chips = 0;
}
