#include "kernels/moe.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/embedding.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- routing ---- */

/* Of one token: what it is chosen by, and the softmax or sigmoid of its logits where the rule needs it. `scores` and
 * `choice` have room for all experts. */
typedef struct token {
    float *scores, *choice;
    unsigned char *taken;
} token;

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static void load_logits(const mx_route *r, int64_t t, float *to)
{
    for (int64_t e = 0; e < r->experts; e++)
        to[e] = mx_get_float(r->logits, t * r->experts + e, r->dtype);
}

static void softmax(float *x, int64_t n)
{
    float most = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = expf(x[i] - most);
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* Whether weights are a softmax over the chosen logits, which a normalised softmax over all of them is, too. */
static bool is_softmax_of_chosen(const mx_route *r)
{
    return r->score == MX_TOPK_SOFTMAX || (r->score == MX_SOFTMAX_TOPK && r->normalize);
}

/* scores: what weights are made of. */
static void load_scores(const mx_route *r, int64_t t, float *scores)
{
    load_logits(r, t, scores);
    if (r->score == MX_SIGMOID_TOPK)
        for (int64_t e = 0; e < r->experts; e++)
            scores[e] = sigmoid(scores[e]);
    else if (r->score == MX_SOFTMAX_TOPK && (!r->normalize || r->groups > 1 || r->bias))
        softmax(scores, r->experts);
}

/* Whether a comes before b: the larger one, and a NaN before all. */
static bool is_before(float a, float b) { return a > b || (a != a && b == b); }

/* The next one in order among those not taken; -1 when there is none. */
static int64_t take_best(const float *choice, unsigned char *taken, int64_t n)
{
    int64_t best = -1;
    for (int64_t e = 0; e < n; e++)
        if (!taken[e] && (best < 0 || is_before(choice[e], choice[best])))
            best = e;
    if (best >= 0)
        taken[best] = 1;
    return best;
}

static float group_score(const mx_route *r, const float *choice, int64_t size)
{
    float first = -INFINITY, second = -INFINITY;
    for (int64_t e = 0; e < size; e++) {
        if (is_before(choice[e], first)) {
            second = first;
            first = choice[e];
        } else if (is_before(choice[e], second)) {
            second = choice[e];
        }
    }
    return r->sum_of_two && size > 1 ? first + second : first;
}

/* Takes all experts out of the choice but those of the best groups. */
static void limit_to_groups(const mx_route *r, token *k)
{
    float score[MX_MAX_TOP];
    unsigned char good[MX_MAX_TOP] = {0};
    int64_t size = r->experts / r->groups;
    for (int g = 0; g < r->groups; g++)
        score[g] = group_score(r, k->choice + g * size, size);
    for (int i = 0; i < r->top_groups; i++)
        (void)take_best(score, good, r->groups);
    for (int g = 0; g < r->groups; g++)
        memset(k->taken + g * size, !good[g], (size_t)size);
}

static void choose(const mx_route *r, int64_t t, token *k, int32_t *chosen)
{
    for (int64_t e = 0; e < r->experts; e++)
        k->choice[e] = r->score == MX_RANDOM_TOPK
                           ? mx_rng_unit(mx_rng_u32(r->stream.seed, r->stream.offset, (uint64_t)(t * r->experts + e)))
                           : k->scores[e] + (r->bias ? r->bias[e] : 0.0f);
    memset(k->taken, 0, (size_t)r->experts);
    if (r->groups > 1)
        limit_to_groups(r, k);
    for (int j = 0; j < r->top; j++)
        chosen[j] = (int32_t)take_best(k->choice, k->taken, r->experts);
}

static void weigh(const mx_route *r, int64_t t, token *k, const int32_t *chosen, float *weights)
{
    if (r->score == MX_RANDOM_TOPK) {
        for (int j = 0; j < r->top; j++)
            weights[j] = r->scale / (float)r->top;
        return;
    }
    for (int j = 0; j < r->top; j++)
        weights[j] = is_softmax_of_chosen(r) ? mx_get_float(r->logits, t * r->experts + chosen[j], r->dtype)
                                             : k->scores[chosen[j]];
    if (is_softmax_of_chosen(r)) {
        softmax(weights, r->top);
    } else if (r->normalize) {
        float sum = 1e-20f;
        for (int j = 0; j < r->top; j++)
            sum += weights[j];
        for (int j = 0; j < r->top; j++)
            weights[j] /= sum;
    }
    for (int j = 0; j < r->top; j++)
        weights[j] *= r->scale;
}

void mx_route_run(const mx_route *r, float *weights, int32_t *chosen)
{
#pragma omp parallel for schedule(static) if (r->tokens * r->experts > 16384)
    for (int64_t t = 0; t < r->tokens; t++) {
        float scores[MX_MAX_EXPERTS], choice[MX_MAX_EXPERTS];
        unsigned char taken[MX_MAX_EXPERTS];
        token k = {scores, choice, taken};
        load_scores(r, t, scores);
        choose(r, t, &k, chosen + t * r->top);
        weigh(r, t, &k, chosen + t * r->top, weights + t * r->top);
    }
}

/* Of a token: d (experts) becomes the gradient of its logits. */
static void route_grad(const mx_route *r, int64_t t, const float *weights, const int32_t *chosen, const float *dweights,
                       float *d)
{
    float scores[MX_MAX_EXPERTS], mean = 0, sum = 1e-20f;
    memset(d, 0, (size_t)r->experts * sizeof *d);
    if (r->score == MX_RANDOM_TOPK)
        return;
    if (!is_softmax_of_chosen(r))
        load_scores(r, t, scores);
    for (int j = 0; j < r->top; j++) {
        mean += weights[j] * dweights[j]; /* scale times the mean under the weights */
        sum += is_softmax_of_chosen(r) ? 0.0f : scores[chosen[j]];
    }
    for (int j = 0; j < r->top; j++) {
        float dw = r->scale * dweights[j], s = is_softmax_of_chosen(r) ? 0.0f : scores[chosen[j]];
        if (is_softmax_of_chosen(r))
            d[chosen[j]] = weights[j] * (dweights[j] - mean / r->scale);
        else if (r->score == MX_SIGMOID_TOPK)
            d[chosen[j]] = s * (1.0f - s) * (r->normalize ? (dw - mean) / sum : dw);
        else
            d[chosen[j]] = s * dw;
    }
    if (r->score == MX_SOFTMAX_TOPK && !r->normalize)
        for (int64_t e = 0; e < r->experts; e++)
            d[e] -= scores[e] * mean;
}

void mx_route_grad(const mx_route *r, const float *weights, const int32_t *chosen, const float *dweights, void *dlogits,
                   mx_dtype dtype)
{
#pragma omp parallel for schedule(static) if (r->tokens * r->experts > 16384)
    for (int64_t t = 0; t < r->tokens; t++) {
        float d[MX_MAX_EXPERTS];
        route_grad(r, t, weights + t * r->top, chosen + t * r->top, dweights + t * r->top, d);
        for (int64_t e = 0; e < r->experts; e++)
            mx_set_float(dlogits, t * r->experts + e, d[e], dtype);
    }
}

/* ---- slots to rows: a counting sort in two passes over blocks of slots ---- */

enum { BLOCK_SLOTS = 1024, NO_ROW = -1 };

/* The expert of a slot among the counted ones, or -1. */
static int64_t local(const mx_slots *s, int64_t slot)
{
    int64_t e = s->chosen[slot] - s->first;
    return e >= 0 && e < s->count ? e : -1;
}

/* Marks in place[] the slots beyond the capacity of their expert (NO_ROW) and all others (0). */
static void drop_beyond_capacity(const mx_slots *s, int32_t *place)
{
    int64_t n = s->tokens * s->top, run = s->sequence * s->top;
    if (n == 0)
        return; /* OpenMP would divide by `run` */
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t from = 0; from < n; from += run) {
        int32_t used[MX_MAX_EXPERTS] = {0};
        for (int64_t slot = from; slot < from + run && slot < n; slot++)
            place[slot] = used[s->chosen[slot]]++ < s->capacity ? 0 : NO_ROW;
    }
}

