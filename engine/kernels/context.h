/* The kernels of every instruction set, and the one place that chooses among them.
 *
 * Each path (core/cpu.h) lists its kernels in one file: portable/context.c; simd/context.c, which is compiled once for
 * each vector instruction set; amx/context.c. What a path does not list it has from the path below it. A driver takes
 * what it calls from mx_kernels_current(). */
#ifndef MX_KERNELS_CONTEXT_H
#define MX_KERNELS_CONTEXT_H

#include "core/cpu.h"

/* All kernels as X(type, name): sets of functions that belong together, each taken from the path below as a whole. Each
 * path calls its own mx_NAME_PATH: mx_softmax_avx2. The types are those of the families' headers (kernels/softmax.h),
 * which a file that calls a set includes: so a change of one header compiles only its family again. */
/* clang-format off */
#define MX_KERNELS(X) \
    X(mx_elementwise_paths, elementwise) \
    X(mx_pair_paths, pairs) \
    X(mx_loop_paths, loops) \
    X(mx_class_paths, classes) \
    X(mx_random_paths, random) \
    X(mx_reduce_paths, reduce) \
    X(mx_scan_paths, scan) \
    X(mx_sort_paths, sort) \
    X(mx_norm_paths, norm) \
    X(mx_channel_paths, channels) \
    X(mx_softmax_paths, softmax) \
    X(mx_conv_paths, conv) \
    X(mx_window_paths, windows) \
    X(mx_rope_paths, rope) \
    X(mx_row_paths, rows) \
    X(mx_move_paths, moves) \
    X(mx_loss_paths, loss) \
    X(mx_optimizer_paths, optimizer) \
    X(mx_micro, micro) \
    X(mx_micro, micro_f32) \
    X(mx_micro, micro_i8) \
    X(mx_micro, micro_vnni) \
    X(mx_micro, micro_i8_tiles) \
    X(mx_quantize_paths, quantize) \
    X(mx_fp4_paths, fp4) \
    X(mx_thin_paths, thin) \
    X(mx_thin_i8_paths, thin_i8) \
    X(mx_column_paths, columns) \
    X(mx_attention_path, attention_f32) \
    X(mx_attention_path, attention_bf16) \
    X(mx_peak_path, peak_f32) \
    X(mx_peak_path, peak_bf16) \
    X(mx_peak_copy_paths, peak_copy) \
    X(mx_slope_paths, slopes) \
    X(mx_mark_paths, marks) \
    X(mx_draw_paths, draws) \
    X(mx_fft_paths, fft)
/* clang-format on */

#define MX_KERNEL_TYPE(type, name) typedef struct type type;
MX_KERNELS(MX_KERNEL_TYPE)
#undef MX_KERNEL_TYPE

typedef struct mx_kernels {
#define MX_KERNEL_MEMBER(type, name) const type *name;
    MX_KERNELS(MX_KERNEL_MEMBER)
#undef MX_KERNEL_MEMBER
} mx_kernels;

/* Those of the path in use, and of any path. Three may be NULL: `thin` on the portable path, `micro_vnni` on those
 * without vectors of 512 bits, `micro_i8_tiles` on those without tiles. */
const mx_kernels *mx_kernels_current(void);
const mx_kernels *mx_kernels_of(mx_isa isa);

/* What each path defines; not every path has every kernel. */
#define MX_DECLARE_PORTABLE(type, name) extern const type mx_##name##_portable;
#define MX_DECLARE_AVX2(type, name) extern const type mx_##name##_avx2;
#define MX_DECLARE_AVX512(type, name) extern const type mx_##name##_avx512;
#define MX_DECLARE_AVX512_BF16(type, name) extern const type mx_##name##_avx512_bf16;
#define MX_DECLARE_AMX(type, name) extern const type mx_##name##_amx;
MX_KERNELS(MX_DECLARE_PORTABLE)
MX_KERNELS(MX_DECLARE_AVX2)
MX_KERNELS(MX_DECLARE_AVX512)
MX_KERNELS(MX_DECLARE_AVX512_BF16)
MX_KERNELS(MX_DECLARE_AMX)

extern const mx_kernels mx_kernels_portable, mx_kernels_avx2, mx_kernels_avx512, mx_kernels_avx512_bf16, mx_kernels_amx;

#endif
