/* The guardian: a small process that outlives a rank for a moment.
 *
 * When a rank has died, mpirun notices by its closed pipes, or as soon as another rank prints, and kills the others at
 * once, before they can say which rank it was and what they were waiting for. The guardian of the dead rank holds its
 * pipes open and is not killed: it says what the watchdog of another rank still could tell it, or what it knows. */
#ifndef MX_MESH_GUARDIAN_H
#define MX_MESH_GUARDIAN_H

#include <stdbool.h>
#include <stddef.h>

/* Starts it, when a launcher has started us. Before MPI and threads. */
void mx_guardian_start(void);

/* Who we are, and whether other ranks of this machine will tell of our death. */
void mx_guardian_tell(int rank, int node_ranks);

/* Has the guardian of another rank of this machine, which has died, say this; false when there is none that could. */
bool mx_guardian_say(int rank_process, const char *text, size_t bytes);

/* We end in order: it has nothing to do. */
void mx_guardian_dismiss(void);

#endif
