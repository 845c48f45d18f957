/* Communication: runs collectives as jobs of the communication thread, the only thread that calls MPI meanwhile.
 *
 * Asynchronous collectives run in the background, overlapped with the script, and are combined in buckets: consecutive
 * collectives with equal descriptors wait in an open bucket (mx_batch) until it is large enough, another collective
 * comes, or one of its values is needed. This depends only on the program, so all ranks form the same buckets. The
 * script's own thread runs a blocking collective at once if nothing is in flight.
 *
 * Messages between two ranks have a lane of their own. It calls MPI only for ranks on different nodes. */
#ifndef MX_MESH_COMM_H
#define MX_MESH_COMM_H

#include "core/job.h"
#include "mesh/mesh.h"
#include "transport/rows.h"

typedef struct mx_comm_settings {
    /* For each kind: a bucket of asynchronous collectives is closed when it has this many bytes; 0: at once. */
    int64_t combine_bytes[MX_EXCHANGE_KINDS];
    int64_t prefetch_bytes;           /* limit of gathers that are prefetched and not yet used */
    int64_t prefetch_below_bytes;     /* prefetch only if the memory in use stays below this; 0: no such limit. Only
                                       * for simulated chips: memory in use may differ between real ranks */
    int64_t permute_decomposer_bytes; /* permutes of at least this size are always asynchronous; 0: none */
    bool async_all_reduce;            /* all-reduce gradients while backward continues */
    bool gradients_in_bf16;           /* all-reduced gradients travel and stay as bf16 (summed in f32); else as f32 */
    bool debug;                       /* before each collective compare call sites, and compare across nodes too */
} mx_comm_settings;
extern mx_comm_settings mx_comm;

/* One tensor's part in a collective, or a message. `in` and `out` keep the values of the blocks alive. */
typedef struct mx_transfer {
    mx_collective what;
    mx_axes axes;
    mx_tensor *in, *out; /* the same tensor, or aliases of it, in place; a message has only one of them */
    int peer, distance;  /* MX_POINT: the world rank of the other end, and how far it is along the axes */
    mx_block in_block, out_block;
    int split, concat; /* dimensions, from 0, of the parts of in and out, for comparison between ranks; 0 if whole */
    mx_rows *rows;     /* MX_ALL_TO_ALL_ROWS, on a device with values; the caller keeps its reference */
    int64_t count;     /* elements of one part; of rows, those of one */
    double bytes_sent; /* by this rank, for the statistics */
} mx_transfer;

/* A bucket: one exchange of one or more tensors. It is the job of a device's join and exchange (core/device.h). */
typedef struct mx_batch {
    mx_job job;
    mx_exchange x;
    mx_axes axes;
    int peer, distance; /* as in mx_transfer */
    mx_group *group;    /* set by join, if the device has groups */
    mx_tag tag;
    bool strict; /* compare call sites, and compare across nodes too */
    bool async;
    char over[64]; /* the axes, for messages */
    int n, room;
    mx_storage **kept; /* two per tensor: those of in and out */
    int64_t bytes;     /* size of all parts that this rank sends, in the dtype on the wire */
    double bytes_sent; /* by this rank */
    double ready_s;    /* when earlier jobs have computed all inputs, in the device's time; 0: at once */
} mx_batch;

/* The state of communication for each device. */
struct mx_comm_state {
    mx_lane *lane;
    mx_lane *points; /* messages, so that they do not wait for collectives */
    mx_batch *open;  /* the open bucket; NULL: none */
    double bytes_sent;
};

/* Runs a collective; `async`: later, on the communication thread. Collective. MX_ERR_VALUE, on every rank of the group,
 * if the ranks call different collectives. */
mx_status mx_comm_run(const mx_transfer *transfer, bool async);

/* Starts a message between two ranks in the background: `in` is sent, or `out` received. Messages of a rank are
 * exchanged one at a time, in the order of these calls. MX_ERR_VALUE if the other end calls for another message:
 * another direction, dtype or shape. */
mx_status mx_comm_message(const mx_transfer *transfer);

/* flush: closes the open bucket and gives it to the communication thread. finish: also waits for all collectives and
 * messages in flight. Not collective. */
mx_status mx_comm_flush(void);
mx_status mx_comm_finish(void);

/* Finishes all collectives and ends MPI (mx_mpi_end). A failed collective ends the run with an error. Collective. */
void mx_comm_end(void);

/* Sets the current script line, "train.lua:12", for tags. The text must stay valid. */
void mx_comm_set_site(const char *where);

typedef struct mx_comm_stats {
    double exposed_s; /* time in which the script's thread waited for communication or ran it itself */
    double busy_s;    /* time in which collectives ran, on either thread */
    int64_t calls;    /* number of exchanges: a bucket counts once */
    double bytes;     /* sent by this rank */
} mx_comm_stats;
mx_comm_stats mx_comm_get_stats(bool reset);

#endif
