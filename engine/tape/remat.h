/* Rematerialisation: the tape's inside, shared by tape.c and remat.c. */
#ifndef MX_TAPE_REMAT_H
#define MX_TAPE_REMAT_H

#include "tape/tape.h"

typedef struct mx_region {
    int parent;                    /* index of the enclosing region, or -1 */
    int first, last;               /* its calls are nodes first .. last - 1, those of inner regions among them */
    bool drops;                    /* a policy that keeps less than what is held */
    mx_scope *scope;               /* while open */
    const mx_remat_policy *policy; /* while open */
} mx_region;

typedef struct mx_tape {
    bool recording;
    int region; /* the innermost open region, or -1 */
    mx_node **nodes;
    int n_nodes, nodes_capacity;
    mx_region *regions;
    int n_regions, regions_capacity;
    int prefetch_regions; /* that many ahead; 0: none */
    int ahead_of;         /* the region for which that was done last */
    bool offloads;        /* values of recorded calls may be away */
    int fetched_for;      /* the region for which mx_remat_fetch was done last */
} mx_tape;

mx_status mx_tape_record(mx_call *call); /* the hook of mx_apply */
void mx_tape_unhold(mx_tensor *t);       /* one reader less, then mx_tape_settle */
void mx_tape_settle(mx_tensor *t);       /* values that nothing reads go once released, and out where a copy is away */

/* Starts the gathers of the regions that backward comes to after the one of nodes[index]. */
mx_status mx_remat_prefetch(mx_tape *tape, int index);

/* On entering the region of nodes[index]: starts fetching what is away of its values, and of the region's that backward
 * comes to next. */
mx_status mx_remat_fetch(mx_tape *tape, int index);

/* Makes sure that what the vjp of nodes[index] reads has values. */
mx_status mx_remat_ensure(mx_tape *tape, mx_node *node, int index);

#endif