/* at (blocks, count): first the slots of each expert in each block, then the row of the first of them. */
static void count_blocks(const mx_slots *s, const int32_t *place, int32_t *at, int64_t blocks)
{
    int64_t n = s->tokens * s->top;
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t b = 0; b < blocks; b++) {
        int32_t *counts = at + b * s->count;
        memset(counts, 0, (size_t)s->count * sizeof *counts);
        for (int64_t slot = b * BLOCK_SLOTS; slot < (b + 1) * BLOCK_SLOTS && slot < n; slot++) {
            int64_t e = local(s, slot);
            if (e >= 0 && (s->capacity == 0 || place[slot] != NO_ROW))
                counts[e]++;
        }
    }
}

static int64_t rows_from_counts(const mx_slots *s, int32_t *at, int64_t blocks, int32_t *counts)
{
    int64_t row = 0;
    for (int64_t e = 0; e < s->count; e++) {
        int64_t begin = row;
        for (int64_t b = 0; b < blocks; b++) {
            int32_t here = at[b * s->count + e];
            at[b * s->count + e] = (int32_t)row;
            row += here;
        }
        counts[e] = (int32_t)(row - begin);
    }
    return row;
}

static void place_blocks(const mx_slots *s, int32_t *at, int64_t blocks, int32_t *order, int32_t *place)
{
    int64_t n = s->tokens * s->top;
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t slot = b * BLOCK_SLOTS; slot < (b + 1) * BLOCK_SLOTS && slot < n; slot++) {
            int64_t e = local(s, slot);
            if (e < 0 || (s->capacity > 0 && place[slot] == NO_ROW)) {
                place[slot] = NO_ROW;
                continue;
            }
            int32_t row = at[b * s->count + e]++;
            place[slot] = row;
            order[row] = (int32_t)slot;
        }
    }
}

