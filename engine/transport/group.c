#include "transport/group.h"

#include "transport/mpi.h"

#include <stdlib.h>
#include <string.h>

enum { TAG = 1 };

static mx_group **groups;
static int n_groups;

static mx_status no_memory(int n) { return mx_fail(MX_ERR_MEMORY, "no memory for a group of %d ranks", n); }

static mx_status make_comm(const int *ranks, int n, MPI_Comm *comm)
{
    MPI_Group world = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    int code = MPI_Group_incl(world, n, ranks, &some);
    if (code == MPI_SUCCESS) {
        code = MPI_Comm_create_group(MPI_COMM_WORLD, some, TAG, comm);
        MPI_Group_free(&some);
    }
    MPI_Group_free(&world);
    MX_TRY(mx_mpi_check(code, "making a group of ranks"));
    return mx_mpi_check(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "making a group of ranks");
}

static mx_status split(MPI_Comm comm, int color, int key, MPI_Comm *out)
{
    MX_TRY(mx_mpi_check(MPI_Comm_split(comm, color, key, out), "making a group of ranks"));
    return mx_mpi_check(MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN), "making a group of ranks");
}

/* For each member of a team, its index in the group. */
static mx_status find_members(const mx_group *g, const mx_team *team, int **members)
{
    *members = calloc((size_t)team->n, sizeof(int));
    if (!*members)
        return no_memory(g->n);
    for (int i = 0; i < team->n; i++)
        for (int m = 0; m < g->n; m++)
            if (g->ranks[m] == team->ranks[i])
                (*members)[i] = m;
    return MX_OK;
}

/* The node of each member, named by the lowest member on it. */
static mx_status find_nodes(mx_group *g, MPI_Comm comm, int *node_of)
{
    int mine = -1;
    for (int m = 0; m < g->n && mine < 0; m++)
        if (mx_same_node(g->ranks[m]))
            mine = m;
    MX_TRY(mx_mpi_check(MPI_Allgather(&mine, 1, MPI_INT, node_of, 1, MPI_INT, comm), "finding the machines"));
    g->nodes = 0;
    for (int m = 0; m < g->n; m++)
        g->nodes += node_of[m] == m;
    return MX_OK;
}

/* Whether all nodes have the same number of members; also this rank's local index (`place`) and its node's size. */
static bool are_even(const mx_group *g, const int *node_of, int *place, int *size)
{
    bool even = true;
    *place = *size = 0;
    for (int m = 0; m < g->n; m++) {
        int same = 0;
        for (int k = 0; k < g->n; k++)
            same += node_of[k] == node_of[m];
        even = even && same * g->nodes == g->n;
        if (node_of[m] == node_of[g->me]) {
            *place += m < g->me;
            ++*size;
        }
    }
    return even;
}

static mx_status make_grid(mx_group *g, const int *node_of)
{
    int per_node = g->n / g->nodes, v = 0;
    g->grid = calloc((size_t)g->n, sizeof(int));
    if (!g->grid)
        return no_memory(g->n);
    for (int m = 0; m < g->n; m++) {
        if (node_of[m] != m)
            continue;
        int i = 0;
        for (int k = m; k < g->n; k++)
            if (node_of[k] == m)
                g->grid[v * per_node + i++] = k;
        v++;
    }
    return MX_OK;
}

static mx_status make_teams(mx_group *g, MPI_Comm comm, const int *node_of)
{
    int place, size;
    bool even = are_even(g, node_of, &place, &size);
    MPI_Comm part = MPI_COMM_NULL;
    if (g->nodes == 1 || (even && size > 1)) {
        MX_TRY(split(comm, node_of[g->me], g->me, &part));
        MX_TRY(mx_team_new(part, true, &g->node));
        MX_TRY(find_members(g, g->node, &g->node_members));
    }
    if (g->nodes > 1 && even && size > 1) {
        MX_TRY(split(comm, place, node_of[g->me], &part)); /* in the order of the nodes, as the grid */
        MX_TRY(mx_team_new(part, false, &g->across));
        MX_TRY(find_members(g, g->across, &g->across_members));
        MX_TRY(make_grid(g, node_of));
    }
    return g->nodes > 1 ? mx_team_new(comm, false, &g->flat) : MX_OK;
}

static mx_status make_group(mx_group *g, const int *ranks, int n)
{
    g->n = n;
    g->ranks = malloc((size_t)n * sizeof(int));
    int *node_of = malloc((size_t)n * sizeof(int));
    if (!g->ranks || !node_of) {
        free(node_of);
        return no_memory(n);
    }
    memcpy(g->ranks, ranks, (size_t)n * sizeof(int));
    for (int m = 0; m < n; m++)
        if (ranks[m] == mx_rank())
            g->me = m;
    MPI_Comm comm = MPI_COMM_NULL;
    mx_status status = mx_meet(ranks, n, g->me);
    if (status == MX_OK && n > 1)
        status = make_comm(ranks, n, &comm);
    if (status == MX_OK && n > 1)
        status = find_nodes(g, comm, node_of);
    if (status == MX_OK && n > 1)
        status = make_teams(g, comm, node_of);
    free(node_of);
    return status;
}

mx_group *mx_group_find(const int *ranks, int n, bool messages)
{
    for (int i = 0; i < n_groups; i++)
        if (groups[i]->n == n && groups[i]->messages == messages &&
            memcmp(groups[i]->ranks, ranks, (size_t)n * sizeof(int)) == 0)
            return groups[i];
    return NULL;
}

mx_status mx_group_get(const int *ranks, int n, bool messages, mx_group **out)
{
    *out = mx_group_find(ranks, n, messages);
    if (*out)
        return MX_OK;
    mx_group **grown = realloc(groups, (size_t)(n_groups + 1) * sizeof(mx_group *));
    if (!grown)
        return no_memory(n);
    groups = grown;
    mx_group *g = calloc(1, sizeof *g);
    if (!g)
        return no_memory(n);
    g->messages = messages;
    mx_status status = make_group(g, ranks, n);
    if (status != MX_OK) { /* teams made so far are not freed: the run ends */
        free(g);
        return status;
    }
    groups[n_groups++] = g;
    *out = g;
    return MX_OK;
}
