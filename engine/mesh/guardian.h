/* The guardian: a small process that outlives a rank for a moment.
 *
 * When a rank is killed, mpirun notices by its closed pipes and kills the others at once, before they can say which
 * rank it was and what they were waiting for. The guardian holds these pipes open for as long as the watchdogs of the
 * other ranks need, or speaks itself where there are none. */
#ifndef MX_MESH_GUARDIAN_H
#define MX_MESH_GUARDIAN_H

/* Starts it, when a launcher has started us. Before MPI and threads. */
void mx_guardian_start(void);

/* Who we are, and whether other ranks of this machine will tell of our death. */
void mx_guardian_tell(int rank, int node_ranks);

/* We end in order: it has nothing to do. */
void mx_guardian_dismiss(void);

#endif
