/* Offloading: moves the values of tensors out of the device's memory and fetches them back.
 *
 * An offloaded tensor has no storage but a copy, t->away. The copy stays as long as the tensor lives and its values are
 * unchanged. The storage is fetched ahead of use and evicted after use. Code that reads a tensor without storage
 * fetches it first, as mx_apply does, and then waits for the values (core/job.h).
 *
 * Jobs of one lane write and read the copies, in the order of the calls here. The device decides where the copies are
 * (core/device.h): on the host, in a file (core/spill.h). Not collective; script's thread only. */
#ifndef MX_CORE_OFFLOAD_H
#define MX_CORE_OFFLOAD_H

#include "core/job.h"

/* A copy of a tensor's values. */
typedef struct mx_away {
    mx_device *device;
    mx_range range;                    /* where the device keeps it */
    uint64_t changes;                  /* the storage's counter of changes at the copy: values may have changed since */
    struct mx_offload_transfer *write; /* the job that writes it, in flight: the values are still in memory; or NULL */
} mx_away;

/* The state of offloading for each device. */
struct mx_offload_state {
    mx_lane *lane;
    mx_job *last_write; /* submitted and not yet ended */
    int64_t away_bytes, written_bytes, read_bytes;
};

/* Starts moving the values out. They stay in memory if another tensor shares them. Does nothing without values. */
mx_status mx_tensor_offload(mx_tensor *t);

/* Starts fetching the values. Does nothing if they are in memory or not offloaded. */
mx_status mx_tensor_fetch(mx_tensor *t);

/* Releases the storage if there is a copy and no view shares the storage. If the values have changed since the copy,
 * releases the copy instead. */
void mx_tensor_evict(mx_tensor *t);

/* The copy is no longer needed. */
void mx_offload_forget(mx_away *copy);

/* Releases the memory of tensors whose copy is complete; with `wait`, waits for all copies first. A failed copy that
 * nothing has waited for is reported by the next call here. */
mx_status mx_offload_settle(bool wait);

/* Waits for all copies and fetches, so that nothing is in use for them any more. Errors as above. */
mx_status mx_offload_drain(void);

/* Statistics of the current device. All except the first count since the last call with `reset`. */
typedef struct mx_offload_stats {
    int64_t away_bytes; /* size of all existing copies */
    int64_t written_bytes, read_bytes;
    double exposed_s; /* time in which the script's thread waited for copies */
    double busy_s;    /* time in which copies were written or read */
} mx_offload_stats;
mx_offload_stats mx_offload_get_stats(bool reset);

#endif
