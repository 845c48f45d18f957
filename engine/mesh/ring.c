/* Ring attention: each rank of an axis has a part of the sequence. It keeps its queries; keys and values go around the
 * ranks, a hop at a time, and the next block is on its way while attention to the current one is computed.
 *
 * Forward: what the queries get from each block is merged by its log-sum-exp (mx_attention_merge), which leaves what
 * attention to the whole sequence gives. Backward needs no more than q, k, v and that result: with the log-sum-exp of
 * all keys each block's probabilities are known by themselves. Keys and values go around once more; the gradients of a
 * block follow it a step behind, each rank adds its share, and the last one sends them home.
 *
 * A rank has at most two blocks beside its own: the one it computes with and the one that comes. The hops are the same
 * on all ranks, whatever part of them the mask leaves to compute. */
#include "core/scope.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "mesh/collective_op.h"
#include "ops/attention.h"

#include <math.h>
#include <string.h>

typedef struct ring_attr {
    mx_axes axis;
    bool causal, balanced;
    int64_t window;
    double softcap, scale;
} ring_attr;

typedef struct ring_grad_attr {
    ring_attr ring; /* first: both operations read it */
    int dq_dtype, dk_dtype, dv_dtype;
} ring_grad_attr;

enum { Q, K, V, OUT, LSE, DOUT };

typedef struct ring {
    mx_attention a; /* of our queries and our own keys */
    mx_axes axis;
    bool balanced;
    int index, hops;         /* our place; how far a block goes */
    mx_shape pair;           /* (2, B, S, K, D): keys and values of a block, or their gradients */
    mx_tensor *block, *next; /* the one that is being computed with, from the first hop on; the one that comes */
} ring;

/* How far the keys of a rank must go to meet all queries that see them. */
static int hops_of(const ring_attr *attr, int ranks, int64_t tokens)
{
    int64_t last = ranks - 1;
    if (attr->window > 0 && tokens > 0 && (attr->window + tokens - 2) / tokens < last)
        last = (attr->window + tokens - 2) / tokens;
    return (int)last;
}

static ring ring_of(const mx_call *call)
{
    const ring_attr *attr = mx_call_attr(call);
    const mx_tensor *q = call->in[Q], *k = call->in[K];
    ring r = {.axis = attr->axis, .balanced = attr->balanced, .index = mx_mesh_index(attr->axis)};
    r.hops = hops_of(attr, mx_mesh_size(attr->axis), k->shape.size[1]);
    r.pair = (mx_shape){5, {2, k->shape.size[0], k->shape.size[1], k->shape.size[2], k->shape.size[3]}};
    r.a = (mx_attention){.batch = q->shape.size[0],
                         .queries = q->shape.size[1],
                         .keys = k->shape.size[1],
                         .n_heads = q->shape.size[2],
                         .n_kv_heads = k->shape.size[2],
                         .head_dim = q->shape.size[3],
                         .dtype = q->dtype,
                         .causal = attr->causal,
                         .window = attr->window,
                         .softcap = (float)attr->softcap,
                         .scale = (float)attr->scale,
                         .q = mx_data(q),
                         .k = mx_data(k),
                         .v = mx_data(call->in[V])};
    return r;
}

/* The mask between our queries and the keys of the rank `hop` places before us; false: it leaves nothing. */
static bool set_mask(const ring *r, int hop, mx_attention *a)
{
    bool earlier = hop <= r->index; /* not one from the end of the ring */
    if (!a->causal || hop == 0)
        return true;
    if (r->balanced) { /* of two pieces each, it is either one of the keys' or one of the queries' that sees all */
        a->causal = false;
        a->kv_length = earlier ? a->keys / 2 : 0;
        a->first_query = earlier ? 0 : a->queries / 2;
        return true;
    }
    a->offset = hop * a->keys;
    return earlier;
}

