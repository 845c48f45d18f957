/* Locks: let only one process at a time write in a folder.
 *
 * A lock is a small file that names its holder. The file is written under another name and then linked to its own, so
 * it needs no flock and works on file systems that several machines share. A killed process leaves the file behind; the
 * next process sees that the holder is gone and takes the lock over. Not collective: with several ranks, one takes it.
 */
#ifndef MX_IO_LOCK_H
#define MX_IO_LOCK_H

#include "core/status.h"

enum { MX_LOCK_TEXT = 512 };

typedef struct mx_lock mx_lock;

/* Takes the lock at `path`, a file in an existing folder. Does not wait: if another process holds the lock, returns
 * MX_ERR_STATE. The message names that process, its host and since when it has held the lock, and says what to do;
 * `hint` is what the user can do instead of waiting. If the holder is certainly gone (a process of this machine that
 * has ended, or a machine that has been restarted), takes the lock over and puts the former holder into `note`, which
 * is empty otherwise. A lock of this same process is taken over without a note. */
mx_status mx_lock_take(const char *path, const char *hint, mx_lock **out, char note[MX_LOCK_TEXT]);

/* Shows other machines that the holder is alive. MX_ERR_STATE if another process has the lock, which happens only after
 * somebody has removed the file by hand. Other errors of the file are ignored here: the next write in the folder will
 * report them. */
mx_status mx_lock_beat(mx_lock *lock);

/* The content of the file that identifies this lock. */
const char *mx_lock_id(const mx_lock *lock);

/* Removes the file, unless it belongs to another process by now, and frees the lock. exit() releases all locks. */
void mx_lock_release(mx_lock *lock);
void mx_lock_release_all(void);

#endif
