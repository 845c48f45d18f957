/* The options of attention, and the checks that all its operations share. Their first inputs are q (B, S, H, D), k
 * (B, T, K, D) and v (B, T, K, V); out is (B, S, H, V). */
#ifndef MX_OPS_ATTENTION_H
#define MX_OPS_ATTENTION_H

#include "kernels/attention.h"
#include "ops/op.h"
#include "ops/terms.h"

/* The dropout of attention's probabilities. */
typedef struct mx_attention_drop {
    double rate;
    mx_seed seed;
    int64_t first_sequence, first_head;
} mx_attention_drop;

/* MX_ERR_VALUE; and for the kernel, which rounds the rate to a multiple of 2^-16. */
mx_status mx_attention_check_drop(const mx_call *call, const mx_attention_drop *drop);
mx_attention_dropout mx_attention_dropout_of(const mx_attention_drop *drop);

/* For mx_op_attention and mx_op_attention_grad; kernels/attention.h explains the fields. */
typedef struct mx_attention_attr {
    bool causal;
    int64_t window, chunk, prefix, offset, first_query, kv_length;
    double softcap, scale;
    mx_attention_drop drop;
} mx_attention_attr;

/* For mx_op_attention_dropout. */
typedef struct mx_attention_mask_attr {
    mx_shape shape;
    mx_attention_drop drop;
    int64_t offset;
} mx_attention_mask_attr;

typedef struct mx_attention_grad_attr {
    mx_attention_attr attention; /* first: both operations read it */
    int dq_dtype, dk_dtype, dv_dtype;
    bool want_bias;
} mx_attention_grad_attr;

/* MX_ERR_SHAPE, MX_ERR_DTYPE: q, k and v do not match. */
mx_status mx_attention_check_tensors(const mx_call *call);

/* The shape of out, (B, S, H, V). */
mx_shape mx_attention_out_shape(const mx_call *call);

/* MX_ERR_VALUE: window, softcap or scale is out of range. MX_ERR_SHAPE: there are more keys than attention supports. */
mx_status mx_attention_check_scores(const mx_call *call, const mx_attention_attr *attr);

/* For input i, the sinks, f32 (or f64 as q): MX_ERR_DTYPE, MX_ERR_SHAPE. */
mx_status mx_attention_check_sinks(const mx_call *call, int i);

/* Gives input i, the sinks, its gradient, if wanted. The call's outputs are out and lse; dout is the gradient of out.
 */
mx_status mx_attention_give_sinks(mx_vjp *v, int i, mx_tensor *dout);

/* For a call of attention or its gradient: the pairs of query and key in the blocks that a kernel computes, of all
 * heads and sequences. A block is skipped if none of its pairs may attend by position; intervals are ignored. 0, 0: all
 * pairs. document above 0: sequences consist of documents of so many tokens, which attend only to themselves.
 */
double mx_attention_block_pairs(const mx_call *call, int64_t block_q, int64_t block_kv, int64_t document);

/* mx_op.plain of attention. */
mx_tensor *mx_attention_plain(mx_terms *s, const mx_call *call);

#endif
