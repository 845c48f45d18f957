/* The paths of vector code: avx2, avx512 and avx512_bf16. */
#include "kernels/context.h"

#include "kernels/simd/simd.h"

const mx_kernels MX_SIMD_NAME(mx_kernels) = {
    .elementwise = &MX_SIMD_NAME(mx_elementwise),
    .pairs = &MX_SIMD_NAME(mx_pairs),
    .loops = &MX_SIMD_NAME(mx_loops),
    .classes = &MX_SIMD_NAME(mx_classes),
    .random = &MX_SIMD_NAME(mx_random),
    .draws = &MX_SIMD_NAME(mx_draws),
    .fft = &MX_SIMD_NAME(mx_fft),
    .marks = &MX_SIMD_NAME(mx_marks),
    .reduce = &MX_SIMD_NAME(mx_reduce),
    .slopes = &MX_SIMD_NAME(mx_slopes),
    .scan = &MX_SIMD_NAME(mx_scan),
    .sort = &MX_SIMD_NAME(mx_sort),
    .norm = &MX_SIMD_NAME(mx_norm),
    .channels = &MX_SIMD_NAME(mx_channels),
    .softmax = &MX_SIMD_NAME(mx_softmax),
    .conv = &MX_SIMD_NAME(mx_conv),
    .windows = &MX_SIMD_NAME(mx_windows),
    .rope = &MX_SIMD_NAME(mx_rope),
    .rows = &MX_SIMD_NAME(mx_rows),
    .moves = &MX_SIMD_NAME(mx_moves),
    .loss = &MX_SIMD_NAME(mx_loss),
    .optimizer = &MX_SIMD_NAME(mx_optimizer),
    .micro = &MX_SIMD_NAME(mx_micro),
#if !defined(MX_SIMD_AVX512_BF16)
    .micro_f32 = &MX_SIMD_NAME(mx_micro_f32),
#endif
    .micro_i8 = &MX_SIMD_NAME(mx_micro_i8),
#if MX_SIMD_512
    .micro_vnni = &MX_SIMD_NAME(mx_micro_vnni),
#endif
    .quantize = &MX_SIMD_NAME(mx_quantize),
    .fp4 = &MX_SIMD_NAME(mx_fp4),
    .thin = &MX_SIMD_NAME(mx_thin),
    .thin_i8 = &MX_SIMD_NAME(mx_thin_i8),
    .columns = &MX_SIMD_NAME(mx_columns),
    .attention_f32 = &MX_SIMD_NAME(mx_attention_f32),
    .attention_bf16 = &MX_SIMD_NAME(mx_attention_bf16),
    .peak_f32 = &MX_SIMD_NAME(mx_peak_f32),
#if defined(MX_SIMD_AVX512_BF16)
    .peak_bf16 = &MX_SIMD_NAME(mx_peak_bf16),
#else
    .peak_bf16 = &MX_SIMD_NAME(mx_peak_f32), /* bf16 is multiplied as f32 */
#endif
    .peak_copy = &MX_SIMD_NAME(mx_peak_copy),
};
