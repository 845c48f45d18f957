/* Folders: list them, rename them durably, and remove them.
 *
 * Every failure is MX_ERR_IO; the message names the path and the system's reason. Not collective: with several ranks,
 * one of them changes folders. */
#ifndef MX_IO_FOLDER_H
#define MX_IO_FOLDER_H

#include "io/value.h"

/* The names in a folder as an array of strings, sorted by their bytes, without "." and "..". */
mx_status mx_folder_list(const char *path, mx_value *names);

/* Syncs the folder `from`, whose files are already synced, renames it to `to` in the same parent, and syncs the rename.
 * MX_ERR_IO if `to` exists. */
mx_status mx_folder_move(const char *from, const char *to);

/* The same if `to` exists: it is renamed to `old`, in the same parent. Both renames are one atomic step if the file
 * system can exchange names. */
mx_status mx_folder_replace(const char *from, const char *to, const char *old);

/* Removes a folder with everything in it; symbolic links are removed, not followed. */
mx_status mx_folder_remove(const char *path);

#endif
