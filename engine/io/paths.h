/* Names of files: patterns and folders to the files that they stand for. */
#ifndef MX_IO_PATHS_H
#define MX_IO_PATHS_H

#include "core/status.h"

#include <stddef.h>

typedef struct mx_paths {
    char **path; /* in the order of their bytes */
    size_t count, room;
} mx_paths;

/* Adds the files that `pattern` stands for: itself where it is a file, all files below it where it is a folder (those
 * whose name begins with a dot left out), else those that match it as a shell's pattern. Symbolic links are followed.
 * MX_ERR_IO when there are none. Sorts what it adds. */
mx_status mx_paths_add(mx_paths *paths, const char *pattern);
void mx_paths_free(mx_paths *paths);

#endif
