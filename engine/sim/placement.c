#include "sim/placement.h"

#include <stdio.h>
#include <string.h>

typedef struct sides {
    int of[MX_NETWORK_DIMS];
} sides;

static const sides ONES = {{1, 1, 1, 1}};

/* ---- whole sides: _create_device_mesh_for_nd_torus ---- */

static int count(unsigned dims) { return __builtin_popcount(dims); }

/* The product of the free sides of a set; 0 if one of them is taken. */
static int64_t product(const mx_network *network, unsigned dims, unsigned taken)
{
    int64_t chips = dims & taken ? 0 : 1;
    for (int d = 0; d < network->n_dims; d++)
        chips *= dims >> d & 1u ? network->dim[d].size : 1;
    return chips;
}

/* The rank of a side: sets with a side of lower rank are tried first. Only dies are preferred; they come last. */
static int rank_of(const mx_network *network, int d) { return network->has_dies ? (d + 1) % network->n_dims : 0; }

/* Whether JAX tries set a before set b of as many sides: by the best rank, by the sum of ranks, then in the order of
 * itertools.combinations. */
static bool is_before(const mx_network *network, unsigned a, unsigned b)
{
    int best[2] = {MX_NETWORK_DIMS, MX_NETWORK_DIMS}, sum[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < network->n_dims; d++)
            if ((i ? b : a) >> d & 1u) {
                int rank = rank_of(network, d);
                best[i] = rank < best[i] ? rank : best[i];
                sum[i] += rank;
            }
    if (best[0] != best[1])
        return best[0] < best[1];
    if (sum[0] != sum[1])
        return sum[0] < sum[1];
    unsigned first_difference = (a ^ b) & -(a ^ b);
    return (a & first_difference) != 0;
}

/* The set of free sides that multiply to `size`: with the most sides, of these the first; 0: none. */
static unsigned whole_sides(const mx_network *network, int size, unsigned taken)
{
    unsigned best = 0;
    for (unsigned dims = 1; dims < 1u << network->n_dims; dims++) {
        if (product(network, dims, taken) != size)
            continue;
        if (!best || count(dims) > count(best) || (count(dims) == count(best) && is_before(network, dims, best)))
            best = dims;
    }
    return best;
}

/* ---- parts of sides: _create_device_mesh_for_nd_torus_splitting_axes ---- */

/* The chips along the sides that x takes whole, or along those that already have an axis. */
static int64_t chips_along(const mx_network *network, const sides *x, const sides *used, bool whole)
{
    int64_t chips = 1;
    for (int d = 0; d < network->n_dims; d++)
        if (whole ? x->of[d] == network->dim[d].size : used->of[d] > 1)
            chips *= x->of[d];
    return chips;
}

static int whole_count(const mx_network *network, const sides *x)
{
    int n = 0;
    for (int d = 0; d < network->n_dims; d++)
        n += x->of[d] > 1 && x->of[d] == network->dim[d].size;
    return n;
}

/* _prefer_first_logical_axis_assignment: the most chips along whole sides, then the most whole sides, then the most
 * chips along sides that are in use, then the first sides. */
static bool is_preferred(const mx_network *network, const sides *x, const sides *y, const sides *used)
{
    int64_t whole[2] = {chips_along(network, x, used, true), chips_along(network, y, used, true)};
    if (whole[0] != whole[1])
        return whole[0] > whole[1];
    int n[2] = {whole_count(network, x), whole_count(network, y)};
    if (n[0] != n[1])
        return n[0] > n[1];
    int64_t shared[2] = {chips_along(network, x, used, false), chips_along(network, y, used, false)};
    if (shared[0] != shared[1])
        return shared[0] > shared[1];
    for (int d = 0; d < network->n_dims; d++)
        if (x->of[d] != y->of[d])
            return x->of[d] > y->of[d];
    return false;
}

/* Tries all ways to take `left` chips from dimension d on; `best` has the preferred way, of[0] = 0 if there is none. */
static void try_parts(const mx_network *network, const sides *used, int left, int d, sides *now, sides *best)
{
    if (d == network->n_dims) {
        if (left == 1 && (best->of[0] == 0 || is_preferred(network, now, best, used)))
            *best = *now;
        return;
    }
    int room = network->dim[d].size / used->of[d];
    for (int part = 1; part <= room && part <= left; part++)
        if (room % part == 0 && left % part == 0) {
            now->of[d] = part;
            try_parts(network, used, left / part, d + 1, now, best);
        }
    now->of[d] = 1;
}

/* ---- one axis after the other ---- */

/* Takes `size` chips from the `room` of each dimension, from the last one on; false if they do not divide. */
static bool take_in_order(int n_dims, sides *room, int size, sides *out)
{
    *out = ONES;
    for (int d = n_dims - 1; d >= 0 && size > 1; d--) {
        int part = size < room->of[d] ? size : room->of[d];
        if (size % part != 0 || room->of[d] % part != 0)
            return false;
        out->of[d] = part;
        room->of[d] /= part;
        size /= part;
    }
    return size == 1;
}

