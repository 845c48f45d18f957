/* Attention and its gradient. The masks and options are those of kernels/attention.h. */
#include "ops/attention.h"

#include "kernels/attention.h"
#include "kernels/shape.h"
#include "ops/rows.h"

#include <math.h>

enum { Q, K, V, INTERVALS, BIAS, SLOPES, SINKS }; /* inputs of attention */
/* Inputs of its gradient after q, k and v. */
enum { OUT = 3, LSE, DOUT, GRAD_INTERVALS, GRAD_BIAS };

/* Sizes and options for the kernel. */
static mx_attention sizes_of(const mx_call *call)
{
    const mx_attention_attr *attr = mx_call_attr(call);
    const mx_tensor *q = call->in[Q], *k = call->in[K], *v = call->in[V];
    return (mx_attention){.batch = q->shape.size[0],
                          .queries = q->shape.size[1],
                          .keys = k->shape.size[1],
                          .n_heads = q->shape.size[2],
                          .n_kv_heads = k->shape.size[2],
                          .head_dim = q->shape.size[3],
                          .value_dim = v->shape.size[3],
                          .dtype = q->dtype,
                          .causal = attr->causal,
                          .window = attr->window,
                          .chunk = attr->chunk,
                          .prefix = attr->prefix,
                          .offset = attr->offset,
                          .first_query = attr->first_query,
                          .kv_length = attr->kv_length,
                          .softcap = (float)attr->softcap,
                          .scale = (float)attr->scale,
                          .dropout = mx_attention_dropout_of(&attr->drop)};
}

/* Elements from one index to the next of dimension d, counted from the last, of a bias; 0 where it is shared. */
static int64_t bias_step(const mx_tensor *bias, int d)
{
    int64_t step = 1;
    for (int i = 0; i < d; i++)
        step *= i < bias->shape.n_dims ? bias->shape.size[bias->shape.n_dims - 1 - i] : 1;
    return d < bias->shape.n_dims && bias->shape.size[bias->shape.n_dims - 1 - d] > 1 ? step : 0;
}

static void set_bias(const mx_call *call, int at, mx_attention *a)
{
    const mx_tensor *bias = call->in[at], *slopes = call->in[at + 1];
    if (bias) {
        a->bias = mx_data(bias);
        a->bias_dtype = bias->dtype;
        a->bias_query = bias_step(bias, 1);
        a->bias_head = bias_step(bias, 2);
        a->bias_batch = bias_step(bias, 3);
    }
    if (slopes)
        a->slopes = mx_data(slopes);
}

/* With the values. `intervals`: the input that holds them. */
static mx_attention attention_of(const mx_call *call, int intervals)
{
    mx_attention a = sizes_of(call);
    set_bias(call, intervals + 1, &a);
    a.q = mx_data(call->in[Q]);
    a.k = mx_data(call->in[K]);
    a.v = mx_data(call->in[V]);
    a.intervals = call->in[intervals] ? mx_data(call->in[intervals]) : NULL;
    return a;
}

mx_status mx_attention_check_scores(const mx_call *call, const mx_attention_attr *attr)
{
    int64_t keys = call->in[K]->shape.size[1];
    if (attr->window < 0)
        return mx_bad_value(call, "window = %lld must not be negative (0: no window)", (long long)attr->window);
    if (!(attr->softcap >= 0) || isinf(attr->softcap))
        return mx_bad_value(call, "softcap = %g must be positive, or 0 for none", attr->softcap);
    if (!(attr->scale >= 0) || isinf(attr->scale))
        return mx_bad_value(call, "scale = %g must be positive, or 0 for 1 / sqrt(head_dim)", attr->scale);
    if (keys > MX_ATTENTION_MAX_KEYS)
        return mx_bad_shape(call, "%lld keys are more than the %lld that attention takes", (long long)keys,
                            (long long)MX_ATTENTION_MAX_KEYS);
    return MX_OK;
}

