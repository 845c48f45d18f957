/* The checks that all operations of attention share. Their first inputs are q (B, S, H, D), k and v (B, T, K, D); those
 * of gradients go on with out, lse and dout. */
#ifndef MX_OPS_ATTENTION_H
#define MX_OPS_ATTENTION_H

#include "ops/op.h"

/* MX_ERR_SHAPE, MX_ERR_DTYPE: q, k and v do not go together. */
mx_status mx_attention_check_tensors(const mx_call *call);

/* MX_ERR_VALUE: an option is out of range; MX_ERR_SHAPE: there are more keys than the kernel counts. */
mx_status mx_attention_check_scores(const mx_call *call, int64_t window, double softcap, double scale);

/* For infer of a gradient: checks out, lse and dout and makes dq, dk and dv, of these dtypes (-1: that of q). */
mx_status mx_attention_grad_outputs(mx_call *call, const int dtypes[3]);

#endif
