/* The simulated device: one chip of a pod, whose tensors have shapes and no values.
 *
 * It takes the host's place behind mx_apply. An operation advances the script's clock (core/clock.h), which is what the
 * chip has computed; a collective or a transfer goes on beside it, on the links that it needs, and whoever needs its
 * result waits for it there. Operations, collectives, the tape and the script are those of a real run, so order,
 * overlap, combining and memory are too.
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

/* From here on the pod is simulated: this process is rank 0 of all its chips, tensors that are made have no values, and
 * time and memory begin anew. Ends what is under way; the mesh is to be defined anew, and again after the stop. Each
 * process under mpirun simulates by itself. */
mx_status mx_sim_start(const mx_sim_pod *pod);
void mx_sim_stop(void);
bool mx_sim_is_on(void);

/* Whether the pod can be this mesh: before it becomes that of the run. MX_ERR_VALUE, with both numbers, when it has
 * other slices or chips, or its axes do not fit the torus. MX_OK when nothing is simulated. */
mx_status mx_sim_check_mesh(const mx_axis *axes, int n);

/* Where the time of the chip went, since the start or the last reset: seconds that add up to those of the clock. */
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

/* A transfer of `bytes` to the host's memory or back is given its start and its end: for jobs of a lane. */
void mx_sim_host_transfer(mx_job *job, double bytes, double ready_s);

#endif
