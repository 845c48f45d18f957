/* Expands patterns and folders to the files in them. */
#ifndef MX_IO_PATHS_H
#define MX_IO_PATHS_H

#include "core/status.h"

#include <stddef.h>

typedef struct mx_paths {
    char **path; /* sorted by their bytes */
    size_t count, room;
} mx_paths;

/* Adds the files that `pattern` names: the file itself; for a folder, all files in it and below (without names that
 * begin with a dot); otherwise the files that match it as a shell pattern. Symbolic links are followed. MX_ERR_IO if
 * there are none. Sorts the files that it adds. */
mx_status mx_paths_add(mx_paths *paths, const char *pattern);
void mx_paths_free(mx_paths *paths);

#endif
