#include "sim/device.h"

#include "core/pool.h"
#include "core/spill.h"
#include "mesh/comm.h"
#include "mesh/gather.h"
#include "tape/tape.h"
#include "transport/mpi.h"

#include <math.h>
#include <string.h>

static mx_sim_pod pod;
static bool is_on;
static mx_status (*host_run)(mx_call *call);
static mx_sim_times times;
static uint64_t fusion; /* the run of fused operations that is going on */

/* When each is free again. */
static double dim_free_s[MX_NETWORK_DIMS], dcn_free_s, host_free_s;

/* ---- operations ---- */

static double tiles(double n, int tile) { return ceil(n / tile) * tile; }

static double padded_flops(const mx_cost *cost)
{
    int tile = pod.chip.tile;
    double real = cost->m * cost->n * cost->k;
    return real == 0 ? cost->flops
                     : cost->flops * tiles(cost->m, 8) * tiles(cost->n, tile) * tiles(cost->k, tile) / real;
}

static double peak_of(const mx_call *call)
{
    mx_dtype dtype = MX_F32;
    for (int i = 0; i < call->n_in && i < 2; i++)
        if (call->in[i] && mx_dtype_is_float(call->in[i]->dtype))
            dtype = call->in[i]->dtype == MX_BF16 ? MX_BF16 : dtype;
    double peak = pod.chip.peak_flops[dtype];
    return peak > 0 ? peak : pod.chip.peak_flops[MX_F32];
}

static double bandwidth(void) { return pod.chip.memory_Bps * pod.chip.memory_efficiency; }

/* What must move of a value that is read: nothing when the fusion that is going on made it; else its bytes, and before
 * that those of writing it, if it has not been written. */
static double read_bytes(mx_storage *storage, double bytes, bool fuses)
{
    bool inside = fuses && storage->fusion == fusion;
    if (inside || storage->fusion == 0)
        return inside ? 0 : bytes;
    storage->fusion = 0;
    return 2 * bytes;
}

/* The bytes of an operation that a compiler fuses with its neighbours. Outputs are written when someone outside the
 * fusion reads them. */
static double fused_bytes(mx_call *call, const mx_cost *cost)
{
    double named = 0, moved = 0;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->storage) {
            double bytes = (double)mx_bytes(call->in[i]);
            named += bytes;
            moved += read_bytes(call->in[i]->storage, bytes, true);
        }
    double written = cost->bytes_written;
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i]->storage) {
            call->out[i]->storage->fusion = fusion;
            written -= (double)mx_bytes(call->out[i]);
        }
    double extra = cost->bytes_read - named; /* less where parts of an input are read, such as rows of a table */
    return fmax(0, moved + extra) + fmax(0, written);
}

static double plain_bytes(mx_call *call, const mx_cost *cost)
{
    double bytes = cost->bytes_read + cost->bytes_written;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && call->in[i]->storage) {
            double all = (double)mx_bytes(call->in[i]);
            bytes += read_bytes(call->in[i]->storage, all, false) - all;
        }
    return bytes;
}

static void charge(mx_call *call)
{
    mx_cost cost = call->op->cost(call);
    bool fuses = pod.chip.fuses && cost.work == MX_WORK_BYTES;
    double moved = fuses ? fused_bytes(call, &cost) : plain_bytes(call, &cost);
    double memory_s = moved / bandwidth(), arithmetic_s = 0;
    if (!fuses)
        fusion++;
    if (cost.work == MX_WORK_PRODUCT)
        arithmetic_s = padded_flops(&cost) / (peak_of(call) * pod.chip.matrix_efficiency);
    else if (cost.work == MX_WORK_ATTENTION)
        arithmetic_s = cost.flops / (peak_of(call) * pod.chip.attention_efficiency);
    bool by_memory = memory_s >= arithmetic_s;
    double *part = by_memory ? &times.memory_s : cost.work == MX_WORK_PRODUCT ? &times.matrix_s : &times.attention_s;
    *part += fmax(memory_s, arithmetic_s);
    times.memory_s += pod.chip.launch_s;
    times.flops += cost.work == MX_WORK_BYTES ? 0 : cost.flops;
    times.operations++;
    mx_clock_advance_to(mx_clock() + fmax(memory_s, arithmetic_s) + pod.chip.launch_s);
}

/* Views and collectives run as on the host: they move no values themselves. */
static mx_status run(mx_call *call)
{
    if (!(call->op->flags & MX_OP_COLLECTIVE))
        charge(call);
    return call->op->flags & (MX_OP_COLLECTIVE | MX_OP_VIEW) ? call->op->host(call) : MX_OK;
}

/* ---- collectives and transfers ---- */

static void take_time(const mx_comm_load *load, const mx_job *job)
{
    double start_s = mx_clock();
    bool reduces = load->kind == MX_ALL_REDUCE || load->kind == MX_REDUCE_SCATTER;
    double seconds = (reduces ? 3 : 1) * load->bytes / bandwidth();
    times.memory_s += seconds;
    mx_clock_advance_to(start_s + seconds);
    if (mx_job_observer.copied)
        mx_job_observer.copied(job, start_s, mx_clock());
}

