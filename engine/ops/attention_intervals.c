/* The keys that queries attend to, as intervals: made once for a batch and used by all layers. */
#include "kernels/attention.h"
#include "ops/op.h"

enum { Q_SEGMENTS, K_SEGMENTS };

static mx_tensor *keys_of(const mx_call *call)
{
    return call->in[K_SEGMENTS] ? call->in[K_SEGMENTS] : call->in[Q_SEGMENTS];
}

static mx_status intervals_infer(mx_call *call)
{
    const mx_tensor *q = call->in[Q_SEGMENTS], *k = keys_of(call);
    MX_TRY(mx_want_dtype(call, Q_SEGMENTS, MX_I32));
    if (k != q)
        MX_TRY(mx_want_dtype(call, K_SEGMENTS, MX_I32));
    if (q->shape.n_dims != 2 || k->shape.n_dims != 2 || q->shape.size[0] != k->shape.size[0])
        return mx_bad_shape(call, "segments_q must be (batch, queries), segments_k (batch, keys) of the same batch");
    if (k->shape.size[1] > MX_ATTENTION_MAX_KEYS)
        return mx_bad_shape(call, "%lld keys are more than the %lld that attention takes", (long long)k->shape.size[1],
                            (long long)MX_ATTENTION_MAX_KEYS);
    return mx_out(call, 0, MX_I32, &(mx_shape){3, {q->shape.size[0], q->shape.size[1], 2}});
}

static mx_cost intervals_cost(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status intervals_host(mx_call *call)
{
    const mx_tensor *q = call->in[Q_SEGMENTS], *k = keys_of(call);
    const int32_t *segments = mx_data(k);
    int64_t keys = k->shape.size[1], second;
    MX_TRY(mx_attention_intervals(q->shape.size[0], q->shape.size[1], keys, mx_data(q), segments, mx_data(call->out[0]),
                                  &second));
    if (second >= 0)
        return mx_bad_value(call,
                            "segment %d comes again at key %lld of sequence %lld: the keys of a segment must be one "
                            "run; give attention a bias of u8 as mask instead",
                            segments[second], (long long)(second % keys + 1), (long long)(second / keys + 1));
    return MX_OK;
}

const mx_op mx_op_attention_intervals = {
    .name = "attention_intervals",
    .doc = "the intervals of attention from documents: segments_q (B, S), segments_k (B, T) i32, or none when they are "
           "those of q -> i32 (B, S, 2), the first key, from 0, with the segment of the query, and the last + 1. The "
           "keys of a segment are one run. Layers share the result",
    .inputs = (const char *const[]){"segments_q", "segments_k?", NULL},
    .n_out = 1,
    .n_results = 1,
    .infer = intervals_infer,
    .cost = intervals_cost,
    .host = intervals_host,
};
