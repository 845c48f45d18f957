/* The time of collectives on a network: pure functions of sizes, bandwidths and the positions of the ranks.
 *
 * A slice is a torus of chips, or chips on a switch. The data-centre network (DCN) connects slices; each chip has its
 * own share of it. Rings and tori follow "How to Scale Your Model" (jax-ml.github.io/scaling-book). Let V be the bytes
 * of the whole array, w the bandwidth of a link one way and W = 2 w. A ring of X chips gathers in V / W; a line gathers
 * in (X - 1) / X * V / w; several dimensions gather at once over all links that lead into a chip, unless a part of the
 * torus is a bottleneck. */
#ifndef MX_SIM_NETWORK_H
#define MX_SIM_NETWORK_H

#include "mesh/mesh.h"
#include "transport/exchange.h"

enum { MX_NETWORK_DIMS = 4 };

typedef struct mx_network_dim {
    int size;
    bool wraps;      /* the last chip is connected to the first */
    double link_Bps; /* one way */
} mx_network_dim;

typedef struct mx_network {
    int n_dims; /* dimensions of the torus, the last one innermost; 0: a switch */
    mx_network_dim dim[MX_NETWORK_DIMS];
    int slice_chips;
    bool has_dies;     /* the last dimension is the dies of a chip, which JAX gives away first */
    bool ring_order;   /* JAX numbers the chips of this slice along a ring */
    bool splits_sides; /* several axes may share a dimension (allow_split_physical_axes) */
    int rings; /* chips of an inner axis: two rows of chips of a 16 x 16 slice, 4 or 8 in all (custom_mesh); 0: none */
    double switch_Bps;                     /* from a chip into the switch, one way */
    double hop_s;                          /* latency between neighbouring chips */
    double dcn_Bps;                        /* from a chip to other slices, one way */
    bool one_stream;                       /* collectives between slices overlap with nothing */
    double dcn_hop_s;                      /* latency between neighbouring slices */
    double ici_efficiency, dcn_efficiency; /* share of the nominal bandwidth that collectives reach */
} mx_network;

/* The chips of each axis of a mesh along each dimension (placement.h). In a dimension that several axes share, the
 * chips of a later axis are closer to each other. */
typedef struct mx_placement {
    int part[MX_MAX_AXES][MX_NETWORK_DIMS];
} mx_placement;

/* The positions of a group's ranks: their number and distance in each dimension of the torus, and the number of slices.
 */
typedef struct mx_route {
    int ranks, inside, slices; /* ranks = inside * slices */
    int size[MX_NETWORK_DIMS], stride[MX_NETWORK_DIMS];
} mx_route;

/* The route of the group along `axes` (0: all) of a mesh of n axes. */
mx_route mx_network_route(const mx_network *network, const mx_placement *placement, const mx_axis *mesh, int n,
                          mx_axes axes);

/* Seconds inside slices and between slices, one after the other; `bytes` is the size of the whole array. */
typedef struct mx_network_time {
    double ici_s, dcn_s;
} mx_network_time;
/* MX_POINT costs what a permute of the same bytes does: the message of each rank to a neighbour. */
mx_network_time mx_network_cost(const mx_network *network, const mx_route *route, mx_exchange_kind kind, double bytes);

/* Of the bytes that a rank sends in a collective, the share that leaves its slice. */
double mx_network_share_across(const mx_route *route, mx_exchange_kind kind);

/* The number of links between neighbours along the group that a message crosses between two of its `ranks` that are
 * `distance` apart: on a ring, the shorter way; 1 on a switch and between slices. */
int mx_network_hops(const mx_network *network, const mx_route *route, int distance);

#endif
