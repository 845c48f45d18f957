/* Ring attention: each rank of an axis holds a part of the sequence. It keeps its queries. Keys and values pass around
 * the ring of ranks, one hop at a time, and the next block is in flight while attention to the current block is
 * computed.
 *
 * Forward: the results for the blocks are merged by their log-sum-exp (attention_merge_), which gives attention to the
 * whole sequence. Backward needs only q, k, v and that result: with the log-sum-exp over all keys, the probabilities of
 * each block can be computed separately. Keys and values pass around once more. The gradients of a block follow one hop
 * behind, each rank adds its share, and the last rank sends them back to the block's owner.
 *
 * A rank holds at most two blocks besides its own: the current one and the next one. All ranks make the same hops, even
 * if the mask leaves them nothing to compute. */
#include "core/scope.h"
#include "mesh/collective_op.h"
#include "ops/attention.h"
#include "tape/tape.h"

typedef struct ring_attr {
    mx_axes axis;
    bool causal, balanced;
    int64_t window;
    double softcap, scale;
} ring_attr;

enum { Q, K, V };
enum { OUT, LSE };
enum { DQ, DK, DV, GRADIENTS };

typedef struct ring {
    const mx_call *call;
    const ring_attr *attr;
    int64_t tokens;     /* tokens per rank */
    int index, hops;    /* this rank's index in the ring; number of hops of a block */
    mx_tensor *k, *v;   /* the current block */
    mx_tensor *next[2]; /* keys and values of the next block, in flight */
} ring;

/* The number of hops that keys need to reach all queries that attend to them. */
static int hops_of(const ring_attr *attr, int64_t tokens)
{
    int64_t last = mx_mesh_size(attr->axis) - 1;
    if (attr->window > 0 && tokens > 0 && (attr->window + tokens - 2) / tokens < last)
        last = (attr->window + tokens - 2) / tokens;
    return (int)last;
}

static mx_attention_attr options_of(const ring_attr *attr)
{
    return (mx_attention_attr){
        .causal = attr->causal, .window = attr->window, .softcap = attr->softcap, .scale = attr->scale};
}

/* The options of attention between this rank's queries and the keys of the rank `hop` >= 1 positions before it; false
 * if the mask excludes everything. */
static bool mask_at(const ring *r, int hop, mx_attention_attr *a)
{
    bool earlier = hop <= r->index; /* the block has not wrapped around the ring */
    *a = options_of(r->attr);
    if (!a->causal)
        return true;
    /* Two chunks per rank: all queries attend to the first chunk of the keys, or the second chunk of queries to all
     * keys. */
    if (r->attr->balanced) {
        a->causal = false;
        a->kv_length = earlier ? r->tokens / 2 : 0;
        a->first_query = earlier ? 0 : r->tokens / 2;
        return true;
    }
    a->offset = hop * r->tokens;
    return earlier;
}

static void release(mx_tensor **list, int n)
{
    for (int i = 0; i < n; i++) {
        mx_release(list[i]);
        list[i] = NULL;
    }
}

/* ---- hops ---- */

static mx_status permute(const ring *r, mx_tensor *x, int shift, mx_tensor **y)
{
    const mx_collective_attr a = {.axis = r->attr->axis, .dtype = -1, .shift = shift};
    return mx_collective_apply(&mx_op_collective_permute, x, &a, y);
}

static mx_status send_block(ring *r)
{
    MX_TRY(permute(r, r->k, 1, &r->next[0]));
    return permute(r, r->v, 1, &r->next[1]);
}

static mx_status ring_start(ring *r, const mx_call *call)
{
    *r = (ring){.call = call, .attr = mx_call_attr(call), .tokens = call->in[K]->shape.size[1]};
    r->index = mx_mesh_index(r->attr->axis);
    r->hops = hops_of(r->attr, r->tokens);
    r->k = mx_retain(call->in[K]);
    r->v = mx_retain(call->in[V]);
    return r->hops > 0 ? send_block(r) : MX_OK;
}

/* Waits for the block of this hop, and forwards the block, unless this is its last hop. */
static mx_status ring_turn(ring *r, int hop)
{
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_tensor_wait(r->next[i], false));
    mx_release(r->k);
    mx_release(r->v);
    r->k = r->next[0];
    r->v = r->next[1];
    r->next[0] = r->next[1] = NULL;
    return hop < r->hops ? send_block(r) : MX_OK;
}

static void ring_finish(ring *r)
{
    mx_release(r->k);
    mx_release(r->v);
    release(r->next, 2);
}

