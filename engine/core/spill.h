/* Where the host keeps offloaded copies: a file without a name, one for each process.
 *
 * The file is opened in a directory and has no name there (or loses it at once), so that it is gone after any end of
 * the process. Ranges of copies that are forgotten are used again: a step that offloads what the step before did needs
 * no longer file. The first four functions are entries of the host's mx_device. Not collective. */
#ifndef MX_CORE_SPILL_H
#define MX_CORE_SPILL_H

#include "core/job.h"

/* Opens the file in `directory`; NULL or empty: in $TMPDIR, or /var/tmp where that is not set. Without this call the
 * first tensor that is offloaded opens it there. MX_ERR_IO when no file can be made there, MX_ERR_STATE when it is to
 * move to another directory while copies are in it. */
mx_status mx_spill_open(mx_device *device, const char *directory);

mx_status mx_spill_take_range(mx_device *device, int64_t bytes, mx_range *range);
void mx_spill_give_range(mx_device *device, mx_range range);
mx_status mx_spill_move(mx_job *job, void *data, mx_range range, int64_t bytes, bool out);

const char *mx_spill_directory(void); /* "": no file yet */
int64_t mx_spill_file_bytes(void);    /* as the system says */

#endif
