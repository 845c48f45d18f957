/* The path of tiles: products of bf16 and i8. All else is that of avx512_bf16. */
#include "kernels/context.h"

const mx_kernels mx_kernels_amx = {
    .micro = &mx_micro_amx,
    .micro_i8_tiles = &mx_micro_i8_tiles_amx,
    .attention_bf16 = &mx_attention_bf16_amx,
    .peak_bf16 = &mx_peak_bf16_amx,
};
