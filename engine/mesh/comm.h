/* Communication: collectives as jobs of one thread, which owns MPI.
 *
 * Asynchronous ones go on beside the script and are combined: those of one kind that follow each other wait in an open
 * batch until it is large enough, something else comes, or a value of it is needed. All that depends on the program
 * alone, so that every rank combines alike. A blocking one is run at once by the script's own thread when nothing is
 * under way. */
#ifndef MX_MESH_COMM_H
#define MX_MESH_COMM_H

#include "core/job.h"
#include "mesh/mesh.h"
#include "transport/exchange.h"

typedef struct mx_comm_settings {
    /* Of each kind: a batch of asynchronous ones is closed when it has as much; 0: at once. */
    int64_t combine_bytes[MX_EXCHANGE_KINDS];
    int64_t prefetch_bytes;           /* gathered ahead and not yet used, at most */
    int64_t permute_decomposer_bytes; /* permutes from here on are asynchronous, whether they ask for it or not */
    bool async_all_reduce;            /* of gradients, while backward goes on */
    bool gradients_in_bf16;           /* they travel and stay as bf16 (summed in f32); else as they are, f32 */
    bool debug;                       /* compare call sites, and over machines too, before each collective */
} mx_comm_settings;
extern mx_comm_settings mx_comm;

/* One tensor's part in a collective. The blocks' tensors are named for the sake of their values' lifetime. */
typedef struct mx_transfer {
    mx_collective what;
    mx_axes axes;
    mx_tensor *in, *out; /* the same tensor, or aliases of it, in place */
    mx_block in_block, out_block;
    int64_t count;     /* elements of one part */
    double bytes_sent; /* by this rank, for the statistics */
} mx_transfer;

/* One exchange of one or more tensors: what a device's join and exchange get as their job (core/device.h). */
typedef struct mx_batch {
    mx_job job;
    mx_exchange x;
    mx_axes axes;
    mx_group *group; /* for join to set, where the device has groups */
    mx_tag tag;
    bool strict; /* compare call sites, and over machines too */
    bool async;
    char over[64]; /* the axes, for messages */
    int n, room;
    mx_storage **kept; /* two per tensor: of in and of out */
    int64_t bytes;     /* of all parts that travel, as this rank sees them, in the dtype in which they travel */
    double bytes_sent; /* by this rank */
    double ready_s;    /* when earlier jobs have made all inputs, in the device's time; 0: at once */
} mx_batch;

/* What is kept for each device. */
struct mx_comm_state {
    mx_lane *lane;
    mx_batch *open; /* NULL: none */
    double bytes_sent;
};

/* Runs it; `async`: later, on the communication thread. Collective. MX_ERR_VALUE, on every rank of the group, when the
 * ranks come with different calls. */
mx_status mx_comm_run(const mx_transfer *transfer, bool async);

/* Gives the open batch to the thread; waits for all that is under way. Not collective. */
mx_status mx_comm_flush(void);
mx_status mx_comm_finish(void);

/* Finishes all collectives, whose failures then are failures of the run, and ends MPI (mx_mpi_end). Collective. */
void mx_comm_end(void);

/* Where in the script we are, "train.lua:12": for tags. The text must stay valid. */
void mx_comm_set_site(const char *where);

typedef struct mx_comm_stats {
    double exposed_s; /* the script's thread waited for communication, or did it itself */
    double busy_s;    /* collectives ran, on either thread */
    int64_t calls;    /* exchanges: what was combined counts once */
    double bytes;     /* that this rank sent */
} mx_comm_stats;
mx_comm_stats mx_comm_get_stats(bool reset);

#endif
