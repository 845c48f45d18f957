#include "mesh/comm.h"

#include "core/cpu.h"
#include "core/job.h"
#include "transport/board.h"
#include "transport/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

mx_comm_settings mx_comm = {.prefetch_bytes = 1 << 30};

static const char *site = "";

static struct mx_comm_state *state(void) { return mx_device_current->comm; }

void mx_comm_set_site(const char *where) { site = where; }

/* ---- on the communication thread ---- */

static void write_text(mx_batch *b)
{
    char more[32] = "";
    if (b->n > 1)
        snprintf(more, sizeof more, " in %d tensors", b->n);
    if (b->x.what.kind == MX_POINT)
        snprintf(b->tag.text, sizeof b->tag.text, "%s %s %s %s rank %d over %s", b->kept[0] ? "send" : "recv",
                 mx_dtype_name(b->x.what.wire), mx_shape_text(&b->tag.shape), b->kept[0] ? "to" : "from", b->peer,
                 b->over);
    else if (b->x.what.kind == MX_BARRIER)
        snprintf(b->tag.text, sizeof b->tag.text, "barrier over %s", b->over);
    else if (b->x.what.kind == MX_ALL_TO_ALL_ROWS)
        snprintf(b->tag.text, sizeof b->tag.text, "%s of rows of %lld %s over %s", mx_exchange_name(b->x.what.kind),
                 (long long)b->tag.count, mx_dtype_name(b->x.what.wire), b->over);
    else
        snprintf(b->tag.text, sizeof b->tag.text, "%s of %lld %s%s over %s", mx_exchange_name(b->x.what.kind),
                 (long long)b->tag.count, mx_dtype_name(b->x.what.wire), more, b->over);
}

static mx_status run_batch(mx_job *job)
{
    write_text((mx_batch *)job);
    return job->device->exchange(job);
}

/* ---- on the script's thread ---- */

static mx_job_about about_batch(const mx_job *job)
{
    const mx_batch *b = (const mx_batch *)job;
    bool moves = b->x.what.kind != MX_BARRIER;
    bool point = b->x.what.kind == MX_POINT;
    return (mx_job_about){.kind = !point       ? mx_exchange_name(b->x.what.kind)
                                  : b->kept[0] ? "send"
                                               : "recv",
                          .over = b->over,
                          .dtype = moves ? mx_dtype_name(b->x.what.wire) : NULL,
                          .where = b->tag.site[0] ? b->tag.site : NULL,
                          .count = b->tag.count,
                          .bytes = b->bytes_sent,
                          .tensors = moves ? b->n : 0};
}

static void free_batch(mx_batch *b)
{
    mx_rows_release(b->x.rows);
    free(b->x.in.blocks);
    free(b->x.out.blocks);
    free(b->kept);
    free(b);
}

static void end_batch(mx_job *job)
{
    mx_batch *b = (mx_batch *)job;
    struct mx_comm_state *its = job->device->comm;
    if (its->open == b)
        its->open = NULL;
    for (int i = 0; i < 2 * b->n; i++) {
        mx_storage *storage = b->kept[i];
        if (!storage)
            continue;
        if (storage->writer == job)
            storage->writer = NULL;
        if (storage->reader == job)
            storage->reader = NULL;
        mx_storage_release(storage);
    }
    free_batch(b);
}

/* The tensor of a collective whose shape is the same on all ranks: the whole one, where each has a part. NULL: there is
 * none. */
static const mx_tensor *alike(const mx_transfer *t)
{
    switch (t->what.kind) {
    case MX_ALL_REDUCE:
    case MX_REDUCE_SCATTER:
    case MX_ALL_TO_ALL:
    case MX_PERMUTE:
    case MX_BROADCAST:
        return t->in;
    case MX_ALL_GATHER:
        return t->out;
    case MX_POINT:
        return t->in ? t->in : t->out;
    default:
        return NULL;
    }
}

/* FNV-1a of the sizes, and of the dimensions of parts. */
static uint64_t hash_parts(uint64_t hash, const mx_transfer *t)
{
    const mx_shape *shape = &alike(t)->shape;
    hash = (hash ^ (uint64_t)shape->n_dims) * 1099511628211u;
    for (int d = 0; d < shape->n_dims; d++)
        hash = (hash ^ (uint64_t)shape->size[d]) * 1099511628211u;
    hash = (hash ^ (uint64_t)t->split) * 1099511628211u;
    return (hash ^ (uint64_t)t->concat) * 1099511628211u;
}

