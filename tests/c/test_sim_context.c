/* Simulated contexts: two steps on different pods, switched between after every call, take the times and the memory of
 * each step alone, to the bit. */
#include "check.h"
#include "core/offload.h"
#include "mesh/collective_op.h"
#include "mesh/gather.h"
#include "ops/table.h"
#include "sim/device.h"
#include "transport/mpi.h"

#include <string.h>

typedef struct matmul_attr {
    bool trans_a, trans_b;
    int dtype;
} matmul_attr;

enum { CALLS = 60, TENSORS = 6 };

/* One rank with its step. */
typedef struct chip {
    mx_sim_context *context;
    int64_t size; /* of its matrices */
    mx_tensor *t[TENSORS];
} chip;

typedef struct outcome {
    mx_sim_times times;
    double clock_s[CALLS];
    mx_pool_stats memory;
    mx_comm_stats comm;
} outcome;

static mx_sim_pod pod(int side, int slices, bool offloads_collectives)
{
    mx_sim_pod p = {.slices = slices,
                    .chip = {.tile = 128,
                             .memory_bytes = 16e9,
                             .memory_Bps = 8.1e11,
                             .host_Bps = 1.6e10,
                             .launch_s = 1e-6,
                             .fuses = true,
                             .offloads = {[MX_ALL_GATHER] = offloads_collectives,
                                          [MX_REDUCE_SCATTER] = offloads_collectives,
                                          [MX_ALL_REDUCE] = offloads_collectives},
                             .matrix_efficiency = 0.9,
                             .attention_efficiency = 0.8,
                             .memory_efficiency = 0.7,
                             .attention = {.forward = {512, 512}, .dkv = {512, 512}, .dq = {512, 512}}},
                    .network = {.n_dims = 2,
                                .splits_sides = true,
                                .slice_chips = side * side,
                                .hop_s = 1e-6,
                                .dcn_Bps = 3.125e9,
                                .dcn_hop_s = 1e-5,
                                .ici_efficiency = 0.8,
                                .dcn_efficiency = 0.9}};
    p.chip.peak_flops[MX_F32] = p.chip.peak_flops[MX_BF16] = 1.97e14;
    for (int d = 0; d < 2; d++)
        p.network.dim[d] = (mx_network_dim){side, true, 4.5e10};
    return p;
}

static void apply(const mx_op *op, mx_tensor *a, mx_tensor *b, const void *attr, mx_tensor **out)
{
    mx_status status = mx_apply(op, (mx_tensor *[]){a, b}, b ? 2 : 1, (mx_attrs){attr, op->attr_bytes}, out);
    CHECK(status == MX_OK, "%s: %s", op->name, mx_message());
}

static void replace(chip *c, int i, const mx_op *op, mx_tensor *a, mx_tensor *b, const void *attr)
{
    mx_tensor *out = NULL;
    apply(op, a, b, attr, &out);
    mx_release(c->t[i]);
    c->t[i] = out;
}

static chip start(const mx_sim_pod *p, int rank, int64_t size)
{
    chip c = {.size = size};
    CHECK(mx_sim_context_new(p, rank, &c.context) == MX_OK, "%s", mx_message());
    mx_device_use(mx_sim_context_device(c.context));
    const mx_axis axes[] = {{"fsdp", p->network.slice_chips / 4, 1}, {"tensor", 4, p->slices}};
    CHECK(mx_sim_place_mesh(axes, 2) == MX_OK && mx_mesh_define(axes, 2) == MX_OK, "%s", mx_message());
    for (int i = 0; i < TENSORS; i++)
        CHECK(mx_tensor_new(MX_BF16, &(mx_shape){2, {size, size}}, &c.t[i]) == MX_OK, "%s", mx_message());
    return c;
}

/* A bit of everything that keeps state: fusion, links, open batches, gathers ahead, transfers to the host. */
static void call(chip *c, int k)
{
    const matmul_attr product = {.dtype = -1};
    const mx_collective_attr fsdp = {.axis = 1, .dim = 0, .dtype = -1, .async = true};
    const mx_collective_attr tensor = {.axis = 2, .dim = 0, .dtype = -1, .async = k % 3 > 0};
    mx_call ahead = {.op = &mx_op_all_gather, .n_in = 1, .n_out = 1, .in = (mx_tensor *[MX_MAX_INPUTS]){c->t[3]}};
    switch (k % 10) {
    case 0:
        replace(c, 0, &mx_op_matmul, c->t[1], c->t[2], &product);
        break;
    case 1:
        replace(c, 1, &mx_op_add, c->t[0], c->t[2], NULL);
        break;
    case 2:
        apply(&mx_op_all_reduce_, c->t[2], NULL, &fsdp, NULL);
        break;
    case 3:
        memcpy(ahead.attr, &fsdp, sizeof fsdp);
        CHECK(mx_collective_prefetch(&ahead) == MX_OK, "%s", mx_message());
        break;
    case 4:
        apply(&mx_op_all_reduce_, c->t[4], NULL, &tensor, NULL);
        break;
    case 5:
        CHECK(mx_tensor_offload(c->t[5]) == MX_OK, "%s", mx_message());
        break;
    case 6:
        replace(c, 1, &mx_op_mul, c->t[1], c->t[0], NULL);
        break;
    case 7:
        CHECK(mx_tensor_fetch(c->t[5]) == MX_OK && mx_collective_prefetch(NULL) == MX_OK, "%s", mx_message());
        break;
    case 8:
        replace(c, 4, &mx_op_all_gather, c->t[3], NULL, &fsdp);
        break;
    default:
        replace(c, 5, &mx_op_mul, c->t[5], c->t[2], NULL);
        replace(c, 4, &mx_op_shard, c->t[4], NULL, &fsdp);
    }
}

