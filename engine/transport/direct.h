/* Collectives without staging: each rank reads the tensors of the others where they are (peers.h), and all_reduce
 * writes them there too.
 *
 * That takes one step where slots take two or three: every byte is read once and written once. It is done for each
 * tensor that lies in shared memory on all members, alike; what is left is for the slots. */
#ifndef MX_TRANSPORT_DIRECT_H
#define MX_TRANSPORT_DIRECT_H

#include "transport/exchange.h"

/* What remains of the streams of an exchange. */
typedef struct mx_rest {
    mx_stream in, out;
    mx_block *blocks; /* to be freed; NULL: those of the exchange, all or none */
} mx_rest;

/* Does what it can of an exchange with these streams and parts (mx_exchange, of which part belongs to which member;
 * NULL: their own), and says what is left: the same on all members. They may release their tensors when it returns.
 * Collective among the team. */
mx_status mx_direct_run(mx_team *team, const int *parts, const mx_exchange *x, const mx_stream *in,
                        const mx_stream *out, float scale, mx_rest *rest);

#endif
