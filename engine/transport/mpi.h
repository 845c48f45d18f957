/* Start and end of MPI, the rank and number of ranks, and the node that a rank is on.
 *
 * Without mpirun the process is rank 0 of 1. Only this folder calls MPI (HDF5 calls it for itself). Every function says
 * whether it is Collective (all ranks must call it, in the same order) or Not Collective. */
#ifndef MX_TRANSPORT_MPI_H
#define MX_TRANSPORT_MPI_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Starts MPI with the most thread support that it offers, and lets MPI return errors instead of aborting. Collective.
 * MX_ERR_MPI also if another MPI's mpirun started the processes, because each would be rank 0 of 1. */
mx_status mx_mpi_start(int *argc, char ***argv);

/* Tells waiting ranks that this rank joins no more collectives, and ends MPI. Collective; waits for the slowest rank.
 * To be called when nothing holds MPI objects any more. */
void mx_mpi_end(void);

/* Ends all ranks at once with this exit status, whatever they are doing. With a single rank it ends this process
 * without a message. Flushes stdout and stderr first. Not Collective. */
_Noreturn void mx_mpi_abort(int exit_status);

/* Sets a function that mx_mpi_abort calls first, on the rank that aborts. (Handlers of atexit do not run then.) */
void mx_mpi_before_abort(void (*hook)(void));

/* Rank and number of ranks of the current device. Not Collective; on the host 0 and 1 before mx_mpi_start. */
int mx_rank(void);
int mx_ranks(void);

int mx_processes(void); /* number of ranks of this run, also while a pod is simulated; Not Collective */

/* The node that this rank is on, found at the start. Not Collective. With MXLUA_NODE_RANKS=N in the environment, every
 * N ranks count as a node, so that communication between nodes can be tested on one machine. */
int mx_node_ranks(void);     /* number of ranks on the node */
int mx_node_cores(void);     /* number of logical cores that all of them together may use */
bool mx_same_node(int rank); /* whether that rank is on the same node */

/* Not Collective. */
const char *mx_mpi_library(void);      /* "MPICH 4.0.2" */
const char *mx_mpi_thread_level(void); /* "multiple", "serialized", "funneled" or "single" */
bool mx_mpi_has_threads(void);         /* whether several threads may call MPI at once */

/* MX_ERR_MPI with `what` and MPI's own message, unless `code` is MPI_SUCCESS. Not Collective. */
mx_status mx_mpi_check(int code, const char *what);

#endif
