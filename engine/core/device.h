/* Devices: a device holds the values of tensors and runs operations.
 *
 * A device is a table of functions. engine/host fills one for this machine, engine/sim one for each simulated chip; all
 * other code calls the current device. A rank is one device, so the device also knows its rank, and it owns the rank's
 * state: its mesh, its queues, its statistics.
 *
 * Tensors stay on the device that created them. The script's thread calls these functions, except those marked "any
 * thread". Functions that take a job find the device in the job. */
#ifndef MX_CORE_DEVICE_H
#define MX_CORE_DEVICE_H

#include "core/pool.h"

struct mx_block;
struct mx_call;
struct mx_job;

typedef struct mx_device mx_device;

typedef enum mx_map_mode {
    MX_MAP_READ,
    MX_MAP_WRITE,  /* all mapped values are written; the host need not find what they were */
    MX_MAP_UPDATE, /* some are */
} mx_map_mode;

/* Where a device keeps an offloaded copy. */
typedef struct mx_range {
    int64_t start, bytes;
} mx_range;

struct mx_device {
    const char *name;
    bool has_values;  /* false: tensors have shapes only, time is simulated, and map and unmap are NULL */
    bool host_memory; /* the host may dereference the values (mx_data) */
    int64_t guard;    /* the address of values is so much higher than that of the host: 0, but in tests */
    bool has_threads; /* jobs run on the lanes' threads, in order */
    int rank, ranks;
    int refs;                           /* one for the creator, one for each storage and each offloaded copy */
    void (*destroy)(mx_device *device); /* after the last reference */

    /* Runs a call whose outputs have storage. */
    mx_status (*run)(mx_device *device, struct mx_call *call);

    /* Allocates and frees memory of tensors. A block of 0 bytes is valid. MX_ERR_MEMORY names the sizes. */
    mx_status (*alloc)(mx_device *device, int64_t bytes, void **data);
    void (*free)(mx_device *device, void *data, int64_t bytes); /* bytes as in alloc */
    mx_pool_stats (*memory)(mx_device *device);
    void (*reset_peak)(mx_device *device);

    /* Lets the host read or write values until unmap: either the values themselves or a copy. Any thread. */
    mx_status (*map)(mx_device *device, void *data, int64_t bytes, mx_map_mode mode, void **host);
    void (*unmap)(mx_device *device, void *data, int64_t bytes, mx_map_mode mode, void *host);

    /* Jobs (core/job.h). submit queues a job behind the earlier jobs of its lane. */
    mx_status (*submit)(struct mx_job *job);
    bool (*is_done)(const struct mx_job *job);
    void (*wait)(const struct mx_job *job);

    /* Offloaded copies (core/offload.h). open_ranges sets the directory, if the copies are in files. */
    mx_status (*open_ranges)(mx_device *device, const char *directory);
    mx_status (*take_range)(mx_device *device, int64_t bytes, mx_range *range);
    void (*give_range)(mx_device *device, mx_range range);
    /* Copies `bytes` of values to the range, or back. In a job, any thread. */
    mx_status (*move)(struct mx_job *job, void *data, mx_range range, int64_t bytes, bool out);

    /* Collectives (mesh/comm.h). The job is an mx_batch. join runs on the script's thread before the first transfer is
     * added, and is Collective among the ranks; exchange runs in the job. copy is the exchange of a single rank. */
    mx_status (*join)(struct mx_job *job);
    mx_status (*exchange)(struct mx_job *job);
    mx_status (*copy)(mx_device *device, const struct mx_block *from, const struct mx_block *to, int64_t count);

    double (*now)(mx_device *device); /* seconds of its clock, which is monotonic */

    /* The modules' state for the device. */
    struct mx_offload_state *offload; /* core/offload.h */
    struct mx_mesh_state *mesh;       /* mesh/mesh.h */
    struct mx_comm_state *comm;       /* mesh/comm.h */
    struct mx_gather_state *gathers;  /* mesh/gather.h */
};

extern mx_device mx_host; /* engine/host */

extern mx_device *mx_device_current; /* initially the host */

/* Makes the device current. Jobs in flight on the previous device stay there until it is current again. */
void mx_device_use(mx_device *device);

static inline mx_device *mx_device_retain(mx_device *device)
{
    device->refs++;
    return device;
}
void mx_device_release(mx_device *device);

/* The time that the script sees: seconds of the current device's clock. */
static inline double mx_clock(void) { return mx_device_current->now(mx_device_current); }

#endif
