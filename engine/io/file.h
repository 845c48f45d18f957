/* Files: read whole files, and replace files atomically. (log.h appends lines to a file.)
 *
 * Every failure is MX_ERR_IO; the message names the path and the system's reason. Not collective: with several ranks,
 * one of them writes. */
#ifndef MX_IO_FILE_H
#define MX_IO_FILE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads the whole file. More than `limit` bytes is an error (0: no limit). The caller frees *text; a zero byte follows
 * the *bytes bytes. */
mx_status mx_file_read(const char *path, int64_t limit, char **text, size_t *bytes);

/* Opens a regular file for reading and returns its size. */
mx_status mx_file_open(const char *path, int *fd, int64_t *bytes);

/* Reads exactly `bytes` bytes from `offset` on. A file that ends before that is an error; the message says how many
 * bytes there were. */
mx_status mx_file_read_at(int fd, const char *path, int64_t offset, void *to, int64_t bytes);

/* Writes `bytes` bytes at `offset` of a file that is open for writing. */
mx_status mx_file_write_at(int fd, const char *path, int64_t offset, const void *data, int64_t bytes);

/* A checksum of a file: of the whole file up to 1 MiB; of a larger file, of its size and 64 samples of 16 KiB, the
 * first at its start and the last at its end. */
mx_status mx_file_sum(const char *path, uint32_t *out);

bool mx_file_exists(const char *path);

/* What a path refers to. */
typedef struct mx_file_info {
    const char *kind; /* "file", "folder", "pipe", "socket", "disk", "device" or "nothing" */
    bool is_link;     /* the last part of the path is a symbolic link; the other fields describe its target */
    int64_t bytes;
    char *identity; /* equal for two paths of one file, even if it does not exist yet; the caller frees it */
} mx_file_info;

mx_status mx_file_about(const char *path, mx_file_info *info);

/* MX_OK if a draft of `path` could be created and committed now; leaves nothing behind. For files that a run writes at
 * its end. */
mx_status mx_file_check_writable(const char *path);

/* Creates a folder and its parents; MX_OK if it already exists. */
mx_status mx_file_make_folders(const char *path);

/* A file that is being written, under a temporary name next to `path`. mx_draft_commit makes it durable and renames it
 * in one step. Until then, and after mx_draft_discard, an older file at `path` is unchanged. The temporary name
 * identifies the process, so the next draft of that path removes the remains of a killed process. */
typedef struct mx_draft {
    char *path, *temporary;
} mx_draft;

mx_status mx_draft_open(mx_draft *draft, const char *path); /* creates the temporary file, empty */
mx_status mx_draft_write_at(const mx_draft *draft, int64_t offset, const void *data, int64_t bytes);
mx_status mx_draft_commit(mx_draft *draft); /* sync, rename, sync the folder; discards on failure */
void mx_draft_discard(mx_draft *draft);     /* harmless after a commit or a discard */

/* Writes these bytes through a draft and commits it. */
mx_status mx_file_write(const char *path, const void *data, size_t bytes);

/* The same without syncing, so the file may be lost if the machine crashes: for files that show the current state. */
mx_status mx_file_write_unsynced(const char *path, const void *data, size_t bytes);

#endif
