#include "io/seal.h"

#include "io/checksum.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The last bytes of a sealed file. Before them are `count` extents, and before these the HDF5 content. */
typedef struct footer {
    int64_t hdf5_bytes;
    int64_t count;
    uint32_t structure_crc; /* of the HDF5 content outside the extents */
    uint32_t seal_crc;      /* of the extents and this footer, with this field 0 */
    char magic[8];
} footer;

static const char magic[8] = {'m', 'x', '-', 's', 'e', 'a', 'l', '1'};

static int by_offset(const void *a, const void *b)
{
    int64_t x = ((const mx_extent *)a)->offset, y = ((const mx_extent *)b)->offset;
    return (x > y) - (x < y);
}

static mx_status crc_of_range(int fd, const char *name, int64_t start, int64_t end, uint32_t *crc)
{
    unsigned char buffer[16384];
    while (start < end) {
        int64_t part = end - start < (int64_t)sizeof buffer ? end - start : (int64_t)sizeof buffer;
        MX_TRY(mx_file_read_at(fd, name, start, buffer, part));
        *crc = mx_crc32c(*crc, buffer, (size_t)part);
        start += part;
    }
    return MX_OK;
}

/* Requires extents that are sorted, do not overlap and are inside the HDF5 content. */
static mx_status crc_of_structure(int fd, const char *name, int64_t bytes, const mx_extent *extents, int64_t count,
                                  uint32_t *crc)
{
    int64_t at = 0;
    *crc = 0;
    for (int64_t i = 0; i < count; i++) {
        MX_TRY(crc_of_range(fd, name, at, extents[i].offset, crc));
        at = extents[i].offset + extents[i].bytes;
    }
    return crc_of_range(fd, name, at, bytes, crc);
}

static uint32_t crc_of_seal(const mx_extent *extents, footer end)
{
    end.seal_crc = 0;
    return mx_crc32c(mx_crc32c(0, extents, (size_t)end.count * sizeof *extents), &end, sizeof end);
}

/* ---- writing ---- */

static mx_status append(int fd, const char *name, int64_t offset, const void *data, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t written = pwrite(fd, (const char *)data + done, (size_t)(bytes - done), offset + done);
        if (written < 0 && errno != EINTR)
            return mx_fail(MX_ERR_IO, "cannot write '%s': %s", name, strerror(errno));
        done += written > 0 ? written : 0;
    }
    return MX_OK;
}

static mx_status write_seal(int fd, const char *name, mx_extent *extents, int64_t count)
{
    struct stat about;
    if (fstat(fd, &about) != 0)
        return mx_fail(MX_ERR_IO, "cannot examine '%s': %s", name, strerror(errno));
    footer end = {.hdf5_bytes = about.st_size, .count = count};
    memcpy(end.magic, magic, sizeof magic);
    if (count)
        qsort(extents, (size_t)count, sizeof *extents, by_offset);
    MX_TRY(crc_of_structure(fd, name, end.hdf5_bytes, extents, count, &end.structure_crc));
    end.seal_crc = crc_of_seal(extents, end);
    int64_t table_bytes = count * (int64_t)sizeof *extents;
    MX_TRY(append(fd, name, end.hdf5_bytes, extents, table_bytes));
    return append(fd, name, end.hdf5_bytes + table_bytes, &end, sizeof end);
}

mx_status mx_seal_write(const char *path, const char *name, mx_extent *extents, int64_t count)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return mx_fail(MX_ERR_IO, "cannot write '%s': %s", name, strerror(errno));
    mx_status status = write_seal(fd, name, extents, count);
    if (close(fd) != 0 && status == MX_OK)
        status = mx_fail(MX_ERR_IO, "cannot write '%s': %s", name, strerror(errno));
    return status;
}

/* ---- checking ---- */

static mx_status fail_damaged(const char *name)
{
    return mx_fail(MX_ERR_IO,
                   "'%s' is damaged, or was changed by another tool: its structure does not match its checksum", name);
}

/* Detects a lost seal: a file without a seal that continues behind the end named in its HDF5 superblock (version 2 or
 * 3).
 */
static mx_status check_unsealed(int fd, const char *name, int64_t bytes)
{
    static const char signature[8] = {'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};
    unsigned char block[36];
    int64_t end;
    if (bytes < (int64_t)sizeof block)
        return MX_OK; /* not an HDF5 file: opening it reports that */
    MX_TRY(mx_file_read_at(fd, name, 0, block, sizeof block));
    memcpy(&end, block + 28, sizeof end);
    bool known = memcmp(block, signature, sizeof signature) == 0 && (block[8] == 2 || block[8] == 3) && block[9] == 8;
    return known && end >= 0 && end < bytes ? fail_damaged(name) : MX_OK;
}

static mx_status check_extents(int fd, const char *name, const footer *end, mx_extent *extents)
{
    int64_t at = 0;
    uint32_t crc;
    MX_TRY(mx_file_read_at(fd, name, end->hdf5_bytes, extents, end->count * (int64_t)sizeof *extents));
    if (crc_of_seal(extents, *end) != end->seal_crc)
        return fail_damaged(name);
    for (int64_t i = 0; i < end->count; i++) {
        const mx_extent *e = &extents[i];
        if (e->offset < at || e->bytes < 0 || e->offset > end->hdf5_bytes || e->bytes > end->hdf5_bytes - e->offset)
            return fail_damaged(name);
        at = e->offset + e->bytes;
    }
    MX_TRY(crc_of_structure(fd, name, end->hdf5_bytes, extents, end->count, &crc));
    return crc == end->structure_crc ? MX_OK : fail_damaged(name);
}

mx_status mx_seal_check(int fd, const char *name, int64_t bytes)
{
    footer end;
    if (bytes < (int64_t)sizeof end)
        return MX_OK;
    MX_TRY(mx_file_read_at(fd, name, bytes - (int64_t)sizeof end, &end, sizeof end));
    if (memcmp(end.magic, magic, sizeof magic) != 0)
        return check_unsealed(fd, name, bytes);
    int64_t before = bytes - (int64_t)sizeof end;
    if (end.count < 0 || end.count > before / (int64_t)sizeof(mx_extent) ||
        end.hdf5_bytes != before - end.count * (int64_t)sizeof(mx_extent))
        return fail_damaged(name);
    mx_extent *extents = malloc((size_t)end.count * sizeof *extents + 1);
    if (!extents)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for a list of %lld tensors", name, (long long)end.count);
    mx_status status = check_extents(fd, name, &end, extents);
    free(extents);
    return status;
}
