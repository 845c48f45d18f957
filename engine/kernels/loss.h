/* Unembedding and cross-entropy in one: the logits of a few hundred tokens at a time, never tokens x vocabulary.
 *
 *   z = cap(logit_scale h W^T)      cap(z) = softcap tanh(z / softcap), or z where softcap is 0
 *   lse = log sum_v e^z_v           loss of a token = lse - z_target + z_loss lse^2
 *   loss = sum over the tokens that count / normalizer
 *
 * Logits are f32. Their gradient is f32 too, or bf16 where h is bf16, so that the products with it are bf16 products.
 */
#ifndef MX_KERNELS_LOSS_H
#define MX_KERNELS_LOSS_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>

typedef struct mx_cross_entropy {
    int64_t tokens, width, vocab;
    const void *h; /* (tokens, width) */
    mx_dtype h_dtype;
    const void *weight; /* (vocab, width) with `trans`, else (width, vocab) */
    mx_dtype weight_dtype;
    bool trans;
    const int32_t *targets; /* (tokens), in [0, vocab) wherever the token counts */
    const uint8_t *mask;    /* (tokens): 0 where the token does not count; NULL: all count */
    float z_loss, softcap, logit_scale;
    double normalizer; /* 0: the number of tokens that count */
    float *loss;       /* one value; 0 when no token counts */
    void *dh;          /* as h, the gradient of the loss; NULL: not wanted */
    float *dweight;    /* as weight, overwritten; NULL: not wanted */
    int64_t chunk;     /* tokens at a time; 0: chosen from the sizes */
} mx_cross_entropy;

/* The first token that counts and whose target is outside the vocabulary; -1 when there is none. */
int64_t mx_cross_entropy_find_bad(const mx_cross_entropy *c);

/* MX_ERR_MEMORY when the logits of one chunk cannot be had. */
mx_status mx_cross_entropy_run(const mx_cross_entropy *c);

/* Tokens at a time that run takes where c->chunk is 0. */
int64_t mx_cross_entropy_chunk(const mx_cross_entropy *c);

/* One row of products h W^T, for one instruction set. Returns the token's loss. With `dlogits` != NULL writes the
 * gradient by h W^T, times `factor`, there: dlogits may be where the products are, whatever its dtype. */
typedef struct mx_loss_row {
    float *logits; /* (vocab); with a soft cap they are overwritten */
    int64_t vocab;
    int32_t target;
    float z_loss, softcap, logit_scale;
    void *dlogits;
    mx_dtype dtype; /* of dlogits */
    float factor;
} mx_loss_row;
typedef float mx_loss_row_path(const mx_loss_row *row);

#endif
