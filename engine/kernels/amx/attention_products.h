/* The products of tiled attention in tile registers: what attention_tile.h, which includes this, has for vectors.
 *
 * A block of C is 32 x 32, four tiles. Packed A is laid out as in amx/gemm.c: panels of 32 items, for each 16 words of
 * k two tiles of 16 items; its lines are items. Rows of A that are not packed are the lines of tiles as they stand, and
 * so are the words of B, [words][NR]. All sums are over whole tiles: operands are filled up with zeros. */
#ifndef MX_KERNELS_AMX_ATTENTION_PRODUCTS_H
#define MX_KERNELS_AMX_ATTENTION_PRODUCTS_H

#include "kernels/amx/tiles.h"

MX_INLINE void products_begin(void) { mx_amx_begin(); }
MX_INLINE void products_end(void) { mx_amx_end(); }

/* C (MR x nv vectors) = or += A B. From one line of A to the next are `a_line` words, from its upper tile to the lower
 * one `a_lower`, from 16 words of k to the next `a_step`. Never inlined: the compiler does not know that loading a tile
 * reads memory. */
MX_INLINE void multiply_tiles(int nv, int64_t k, const float *a, int64_t a_line, int64_t a_lower, int64_t a_step,
                              const float *b, int64_t b_line, float *c, int64_t c_row, bool add)
{
    const int64_t b_bytes = b_line * 4, a_bytes = a_line * 4, c_bytes = c_row * 4;
    float *lower = c + TILE_LINES * c_row;
    sums_zero();
    if (add && nv == 2) {
        sums_load(c, c_bytes);
    } else if (add) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, lower, c_bytes);
    }
    for (int64_t w = 0; w < k; w += TILE_LINES, a += a_step, b += TILE_LINES * b_line) {
        _tile_loadd(4, a, a_bytes);
        _tile_loadd(6, b, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + a_lower, a_bytes);
        _tile_dpbf16ps(1, 5, 6);
        if (nv == 2) {
            _tile_loadd(7, b + VL, b_bytes);
            _tile_dpbf16ps(2, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    if (nv == 2) {
        sums_store(c, c_bytes);
        return;
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, lower, c_bytes);
}

typedef void tile_packed(int64_t k, const float *a, const float *b, int64_t b_step, float *c, int64_t c_row, bool add);
NOINLINE void tile_packed1(int64_t k, const float *a, const float *b, int64_t b_step, float *c, int64_t c_row, bool add)
{
    multiply_tiles(1, k, a, TILE_LINES, TILE_WORDS, 2 * TILE_WORDS, b, b_step, c, c_row, add);
}
NOINLINE void tile_packed2(int64_t k, const float *a, const float *b, int64_t b_step, float *c, int64_t c_row, bool add)
{
    multiply_tiles(2, k, a, TILE_LINES, TILE_WORDS, 2 * TILE_WORDS, b, b_step, c, c_row, add);
}
MX_INLINE tile_packed *tile_packed_of(int kind, int64_t nv)
{
    (void)kind; /* pairs */
    return nv == 2 ? tile_packed2 : tile_packed1;
}

typedef void tile_rows(int64_t k, const float *a, int64_t a_row, const float *b, float *c, int64_t c_row);
NOINLINE void tile_rows1(int64_t k, const float *a, int64_t a_row, const float *b, float *c, int64_t c_row)
{
    multiply_tiles(1, k, a, a_row, TILE_LINES * a_row, TILE_LINES, b, NR, c, c_row, true);
}
NOINLINE void tile_rows2(int64_t k, const float *a, int64_t a_row, const float *b, float *c, int64_t c_row)
{
    multiply_tiles(2, k, a, a_row, TILE_LINES * a_row, TILE_LINES, b, NR, c, c_row, true);
}
MX_INLINE tile_rows *tile_rows_of(int kind, int64_t nv)
{
    (void)kind;
    return nv == 2 ? tile_rows2 : tile_rows1;
}

/* Stores VL lines, each VL words of an item; the item, and so its panel, is always there. */
enum { LINES_ARE_ITEMS = true };
MX_INLINE void store_a(float *packed, int64_t words, int64_t item, int64_t items, int64_t w, int64_t n, const vf *line)
{
    (void)items;
    (void)n;
    float *tile = packed + item / MR * MR * words + w * MR + item % MR * TILE_LINES;
    for (int i = 0; i < TILE_LINES; i++)
        vf_store(tile + i * VL, line[i]);
}

#endif
