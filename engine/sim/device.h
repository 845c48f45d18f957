/* The simulated device: one chip of a pod, whose tensors have shapes and no values.
 *
 * An operation advances the device's clock, which is the time that the chip has computed. Collectives and transfers to
 * the host run beside it, on the links that they need; code that needs their results advances the clock to their end.
 * Operations, collectives, the tape and the script are those of a real run, so order, overlap, combining and memory are
 * too.
 *
 * Times: a matrix product takes the larger of its FLOPs, padded to the tiles of the matrix unit, at the peak, and of
 * its bytes at the memory's bandwidth; attention likewise, with an efficiency of its own; everything else its bytes. On
 * a device whose compiler fuses, a value that goes from one such operation straight into the next never leaves the
 * chip. A collective beside the computation takes from it the time of what it moves through the memory, unless cores of
 * its own do that: the array once for a gather, three times for a reduction (two parts read, their sum written). */
#ifndef MX_SIM_DEVICE_H
#define MX_SIM_DEVICE_H

#include "ops/op.h"
#include "sim/network.h"

typedef struct mx_sim_chip {
    double peak_flops[MX_DTYPES]; /* of matrix products by the dtype of their operands; 0: as f32 */
    int tile;                     /* rows and columns of the matrix unit; 1: none */
    double memory_bytes, memory_Bps;
    double host_Bps; /* to the memory of its host, one way */
    double launch_s; /* of each operation */
    bool fuses;
    bool offloads_collectives;                                         /* to cores of their own */
    double matrix_efficiency, attention_efficiency, memory_efficiency; /* share of the peaks that is reached */
} mx_sim_chip;

typedef struct mx_sim_pod {
    mx_sim_chip chip;
    mx_network network;
    int slices;
} mx_sim_pod;

/* A context is the device of one rank of a pod: its clock, links, memory and times. Several may exist, of one pod or of
 * different ones; each goes on where it was when it is current again (mx_device_use). MX_ERR_MEMORY. */
typedef struct mx_sim_context mx_sim_context;
mx_status mx_sim_context_new(const mx_sim_pod *pod, int rank, mx_sim_context **out);
mx_device *mx_sim_context_device(mx_sim_context *context);
void mx_sim_context_free(mx_sim_context *context); /* which is not current; waits for what is in flight on it */

/* From here on the pod is simulated: this process is rank 0 of all its chips, in a new context. Waits for what is in
 * flight; the mesh is to be defined anew, and again after the stop. Each process under mpirun simulates by itself. */
mx_status mx_sim_start(const mx_sim_pod *pod);
void mx_sim_stop(void);
bool mx_sim_is_on(void);

/* Whether the pod of the current context can be this mesh. MX_ERR_VALUE, with both numbers, when it has other slices or
 * chips, or its axes do not fit the torus. MX_OK when nothing is simulated. */
mx_status mx_sim_check_mesh(const mx_axis *axes, int n);

/* Where the time of the current context's chip went, since the start or the last reset: seconds that add up to those of
 * the clock. All 0 when nothing is simulated. */
typedef struct mx_sim_times {
    double matrix_s; /* matrix products, bound by the matrix unit */
    double attention_s;
    double memory_s;                            /* all that was bound by the memory's bandwidth, and launches */
    double ici_s, dcn_s;                        /* waited for the network in the slice, and between slices */
    double host_s;                              /* waited for transfers to the host's memory */
    double ici_busy_s, dcn_busy_s, host_busy_s; /* that these were in use, waited for or not */
    double flops;                               /* that were done, those of rematerialisation too */
    double ici_bytes, dcn_bytes;                /* of whole arrays, by collectives */
    int64_t operations, collectives;
} mx_sim_times;
mx_sim_times mx_sim_get_times(bool reset);

#endif
