/* Loops over the windows of planes, which thin convolutions and pooling share.
 *
 * Planes of one row, and planes under the usual windows of pooling, are read where they are (mx_row_windows, mx_fold):
 * so memory is read, computed with and written at once. For all others the outputs of a plane are cut into tiles. A
 * tile copies the elements that its windows meet to f32 scratch of a few KiB: with what is outside of the plane filled
 * in, and with the columns sorted by their remainder by the stride. There the elements that one place in the window
 * meets are neighbours for neighbouring outputs, so every loop runs over vectors. Tiles are cut by sizes alone, so the
 * bits do not depend on the number of threads. */
#ifndef MX_KERNELS_WINDOWS_H
#define MX_KERNELS_WINDOWS_H

#include "kernels/elementwise.h"
#include "kernels/inline.h"

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

/* A tile holds the copies of so many planes of f32 or bf16. */
mx_tiling mx_tiling_of(const mx_windows *w, int64_t planes, mx_dtype dtype);

/* Outputs i0 to before i1, j0 to before j1. */
typedef struct mx_tile {
    int64_t i0, i1, j0, j1;
} mx_tile;

mx_tile mx_tile_of(const mx_tiling *t, int64_t number);

/* Copies what the tile meets of the plane that begins at element `plane` of x; what is outside of the plane becomes
 * `outside`. Returns false if an element is infinite or NaN, provided that `check` asks for it. */
bool mx_tile_fill(const mx_tiling *t, const mx_tile *tile, mx_array x, int64_t plane, float outside, bool check,
                  float *copy);

/* Room for so many floats and for whole vectors behind them, after which the next array begins 256 bytes before the
 * same place in a page: a processor takes a load for one of an earlier store if both have the same place in their
 * pages, and loads from the one array are ahead of stores to the next one. */
static inline int64_t mx_floats_apart(int64_t floats) { return mx_round_up(floats + 128, 1024) - 64; }

/* How a row of a plane is copied: its elements are numbered 0 to in - 1. Element first + i goes to float i % step phase
 * + i / step, i < n. Elements that the row does not have become `outside`. */
typedef struct mx_row_copy {
    int64_t n, first, in, step, phase;
    float outside;
    bool check; /* for infinite elements and NaN */
} mx_row_copy;

/* Copies rows `top` to before `end` of a plane with `height` rows, as `c` says, to rows of `step` floats; rows that the
 * plane does not have are filled as a whole. */
bool mx_fill_rows(const mx_row_copy *c, mx_array plane, int64_t height, int64_t top, int64_t end, float *copy,
                  int64_t step);

/* Where the copy has the element (d, e) of the window of the tile's first output; the window of the next row begins
 * stride[0] * row floats behind. */
int64_t mx_tile_at(const mx_tiling *t, int64_t d, int64_t e);

/* Maxima, or if `scale` is not 0 means, over windows of planes that are read where they are, or their gradients.
 * stream: results past the caches, which then begin cache lines with each row, until a store fence. */
typedef struct mx_fold {
    mx_windows w;
    float scale;
    bool stream;
} mx_fold;

enum { MX_FOLD_COLUMNS = 32 }; /* the fewest results in a row of a tile */

/* Whether the path in use can do so, if windows have no gaps: they have 2 columns and are two apart, or 3 columns
 * around each or every second one, and they have one row or as many, as far apart. */
bool mx_can_fold(const mx_windows *w);

/* The same for the gradient of such windows. */
bool mx_can_unfold(const mx_windows *w);

/* Whether each row of results of that dtype, and each row of places (NULL: none), begins a cache line. */
static inline bool mx_lines_begin(const mx_windows *w, mx_array y, const int32_t *place)
{
    return ((uintptr_t)y.data | (uintptr_t)place | (uintptr_t)w->out[1] * mx_dtype_bytes(y.dtype)) % 64 == 0;
}

/* Rows that are one plane each, whose windows are one element apart: result i, i < out, meets elements i + first +
 * at[t], t < taps, of a row of `in`, with 0 = at[0] <= at[t] <= span. They are read where they are. */
typedef struct mx_row_windows {
    int64_t in, out, first, span, taps;
    const int64_t *at;
} mx_row_windows;

enum { MX_ROW_SPAN = 64 }; /* the most */

/* The gradient of pooling: row y of x meets rows i of dy with 0 <= y + before - i stride[0] < size. Its columns are
 * sorted by their remainder r by stride[1]: the q-th with it meets columns q + shift[r span + t] of dy, t < taps[r],
 * which descend. The gradient is `scale` times the sum of these elements of dy, as far as they exist and have the place
 * of the element of x: sums of each row of dy are added. */
