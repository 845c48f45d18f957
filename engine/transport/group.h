/* Groups: the ranks that a collective runs over, and by which ways they reach each other.
 *
 * The ranks of one machine form a team that shares memory. Between machines messages go: either between ranks of the
 * same place on each machine (each moves its part only), or, where machines have different numbers of ranks in the
 * group, between all. */
#ifndef MX_TRANSPORT_GROUP_H
#define MX_TRANSPORT_GROUP_H

#include "transport/team.h"

typedef struct mx_group {
    int n, me;           /* how many ranks, and which of them we are */
    int *ranks;          /* their world ranks, ascending */
    int nodes;           /* machines that they are on */
    mx_team *node;       /* those on our machine; NULL when we are alone there */
    mx_team *across;     /* those of our place on each machine; NULL when there is one machine, or their sizes differ */
    mx_team *flat;       /* all, by messages; NULL when not needed: one machine, or all of it through node and across */
    int *node_members;   /* of `node`: which members of the group they are */
    int *across_members; /* the same of `across` */
    int *grid; /* member of the group on machine v (in the order of `across`) at place i: grid[v * node->n + i] */
} mx_group;

/* The group of these world ranks (ascending, we among them): made once, then found again. Collective among them when it
 * is made, and no collective may be under way on this rank. */
mx_status mx_group_get(const int *ranks, int n, mx_group **out);

#endif