static bool take_whole(const mx_network *network, int size, unsigned *taken, sides *out)
{
    unsigned dims = size > 1 ? whole_sides(network, size, *taken) : 0;
    *out = ONES;
    *taken |= dims;
    for (int d = 0; d < network->n_dims; d++)
        out->of[d] = dims >> d & 1u ? network->dim[d].size : 1;
    return size == 1 || dims;
}

static bool take_parts(const mx_network *network, int size, sides *used, sides *out)
{
    sides now = ONES;
    *out = (sides){{0}};
    try_parts(network, used, size, 0, &now, out);
    for (int d = 0; d < network->n_dims; d++)
        used->of[d] *= out->of[0] > 0 ? out->of[d] : 1;
    return out->of[0] > 0;
}

typedef enum { IN_ORDER, WHOLE, PARTS } way;

static const char *text_of(const mx_network *network, unsigned without, char *text, size_t size)
{
    int length = 0;
    text[0] = '\0';
    for (int d = 0; d < network->n_dims && length < (int)size; d++)
        if (!(without >> d & 1u))
            length += snprintf(text + length, size - (size_t)length, length ? "x%d" : "%d", network->dim[d].size);
    return text;
}

static mx_status refuse(const mx_network *network, const char *name, int size, unsigned taken)
{
    char all[64], left[64];
    return mx_fail(MX_ERR_VALUE,
                   "ici_%s_parallelism = %d does not fit the slice %s: no whole sides of %s multiply to it", name, size,
                   text_of(network, 0, all, sizeof all), text_of(network, taken, left, sizeof left));
}

/* The chips of an axis without its parts: the product of the neighbours with the same name up to a dot. */
static int joined(const mx_axis *mesh, int last, int *first)
{
    size_t length = strcspn(mesh[last].name, ".");
    int size = mesh[last].ici;
    for (*first = last; *first > 0 && mesh[last].name[length] == '.'; size *= mesh[--*first].ici)
        if (strncmp(mesh[*first - 1].name, mesh[last].name, length + 1) != 0)
            break;
    return size;
}

static mx_status place(const mx_network *network, const mx_axis *mesh, int n, way how, mx_placement *out)
{
    sides room, used = ONES;
    unsigned taken = 0;
    for (int d = 0; d < MX_NETWORK_DIMS; d++)
        room.of[d] = d < network->n_dims ? network->dim[d].size : 1;
    for (int last = n - 1, first; last >= 0; last = first - 1) {
        int size = joined(mesh, last, &first);
        sides of_axis;
        bool fits = how == IN_ORDER ? take_in_order(network->n_dims, &room, size, &of_axis)
                    : how == WHOLE  ? take_whole(network, size, &taken, &of_axis)
                                    : take_parts(network, size, &used, &of_axis);
        for (int a = last; fits && a >= first; a--) {
            sides part;
            fits = take_in_order(network->n_dims, &of_axis, mesh[a].ici, &part);
            memcpy(out->part[a], part.of, sizeof part.of);
        }
        if (!fits) {
            char name[sizeof mesh[last].name];
            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(mesh[last].name, "."), mesh[last].name);
            return refuse(network, name, size, taken);
        }
    }
    return MX_OK;
}

/* custom_mesh: the last of two axes on blocks of two rows of chips, the other one on the blocks. */
static mx_status place_rings(const mx_network *network, const mx_axis *mesh, int n, mx_placement *out)
{
    enum { SIDE = 16 };
    int outer = -1, inner = -1, axes = 0, columns = network->rings / 2;
    for (int a = 0; a < n; a++)
        if (mesh[a].ici > 1) {
            outer = inner;
            inner = a;
            axes++;
        }
    if (network->n_dims != 2 || network->dim[0].size != SIDE || network->dim[1].size != SIDE || axes != 2 ||
        mesh[inner].ici != network->rings)
        return mx_fail(MX_ERR_VALUE,
                       "custom_mesh = hybrid_ring_%dx%d needs a slice of 16x16 and two axes, the last of "
                       "them (in the order of the mesh) of %d chips: change the sizes or leave it out",
                       SIDE * SIDE / network->rings, network->rings, network->rings);
    out->part[inner][0] = 2;
    out->part[inner][1] = columns;
    out->part[outer][0] = SIDE / 2;
    out->part[outer][1] = SIDE / columns;
    return MX_OK;
}

mx_status mx_placement_choose(const mx_network *network, const mx_axis *mesh, int n, mx_placement *out)
{
    for (int a = 0; a < n; a++)
        memcpy(out->part[a], ONES.of, sizeof ONES.of);
    if (network->n_dims == 0 && network->rings == 0)
        return MX_OK;
    if (network->rings > 0)
        return place_rings(network, mesh, n, out);
    if (network->ring_order)
        return place(network, mesh, n, IN_ORDER, out);
    mx_status status = place(network, mesh, n, WHOLE, out);
    return status != MX_OK && network->splits_sides ? place(network, mesh, n, PARTS, out) : status;
}
