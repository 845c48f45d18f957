/* Dropout of attention's probabilities: its options, and its mask as a tensor. */
#include "ops/attention.h"
#include "ops/rows.h"

#include <math.h>

mx_status mx_attention_check_drop(const mx_call *call, const mx_attention_drop *drop)
{
    if (!(drop->rate >= 0 && drop->rate < 1))
        return mx_bad_value(call, "dropout = %g must be in [0, 1)", drop->rate);
    if (drop->first_sequence < 0 || drop->first_head < 0 || drop->first_head >= MX_ATTENTION_MASK_HEADS)
        return mx_bad_value(call,
                            "first_sequence = %lld and first_head = %lld must not be negative; heads are below %d",
                            (long long)drop->first_sequence, (long long)drop->first_head, MX_ATTENTION_MASK_HEADS);
    return MX_OK;
}

mx_attention_dropout mx_attention_dropout_of(const mx_attention_drop *drop)
{
    uint32_t threshold = (uint32_t)fmin(drop->rate * 0x1p16 + 0.5, 0x1p16 - 1);
    return (mx_attention_dropout){.threshold = threshold,
                                  .scale = (float)(1 / (1 - threshold / 0x1p16)),
                                  .seed = (uint64_t)drop->seed.key,
                                  .draw = (uint32_t)drop->seed.draw,
                                  .drawn = drop->seed.draw != 0,
                                  .first_sequence = drop->first_sequence,
                                  .first_head = drop->first_head};
}

static mx_status infer(mx_call *call)
{
    const mx_attention_mask_attr *attr = mx_call_attr(call);
    if (attr->shape.n_dims != 4)
        return mx_bad_shape(call, "shape = %s must be (batch, heads, queries, keys)", mx_shape_text(&attr->shape));
    if (attr->offset < 0)
        return mx_bad_value(call, "offset = %lld, the position of the first query, must not be negative",
                            (long long)attr->offset);
    MX_TRY(mx_attention_check_drop(call, &attr->drop));
    return mx_out(call, 0, MX_F32, &attr->shape);
}

static mx_cost cost(const mx_call *call) { return mx_cost_of(call, 20.0 * (double)mx_count(call->out[0])); }

static mx_status host(mx_call *call)
{
    const mx_attention_mask_attr *attr = mx_call_attr(call);
    const int64_t *size = attr->shape.size;
    mx_attention a = {.batch = size[0],
                      .n_heads = size[1],
                      .n_kv_heads = size[1],
                      .queries = size[2],
                      .keys = size[3],
                      .offset = attr->offset,
                      .dropout = mx_attention_dropout_of(&attr->drop)};
    mx_attention_dropout_mask(&a, mx_f32(call->out[0]));
    return MX_OK;
}

#define DROP(name) offsetof(mx_attention_mask_attr, drop.name)

const mx_op mx_op_attention_dropout = {
    .name = "attention_dropout",
    .doc = "what attention with these options multiplies its probabilities by, f32 (B, H, S, T): 0 with probability "
           "dropout, else 1 / (1 - dropout)",
    .inputs = (const char *const[]){NULL},
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs =
        (const mx_attr[]){
            {"shape", MX_ATTR_SHAPE, offsetof(mx_attention_mask_attr, shape), NAN, NULL,
             "(batch, heads, queries, keys)"},
            {"dropout", MX_ATTR_FLOAT, DROP(rate), NAN, NULL, "probability of 0, rounded to a multiple of 2^-16"},
            {"seed", MX_ATTR_SEED, DROP(seed), NAN, NULL,
             "key of the masks; default: the next number of the stream of mx.manual_seed"},
            {"first_sequence", MX_ATTR_INT, DROP(first_sequence), 0, NULL, "number of the first sequence, from 0"},
            {"first_head", MX_ATTR_INT, DROP(first_head), 0, NULL, "number of the first head, from 0"},
            {"offset", MX_ATTR_INT, offsetof(mx_attention_mask_attr, offset), 0, NULL,
             "position of the first query, from 0"},
            {0}},
    .attr_bytes = sizeof(mx_attention_mask_attr),
    .infer = infer,
    .cost = cost,
    .host = host,
};
