/* Collectives without staging buffers: each rank reads the other ranks' tensors directly in shared memory (peers.h),
 * and all_reduce also writes them there.
 *
 * Every byte is read once and written once, where slots need two or three copies. This works for tensors that are in
 * shared memory on all members, with elements in the same order; the other tensors of an exchange go through slots
 * (team.h). */
#ifndef MX_TRANSPORT_DIRECT_H
#define MX_TRANSPORT_DIRECT_H

#include "transport/exchange.h"

/* The remainder of an exchange's streams. */
typedef struct mx_rest {
    mx_stream in, out;
    mx_block *blocks; /* the caller frees it; NULL: the streams use the blocks of the exchange, or none */
} mx_rest;

/* Carries out the part of an exchange that needs no slots, and sets `rest` to the remainder, which is the same on all
 * members. `parts` says which part of the streams belongs to which member; NULL: member m has part m. Members may
 * release their tensors when it returns. Collective among the team. */
mx_status mx_direct_run(mx_team *team, const int *parts, const mx_exchange *x, const mx_stream *in,
                        const mx_stream *out, float scale, mx_rest *rest);

#endif
