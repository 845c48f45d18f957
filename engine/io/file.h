/* Files: whole reads, and writes that replace a file at once or not at all. log.h adds lines to a file.
 *
 * Every failure is MX_ERR_IO and names the path and the system's reason. Not collective: on several ranks one writes.
 */
#ifndef MX_IO_FILE_H
#define MX_IO_FILE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* The whole file at once. More than `limit` bytes is an error (0: no limit). The caller frees *text; a zero byte
 * follows the *bytes bytes. */
mx_status mx_file_read(const char *path, int64_t limit, char **text, size_t *bytes);

/* Opens a regular file for reading and tells its size. */
mx_status mx_file_open(const char *path, int *fd, int64_t *bytes);

/* Exactly `bytes` bytes from `offset` on. A file that ends before is an error that says what was there. */
mx_status mx_file_read_at(int fd, const char *path, int64_t offset, void *to, int64_t bytes);

/* Writes `bytes` bytes at `offset` of a file that is open for writing. */
mx_status mx_file_write_at(int fd, const char *path, int64_t offset, const void *data, int64_t bytes);

/* A checksum of a file: of all of it up to 1 MiB, else of its size and 64 places of 16 KiB, the first and the last of
 * them at its ends. */
mx_status mx_file_sum(const char *path, uint32_t *out);

bool mx_file_exists(const char *path);

/* What a path names. */
typedef struct mx_file_info {
    const char *kind; /* "file", "folder", "pipe", "socket", "disk", "device" or "nothing" */
    bool is_link;     /* the last part of the path is a symbolic link; the other fields are of what it leads to */
    int64_t bytes;
    char *identity; /* the same for two paths of one file, also of one that is not there yet; the caller frees it */
} mx_file_info;

mx_status mx_file_about(const char *path, mx_file_info *info);

/* MX_OK when a draft of `path` could be made and committed now; leaves nothing behind. For files that a run will write
 * at its end. */
mx_status mx_file_check_writable(const char *path);

/* Makes a folder and those above it; one that is there already is no failure. */
mx_status mx_file_make_folders(const char *path);

/* A file that is being written: under a temporary name beside `path`, until mx_draft_commit makes it durable and gives
 * it its name in one step. Until then, and after mx_draft_discard, an older file at `path` is untouched. The temporary
 * name says which process made it, so the next draft of that path removes what a killed one has left. */
typedef struct mx_draft {
    char *path, *temporary;
} mx_draft;

mx_status mx_draft_open(mx_draft *draft, const char *path); /* makes the temporary file, empty */
mx_status mx_draft_commit(mx_draft *draft);                 /* sync, rename, sync the folder; discards on failure */
void mx_draft_discard(mx_draft *draft);                     /* harmless after a commit or a discard */

/* A draft of these bytes, committed. */
mx_status mx_file_write(const char *path, const void *data, size_t bytes);

/* The same, but the file may be lost when the machine crashes: for files that say how things stand now. */
mx_status mx_file_write_unsynced(const char *path, const void *data, size_t bytes);

#endif