/* Attention to the block that has gone `hop` hops; false: there is nothing to compute. */
static bool attention_at(const ring *r, int hop, mx_attention *a)
{
    *a = r->a;
    if (hop > 0) {
        a->k = mx_data(r->block);
        a->v = (const char *)mx_data(r->block) + mx_bytes(r->block) / 2;
    }
    return a->keys > 0 && set_mask(r, hop, a);
}

static double pairs_of(const ring *r)
{
    double pairs = 0;
    for (int hop = 0; hop <= r->hops; hop++) {
        mx_attention a = r->a;
        if (set_mask(r, hop, &a))
            pairs += mx_attention_pairs(&a);
    }
    return pairs * (double)r->a.batch * (double)r->a.n_heads;
}

/* ---- the way around ---- */

static mx_status send_block(ring *r)
{
    MX_TRY(mx_tensor_new(r->a.dtype, &r->pair, &r->next));
    return mx_collective_permute_to(r->block, r->axis, 1, r->next);
}

/* Keys and values leave in one piece. */
static mx_status start(ring *r)
{
    if (r->hops == 0)
        return MX_OK;
    MX_TRY(mx_tensor_new(r->a.dtype, &r->pair, &r->block));
    int64_t bytes = mx_bytes(r->block) / 2;
    memcpy(mx_data(r->block), r->a.k, (size_t)bytes);
    memcpy((char *)mx_data(r->block) + bytes, r->a.v, (size_t)bytes);
    return send_block(r);
}

/* Waits for the block of this hop, which goes on at once unless it has met all who see it. */
static mx_status turn(ring *r, int hop)
{
    MX_TRY(mx_tensor_wait(r->next, false));
    mx_release(r->block);
    r->block = r->next;
    r->next = NULL;
    return hop < r->hops ? send_block(r) : MX_OK;
}

static void finish(ring *r)
{
    mx_release(r->block);
    mx_release(r->next);
}

/* The scope of the script is not to hold what an operation makes for itself. */
static mx_status run_on_ring(mx_call *call, int inputs, mx_status (*run)(ring *r, mx_call *call))
{
    for (int i = 0; i < inputs; i++)
        MX_TRY(mx_tensor_wait(call->in[i], false));
    ring r = ring_of(call);
    mx_scope *scope = mx_scope_swap(NULL);
    mx_status status = run(&r, call);
    finish(&r);
    mx_scope_swap(scope);
    return status;
}

static mx_array array_of(const mx_tensor *t) { return (mx_array){mx_data(t), t->dtype}; }

/* ---- ring_attention ---- */

static mx_status check_options(const mx_call *call)
{
    const ring_attr *attr = mx_call_attr(call);
    int64_t queries = call->in[Q]->shape.size[1], keys = call->in[K]->shape.size[1];
    if (queries != keys)
        return mx_bad_shape(call, "each rank has queries and keys of the same tokens, not %lld and %lld",
                            (long long)queries, (long long)keys);
    if (attr->window > 0 && !attr->causal)
        return mx_bad_value(call, "a window looks back: it needs causal = true");
    if (attr->window > 0 && attr->balanced)
        return mx_bad_value(call, "a window does not go with balanced = true, where the tokens of a rank lie apart");
    if (attr->balanced && attr->causal && keys % 2 != 0)
        return mx_bad_shape(call, "balanced = true: the %lld tokens of a rank are not two pieces", (long long)keys);
    return mx_attention_check_scores(call, attr->window, attr->softcap, attr->scale);
}

static mx_status ring_infer(mx_call *call)
{
    MX_TRY(mx_attention_check_tensors(call));
    MX_TRY(check_options(call));
    const mx_shape *q = &call->in[Q]->shape;
    MX_TRY(mx_out(call, 0, call->in[Q]->dtype, q));
    return mx_out(call, 1, MX_F32, &(mx_shape){3, {q->size[0], q->size[2], q->size[1]}});
}