/* Where the ranks along axes of the mesh lie, which mx_sim_check_mesh has let in; without a mesh: all ranks. */
static mx_route route_of(mx_axes wanted)
{
    const mx_axis *axes, all = {"all", pod.network.slice_chips, pod.slices};
    int n = mx_mesh_axes(&axes);
    mx_route route;
    (void)mx_network_route(&pod.network, n > 0 ? axes : &all, n > 0 ? n : 1, wanted, &route);
    return route;
}

static void collective(const mx_comm_load *load, mx_job *job)
{
    mx_route route = route_of(load->axes);
    mx_network_time t = mx_network_cost(&pod.network, &route, load->kind, load->bytes);
    if (load->async && !pod.chip.offloads_collectives)
        take_time(load, job);
    double start = fmax(mx_clock(), load->ready_s);
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        if (t.ici_s > 0 && route.size[d] > 1)
            start = fmax(start, dim_free_s[d]);
    if (t.dcn_s > 0)
        start = fmax(start, dcn_free_s);
    job->start_s = start;
    job->end_s = start + t.ici_s + t.dcn_s;
    job->exposed_s = t.dcn_s > t.ici_s ? &times.dcn_s : &times.ici_s;
    int n_parts = 0;
    if (t.ici_s > 0)
        job->part[n_parts++] = (mx_job_part){"network in the slice", t.ici_s};
    if (t.dcn_s > 0)
        job->part[n_parts++] = (mx_job_part){"network between slices", t.dcn_s};
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        if (t.ici_s > 0 && route.size[d] > 1)
            dim_free_s[d] = job->end_s;
    dcn_free_s = t.dcn_s > 0 ? job->end_s : dcn_free_s;
    times.ici_busy_s += t.ici_s;
    times.dcn_busy_s += t.dcn_s;
    times.ici_bytes += t.ici_s > 0 ? load->bytes : 0;
    times.dcn_bytes += t.dcn_s > 0 ? load->bytes : 0;
    times.collectives++;
}

void mx_sim_host_transfer(mx_job *job, double bytes, double ready_s)
{
    job->start_s = fmax(fmax(mx_clock(), ready_s), host_free_s);
    job->end_s = job->start_s + bytes / pod.chip.host_Bps;
    job->exposed_s = &times.host_s;
    job->part[0] = (mx_job_part){"transfers to the host", job->end_s - job->start_s};
    host_free_s = job->end_s;
    times.host_busy_s += job->end_s - job->start_s;
}

static void offload(mx_job *job, double bytes) { mx_sim_host_transfer(job, bytes, mx_clock()); }

/* ---- start and stop ---- */

bool mx_sim_is_on(void) { return is_on; }

mx_sim_times mx_sim_get_times(bool reset)
{
    mx_sim_times copy = times;
    if (reset)
        times = (mx_sim_times){0};
    return copy;
}

mx_status mx_sim_check_mesh(const mx_axis *axes, int n)
{
    if (!is_on)
        return MX_OK;
    int chips = 1, slices = 1;
    for (int a = 0; a < n; a++) {
        chips *= axes[a].ici;
        slices *= axes[a].dcn;
    }
    if (chips != pod.network.slice_chips || slices != pod.slices)
        return mx_fail(MX_ERR_VALUE,
                       "the mesh has %d slices of %d devices, and the simulated pod has %d of %d: set slices, "
                       "dcn_*_parallelism and ici_*_parallelism to these",
                       slices, chips, pod.slices, pod.network.slice_chips);
    mx_route route;
    return mx_network_route(&pod.network, axes, n, 0, &route);
}

/* What is under way or kept belongs to the time before. */
static mx_status forget(void)
{
    mx_tape_clear();
    MX_TRY(mx_comm_finish());
    mx_collective_forget();
    mx_mesh_forget();
    return MX_OK;
}

mx_status mx_sim_start(const mx_sim_pod *new_pod)
{
    MX_TRY(forget());
    mx_sim_stop();
    pod = *new_pod;
    times = (mx_sim_times){0};
    memset(dim_free_s, 0, sizeof dim_free_s);
    dcn_free_s = host_free_s = 0;
    fusion = 1;
    mx_clock_simulate(true);
    mx_pool_simulate(true, (int64_t)pod.chip.memory_bytes);
    mx_ranks_simulate(pod.network.slice_chips * pod.slices);
    mx_comm_simulated = collective;
    mx_spill_simulated = offload;
    host_run = mx_device_run;
    mx_device_run = run;
    is_on = true;
    return MX_OK;
}

void mx_sim_stop(void)
{
    if (!is_on)
        return;
    (void)forget(); /* simulated collectives do not fail */
    mx_comm_simulated = NULL;
    mx_spill_simulated = NULL;
    mx_device_run = host_run;
    mx_ranks_simulate(0);
    mx_pool_simulate(false, 0);
    mx_clock_simulate(false);
    is_on = false;
}
