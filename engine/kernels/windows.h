/* Loops over the windows of planes, which thin convolutions and pooling share.
 *
 * The outputs of a plane are cut into tiles. A tile copies the elements that its windows meet to f32 scratch of a few
 * KiB: with what is outside of the plane filled in, and with the columns sorted by their remainder by the stride. There
 * the elements that one place in the window meets are neighbours for neighbouring outputs, so every loop runs over
 * vectors. Tiles are cut by sizes alone, so the bits do not depend on the number of threads. */
#ifndef MX_KERNELS_WINDOWS_H
#define MX_KERNELS_WINDOWS_H

#include "kernels/elementwise.h"

/* Output (i, j) meets elements (i stride[0] + d, j stride[1] + e) of a plane of in[0] x in[1], with d from least[0] to
 * most[0] and e from least[1] to most[1]. */
typedef struct mx_windows {
    int64_t in[2], out[2], stride[2], least[2], most[2];
} mx_windows;

typedef struct mx_tiling {
    mx_windows w;
    int64_t rows, columns; /* outputs of a tile */
    int64_t across, tiles; /* tiles side by side; all tiles of a plane */
    int64_t phase, row;    /* floats of the columns with one remainder; of a row */
    int64_t floats;        /* of a tile's copy of a plane */
    int64_t outputs;       /* floats of a tile's outputs; both with room for whole vectors behind */
} mx_tiling;

/* A tile holds the copies of so many planes. */
mx_tiling mx_tiling_of(const mx_windows *w, int64_t planes);

/* Outputs i0 to before i1, j0 to before j1. */
typedef struct mx_tile {
    int64_t i0, i1, j0, j1;
} mx_tile;

mx_tile mx_tile_of(const mx_tiling *t, int64_t number);

/* Copies what the tile meets of the plane that begins at element `plane` of x. `keys`: as keys, and outside is the
 * least of all; else outside is 0. */
void mx_tile_fill(const mx_tiling *t, const mx_tile *tile, mx_array x, int64_t plane, bool keys, float *copy);

/* Where the copy has the element (d, e) of the window of the tile's first output; the window of the next row begins
 * stride[0] * row floats behind. */
int64_t mx_tile_at(const mx_tiling *t, int64_t d, int64_t e);

/* The gradient of pooling: row y of x meets rows i of dy with 0 <= y + before - i stride[0] < size. Its columns are
 * sorted by their remainder r by stride[1]: the q-th with it meets columns q + shift[r span + t] of dy, t < taps[r],
 * which descend. The gradient is `scale` times the sum of these elements of dy, as far as they exist and have the place
 * of the element of x. */
typedef struct mx_spreading {
    int64_t in[2], out[2], stride[2]; /* in: of x, out: of dy */
    int64_t before, size;             /* of rows: padding and window */
    int64_t span, *taps, *shift;
    int64_t phase; /* floats of the columns with one remainder, a multiple of 16 */
    float scale;
} mx_spreading;

/* The first row of dy that meets row y of x or a later one, and the first that meets only later ones. */
static inline int64_t mx_spreading_low(const mx_spreading *s, int64_t y)
{
    int64_t from = y + s->before - s->size + 1;
    return from > 0 ? (from + s->stride[0] - 1) / s->stride[0] : 0;
}
static inline int64_t mx_spreading_high(const mx_spreading *s, int64_t y)
{
    int64_t last = (y + s->before) / s->stride[0] + 1;
    return last < s->out[0] ? last : s->out[0];
}

/* Keys are i32 that compare as the values do, with NaN above all and -0 equal to 0.
 * The loops for one instruction set. x, at and y are f32 or keys, with room for whole vectors. */
typedef struct mx_window_paths {
    /* For each of `rows` rows, whose windows begin x_step floats apart and whose n results are neighbours in y:
     * y[i] = start + the sum over t of weight[t] x[at[t] + i] */
    void (*weigh)(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                  const float *weight, float start, float *y);
    /* sums[t] += the sum over rows r and i of g[r g_step + i] x[r x_step + at[t] + i] */
    void (*dots)(int64_t rows, int64_t n, const float *g, int64_t g_step, const float *x, int64_t x_step, int64_t taps,
                 const int64_t *at, double *sums);
    /* For such rows, too: y[i] = the value of the greatest key x[at[t] + i], the first of equal ones; place[i] = first
     * + place_of[t] + i step, for this t, and first + row_step in the next row. place: NULL: not wanted. */
    void (*maxima)(int64_t rows, int64_t n, const int32_t *x, int64_t x_step, int64_t taps, const int64_t *at,
                   const int32_t *place_of, int32_t first, int32_t row_step, int32_t step, float *y, int32_t *place);
    /* The n elements from number `first` on of a row whose elements 0 to `in` - 1 are at x, bf16 or f32: element number
     * first + i goes to y[i % step phase + i / step]. `keys`: as keys, and the least of all for those outside; else 0.
     */
    void (*fill)(int64_t n, int64_t first, int64_t in, const void *x, bool bf16, bool keys, int64_t step, float *y,
                 int64_t phase);
    /* Rows `first` to before `last` of the gradient of a plane of x, from the planes of dy and of places (NULL: of
     * means): to y, with room for 2 vectors behind. phases: scratch of s->stride[1] s->phase floats. */
    void (*spread)(const mx_spreading *s, int64_t first, int64_t last, mx_array dy, const int32_t *places, float *y,
                   float *phases);
} mx_window_paths;

#endif
