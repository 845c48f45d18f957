/* Grouped products of codes with their scales: those of experts (grouped.c has the same of reals). */
#include "ops/grouped.h"
#include "ops/quantize.h"
#include "ops/rows.h"
#include "ops/scaled.h"

#include <stdlib.h>

enum { A = MX_SCALED_A, B = MX_SCALED_B, SCALE_A = MX_SCALED_SCALE_A, SCALE_B = MX_SCALED_SCALE_B };
enum { COUNTS = MX_SCALED_COUNTS };

/* With trans_a, the rows of a group are summed: k x n for each. */
static mx_grouped grouped_of(const mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const int64_t *a = call->in[A]->shape.size, *b = call->in[B]->shape.size;
    if (attr->trans_a)
        return (mx_grouped){.groups = mx_count(call->in[COUNTS]), .rows = a[0], .k = a[1], .n = b[1]};
    return (mx_grouped){.groups = b[0],
                        .rows = a[0],
                        .k = b[attr->trans_b ? 2 : 1],
                        .n = b[attr->trans_b ? 1 : 2],
                        .trans = attr->trans_b};
}

static mx_status check_shapes(const mx_call *call, bool trans_a, bool trans_b)
{
    const mx_shape *a = &call->in[A]->shape, *b = &call->in[B]->shape;
    if (trans_a && trans_b)
        return mx_bad_value(call, "trans_a and trans_b exclude each other");
    if (a->n_dims != 2 || b->n_dims != (trans_a ? 2 : 3))
        return mx_bad_shape(call, trans_a ? "a and b must be (rows, k) and (rows, n)"
                                          : "a must be (rows, k), and b (groups, k, n)");
    if (trans_a && a->size[0] != b->size[0])
        return mx_bad_shape(call, "a and b must have as many rows");
    int64_t k = b->size[trans_b ? 2 : 1];
    if (!trans_a && a->size[1] != k)
        return mx_bad_shape(call, "inner sizes differ: %lld of a, %lld of b", (long long)a->size[1], (long long)k);
    return MX_OK;
}

static mx_status check_sum(const mx_call *call, int64_t k)
{
    if (call->in[A]->dtype == MX_I8 && call->in[B]->dtype == MX_I8 && k > MX_MOST_I8_PRODUCTS)
        return mx_bad_shape(call, "a sum has %lld products of i8; i32 holds %d: cut the product", (long long)k,
                            MX_MOST_I8_PRODUCTS);
    return MX_OK;
}

/* Whether scale_b (groups, n, k / MX_BLOCK) has a scale for each MX_BLOCK codes of i8: b is transposed, and a is real.
 */
static bool has_blocks(const mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const mx_tensor *b = call->in[B], *scale = call->in[SCALE_B];
    return scale && attr->trans_b && b->dtype == MX_I8 && mx_dtype_computes(call->in[A]->dtype) &&
           scale->shape.n_dims == 3 && mx_row_count(scale) == mx_row_count(b) &&
           mx_row_width(scale) * MX_BLOCK == mx_row_width(b);
}

static mx_status infer(mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_scaled_operands(call));
    MX_TRY(check_shapes(call, attr->trans_a, attr->trans_b));
    mx_grouped g = grouped_of(call);
    MX_TRY(mx_want_counts(call, COUNTS, g.groups));
    MX_TRY(mx_want_scales(call, attr->trans_a ? g.k : g.rows, has_blocks(call) ? mx_count(call->in[SCALE_B]) : g.n));
    if (!attr->trans_a)
        MX_TRY(check_sum(call, g.k));
    mx_shape shape = attr->trans_a ? (mx_shape){3, {g.groups, g.k, g.n}} : (mx_shape){2, {g.rows, g.n}};
    return mx_out_float(call, 0, attr->dtype, MX_BF16, &shape);
}

static mx_cost cost(const mx_call *call)
{
    mx_grouped g = grouped_of(call);
    return mx_grouped_cost(call, &g, ((const mx_scaled_attr *)mx_call_attr(call))->trans_a);
}

static mx_gemm product_of(const mx_call *call, const mx_grouped *s, int64_t group, int64_t row, int64_t count)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const mx_tensor *a = call->in[A], *b = call->in[B], *y = call->out[0];
    mx_gemm g = {.n = s->n, .alpha = 1, .rounded = attr->rounded};
    if (has_blocks(call))
        g.block_b = mx_f32(call->in[SCALE_B]) + group * s->n * (s->k / MX_BLOCK);
    else
        g.scale_b = mx_scale_from(call, SCALE_B, 0);
    g.a = mx_rows_from(a, row, attr->trans_a);
    g.m = attr->trans_a ? s->k : count;
    g.k = attr->trans_a ? count : s->k;
    g.b = attr->trans_a ? mx_rows_from(b, row, false) : mx_matrix_of_group(b, group, attr->trans_b);
    g.c = attr->trans_a ? mx_matrix_of_group(y, group, false) : mx_rows_from(y, row, false);
    g.scale_a = mx_scale_from(call, SCALE_A, attr->trans_a ? 0 : row);
    return g;
}

static mx_status host(mx_call *call)
{
    const mx_scaled_attr *attr = mx_call_attr(call);
    const int32_t *count = mx_data(call->in[COUNTS]);
    mx_grouped s = grouped_of(call);
    int64_t used, row = 0;
    MX_TRY(mx_check_counts(call, call->in[COUNTS], s.rows, &used));
    for (int64_t g = 0; attr->trans_a && g < s.groups; g++)
        MX_TRY(check_sum(call, count[g]));
    mx_gemm *products;
    MX_TRY(mx_new_products(call, s.groups, &products));
    for (int64_t g = 0; g < s.groups; row += count[g++])
        products[g] = product_of(call, &s, g, row, count[g]);
    mx_status status = mx_gemm_many(products, s.groups);
    free(products);
    if (!attr->trans_a)
        mx_zero_rows(call->out[0], used);
    return status;
}

static mx_status multiply(const mx_call *call, mx_tensor *a, mx_tensor *b, mx_tensor *scale_a, mx_tensor *scale_b,
                          const mx_scaled_attr *attr, mx_tensor **y)
{
    mx_tensor *in[] = {a, b, scale_a, scale_b, call->in[COUNTS]};
    return mx_apply(&mx_op_scaled_grouped_matmul, in, 5, MX_ATTRS(*attr), y);
}

static mx_status vjp(mx_vjp *v) { return mx_scaled_vjp(v, multiply); }

const mx_op mx_op_scaled_grouped_matmul = {
    .name = "scaled_grouped_matmul",
    .doc =
        "the codes a (rows, k), the first counts[1] rows times b[1], the next counts[2] times b[2] ... for the codes b "
        "(groups, k, n), times scale_a (1 or rows) and scale_b (1 or n) -> (rows, n); rows beyond the sum of counts "
        "are 0. With trans_a, b is (rows, n) and the rows of each group are summed -> (groups, k, n). With trans_b, "
        "scale_b (groups, n, k / 32) may have a scale for each 32 codes of i8. Sums and gradients as those of "
        "scaled_matmul",
    .inputs = (const char *const[]){"a", "b", "scale_a?", "scale_b?", "counts", "grad_scale?", "grad_largest?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = mx_scaled_attrs,
    .attr_bytes = sizeof(mx_scaled_attr),
    .reads_in = 1 | 2 | 4 | 8 | 16 | 32 | 64,
    .late = 2,
    .reads_late = 1 | 4 | 8 | 16 | 32 | 64,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
};
