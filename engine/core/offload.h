/* Tensors whose values are away: copied out of the device's memory, which other tensors get meanwhile.
 *
 * A tensor that is away has no storage and a copy, t->away. The copy stays for as long as the tensor lives and the
 * values are not changed, while the storage comes and goes: fetched ahead of use, evicted after it. Code that reads a
 * tensor without storage fetches it first, as mx_apply does. Code that then needs the values waits for them
 * (core/job.h).
 *
 * Copies are made and read by jobs of one lane, in the order of the calls here. The device says where they lie
 * (core/device.h): the host in a file (core/spill.h). Not collective; the script's thread only. */
#ifndef MX_CORE_OFFLOAD_H
#define MX_CORE_OFFLOAD_H

#include "core/job.h"

/* A copy of a tensor's values. */
typedef struct mx_away {
    mx_device *device;
    mx_range range;                    /* where the device keeps it */
    uint64_t changes;                  /* of the storage whose values it has: they may have been changed since */
    struct mx_offload_transfer *write; /* that makes it and has not ended: the values are still in memory; or NULL */
} mx_away;

/* What the calls below keep for each device. */
struct mx_offload_state {
    mx_lane *lane;
    mx_job *last_write; /* given to the lane and not yet ended */
    int64_t away_bytes, written_bytes, read_bytes;
};

/* Starts moving the values out. They stay in memory where another tensor shares them, or there are none. */
mx_status mx_tensor_offload(mx_tensor *t);

/* Starts bringing the values back. Nothing to do where they are in memory, or not away. */
mx_status mx_tensor_fetch(mx_tensor *t);

/* Lets go of the storage where a copy is away and no view shares it; of the copy instead where the values have been
 * changed since. */
void mx_tensor_evict(mx_tensor *t);

/* The copy is no longer needed. */
void mx_offload_forget(mx_away *copy);

/* Lets go of the memory of what has been copied; with `wait`, of everything that was offloaded, after waiting for it.
 * A failed copy that nobody waited for is reported by the next call here. */
mx_status mx_offload_settle(bool wait);

/* Of the current device. All but the first since the last call with `reset`. */
typedef struct mx_offload_stats {
    int64_t away_bytes; /* of all copies there are now */
    int64_t written_bytes, read_bytes;
    double exposed_s; /* the script's thread waited for copies */
    double busy_s;    /* copies were made or read */
} mx_offload_stats;
mx_offload_stats mx_offload_get_stats(bool reset);

#endif
