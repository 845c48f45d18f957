/* How long collectives take on a network: pure functions of sizes, speeds and the places of the ranks.
 *
 * A slice is a torus of chips, or chips at a switch; slices are joined by the data-centre network (DCN), over which
 * each chip has its own share. Rings and tori after "How to Scale Your Model" (jax-ml.github.io/scaling-book): with V
 * the bytes of the whole array, w the bandwidth of a link one way and W = 2 w, a ring of X chips gathers in V / W, a
 * line in (X - 1) / X * V / w, and several dimensions at once by all links that lead into a chip, as far as no part of
 * the torus is a bottleneck. */
#ifndef MX_SIM_NETWORK_H
#define MX_SIM_NETWORK_H

#include "mesh/mesh.h"
#include "transport/exchange.h"

enum { MX_NETWORK_DIMS = 4 };

typedef struct mx_network_dim {
    int size;
    bool wraps;      /* the last chip is joined to the first */
    double link_Bps; /* one way */
} mx_network_dim;

typedef struct mx_network {
    int n_dims; /* of the torus, the last one innermost; 0: a switch */
    mx_network_dim dim[MX_NETWORK_DIMS];
    int slice_chips;
    double switch_Bps;                     /* of a chip into the switch, one way */
    double hop_s;                          /* latency from a chip to the next */
    double dcn_Bps;                        /* of a chip to other slices, one way */
    double dcn_hop_s;                      /* latency from a slice to the next */
    double ici_efficiency, dcn_efficiency; /* share of the nominal bandwidth that collectives get */
} mx_network;

/* Where the ranks of a group lie: how many in each dimension of the torus and how far apart, and in how many slices. */
typedef struct mx_route {
    int ranks, inside, slices; /* ranks = inside * slices */
    int size[MX_NETWORK_DIMS], stride[MX_NETWORK_DIMS];
} mx_route;

/* The places of the group along `axes` (0: all) of a mesh of n axes, whose ici sizes fill the slice row-major.
 * MX_ERR_VALUE, with both numbers, when an axis neither divides a dimension of the torus nor is made of whole ones. */
mx_status mx_network_route(const mx_network *network, const mx_axis *mesh, int n, mx_axes axes, mx_route *route);

/* Seconds inside slices and between them, one after the other, for `bytes` of the whole array. */
typedef struct mx_network_time {
    double ici_s, dcn_s;
} mx_network_time;
mx_network_time mx_network_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes);

#endif
