/* The collectives themselves, on streams and a group: who sends what to whom.
 *
 * All run in chunks that stay in cache. Sums are taken in the order of the group's members (of one machine, then over
 * the machines in their order), in f32 for floats, so the same group gives the same bits, on every member. In place
 * means that `in` and `out` are the same memory; otherwise they must not overlap. All are Collective among the group,
 * on the thread that runs collectives. */
#ifndef MX_MESH_EXCHANGE_H
#define MX_MESH_EXCHANGE_H

#include "kernels/reduce.h"
#include "mesh/group.h"
#include "mesh/stream.h"

typedef enum mx_exchange_kind {
    MX_ALL_REDUCE,     /* in, out: one part each; out = the fold over all members */
    MX_ALL_GATHER,     /* out part m = in of member m */
    MX_REDUCE_SCATTER, /* out = the fold of part `me` over all members; in has n parts */
    MX_ALL_TO_ALL,     /* out part m = part `me` of member m */
    MX_PERMUTE,        /* out = in of the member `shift` places before us, around the ring */
    MX_BROADCAST,      /* out = in of member `root` */
    MX_BARRIER,        /* nothing moves */
    MX_EXCHANGE_KINDS,
} mx_exchange_kind;

typedef struct mx_exchange {
    mx_exchange_kind kind;
    mx_dtype wire; /* elements travel as this; reductions: the dtype of `in` */
    mx_fold fold;  /* of reductions */
    float scale;   /* of reductions: 1/n for a mean */
    int root;      /* or shift */
    bool in_place;
    mx_stream in, out;
} mx_exchange;

mx_status mx_exchange_run(mx_group *group, const mx_exchange *x);

#endif
