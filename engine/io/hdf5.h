/* HDF5: tensors and a few facts about them in a file that other tools read.
 *
 * A tensor is a dataset under its own name; a '/' in a name makes groups, any other character is kept. f32, i32, u8 and
 * i8 are HDF5's own little-endian types; bf16 is a 16-bit floating-point type (1 sign, 8 exponent, 7 mantissa bits),
 * which h5py and h5dump read as numbers. Values go straight between the file and the tensor's memory.
 *
 * Each dataset carries CRC-32C sums of blocks of whole rows (attribute "crc32c", and "crc32c_rows": rows a block),
 * which every read verifies, also one of a few rows; HDF5 itself guards its headers. A dataset without them (made by
 * another tool) is read unverified. Attributes of the file are strings, integers and floats.
 *
 * The library is used serially: one rank writes a file; any number may read it. Different files may be in use by
 * several threads, which wait for each other: nothing else may call the library, however harmless it looks. Not
 * collective. Failures are MX_ERR_IO, in one line that names the file; HDF5's own words are folded in. */
#ifndef MX_IO_HDF5_H
#define MX_IO_HDF5_H

#include "core/tensor.h"
#include "io/value.h"

/* Of the library: "1.10.8". */
const char *mx_h5_version(void);

/* ---- writing: open, put, commit; the file appears whole at the commit or not at all ---- */

typedef struct mx_h5_writer mx_h5_writer;

mx_status mx_h5_create(const char *path, mx_h5_writer **out);
mx_status mx_h5_put(mx_h5_writer *w, const char *name, const mx_tensor *t);

/* `map`: strings (without zero bytes), integers and floats by name; MX_ERR_VALUE for another kind. */
mx_status mx_h5_put_attributes(mx_h5_writer *w, const mx_value *map);

mx_status mx_h5_commit(mx_h5_writer *w); /* frees the writer, whatever the outcome */
void mx_h5_abort(mx_h5_writer *w);       /* the same, leaving no file; NULL is allowed */

/* ---- reading ---- */

typedef struct mx_h5_entry {
    char *name;     /* without a leading '/' */
    char type[16];  /* "f32", and for types that are not ours what they are: "f64", "u16", "string" */
    int dtype;      /* an mx_dtype; -1: a type that no tensor has */
    mx_shape shape; /* n_dims -1: more than MX_MAX_DIMS, or none at all */
    bool checked;   /* carries checksums */
} mx_h5_entry;

typedef struct mx_h5 mx_h5;

/* Reads what is in the file (names, types, shapes, attributes), no values. */
mx_status mx_h5_open(const char *path, mx_h5 **out);
void mx_h5_close(mx_h5 *file); /* NULL is allowed */

int64_t mx_h5_count(const mx_h5 *file);
const mx_h5_entry *mx_h5_entry_at(const mx_h5 *file, int64_t i); /* in the order of the names' bytes */
const mx_h5_entry *mx_h5_find(const mx_h5 *file, const char *name);

/* A map; attributes that are neither a string nor a single number are left out. */
const mx_value *mx_h5_attributes(const mx_h5 *file);

/* A new tensor of the dataset's dtype with the rows [first, first + rows) of its dimension 0; rows -1: up to the end.
 * A scalar has no rows: 0 and -1. Nothing is converted: MX_ERR_DTYPE for a dataset whose type is not a tensor's. */
mx_status mx_h5_read(mx_h5 *file, const char *name, int64_t first, int64_t rows, mx_tensor **out);

/* The same into `to`, whose dtype and shape must be those. On failure its values are undefined. */
mx_status mx_h5_read_into(mx_h5 *file, const char *name, int64_t first, int64_t rows, mx_tensor *to);

/* Integers of any HDF5 width as i32: `count` values of a one-dimensional dataset, from `first` on. MX_ERR_VALUE for one
 * that is outside i32. For token files. */
mx_status mx_h5_read_integers(mx_h5 *file, const char *name, int64_t first, int64_t count, int32_t *to);

/* ---- values that are written and read piece by piece (hdf5_stream.c) ---- */

/* Integers, little-endian, in one run in the file. */
typedef enum mx_h5_int { MX_H5_U16, MX_H5_U32, MX_H5_I64 } mx_h5_int;

typedef struct mx_h5_stream mx_h5_stream;

/* A new dataset of `count` >= 1 values, to be given from the first to the last. With `checked` its values have
 * checksums of the caller's; else the seal vouches for them, and opening the file reads them all. */
mx_status mx_h5_stream_new(mx_h5_writer *w, const char *name, mx_h5_int type, int64_t count, bool checked,
                           mx_h5_stream **out);
mx_status mx_h5_stream_put(mx_h5_stream *s, const void *values, int64_t count); /* MX_ERR_VALUE for too many */

/* Frees the stream. MX_ERR_VALUE when values are missing. To be called before the writer is committed or aborted. */
mx_status mx_h5_stream_close(mx_h5_stream *s);

/* Where the values of a one-dimensional dataset lie in the file, if they are integers of 1, 2, 4 or 8 bytes,
 * little-endian, in one run; else *offset is -1. That all of them lie in the file is checked. */
typedef struct mx_h5_place {
    int64_t offset, count;
    int value_bytes;
    bool is_signed;
} mx_h5_place;
mx_status mx_h5_locate(const mx_h5 *file, const char *name, int64_t file_bytes, mx_h5_place *place);

#endif
