/* The operation all_to_all_rows: rows travel to the ranks that have their experts, and back. */
#include "transport/rows.h"

#include "mesh/collective_op.h"

#include <math.h>
#include <string.h>

typedef struct rows_attr {
    mx_axes axis;
    int64_t rows;
    bool back, async;
} rows_attr;

static const rows_attr *attr_of(const mx_call *call) { return mx_call_attr(call); }

static mx_status infer(mx_call *call)
{
    const rows_attr *a = attr_of(call);
    const mx_tensor *x = call->in[0], *counts = call->in[1];
    int n = mx_mesh_size(a->axis);
    if (x->shape.n_dims != 2)
        return mx_bad_shape(call, "'x' must be (rows, width)");
    MX_TRY(mx_want_dtype(call, 1, MX_I32));
    if (counts->shape.n_dims != 2 || counts->shape.size[0] != n)
        return mx_bad_shape(call, "'counts' must be (%d, experts): the rows that each rank of %s has for each expert",
                            n, mx_mesh_text(a->axis));
    if (a->rows < 0)
        return mx_bad_value(call, "rows = %lld; expected at least 0", (long long)a->rows);
    mx_shape shape = {2, {a->rows, x->shape.size[1]}};
    return mx_out(call, 0, x->dtype, &shape);
}

static double share_of(const mx_call *call)
{
    double n = mx_mesh_size(attr_of(call)->axis);
    return (n - 1) / n;
}

static mx_cost cost(const mx_call *call)
{
    double bytes = (double)mx_bytes(call->in[0]);
    return (mx_cost){
        .bytes_read = bytes, .bytes_written = (double)mx_bytes(call->out[0]), .bytes_sent = share_of(call) * bytes};
}

/* The table of counts, and whether it fits the tensors. */
static mx_status read_counts(const mx_call *call, mx_rows *rows)
{
    const rows_attr *a = attr_of(call);
    const mx_tensor *x = call->in[0];
    const int32_t *counts = mx_data(call->in[1]);
    int me = mx_mesh_index(a->axis);
    rows->back = a->back;
    rows->width = x->shape.size[1];
    for (int64_t i = 0; i < mx_count(call->in[1]); i++) {
        if (counts[i] < 0)
            return mx_bad_value(call, "counts has %d; expected at least 0", counts[i]);
        rows->count[i] = counts[i];
    }
    int64_t tokens = mx_rows_of_tokens(rows, me), experts = mx_rows_of_experts(rows, me);
    int64_t here = a->back ? experts : tokens, there = a->back ? tokens : experts;
    if (here > x->shape.size[0])
        return mx_bad_shape(call, "counts says that rank %d of %s sends %lld rows, but x has %lld", me,
                            mx_mesh_text(a->axis), (long long)here, (long long)x->shape.size[0]);
    if (there > a->rows)
        return mx_bad_value(call,
                            "rank %d of %s gets %lld rows, but its buffer has rows = %lld: give it more (for a model: "
                            "a larger ragged_buffer_factor, or -1)",
                            me, mx_mesh_text(a->axis), (long long)there, (long long)a->rows);
    return MX_OK;
}

/* Without other ranks rows stay in their order. */
static mx_status copy_alone(const mx_call *call, const mx_rows *rows)
{
    mx_tensor *x = call->in[0], *y = call->out[0];
    MX_TRY(mx_tensor_wait(x, false));
    size_t row = (size_t)rows->width * mx_dtype_bytes(x->dtype), used = (size_t)mx_rows_of_tokens(rows, 0) * row;
    memcpy(mx_data(y), mx_data(x), used);
    memset((char *)mx_data(y) + used, 0, (size_t)mx_bytes(y) - used);
    return MX_OK;
}

static mx_status exchange(const mx_call *call, mx_rows *rows)
{
    const rows_attr *a = attr_of(call);
    mx_tensor *x = call->in[0], *y = call->out[0];
    if (mx_mesh_size(a->axis) == 1)
        return rows ? copy_alone(call, rows) : MX_OK;
    const mx_transfer t = {
        .what = {.kind = MX_ALL_TO_ALL_ROWS, .wire = x->dtype, .scale = 1},
        .axes = a->axis,
        .in = x,
        .out = y,
        .in_block = mx_block_whole(x),
        .out_block = mx_block_whole(y),
        .rows = rows,
        .count = x->shape.size[1],
        .bytes_sent = cost(call).bytes_sent,
    };
    return mx_comm_run(&t, a->async);
}

static mx_status host(mx_call *call)
{
    mx_tensor *counts = call->in[1];
    if (!mx_device_current->has_values)
        return exchange(call, NULL);
    mx_rows *rows = NULL;
    MX_TRY(mx_tensor_wait(counts, false));
    MX_TRY(mx_rows_new((int)counts->shape.size[0], (int)counts->shape.size[1], &rows));
    mx_status status = read_counts(call, rows);
    if (status == MX_OK)
        status = exchange(call, rows);
    mx_rows_release(rows);
    return status;
}

static mx_status vjp(mx_vjp *v)
{
    const rows_attr *a = attr_of(v->call);
    const rows_attr back = {
        .axis = a->axis, .rows = v->call->in[0]->shape.size[0], .back = !a->back, .async = a->async};
    mx_tensor *in[] = {v->out_grad[0], v->call->in[1]};
    return mx_apply(&mx_op_all_to_all_rows, in, 2, MX_ATTRS(back), &v->grad[0]);
}

bool mx_collective_hurries(const mx_call *call)
{
    return call->op == &mx_op_all_to_all_rows && attr_of(call)->async && mx_mesh_size(attr_of(call)->axis) > 1;
}

static const mx_attr attrs[] = {
    {"axis", MX_ATTR_AXES, offsetof(rows_attr, axis), 0, NULL, "mesh axis or list of axes; default: all ranks"},
    {"rows", MX_ATTR_INT, offsetof(rows_attr, rows), NAN, NULL,
     "rows of the result; those behind the last that comes are 0. More that come are an error"},
    {"back", MX_ATTR_BOOL, offsetof(rows_attr, back), 0, NULL, "from the experts back to the tokens"},
    {"async", MX_ATTR_BOOL, offsetof(rows_attr, async), 0, NULL,
     "return at once, and so does the gradient's exchange; use of the values waits (t:wait())"},
    {0},
};

const mx_op mx_op_all_to_all_rows = {
    .name = "all_to_all_rows",
    .doc = "rows to the ranks that have their experts: x (rows, width) in the order of experts; counts i32 (ranks, "
           "experts), the same on all ranks: the rows that each rank has for each expert -> (rows, width), the rows of "
           "this rank's experts, by expert and then by rank. The ranks have the experts in equal parts, the first "
           "ones one more. Collective",
    .inputs = (const char *const[]){"x", "counts", NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = attrs,
    .attr_bytes = sizeof(rows_attr),
    .reads_in = 2,
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
    .vjp_recorded = vjp,
};
