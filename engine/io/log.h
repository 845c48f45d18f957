/* Logs: append lines to a file. Each line is one write, so a killed run leaves only whole lines. If a full disk takes
 * only part of a line, that part is removed. Not collective: with several ranks, one of them writes. */
#ifndef MX_IO_LOG_H
#define MX_IO_LOG_H

#include "core/status.h"

#include <stdbool.h>

typedef struct mx_log {
    char *path;
    int fd; /* -1: closed */
} mx_log;

/* Opens a path that the user has given: a file, which is emptied unless `append`; a pipe, which must have a reader now
 * or soon; a device that is not a disk; or /dev/stdout or /dev/stderr, which mean this program's own. */
mx_status mx_log_open(mx_log *log, const char *path, bool append);

/* Opens a file in a run's folder for appending. It is never opened through a symbolic link. */
mx_status mx_log_open_own(mx_log *log, const char *path);

mx_status mx_log_line(mx_log *log, const char *text, size_t bytes);  /* adds the newline */
mx_status mx_log_bytes(mx_log *log, const char *data, size_t bytes); /* adds nothing */
mx_status mx_log_close(mx_log *log);                                 /* harmless when closed */

#endif
