/* Mixture of experts: which experts a token goes to, and the order in which experts receive rows.
 *
 * A slot is one choice of one token, number t * top + j. All ids count from 0. Everything here is plain C and the same
 * on every path, so every path routes alike. */
#ifndef MX_KERNELS_MOE_H
#define MX_KERNELS_MOE_H

#include "core/dtype.h"
#include "core/status.h"
#include "kernels/random.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mx_score {
    MX_TOPK_SOFTMAX, /* softmax over the chosen logits */
    MX_SOFTMAX_TOPK, /* softmax over all logits */
    MX_SIGMOID_TOPK, /* sigmoid of each logit */
    MX_RANDOM_TOPK,  /* experts without regard to the logits, each with weight 1 / top */
} mx_score;

/* Most experts of a layer, and most choices of a token and most groups. */
enum { MX_MAX_EXPERTS = 1024, MX_MAX_TOP = 64 };

typedef struct mx_route {
    int64_t tokens, experts;
    int top; /* choices of a token, at most min(experts, MX_MAX_TOP) */
    mx_score score;
    bool normalize; /* divide the weights of a token by their sum (+ 1e-20 for sigmoid: DeepSeek-V3) */
    float scale;    /* multiplies the weights at the end */
    int groups; /* at most MX_MAX_TOP equal runs of experts; 1: no groups. Only experts of the best `top_groups` can be
                   chosen */
    int top_groups;
    bool sum_of_two;    /* the score of a group is the sum of its two largest scores; else its largest */
    mx_stream stream;   /* MX_RANDOM_TOPK */
    const void *logits; /* (tokens, experts) */
    mx_dtype dtype;     /* f32 or bf16 */
    const float *bias;  /* (experts), added to scores for the choice alone; NULL: none */
} mx_route;

/* weights, chosen (tokens, top): the chosen experts in order of their scores, the lower id first among equals. A NaN
 * logit is chosen before all others, so that the weights show it. Arithmetic in f32. */
void mx_route_run(const mx_route *r, float *weights, int32_t *chosen);

/* dlogits (tokens, experts) f32 or bf16: the gradient of sum(weights * dweights). The choice has none. */
void mx_route_grad(const mx_route *r, const float *weights, const int32_t *chosen, const float *dweights, void *dlogits,
                   mx_dtype dtype);

/* How the slots of `tokens` tokens are laid out in rows. */
typedef struct mx_slots {
    int64_t tokens, experts;
    int top;
    const int32_t *chosen; /* (tokens, top), checked: ids below `experts` */
    int64_t first, count;  /* only slots of experts first .. first + count - 1 get a row */
    int64_t capacity;      /* most slots of an expert in each run of `sequence` tokens, in the order of slots; 0: all */
    int64_t sequence;
} mx_slots;

/* Sorts by expert, stable. counts (count): the rows of each expert. order (rows): the slot of each row, -1 where it is
 * unused (all after the sum of counts). place (tokens, top): the row of each slot, -1 for one that has none. *needed:
 * the sum of counts; if it exceeds `rows`, order and place are not written. MX_ERR_MEMORY without room for the counts
 * of blocks of slots. */
mx_status mx_slots_sort(const mx_slots *s, int64_t rows, int32_t *order, int32_t *place, int32_t *counts,
                        int64_t *needed);

/* counts (runs, experts): how many slots of each of `runs` equal runs of the n slots chose each expert. */
void mx_slots_count(const int32_t *chosen, int64_t n, int64_t runs, int64_t experts, float *counts);

/* to[r] = from[order[r] / top], or 0 where order[r] is -1; rows of `bytes`. */
void mx_rows_spread(const int32_t *order, int64_t rows, int top, int64_t bytes, const void *from, void *to);

/* Rows of width `width` that tokens exchange with experts. */
typedef struct mx_expert_rows {
    int64_t tokens, rows, width;
    int top;
    const int32_t *order, *place; /* as of mx_slots_sort */
    const float *weights;         /* (tokens, top); NULL: all are 1 */
    mx_dtype dtype;               /* of all rows: f32 or bf16 */
} mx_expert_rows;

/* out[t] = the sum over j of weights[t][j] y[place[t][j]], added in f32 in the order of j and rounded once. */
void mx_rows_combine(const mx_expert_rows *e, const void *y, void *out);

/* The gradients of the same: dy[r] = weights[order[r]] dout[token of r], or 0; dweights[t][j] = <dout[t], y[place]>, or
 * 0. Either may be NULL. */
void mx_rows_combine_grad(const mx_expert_rows *e, const void *y, const void *dout, void *dy, float *dweights);

#endif