typedef struct mx_spreading {
    int64_t in[2], out[2], stride[2]; /* in: of x, out: of dy */
    int64_t before, size;             /* of rows: padding and window */
    int64_t span, *taps, *shift;
    int64_t least, most; /* of all shifts */
    float scale;
    int64_t copy; /* floats of the copy of the rows of dy that a part meets */
} mx_spreading;

/* Floats that the copy of a row of dy takes which `columns` columns of one remainder meet. */
static inline int64_t mx_spreading_row(const mx_spreading *s, int64_t columns)
{
    return (columns + s->most - s->least + 31) / 16 * 16;
}

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

/* A part of the gradient of a plane of x: rows, and columns by their number in their remainder by the stride. */
typedef struct mx_spread_part {
    int64_t rows[2], columns[2]; /* from, to before */
} mx_spread_part;

/* The loops for one instruction set. x is f32, with room for whole vectors. */
typedef struct mx_window_paths {
    /* For each of `rows` rows, whose windows begin x_step floats apart and whose n results are neighbours in y:
     * y[i] = start + the sum over t of weight[t] x[at[t] + i] */
    void (*weigh)(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                  const float *weight, float start, float *y);
    /* y[i] = start + the sum over t of weight[t] x[i + first + at[t]], from <= i < to, where x has them. Weights that
     * are exact in bf16 may be multiplied as such. NULL: the path has no such loop, nor dots_row. */
    void (*weigh_row)(const mx_row_windows *w, int64_t from, int64_t to, mx_array x, const float *weight, float start,
                      mx_array y, bool stream);
    /* sums[t] += the sum over i of g[i] x[i + first + at[t]], i < out, where x has them; g and x are of one dtype. */
    void (*dots_row)(const mx_row_windows *w, mx_array g, mx_array x, double *sums);
    /* sums[t] += the sum over rows r and i of g[r g_step + i] x[r x_step + at[t] + i] */
    void (*dots)(int64_t rows, int64_t n, const float *g, int64_t g_step, const float *x, int64_t x_step, int64_t taps,
                 const int64_t *at, double *sums);
    /* For such rows of finite numbers, where what is outside of a plane is -inf: y[i] = the greatest x[at[t] + i], the
     * first of equal ones; place[i] = first + place_of[t] + i step, for this t, and first + row_step in the next row.
     * place: NULL: not wanted. maxima: NULL: the path has no such loop. */
    void (*maxima)(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                   const int32_t *place_of, int32_t first, int32_t row_step, int32_t step, float *y, int32_t *place);
    /* Results of a tile, from a plane of x to one of y of the same dtype and, of maxima, of places (NULL: not wanted).
     * What is outside of the plane is smaller than any maximum, and 0 for means. Returns false if maxima meet elements
     * that are not finite. NULL: the path has no such loop. */
    bool (*fold)(const mx_fold *f, const mx_tile *tile, mx_array x, mx_array y, int32_t *place);
    /* Copies rows, of which the first has element 0 at x and the others x_step elements apart, to rows of y_step
     * floats; overwrites up to a vector behind each row of step 1. Returns false if `check` finds an element. */
    bool (*fill)(const mx_row_copy *c, int64_t rows, mx_array x, int64_t x_step, float *y, int64_t y_step);
    /* y[first + i] = x[i], i < n. `stream`: past the caches, until a store fence. */
    void (*put)(const float *x, int64_t n, mx_array y, int64_t first, bool stream);
    /* A part of the gradient of a plane of x, from the planes of dy and of places (NULL: of means): rows of all columns
     * of the part, one after the other, to y, with room for 2 vectors behind. scratch: a copy of the rows of dy that
     * the part meets and one of their places, each `copy` floats, and a row of y by remainders. Returns false if such a
     * place is outside of the plane. */
    bool (*spread)(const mx_spreading *s, const mx_spread_part *part, mx_array dy, const int32_t *places, float *y,
                   float *scratch);
    /* The gradient of maxima or means (places: NULL) for a tile of a plane of dx, of at least MX_FOLD_COLUMNS columns,
     * from the planes of dy, of the same dtype, and of places. Returns false if a place that it meets is outside of the
     * plane. NULL: the path has no such loop. */
    bool (*unfold)(const mx_fold *f, const mx_tile *tile, mx_array dy, const int32_t *places, mx_array dx);
} mx_window_paths;

#endif
