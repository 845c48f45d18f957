#define _GNU_SOURCE
#include "core/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANGE_UNIT = 4096 };

typedef struct range {
    int64_t start, bytes;
} range;

/* One write or read. */
typedef struct transfer {
    mx_job job;
    bool writes;
    mx_storage *storage;
    char *data;
    int64_t offset; /* of data in storage */
    int64_t start, bytes;
    struct copy *copy; /* of a write: what it makes; NULL once that is forgotten */
} transfer;

/* What t->away is on the host. */
typedef struct copy {
    mx_away away;
    range at;
    transfer *write; /* that is not yet ended: the values are still in memory */
    bool simulated;  /* without a range of the file */
} copy;

void (*mx_spill_simulated)(mx_job *job, double bytes);

static int file = -1;
static char *folder;
static int64_t end; /* of the file's last range */
static range *free_ranges;
static int n_free, free_capacity; /* in the order of their starts, no two adjacent */
static mx_lane *lane;
static mx_job *last_write; /* given and not yet ended */
static int64_t away_bytes, written_bytes, read_bytes;

static double mebibytes(int64_t bytes) { return (double)bytes / 1048576.0; }

/* ---- ranges ---- */

/* The lowest range that is long enough. */
static range take_range(int64_t bytes)
{
    int64_t size = (bytes + RANGE_UNIT - 1) / RANGE_UNIT * RANGE_UNIT;
    for (int i = 0; i < n_free; i++) {
        range *r = &free_ranges[i];
        if (r->bytes < size)
            continue;
        range taken = {r->start, size};
        r->start += size;
        r->bytes -= size;
        if (r->bytes == 0)
            memmove(r, r + 1, (size_t)(--n_free - i) * sizeof *r);
        return taken;
    }
    range taken = {end, size};
    end += size;
    return taken;
}

/* Where there is no memory to remember it by, the range is lost to this run. */
static void give_range(range given)
{
    int i = 0;
    while (i < n_free && free_ranges[i].start < given.start)
        i++;
    range *before = i > 0 ? &free_ranges[i - 1] : NULL, *after = i < n_free ? &free_ranges[i] : NULL;
    bool joins_before = before && before->start + before->bytes == given.start;
    bool joins_after = after && given.start + given.bytes == after->start;
    if (joins_before) {
        before->bytes += given.bytes + (joins_after ? after->bytes : 0);
        if (joins_after)
            memmove(after, after + 1, (size_t)(--n_free - i) * sizeof *after);
        return;
    }
    if (joins_after) {
        *after = (range){given.start, given.bytes + after->bytes};
        return;
    }
    if (n_free == free_capacity) {
        int more = free_capacity ? 2 * free_capacity : 64;
        range *grown = realloc(free_ranges, (size_t)more * sizeof *grown);
        if (!grown)
            return;
        free_ranges = grown;
        free_capacity = more;
    }
    memmove(&free_ranges[i + 1], &free_ranges[i], (size_t)(n_free++ - i) * sizeof *free_ranges);
    free_ranges[i] = given;
}

/* ---- the file ---- */

static const char *standard_folder(void)
{
    const char *given = getenv("TMPDIR");
    return given && given[0] ? given : "/var/tmp";
}

/* Not every file system knows files without a name. */
static int open_named(const char *directory)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/mxlua-offload-XXXXXX", directory) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    int made = mkostemp(path, O_CLOEXEC);
    if (made >= 0)
        unlink(path);
    return made;
}

