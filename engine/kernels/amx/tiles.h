/* The tile registers of AMX: eight, each 16 lines of 64 bytes. TDPBF16PS multiplies a tile of A, a line for each row of
 * 16 words (pairs of bf16) along k, by a tile of B, a line for each word of k of 16 columns, into a tile of f32 sums.
 */
#ifndef MX_KERNELS_AMX_TILES_H
#define MX_KERNELS_AMX_TILES_H

#include "kernels/inline.h"

#include <immintrin.h>
#include <stdint.h>

enum { TILE_LINES = 16, TILE_WORDS = 256, LINE_BYTES = 64 };

/* Gives all eight tiles of the calling thread their full size; tiles may be used until mx_amx_end, which frees the
 * processor from saving them. */
void mx_amx_begin(void);
void mx_amx_end(void);

/* The sums of a block of C, 32 rows of `bytes` bytes: tiles 0 and 1 left, upper and lower, and 2 and 3 right of them.
 */
MX_INLINE void sums_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}
MX_INLINE void sums_load(const float *c, int64_t bytes)
{
    const char *lower = (const char *)c + TILE_LINES * bytes;
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, lower, bytes);
    _tile_loadd(2, (const char *)c + LINE_BYTES, bytes);
    _tile_loadd(3, lower + LINE_BYTES, bytes);
}
MX_INLINE void sums_store(float *c, int64_t bytes)
{
    char *lower = (char *)c + TILE_LINES * bytes;
    _tile_stored(0, c, bytes);
    _tile_stored(1, lower, bytes);
    _tile_stored(2, (char *)c + LINE_BYTES, bytes);
    _tile_stored(3, lower + LINE_BYTES, bytes);
}

#endif
