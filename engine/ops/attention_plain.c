/* Attention composed of products and a softmax, with all scores in memory: for f64, and for gradients of gradients. */
#include "ops/attention.h"
#include "ops/rows.h"
#include "ops/terms.h"

#include <math.h>

enum { Q, K, V, INTERVALS, BIAS, SLOPES, SINKS };

static mx_tensor *both(mx_terms *s, mx_tensor *a, mx_tensor *b)
{
    return a && b ? mx_term_two(s, &mx_op_bitwise_and, a, b) : a ? a : b;
}

/* first, first + 1 ... as a column (n, 1) or a row (n). */
static mx_tensor *positions(mx_terms *s, int64_t n, int64_t first, bool column)
{
    mx_tensor *x = NULL;
    if (s->status != MX_OK || !mx_term_keep(s, mx_apply_arange(n, MX_F64, (double)first, &x), &x))
        return NULL;
    return column ? mx_term_reshape(s, x, &(mx_shape){2, {n, 1}}) : x;
}

/* floor(x / chunk), exact because x / chunk is rounded correctly. */
static mx_tensor *chunk_of(mx_terms *s, mx_tensor *x, int64_t chunk)
{
    return mx_term_one(s, &mx_op_floor, mx_term_div(s, x, mx_term_number(s, MX_F64, (double)chunk)));
}

/* u8 (queries, keys), 1 where positions allow that a query attends to a key; NULL: everywhere. */
static mx_tensor *mask_by_position(mx_terms *s, const mx_call *call, mx_tensor *x, mx_tensor *y)
{
    const mx_attention_attr *attr = mx_call_attr(call);
    mx_tensor *mask = NULL;
    if (attr->causal && attr->prefix > 0)
        mask = mx_term_compare(
            s, &mx_op_le,
            mx_term_two(s, &mx_op_minimum, mx_term_sub(s, y, x), mx_term_affine(s, y, 1, -(double)attr->prefix + 1)),
            0);
    else if (attr->causal)
        mask = mx_term_two(s, &mx_op_ge, x, y);
    if (attr->chunk > 0)
        mask = both(s, mask, mx_term_two(s, &mx_op_eq, chunk_of(s, x, attr->chunk), chunk_of(s, y, attr->chunk)));
    if (attr->window > 0)
        mask =
            both(s, mask,
                 mx_term_compare(s, &mx_op_lt, mx_term_one(s, &mx_op_abs, mx_term_sub(s, x, y)), (double)attr->window));
    if (attr->first_query > 0)
        mask = both(s, mask, mx_term_compare(s, &mx_op_ge, x, (double)(attr->first_query + attr->offset)));
    if (attr->kv_length > 0)
        mask = both(s, mask, mx_term_compare(s, &mx_op_lt, y, (double)attr->kv_length));
    return mask;
}

/* The first keys (0) or the ends (1) of intervals (batch, queries, 2): f64 (batch, 1, queries, 1). */
static mx_tensor *bound_of(mx_terms *s, mx_tensor *intervals, int64_t which)
{
    mx_tensor *part = NULL;
    const int64_t *size = intervals->shape.size;
    if (s->status != MX_OK || !mx_term_keep(s, mx_apply_narrow(intervals, 2, which, 1, &part), &part))
        return NULL;
    return mx_term_cast(s, mx_term_reshape(s, part, &(mx_shape){4, {size[0], 1, size[1], 1}}), MX_F64);
}

/* The same for all of the masks, broadcast to (batch, heads, queries, keys); NULL: none. */
static mx_tensor *mask_of(mx_terms *s, const mx_call *call, mx_tensor *x, mx_tensor *y)
{
    mx_tensor *mask = mask_by_position(s, call, x, y), *bias = call->in[BIAS];
    if (bias && bias->dtype == MX_U8)
        mask = both(s, mask, mx_term_compare(s, &mx_op_ne, bias, 0));
    for (int64_t end = 0; end < 2 && call->in[INTERVALS]; end++) {
        mx_tensor *limit = bound_of(s, call->in[INTERVALS], end);
        mask = both(s, mask, mx_term_two(s, end ? &mx_op_lt : &mx_op_ge, y, limit));
    }
    return mask;
}

/* -slope |x - y| (heads, queries, keys). */
static mx_tensor *slopes_of(mx_terms *s, const mx_call *call, mx_dtype dtype, mx_tensor *x, mx_tensor *y)
{
    mx_tensor *distance = mx_term_cast(s, mx_term_one(s, &mx_op_abs, mx_term_sub(s, x, y)), dtype);
    mx_tensor *slopes = mx_term_cast(s, call->in[SLOPES], dtype);
    mx_shape column = {3, {call->in[Q]->shape.size[2], 1, 1}};
    return mx_term_affine(s, mx_term_mul(s, mx_term_reshape(s, slopes, &column), distance), -1, 0);
}

/* (batch, tokens, n, features) as (batch, kv heads, n / kv heads * tokens, features), f32 or f64. */
static mx_tensor *by_kv_head(mx_terms *s, mx_tensor *t, int64_t kv_heads)
{
    mx_tensor *turned = NULL, *wide = mx_term_wide(s, t);
    if (!wide || !mx_term_keep(s, mx_apply_transpose(wide, 1, 2, &turned), &turned))
        return NULL;
    const int64_t *size = t->shape.size;
    mx_shape shape = {4, {size[0], kv_heads, kv_heads > 0 ? size[2] / kv_heads * size[1] : 0, size[3]}};
    return mx_term_reshape(s, turned, &shape);
}

