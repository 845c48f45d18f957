/* The host's place for values that are away: a file without a name, one for each process.
 *
 * The file is opened in a directory and has no name there (or loses it at once), so that it is gone after any end of
 * the process. Values are written to it and read back by a thread of its own, in the order in which that was asked for.
 * Ranges of what has been forgotten are used again: a step that offloads what the step before did needs no longer file.
 * The functions are mx_offload_hooks (core/offload.h). Not collective. */
#ifndef MX_CORE_SPILL_H
#define MX_CORE_SPILL_H

#include "core/job.h"
#include "core/offload.h"

/* Opens the file in `directory`; NULL or empty: in $TMPDIR, or /var/tmp where that is not set. Without this call the
 * first tensor that is offloaded opens it there. MX_ERR_IO when no file can be made there, MX_ERR_STATE when it is to
 * move to another directory while values are away. */
mx_status mx_spill_open(const char *directory);

mx_status mx_spill_offload(mx_tensor *t);
mx_status mx_spill_fetch(mx_tensor *t);
void mx_spill_forget(mx_away *away);
mx_status mx_spill_settle(bool wait);

/* Where tensors have no values, a write or read takes the time that this gives the job (core/clock.h), and there is no
 * file. NULL: on the host. */
extern void (*mx_spill_simulated)(mx_job *job, double bytes);

typedef struct mx_spill_stats {
    const char *directory; /* "": no file yet */
    int64_t file_bytes;    /* as the system says */
    int64_t away_bytes;    /* of all copies there are now */
    int64_t written_bytes, read_bytes;
    double exposed_s; /* the script's thread waited for the file */
    double busy_s;    /* the file was written or read */
} mx_spill_stats;

/* All but the first three since the last call with `reset`. */
mx_spill_stats mx_spill_get_stats(bool reset);

#endif
