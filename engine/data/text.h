/* Reads texts as a stream in bounded memory and splits them at a separator: plain files, gzip and zstd, recognised by
 * their first bytes.
 *
 * Failures are MX_ERR_IO (a file that cannot be read, or whose compressed data are damaged or end early), MX_ERR_VALUE
 * (a piece longer than the limit) and MX_ERR_MEMORY; messages name the file. Not collective. */
#ifndef MX_DATA_TEXT_H
#define MX_DATA_TEXT_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mx_text mx_text;

/* Reads the pieces that begin within the bytes [start, end) of a plain file; end -1: up to its end. A `separator` of
 * `bytes` bytes ends a piece; with 0 bytes the whole text is one piece. A compressed file can only be read as a whole:
 * MX_ERR_VALUE for a range. A piece has at most `limit` bytes. */
mx_status mx_text_open(const char *path, int64_t start, int64_t end, const char *separator, size_t bytes, size_t limit,
                       mx_text **out);
void mx_text_close(mx_text *text); /* NULL is allowed */

/* The next piece without its separator, valid until the next call; *piece is NULL at the end. An empty last piece is
 * left out. */
mx_status mx_text_next(mx_text *text, const char **piece, size_t *bytes);

/* Where the last piece begins in the (decompressed) text, in bytes. */
int64_t mx_text_offset(const mx_text *text);

/* Number of bytes of the file read so far, for progress. */
int64_t mx_text_consumed(const mx_text *text);

/* Reads the first bytes of the (decompressed) text, at most `room`, and whether the file is compressed. */
mx_status mx_text_head(const char *path, char *head, size_t room, size_t *bytes, bool *compressed);

#endif