static mx_status check_options(const mx_call *call)
{
    const mx_attention_attr *attr = mx_call_attr(call);
    int64_t keys = call->in[K]->shape.size[1];
    if (attr->offset < 0)
        return mx_bad_value(call, "offset = %lld, the position of the first query, must not be negative",
                            (long long)attr->offset);
    if (attr->first_query < 0)
        return mx_bad_value(call, "first_query = %lld must not be negative (0: all attend)",
                            (long long)attr->first_query);
    if (attr->chunk < 0)
        return mx_bad_value(call, "chunk = %lld must not be negative (0: no chunks)", (long long)attr->chunk);
    if (attr->prefix < 0 || (attr->prefix > 0 && !attr->causal))
        return mx_bad_value(call,
                            "prefix = %lld must not be negative, and needs causal = true: without, queries attend "
                            "to all keys",
                            (long long)attr->prefix);
    if (attr->kv_length < 0 || attr->kv_length > keys)
        return mx_bad_value(call, "kv_length = %lld must be between 0 (all keys) and %lld, the keys that k has",
                            (long long)attr->kv_length, (long long)keys);
    MX_TRY(mx_attention_check_drop(call, &attr->drop));
    return mx_attention_check_scores(call, attr);
}

static mx_status check_intervals(const mx_call *call, int at)
{
    if (!call->in[at])
        return MX_OK;
    MX_TRY(mx_want_dtype(call, at, MX_I32));
    mx_shape shape = {3, {call->in[Q]->shape.size[0], call->in[Q]->shape.size[1], 2}};
    return mx_want_shape(call, at, &shape);
}

mx_status mx_attention_check_tensors(const mx_call *call)
{
    const mx_tensor *q = call->in[Q], *k = call->in[K], *v = call->in[V];
    bool is_f64 = q->dtype == MX_F64 && (call->op->flags & MX_OP_PLAIN_F64);
    for (int i = Q; i <= V; i++) {
        MX_TRY(is_f64 ? mx_want_dtype(call, i, MX_F64) : mx_want_float(call, i));
        if (call->in[i]->shape.n_dims != 4)
            return mx_bad_shape(call, "q must be (batch, queries, heads, head_dim), k (batch, keys, kv heads, "
                                      "head_dim), v (batch, keys, kv heads, its own head_dim)");
    }
    if (k->dtype != q->dtype || v->dtype != q->dtype)
        return mx_bad_dtype(call, "q, k and v must have one dtype; cast one with mx.cast");
    for (int d = 0; d < 3; d++)
        if (k->shape.size[d] != v->shape.size[d])
            return mx_bad_shape(call, "k and v must have the same batch, keys and heads; their head_dim may differ");
    if (q->shape.size[0] != k->shape.size[0])
        return mx_bad_shape(call, "batch sizes differ");
    if (q->shape.size[3] != k->shape.size[3])
        return mx_bad_shape(call, "head_dim of q and k differs");
    if (q->shape.size[3] == 0 || v->shape.size[3] == 0)
        return mx_bad_shape(call, "head_dim must not be 0");
    int64_t heads = q->shape.size[2], kv_heads = k->shape.size[2];
    if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0)
        return mx_bad_shape(call, "the %lld heads of q must be a multiple of the %lld heads of k and v",
                            (long long)heads, (long long)kv_heads);
    return MX_OK;
}

/* The bias has the shape (batch, heads, queries, keys), or one that broadcasts to it in all but keys. */
static mx_status check_bias(const mx_call *call, int at)
{
    const mx_tensor *bias = call->in[at], *slopes = call->in[at + 1], *q = call->in[Q];
    const mx_attention_attr *attr = mx_call_attr(call);
    const int64_t full[] = {call->in[K]->shape.size[1], q->shape.size[1], q->shape.size[2], q->shape.size[0]};
    bool is_wide = bias && bias->dtype == MX_F64 && q->dtype == MX_F64;
    if (bias && bias->dtype != MX_F32 && bias->dtype != MX_BF16 && bias->dtype != MX_U8 && !is_wide)
        return mx_bad_dtype(call, "bias must be f32 or bf16, which is added to the scores, or u8: 1 where a query "
                                  "attends to a key");
    bool fits = !bias || (bias->shape.n_dims >= 1 && bias->shape.n_dims <= 4);
    for (int d = 0; fits && bias && d < bias->shape.n_dims; d++) {
        int64_t size = bias->shape.size[bias->shape.n_dims - 1 - d];
        fits = size == full[d] || (d > 0 && size == 1);
    }
    if (!fits)
        return mx_bad_shape(call,
                            "bias must be (batch, heads, queries, keys) = (%lld, %lld, %lld, %lld), where all but "
                            "the keys may be 1 or missing",
                            (long long)full[3], (long long)full[2], (long long)full[1], (long long)full[0]);
    mx_shape heads = mx_vector(full[2]);
    if (slopes) {
        MX_TRY(mx_want_dtype(call, at + 1, MX_F32));
        MX_TRY(mx_want_shape(call, at + 1, &heads));
    }
    if (slopes && slopes->requires_grad)
        return mx_bad_value(call, "there is no gradient of slopes; use slopes:detach(), or a bias");
    if (attr->softcap > 0 && (slopes || (bias && bias->dtype != MX_U8)))
        return mx_bad_value(call, "softcap = %g goes with no bias and no slopes, except a u8 mask", attr->softcap);
    return MX_OK;
}