mx_status mx_spill_open(const char *directory)
{
    if (!lane)
        MX_TRY(mx_lane_new("mx-offload", &lane));
    if (mx_spill_simulated)
        return MX_OK;
    const char *wanted = directory && directory[0] ? directory : standard_folder();
    if (file >= 0 && strcmp(folder, wanted) == 0)
        return MX_OK;
    if (away_bytes > 0)
        return mx_fail(MX_ERR_STATE,
                       "tensors are offloaded to a file in %s, which cannot move to %s before they are back", folder,
                       wanted);
    MX_TRY(mx_lane_drain(lane));
    int made = open(wanted, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (made < 0)
        made = open_named(wanted);
    if (made < 0)
        return mx_fail(MX_ERR_IO,
                       "no file for offloaded tensors can be made in %s: %s; set offload_directory to a "
                       "directory that can be written",
                       wanted, strerror(errno));
    char *copied = strdup(wanted);
    if (!copied) {
        close(made);
        return mx_fail(MX_ERR_MEMORY, "no memory for the name of a directory");
    }
    if (file >= 0)
        close(file);
    free(folder);
    file = made;
    folder = copied;
    end = n_free = 0;
    return MX_OK;
}

/* ---- on the file's thread ---- */

static mx_status write_values(const transfer *t)
{
    for (int64_t done = 0; done < t->bytes;) {
        ssize_t n = pwrite(file, t->data + done, (size_t)(t->bytes - done), t->start + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return mx_fail(MX_ERR_IO,
                           "offloading %.1f MiB to a file in %s failed: %s; set offload_directory to a larger disk, or "
                           "choose a remat_policy that offloads less",
                           mebibytes(t->bytes), folder, strerror(n < 0 ? errno : ENOSPC));
        done += n;
    }
    return MX_OK;
}

static mx_status read_values(const transfer *t)
{
    for (int64_t done = 0; done < t->bytes;) {
        ssize_t n = pread(file, t->data + done, (size_t)(t->bytes - done), t->start + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return mx_fail(MX_ERR_IO, "fetching %.1f MiB of offloaded values from a file in %s failed: %s",
                           mebibytes(t->bytes), folder,
                           n < 0 ? strerror(errno) : "the file is shorter than what was written");
        done += n;
    }
    return MX_OK;
}

static mx_status run(mx_job *job)
{
    const transfer *t = (const transfer *)job;
    if (mx_spill_simulated) {
        mx_spill_simulated(job, (double)t->bytes);
        return MX_OK;
    }
    return t->writes ? write_values(t) : read_values(t);
}

/* ---- on the script's thread ---- */

static mx_job_about about(const mx_job *job)
{
    const transfer *t = (const transfer *)job;
    return (mx_job_about){.kind = t->writes ? "offload" : "fetch", .bytes = (double)t->bytes, .tensors = 1};
}

static void done(mx_job *job)
{
    transfer *t = (transfer *)job;
    if (t->copy)
        t->copy->write = NULL;
    if (last_write == job)
        last_write = NULL;
    if (t->storage->reader == job)
        t->storage->reader = NULL;
    if (t->storage->writer == job)
        t->storage->writer = NULL;
    mx_storage_release(t->storage);
    free(t);
}

/* Queues the transfer of t's values to or from a range of the file. */
static mx_status start(mx_tensor *t, copy *c, bool writes)
{
    transfer *x = calloc(1, sizeof *x);
    if (!x)
        return mx_fail(MX_ERR_MEMORY, "no memory for an offloaded tensor's description");
    x->job.run = run;
    x->job.done = done;
    x->job.describe = about;
    x->job.lane = lane;
    x->writes = writes;
    x->storage = mx_storage_retain(t->storage);
    x->data = mx_data(t);
    x->offset = t->offset;
    x->start = c->at.start;
    x->bytes = mx_bytes(t);
    mx_status status = mx_lane_submit(&x->job);
    if (status != MX_OK) {
        done(&x->job);
        return status;
    }
    if (writes) {
        x->copy = c;
        c->write = x;
        t->storage->reader = last_write = &x->job;
        written_bytes += x->bytes;
    } else {
        t->storage->writer = &x->job;
        read_bytes += x->bytes;
    }
    return MX_OK;
}

mx_status mx_spill_offload(mx_tensor *t)
{
    if (file < 0)
        MX_TRY(mx_spill_open(NULL));
    copy *c = calloc(1, sizeof *c);
    if (!c)
        return mx_fail(MX_ERR_MEMORY, "no memory for an offloaded tensor's description");
    c->simulated = mx_spill_simulated != NULL;
    c->at = c->simulated ? (range){0, mx_bytes(t)} : take_range(mx_bytes(t));
    away_bytes += c->at.bytes;
    mx_status status = start(t, c, true);
    if (status == MX_OK)
        t->away = &c->away;
    else
        mx_spill_forget(&c->away);
    return status;
}

mx_status mx_spill_fetch(mx_tensor *t)
{
    copy *c = (copy *)t->away;
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

/* A later write to the range comes after all that is still to be read from it: the thread keeps the order. */
void mx_spill_forget(mx_away *away)
{
    copy *c = (copy *)away;
    if (c->write)
        c->write->copy = NULL;
    away_bytes -= c->at.bytes;
    if (!c->simulated)
        give_range(c->at);
    free(c);
}

mx_status mx_spill_settle(bool wait)
{
    if (!lane)
        return MX_OK;
    return wait && last_write ? mx_job_wait(last_write) : mx_lane_reap(lane);
}

mx_spill_stats mx_spill_get_stats(bool reset)
{
    mx_spill_stats stats = {.directory = folder ? folder : "",
                            .away_bytes = away_bytes,
                            .written_bytes = written_bytes,
                            .read_bytes = read_bytes};
    struct stat about;
    if (file >= 0 && fstat(file, &about) == 0)
        stats.file_bytes = about.st_size;
    if (lane) {
        mx_lane_times times = mx_lane_get_times(lane, reset);
        stats.exposed_s = times.exposed_s;
        stats.busy_s = times.busy_s;
    }
    if (reset)
        written_bytes = read_bytes = 0;
    return stats;
}
