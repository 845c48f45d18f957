/* The MPI library's own collectives, over all ranks, to measure ours against. */
#ifndef MX_MESH_REFERENCE_H
#define MX_MESH_REFERENCE_H

#include "transport/exchange.h"

/* What `kind` (all_reduce, all_gather, reduce_scatter, all_to_all, permute or broadcast) does, by one MPI call on
 * `bytes` bytes of f32 (sums) in all: `in` has them for all_reduce, reduce_scatter, all_to_all, permute and broadcast,
 * `out` for all_gather; parts are bytes / ranks, which the ranks must divide. Collective. */
mx_status mx_reference_run(mx_exchange_kind kind, const float *in, float *out, int64_t bytes);

#endif
