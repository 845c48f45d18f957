#define _GNU_SOURCE
#include "core/spill.h"

#include "core/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANGE_UNIT = 4096 };

static int file = -1;
static char *folder;
static int64_t end; /* end of the file's last range */
static mx_range *free_ranges;
static int n_free, free_capacity; /* sorted by their starts, no two adjacent */

static double mebibytes(int64_t bytes) { return (double)bytes / 1048576.0; }

/* ---- ranges ---- */

/* Takes the lowest free range that is long enough. */
static mx_range take_range(int64_t bytes)
{
    int64_t size = (bytes + RANGE_UNIT - 1) / RANGE_UNIT * RANGE_UNIT;
    for (int i = 0; i < n_free; i++) {
        mx_range *r = &free_ranges[i];
        if (r->bytes < size)
            continue;
        mx_range taken = {r->start, size};
        r->start += size;
        r->bytes -= size;
        if (r->bytes == 0)
            memmove(r, r + 1, (size_t)(--n_free - i) * sizeof *r);
        return taken;
    }
    mx_range taken = {end, size};
    end += size;
    return taken;
}

/* Without memory to remember it, the range cannot be used again in this run. */
void mx_spill_give_range(mx_device *device, mx_range given)
{
    (void)device;
    int i = 0;
    while (i < n_free && free_ranges[i].start < given.start)
        i++;
    mx_range *before = i > 0 ? &free_ranges[i - 1] : NULL, *after = i < n_free ? &free_ranges[i] : NULL;
    bool joins_before = before && before->start + before->bytes == given.start;
    bool joins_after = after && given.start + given.bytes == after->start;
    if (joins_before) {
        before->bytes += given.bytes + (joins_after ? after->bytes : 0);
        if (joins_after)
            memmove(after, after + 1, (size_t)(--n_free - i) * sizeof *after);
        return;
    }
    if (joins_after) {
        *after = (mx_range){given.start, given.bytes + after->bytes};
        return;
    }
    if (n_free == free_capacity) {
        int more = free_capacity ? 2 * free_capacity : 64;
        mx_range *grown = realloc(free_ranges, (size_t)more * sizeof *grown);
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

/* For file systems that do not support files without a name. */
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

mx_status mx_spill_open(mx_device *device, const char *directory)
{
    const char *wanted = directory && directory[0] ? directory : standard_folder();
    if (file >= 0 && strcmp(folder, wanted) == 0)
        return MX_OK;
    if (device->offload->away_bytes > 0)
        return mx_fail(MX_ERR_STATE,
                       "tensors are offloaded to a file in %s, which cannot move to %s before they are back", folder,
                       wanted);
    if (device->offload->lane)
        MX_TRY(mx_lane_drain(device->offload->lane));
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

mx_status mx_spill_take_range(mx_device *device, int64_t bytes, mx_range *range)
{
    if (file < 0)
        MX_TRY(mx_spill_open(device, NULL));
    *range = take_range(bytes);
    return MX_OK;
}

/* ---- on the lane's thread ---- */

static mx_status write_values(const char *data, mx_range range, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(file, data + done, (size_t)(bytes - done), range.start + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return mx_fail(MX_ERR_IO,
                           "offloading %.1f MiB to a file in %s failed: %s; set offload_directory to a larger disk, or "
                           "choose a remat_policy that offloads less",
                           mebibytes(bytes), folder, strerror(n < 0 ? errno : ENOSPC));
        done += n;
    }
    return MX_OK;
}

static mx_status read_values(char *data, mx_range range, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(file, data + done, (size_t)(bytes - done), range.start + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return mx_fail(MX_ERR_IO, "fetching %.1f MiB of offloaded values from a file in %s failed: %s",
                           mebibytes(bytes), folder,
                           n < 0 ? strerror(errno) : "the file is shorter than what was written");
        done += n;
    }
    return MX_OK;
}

mx_status mx_spill_move(mx_job *job, void *data, mx_range range, int64_t bytes, bool out)
{
    (void)job;
    return out ? write_values(data, range, bytes) : read_values(data, range, bytes);
}

/* ---- statistics ---- */

const char *mx_spill_directory(void) { return folder ? folder : ""; }

int64_t mx_spill_file_bytes(void)
{
    struct stat about;
    return file >= 0 && fstat(file, &about) == 0 ? about.st_size : 0;
}
