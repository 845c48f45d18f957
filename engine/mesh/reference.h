/* The MPI library's own collectives over all ranks, for comparison with mxlua's. */
#ifndef MX_MESH_REFERENCE_H
#define MX_MESH_REFERENCE_H

#include "transport/exchange.h"

/* Runs a collective (all_reduce, all_gather, reduce_scatter, all_to_all, permute or broadcast) by one MPI call on f32
 * values; reductions are sums. The whole tensor has `bytes` bytes: it is `out` for all_gather and `in` for the others.
 * A part has bytes / ranks bytes, which must be whole. Collective. */
mx_status mx_reference_run(mx_exchange_kind kind, const float *in, float *out, int64_t bytes);

#endif
