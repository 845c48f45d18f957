/* Peers: the tensors of the other ranks of this machine, as memory of our own.
 *
 * Each rank's larger tensors lie in its arena (core/arena.h), which the others map. It is all or none: either every
 * rank of the machine maps those of all others, or no tensor lies in one, and collectives stage what they exchange. */
#ifndef MX_TRANSPORT_PEERS_H
#define MX_TRANSPORT_PEERS_H

#include "core/status.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

/* Collective among `node`, the ranks of this machine, before there are tensors. That the system refuses (memory files,
 * huge pages for them, a look into /proc/PID/fd) is no failure; nor is MXLUA_SHARE=0 in the environment of a rank. */
mx_status mx_peers_connect(MPI_Comm node);

/* Whether tensors are shared. The same on all ranks of the machine. Not Collective. */
bool mx_peers_share(void);

/* Byte `offset` of the arena of this world rank, one of our machine; only when tensors are shared. Not Collective. */
void *mx_peers_address(int world_rank, int64_t offset);

#endif
