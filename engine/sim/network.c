#include "sim/network.h"

#include <math.h>

/* ---- positions of ranks ---- */

mx_route mx_network_route(const mx_network *network, const mx_placement *placement, const mx_axis *mesh, int n,
                          mx_axes axes)
{
    mx_route route = {.inside = 1, .slices = 1};
    int inner[MX_NETWORK_DIMS]; /* chips along each dimension of the axes inside the current one */
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        inner[d] = route.size[d] = route.stride[d] = 1;
    for (int a = n - 1; a >= 0; a--) {
        bool wanted = axes == 0 || (axes >> a & 1u);
        route.inside *= wanted ? mesh[a].ici : 1;
        route.slices *= wanted ? mesh[a].dcn : 1;
        for (int d = 0; d < network->n_dims; d++) {
            int part = placement->part[a][d];
            if (wanted && part > 1) {
                route.stride[d] = route.size[d] == 1 ? inner[d] : route.stride[d];
                route.size[d] *= part;
            }
            inner[d] *= part;
        }
    }
    route.ranks = route.inside * route.slices;
    return route;
}

/* ---- inside a slice ---- */

static bool is_ring(const mx_network *network, const mx_route *route, int d)
{
    return network->dim[d].wraps && route->size[d] > 2 && route->size[d] * route->stride[d] == network->dim[d].size;
}

/* The bandwidth into a chip along dimension d. If the group's ranks are `stride` apart, they share their links with as
 * many other groups. */
static double dim_bandwidth(const mx_network *network, const mx_route *route, int d)
{
    double link_Bps = network->ici_efficiency * network->dim[d].link_Bps / route->stride[d];
    return is_ring(network, route, d) ? 2 * link_Bps : link_Bps;
}

/* The seconds in which a block of chips receives its missing part of V bytes, over the links that lead into it along
 * `dims` (a bit for each dimension); the block spans the other dimensions. 0: there are no chips along `dims`. (For a
 * ring this is V / W, as published, which does not subtract the part that is already there.) */
static double block_gather(const mx_network *network, const mx_route *route, unsigned dims, double bytes)
{
    double in_Bps = 0, block_chips = 1, blocks = 1;
    bool rings = false;
    for (int d = 0; d < network->n_dims; d++) {
        if (!(dims >> d & 1u)) {
            block_chips *= route->size[d];
        } else if (route->size[d] > 1) {
            in_Bps += dim_bandwidth(network, route, d);
            blocks *= route->size[d];
            rings = rings || is_ring(network, route, d);
        }
    }
    double lacks = rings ? bytes : bytes * (blocks - 1) / blocks;
    return blocks > 1 ? lacks / (in_Bps * block_chips) : 0;
}

/* The seconds of gathering V bytes: those of the slowest block. Usually that is a single chip; but the two dies of a
 * chip, with a fast link between them, wait for the data from the links of both. */
static double torus_gather(const mx_network *network, const mx_route *route, double bytes)
{
    double hops = 0, slowest_s = 0;
    for (int d = 0; d < network->n_dims; d++) {
        int n = route->size[d];
        hops += (is_ring(network, route, d) ? (n + 1) / 2 : n - 1) * route->stride[d];
    }
    for (unsigned dims = 1; dims < 1u << network->n_dims; dims++)
        slowest_s = fmax(slowest_s, block_gather(network, route, dims, bytes));
    return fmax(hops * network->hop_s, slowest_s);
}

static double torus_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes)
{
    double gather_s = torus_gather(network, route, bytes);
    switch (kind) {
    case MX_ALL_REDUCE:
        return 2 * gather_s;
    case MX_ALL_TO_ALL:
    case MX_ALL_TO_ALL_ROWS:
        return torus_gather(network, route, bytes / 4);
    case MX_PERMUTE:
    case MX_POINT:
        for (int d = network->n_dims - 1; d >= 0; d--)
            if (route->size[d] > 1)
                return network->hop_s + bytes * route->stride[d] / (network->ici_efficiency * network->dim[d].link_Bps);
        return 0;
    case MX_BARRIER:
        return torus_gather(network, route, 0);
    default:
        return gather_s;
    }
}

