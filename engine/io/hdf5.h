/* HDF5: reads and writes files of tensors and attributes that other tools can read too.
 *
 * Each tensor is a dataset with the tensor's name. A '/' in a name creates groups; any other character is kept. f32,
 * i32, u8 and i8 are HDF5's own little-endian types. bf16 is a 16-bit floating-point type (1 sign, 8 exponent, 7
 * mantissa bits), which h5py and h5dump read as numbers. Values are copied directly between the file and the tensor's
 * memory.
 *
 * Each dataset has CRC-32C checksums of blocks of whole rows (attributes "crc32c", and "crc32c_rows": rows per block).
 * Every read verifies them, even a read of a few rows. HDF5 itself protects its headers. A dataset without checksums,
 * written by another tool, is read unverified. Attributes of the file are strings, integers and floats.
 *
 * The library is used serially: one rank writes a file, and any number may read it. Several threads may use different
 * files; they wait for each other. No other code may call the HDF5 library, not even for a trivial query. Not
 * collective. Failures are MX_ERR_IO with a message of one line that names the file and contains HDF5's own message. */
#ifndef MX_IO_HDF5_H
#define MX_IO_HDF5_H

#include "core/tensor.h"
#include "io/bytes.h"
#include "io/value.h"

/* The version of the library: "1.10.8". */
const char *mx_h5_version(void);

/* ---- writing: create, put, commit; the complete file appears at the commit, or no file ---- */

typedef struct mx_h5_writer mx_h5_writer;

mx_status mx_h5_create(const char *path, mx_h5_writer **out);
mx_status mx_h5_put(mx_h5_writer *w, const char *name, const mx_tensor *t);

/* The next rows (of dimension 0) of a tensor of this shape, from the first call for a name to the last. The file gets
 * the bytes that mx_h5_put of the whole would give it. Until a tensor has all of its rows, another one and the commit
 * are MX_ERR_STATE. MX_ERR_SHAPE for rows that do not fit. */
mx_status mx_h5_put_rows(mx_h5_writer *w, const char *name, const mx_shape *shape, const mx_tensor *t);

/* `map` holds strings (without zero bytes), integers and floats by name; MX_ERR_VALUE for another kind. */
mx_status mx_h5_put_attributes(mx_h5_writer *w, const mx_value *map);

mx_status mx_h5_commit(mx_h5_writer *w); /* frees the writer, whatever the outcome */
void mx_h5_abort(mx_h5_writer *w);       /* frees the writer and leaves no file; NULL is allowed */

/* ---- reading ---- */

typedef struct mx_h5_entry {
    char *name;     /* without a leading '/' */
    char type[16];  /* in the file: "f32"; types that tensors do not have: "f16", "i32-be", "odd f32", "string" */
    int dtype;      /* the mx_dtype that it is read as; -1: no tensor holds it */
    bool converted; /* whether numbers change their type when they are read */
    mx_number_layout layout; /* of numbers in the file; kind 0: none that numpy has */
    mx_shape shape;          /* n_dims -1: more than MX_MAX_DIMS dimensions, or no shape */
    bool checked;            /* has checksums */
} mx_h5_entry;

typedef struct mx_h5 mx_h5;

/* Reads the file's names, types, shapes and attributes, but no values. */
mx_status mx_h5_open(const char *path, mx_h5 **out);
void mx_h5_close(mx_h5 *file); /* NULL is allowed */

int64_t mx_h5_count(const mx_h5 *file);
const mx_h5_entry *mx_h5_entry_at(const mx_h5 *file, int64_t i); /* sorted by the names' bytes */
const mx_h5_entry *mx_h5_find(const mx_h5 *file, const char *name);

/* A map of the file's attributes. Attributes that are neither a string nor a single number are left out. */
const mx_value *mx_h5_attributes(const mx_h5 *file);

/* A new tensor of the dataset's dtype with the rows [first, first + rows) of dimension 0; rows -1: up to the end. For a
 * scalar, pass first 0 and rows -1. Numbers of a type that tensors do not have are read as mx_number_layout_dtype
 * says, h5py's booleans as u8; MX_ERR_VALUE for one of 2^63 or more. MX_ERR_DTYPE for texts, compounds and what else no
 * tensor holds. */
mx_status mx_h5_read(mx_h5 *file, const char *name, int64_t first, int64_t rows, mx_tensor **out);

/* The same into the tensor `to`, which must have that dtype and shape. After a failure its values are undefined. */
mx_status mx_h5_read_into(mx_h5 *file, const char *name, int64_t first, int64_t rows, mx_tensor *to);

/* Reads integers of any HDF5 width as i32: `count` values of a one-dimensional dataset, from `first` on. MX_ERR_VALUE
 * for a value outside i32. For token files. */
mx_status mx_h5_read_integers(mx_h5 *file, const char *name, int64_t first, int64_t count, int32_t *to);

/* ---- values that are written and read piece by piece (hdf5_stream.c) ---- */

/* Types of integers: little-endian, contiguous in the file. */
typedef enum mx_h5_int { MX_H5_U16, MX_H5_U32, MX_H5_I64 } mx_h5_int;

typedef struct mx_h5_stream mx_h5_stream;

/* A new dataset of `count` >= 1 values, which are put in order. `checked`: the caller stores checksums of the values;
 * otherwise the seal covers them, and opening the file reads all of them. */
mx_status mx_h5_stream_new(mx_h5_writer *w, const char *name, mx_h5_int type, int64_t count, bool checked,
                           mx_h5_stream **out);
mx_status mx_h5_stream_put(mx_h5_stream *s, const void *values, int64_t count); /* MX_ERR_VALUE for too many */

/* Frees the stream. MX_ERR_VALUE if values are missing. To be called before the writer is committed or aborted. */
mx_status mx_h5_stream_close(mx_h5_stream *s);

/* Where the values of a one-dimensional dataset are in the file, if they are little-endian integers of 1, 2, 4 or 8
 * bytes and contiguous; otherwise offset is -1. Checks that all of them are inside the file. */
typedef struct mx_h5_place {
    int64_t offset, count;
    int value_bytes;
    bool is_signed;
} mx_h5_place;
mx_status mx_h5_locate(const mx_h5 *file, const char *name, int64_t file_bytes, mx_h5_place *place);

#endif
