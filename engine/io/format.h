/* Formats of files by their first bytes, to name a file that is not what its reader expects. Pure; not collective. */
#ifndef MX_IO_FORMAT_H
#define MX_IO_FORMAT_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* What readers treat apart; all else is MX_FORMAT_OTHER. */
typedef enum mx_format_kind {
    MX_FORMAT_OTHER,
    MX_FORMAT_GZIP,
    MX_FORMAT_ZSTD,
    MX_FORMAT_HDF5,
    MX_FORMAT_UTF16,
    MX_FORMAT_TOKENS_U16, /* token files of llm.c, of uint16 and of uint32 */
    MX_FORMAT_TOKENS_U32,
    MX_FORMAT_GGUF,
    MX_FORMAT_SAFETENSORS,
    MX_FORMAT_PICKLE,  /* of Python, which older files of PyTorch are */
    MX_FORMAT_ZIP,     /* newer files of PyTorch, and others */
    MX_FORMAT_POINTER, /* of git-lfs, in place of the file */
} mx_format_kind;

typedef struct mx_format {
    mx_format_kind kind;
    const char *name;   /* "a Parquet file" */
    const char *advice; /* what to do with it */
} mx_format;

/* So many bytes of a file's start tell all formats; fewer tell fewer. */
enum { MX_FORMAT_BYTES = 1024 };

/* The format of a file that starts with these bytes; NULL where they tell none: text, and bare numbers. */
const mx_format *mx_format_of(const void *head, size_t bytes);

/* MX_ERR_IO: the file at `path` is of this format, and `expected` ("text") was expected. */
mx_status mx_format_refuse(const char *path, const mx_format *format, const char *expected);

/* MX_ERR_IO where the bytes are a git-lfs pointer and not the file at `path`. */
mx_status mx_format_refuse_pointer(const char *path, const void *head, size_t bytes);

/* The format of an open file of `bytes` bytes. */
mx_status mx_format_read(int fd, const char *path, int64_t bytes, const mx_format **out);

#endif