mx_status mx_attention_check_sinks(const mx_call *call, int i)
{
    mx_shape heads = mx_vector(call->in[Q]->shape.size[2]);
    if (!call->in[i])
        return MX_OK;
    if (call->in[Q]->dtype != MX_F64 || call->in[i]->dtype != MX_F64)
        MX_TRY(mx_want_dtype(call, i, MX_F32));
    return mx_want_shape(call, i, &heads);
}

mx_shape mx_attention_out_shape(const mx_call *call)
{
    mx_shape out = call->in[Q]->shape;
    out.size[3] = call->in[V]->shape.size[3];
    return out;
}

static mx_status check_inputs(const mx_call *call, int intervals)
{
    MX_TRY(mx_attention_check_tensors(call));
    MX_TRY(check_intervals(call, intervals));
    MX_TRY(check_bias(call, intervals + 1));
    return check_options(call);
}

/* ---- attention ---- */

static mx_status attention_infer(mx_call *call)
{
    MX_TRY(check_inputs(call, INTERVALS));
    MX_TRY(mx_attention_check_sinks(call, SINKS));
    const mx_shape *q = &call->in[Q]->shape, out = mx_attention_out_shape(call);
    MX_TRY(mx_out(call, 0, call->in[Q]->dtype, &out));
    return mx_out(call, 1, MX_F32, &(mx_shape){3, {q->size[0], q->size[2], q->size[1]}});
}

/* The cost of products over the pairs of query and key that the positions allow: so many of the width of q and k, and
 * of that of v. k and v are not read behind kv_length. */
static mx_cost cost_of(const mx_call *call, double key_products, double value_products)
{
    mx_attention a = sizes_of(call);
    double pairs = (double)a.batch * (double)a.n_heads * mx_attention_pairs(&a);
    double width = key_products * (double)a.head_dim + value_products * (double)a.value_dim;
    mx_cost cost = mx_cost_of(call, 2.0 * pairs * width);
    cost.work = MX_WORK_ATTENTION;
    if (a.kv_length > 0)
        cost.bytes_read -=
            (double)(mx_bytes(call->in[K]) + mx_bytes(call->in[V])) * (double)(a.keys - a.kv_length) / (double)a.keys;
    return cost;
}

double mx_attention_block_pairs(const mx_call *call, int64_t block_q, int64_t block_kv, int64_t document)
{
    mx_attention a = sizes_of(call);
    a.chunk = document > 0 && (a.chunk == 0 || document < a.chunk) ? document : a.chunk;
    double pairs =
        block_q == 0 ? (double)a.queries * (double)a.keys : mx_attention_block_pairs_of(&a, block_q, block_kv);
    return (double)a.batch * (double)a.n_heads * pairs;
}

static mx_cost attention_cost(const mx_call *call) { return cost_of(call, 1, 1); }

static mx_status attention_host(mx_call *call)
{
    mx_attention a = attention_of(call, INTERVALS);
    a.sinks = call->in[SINKS] ? mx_f32(call->in[SINKS]) : NULL;
    a.out = mx_data(call->out[0]);
    a.lse = mx_f32(call->out[1]);
    return mx_attention_forward(&a);
}

mx_status mx_attention_give_sinks(mx_vjp *v, int i, mx_tensor *dout)
{
    mx_tensor *in[] = {v->call->in[i], v->call->out[0], v->call->out[1], dout}, *dsinks = NULL;
    if (!v->want[i])
        return MX_OK;
    MX_TRY(mx_apply(&mx_op_attention_sinks_grad, in, 4, MX_NO_ATTRS, &dsinks));
    return mx_give_grad(v, i, dsinks);
}