static void describe(mx_batch *b, const mx_transfer *t)
{
    b->tag = (mx_tag){.what = t->what, .split = t->split, .concat = t->concat, .shapes = 14695981039346656037u};
    if (alike(t))
        b->tag.shape = alike(t)->shape;
    snprintf(b->tag.site, sizeof b->tag.site, "%s", site);
}

static mx_status grow(mx_batch *b)
{
    if (b->n < b->room)
        return MX_OK;
    int room = b->room ? 2 * b->room : 1;
    mx_block *in = realloc(b->x.in.blocks, (size_t)room * sizeof *in);
    b->x.in.blocks = in ? in : b->x.in.blocks;
    mx_block *out = realloc(b->x.out.blocks, (size_t)room * sizeof *out);
    b->x.out.blocks = out ? out : b->x.out.blocks;
    mx_storage **kept = realloc(b->kept, 2 * (size_t)room * sizeof *kept);
    b->kept = kept ? kept : b->kept;
    if (!in || !out || !kept)
        return mx_fail(MX_ERR_MEMORY, "no memory for a collective");
    b->room = room;
    return MX_OK;
}

/* On a device without threads, exchanges may overlap, but not begin before the jobs that they depend on. */
static void await(mx_batch *b, const mx_tensor *t)
{
    const mx_job *writer = t ? t->storage->writer : NULL;
    if (writer && atomic_load(&writer->state) == MX_JOB_FINISHED && writer->end_s > b->ready_s)
        b->ready_s = writer->end_s;
}

static mx_status add_tensor(mx_batch *b, const mx_transfer *t)
{
    MX_TRY(grow(b));
    await(b, t->in);
    await(b, t->out);
    b->kept[2 * b->n] = t->in ? mx_storage_retain(t->in->storage) : NULL; /* a barrier has no tensors */
    b->kept[2 * b->n + 1] = t->out ? mx_storage_retain(t->out->storage) : NULL;
    b->x.in.blocks[b->n] = t->in_block; /* of a message, both are that of its one tensor */
    b->x.out.blocks[b->n] = t->out_block;
    b->n++;
    b->x.in.n = b->x.out.n = b->n;
    b->x.in.count = b->x.out.count = b->x.in.count + t->count;
    b->tag.count = b->x.in.count;
    if (alike(t))
        b->tag.shapes = hash_parts(b->tag.shapes, t);
    b->x.out.past_caches |= t->out && !t->what.in_place && mx_bytes(t->out) > mx_cpu_l3_share_bytes();
    b->bytes += t->count * (int64_t)mx_dtype_bytes(t->what.wire);
    b->bytes_sent += t->bytes_sent;
    return MX_OK;
}

/* Whether a tensor depends on the bucket; such a tensor must not join it. */
static bool depends(const mx_batch *b, const mx_tensor *t)
{
    const mx_job *job = &b->job;
    return t->storage->writer == job || t->storage->reader == job;
}

static bool can_join(const mx_batch *b, const mx_transfer *t)
{
    return b && atomic_load(&b->job.state) == MX_JOB_HELD && !depends(b, t->in) && !depends(b, t->out) &&
           b->axes == t->axes && mx_collective_equal(&b->x.what, &t->what) && b->x.what.in_place == t->what.in_place &&
           b->x.in.blocks[0].dtype == t->in_block.dtype && b->x.out.blocks[0].dtype == t->out_block.dtype;
}

mx_status mx_comm_flush(void)
{
    mx_batch *b = state()->open;
    state()->open = NULL;
    if (!b || atomic_load(&b->job.state) != MX_JOB_HELD) /* a wait for one of its values has started it */
        return MX_OK;
    return mx_lane_submit(&b->job);
}

mx_status mx_comm_finish(void)
{
    MX_TRY(mx_comm_flush());
    if (state()->points)
        MX_TRY(mx_lane_drain(state()->points));
    return state()->lane ? mx_lane_drain(state()->lane) : MX_OK;
}

void mx_comm_end(void)
{
    if (mx_comm_finish() != MX_OK) {
        if (mx_rank() > 0) /* if all ranks fail alike, only rank 0 prints the message */
            nanosleep(&(struct timespec){.tv_nsec = 300 * 1000 * 1000}, NULL);
        fprintf(stderr, "mxlua: rank %d: %s\n", mx_rank(), mx_message());
        mx_mpi_abort(EXIT_FAILURE);
    }
    mx_mpi_end();
}

