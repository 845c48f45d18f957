/* The descriptor of a collective: what happens to the values, without the tensors and ranks that take part.
 *
 * The collective operations fill it in (mesh/collective_op.h), comm.c combines collectives with equal descriptors into
 * one bucket, ranks compare their descriptors before they begin (mx_tag), and exchange.c carries the collective out. */
#ifndef MX_TRANSPORT_COLLECTIVE_H
#define MX_TRANSPORT_COLLECTIVE_H

#include "core/tensor.h"
#include "kernels/reduce.h"

typedef enum mx_exchange_kind {
    MX_ALL_REDUCE,      /* in and out have one part each; out = the reduction over all members */
    MX_ALL_GATHER,      /* out part m = in of member m */
    MX_REDUCE_SCATTER,  /* in has n parts; out = the reduction of part `me` over all members */
    MX_ALL_TO_ALL,      /* out part m = part `me` of member m */
    MX_ALL_TO_ALL_ROWS, /* rows of `in` to the members that have their experts, or back (rows.h) */
    MX_PERMUTE,         /* out = in of the member `shift` positions before this one in the ring */
    MX_BROADCAST,       /* out = in of member `root` */
    MX_BARRIER,         /* no values move */
    MX_POINT,           /* between two ranks: out of the other member = in of member `root` */
    MX_EXCHANGE_KINDS,
} mx_exchange_kind;

typedef struct mx_collective {
    mx_exchange_kind kind;
    mx_dtype wire; /* dtype in which elements travel; for reductions the dtype of the input */
    mx_fold fold;  /* reductions: sum, maximum ... */
    float scale;   /* reductions: the result is multiplied by it; 1/n for a mean, else 1 */
    int root;      /* broadcast, point */
    int shift;     /* permute */
    bool in_place; /* input and output are the same memory; members may differ in this */
} mx_collective;

/* The name of the operation: "all_reduce", "collective_permute", ... */
const char *mx_exchange_name(mx_exchange_kind kind);

/* Whether two members have begun the same collective. */
bool mx_collective_equal(const mx_collective *a, const mx_collective *b);

#endif
