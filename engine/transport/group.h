/* Groups: the ranks that a collective runs over, and how they reach each other.
 *
 * The group's ranks on one node form a team that shares memory. Nodes exchange messages. If all nodes have the same
 * number of ranks in the group, ranks with the same local index exchange across nodes, each only its part. Otherwise
 * all ranks of the group exchange messages with each other. */
#ifndef MX_TRANSPORT_GROUP_H
#define MX_TRANSPORT_GROUP_H

#include "transport/team.h"

typedef struct mx_group {
    int n, me;           /* number of ranks, and the index of this one */
    bool messages;       /* it carries messages, on their own thread; others carry collectives */
    int *ranks;          /* their world ranks, ascending */
    int nodes;           /* number of nodes that they are on */
    mx_team *node;       /* the group's ranks on this node; NULL when this rank is alone there */
    mx_team *across;     /* ranks with this local index on each node; NULL for one node, or if node sizes differ */
    mx_team *flat;       /* all ranks, by messages; NULL when node and across suffice */
    int *node_members;   /* for each rank of `node`, its index in the group */
    int *across_members; /* the same for `across` */
    int *grid;           /* index in the group of local index i on node v (as ordered in `across`): v * node->n + i */
} mx_group;

/* The group of these world ranks, which are ascending and include this rank. The same ranks have one group for
 * collectives and one for messages, because both may be in flight at once. A group is created once and then looked up.
 * Creating it is Collective among its ranks; no collective may be in flight on this rank then. */
mx_status mx_group_get(const int *ranks, int n, bool messages, mx_group **out);

/* The group if it has been created, or NULL. Not collective. */
mx_group *mx_group_find(const int *ranks, int n, bool messages);

#endif
