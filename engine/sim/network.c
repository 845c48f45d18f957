#include "sim/network.h"

#include <math.h>

/* ---- where ranks lie ---- */

static mx_status place_axis(const mx_network *network, const mx_axis *axis, bool wanted, int *d, int *stride,
                            mx_route *route)
{
    int left = axis->ici;
    while (left > 1) {
        while (*d >= 0 && *stride == network->dim[*d].size) {
            (*d)--;
            *stride = 1;
        }
        int room = *d >= 0 ? network->dim[*d].size / *stride : 0;
        int take = left < room ? left : room;
        if (room == 0 || left % take != 0 || room % take != 0)
            return mx_fail(MX_ERR_VALUE,
                           "ici_%s_parallelism = %d does not fit the torus: %d are to be placed, where a dimension has "
                           "%d chips left; expected sizes that divide, or are products of, those of its dimensions",
                           axis->name, axis->ici, left, room);
        if (wanted) {
            route->stride[*d] = route->size[*d] == 1 ? *stride : route->stride[*d];
            route->size[*d] *= take;
        }
        *stride *= take;
        left /= take;
    }
    return MX_OK;
}

mx_status mx_network_route(const mx_network *network, const mx_axis *mesh, int n, mx_axes axes, mx_route *route)
{
    *route = (mx_route){.inside = 1, .slices = 1};
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        route->size[d] = route->stride[d] = 1;
    int d = network->n_dims - 1, stride = 1;
    for (int a = n - 1; a >= 0; a--) {
        bool wanted = axes == 0 || (axes >> a & 1u);
        if (wanted) {
            route->inside *= mesh[a].ici;
            route->slices *= mesh[a].dcn;
        }
        if (network->n_dims > 0)
            MX_TRY(place_axis(network, &mesh[a], wanted, &d, &stride, route));
    }
    route->ranks = route->inside * route->slices;
    return MX_OK;
}

/* ---- inside a slice ---- */

static bool is_ring(const mx_network *network, const mx_route *route, int d)
{
    return network->dim[d].wraps && route->size[d] > 2 && route->size[d] * route->stride[d] == network->dim[d].size;
}

/* Bandwidth of a chip along dimension d. Ranks that lie `stride` apart share their links with as many other groups. */
static double dim_bandwidth(const mx_network *network, const mx_route *route, int d)
{
    int n = route->size[d];
    double link_Bps = network->ici_efficiency * network->dim[d].link_Bps / route->stride[d];
    if (n == 1)
        return 0;
    return is_ring(network, route, d) ? 2 * link_Bps : link_Bps * n / (n - 1);
}

/* Bandwidth W at which each chip can be given what it lacks: the sum of the dimensions, unless some of them are a
 * bottleneck. The chips of a block that spans the other dimensions need the same data from outside, and share what
 * comes in: the two dies of a chip lie close together, and can take in no more than the chip's links bring. */
static double torus_bandwidth(const mx_network *network, const mx_route *route)
{
    double least_Bps = INFINITY;
    for (unsigned dims = 1; dims < 1u << network->n_dims; dims++) {
        double sum_Bps = 0, block_chips = 1;
        for (int d = 0; d < network->n_dims; d++)
            if (dims >> d & 1u)
                sum_Bps += dim_bandwidth(network, route, d);
            else
                block_chips *= route->size[d];
        if (sum_Bps > 0)
            least_Bps = fmin(least_Bps, sum_Bps * block_chips);
    }
    return least_Bps;
}

/* Seconds of gathering V bytes. */
static double torus_gather(const mx_network *network, const mx_route *route, double bytes)
{
    double hops = 0;
    for (int d = 0; d < network->n_dims; d++) {
        int n = route->size[d];
        hops += (is_ring(network, route, d) ? (n + 1) / 2 : n - 1) * route->stride[d];
    }
    return fmax(hops * network->hop_s, bytes / torus_bandwidth(network, route));
}

static double torus_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes)
{
    double gather_s = torus_gather(network, route, bytes);
    switch (kind) {
    case MX_ALL_REDUCE:
        return 2 * gather_s;
    case MX_ALL_TO_ALL:
        return torus_gather(network, route, bytes / 4);
    case MX_PERMUTE:
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
        return network->hop_s + bytes * (n - 1) / (n * n * port_Bps);
    case MX_PERMUTE:
    case MX_BROADCAST:
        return network->hop_s + bytes / port_Bps;
    case MX_BARRIER:
        return (n - 1) * network->hop_s;
    default:
        return gather_s;
    }
}

/* ---- between slices ---- */

/* What crosses has been scattered inside, or is gathered inside afterwards: a chip exchanges 1 / inside of the whole
 * with its counterparts, in a ring of the slices. */
static double dcn_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes)
{
    double m = route->slices, own = bytes / route->inside, chip_Bps = network->dcn_efficiency * network->dcn_Bps;
    double gather_s = (m - 1) * network->dcn_hop_s + own * (m - 1) / (m * chip_Bps);
    switch (kind) {
    case MX_ALL_REDUCE:
        return 2 * gather_s;
    case MX_ALL_TO_ALL:
        return network->dcn_hop_s + own * (m - 1) / (m * m * chip_Bps);
    case MX_PERMUTE:
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
    bool crosses = kind == MX_PERMUTE && route->slices > 1; /* a step is as slow as its slowest link */
    if (route->inside > 1 && !crosses)
        t.ici_s =
            network->n_dims > 0 ? torus_cost(network, route, kind, bytes) : switch_cost(network, route, kind, bytes);
    if (route->slices > 1)
        t.dcn_s = dcn_cost(network, route, kind, bytes);
    return t;
}
