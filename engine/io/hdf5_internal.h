/* What hdf5_read.c and hdf5_write.c share; for these files only. */
#ifndef MX_IO_HDF5_INTERNAL_H
#define MX_IO_HDF5_INTERNAL_H

#include "io/hdf5.h"

#define H5_USE_110_API /* the same calls whatever the library's version */
#include <hdf5.h>

/* One checksum covers as many whole rows as fit this; one, when a row is larger. */
enum { MX_H5_BLOCK_BYTES = 4 << 20 };

#define MX_H5_SUMS "crc32c"
#define MX_H5_SUM_ROWS "crc32c_rows"

/* One thread at a time is in the library, which is not made for more: the script's, or one that writes files beside it.
 * A function holds it from
 *     __attribute__((cleanup(mx_h5_let_go))) bool held = mx_h5_take();
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

/* Properties of opening and making files: no locks, since files appear by renaming and never change. */
hid_t mx_h5_access(void);

#endif
