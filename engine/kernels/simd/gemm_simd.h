/* Matrix products of one instruction set: declarations shared by its files. */
#ifndef MX_KERNELS_SIMD_GEMM_SIMD_H
#define MX_KERNELS_SIMD_GEMM_SIMD_H

#include "kernels/gemm_micro.h"
#include "kernels/simd/prefetch.h"
#include "kernels/simd/simd.h"

/* The register block: mr x (nr / VL) sums, nr / VL vectors of B and a broadcast of A fill the vector registers. */
enum { GEMM_MR = MX_SIMD_512 ? 8 : 6, GEMM_NR = MX_SIMD_512 ? 48 : 16 };

/* Packing for the kernels above: one element a word ("singles"), or two ("pairs"), the latter always in panels of 8
 * and 48, so that it is tested on every machine. */
mx_micro_pack MX_SIMD_NAME(mx_pack_a_singles), MX_SIMD_NAME(mx_pack_b_singles);
mx_micro_pack MX_SIMD_NAME(mx_pack_a_pairs), MX_SIMD_NAME(mx_pack_b_pairs);

/* f32 as they are. */
mx_micro_pack MX_SIMD_NAME(mx_pack_a_exact), MX_SIMD_NAME(mx_pack_b_exact);

/* Packing of i8: as i16, two a word; and four a word, with room for another word at the end of each panel. The bytes of
 * A are offset by 128. */
mx_micro_pack MX_SIMD_NAME(mx_pack_a_shorts), MX_SIMD_NAME(mx_pack_b_shorts);
mx_micro_pack MX_SIMD_NAME(mx_pack_a_bytes), MX_SIMD_NAME(mx_pack_b_bytes);

#endif