/* A group of one rank: the collective is a copy. There is one part, the whole tensor. */
static mx_status copy_alone(const mx_transfer *t)
{
    if (t->what.in_place || t->what.kind == MX_BARRIER || t->count == 0)
        return MX_OK;
    MX_TRY(mx_tensor_wait(t->in, false));
    return mx_device_current->copy(mx_device_current, &t->in_block, &t->out_block, t->count);
}

static mx_status new_batch(const mx_transfer *t, mx_batch **out)
{
    bool point = t->what.kind == MX_POINT;
    mx_lane **lane = point ? &state()->points : &state()->lane;
    if (!*lane)
        MX_TRY(mx_lane_new(point ? "mx-point" : "mx-comm", lane));
    mx_batch *b = calloc(1, sizeof *b);
    *out = b;
    if (!b)
        return mx_fail(MX_ERR_MEMORY, "no memory for a collective");
    b->job.run = run_batch;
    b->job.done = end_batch;
    b->job.describe = about_batch;
    b->job.lane = *lane;
    b->job.device = mx_device_current;
    b->x.what = t->what;
    b->x.rows = mx_rows_retain(t->rows);
    b->axes = t->axes;
    b->peer = t->peer;
    b->distance = t->distance;
    b->strict = mx_comm.debug;
    snprintf(b->over, sizeof b->over, "%s", mx_mesh_text(t->axes));
    describe(b, t);
    mx_status status = mx_device_current->join(&b->job);
    if (status == MX_OK)
        status = add_tensor(b, t);
    if (status != MX_OK)
        free_batch(b);
    return status;
}

static void mark(const mx_batch *b, const mx_transfer *t)
{
    mx_storage *in = t->in->storage, *out = t->out->storage;
    if (in != out)
        in->reader = (mx_job *)&b->job;
    out->writer = (mx_job *)&b->job;
    if (t->what.in_place)
        out->reader = NULL;
}

mx_status mx_comm_run(const mx_transfer *t, bool async)
{
    if (mx_mesh_size(t->axes) == 1)
        return copy_alone(t);
    struct mx_comm_state *s = state();
    MX_TRY(mx_tensor_wait_others(t->in, s->lane));
    MX_TRY(mx_tensor_wait_others(t->out, s->lane));
    s->bytes_sent += t->bytes_sent;
    int64_t most = mx_comm.combine_bytes[t->what.kind];
    int64_t bytes = t->count * (int64_t)mx_dtype_bytes(t->what.wire);
    if (async && can_join(s->open, t) && s->open->bytes + bytes <= most) {
        MX_TRY(add_tensor(s->open, t));
        mark(s->open, t);
        return MX_OK;
    }
    MX_TRY(mx_comm_flush());
    mx_batch *b = NULL;
    MX_TRY(new_batch(t, &b));
    b->async = async;
    if (!async)
        return mx_lane_do(&b->job);
    mark(b, t);
    s->open = b; /* its job is held: not yet given to the thread */
    return bytes >= most ? mx_comm_flush() : MX_OK;
}

mx_status mx_comm_message(const mx_transfer *t)
{
    struct mx_comm_state *s = state();
    mx_tensor *one = t->in ? t->in : t->out;
    MX_TRY(mx_tensor_wait_others(one, s->points));
    mx_batch *b = NULL;
    MX_TRY(new_batch(t, &b));
    b->async = true;
    s->bytes_sent += t->bytes_sent;
    if (t->in)
        one->storage->reader = &b->job;
    else
        one->storage->writer = &b->job;
    return mx_lane_submit(&b->job);
}

static void add_times(mx_comm_stats *stats, mx_lane *lane, bool reset)
{
    if (!lane)
        return;
    mx_lane_times times = mx_lane_get_times(lane, reset);
    stats->exposed_s += times.exposed_s;
    stats->busy_s += times.busy_s;
    stats->calls += times.jobs;
}

mx_comm_stats mx_comm_get_stats(bool reset)
{
    struct mx_comm_state *s = state();
    mx_comm_stats stats = {.bytes = s->bytes_sent};
    add_times(&stats, s->lane, reset);
    add_times(&stats, s->points, reset);
    if (reset)
        s->bytes_sent = 0;
    return stats;
}
