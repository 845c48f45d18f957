/* Folders: what is in them, moving them to another name durably, and removing them.
 *
 * Every failure is MX_ERR_IO and names the path and the system's reason. Not collective: on several ranks one changes
 * them. */
#ifndef MX_IO_FOLDER_H
#define MX_IO_FOLDER_H

#include "io/value.h"

/* The names in a folder, in the order of their bytes, as an array of strings; "." and ".." are left out. */
mx_status mx_folder_list(const char *path, mx_value *names);

/* Syncs the folder `from`, whose files have been synced, gives it the name `to` beside it, and syncs that. MX_ERR_IO
 * where something has that name. */
mx_status mx_folder_move(const char *from, const char *to);

/* The same where something has the name `to`: that gets the name `old`, beside it. Both happen at once where the file
 * system can exchange names. */
mx_status mx_folder_replace(const char *from, const char *to, const char *old);

/* Removes a folder, the files in it and the folders below it; symbolic links are removed, not followed. */
mx_status mx_folder_remove(const char *path);

#endif