/* `products` of the size of q k^T over what the mask leaves; keys and values, and `grad_bytes` of gradients, travel. */
static mx_cost cost_of(const mx_call *call, double products, double grad_bytes)
{
    ring r = ring_of(call);
    mx_cost cost = mx_cost_of(call, products * 2.0 * pairs_of(&r) * (double)r.a.head_dim);
    double elements = (double)mx_count(call->in[K]) + (double)mx_count(call->in[V]);
    cost.bytes_sent = (double)r.hops * elements * ((double)mx_dtype_bytes(r.a.dtype) + grad_bytes);
    return cost;
}

static mx_cost ring_cost(const mx_call *call) { return cost_of(call, 2, 0); }

/* What one block gives, and all of them so far; `sums` is f32. */
typedef struct partial {
    mx_tensor *out, *lse, *sums;
} partial;

static mx_status partial_new(const mx_call *call, partial *p)
{
    const mx_tensor *out = call->out[0];
    MX_TRY(mx_tensor_new(out->dtype, &out->shape, &p->out));
    MX_TRY(mx_tensor_new(MX_F32, &call->out[1]->shape, &p->lse));
    if (out->dtype == MX_F32)
        p->sums = mx_retain(call->out[0]);
    else
        MX_TRY(mx_tensor_new(MX_F32, &out->shape, &p->sums));
    mx_fill(array_of(call->out[1]), -INFINITY, mx_count(call->out[1]));
    return MX_OK;
}

static mx_status add_block(const ring *r, int hop, const partial *p, mx_call *call)
{
    mx_attention a;
    if (!attention_at(r, hop, &a))
        return MX_OK;
    a.out = mx_data(p->out);
    a.lse = mx_f32(p->lse);
    MX_TRY(mx_attention_forward(&a));
    mx_attention_merge(&a, mx_f32(p->sums), mx_f32(call->out[1]));
    return MX_OK;
}

static mx_status forward_blocks(ring *r, const partial *p, mx_call *call)
{
    MX_TRY(start(r));
    MX_TRY(add_block(r, 0, p, call));
    for (int hop = 1; hop <= r->hops; hop++) {
        MX_TRY(turn(r, hop));
        MX_TRY(add_block(r, hop, p, call));
    }
    if (p->sums != call->out[0])
        mx_cast(array_of(p->sums), array_of(call->out[0]), mx_count(p->sums));
    return MX_OK;
}

static mx_status forward(ring *r, mx_call *call)
{
    partial p = {0};
    mx_status status = partial_new(call, &p);
    if (status == MX_OK)
        status = forward_blocks(r, &p, call);
    mx_release(p.out);
    mx_release(p.lse);
    mx_release(p.sums);
    return status;
}

static mx_status ring_host(mx_call *call) { return run_on_ring(call, V + 1, forward); }

static mx_status ring_vjp(mx_vjp *v)
{
    if (!v->out_grad[0])
        return MX_OK;
    const mx_call *call = v->call;
    ring_grad_attr attr = {*(const ring_attr *)mx_call_attr(call), (int)mx_vjp_dtype(v, Q), (int)mx_vjp_dtype(v, K),
                           (int)mx_vjp_dtype(v, V)};
    mx_tensor *grads[3], *dout;
    MX_TRY(mx_out_grad(v, 0, &dout));
    mx_tensor *in[] = {call->in[Q], call->in[K], call->in[V], call->out[0], call->out[1], dout};
    mx_status status = mx_apply(&mx_op_ring_attention_grad, in, 6, &attr, grads);
    mx_release(dout);
    for (int i = 0; i < 3 && status == MX_OK; i++)
        status = mx_give_grad(v, i, grads[i]);
    return status;
}

