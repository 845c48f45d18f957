/* The guardian: a small process between the launcher and a rank.
 *
 * The launcher (mpirun, srun) starts the guardian. The guardian starts the rank in a session of its own and exits with
 * the rank's exit status. It protects the rank from what the launcher does too early or not at all:
 *
 * - A rank has died. mpirun notices the closed pipes, or notices as soon as another rank prints, and kills the other
 *   ranks at once, before they can report which rank died and what they were waiting for. So the guardian keeps the
 * pipes open. It prints the report that another rank's watchdog has sent it, or else what it knows itself.
 * - mpirun is gone: its terminal was closed, or it was killed. Then its proxies kill the processes that they started,
 *   which are the guardians. The rank gets a signal, saves what it can, and ends.
 * - A proxy is gone. Then nothing would end the ranks. The guardian sees the proxy's connection close and tells its
 * rank.
 *
 * The guardian passes signals on to the rank. Other ranks write to the guardian through /proc/PID/fd, which the system
 * lets only processes of the same user open. */
#ifndef MX_TRANSPORT_GUARDIAN_H
#define MX_TRANSPORT_GUARDIAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where other ranks of the node reach a guardian: one end of a pipe. pid 0: there is no guardian. */
typedef struct mx_guardian_address {
    int pid, fd;
    uint64_t inode;
} mx_guardian_address;

/* If a launcher started this process, the process becomes the guardian, and the function returns in its child, the
 * rank. To be called before MPI starts and before there are threads. */
void mx_guardian_start(void);

/* Tells the guardian the rank and the number of ranks of the node: with more than one, another rank will report a death
 * of this one. */
void mx_guardian_tell(int rank, int node_ranks);

mx_guardian_address mx_guardian_of_this_rank(void);

/* Lets the guardian of a dead rank of this node print this text; false if that guardian cannot be reached. */
bool mx_guardian_say(mx_guardian_address of, const char *text, size_t bytes);

/* Waits until the guardian of a dead rank has printed its text and ended, at most 2 s. Without this wait the launcher
 * would kill the guardian first. */
void mx_guardian_await_end(mx_guardian_address of);

/* Whether the launcher is gone, so that MPI_Init and MPI_Finalize have no partner. */
bool mx_guardian_launcher_is_gone(void);

/* This rank ends normally, so the guardian prints nothing. May be called in a signal handler. */
void mx_guardian_dismiss(void);

#endif
