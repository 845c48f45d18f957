/* The tile registers of AMX: eight, each 16 lines of 64 bytes. TDPBF16PS multiplies a tile of A, a line for each row of
 * 16 words (pairs of bf16) along k, by a tile of B, a line for each word of k of 16 columns, into a tile of f32 sums.
 */
#ifndef MX_KERNELS_AMX_TILES_H
#define MX_KERNELS_AMX_TILES_H

enum { TILE_LINES = 16, TILE_WORDS = 256, LINE_BYTES = 64 };

/* Gives all eight tiles of the calling thread their full size; tiles may be used until mx_amx_end, which frees the
 * processor from saving them. */
void mx_amx_begin(void);
void mx_amx_end(void);

#endif
