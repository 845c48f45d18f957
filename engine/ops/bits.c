/* Bitwise functions of integers of one dtype, broadcast as in elementwise.c. */
#include "ops/pointwise.h"

static mx_status infer_bits(mx_call *call)
{
    mx_dtype dtype = call->in[0]->dtype;
    const mx_tensor *a = call->in[0], *b = call->in[call->n_in - 1];
    mx_shape shape;
    if (!mx_dtype_is_integer(dtype) || b->dtype != dtype)
        return mx_bad_dtype(call, "bits are of integers of one dtype; use t:to(dtype)");
    if (!mx_broadcast_sizes(2, (const int[]){a->shape.n_dims, b->shape.n_dims},
                            (const int64_t *const[]){a->shape.size, b->shape.size}, &shape.n_dims, shape.size))
        return mx_bad_shape(call, "shapes do not broadcast (aligned at the last dimension, sizes must be equal or 1)");
    return mx_out(call, 0, dtype, &shape);
}

static mx_cost cost_bits(const mx_call *call) { return mx_cost_of(call, (double)mx_count(call->out[0])); }

static mx_status host_pair(mx_call *call)
{
    static const mx_op *const ops[] = {&mx_op_bitwise_and, &mx_op_bitwise_or, &mx_op_bitwise_xor, &mx_op_shift_left,
                                       &mx_op_shift_right};
    const mx_tensor *a = call->in[0], *b = call->in[1], *y = call->out[0];
    char place[128];
    int f = MX_AND;
    while (ops[f - MX_AND] != call->op)
        f++;
    mx_broadcast plan;
    mx_broadcast_plan(&plan, 2, (const int[]){a->shape.n_dims, b->shape.n_dims},
                      (const int64_t *const[]){a->shape.size, b->shape.size}, y->shape.n_dims, y->shape.size);
    int64_t negative =
        mx_binary_forward((mx_pair){.op = (mx_binary)f}, &plan, mx_array_of(a), mx_array_of(b), mx_array_of(y));
    if (negative >= 0)
        return mx_bad_value(call, "a count below 0, at %s of 'b'", mx_place_text(place, &b->shape, negative));
    return MX_OK;
}

/* Of all dtypes -1 - x, or 255 - x. */
static mx_status host_not(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_affine_int(mx_array_of(x), mx_array_of(call->out[0]), -1, x->dtype == MX_U8 ? UINT8_MAX : -1, mx_count(x));
    return MX_OK;
}

static const char *const ab_inputs[] = {"a", "b", NULL}, *const x_input[] = {"x", NULL};

#define BITS(NAME, DOC, INPUTS, HOST)                                                                                  \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = INPUTS,                                                                      \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .infer = infer_bits,                                                                   \
                                .cost = cost_bits,                                                                     \
                                .host = HOST}

BITS(bitwise_and, "the bits that both a and b have, broadcast; for integers of one dtype: a & b", ab_inputs, host_pair);
BITS(bitwise_or, "the bits that a or b has, broadcast; for integers of one dtype: a | b", ab_inputs, host_pair);
BITS(bitwise_xor, "the bits that one of a and b has, broadcast; for integers of one dtype: a ~ b", ab_inputs,
     host_pair);
BITS(bitwise_not, "the bits that x lacks; for integers: ~x", x_input, host_not);
BITS(shift_left, "a << b: bits that leave the dtype are lost; b must not be negative; for integers of one dtype",
     ab_inputs, host_pair);
BITS(shift_right, "a >> b: the sign bit moves in; b must not be negative; for integers of one dtype", ab_inputs,
     host_pair);
