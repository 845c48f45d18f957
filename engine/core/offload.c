#include "core/offload.h"

#include <stdlib.h>

/* A job that writes or reads a copy. */
typedef struct mx_offload_transfer {
    mx_job job;
    bool out;
    mx_storage *storage;
    int64_t offset; /* of the values in storage */
    int64_t bytes;
    mx_range range;
    mx_away *copy; /* the copy that it writes; NULL when that is released */
} transfer;

static mx_status run(mx_job *job)
{
    const transfer *t = (const transfer *)job;
    char *data = t->storage->data;
    return job->device->move(job, data ? data + t->offset : NULL, t->range, t->bytes, t->out);
}

static mx_job_about about(const mx_job *job)
{
    const transfer *t = (const transfer *)job;
    return (mx_job_about){.kind = t->out ? "offload" : "fetch", .bytes = (double)t->bytes, .tensors = 1};
}

static void done(mx_job *job)
{
    transfer *t = (transfer *)job;
    struct mx_offload_state *state = t->storage->device->offload;
    if (t->copy)
        t->copy->write = NULL;
    if (state->last_write == job)
        state->last_write = NULL;
    if (t->storage->reader == job)
        t->storage->reader = NULL;
    if (t->storage->writer == job)
        t->storage->writer = NULL;
    mx_storage_release(t->storage);
    free(t);
}

/* Submits the transfer of t's values to or from the copy's range. */
static mx_status start(mx_tensor *t, mx_away *c, bool out)
{
    struct mx_offload_state *state = c->device->offload;
    if (!state->lane)
        MX_TRY(mx_lane_new("mx-offload", &state->lane));
    transfer *x = calloc(1, sizeof *x);
    if (!x)
        return mx_fail(MX_ERR_MEMORY, "no memory for an offloaded tensor's description");
    x->job.run = run;
    x->job.done = done;
    x->job.describe = about;
    x->job.lane = state->lane;
    x->out = out;
    x->storage = mx_storage_retain(t->storage);
    x->offset = t->offset;
    x->bytes = mx_bytes(t);
    x->range = c->range;
    mx_status status = mx_lane_submit(&x->job);
    if (status != MX_OK) {
        done(&x->job);
        return status;
    }
    if (out) {
        x->copy = c;
        c->write = x;
        t->storage->reader = state->last_write = &x->job;
        state->written_bytes += x->bytes;
    } else {
        t->storage->writer = &x->job;
        state->read_bytes += x->bytes;
    }
    return MX_OK;
}

static mx_status copy_out(mx_tensor *t)
{
    mx_device *device = t->storage->device;
    mx_away *c = calloc(1, sizeof *c);
    if (!c)
        return mx_fail(MX_ERR_MEMORY, "no memory for an offloaded tensor's description");
    mx_status status = device->take_range(device, mx_bytes(t), &c->range);
    if (status != MX_OK) {
        free(c);
        return status;
    }
    c->device = mx_device_retain(device);
    c->changes = t->storage->changes;
    device->offload->away_bytes += c->range.bytes;
    status = start(t, c, true);
    if (status == MX_OK)
        t->away = c;
    else
        mx_offload_forget(c);
    return status;
}

mx_status mx_tensor_offload(mx_tensor *t)
{
    if (t->away) {
        mx_tensor_evict(t);
        if (t->away)
            return MX_OK;
    }
    if (!t->storage || mx_bytes(t) == 0)
        return MX_OK;
    MX_TRY(mx_tensor_wait_others(t, NULL));
    if (t->storage->refs > 1)
        return MX_OK;
    MX_TRY(copy_out(t));
    mx_tensor_drop_storage(t);
    return MX_OK;
}

static mx_status copy_back(mx_tensor *t)
{
    mx_away *c = t->away;
    if (c->write) {
        mx_tensor_share(t, c->write->storage, c->write->offset);
        return MX_OK;
    }
    MX_TRY(mx_tensor_allocate(t));
    mx_status status = start(t, c, false);
    if (status != MX_OK)
        mx_tensor_drop_storage(t);
    return status;
}

mx_status mx_tensor_fetch(mx_tensor *t)
{
    if (t->storage || !t->away)
        return MX_OK;
    MX_TRY(copy_back(t));
    if (t->storage->changes < t->away->changes) /* a new storage has the values that the old one had at the copy */
        t->storage->changes = t->away->changes;
    t->away->changes = t->storage->changes;
    return MX_OK;
}

void mx_tensor_evict(mx_tensor *t)
{
    if (!t->away || !t->storage || t->storage->refs > 1) /* a change of a view would change t too */
        return;
    if (t->away->changes == t->storage->changes) {
        mx_tensor_drop_storage(t);
        return;
    }
    mx_offload_forget(t->away);
    t->away = NULL;
}

/* The range may be used again at once: the lane keeps the order, so a later write comes after pending reads. */
void mx_offload_forget(mx_away *copy)
{
    mx_device *device = copy->device;
    if (copy->write)
        copy->write->copy = NULL;
    device->offload->away_bytes -= copy->range.bytes;
    device->give_range(device, copy->range);
    free(copy);
    mx_device_release(device);
}

mx_status mx_offload_settle(bool wait)
{
    struct mx_offload_state *state = mx_device_current->offload;
    if (!state->lane)
        return MX_OK;
    return wait && state->last_write ? mx_job_wait(state->last_write) : mx_lane_reap(state->lane);
}

mx_status mx_offload_drain(void)
{
    mx_lane *lane = mx_device_current->offload->lane;
    return lane ? mx_lane_drain(lane) : MX_OK;
}

mx_offload_stats mx_offload_get_stats(bool reset)
{
    struct mx_offload_state *state = mx_device_current->offload;
    mx_offload_stats stats = {
        .away_bytes = state->away_bytes, .written_bytes = state->written_bytes, .read_bytes = state->read_bytes};
    if (state->lane) {
        mx_lane_times times = mx_lane_get_times(state->lane, reset);
        stats.exposed_s = times.exposed_s;
        stats.busy_s = times.busy_s;
    }
    if (reset)
        state->written_bytes = state->read_bytes = 0;
    return stats;
}