static double switch_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes)
{
    double n = route->inside, port_Bps = network->ici_efficiency * network->switch_Bps;
    double gather_s = (n - 1) * network->hop_s + bytes * (n - 1) / (n * port_Bps);
    switch (kind) {
    case MX_ALL_REDUCE:
        return 2 * gather_s;
    case MX_ALL_TO_ALL:
    case MX_ALL_TO_ALL_ROWS:
        return network->hop_s + bytes * (n - 1) / (n * n * port_Bps);
    case MX_PERMUTE:
    case MX_POINT:
    case MX_BROADCAST:
        return network->hop_s + bytes / port_Bps;
    case MX_BARRIER:
        return (n - 1) * network->hop_s;
    default:
        return gather_s;
    }
}

/* ---- between slices ---- */

/* Data that cross slices are scattered inside the slices before, or gathered inside afterwards. So a chip exchanges 1 /
 * inside of the whole with its counterparts, in a ring of the slices. */
static double dcn_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes)
{
    double m = route->slices, own = bytes / route->inside, chip_Bps = network->dcn_efficiency * network->dcn_Bps;
    double gather_s = (m - 1) * network->dcn_hop_s + own * (m - 1) / (m * chip_Bps);
    switch (kind) {
    case MX_ALL_REDUCE:
        return 2 * gather_s;
    case MX_ALL_TO_ALL:
    case MX_ALL_TO_ALL_ROWS:
        return network->dcn_hop_s + own * (m - 1) / (m * m * chip_Bps);
    case MX_PERMUTE:
    case MX_POINT:
        return network->dcn_hop_s + bytes / chip_Bps;
    case MX_BARRIER:
        return (m - 1) * network->dcn_hop_s;
    default:
        return gather_s;
    }
}

mx_network_time mx_network_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes)
{
    mx_network_time t = {0, 0};
    bool one_way = kind == MX_PERMUTE || kind == MX_POINT,
         crosses = one_way && route->slices > 1; /* the slowest link determines the time of a step */
    /* What an exchange brings from other slices is exchanged once more inside: as much as a slice has. */
    bool exchanges = kind == MX_ALL_TO_ALL || kind == MX_ALL_TO_ALL_ROWS;
    double inside = exchanges ? bytes / route->slices : bytes;
    if (route->inside > 1 && !crosses)
        t.ici_s =
            network->n_dims > 0 ? torus_cost(network, route, kind, inside) : switch_cost(network, route, kind, inside);
    if (route->slices > 1)
        t.dcn_s = dcn_cost(network, route, kind, bytes);
    return t;
}

/* A gather brings a rank the parts of the n - 1 others: those of (m - 1) counterparts come from other slices, the rest,
 * with theirs, from inside. In an exchange, n - n / m of the n - 1 others are in other slices. */
double mx_network_share_across(const mx_route *route, mx_exchange_kind kind)
{
    double n = route->ranks, m = route->slices;
    if (m == 1)
        return 0;
    if (kind == MX_PERMUTE || kind == MX_POINT)
        return 1;
    bool exchanges = kind == MX_ALL_TO_ALL || kind == MX_ALL_TO_ALL_ROWS;
    return (exchanges ? n - n / m : m - 1) / (n - 1);
}

int mx_network_hops(const mx_network *network, const mx_route *route, int distance)
{
    if (network->n_dims == 0 || route->slices > 1)
        return 1;
    int hops = 0;
    for (int d = network->n_dims - 1; d >= 0; d--) { /* the innermost dimension counts first */
        int n = route->size[d], along = distance % n;
        hops += is_ring(network, route, d) && 2 * along > n ? n - along : along;
        distance /= n;
    }
    return hops;
}