#define RING_ATTRS                                                                                                     \
    {"axis", MX_ATTR_AXES, offsetof(ring_attr, axis), 0, NULL, "mesh axis or list of axes; all ranks when not given"}, \
        {"causal", MX_ATTR_BOOL, offsetof(ring_attr, causal), 0, NULL, "a query attends to no later position"},        \
        {"balanced", MX_ATTR_BOOL, offsetof(ring_attr, balanced),                                                      \
         0,          NULL,         "of 2 n pieces of the sequence rank i has i and 2 n - 1 - i, from 0; else i of n"}, \
        {"window", MX_ATTR_INT, offsetof(ring_attr, window),                                                           \
         0,        NULL,        "attends to positions less than this far back; 0: to any"},                            \
        {"softcap", MX_ATTR_FLOAT, offsetof(ring_attr, softcap),                                                       \
         0,         NULL,          "scores s become softcap * tanh(s / softcap); 0: they stay"},                       \
    {                                                                                                                  \
        "scale", MX_ATTR_FLOAT, offsetof(ring_attr, scale), 0, NULL, "of the scores; 0: 1 / sqrt(head_dim)"            \
    }

static const mx_attr ring_attrs[] = {RING_ATTRS, {0}};

const mx_op mx_op_ring_attention = {
    .name = "ring_attention",
    .doc = "attention of a sequence cut over an axis: q (B, S, H, D), k v (B, S, K, D) of this rank's tokens -> "
           "(B, S, H, D). Keys and values go around the ranks beside the computation. Collective",
    .inputs = (const char *const[]){"q", "k", "v", NULL},
    .n_out = 2, /* out; lse (B, H, S) f32 */
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE,
    .attrs = ring_attrs,
    .attr_bytes = sizeof(ring_attr),
    .reads_in = 1u << Q | 1u << K | 1u << V,
    .reads_out = 1u << 0 | 1u << 1,
    .infer = ring_infer,
    .cost = ring_cost,
    .host = ring_host,
    .vjp = ring_vjp,
};

/* ---- ring_attention_grad ---- */

static mx_status grad_infer(mx_call *call)
{
    const ring_grad_attr *attr = mx_call_attr(call);
    MX_TRY(mx_attention_check_tensors(call));
    MX_TRY(check_options(call));
    return mx_attention_grad_outputs(call, (const int[]){attr->dq_dtype, attr->dk_dtype, attr->dv_dtype});
}

static mx_cost grad_cost(const mx_call *call) { return cost_of(call, 5, sizeof(float)); }

/* Gradients, all f32. Of keys and values, as a pair: of our own; what we add to those of the current block; what has
 * been added to them before they come to us. */
typedef struct gradients {
    mx_tensor *dq, *dq_part;
    mx_tensor *own, *share, *coming;
} gradients;

/* What our queries give to the keys and values of the block that has gone `hop` hops, in *pair, a new tensor; NULL
 * where they do not see it. Adds to dq. */
static mx_status block_gradient(const ring *r, int hop, const mx_call *call, gradients *g, mx_tensor **pair)
{
    mx_attention a;
    *pair = NULL;
    if (!attention_at(r, hop, &a))
        return MX_OK;
    MX_TRY(mx_tensor_new(MX_F32, &r->pair, pair));
    a.out = mx_data(call->in[OUT]);
    a.lse = mx_f32(call->in[LSE]);
    a.dout = mx_data(call->in[DOUT]);
    a.dq = mx_data(hop == 0 ? g->dq : g->dq_part);
    a.dk = mx_data(*pair);
    a.dv = mx_f32(*pair) + mx_count(*pair) / 2;
    a.dq_dtype = a.dk_dtype = a.dv_dtype = MX_F32;
    MX_TRY(mx_attention_backward(&a));
    if (hop > 0)
        mx_add_to(array_of(g->dq), array_of(g->dq_part), mx_count(g->dq));
    return MX_OK;
}

/* share += what comes, for which it waits. */
static mx_status take_in(mx_tensor **share, mx_tensor **coming)
{
    mx_status status = mx_tensor_wait(*coming, false);
    if (status == MX_OK && *share) {
        mx_add_to(array_of(*share), array_of(*coming), mx_count(*share));
        mx_release(*coming);
    } else if (status == MX_OK) {
        *share = *coming;
    }
    if (status == MX_OK)
        *coming = NULL;
    return status;
}

