/* The collectives themselves, on streams and a group: who sends what to whom.
 *
 * All run in chunks that stay in cache. Sums are taken in the order of the group's members (of one machine, then over
 * the machines in their order), in f32 for floats, so the same group gives the same bits, on every member. Unless in
 * place, `in` and `out` must not overlap. All are Collective among the group, on the thread that runs collectives. */
#ifndef MX_TRANSPORT_EXCHANGE_H
#define MX_TRANSPORT_EXCHANGE_H

#include "transport/group.h"
#include "transport/stream.h"

typedef struct mx_exchange {
    mx_collective what;
    mx_stream in, out;
} mx_exchange;

mx_status mx_exchange_run(mx_group *group, const mx_exchange *x);

#endif
