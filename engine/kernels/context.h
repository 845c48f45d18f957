/* The kernels of every instruction set, and the one place that chooses among them.
 *
 * Each path (core/cpu.h) lists its kernels in one file: portable/context.c; simd/context.c, which is compiled once for
 * each vector instruction set; amx/context.c. What a path does not list it has from the path below it. A driver takes
 * what it calls from mx_kernels_current(). */
#ifndef MX_KERNELS_CONTEXT_H
#define MX_KERNELS_CONTEXT_H

#include "core/cpu.h"
#include "kernels/attention_paths.h"
#include "kernels/channel_norm.h"
#include "kernels/class_loss.h"
#include "kernels/conv.h"
#include "kernels/draw.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gemm_internal.h"
#include "kernels/index.h"
#include "kernels/loss.h"
#include "kernels/move.h"
#include "kernels/norm.h"
#include "kernels/optimizer.h"
#include "kernels/peak_paths.h"
#include "kernels/quantize.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rope.h"
#include "kernels/scan.h"
#include "kernels/shape.h"
#include "kernels/slopes.h"
#include "kernels/softmax.h"
#include "kernels/sort.h"
#include "kernels/windows.h"

/* All kernels as X(type, name), where the type is that of a function or of a set of functions that belong together: a
 * set is taken from the path below as a whole. Each path calls its own mx_NAME_PATH: mx_softmax_avx2. */
/* clang-format off */
#define MX_KERNELS(X) \
    X(const mx_elementwise_paths, elementwise) \
    X(const mx_pair_paths, pairs) \
    X(const mx_loop_paths, loops) \
    X(const mx_class_paths, classes) \
    X(const mx_random_paths, random) \
    X(const mx_reduce_paths, reduce) \
    X(const mx_scan_paths, scan) \
    X(mx_beyond_path, beyond) \
    X(const mx_norm_paths, norm) \
    X(const mx_channel_paths, channels) \
    X(const mx_softmax_paths, softmax) \
    X(const mx_conv_paths, conv) \
    X(const mx_window_paths, windows) \
    X(mx_rope_path, rope) \
    X(const mx_row_paths, rows) \
    X(const mx_move_paths, moves) \
    X(const mx_loss_paths, loss) \
    X(const mx_optimizer_paths, optimizer) \
    X(const mx_micro, micro) \
    X(const mx_micro, micro_f32) \
    X(const mx_micro, micro_i8) \
    X(const mx_micro, micro_vnni) \
    X(const mx_micro, micro_i8_tiles) \
    X(const mx_quantize_paths, quantize) \
    X(const mx_thin_paths, thin) \
    X(const mx_thin_i8_paths, thin_i8) \
    X(mx_column_sums_path, column_sums) \
    X(const mx_attention_path, attention_f32) \
    X(const mx_attention_path, attention_bf16) \
    X(const mx_peak_path, peak_f32) \
    X(const mx_peak_path, peak_bf16) \
    X(mx_peak_copy_path, peak_copy) \
    X(const mx_slope_paths, slopes) \
    X(mx_best_path, best) \
    X(const mx_mark_paths, marks) \
    X(const mx_draw_paths, draws)
/* clang-format on */

typedef struct mx_kernels {
#define MX_KERNEL_MEMBER(type, name) type *name;
    MX_KERNELS(MX_KERNEL_MEMBER)
#undef MX_KERNEL_MEMBER
} mx_kernels;

/* Those of the path in use, and of any path. Three may be NULL: `thin` on the portable path, `micro_vnni` on those
 * without vectors of 512 bits, `micro_i8_tiles` on those without tiles. */
const mx_kernels *mx_kernels_current(void);
const mx_kernels *mx_kernels_of(mx_isa isa);

/* What each path defines; not every path has every kernel. */
#define MX_DECLARE_PORTABLE(type, name) extern type mx_##name##_portable;
#define MX_DECLARE_AVX2(type, name) extern type mx_##name##_avx2;
#define MX_DECLARE_AVX512(type, name) extern type mx_##name##_avx512;
#define MX_DECLARE_AVX512_BF16(type, name) extern type mx_##name##_avx512_bf16;
#define MX_DECLARE_AMX(type, name) extern type mx_##name##_amx;
MX_KERNELS(MX_DECLARE_PORTABLE)
MX_KERNELS(MX_DECLARE_AVX2)
MX_KERNELS(MX_DECLARE_AVX512)
MX_KERNELS(MX_DECLARE_AVX512_BF16)
MX_KERNELS(MX_DECLARE_AMX)

extern const mx_kernels mx_kernels_portable, mx_kernels_avx2, mx_kernels_avx512, mx_kernels_avx512_bf16, mx_kernels_amx;

#endif
