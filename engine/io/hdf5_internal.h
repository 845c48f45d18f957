/* Declarations that the hdf5_*.c files share; only for these files. */
#ifndef MX_IO_HDF5_INTERNAL_H
#define MX_IO_HDF5_INTERNAL_H

#include "io/file.h"
#include "io/hdf5.h"
#include "io/seal.h"

#define H5_USE_110_API /* the same functions with every version of the library */
#include <hdf5.h>

/* One checksum covers as many whole rows as fit this size, and at least one row. */
enum { MX_H5_BLOCK_BYTES = 4 << 20 };

#define MX_H5_SUMS "crc32c"
#define MX_H5_SUM_ROWS "crc32c_rows"

/* A lock around the library, which is not thread-safe: the script's thread uses it, and a thread that writes files in
 * the background. A function holds the lock until it returns with
 *     __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
 * The lock is recursive. The first call also stops HDF5 from printing its errors. */
bool mx_h5_take(void);
void mx_h5_let_go(const bool *held);

/* Returns MX_ERR_IO with the message "'PATH': what (why)" on one line, where why is the innermost of HDF5's errors. */
__attribute__((format(printf, 2, 3), cold)) mx_status mx_h5_fail(const char *path, const char *format, ...);

/* A new handle of the HDF5 type for a dtype. Negative on failure. */
hid_t mx_h5_new_type(mx_dtype dtype);

/* Sets what an entry says of the type in the file. */
void mx_h5_describe_type(hid_t type, mx_h5_entry *entry);

/* A tensor as rows, the unit of partial reads and checksums. A scalar is one row. */
typedef struct mx_h5_rows {
    int64_t rows, row_bytes, block_rows;
} mx_h5_rows;
mx_h5_rows mx_h5_rows_of(const mx_shape *shape, mx_dtype dtype);

/* The number of blocks of block_rows rows that cover all rows. */
int64_t mx_h5_blocks(const mx_h5_rows *r);

/* ---- a file that is written ---- */

/* A tensor of which not all rows have been written. */
typedef struct mx_h5_growing {
    char *name; /* NULL: there is none */
    mx_dtype dtype;
    mx_shape shape;
    mx_h5_rows rows;
    hid_t dataset, type, space;
    int64_t done;   /* rows written */
    uint32_t *sums; /* of its blocks, so far */
} mx_h5_growing;

struct mx_h5_writer {
    mx_draft draft;
    hid_t file;
    int error;          /* errno of the first write that failed; hidden from HDF5 */
    mx_extent *extents; /* where the values are in the file, for the seal */
    int64_t count, room;
    mx_h5_growing growing;
};

/* The outcome of a step: HDF5's error or the system's. To be called before the next call of HDF5, which would forget
 * its error. */
__attribute__((format(printf, 3, 4))) mx_status mx_h5_outcome(const mx_h5_writer *w, herr_t result, const char *format,
                                                              ...);

/* Creates a contiguous dataset and the groups above it. */
mx_status mx_h5_new_dataset(const mx_h5_writer *w, const char *name, hid_t type, hid_t space, hid_t *out);

/* Excludes these values from the seal, because they have their own checksums. */
mx_status mx_h5_add_extent(mx_h5_writer *w, hid_t dataset, int64_t bytes);

/* ---- a file that is read ---- */

hid_t mx_h5_id(const mx_h5 *file);

/* Access properties for opening and creating files. Files are not locked, because they appear by renaming and never
 * change afterwards. */
hid_t mx_h5_access(void);

#endif
