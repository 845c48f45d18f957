/* Ring attention: each rank of an axis holds a part of the sequence. It keeps its queries. Keys and values, a block,
 * pass around the ring of ranks, hop by hop, and the next block is in flight while attention to the current block is
 * computed.
 *
 * Forward: the results for the blocks are merged by their log-sum-exp (attention_merge_), which gives attention to the
 * whole sequence. Backward needs only q, k, v and that result: with the log-sum-exp over all keys, the probabilities of
 * each block can be computed separately. Keys and values pass around once more. The gradients of a block follow one hop
 * behind, each rank adds its share, and the last rank sends them back to the block's owner.
 *
 * A rank holds at most two blocks besides its own: the current one and the next one. All ranks make the same hops, even
 * if the mask leaves them nothing to compute. A block whose keys no query of any rank can see is left out: with a
 * window a hop may take it past several ranks.
 *
 * Positions are those in the whole sequence. Nothing but keys and values travels: each rank knows the intervals of its
 * queries, and the positions of a block's keys follow from the rank that owns it. */
#include "core/scope.h"
#include "mesh/collective_op.h"
#include "ops/attention.h"
#include "ops/compose.h"
#include "tape/tape.h"

#include <stdlib.h>

typedef struct ring_attr {
    mx_axes axis;
    bool causal, balanced;
    int64_t window, chunk;
    double softcap, scale;
} ring_attr;

enum { Q, K, V, INTERVALS, SINKS };
enum { OUT, LSE };
enum { DQ, DK, DV, GRADIENTS };

typedef struct ring {
    const mx_call *call;
    const ring_attr *attr;
    int64_t tokens;       /* tokens per rank */
    int64_t piece;        /* of them, tokens with consecutive positions */
    int index, n;         /* this rank's index in the ring; number of ranks */
    mx_tensor *intervals; /* of the queries in the whole sequence; NULL: the mask leaves each block one run */
    mx_tensor *k, *v;     /* the current block */
    mx_tensor *next[2];   /* keys and values of the next block, in flight */
} ring;

/* How far back a query sees keys, its own included; 0: without limit. A chunk lies inside of a window of its length. */
static int64_t window_of(const ring_attr *attr)
{
    bool chunk_is_less = attr->chunk > 0 && (attr->window == 0 || attr->chunk < attr->window);
    return chunk_is_less ? attr->chunk : attr->window;
}

/* Whether no chunk reaches into another piece. */
static bool has_whole_chunks(const ring *r) { return r->attr->chunk > 0 && r->piece % r->attr->chunk == 0; }

static mx_attention_attr options_of(const ring *r)
{
    return (mx_attention_attr){.causal = r->attr->causal,
                               .window = window_of(r->attr),
                               .chunk = has_whole_chunks(r) ? r->attr->chunk : 0,
                               .softcap = r->attr->softcap,
                               .scale = r->attr->scale};
}

/* The number of pieces before its own in which a query sees keys. */
static int64_t reach_of(const ring *r)
{
    int64_t window = window_of(r->attr), piece = r->piece;
    if (has_whole_chunks(r))
        return 0;
    return window > 0 && piece > 0 ? (window + piece - 2) / piece : 2 * (int64_t)r->n;
}

/* The distance from the owner of the block after this one; 0: there is none. Distances ascend. Balanced, the late
 * pieces of a rank need those of the ranks behind it, which are far ahead in the ring. */
static int next_distance(const ring *r, int distance)
{
    int64_t reach = reach_of(r), next = distance + 1;
    if (next > reach)
        next = r->attr->balanced && next < r->n - reach ? r->n - reach : next;
    return next < r->n && (next <= reach || r->attr->balanced) ? (int)next : 0;
}

static int owner_at(const ring *r, int distance) { return (r->index - distance + r->n) % r->n; }

/* The options of attention between this rank's queries and the keys of the rank `distance` positions before it; false
 * if the mask excludes everything. Balanced, a rank has an early and a late piece, whose queries are given positions as
 * if both followed each other. That leaves the order of queries and keys as it is, and makes distances smaller only
 * between pieces that do not correspond: intervals exclude what a window then admits in excess. */