/* The gradients of the current block go on to the rank to which it goes; after its last hop home. */
static mx_status pass_on(const ring *r, int hop, gradients *g)
{
    if (hop > 1)
        MX_TRY(take_in(&g->share, &g->coming));
    if (!g->share) {
        MX_TRY(mx_tensor_new(MX_F32, &r->pair, &g->share));
        mx_fill(array_of(g->share), 0, mx_count(g->share));
    }
    MX_TRY(mx_tensor_new(MX_F32, &r->pair, &g->coming));
    MX_TRY(mx_collective_permute_to(g->share, r->axis, hop < r->hops ? 1 : -hop, g->coming));
    mx_release(g->share);
    g->share = NULL;
    return MX_OK;
}

static mx_status backward_blocks(ring *r, const mx_call *call, gradients *g)
{
    MX_TRY(start(r));
    MX_TRY(block_gradient(r, 0, call, g, &g->own));
    for (int hop = 1; hop <= r->hops; hop++) {
        MX_TRY(turn(r, hop));
        MX_TRY(block_gradient(r, hop, call, g, &g->share));
        MX_TRY(pass_on(r, hop, g));
    }
    return r->hops > 0 ? take_in(&g->own, &g->coming) : MX_OK;
}

static mx_status gradients_new(const ring *r, const mx_call *call, gradients *g)
{
    const mx_tensor *q = call->in[Q];
    if (call->out[0]->dtype == MX_F32)
        g->dq = mx_retain(call->out[0]);
    else
        MX_TRY(mx_tensor_new(MX_F32, &q->shape, &g->dq));
    return r->hops > 0 ? mx_tensor_new(MX_F32, &q->shape, &g->dq_part) : MX_OK;
}

static void store_gradients(const mx_call *call, const gradients *g)
{
    if (g->dq != call->out[0])
        mx_cast(array_of(g->dq), array_of(call->out[0]), mx_count(g->dq));
    int64_t half = g->own ? mx_count(g->own) / 2 : 0; /* without tokens there is none */
    for (int i = 0; g->own && i < 2; i++)
        mx_cast((mx_array){mx_f32(g->own) + i * half, MX_F32}, array_of(call->out[1 + i]), half);
}

static mx_status backward(ring *r, mx_call *call)
{
    gradients g = {0};
    mx_status status = gradients_new(r, call, &g);
    if (status == MX_OK)
        status = backward_blocks(r, call, &g);
    if (status == MX_OK)
        store_gradients(call, &g);
    mx_tensor *all[] = {g.dq, g.dq_part, g.own, g.share, g.coming};
    for (int i = 0; i < 5; i++)
        mx_release(all[i]);
    return status;
}

static mx_status grad_host(mx_call *call) { return run_on_ring(call, DOUT + 1, backward); }

static const mx_attr ring_grad_attrs[] = {
    RING_ATTRS,
    {"dq_dtype", MX_ATTR_DTYPE, offsetof(ring_grad_attr, dq_dtype), -1, NULL, "of dq; that of q"},
    {"dk_dtype", MX_ATTR_DTYPE, offsetof(ring_grad_attr, dk_dtype), -1, NULL, "of dk; that of q"},
    {"dv_dtype", MX_ATTR_DTYPE, offsetof(ring_grad_attr, dv_dtype), -1, NULL, "of dv; that of q"},
    {0},
};

const mx_op mx_op_ring_attention_grad = {
    .name = "ring_attention_grad",
    .doc = "dq, dk and dv of ring_attention, from its inputs and outputs and the gradient dout of out. Collective",
    .inputs = (const char *const[]){"q", "k", "v", "out", "lse", "dout", NULL},
    .n_out = 3,
    .n_results = 3,
    .flags = MX_OP_COLLECTIVE,
    .attrs = ring_grad_attrs,
    .attr_bytes = sizeof(ring_grad_attr),
    .infer = grad_infer,
    .cost = grad_cost,
    .host = grad_host,
};
