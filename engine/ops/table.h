/* The list of all operations. Each is defined in the file of its family. An operation that is not listed here cannot be
 * used.
 */
#ifndef MX_OPS_TABLE_H
#define MX_OPS_TABLE_H

#include "ops/op.h"

/* clang-format off */
#define MX_OPS(X) \
    /* linalg.c */ \
    X(linalg_solve) X(linalg_cholesky) X(linalg_eigh) X(linalg_qr) X(linalg_svd) X(linalg_slogdet) \
    /* matmul.c */ \
    X(matmul) X(matmul_acc) X(column_sum) \
    /* grouped.c */ \
    X(grouped_matmul) X(grouped_matmul_grad) X(grouped_matmul_acc) X(grouped_column_sum) \
    /* moe.c */ \
    X(moe_route) X(moe_route_grad) X(moe_sort) X(moe_count) X(moe_gather) X(moe_combine) X(moe_combine_grad) \
    /* elementwise.c */ \
    X(add) X(sub) X(mul) X(div) X(idiv) X(remainder) X(fmod) X(atan2) X(maximum) X(minimum) \
    X(binary_grad) X(power) X(lerp) X(add_) X(sub_) X(mul_) X(div_) \
    /* choose.c */ \
    X(eq) X(ne) X(lt) X(le) X(gt) X(ge) X(isnan) X(isfinite) X(where) X(masked_fill) \
    /* bits.c */ \
    X(bitwise_and) X(bitwise_or) X(bitwise_xor) X(bitwise_not) X(shift_left) X(shift_right) \
    /* unary.c */ \
    X(affine) X(pow) X(exp) X(log) X(sqrt) X(rsqrt) X(abs) X(tanh) X(sigmoid) X(square) X(sin) X(cos) \
    X(erf) X(log1p) X(expm1) X(floor) X(ceil) X(round) X(sign) X(softplus) X(leaky_relu) X(elu) X(clamp) \
    X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(asinh) X(acosh) X(atanh) X(unary_grad) \
    /* special.c */ \
    X(erfinv) X(lgamma) X(digamma) X(polygamma) \
    /* activation.c */ \
    X(relu) X(gelu) X(silu) X(gated) X(gated_grad) X(gated_grad_) \
    /* conv.c */ \
    X(conv1d) X(conv1d_grad) X(conv1d_grad_w) X(conv2d) X(conv2d_grad) X(conv2d_grad_w) X(channel_sum) \
    /* pool2d.c */ \
    X(max_pool1d) X(max_pool1d_grad) X(max_pool2d) X(max_pool2d_grad) X(avg_pool1d) X(avg_pool1d_grad) X(avg_pool2d) \
    X(avg_pool2d_grad) \
    /* straight_through.c */ \
    X(straight_through) \
    /* cast.c */ \
    X(cast) \
    /* quantize.c, scaled_matmul.c, scaled_grouped.c, mxfp8.c, nvfp4.c */ \
    X(quantize) X(scaled_matmul) X(scaled_grouped_matmul) X(mxfp8_matmul) X(nvfp4_quantize) X(nvfp4_product) \
    X(nvfp4_matmul) \
    /* reduce.c */ \
    X(sum) X(mean) X(max) X(min) X(argmax) X(argmin) X(any) X(all) X(reduce_to) X(sum_grad) X(max_grad) \
    /* spread.c */ \
    X(var) X(std) X(var_grad) X(norm) X(norm_grad) X(sum_squares) X(logsumexp) X(logsumexp_grad) \
    /* random.c */ \
    X(randn) X(rand) X(full) X(arange) X(dropout) \
    /* draw.c */ \
    X(randint) X(bernoulli) X(truncated_normal) X(permutation) X(multinomial) \
    /* optimizer.c */ \
    X(adamw) X(sgd) X(lion) X(fill) X(copy) \
    /* norm.c */ \
    X(rmsnorm) X(rmsnorm_grad) X(layernorm) X(layernorm_grad) X(softmax) X(softmax_grad) X(log_softmax) \
    X(log_softmax_grad) \
    /* channel_norm.c */ \
    X(batch_norm) X(batch_norm_grad) X(group_norm) X(group_norm_grad) \
    /* split_norm.c */ \
    X(norm_sums) X(norm_part) X(norm_grad_sums) X(norm_grad_part) \
    /* rope.c */ \
    X(rope) \
    /* attention.c, attention_dropout.c, attention_intervals.c */ \
    X(attention) X(attention_grad) X(attention_sinks_grad) X(attention_merge_) X(attention_dropout) \
    X(attention_intervals) \
    /* embedding.c */ \
    X(embedding) X(embedding_grad) X(embedding_acc) \
    /* embedding_bag.c */ \
    X(embedding_bag) \
    /* loss.c */ \
    X(cross_entropy) X(cross_entropy_grad) \
    /* split_loss.c */ \
    X(cross_entropy_logits) X(cross_entropy_part_) \
    /* class_loss.c, pair_loss.c */ \
    X(softmax_cross_entropy) X(softmax_cross_entropy_grad) X(mse_loss) X(l1_loss) X(huber_loss) X(bce_with_logits) \
    X(kl_div) \
    /* shape.c */ \
    X(reshape) X(narrow) X(narrow_grad) X(narrow_grad_acc) X(write_slice) X(concat) \
    /* permute.c */ \
    X(permute) X(transpose) \
    /* index.c */ \
    X(gather) X(gather_grad) X(scatter) X(scatter_grad) X(scatter_add) X(scatter_reduce) \
    /* select.c */ \
    X(index_select) X(one_hot) X(nonzero) \
    /* arrange.c, pad.c */ \
    X(flip) X(roll) X(tile) X(expand) X(stack) X(pad) X(tril) X(triu) \
    /* order.c */ \
    X(sort) X(argsort) X(topk) X(cumsum) X(linear_scan) X(linear_scan_grad) \
    /* fft.c */ \
    X(fft) X(rfft) X(irfft) \
    /* mesh/collective.c, mesh/gather.c */ \
    X(all_reduce) X(all_reduce_) X(fan_out) X(shard) X(all_gather) X(all_gather_) X(reduce_scatter) X(reduce_scatter_) \
    X(all_to_all) X(all_to_all_) X(collective_permute) X(collective_permute_) X(broadcast) X(broadcast_) \
    /* mesh/rows.c */ \
    X(all_to_all_rows) \
    /* mesh/point.c */ \
    X(send) X(recv) \
    /* mesh/ring.c, mesh/norm.c, mesh/loss.c */ \
    X(ring_attention) X(split_norm) X(split_cross_entropy)
/* clang-format on */

#define MX_DECLARE_OP(name) extern const mx_op mx_op_##name;
MX_OPS(MX_DECLARE_OP)
#undef MX_DECLARE_OP

#endif
