/* Costs of collectives on tori, at switches and over slices, against figures worked out by hand and published ones. */
#include "check.h"
#include "sim/network.h"
#include "sim/placement.h"

#include <string.h>

static const double US = 1e-6, LINK = 4.5e10, HOP = 1e-6;

static bool near(double value, double expected, double share)
{
    return fabs(value - expected) <= share * fabs(expected);
}

static mx_network torus(int n_dims, const int *sizes, bool wraps, double link_Bps)
{
    mx_network network = {.n_dims = n_dims,
                          .splits_sides = true,
                          .slice_chips = 1,
                          .hop_s = HOP,
                          .dcn_Bps = 3.125e9,
                          .dcn_hop_s = 1e-5,
                          .ici_efficiency = 1,
                          .dcn_efficiency = 1};
    for (int d = 0; d < n_dims; d++) {
        network.dim[d] = (mx_network_dim){sizes[d], wraps, link_Bps};
        network.slice_chips *= sizes[d];
    }
    return network;
}

static mx_network node(void)
{
    mx_network network = torus(0, NULL, false, 0);
    network.slice_chips = 8;
    network.switch_Bps = 4.5e11;
    network.dcn_Bps = 5e10;
    return network;
}

/* Seconds of a collective along `axes` of a mesh; refused: a negative number. */
static mx_network_time cost(const mx_network *network, const mx_axis *mesh, int n, mx_axes axes, mx_exchange_kind kind,
                            double bytes)
{
    mx_placement placement;
    if (mx_placement_choose(network, mesh, n, &placement) != MX_OK)
        return (mx_network_time){-1, -1};
    mx_route route = mx_network_route(network, &placement, mesh, n, axes);
    return mx_network_cost(network, &route, kind, bytes);
}

static double ici(const mx_network *network, const mx_axis *mesh, int n, mx_axes axes, mx_exchange_kind kind,
                  double bytes)
{
    return cost(network, mesh, n, axes, kind, bytes).ici_s;
}

/* ---- where ranks lie ---- */

static mx_route route_of(const mx_network *network, const mx_axis *mesh, int n, mx_axes axes)
{
    mx_placement placement;
    CHECK(mx_placement_choose(network, mesh, n, &placement) == MX_OK, "%s", mx_message());
    return mx_network_route(network, &placement, mesh, n, axes);
}

static void test_routes(void)
{
    mx_network pod = torus(2, (int[]){16, 16}, true, LINK);
    mx_axis mesh[] = {{"data", 1, 32}, {"fsdp", 64, 1}, {"tensor", 4, 1}};
    mx_route route = route_of(&pod, mesh, 3, 1u << 2);
    CHECK(route.ranks == 4 && route.size[0] == 4 && route.size[1] == 1 && route.stride[0] == 1, "neighbours");
    route = route_of(&pod, mesh, 3, 1u << 1);
    CHECK(route.inside == 64 && route.size[0] == 4 && route.size[1] == 16, "%d by %d", route.size[0], route.size[1]);
    CHECK(route.stride[0] == 4 && route.stride[1] == 1, "every fourth chip: %d", route.stride[0]);
    route = route_of(&pod, mesh, 3, 1u << 0);
    CHECK(route.ranks == 32 && route.inside == 1 && route.slices == 32, "over slices");
    route = route_of(&pod, mesh, 3, 0);
    CHECK(route.ranks == 8192 && route.inside == 256 && route.slices == 32, "%d ranks", route.ranks);
}

