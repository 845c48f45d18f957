/* The peak of the tile registers. Six tiles of sums: a product takes 16 cycles and its sums are ready after 52. */
#include "kernels/amx/tiles.h"
#include "kernels/context.h"
#include "kernels/peak_paths.h"

static double bf16(int64_t rounds, float *result)
{
    enum { SUMS = 6 };
    mx_amx_begin();
    sums_zero();
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _Alignas(64) float sums[TILE_WORDS];
    _tile_stored(0, sums, LINE_BYTES);
    mx_amx_end();
    *result = sums[0];
    return 2.0 * 16 * 16 * 32 * SUMS * (double)rounds;
}

const mx_peak_path mx_peak_bf16_amx = {"TDPBF16PS, tiles of 16 x 16", bf16};
