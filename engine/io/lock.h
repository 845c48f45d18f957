/* Locks: one process at a time writes in a folder.
 *
 * A lock is a small file that says who holds it. It is made whole under another name and linked to its own, so it
 * needs no flock and works on file systems that several machines share. Whoever is killed leaves the file behind; the
 * next process sees that the holder is gone and takes the lock over. Not collective: on several ranks one takes it. */
#ifndef MX_IO_LOCK_H
#define MX_IO_LOCK_H

#include "core/status.h"

enum { MX_LOCK_TEXT = 512 };

typedef struct mx_lock mx_lock;

/* Takes the lock at `path`, a file in a folder that is there. Does not wait: MX_ERR_STATE names the process that holds
 * it, its host and since when, and says what to do, `hint` being what may be done beside waiting. A holder that is
 * certainly gone (a process of this machine that has ended, or a machine that has been started again) is no obstacle:
 * *note then says whose lock was taken over; else it is empty. The lock of this very process is taken over without a
 * word. */
mx_status mx_lock_take(const char *path, const char *hint, mx_lock **out, char note[MX_LOCK_TEXT]);

/* Shows other machines that the holder is alive. MX_ERR_STATE when another process has the lock, which happens only
 * after somebody removed the file by hand. What else goes wrong with the file is left to whoever writes in the folder
 * next. */
mx_status mx_lock_beat(mx_lock *lock);

/* What stands in the file and tells this lock from every other one. */
const char *mx_lock_id(const mx_lock *lock);

/* Removes the file, unless it is another's by now, and frees the lock. exit() does so for every lock. */
void mx_lock_release(mx_lock *lock);
void mx_lock_release_all(void);

#endif
