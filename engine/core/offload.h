/* Values that are away: held outside of memory while nothing reads them.
 *
 * A policy may offload a tensor (tape/tape.h): its values are copied elsewhere beside what goes on, and its storage
 * goes. From then on t->away stands for the copy. It lives until the tensor lets go of its values for good
 * (mx_tensor_drop); storage comes and goes meanwhile: fetched ahead of use, evicted after it. Whoever reads a tensor
 * that has no storage fetches it first, as mx_apply does; who then needs the values waits for them (core/job.h).
 *
 * Where the copy lies is the device's affair: mx_offload_hooks. The host's is a file (core/spill.h). A device whose
 * storages have no data sets hooks that only account for the traffic. Not collective; the script's thread only. */
#ifndef MX_CORE_OFFLOAD_H
#define MX_CORE_OFFLOAD_H

#include "core/tensor.h"

/* What every device's record of a copy begins with. */
typedef struct mx_away {
    uint64_t changes; /* of the storage whose values the copy has: they may have been changed since */
} mx_away;

typedef struct mx_offload_hooks {
    /* Starts copying the values of t, which are not under way, and sets t->away. Keeps the storage until it is done. */
    mx_status (*offload)(mx_tensor *t);
    /* Gives t storage and starts filling it from t->away. */
    mx_status (*fetch)(mx_tensor *t);
    /* The copy is needed no more. */
    void (*forget)(mx_away *away);
    /* Lets go of the memory of what has been copied; with `wait`, of all that was given to offload, when it is. The
     * failure of a copy that nobody waited for is told by the next call here or to the other two. */
    mx_status (*settle)(bool wait);
} mx_offload_hooks;
extern mx_offload_hooks mx_offload; /* at the start the host's */

/* Starts moving the values out. They stay in memory where another tensor shares them, or there are none. */
mx_status mx_tensor_offload(mx_tensor *t);

/* Starts bringing the values back. Nothing to do where they are in memory, or not away. */
mx_status mx_tensor_fetch(mx_tensor *t);

/* Lets go of the storage where a copy is away and no view shares it; of the copy instead where the values have been
 * changed since. */
void mx_tensor_evict(mx_tensor *t);

#endif
