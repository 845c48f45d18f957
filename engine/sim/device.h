/* The simulated device: one chip of a pod. Its tensors have shapes but no values.
 *
 * An operation advances the device's clock, which is the time up to which the chip has computed. Collectives and
 * transfers to the host overlap with computation, on the links that they need; code that needs their results advances
 * the clock to their end. Operations, collectives, the tape and the script are those of a real run, so their order,
 * overlap, buckets and memory are real too.
 *
 * Times: chip.h says what an operation takes. If the device's compiler fuses, a value that passes directly from one
 * such operation to the next does not leave the chip. A collective that overlaps with computation slows it down by the
 * time of its memory traffic, unless separate cores of the chip run it. That traffic is the array once for a gather,
 * three times for a reduction (two parts read, their sum written), and for an all-to-all the chip's own part of the
 * array twice. */
#ifndef MX_SIM_DEVICE_H
#define MX_SIM_DEVICE_H

#include "sim/chip.h"
#include "sim/network.h"

typedef struct mx_sim_pod {
    mx_sim_chip chip;
    mx_network network;
    int slices;
} mx_sim_pod;

/* A context is the device of one rank of a pod: its clock, links, memory and times. Several may exist, of one pod or of
 * different pods; each continues where it stopped when it is current again (mx_device_use). MX_ERR_MEMORY. */
typedef struct mx_sim_context mx_sim_context;
mx_status mx_sim_context_new(const mx_sim_pod *pod, int rank, mx_sim_context **out);
mx_device *mx_sim_context_device(mx_sim_context *context);
void mx_sim_context_free(mx_sim_context *context); /* must not be current; waits for its jobs in flight */

/* Starts a simulation: this process becomes a rank of the pod, in a new context. Waits for jobs in flight. The mesh
 * must be defined again, and once more after the stop. Each process under mpirun simulates by itself. */
mx_status mx_sim_start(const mx_sim_pod *pod, int rank);
void mx_sim_stop(void);

/* Adds a chip beside those that have been started, in a context of its own, and makes it current: `number`, from 0, is
 * for mx_sim_use, which makes it current again, or fails with MX_ERR_VALUE if no chip has that number. Chips do not
 * wait for each other. All end at mx_sim_stop. */
mx_status mx_sim_add(const mx_sim_pod *pod, int rank, int *number);
mx_status mx_sim_use(int number);
bool mx_sim_is_on(void);

/* Places a mesh on the pod of the current context; the mesh is to be defined next. MX_ERR_VALUE if it needs other
 * numbers of slices or chips, or if its axes do not fit the torus (placement.h). MX_OK if nothing is simulated. */
mx_status mx_sim_place_mesh(const mx_axis *axes, int n);

/* The placement of the current context's mesh; NULL if there is no mesh or no torus. */
const mx_placement *mx_sim_placement(void);

/* The time of the current context's chip by purpose, since the start or the last reset: seconds whose sum is the
 * clock's time. All 0 if nothing is simulated. */
typedef struct mx_sim_times {
    double matrix_s; /* matrix products limited by the matrix unit */
    double attention_s;
    double memory_s;                            /* operations limited by the memory or the vector unit, and launches */
    double ici_s, dcn_s;                        /* waiting for the network in the slice, and between slices */
    double host_s;                              /* waiting for transfers to the host's memory */
    double bubble_s;                            /* mx_sim_wait_until */
    double ici_busy_s, dcn_busy_s, host_busy_s; /* time that these were in use, with or without waiting */
    double flops;                               /* all FLOPs, including those of rematerialisation */
    double arrival_s;                           /* when the last message that the chip has sent arrives */
    double ici_bytes, dcn_bytes;                /* size of the whole arrays in collectives */
    int64_t operations, collectives;
} mx_sim_times;
mx_sim_times mx_sim_get_times(bool reset);

/* The current context's chip waits until this time of its clock for other stages of a pipeline, which it does not
 * simulate. Does nothing if the time has passed, or if nothing is simulated. MX_ERR_MEMORY. */
mx_status mx_sim_wait_until(double seconds);

#endif
