/* Unembedding and cross-entropy in one: the logits of a few hundred tokens at a time, never tokens x vocabulary.
 *
 *   z = cap(logit_scale h W^T)      cap(z) = softcap tanh(z / softcap), or z where softcap is 0
 *   lse = log sum_v e^z_v           loss of a token = lse - z_target + z_loss lse^2
 *   loss = sum over the tokens that count / normalizer
 *
 * Logits are f32. Their gradient is f32 too, or bf16 where h is bf16, so that the products with it are bf16 products.
 *
 * The weight may be a part of the vocabulary. Then the sums of all parts are needed between the two halves of a chunk:
 * mx_cross_entropy_logits and mx_cross_entropy_gradients. */
#ifndef MX_KERNELS_LOSS_H
#define MX_KERNELS_LOSS_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>

typedef struct mx_cross_entropy {
    int64_t tokens, width;
    int64_t vocab;    /* rows of the weight */
    int64_t first_id; /* the id of its first row: 0, unless it is a part of the vocabulary */
    const void *h;    /* (tokens, width) */
    mx_dtype h_dtype;
    const void *weight; /* (vocab, width) with `trans`, else (width, vocab) */
    mx_dtype weight_dtype;
    bool trans;
    const int32_t *targets; /* (tokens), in the whole vocabulary wherever the token counts */
    const uint8_t *mask;    /* (tokens): 0 where the token does not count; NULL: all count */
    float z_loss, softcap, logit_scale;
    double normalizer; /* 0: the number of tokens that count */
    float *loss;       /* one value; 0 when no token counts */
    void *dh;          /* as h, the gradient of the loss; NULL: not wanted */
    float *dweight;    /* as weight, overwritten; NULL: not wanted */
    int64_t chunk;     /* tokens at a time; 0: chosen from the sizes */
} mx_cross_entropy;

/* The first token that counts and whose target is outside a vocabulary of `vocab` ids; -1 when there is none. */
int64_t mx_cross_entropy_find_bad(const mx_cross_entropy *c, int64_t vocab);

/* For the whole vocabulary. MX_ERR_MEMORY when the logits of one chunk cannot be had. */
mx_status mx_cross_entropy_run(const mx_cross_entropy *c);

/* Tokens at a time that run takes where c->chunk is 0. */
int64_t mx_cross_entropy_chunk(const mx_cross_entropy *c);

/* The sums of a token's logits z over a part of the vocabulary. All 0 for a token that does not count. */
typedef struct mx_loss_sums {
    float largest; /* z */
    float sum;     /* of e^(z - largest) */
    float target;  /* z of the target; 0 if another part has it */
} mx_loss_sums;

typedef struct mx_loss_chunk {
    int64_t first, rows; /* its tokens */
    float *logits;       /* (rows, stride) */
    int64_t stride;      /* mx_cross_entropy_stride */
    mx_loss_sums *sums;  /* (parts, rows) */
    int64_t parts;       /* of the vocabulary */
    float *losses;       /* (tokens) */
} mx_loss_chunk;

/* Floats from one row of logits to the next. */
int64_t mx_cross_entropy_stride(int64_t vocab);

/* The logits of a chunk, and their sums in this part of the vocabulary: k->sums gets one part. */
mx_status mx_cross_entropy_logits(const mx_cross_entropy *c, const mx_loss_chunk *k);

/* From these and the sums of all parts: the losses of the chunk's tokens, their rows of dh for this part of the
 * vocabulary, and their share of dweight, which the first chunk overwrites. The logits are overwritten. After the last
 * chunk, sets *c->loss. */
mx_status mx_cross_entropy_gradients(const mx_cross_entropy *c, const mx_loss_chunk *k);

/* One row of products h W^T, for one instruction set. */
typedef struct mx_loss_row {
    float *logits; /* (vocab) */
    int64_t vocab;
    int64_t target; /* -1: another part of the vocabulary has it */
    float z_loss, softcap, logit_scale;
    void *dlogits; /* may be where the logits are, whatever its dtype */
    mx_dtype dtype;
    float factor;
} mx_loss_row;

typedef struct mx_loss_paths {
    /* With a soft cap, the products become capped logits. */
    mx_loss_sums (*sums)(const mx_loss_row *row);
    /* The gradient by h W^T, times `factor`, from what `sums` left; `all`: the sums over the whole vocabulary. */
    void (*gradient)(const mx_loss_row *row, const mx_loss_sums *all);
} mx_loss_paths;

#endif
