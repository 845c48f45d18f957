/* Peers: maps the tensors of the other ranks of the node into this rank's memory.
 *
 * Each rank keeps its larger tensors in its arena (core/arena.h), and the other ranks map that arena. Either every rank
 * of the node maps all other arenas, or no rank uses an arena and collectives copy through slots (team.h). */
#ifndef MX_TRANSPORT_PEERS_H
#define MX_TRANSPORT_PEERS_H

#include "core/status.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

/* Maps the arenas, before there are tensors. Collective among `node`, the ranks of this node. Returns MX_OK without
 * sharing if the system refuses it (memory files, huge pages for them, access to /proc/PID/fd) or if a rank has
 * MXLUA_SHARE=0 in its environment. */
mx_status mx_peers_connect(MPI_Comm node);

/* Whether tensors are shared. The same on all ranks of the node. Not Collective. */
bool mx_peers_share(void);

/* The address of byte `offset` in the arena of this world rank, which is on this node. Only if tensors are shared. Not
 * Collective. */
void *mx_peers_address(int world_rank, int64_t offset);

#endif
