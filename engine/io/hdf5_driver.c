#include "io/hdf5_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

typedef struct driver_file {
    H5FD_t base; /* the library's; must be first */
    int fd;
    int *error;
    haddr_t end_allocated, end_written;
} driver_file;

typedef struct driver_info {
    int *error;
} driver_info;

static H5FD_t *driver_open(const char *path, unsigned flags, hid_t access, haddr_t limit)
{
    (void)flags;
    (void)limit;
    const driver_info *info = H5Pget_driver_info(access);
    driver_file *file = info ? calloc(1, sizeof *file) : NULL;
    if (!file)
        return NULL;
    file->error = info->error;
    file->fd = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
    if (file->fd < 0) {
        *file->error = errno;
        free(file);
        return NULL;
    }
    return &file->base;
}

static void keep_error(driver_file *file)
{
    if (*file->error == 0)
        *file->error = errno ? errno : EIO;
}

static herr_t driver_close(H5FD_t *base)
{
    driver_file *file = (driver_file *)base;
    if (close(file->fd) != 0)
        keep_error(file);
    free(file);
    return 0;
}

static herr_t driver_query(const H5FD_t *base, unsigned long *flags)
{
    (void)base;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *base, H5FD_mem_t type)
{
    (void)type;
    return ((const driver_file *)base)->end_allocated;
}

static herr_t driver_set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t end)
{
    (void)type;
    ((driver_file *)base)->end_allocated = end;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *base, H5FD_mem_t type)
{
    (void)type;
    return ((const driver_file *)base)->end_written;
}

/* Bytes that were not or could not be written read as zeros. */
static herr_t driver_read(H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t at, size_t bytes, void *to)
{
    (void)type;
    (void)transfer;
    driver_file *file = (driver_file *)base;
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(file->fd, (char *)to + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            keep_error(file);
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    memset((char *)to + done, 0, bytes - done);
    return 0;
}

static herr_t driver_write(H5FD_t *base, H5FD_mem_t type, hid_t transfer, haddr_t at, size_t bytes, const void *from)
{
    (void)type;
    (void)transfer;
    driver_file *file = (driver_file *)base;
    for (size_t done = 0; done < bytes && *file->error == 0;) {
        ssize_t written = pwrite(file->fd, (const char *)from + done, bytes - done, (off_t)(at + done));
        if (written < 0 && errno != EINTR)
            keep_error(file);
        done += written > 0 ? (size_t)written : 0;
    }
    if (at + bytes > file->end_written)
        file->end_written = at + bytes;
    return 0;
}

static herr_t driver_truncate(H5FD_t *base, hid_t transfer, hbool_t closing)
{
    (void)transfer;
    (void)closing;
    driver_file *file = (driver_file *)base;
    if (*file->error == 0 && ftruncate(file->fd, (off_t)file->end_allocated) != 0)
        keep_error(file);
    file->end_written = file->end_allocated;
    return 0;
}

static const H5FD_class_t driver = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)300, /* 256 to 511 are for testing and private use */
#endif
    .name = "mxlua",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(driver_info),
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

herr_t mx_h5_use_driver(hid_t access, int *error)
{
    hid_t id = H5FDregister(&driver);
    if (id < 0)
        return -1;
    herr_t result = H5Pset_driver(access, id, &(driver_info){error}); /* HDF5 keeps the driver as long as it needs it */
    H5FDunregister(id);
    return result;
}
