/* Logs: files that lines are added to. Each line reaches the system in one write, so a run that is killed leaves whole
 * lines; where a disk is full, a line that went in by half is taken back. Not collective: on several ranks one writes.
 */
#ifndef MX_IO_LOG_H
#define MX_IO_LOG_H

#include "core/status.h"

#include <stdbool.h>

typedef struct mx_log {
    char *path;
    int fd; /* -1: closed */
} mx_log;

/* A path that the user gave: a file, which is emptied unless `append`; a pipe, which somebody must read by now or soon;
 * a device that is no disk; /dev/stdout or /dev/stderr, which are this program's own. */
mx_status mx_log_open(mx_log *log, const char *path, bool append);

/* A file in a folder of ours, added to. It is never opened through a symbolic link. */
mx_status mx_log_open_own(mx_log *log, const char *path);

mx_status mx_log_line(mx_log *log, const char *text, size_t bytes);  /* adds the newline */
mx_status mx_log_bytes(mx_log *log, const char *data, size_t bytes); /* adds nothing */
mx_status mx_log_close(mx_log *log);                                 /* harmless when closed */

#endif
