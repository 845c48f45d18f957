/* The descriptor of a collective: what happens to the values, without the tensors and ranks that take part.
 *
 * The operations fill it in (mesh/collective_op.h), comm.c combines those that are equal, ranks compare theirs before
 * they begin (mx_tag), and exchange.c carries it out. */
#ifndef MX_TRANSPORT_COLLECTIVE_H
#define MX_TRANSPORT_COLLECTIVE_H

#include "core/tensor.h"
#include "kernels/reduce.h"

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

typedef struct mx_collective {
    mx_exchange_kind kind;
    mx_dtype wire; /* elements travel as this; reductions: the dtype of the input */
    mx_fold fold;  /* of reductions */
    float scale;   /* of reductions: 1/n for a mean, else 1 */
    int root;      /* of broadcast */
    int shift;     /* of permute */
    bool in_place; /* input and output are the same memory; members may differ in this */
} mx_collective;

/* "all_reduce", "collective_permute", ...: the name of the operation. */
const char *mx_exchange_name(mx_exchange_kind kind);

/* Whether two members have come with the same collective. */
bool mx_collective_equal(const mx_collective *a, const mx_collective *b);

#endif
