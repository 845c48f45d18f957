#include "emulator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, MOST_ROWS = 16, MOST_BYTES = 64, MOST_WORDS = MOST_BYTES / 4 };

typedef struct tile {
    int rows, bytes; /* 0: not configured */
    uint32_t word[MOST_ROWS][MOST_WORDS];
} tile;

static _Thread_local tile tiles[TILES];

static void demand(int condition, const char *instruction, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "%s: %s\n", instruction, what);
    abort();
}

static tile *configured(int i, const char *instruction)
{
    demand(i >= 0 && i < TILES, instruction, "expected a tile from 0 to 7");
    demand(tiles[i].rows > 0, instruction, "this tile is not configured");
    return &tiles[i];
}

void emulated_tile_release(void) { memset(tiles, 0, sizeof tiles); }

/* Configuring sets all tiles to zero. */
void emulated_tile_loadconfig(const void *config)
{
    static const char name[] = "LDTILECFG";
    uint8_t byte[64], unused = 0;
    memcpy(byte, config, sizeof byte);
    demand(byte[0] == 1, name, "expected palette 1");
    demand(byte[1] == 0, name, "expected to start at row 0");
    for (int i = 2; i < 64; i++)
        unused |= i < 16 || (i >= 32 && i < 48) || i >= 56 ? byte[i] : 0;
    demand(unused == 0, name, "expected zeros in the reserved bytes and for tiles 8 to 15");
    emulated_tile_release();
    for (int i = 0; i < TILES; i++) {
        int bytes = byte[16 + 2 * i] | byte[17 + 2 * i] << 8, rows = byte[48 + i];
        demand(rows <= MOST_ROWS && bytes <= MOST_BYTES, name, "expected at most 16 rows of 64 bytes");
        demand((rows == 0) == (bytes == 0) && bytes % 4 == 0, name, "expected rows of whole words, or neither");
        tiles[i].rows = rows;
        tiles[i].bytes = bytes;
    }
}

void emulated_tile_zero(int number)
{
    tile *t = configured(number, "TILEZERO");
    memset(t->word, 0, sizeof t->word);
}

void emulated_tile_loadd(int number, const void *base, int64_t stride)
{
    tile *t = configured(number, "TILELOADD");
    memset(t->word, 0, sizeof t->word);
    for (int row = 0; row < t->rows; row++)
        memcpy(t->word[row], (const char *)base + row * stride, (size_t)t->bytes);
}

void emulated_tile_stored(int number, void *base, int64_t stride)
{
    const tile *t = configured(number, "TILESTORED");
    for (int row = 0; row < t->rows; row++)
        memcpy((char *)base + row * stride, t->word[row], (size_t)t->bytes);
}

static void demand_product(int c, int a, int b, const char *name)
{
    const tile *x = configured(a, name), *y = configured(b, name), *sums = configured(c, name);
    demand(a != b && a != c && b != c, name, "expected three different tiles");
    demand(x->rows == sums->rows && y->bytes == sums->bytes && x->bytes / 4 == y->rows, name,
           "expected A of m x k, B of k x n and C of m x n words");
}

/* Denormals are zeros, as operands and as results, whatever MXCSR says. */
static float flushed(uint32_t bits)
{
    float x;
    bits = bits & 0x7f800000u ? bits : bits & 0x80000000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float flush(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return flushed(bits);
}

/* The manual's order: the products of the even and of the odd elements of k are added up apart from each other, in f32
 * and by fused multiply-adds; then both sums to each other, and that to C. */
void emulated_tile_dpbf16ps(int c, int a, int b)
{
    demand_product(c, a, b, "TDPBF16PS");
    tile *sums = &tiles[c];
    for (int row = 0; row < sums->rows; row++) {
        float even[MOST_WORDS] = {0}, odd[MOST_WORDS] = {0};
        for (int k = 0; k < tiles[b].rows; k++) {
            uint32_t pair = tiles[a].word[row][k];
            float a_even = flushed(pair << 16), a_odd = flushed(pair & 0xffff0000u);
            for (int j = 0; j < MOST_WORDS; j++) {
                uint32_t other = tiles[b].word[k][j];
                even[j] = flush(fmaf(a_even, flushed(other << 16), even[j]));
                odd[j] = flush(fmaf(a_odd, flushed(other & 0xffff0000u), odd[j]));
            }
        }
        for (int j = 0; j < sums->bytes / 4; j++) {
            float sum = flush(flushed(sums->word[row][j]) + flush(even[j] + odd[j]));
            memcpy(&sums->word[row][j], &sum, sizeof sum);
        }
    }
}

void emulated_tile_dpbssd(int c, int a, int b)
{
    demand_product(c, a, b, "TDPBSSD");
    tile *sums = &tiles[c];
    for (int row = 0; row < sums->rows; row++)
        for (int k = 0; k < tiles[b].rows; k++)
            for (int j = 0; j < sums->bytes / 4; j++)
                for (int byte = 0; byte < 32; byte += 8) {
                    int x = (int8_t)(tiles[a].word[row][k] >> byte), y = (int8_t)(tiles[b].word[k][j] >> byte);
                    sums->word[row][j] += (uint32_t)(x * y); /* wraps around */
                }
}

int emulated_cpuid_count(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };
    int known = __get_cpuid_count(leaf, subleaf, a, b, c, d);
    if (known && leaf == 7 && subleaf == 0)
        *d |= AMX_BF16 | AMX_TILE | AMX_INT8;
    return known;
}
