/* Carries out collectives on the streams of a group: which rank sends which elements to which rank.
 *
 * All collectives run in chunks that fit the cache. Sums are taken in the order of the group's members, within a node
 * and then over the nodes in their order, in f32 for floats. So the same group gives the same bits, on every member.
 * `in` and `out` must not overlap, except in place. All are Collective among the group, on the thread of a lane. A
 * message is an exchange of a group of two, in place on both. */
#ifndef MX_TRANSPORT_EXCHANGE_H
#define MX_TRANSPORT_EXCHANGE_H

#include "transport/group.h"
#include "transport/stream.h"

typedef struct mx_rows mx_rows; /* transport/rows.h */

typedef struct mx_exchange {
    mx_collective what;
    mx_stream in, out;
    mx_rows *rows; /* MX_ALL_TO_ALL_ROWS; else NULL */
} mx_exchange;

mx_status mx_exchange_run(mx_group *group, const mx_exchange *x);

#endif
