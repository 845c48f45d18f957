/* The message layer: who we are among the ranks, and the few calls that are no tensor operations.
 *
 * Works without mpirun too: the process is then rank 0 of 1. Only this folder calls MPI, and HDF5 for itself. Every
 * function says whether it is Collective (all ranks must call it, in the same order) or Not Collective. */
#ifndef MX_TRANSPORT_MPI_H
#define MX_TRANSPORT_MPI_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Starts MPI with as much thread support as it gives, errors returned and not fatal. Collective.
 * MX_ERR_MPI also when the processes were started by another MPI's mpirun, which would make each of them rank 0 of 1.
 */
mx_status mx_mpi_start(int *argc, char ***argv);

/* Tells those who wait for this rank that nothing more will come, and ends MPI. Collective; waits for the slowest rank.
 * To be called after everything that may hold MPI objects is gone. */
void mx_mpi_end(void);

/* Ends all ranks at once with this exit status, whatever they are doing. Alone: this process, quietly. Flushes stdout
 * and stderr first. Not Collective. */
_Noreturn void mx_mpi_abort(int exit_status);

/* A function that mx_mpi_abort calls first, on the rank that aborts: atexit's are not called then. */
void mx_mpi_before_abort(void (*hook)(void));

/* Of the current device. Not Collective; on the host 0 and 1 before mx_mpi_start. */
int mx_rank(void);
int mx_ranks(void);

int mx_processes(void); /* ranks of this run, also while a pod is simulated; Not Collective */

/* The machine that this rank is on, found at the start. Not Collective. With MXLUA_NODE_RANKS=N in the environment
 * every N ranks count as a machine of their own: it lets one machine try what goes between several. */
int mx_node_ranks(void);     /* how many ranks share it */
int mx_node_cores(void);     /* logical cores that they may use, all together */
bool mx_same_node(int rank); /* whether that rank is on it */

/* Not Collective. */
const char *mx_mpi_library(void);      /* "MPICH 4.0.2" */
const char *mx_mpi_thread_level(void); /* "multiple", "serialized", "funneled" or "single" */

/* MX_ERR_MPI with `what` and MPI's own words unless `code` is MPI_SUCCESS. Not Collective. */
mx_status mx_mpi_check(int code, const char *what);

#endif
