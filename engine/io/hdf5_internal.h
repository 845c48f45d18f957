/* What the hdf5_*.c share; for these files only. */
#ifndef MX_IO_HDF5_INTERNAL_H
#define MX_IO_HDF5_INTERNAL_H

#include "io/file.h"
#include "io/hdf5.h"
#include "io/seal.h"

#define H5_USE_110_API /* the same calls whatever the library's version */
#include <hdf5.h>

/* One checksum covers as many whole rows as fit this; one, when a row is larger. */
enum { MX_H5_BLOCK_BYTES = 4 << 20 };

#define MX_H5_SUMS "crc32c"
#define MX_H5_SUM_ROWS "crc32c_rows"

/* One thread at a time is in the library, which is not made for more: the script's, or one that writes files beside it.
 * A function holds it from
 *     __attribute__((cleanup(mx_h5_let_go), unused)) bool held = mx_h5_take();
 * to its end; one that does may call another that does. The first call keeps HDF5 from printing its errors. */
bool mx_h5_take(void);
void mx_h5_let_go(const bool *held);

/* MX_ERR_IO: "'PATH': what (why)", where why is the innermost of HDF5's errors, on one line. */
__attribute__((format(printf, 2, 3), cold)) mx_status mx_h5_fail(const char *path, const char *format, ...);

/* A new handle of the file type of a dtype. Negative on failure. */
hid_t mx_h5_new_type(mx_dtype dtype);

/* What a type of a file is, in a word; *dtype is the mx_dtype that equals it, or -1. */
void mx_h5_describe_type(hid_t type, char text[16], int *dtype);

/* A tensor as rows: what partial reads and checksums count in. A scalar is one row. */
typedef struct mx_h5_rows {
    int64_t rows, row_bytes, block_rows;
} mx_h5_rows;
mx_h5_rows mx_h5_rows_of(const mx_shape *shape, mx_dtype dtype);

/* Blocks of block_rows rows that cover them all. */
int64_t mx_h5_blocks(const mx_h5_rows *r);

/* ---- a file that is written ---- */

struct mx_h5_writer {
    mx_draft draft;
    hid_t file;
    int error;          /* errno of the first write that failed, which HDF5 is not told */
    mx_extent *extents; /* of the values written, for the seal */
    int64_t count, room;
};

/* What came of a step: HDF5's failure, or the system's. To be asked before HDF5 is called again, which forgets its
 * reason. */
__attribute__((format(printf, 3, 4))) mx_status mx_h5_outcome(const mx_h5_writer *w, herr_t result, const char *format,
                                                              ...);

/* A new contiguous dataset, and the groups above it. */
mx_status mx_h5_new_dataset(const mx_h5_writer *w, const char *name, hid_t type, hid_t space, hid_t *out);

/* Notes that the seal does not vouch for these values: they have checksums of their own. */
mx_status mx_h5_add_extent(mx_h5_writer *w, hid_t dataset, int64_t bytes);

/* ---- a file that is read ---- */

hid_t mx_h5_id(const mx_h5 *file);

/* Properties of opening and making files: no locks, since files appear by renaming and never change. */
hid_t mx_h5_access(void);

#endif