mx_status mx_slots_sort(const mx_slots *s, int64_t rows, int32_t *order, int32_t *place, int32_t *counts,
                        int64_t *needed)
{
    int64_t n = s->tokens * s->top, blocks = (n + BLOCK_SLOTS - 1) / BLOCK_SLOTS;
    int64_t bytes = blocks * s->count * (int64_t)sizeof(int32_t);
    int32_t *at;
    MX_TRY(mx_pool_alloc(bytes, (void **)&at));
    if (s->capacity > 0)
        drop_beyond_capacity(s, place);
    count_blocks(s, place, at, blocks);
    *needed = rows_from_counts(s, at, blocks, counts);
    if (*needed <= rows) {
        place_blocks(s, at, blocks, order, place);
        for (int64_t r = *needed; r < rows; r++)
            order[r] = NO_ROW;
    }
    mx_pool_free(at, bytes);
    return MX_OK;
}

void mx_slots_count(const int32_t *chosen, int64_t n, int64_t runs, int64_t experts, float *counts)
{
    int64_t run = runs > 0 ? n / runs : 0;
#pragma omp parallel for schedule(static) if (n > 16384)
    for (int64_t i = 0; i < runs; i++) {
        memset(counts + i * experts, 0, (size_t)experts * sizeof *counts);
        for (int64_t slot = i * run; slot < (i + 1) * run; slot++)
            counts[i * experts + chosen[slot]] += 1.0f;
    }
}

/* ---- rows of tokens and of experts ---- */

void mx_rows_spread(const int32_t *order, int64_t rows, int top, int64_t bytes, const void *from, void *to)
{
#pragma omp parallel for schedule(static) if (rows * bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        char *row = (char *)to + r * bytes;
        if (order[r] == NO_ROW)
            memset(row, 0, (size_t)bytes);
        else
            memcpy(row, (const char *)from + order[r] / top * bytes, (size_t)bytes);
    }
}

/* Columns summed at a time: in the first-level cache. */
enum { STRIP = 1024 };

static void combine_token(const mx_expert_rows *e, int64_t t, const char *y, char *out)
{
    const mx_row_paths *path = mx_kernels_current()->rows;
    int64_t size = (int64_t)mx_dtype_bytes(e->dtype);
    _Alignas(64) float sums[STRIP];
    for (int64_t column = 0; column < e->width; column += STRIP) {
        int64_t n = e->width - column < STRIP ? e->width - column : STRIP;
        memset(sums, 0, (size_t)n * sizeof *sums);
        for (int j = 0; j < e->top; j++) {
            int64_t slot = t * e->top + j, row = e->place[slot];
            if (row != NO_ROW)
                path->add(sums, MX_F32, y + (row * e->width + column) * size, e->dtype,
                          e->weights ? e->weights[slot] : 1.0f, n);
        }
        path->convert(out + (t * e->width + column) * size, e->dtype, sums, MX_F32, 1.0f, n);
    }
}

void mx_rows_combine(const mx_expert_rows *e, const void *y, void *out)
{
#pragma omp parallel for schedule(static) if (e->rows * e->width > 16384)
    for (int64_t t = 0; t < e->tokens; t++)
        combine_token(e, t, y, out);
}

static void spread_gradient(const mx_expert_rows *e, const char *dout, char *dy)
{
    const mx_row_paths *path = mx_kernels_current()->rows;
    int64_t bytes = e->width * (int64_t)mx_dtype_bytes(e->dtype);
#pragma omp parallel for schedule(static) if (e->rows * e->width > 16384)
    for (int64_t r = 0; r < e->rows; r++) {
        int64_t slot = e->order[r];
        if (slot == NO_ROW)
            memset(dy + r * bytes, 0, (size_t)bytes);
        else
            path->convert(dy + r * bytes, e->dtype, dout + slot / e->top * bytes, e->dtype,
                          e->weights ? e->weights[slot] : 1.0f, e->width);
    }
}

void mx_rows_combine_grad(const mx_expert_rows *e, const void *y, const void *dout, void *dy, float *dweights)
{
    if (dy)
        spread_gradient(e, dout, dy);
    if (!dweights)
        return;
    const mx_row_paths *path = mx_kernels_current()->rows;
    int64_t bytes = e->width * (int64_t)mx_dtype_bytes(e->dtype), slots = e->tokens * e->top;
#pragma omp parallel for schedule(static) if (e->rows * e->width > 16384)
    for (int64_t slot = 0; slot < slots; slot++) {
        int64_t row = e->place[slot];
        dweights[slot] = row == NO_ROW ? 0.0f
                                       : path->dot((const char *)y + row * bytes,
                                                   (const char *)dout + slot / e->top * bytes, e->dtype, e->width);
    }
}
