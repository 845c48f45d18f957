/* The host's storage for offloaded copies: one unnamed file per process.
 *
 * The file has no name in its directory (or loses it at once), so it disappears however the process ends. Ranges of
 * released copies are used again, so the file does not grow if each step offloads the same. The first four functions
 * are entries of the host's mx_device. Not collective. */
#ifndef MX_CORE_SPILL_H
#define MX_CORE_SPILL_H

#include "core/job.h"

/* Opens the file in `directory`; NULL or empty: in $TMPDIR, or in /var/tmp if that is not set. Without this call, the
 * first offload opens it there. MX_ERR_IO if the file cannot be created; MX_ERR_STATE if the directory would change
 * while the file contains copies. */
mx_status mx_spill_open(mx_device *device, const char *directory);

mx_status mx_spill_take_range(mx_device *device, int64_t bytes, mx_range *range);
void mx_spill_give_range(mx_device *device, mx_range given);
mx_status mx_spill_move(mx_job *job, void *data, mx_range range, int64_t bytes, bool out);

const char *mx_spill_directory(void); /* "": no file yet */
int64_t mx_spill_file_bytes(void);    /* size of the file */

#endif