static bool mask_at(const ring *r, int distance, mx_attention_attr *a)
{
    int owner = owner_at(r, distance), apart = abs(r->index - owner);
    bool earlier = owner < r->index; /* the block has not wrapped around the ring */
    *a = options_of(r);
    if (distance == 0 || !a->causal)
        return true;
    a->offset = apart * r->piece;
    if (!r->attr->balanced)
        return earlier && apart <= reach_of(r);
    /* All queries may see the first piece of the keys, or those of the second piece all keys. */
    a->kv_length = earlier ? r->piece : 0;
    a->first_query = earlier ? 0 : r->piece;
    return apart <= reach_of(r);
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

/* Sends the block of this distance to the rank that needs it next, if any does. */
static mx_status send_block(ring *r, int distance)
{
    int next = next_distance(r, distance);
    if (next == 0)
        return MX_OK;
    MX_TRY(permute(r, r->k, next - distance, &r->next[0]));
    return permute(r, r->v, next - distance, &r->next[1]);
}

/* ---- intervals ---- */

/* The range [first, last) of all keys in the sequence for each query. */
static mx_tensor *whole_sequence(const ring *r, mx_terms *s)
{
    const mx_shape *q = &r->call->in[Q]->shape;
    mx_tensor *zeros = NULL, *ends = NULL;
    mx_term_keep(s, mx_apply_full(&(mx_shape){3, {q->size[0], q->size[1], 2}}, MX_I32, 0, &zeros), &zeros);
    mx_term_keep(s, mx_apply_arange(2, MX_I32, 0, &ends), &ends);
    return mx_term_add(s, zeros, mx_term_affine(s, ends, (double)(r->tokens * r->n), 0));
}

/* Positions of this rank's queries in the sequence. */
static mx_tensor *positions_of(const ring *r, mx_terms *s)
{
    mx_tensor *number = NULL;
    mx_term_keep(s, mx_apply_arange(r->tokens, MX_I32, 0, &number), &number);
    mx_tensor *early = mx_term_affine(s, number, 1, (double)(r->index * r->piece));
    if (!r->attr->balanced)
        return early;
    mx_tensor *is_late = mx_term_indicator(s, &mx_op_ge, number, (double)r->piece);
    return mx_term_add(s, early, mx_term_affine(s, is_late, (double)((2 * r->n - 2 - 2 * r->index) * r->piece), 0));
}

/* The intervals without keys that lie before the window or the chunk of their query. */
static mx_tensor *inside_window(const ring *r, mx_terms *s, mx_tensor *intervals)
{
    const ring_attr *attr = r->attr;
    mx_tensor *x = positions_of(r, s), *start = mx_term_affine(s, x, 1, (double)(1 - window_of(attr)));
    if (attr->chunk > 0) {
        mx_tensor *chunk = mx_term_two(s, &mx_op_idiv, x, mx_term_number(s, MX_I32, (double)attr->chunk));
        start = mx_term_two(s, &mx_op_maximum, start, mx_term_affine(s, chunk, (double)attr->chunk, 0));
    }
    mx_tensor *first = NULL; /* [1, 0]: only the start of an interval changes */
    mx_term_keep(s, mx_apply_arange(2, MX_I32, 0, &first), &first);
    start = mx_term_reshape(s, start, &(mx_shape){2, {r->tokens, 1}});
    return mx_term_two(s, &mx_op_maximum, intervals, mx_term_mul(s, start, mx_term_affine(s, first, -1, 1)));
}

static mx_status find_intervals(ring *r)
{
    mx_terms s = {0};
    mx_tensor *intervals = r->call->in[INTERVALS];
    if ((r->attr->balanced && r->attr->window > 0) || (r->attr->chunk > 0 && !has_whole_chunks(r)))
        intervals = inside_window(r, &s, intervals ? intervals : whole_sequence(r, &s));
    r->intervals = intervals ? mx_retain(intervals) : NULL;
    return mx_terms_release(&s);
}

/* How many keys of the piece from position `first` on lie before each position x. */
static mx_tensor *keys_before(const ring *r, mx_terms *s, mx_tensor *x, int64_t first)
{
    x = mx_term_affine(s, x, 1, -(double)first);
    x = mx_term_two(s, &mx_op_maximum, x, mx_term_number(s, MX_I32, 0));
    return mx_term_two(s, &mx_op_minimum, x, mx_term_number(s, MX_I32, (double)r->piece));
}

/* The intervals in the block of the rank `distance` positions before this one; NULL without intervals. */
static mx_status intervals_at(const ring *r, int distance, mx_tensor **intervals)
{
    mx_terms s = {0};
    int owner = owner_at(r, distance);
    *intervals = NULL;
    if (!r->intervals)
        return MX_OK;
    mx_tensor *own = keys_before(r, &s, r->intervals, owner * r->piece);
    if (r->attr->balanced)
        own = mx_term_add(&s, own, keys_before(r, &s, r->intervals, (2 * r->n - 1 - owner) * r->piece));
    *intervals = own ? mx_retain(own) : NULL;
    return mx_terms_release(&s);
}

/* ---- blocks ---- */

static mx_status ring_start(ring *r, const mx_call *call)
{
    const ring_attr *attr = mx_call_attr(call);
    int64_t tokens = call->in[K]->shape.size[1];
    *r = (ring){.call = call, .attr = attr, .tokens = tokens, .n = mx_mesh_size(attr->axis)};
    r->piece = attr->balanced ? tokens / 2 : tokens;
    r->index = mx_device_current->has_values ? mx_mesh_index(attr->axis) : r->n - 1; /* simulated: the busiest rank */
    r->k = mx_retain(call->in[K]);
    r->v = mx_retain(call->in[V]);
    MX_TRY(find_intervals(r));
    return send_block(r, 0);
}

/* Waits for the block of this distance, and forwards the block, unless this is its last hop. */
static mx_status ring_turn(ring *r, int distance)
{
    for (int i = 0; i < 2; i++)
        MX_TRY(mx_tensor_wait(r->next[i], false));
    mx_release(r->k);
    mx_release(r->v);
    r->k = r->next[0];
    r->v = r->next[1];
    r->next[0] = r->next[1] = NULL;
    return send_block(r, distance);
}

static void ring_finish(ring *r)
{
    mx_release(r->intervals);
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
    if (attr->chunk < 0 || (attr->chunk > 0 && !attr->causal))
        return mx_bad_value(call, "chunk = %lld must not be negative, and the ring needs causal = true with it",
                            (long long)attr->chunk);
    bool has_intervals = call->in[INTERVALS] != NULL;
    if (attr->balanced && (attr->causal || has_intervals) && keys % 2 != 0)
        return mx_bad_shape(call, "balanced = true: the %lld tokens of a rank are not two pieces", (long long)keys);
    if (has_intervals) {
        MX_TRY(mx_want_dtype(call, INTERVALS, MX_I32));
        MX_TRY(mx_want_shape(call, INTERVALS, &(mx_shape){3, {call->in[Q]->shape.size[0], queries, 2}}));
    }
    const mx_attention_attr options = {.window = attr->window, .softcap = attr->softcap, .scale = attr->scale};
    return mx_attention_check_scores(call, &options);
}

static mx_status ring_infer(mx_call *call)
{
    MX_TRY(mx_attention_check_tensors(call));
    MX_TRY(mx_attention_check_sinks(call, SINKS));
    MX_TRY(check_options(call));
    const mx_shape *q = &call->in[Q]->shape, out = mx_attention_out_shape(call);
    MX_TRY(mx_out(call, OUT, call->in[Q]->dtype, &out));
    return mx_out(call, LSE, MX_F32, &(mx_shape){3, {q->size[0], q->size[2], q->size[1]}});
}

/* Zero: the operations inside are counted separately. */
static mx_cost ring_cost(const mx_call *call)
{
    (void)call;
    return (mx_cost){0};
}

/* Attention of the queries to the current block: out and lse. Sinks count once, with the rank's own block. */
static mx_status attend(const ring *r, int distance, const mx_attention_attr *a, mx_tensor *sinks, mx_tensor *part[2])
{
    mx_tensor *in[] = {r->call->in[Q], r->k, r->v, NULL, NULL, NULL, sinks};
    MX_TRY(intervals_at(r, distance, &in[INTERVALS]));
    mx_status status = mx_apply(&mx_op_attention, in, 7, MX_ATTRS(*a), part);
    mx_release(in[INTERVALS]);
    return status;
}

/* Merges attention to the block of this distance into `all`: out in f32, and lse. */
static mx_status add_block(const ring *r, int distance, mx_tensor *const all[2])
{
    mx_attention_attr a;
    mx_tensor *part[2] = {NULL, NULL};
    if (!mask_at(r, distance, &a))
        return MX_OK;
    MX_TRY(attend(r, distance, &a, NULL, part));
    mx_tensor *in[] = {all[OUT], all[LSE], part[OUT], part[LSE]};
    mx_status status = mx_apply(&mx_op_attention_merge_, in, 4, MX_NO_ATTRS, NULL);
    release(part, 2);
    return status;
}

static mx_status forward_blocks(ring *r, mx_tensor *all[2])
{
    const mx_attention_attr own = options_of(r);
    MX_TRY(attend(r, 0, &own, r->call->in[SINKS], all));
    int distance = next_distance(r, 0);
    if (distance == 0)
        return MX_OK;
    MX_TRY(mx_grad_cast(&all[OUT], MX_F32));
    for (; distance > 0; distance = next_distance(r, distance)) {
        MX_TRY(ring_turn(r, distance));
        MX_TRY(add_block(r, distance, all));
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
    return mx_apply_add_to(in[0], in[1], 1);
}

/* All f32. For keys and values: `share` holds this rank's contribution to the current block, and `coming` receives the
 * contributions of the ranks before it. */
typedef struct gradients {
    mx_tensor *dout;
    mx_tensor *own[GRADIENTS]; /* dq, and dk and dv of this rank's own block */
    mx_tensor *share[2], *coming[2];
} gradients;

/* The gradients between this rank's queries and the current block: dq, dk and dv. */
static mx_status differentiate(const ring *r, int distance, const mx_attention_attr *options, const gradients *g,
                               mx_tensor *part[GRADIENTS])
{
    const mx_attention_grad_attr a = {*options, MX_F32, MX_F32, MX_F32, false};
    mx_tensor *grads[GRADIENTS + 1]; /* the last is that of a bias, which the ring does not have */
    mx_tensor *in[] = {r->call->in[Q], r->k, r->v, r->call->out[OUT], r->call->out[LSE], g->dout, NULL};
    MX_TRY(intervals_at(r, distance, &in[6]));
    mx_status status = mx_apply(&mx_op_attention_grad, in, 7, MX_ATTRS(a), grads);
    mx_release(in[6]);
    MX_TRY(status);
    memcpy(part, grads, GRADIENTS * sizeof *part);
    mx_release(grads[GRADIENTS]);
    return MX_OK;
}

static mx_status add_share(const ring *r, int distance, gradients *g)
{
    mx_attention_attr options;
    mx_tensor *part[GRADIENTS] = {NULL, NULL, NULL};
    if (!mask_at(r, distance, &options))
        return MX_OK;
    MX_TRY(differentiate(r, distance, &options, g, part));
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
static mx_status pass_on(const ring *r, int distance, bool is_first, gradients *g)
{
    int next = next_distance(r, distance);
    for (int i = 0; i < 2; i++) {
        if (!is_first)
            MX_TRY(take_in(&g->share[i], &g->coming[i]));
        if (!g->share[i])
            MX_TRY(zeros(i == 0 ? r->k : r->v, &g->share[i]));
        MX_TRY(permute(r, g->share[i], next - distance, &g->coming[i]));
        release(&g->share[i], 1);
    }
    return MX_OK;
}

static mx_status backward_blocks(ring *r, gradients *g)
{
    const mx_attention_attr own = options_of(r);
    int first = next_distance(r, 0);
    MX_TRY(differentiate(r, 0, &own, g, g->own));
    for (int distance = first; distance > 0; distance = next_distance(r, distance)) {
        MX_TRY(ring_turn(r, distance));
        MX_TRY(add_share(r, distance, g));
        MX_TRY(pass_on(r, distance, distance == first, g));
    }
    for (int i = 0; i < 2 && first > 0; i++)
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
    if (status == MX_OK)
        status = mx_attention_give_sinks(v, SINKS, g.dout);
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
    {"chunk", MX_ATTR_INT, offsetof(ring_attr, chunk), 0, NULL,
     "attend inside of chunks of so many positions, from position 0 on; 0: no limit"},
    {"softcap", MX_ATTR_FLOAT, offsetof(ring_attr, softcap), 0, NULL,
     "scores s become softcap * tanh(s / softcap); 0: no cap"},
    {"scale", MX_ATTR_FLOAT, offsetof(ring_attr, scale), 0, NULL, "factor of the scores; 0: 1 / sqrt(head_dim)"},
    {0},
};

const mx_op mx_op_ring_attention = {
    .name = "ring_attention",
    .doc =
        "attention over a sequence that is split over an axis: q (B, S, H, D), k (B, S, K, D), v (B, S, K, V) of this "
        "rank's tokens -> (B, S, H, V). The ranks pass keys and values around a ring, overlapped with computation. "
        "intervals i32 (B, "
        "S, 2): the first key of each query in the whole sequence, from 0, and the last + 1, within what the options "
        "leave. sinks: as for attention. Collective",
    .inputs = (const char *const[]){"q", "k", "v", "intervals?", "sinks?", NULL},
    .n_out = 2, /* out; lse (B, H, S) f32 */
    .n_results = 1,
    .flags = MX_OP_COLLECTIVE | MX_OP_COMPOSITE | MX_OP_OWN_STORAGE,
    .attrs = ring_attrs,
    .attr_bytes = sizeof(ring_attr),
    .reads_in = 1u << Q | 1u << K | 1u << V | 1u << INTERVALS | 1u << SINKS,
    .reads_out = 1u << OUT | 1u << LSE,
    .infer = ring_infer,
    .cost = ring_cost,
    .host = ring_host,
    .vjp = ring_vjp,
};
