/* The portable path: plain C for any processor, every kernel that there must be. */
#include "kernels/context.h"
#include "kernels/attention_paths.h"

const mx_kernels mx_kernels_portable = {
    .elementwise = &mx_elementwise_portable,
    .pairs = &mx_pairs_portable,
    .loops = &mx_loops_portable,
    .classes = &mx_classes_portable,
    .random = &mx_random_portable,
    .draws = &mx_draws_portable,
    .marks = &mx_marks_portable,
    .reduce = &mx_reduce_portable,
    .slopes = &mx_slopes_portable,
    .scan = &mx_scan_portable,
    .sort = &mx_sort_portable,
    .norm = &mx_norm_portable,
    .channels = &mx_channels_portable,
    .softmax = &mx_softmax_portable,
    .conv = &mx_conv_portable,
    .windows = &mx_windows_portable,
    .rope = &mx_rope_portable,
    .rows = &mx_rows_portable,
    .moves = &mx_moves_portable,
    .loss = &mx_loss_portable,
    .optimizer = &mx_optimizer_portable,
    .micro = &mx_micro_portable,
    .micro_f32 = &mx_micro_f32_portable,
    .micro_i8 = &mx_micro_i8_portable,
    .quantize = &mx_quantize_portable,
    .fp4 = &mx_fp4_portable,
    .thin_i8 = &mx_thin_i8_portable,
    .columns = &mx_columns_portable,
    .attention_f32 = &mx_attention_portable, /* takes either dtype */
    .attention_bf16 = &mx_attention_portable,
    .peak_f32 = &mx_peak_f32_portable,
    .peak_bf16 = &mx_peak_f32_portable,
    .peak_copy = &mx_peak_copy_portable,
};