/* tests/lua/test_topology.lua has the choices of JAX. Here: what is refused, and parts of an axis. */
static void test_axes_that_do_not_fit(void)
{
    mx_network pod = torus(3, (int[]){8, 8, 8}, true, LINK);
    pod.splits_sides = false;
    const struct {
        mx_axis mesh[2];
        const char *message;
    } cases[] = {{{{"fsdp", 32, 1}, {"tensor", 16, 1}},
                  "ici_tensor_parallelism = 16 does not fit the slice 8x8x8: no whole sides of 8x8x8 multiply to it"},
                 {{{"fsdp", 64, 1}, {"tensor", 8, 1}}, NULL},
                 {{{"fsdp", 16, 1}, {"tensor", 8, 1}},
                  "ici_fsdp_parallelism = 16 does not fit the slice 8x8x8: no "
                  "whole sides of 8x8 multiply to it"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mx_placement placement;
        mx_status status = mx_placement_choose(&pod, cases[i].mesh, 2, &placement);
        const char *expected = cases[i].message ? cases[i].message : "";
        CHECK((status == MX_OK) == !*expected, "case %zu", i);
        CHECK(status == MX_OK || strcmp(mx_message(), expected) == 0, "'%s'", mx_message());
    }
}

static void test_parts_of_an_axis(void)
{
    mx_network pod = torus(3, (int[]){4, 4, 4}, true, LINK);
    mx_axis mesh[] = {{"fsdp", 4, 1}, {"tensor.outer", 8, 1}, {"tensor.inner", 2, 1}};
    mx_route inner = route_of(&pod, mesh, 3, 1u << 2), outer = route_of(&pod, mesh, 3, 1u << 1),
             both = route_of(&pod, mesh, 3, 3u << 1);
    CHECK(inner.size[1] == 2 && inner.stride[1] == 1 && inner.size[0] == 1, "inner: half of a side");
    CHECK(outer.size[1] == 2 && outer.stride[1] == 2 && outer.size[0] == 4, "outer: the other half, and a side");
    CHECK(both.size[0] == 4 && both.size[1] == 4 && both.size[2] == 1, "tensor = 16: two whole sides, as in JAX");
}

/* ---- tori ---- */

/* "How to Scale Your Model", exercises: bf16[2048, 8192] gathered over the side of 4 of a v5e 8x4 slice: 377 us were it
 * a ring, 560 us as a line; bf16[256, 256] is bound by the latency of three hops. */
static void test_v5e_slice(void)
{
    const double bytes = 2.0 * 2048 * 8192;
    mx_axis mesh[] = {{"x", 8, 1}, {"y", 4, 1}};
    mx_network ring = torus(2, (int[]){8, 4}, true, LINK), line = torus(2, (int[]){8, 4}, false, LINK);
    double as_ring = ici(&ring, mesh, 2, 2, MX_ALL_GATHER, bytes),
           as_line = ici(&line, mesh, 2, 2, MX_ALL_GATHER, bytes);
    CHECK(near(as_ring, bytes / 9e10, 1e-12) && near(as_ring, 377 * US, 0.02), "%g us", as_ring / US);
    CHECK(near(as_line, 0.75 * bytes / LINK, 1e-12) && near(as_line, 560 * US, 0.005), "%g us", as_line / US);
    CHECK(near(ici(&line, mesh, 2, 2, MX_REDUCE_SCATTER, bytes), as_line, 1e-12), "a scatter is a gather backwards");
    CHECK(near(ici(&line, mesh, 2, 2, MX_ALL_GATHER, 2.0 * 256 * 256), 3 * HOP, 1e-12), "three hops");
    CHECK(near(ici(&ring, mesh, 2, 2, MX_ALL_GATHER, 1024), 2 * HOP, 1e-12), "half way around, both ways");
    CHECK(near(ici(&ring, mesh, 2, 1, MX_ALL_GATHER, 1024), 4 * HOP, 1e-12), "half of eight");
    CHECK(near(ici(&line, mesh, 2, 0, MX_ALL_GATHER, bytes), 31.0 / 32 * bytes / (2 * LINK), 1e-12),
          "a corner's links");
    CHECK(near(ici(&ring, mesh, 2, 0, MX_BARRIER, 0), 6 * HOP, 1e-12), "half of both sides");
}

/* The same book: v4p 4x4x4, bf16[1024, 4096]; its Y = 4 parts over X 23 us, whole over X and Y 46 us, all-reduced over
 * Z 190 us. */
static void test_v4p_cube(void)
{
    const double bytes = 2.0 * 1024 * 4096;
    mx_axis mesh[] = {{"x", 4, 1}, {"y", 4, 1}, {"z", 4, 1}};
    mx_network cube = torus(3, (int[]){4, 4, 4}, true, LINK);
    double x = ici(&cube, mesh, 3, 1, MX_ALL_GATHER, bytes / 4), xy = ici(&cube, mesh, 3, 3, MX_ALL_GATHER, bytes);
    double z = ici(&cube, mesh, 3, 4, MX_ALL_REDUCE, bytes);
    CHECK(near(x, 23 * US, 0.02) && near(xy, 46 * US, 0.02), "%g us, %g us", x / US, xy / US);
    CHECK(near(z, 190 * US, 0.02) && near(z, 2 * bytes / 9e10, 1e-12), "%g us", z / US);
    CHECK(near(ici(&cube, mesh, 3, 0, MX_ALL_GATHER, bytes), bytes / 27e10, 1e-12), "three dimensions at once");
    CHECK(near(ici(&cube, mesh, 3, 1, MX_ALL_TO_ALL, bytes), bytes / 9e10 / 4, 1e-12), "a quarter of a gather");
    CHECK(near(ici(&cube, mesh, 3, 1, MX_PERMUTE, bytes), HOP + bytes / LINK, 1e-12), "one link");
}

/* Ranks every fourth chip apart: four such groups use the same links, and a ring that is not whole is a line. */
static void test_strided_groups_share_links(void)
{
    const double bytes = 1e9;
    mx_network pod = torus(2, (int[]){16, 16}, true, LINK);
    mx_axis mesh[] = {{"fsdp", 16, 1}, {"outer", 4, 1}, {"inner", 4, 1}};
    double inner = ici(&pod, mesh, 3, 4, MX_ALL_GATHER, bytes), outer = ici(&pod, mesh, 3, 2, MX_ALL_GATHER, bytes);
    CHECK(near(inner, 0.75 * bytes / LINK, 1e-12), "a line of 4: %g", inner);
    CHECK(near(outer, 4 * bytes / (2 * LINK), 1e-12), "a ring of 4 in a quarter of the links: %g", outer);
    CHECK(near(ici(&pod, mesh, 3, 2, MX_PERMUTE, bytes), HOP + 4 * bytes / LINK, 1e-12), "a step over four links");
    CHECK(near(ici(&pod, mesh, 3, 2, MX_ALL_GATHER, 64), 8 * HOP, 1e-12), "two hops of four links");
}

/* Two dies of a chip, each with half of its links, and a fast link between them. */
static void test_dies(void)
{
    const double bytes = 1e9, die_link = 5.4e11;
    mx_network pod = torus(4, (int[]){4, 4, 4, 2}, true, LINK);
    pod.has_dies = true;
    pod.dim[3] = (mx_network_dim){2, false, die_link};
    mx_axis mesh[] = {{"x", 4, 1}, {"yz", 16, 1}, {"die", 2, 1}};
    double all = ici(&pod, mesh, 3, 0, MX_ALL_GATHER, bytes);
    CHECK(near(all, bytes / (2 * 3 * 2 * LINK), 1e-12), "what the links of both dies bring in: %g", all);
    CHECK(near(ici(&pod, mesh, 3, 3, MX_ALL_GATHER, bytes), bytes / (3 * 2 * LINK), 1e-12), "links of one die");
    CHECK(near(ici(&pod, mesh, 3, 5, MX_ALL_GATHER, bytes), bytes / (2 * 2 * LINK), 1e-12), "one side and the dies");
    CHECK(near(ici(&pod, mesh, 3, 4, MX_ALL_GATHER, bytes), bytes / 2 / die_link, 1e-12), "between the dies alone");
}

/* ---- a switch, slices ---- */

static void test_switch(void)
{
    const double bytes = 1e9, port = 4.5e11;
    mx_network h100 = node();
    mx_axis mesh[] = {{"fsdp", 8, 1}};
    double gather = 7 * HOP + bytes * 7 / 8 / port;
    CHECK(near(ici(&h100, mesh, 1, 1, MX_ALL_GATHER, bytes), gather, 1e-12), "(N - 1) / N of all by the port");
    CHECK(near(ici(&h100, mesh, 1, 1, MX_REDUCE_SCATTER, bytes), gather, 1e-12), "as a gather");
    CHECK(near(ici(&h100, mesh, 1, 1, MX_ALL_REDUCE, bytes), 2 * gather, 1e-12), "twice a gather");
    CHECK(near(ici(&h100, mesh, 1, 1, MX_ALL_TO_ALL, bytes), HOP + bytes * 7 / 64 / port, 1e-12), "(N - 1) / N^2");
    CHECK(near(ici(&h100, mesh, 1, 1, MX_PERMUTE, bytes), HOP + bytes / port, 1e-12), "all by the port");
    mx_axis three[] = {{"fsdp", 3, 1}};
    CHECK(near(ici(&h100, three, 1, 1, MX_ALL_GATHER, bytes), 2 * HOP + bytes * 2 / 3 / port, 1e-12), "any number");
}

static void test_slices(void)
{
    const double bytes = 1e9, dcn = 3.125e9, hop = 1e-5;
    mx_network pod = torus(2, (int[]){16, 16}, true, LINK);
    for (int m = 2; m <= 32; m += 30) {
        mx_axis mesh[] = {{"data", 1, m}, {"fsdp", 256, 1}};
        mx_network_time one = cost(&pod, mesh, 2, 1, MX_ALL_REDUCE, bytes),
                        all = cost(&pod, mesh, 2, 0, MX_ALL_REDUCE, bytes);
        double ring = 2 * ((m - 1) * hop + bytes * (m - 1) / m / dcn);
        CHECK(one.ici_s == 0 && near(one.dcn_s, ring, 1e-12), "a chip of each of %d: %g s", m, one.dcn_s);
        CHECK(near(all.ici_s, 2 * bytes / (4 * LINK), 1e-12), "scattered and gathered inside: %g s", all.ici_s);
        CHECK(near(all.dcn_s, 2 * ((m - 1) * hop + bytes / 256 * (m - 1) / m / dcn), 1e-12), "%g s", all.dcn_s);
        mx_network_time step = cost(&pod, mesh, 2, 0, MX_PERMUTE, bytes);
        CHECK(step.ici_s == 0 && near(step.dcn_s, hop + bytes / dcn, 1e-12), "as slow as the slowest link");
    }
    /* Every chip of two slices has bytes / 512. Half of that goes to the other slice, and all of it, as much as a slice
     * has, is exchanged inside. */
    mx_axis two[] = {{"expert", 256, 2}};
    for (int kind = MX_ALL_TO_ALL; kind <= MX_ALL_TO_ALL_ROWS; kind++) {
        mx_network_time t = cost(&pod, two, 1, 1, (mx_exchange_kind)kind, bytes);
        CHECK(near(t.dcn_s, hop + bytes / 512 / 2 / dcn, 1e-12), "%g s", t.dcn_s);
        CHECK(near(t.ici_s, bytes / 2 / 4 / (4 * LINK), 1e-12), "a quarter of a gather of a slice: %g s", t.ici_s);
    }
    mx_axis inside[] = {{"data", 1, 1}, {"fsdp", 256, 1}};
    CHECK(cost(&pod, inside, 2, 1, MX_ALL_REDUCE, bytes).dcn_s == 0, "one slice crosses nothing");
}

/* ---- everywhere ---- */

static double total(const mx_network *network, const mx_axis *mesh, int n, mx_axes axes, int kind, double bytes)
{
    mx_network_time t = cost(network, mesh, n, axes, (mx_exchange_kind)kind, bytes);
    return t.ici_s + t.dcn_s;
}

static mx_network faster(mx_network network, double factor)
{
    for (int d = 0; d < network.n_dims; d++)
        network.dim[d].link_Bps *= factor;
    network.switch_Bps *= factor;
    network.dcn_Bps *= factor;
    return network;
}

static void test_monotonic(void)
{
    mx_axis mesh[] = {{"data", 1, 4}, {"fsdp", 8, 1}, {"tensor", 8, 1}};
    mx_network networks[] = {torus(2, (int[]){8, 8}, true, LINK), torus(3, (int[]){4, 4, 4}, false, LINK), node()};
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
        for (int kind = 0; kind < MX_EXCHANGE_KINDS; kind++)
            for (mx_axes axes = 0; axes < 8; axes++) {
                double last = 0, bytes = 1;
                mx_network fast = faster(networks[i], 1.5);
                for (int i_size = 0; i_size < 14; i_size++, bytes *= 7) {
                    double seconds = total(&networks[i], mesh, 3, axes, kind, bytes);
                    CHECK(seconds > 0 && seconds >= last, "network %zu, kind %d, axes %u: %g bytes", i, kind, axes,
                          bytes);
                    CHECK(total(&fast, mesh, 3, axes, kind, bytes) <= seconds, "network %zu, kind %d: faster", i, kind);
                    last = seconds;
                }
            }
}

static void test_efficiency(void)
{
    mx_network pod = torus(2, (int[]){16, 16}, true, LINK);
    mx_axis mesh[] = {{"data", 1, 2}, {"fsdp", 256, 1}};
    mx_network_time before = cost(&pod, mesh, 2, 0, MX_ALL_GATHER, 1e9);
    pod.ici_efficiency = 0.5;
    pod.dcn_hop_s = 0;
    pod.dcn_efficiency = 0.25;
    mx_network_time after = cost(&pod, mesh, 2, 0, MX_ALL_GATHER, 1e9);
    CHECK(near(after.ici_s, 2 * before.ici_s, 1e-12), "half of the links' bandwidth");
    CHECK(near(after.dcn_s, 4 * (before.dcn_s - 1e-5), 1e-9), "a quarter of the network's");
}

/* Two slices of four: of 7 parts, one comes from the counterpart; of 7 messages of an exchange, four go across. */
static void test_bytes_across_slices(void)
{
    mx_network pod = torus(2, (int[]){2, 2}, false, LINK);
    mx_axis mesh[] = {{"data", 1, 2}, {"fsdp", 4, 1}};
    mx_route all = route_of(&pod, mesh, 2, 0), inside = route_of(&pod, mesh, 2, 2), across = route_of(&pod, mesh, 2, 1);
    CHECK(near(mx_network_share_across(&all, MX_ALL_REDUCE), 1.0 / 7, 1e-12), "a sum");
    CHECK(near(mx_network_share_across(&all, MX_ALL_TO_ALL), 4.0 / 7, 1e-12), "an exchange");
    CHECK(mx_network_share_across(&all, MX_PERMUTE) == 1, "the slowest message counts");
    CHECK(mx_network_share_across(&inside, MX_ALL_GATHER) == 0, "inside");
    CHECK(mx_network_share_across(&across, MX_ALL_GATHER) == 1, "only across");
}

int main(void)
{
    test_routes();
    test_axes_that_do_not_fit();
    test_parts_of_an_axis();
    test_v5e_slice();
    test_v4p_cube();
    test_strided_groups_share_links();
    test_dies();
    test_switch();
    test_slices();
    test_monotonic();
    test_efficiency();
    test_bytes_across_slices();
    return check_done();
}