static mx_status attention_vjp(mx_vjp *v)
{
    if (!v->out_grad[0])
        return MX_OK;
    const mx_call *call = v->call;
    mx_attention_grad_attr attr = {*(const mx_attention_attr *)mx_call_attr(call), (int)mx_vjp_dtype(v, Q),
                                   (int)mx_vjp_dtype(v, K), (int)mx_vjp_dtype(v, V), v->want[BIAS]};
    mx_tensor *grads[4], *dout;
    MX_TRY(mx_out_grad(v, 0, &dout));
    mx_tensor *in[] = {call->in[Q], call->in[K],         call->in[V],    call->out[0],    call->out[1],
                       dout,        call->in[INTERVALS], call->in[BIAS], call->in[SLOPES]};
    mx_status status = mx_attention_give_sinks(v, SINKS, dout);
    if (status == MX_OK)
        status = mx_apply(&mx_op_attention_grad, in, 9, MX_ATTRS(attr), grads);
    mx_release(dout);
    for (int i = 0; i < 3 && status == MX_OK; i++)
        status = mx_give_grad(v, i, grads[i]);
    if (status == MX_OK)
        status = mx_give_grad(v, BIAS, grads[3]);
    return status;
}

/* clang-format off */
#define OPTION(name, type, doc) {#name, MX_ATTR_##type, offsetof(mx_attention_attr, name), 0, NULL, doc}
#define ATTENTION_ATTRS \
    OPTION(causal, BOOL, "queries attend only to their own and earlier positions"), \
    OPTION(window, INT, "attend to positions less than this far away; 0: no limit"), \
    OPTION(chunk, INT, "attend inside of chunks of so many positions, from position 0 on; 0: no limit"), \
    OPTION(prefix, INT, "with causal: all queries attend to the first so many keys, too"), \
    OPTION(softcap, FLOAT, "scores s become softcap * tanh(s / softcap); 0: no cap"), \
    OPTION(scale, FLOAT, "factor of the scores; 0: 1 / sqrt(head_dim)"), \
    OPTION(offset, INT, "position of the first query (key j is at position j)"), \
    OPTION(first_query, INT, "queries before this one have no keys"), \
    OPTION(kv_length, INT, "number of keys that count; 0: all"), \
    {"dropout", MX_ATTR_FLOAT, offsetof(mx_attention_attr, drop.rate), 0, NULL, \
     "probability with which a query leaves out a key, rounded to a multiple of 2^-16; other weights grow to match"}, \
    {"seed", MX_ATTR_SEED_IF, offsetof(mx_attention_attr, drop.seed), 0, NULL, \
     "key of dropout's masks; default: with dropout, the next number of the stream of mx.manual_seed"}, \
    {"first_sequence", MX_ATTR_INT, offsetof(mx_attention_attr, drop.first_sequence), 0, NULL, \
     "number of the first sequence, from 0, on which masks depend: for a part of a batch"}, \
    {"first_head", MX_ATTR_INT, offsetof(mx_attention_attr, drop.first_head), 0, NULL, \
     "number of the first head of q, from 0, on which masks depend: for a part of the heads"}
/* clang-format on */

static const mx_attr attention_attrs[] = {ATTENTION_ATTRS, {0}};

const mx_op mx_op_attention = {
    .name = "attention",
    .doc =
        "softmax(q k^T scale) v by tiles: q (B, S, H, D), k (B, T, K, D), v (B, T, K, V) -> (B, S, H, V); H is a "
        "multiple of K. "
        "intervals i32 (B, S, 2): the first key of each query, from 0, and the last + 1, within what the options "
        "leave; attention_intervals makes them of documents. A query without keys gives 0. "
        "bias (B, H, S, T), all but T may be 1, is added to the scores; of u8 it is a mask, 1 where a query attends "
        "to a key. slopes f32 (H): -slope |i - j| is added (ALiBi). sinks f32 (H): the score of one more key, whose "
        "value is 0, for all queries of a head (GPT-OSS). dropout is that of the probabilities; masks depend only on "
        "seed, sequence, head and the positions of query and key",
    .inputs = (const char *const[]){"q", "k", "v", "intervals?", "bias?", "slopes?", "sinks?", NULL},
    .n_out = 2, /* out; lse (B, H, S) f32 */
    .n_results = 1,
    .flags = MX_OP_PLAIN_F64,
    .attrs = attention_attrs,
    .attr_bytes = sizeof(mx_attention_attr),
    .reads_in = 1u << Q | 1u << K | 1u << V | 1u << INTERVALS | 1u << BIAS | 1u << SLOPES | 1u << SINKS,
    .reads_out = 1u << 0 | 1u << 1,
    .infer = attention_infer,
    .cost = attention_cost,
    .host = attention_host,
    .vjp = attention_vjp,
    .plain = mx_attention_plain,
};