static mx_tensor *matmul(mx_terms *s, mx_tensor *a, mx_tensor *b, bool trans_b)
{
    mx_tensor *c = NULL;
    return s->status != MX_OK ? NULL : mx_term_keep(s, mx_apply_matmul(a, b, false, trans_b, &c), &c);
}

/* scale q k^T, capped, with what is added to it: (batch, heads, queries, keys). */
static mx_tensor *scores_of(mx_terms *s, const mx_call *call, mx_tensor *x, mx_tensor *y)
{
    const mx_attention_attr *attr = mx_call_attr(call);
    const mx_shape *q = &call->in[Q]->shape, *k = &call->in[K]->shape;
    double scale = attr->scale > 0 ? attr->scale : 1 / sqrt((double)q->size[3]);
    mx_shape shape = {4, {q->size[0], q->size[2], q->size[1], k->size[1]}};
    mx_tensor *bias = call->in[BIAS];
    mx_tensor *scores = matmul(s, by_kv_head(s, call->in[Q], k->size[2]), by_kv_head(s, call->in[K], k->size[2]), true);
    scores =
        mx_term_affine(s, mx_term_reshape(s, scores, &shape), attr->softcap > 0 ? scale / attr->softcap : scale, 0);
    if (attr->softcap > 0)
        scores = mx_term_affine(s, mx_term_one(s, &mx_op_tanh, scores), attr->softcap, 0);
    if (scores && bias && bias->dtype != MX_U8)
        scores = mx_term_add(s, scores, mx_term_cast(s, bias, scores->dtype));
    if (scores && call->in[SLOPES])
        scores = mx_term_add(s, scores, slopes_of(s, call, scores->dtype, x, y));
    return scores;
}

/* The share of a query's probability that its keys have, besides the sink: 1 / (1 + e^(sink - lse)). */
static mx_tensor *share_of_keys(mx_terms *s, const mx_call *call, mx_tensor *scores)
{
    mx_shape column = {3, {call->in[Q]->shape.size[2], 1, 1}};
    mx_tensor *sinks = mx_term_reshape(s, mx_term_cast(s, call->in[SINKS], scores->dtype), &column);
    mx_tensor *lse = mx_term_reduce(s, &mx_op_logsumexp, scores, 1u << 3);
    return mx_term_one(s, &mx_op_sigmoid, mx_term_sub(s, lse, sinks));
}

/* What dropout multiplies probabilities by, (batch, heads, queries, keys). */
static mx_tensor *dropout_mask(mx_terms *s, const mx_call *call, mx_dtype dtype)
{
    const mx_attention_attr *attr = mx_call_attr(call);
    const mx_shape *q = &call->in[Q]->shape;
    const mx_attention_mask_attr mask = {
        {4, {q->size[0], q->size[2], q->size[1], call->in[K]->shape.size[1]}}, attr->drop, attr->offset};
    mx_tensor *t = NULL;
    if (s->status != MX_OK || !mx_term_keep(s, mx_apply(&mx_op_attention_dropout, NULL, 0, MX_ATTRS(mask), &t), &t))
        return NULL;
    t = mx_term_cast(s, mx_term_compare(s, &mx_op_gt, t, 0), dtype); /* exact in f64 */
    double threshold = mx_attention_dropout_of(&attr->drop).threshold;
    return mx_term_affine(s, t, 1 / (1 - threshold / 0x1p16), 0);
}

/* A masked score is far below all others, and its probability 0: so a query without keys gives 0. */
mx_tensor *mx_attention_plain(mx_terms *s, const mx_call *call)
{
    const mx_shape *q = &call->in[Q]->shape, *k = &call->in[K]->shape;
    const int64_t last = -1;
    mx_tensor *x = positions(s, q->size[1], ((const mx_attention_attr *)mx_call_attr(call))->offset, true);
    mx_tensor *y = positions(s, k->size[1], 0, false);
    mx_tensor *mask = mask_of(s, call, x, y), *scores = scores_of(s, call, x, y), *back = NULL;
    if (!scores)
        return NULL;
    if (mask)
        scores = mx_term_where(s, mask, scores, mx_term_number(s, scores->dtype, -1e30));
    mx_tensor *p = mx_term(s, &mx_op_softmax, MX_ATTRS(last), scores, NULL, NULL);
    if (p && mask)
        p = mx_term_where(s, mask, p, mx_term_number(s, p->dtype, 0));
    if (p && call->in[SINKS])
        p = mx_term_mul(s, p, share_of_keys(s, call, scores));
    if (p && ((const mx_attention_attr *)mx_call_attr(call))->drop.rate > 0)
        p = mx_term_mul(s, p, dropout_mask(s, call, p->dtype));
    int64_t group = k->size[2] > 0 ? q->size[2] / k->size[2] : 0;
    p = mx_term_reshape(s, p, &(mx_shape){4, {q->size[0], k->size[2], group * q->size[1], k->size[1]}});
    mx_tensor *out = matmul(s, p, by_kv_head(s, call->in[V], k->size[2]), false);
    out = mx_term_reshape(s, out, &(mx_shape){4, {q->size[0], q->size[2], q->size[1], call->in[V]->shape.size[3]}});
    if (!out || !mx_term_keep(s, mx_apply_transpose(out, 1, 2, &back), &back))
        return NULL;
    return mx_term_cast(s, back, call->in[Q]->dtype);
}
