/* The seal: what vouches for an HDF5 file's structure before the HDF5 library, which a damaged structure can crash,
 * sees it.
 *
 * Behind the HDF5 part, where other tools do not look, lie the extents of the datasets' values (which have checksums of
 * their own) and one CRC-32C of all bytes outside them. A file without a seal is another tool's, and trusted. A file
 * that another tool has changed in place is told as damaged, one that it has extended is as one of its own. */
#ifndef MX_IO_SEAL_H
#define MX_IO_SEAL_H

#include "core/status.h"

#include <stdint.h>

typedef struct mx_extent {
    int64_t offset, bytes; /* in the file */
} mx_extent;

/* Appends a seal to the file at `path`, closed by HDF5. Sorts `extents`, which must not overlap. MX_ERR_IO,
 * MX_ERR_MEMORY; `name` is the file's in messages. */
mx_status mx_seal_write(const char *path, const char *name, mx_extent *extents, int64_t count);

/* Verifies the seal of a file of `bytes` bytes, if it has one. MX_ERR_IO when it does not fit. */
mx_status mx_seal_check(int fd, const char *name, int64_t bytes);

#endif