/* ---- attention_grad ---- */

static mx_status attention_grad_infer(mx_call *call)
{
    const mx_attention_grad_attr *attr = mx_call_attr(call);
    MX_TRY(check_inputs(call, GRAD_INTERVALS));
    const mx_tensor *q = call->in[Q];
    mx_shape out = mx_attention_out_shape(call);
    for (int i = OUT; i <= DOUT; i += DOUT - OUT) {
        MX_TRY(mx_want_dtype(call, i, q->dtype));
        MX_TRY(mx_want_shape(call, i, &out));
    }
    MX_TRY(mx_want_dtype(call, LSE, MX_F32));
    mx_shape lse = {3, {q->shape.size[0], q->shape.size[2], q->shape.size[1]}};
    MX_TRY(mx_want_shape(call, LSE, &lse));
    int dtypes[] = {attr->dq_dtype, attr->dk_dtype, attr->dv_dtype};
    for (int i = 0; i < 3; i++)
        MX_TRY(mx_out_float(call, i, dtypes[i], q->dtype, &call->in[i]->shape));
    const mx_tensor *bias = call->in[GRAD_BIAS];
    if (attr->want_bias && (!bias || bias->dtype == MX_U8))
        return mx_bad_value(call, "want_bias without a bias of floats");
    mx_shape none = mx_vector(0);
    return mx_out(call, 3, MX_F32, attr->want_bias ? &bias->shape : &none);
}

/* Five products: scores again, and the gradients of the probabilities (the width of v), of v, of q and of k. */
static mx_cost attention_grad_cost(const mx_call *call) { return cost_of(call, 3, 2); }

static mx_status attention_grad_host(mx_call *call)
{
    mx_attention a = attention_of(call, GRAD_INTERVALS);
    a.out = mx_data(call->in[OUT]);
    a.lse = mx_f32(call->in[LSE]);
    a.dout = mx_data(call->in[DOUT]);
    a.dq = mx_data(call->out[0]);
    a.dk = mx_data(call->out[1]);
    a.dv = mx_data(call->out[2]);
    a.dq_dtype = call->out[0]->dtype;
    a.dk_dtype = call->out[1]->dtype;
    a.dv_dtype = call->out[2]->dtype;
    if (((const mx_attention_grad_attr *)mx_call_attr(call))->want_bias) {
        a.dbias = mx_f32(call->out[3]);
        mx_zero_runs(a.dbias, 0, 1, mx_bytes(call->out[3]));
    }
    return mx_attention_backward(&a);
}

static const mx_attr mx_attention_grad_attrs[] = {
    ATTENTION_ATTRS,
    {"dq_dtype", MX_ATTR_DTYPE, offsetof(mx_attention_grad_attr, dq_dtype), -1, NULL,
     "dtype of dq; default: that of q"},
    {"dk_dtype", MX_ATTR_DTYPE, offsetof(mx_attention_grad_attr, dk_dtype), -1, NULL,
     "dtype of dk; default: that of q"},
    {"dv_dtype", MX_ATTR_DTYPE, offsetof(mx_attention_grad_attr, dv_dtype), -1, NULL,
     "dtype of dv; default: that of q"},
    {"want_bias", MX_ATTR_BOOL, offsetof(mx_attention_grad_attr, want_bias), 0, NULL, "also the gradient of bias"},
    {0},
};

const mx_op mx_op_attention_grad = {
    .name = "attention_grad",
    .doc = "dq, dk, dv and dbias (f32) of attention, from its inputs and outputs and the gradient dout of out",
    .inputs = (const char *const[]){"q", "k", "v", "out", "lse", "dout", "intervals?", "bias?", "slopes?", NULL},
    .n_out = 4,
    .n_results = 4,
    .attrs = mx_attention_grad_attrs,
    .attr_bytes = sizeof(mx_attention_grad_attr),
    .infer = attention_grad_infer,
    .cost = attention_grad_cost,
    .host = attention_grad_host,
};

/* ---- attention_sinks_grad ---- */

enum { OF_SINKS, OF_OUT, OF_LSE, OF_DOUT };

