/* The seal: a checksum of an HDF5 file's structure, verified before the HDF5 library reads the file. A damaged
 * structure can crash the library.
 *
 * The seal is appended behind the HDF5 content, where other tools do not look. It holds the extents of the datasets'
 * values, which have their own checksums, and one CRC-32C of all bytes outside these extents. A file without a seal
 * comes from another tool and is trusted. If another tool changes a sealed file in place, it counts as damaged; if the
 * tool extends the file, it counts as that tool's file. */
#ifndef MX_IO_SEAL_H
#define MX_IO_SEAL_H

#include "core/status.h"

#include <stdint.h>

typedef struct mx_extent {
    int64_t offset, bytes; /* in the file */
} mx_extent;

/* Appends a seal to the file at `path`, which HDF5 has closed. Sorts `extents`, which must not overlap. MX_ERR_IO,
 * MX_ERR_MEMORY; messages call the file `name`. */
mx_status mx_seal_write(const char *path, const char *name, mx_extent *extents, int64_t count);

/* Verifies the seal of a file of `bytes` bytes, if it has one. MX_ERR_IO if it does not match the file. */
mx_status mx_seal_check(int fd, const char *name, int64_t bytes);

#endif