static void finish(chip *c, outcome *o)
{
    mx_device_use(mx_sim_context_device(c->context));
    CHECK(mx_comm_finish() == MX_OK, "%s", mx_message());
    o->times = mx_sim_get_times(false);
    o->memory = mx_device_current->memory(mx_device_current);
    o->comm = mx_comm_get_stats(false);
    for (int i = 0; i < TENSORS; i++)
        mx_release(c->t[i]);
    mx_device_use(&mx_host);
    mx_sim_context_free(c->context);
}

static void test_switching(void)
{
    const mx_sim_pod pods[2] = {pod(4, 1, false), pod(8, 2, true)};
    const int64_t sizes[2] = {1024, 4096};
    static outcome alone[2], switched[2];
    for (int i = 0; i < 2; i++) {
        chip c = start(&pods[i], 0, sizes[i]);
        for (int k = 0; k < CALLS; k++) {
            call(&c, k);
            alone[i].clock_s[k] = mx_clock();
        }
        finish(&c, &alone[i]);
    }
    chip chips[2] = {start(&pods[0], 5, sizes[0]), start(&pods[1], 77, sizes[1])};
    for (int k = 0; k < CALLS; k++)
        for (int i = 0; i < 2; i++) {
            mx_device_use(mx_sim_context_device(chips[i].context));
            call(&chips[i], k);
            switched[i].clock_s[k] = mx_clock();
        }
    for (int i = 0; i < 2; i++) {
        finish(&chips[i], &switched[i]);
        CHECK(memcmp(&alone[i], &switched[i], sizeof alone[i]) == 0, "pod %d: %.17g s, not %.17g s", i,
              switched[i].clock_s[CALLS - 1], alone[i].clock_s[CALLS - 1]);
        CHECK(alone[i].times.collectives > 5 && alone[i].times.host_busy_s > 0 && alone[i].comm.calls > 5 &&
                  alone[i].times.ici_s > 0,
              "the step of pod %d does too little", i);
    }
    CHECK(alone[0].clock_s[CALLS - 1] != alone[1].clock_s[CALLS - 1], "the pods are different");
}

/* A rank has the coordinates that its number says, and its mesh is its own. */
static void test_coordinates(void)
{
    const mx_sim_pod p = pod(4, 2, false);
    chip a = start(&p, 0, 4), b = start(&p, 22, 4);
    CHECK(mx_rank() == 22 && mx_ranks() == 32, "rank %d of %d", mx_rank(), mx_ranks());
    CHECK(mx_mesh_index(1) == 1 && mx_mesh_index(2) == 6, "at (%d, %d)", mx_mesh_index(1), mx_mesh_index(2));
    outcome o;
    finish(&b, &o);
    CHECK(mx_rank() == 0 && mx_ranks() == 1 && mx_mesh_size(0) == 1, "the host is alone again");
    finish(&a, &o);
}

/* Storage keeps its device: a tensor outlives the context that made it, and is freed without harm. */
static void test_tensors_outlive_contexts(void)
{
    const mx_sim_pod p = pod(4, 1, false);
    mx_sim_context *context = NULL;
    CHECK(mx_sim_context_new(&p, 0, &context) == MX_OK, "%s", mx_message());
    mx_device_use(mx_sim_context_device(context));
    mx_tensor *kept = NULL, *away = NULL;
    CHECK(mx_tensor_new(MX_F32, &(mx_shape){1, {1000}}, &kept) == MX_OK, "%s", mx_message());
    CHECK(mx_tensor_new(MX_F32, &(mx_shape){1, {1000}}, &away) == MX_OK, "%s", mx_message());
    CHECK(mx_tensor_offload(away) == MX_OK, "%s", mx_message());
    mx_device_use(&mx_host);
    mx_sim_context_free(context);
    float values[2] = {3, 4};
    CHECK(mx_tensor_read(kept, 0, 2, values) == MX_OK && values[0] == 3, "nothing is read where there are no values");
    mx_release(kept);
    mx_release(away);
}

int main(void)
{
    mx_comm.combine_bytes[MX_ALL_REDUCE] = 1 << 23;
    test_switching();
    test_coordinates();
    test_tensors_outlive_contexts();
    return check_done();
}