static mx_status sinks_grad_infer(mx_call *call)
{
    const mx_tensor *out = call->in[OF_OUT];
    MX_TRY(mx_want_float(call, OF_OUT));
    if (out->shape.n_dims != 4)
        return mx_bad_shape(call, "out must be (batch, queries, heads, head_dim)");
    const int64_t *size = out->shape.size;
    mx_shape heads = mx_vector(size[2]);
    MX_TRY(mx_want_dtype(call, OF_SINKS, MX_F32));
    MX_TRY(mx_want_shape(call, OF_SINKS, &heads));
    MX_TRY(mx_want_dtype(call, OF_LSE, MX_F32));
    MX_TRY(mx_want_shape(call, OF_LSE, &(mx_shape){3, {size[0], size[2], size[1]}}));
    MX_TRY(mx_want_dtype(call, OF_DOUT, out->dtype));
    MX_TRY(mx_want_shape(call, OF_DOUT, &out->shape));
    return mx_out(call, 0, MX_F32, &heads);
}

static mx_cost sinks_grad_cost(const mx_call *call)
{
    return mx_cost_of(call, 2.0 * (double)mx_count(call->in[OF_OUT]));
}

static mx_status sinks_grad_host(mx_call *call)
{
    const mx_tensor *out = call->in[OF_OUT];
    const mx_attention a = {.batch = out->shape.size[0],
                            .queries = out->shape.size[1],
                            .n_heads = out->shape.size[2],
                            .value_dim = out->shape.size[3],
                            .dtype = out->dtype,
                            .sinks = mx_f32(call->in[OF_SINKS]),
                            .out = mx_data(out),
                            .lse = mx_f32(call->in[OF_LSE]),
                            .dout = mx_data(call->in[OF_DOUT])};
    mx_attention_sinks_backward(&a, mx_f32(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_attention_sinks_grad = {
    .name = "attention_sinks_grad",
    .doc = "the gradient of attention's sinks, f32 (H), from out, lse and the gradient dout of out",
    .inputs = (const char *const[]){"sinks", "out", "lse", "dout", NULL},
    .n_out = 1,
    .n_results = 1,
    .infer = sinks_grad_infer,
    .cost = sinks_grad_cost,
    .host = sinks_grad_host,
};

/* ---- attention_merge_ ---- */

enum { SUMS, SUMS_LSE, PART, PART_LSE };

static mx_status merge_infer(mx_call *call)
{
    MX_TRY(mx_want_dtype(call, SUMS, MX_F32));
    MX_TRY(mx_want_float(call, PART));
    if (call->in[SUMS]->shape.n_dims != 4)
        return mx_bad_shape(call, "sums must be (batch, queries, heads, head_dim)");
    const mx_shape *sums = &call->in[SUMS]->shape;
    MX_TRY(mx_want_shape(call, PART, sums));
    for (int i = SUMS_LSE; i <= PART_LSE; i += PART_LSE - SUMS_LSE) {
        MX_TRY(mx_want_dtype(call, i, MX_F32));
        MX_TRY(mx_want_shape(call, i, &(mx_shape){3, {sums->size[0], sums->size[2], sums->size[1]}}));
    }
    return MX_OK;
}

static mx_cost merge_cost(const mx_call *call)
{
    mx_cost cost = mx_cost_of(call, 3.0 * (double)mx_count(call->in[SUMS]));
    cost.bytes_written = (double)(mx_bytes(call->in[SUMS]) + mx_bytes(call->in[SUMS_LSE]));
    return cost;
}

static mx_status merge_host(mx_call *call)
{
    const mx_tensor *part = call->in[PART];
    const mx_attention a = {.batch = part->shape.size[0],
                            .queries = part->shape.size[1],
                            .n_heads = part->shape.size[2],
                            .value_dim = part->shape.size[3],
                            .dtype = part->dtype,
                            .out = mx_data(part),
                            .lse = mx_f32(call->in[PART_LSE])};
    mx_attention_merge(&a, mx_f32(call->in[SUMS]), mx_f32(call->in[SUMS_LSE]));
    return MX_OK;
}

const mx_op mx_op_attention_merge_ = {
    .name = "attention_merge_",
    .doc = "merges attention results over two sets of keys in place: sums f32 (B, S, H, V) and lse (B, H, S) become "
           "the result over their keys and those of out and out_lse",
    .inputs = (const char *const[]){"sums", "lse", "out", "out_lse", NULL},
    .flags = MX_OP_MUTATES,
    .changes_in = 1 | 2,
    .infer = merge_infer,
    .cost = merge_cost,
    .host = merge_host,
};
