/* Recognises file formats by their first bytes, so that a reader can name the format of a file that it does not expect.
 * Pure; not collective. */
#ifndef MX_IO_FORMAT_H
#define MX_IO_FORMAT_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* The formats that readers distinguish; all others are MX_FORMAT_OTHER. */
typedef enum mx_format_kind {
    MX_FORMAT_OTHER,
    MX_FORMAT_GZIP,
    MX_FORMAT_ZSTD,
    MX_FORMAT_HDF5,
    MX_FORMAT_UTF16,
    MX_FORMAT_TOKENS_U16, /* token files of llm.c with uint16 or uint32 tokens */
    MX_FORMAT_TOKENS_U32,
    MX_FORMAT_GGUF,
    MX_FORMAT_SAFETENSORS,
    MX_FORMAT_PICKLE,  /* Python's pickle: older PyTorch files */
    MX_FORMAT_ZIP,     /* newer PyTorch files, and others */
    MX_FORMAT_POINTER, /* a git-lfs pointer instead of the file */
} mx_format_kind;

typedef struct mx_format {
    mx_format_kind kind;
    const char *name;   /* "a Parquet file" */
    const char *advice; /* what to do with it */
} mx_format;

/* This many bytes at the start of a file are enough for all formats; fewer bytes recognise fewer formats. */
enum { MX_FORMAT_BYTES = 1024 };

/* The format of a file that starts with these bytes; NULL for text and plain numbers. */
const mx_format *mx_format_of(const void *head, size_t bytes);

/* Returns MX_ERR_IO: the file at `path` has this format, but `expected` ("text") was expected. */
mx_status mx_format_refuse(const char *path, const mx_format *format, const char *expected);

/* MX_ERR_IO if the bytes are a git-lfs pointer instead of the content of `path`. */
mx_status mx_format_refuse_pointer(const char *path, const void *head, size_t bytes);

/* The format of an open file of `bytes` bytes. */
mx_status mx_format_read(int fd, const char *path, int64_t bytes, const mx_format **out);

#endif
