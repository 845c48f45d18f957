/* The guardian: a small process between the launcher and a rank.
 *
 * The launcher (mpirun, srun) starts the guardian, which starts the rank, in a session of its own, and ends with the
 * rank's exit status. It is there for what the launcher does in the wrong moment:
 *
 * - A rank has died. mpirun notices by its closed pipes, or as soon as another rank prints, and kills the others at
 *   once, before they can say which rank it was and what they were waiting for. The guardian holds the pipes open and
 *   says what the watchdog of another rank still could tell it, or what it knows.
 * - mpirun is gone: its terminal was closed, or it was killed. Then its proxies kill what they have started. That is
 *   the guardian; the rank learns of it by a signal, saves what it can, and ends.
 * - A proxy is gone. Then nothing ends the ranks; the guardian sees the proxy's connection close and tells its rank.
 *
 * Signals for the rank arrive at the guardian, which passes them on. Other ranks write to it through /proc/PID/fd,
 * which the system lets only processes of the same user open. */
#ifndef MX_TRANSPORT_GUARDIAN_H
#define MX_TRANSPORT_GUARDIAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where other ranks of the machine find a guardian: one end of a pipe. pid 0: there is none. */
typedef struct mx_guardian_address {
    int pid, fd;
    uint64_t inode;
} mx_guardian_address;

/* When a launcher has started us, this process becomes the guardian and the function returns in the rank, its child.
 * Before MPI and threads. */
void mx_guardian_start(void);

/* Who we are, and whether other ranks of this machine will tell of our death. */
void mx_guardian_tell(int rank, int node_ranks);

mx_guardian_address mx_guardian_of_this_rank(void);

/* Has the guardian of another rank of this machine, which has died, say this; false when there is none that could. */
bool mx_guardian_say(mx_guardian_address of, const char *text, size_t bytes);

/* Waits until the guardian of a dead rank has said what it had to and ended, 2 s at most: the launcher would kill it.
 */
void mx_guardian_await_end(mx_guardian_address of);

/* The launcher is gone: there is nobody to talk MPI's start and end with. */
bool mx_guardian_launcher_is_gone(void);

/* We end in order: the guardian has nothing to say. May be called in a signal handler. */
void mx_guardian_dismiss(void);

#endif