/* ---- forward ---- */

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
    const mx_attention_attr options = options_of(attr);
    return mx_attention_check_scores(call, &options);
}

static mx_status ring_infer(mx_call *call)
{
    MX_TRY(mx_attention_check_tensors(call));
    MX_TRY(check_options(call));
    const mx_shape *q = &call->in[Q]->shape;
    MX_TRY(mx_out(call, OUT, call->in[Q]->dtype, q));
    return mx_out(call, LSE, MX_F32, &(mx_shape){3, {q->size[0], q->size[2], q->size[1]}});
}

/* Zero: the operations inside are counted separately. */
static mx_cost ring_cost(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

/* Attention of the queries to the current block: out and lse. */
static mx_status attend(const ring *r, const mx_attention_attr *a, mx_tensor *part[2])
{
    mx_tensor *in[] = {r->call->in[Q], r->k, r->v};
    return mx_apply(&mx_op_attention, in, 3, MX_ATTRS(*a), part);
}

/* Merges attention to the block of this hop into `all`: out in f32, and lse. */
static mx_status add_block(const ring *r, int hop, mx_tensor *const all[2])
{
    mx_attention_attr a;
    mx_tensor *part[2] = {NULL, NULL};
    if (!mask_at(r, hop, &a))
        return MX_OK;
    MX_TRY(attend(r, &a, part));
    mx_tensor *in[] = {all[OUT], all[LSE], part[OUT], part[LSE]};
    mx_status status = mx_apply(&mx_op_attention_merge_, in, 4, MX_NO_ATTRS, NULL);
    release(part, 2);
    return status;
}

static mx_status forward_blocks(ring *r, mx_tensor *all[2])
{
    const mx_attention_attr own = options_of(r->attr);
    MX_TRY(attend(r, &own, all));
    if (r->hops == 0)
        return MX_OK;
    MX_TRY(mx_grad_cast(&all[OUT], MX_F32));
    for (int hop = 1; hop <= r->hops; hop++) {
        MX_TRY(ring_turn(r, hop));
        MX_TRY(add_block(r, hop, all));
    }
    return mx_grad_cast(&all[OUT], r->call->out[OUT]->dtype);
}

static mx_status ring_host(mx_call *call)
{
    ring r;
    mx_tensor *all[2] = {NULL, NULL};
    bool recording = mx_tape_set_recording(false);
    mx_scope *scope = mx_scope_swap(NULL); /* the script's scope must not hold intermediate tensors */
    mx_status status = ring_start(&r, call);
    if (status == MX_OK)
        status = forward_blocks(&r, all);
    if (status == MX_OK) {
        mx_tensor_alias(call->out[OUT], all[OUT], 0);
        mx_tensor_alias(call->out[LSE], all[LSE], 0);
    }
    release(all, 2);
    ring_finish(&r);
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    return status;
}

/* ---- backward ---- */

static mx_status add_to(mx_tensor *sum, mx_tensor *x)
{
    mx_tensor *in[] = {sum, x};
    return mx_apply_add_to(in[0], in[1]);
}

/* All f32. For keys and values: `share` holds this rank's contribution to the current block, and `coming` receives the
 * contributions of the ranks before it. */
typedef struct gradients {
    mx_tensor *dout;
    mx_tensor *own[GRADIENTS]; /* dq, and dk and dv of this rank's own block */
    mx_tensor *share[2], *coming[2];
} gradients;

/* The gradients between this rank's queries and the current block: dq, dk and dv. */
static mx_status differentiate(const ring *r, const mx_attention_attr *options, const gradients *g,
                               mx_tensor *part[GRADIENTS])
{
    const mx_attention_grad_attr a = {*options, MX_F32, MX_F32, MX_F32, false};
    mx_tensor *grads[GRADIENTS + 1]; /* the last is that of a bias, which the ring does not have */
    mx_tensor *in[] = {r->call->in[Q], r->k, r->v, r->call->out[OUT], r->call->out[LSE], g->dout};
    MX_TRY(mx_apply(&mx_op_attention_grad, in, 6, MX_ATTRS(a), grads));
    memcpy(part, grads, GRADIENTS * sizeof *part);
    mx_release(grads[GRADIENTS]);
    return MX_OK;
}

static mx_status add_share(const ring *r, int hop, gradients *g)
{
    mx_attention_attr options;
    mx_tensor *part[GRADIENTS] = {NULL, NULL, NULL};
    if (!mask_at(r, hop, &options))
        return MX_OK;
    MX_TRY(differentiate(r, &options, g, part));
    g->share[0] = part[DK];
    g->share[1] = part[DV];
    mx_status status = add_to(g->own[DQ], part[DQ]);
    mx_release(part[DQ]);
    return status;
}

/* *share += *coming; without a share, takes over *coming. */
static mx_status take_in(mx_tensor **share, mx_tensor **coming)
{
    mx_status status = MX_OK;
    if (*share) {
        status = add_to(*share, *coming);
        mx_release(*coming);
    } else {
        *share = *coming;
    }
    *coming = NULL;
    return status;
}

static mx_status zeros(const mx_tensor *like, mx_tensor **out)
{
    MX_TRY(mx_tensor_new(MX_F32, &like->shape, out));
    return mx_apply_fill(*out, 0);
}

/* Sends the gradients of the current block to the rank that gets the block; after the last hop, to the block's owner.
 */
static mx_status pass_on(const ring *r, int hop, gradients *g)
{
    for (int i = 0; i < 2; i++) {
        if (hop > 1)
            MX_TRY(take_in(&g->share[i], &g->coming[i]));
        if (!g->share[i])
            MX_TRY(zeros(r->k, &g->share[i]));
        MX_TRY(permute(r, g->share[i], hop < r->hops ? 1 : -hop, &g->coming[i]));
        release(&g->share[i], 1);
    }
    return MX_OK;
}

static mx_status backward_blocks(ring *r, gradients *g)
{
    const mx_attention_attr own = options_of(r->attr);
    MX_TRY(differentiate(r, &own, g, g->own));
    for (int hop = 1; hop <= r->hops; hop++) {
        MX_TRY(ring_turn(r, hop));
        MX_TRY(add_share(r, hop, g));
        MX_TRY(pass_on(r, hop, g));
    }
    for (int i = 0; i < 2 && r->hops > 0; i++)
        MX_TRY(take_in(&g->own[DK + i], &g->coming[i]));
    return MX_OK;
}

static mx_status ring_vjp(mx_vjp *v)
{
    if (!v->out_grad[OUT])
        return MX_OK;
    ring r = {0};
    gradients g = {0};
    mx_status status = mx_out_grad(v, OUT, &g.dout);
    if (status == MX_OK)
        status = ring_start(&r, v->call);
    if (status == MX_OK)
        status = backward_blocks(&r, &g);
    for (int i = 0; i < GRADIENTS && status == MX_OK; i++) {
        status = mx_give_grad(v, i, g.own[i]);
        g.own[i] = NULL;
    }
    mx_release(g.dout);
    release(g.own, GRADIENTS);
    release(g.share, 2);
    release(g.coming, 2);
    ring_finish(&r);
    return status;
}

static const mx_attr ring_attrs[] = {
    {"axis", MX_ATTR_AXES, offsetof(ring_attr, axis), 0, NULL, "mesh axis or list of axes; default: all ranks"},
    {"causal", MX_ATTR_BOOL, offsetof(ring_attr, causal), 0, NULL,
     "queries attend only to their own and earlier positions"},
    {"balanced", MX_ATTR_BOOL, offsetof(ring_attr, balanced), 0, NULL,
     "rank i has chunks i and 2 n - 1 - i of 2 n, from 0; otherwise chunk i of n"},
    {"window", MX_ATTR_INT, offsetof(ring_attr, window), 0, NULL,
     "attend to positions less than this far back; 0: no limit"},
    {"softcap", MX_ATTR_FLOAT, offsetof(ring_attr, softcap), 0, NULL,
     "scores s become softcap * tanh(s / softcap); 0: no cap"},
    {"scale", MX_ATTR_FLOAT, offsetof(ring_attr, scale), 0, NULL, "factor of the scores; 0: 1 / sqrt(head_dim)"},
    {0},
};

const mx_op mx_op_ring_attention = {
    .name = "ring_attention",
    .doc =
        "attention over a sequence that is split over an axis: q (B, S, H, D), k v (B, S, K, D) of this rank's tokens "
        "-> (B, S, H, D). The ranks pass keys and values around a ring, overlapped with computation. Collective",
    .inputs = (const char *const[]){"q", "k", "v", NULL},
    .n_out = 2, /* out; lse (B, H, S) f32 */
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE | MX_OP_COMPOSITE | MX_OP_OWN_STORAGE,
    .attrs = ring_attrs,
    .attr_bytes = sizeof(ring_attr),
    .reads_in = 1u << Q | 1u << K | 1u << V,
    .reads_out = 1u << OUT | 1u << LSE,
    .infer = ring_infer,
    .cost = ring_cost,
    .host = ring_host,
    .vjp = ring_vjp,
};
