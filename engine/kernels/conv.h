/* Convolutions over two dimensions, and their gradients: x (batch, channels_in, in[0], in[1]), w (channels_out,
 * channels_in / groups, kernel[0], kernel[1]), y (batch, channels_out, out[0], out[1]). One dimension is in[0] =
 * kernel[0] = 1.
 *
 *   y[n, o, i, j] = bias[o] + sum over c, k, l of w[o, c, k, l] x[n, first(o) + c, i s0 + k d0 - p0, j s1 + l d1 - p1]
 *
 * with x = 0 outside. Groups of several channels are matrix products of the weights with columns of x, one column for
 * each position of y, which are packed straight from x (conv_product.c, conv_grad_w.c). Thin groups, as those of
 * depthwise convolutions, are weighted sums of rows (conv_thin.c). Kernels of one element with a stride are computed
 * without one, from what is picked (conv_points.c). */
#ifndef MX_KERNELS_CONV_H
#define MX_KERNELS_CONV_H

#include "core/status.h"
#include "kernels/elementwise.h"

typedef struct mx_conv {
    int64_t batch, channels_in, channels_out, groups;
    int64_t in[2], kernel[2], out[2], stride[2], dilation[2];
    int64_t before[2]; /* padding before the first element */
} mx_conv;

/* Arrays are f32 or bf16, dense; sums are f32, and bf16 results are rounded once. bias: f32, NULL: none. The same bits
 * on any number of threads. MX_ERR_MEMORY if there is no memory for the packed weights and blocks of columns. */
mx_status mx_conv_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y);
mx_status mx_conv_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx);
mx_status mx_conv_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw);

/* sums[o] = the sum of dy (batch, channels_out, positions) over batch and positions. */
void mx_conv_grad_bias(const mx_conv *c, mx_array dy, float *sums);

/* n neighbours in a copy of planes, from float `from` on, that are columns `to` to before to + n of a panel. */
typedef struct mx_conv_run {
    int64_t from, to, n;
} mx_conv_run;

/* A row of those that are added to a line of sums, and how far from its beginning. */
typedef struct mx_conv_term {
    int64_t row, shift;
} mx_conv_term;

enum { MX_CONV_TERMS = 8 }; /* are added at once, at most */

/* The loops for one instruction set. */
typedef struct mx_conv_paths {
    float (*sum)(int64_t n, const void *x, mx_dtype dtype);

    /* Lines of `width` words of a packed operand (gemm_micro.h), from runs whose columns ascend, at most `width` in
     * all. Word w of column to + i is x[at[w] + from + i], w < n; with `pairs` the bf16 that x holds for at[2 w] and
     * for at[2 w + 1], or 0 in place of at[n]. Whole vectors are read and written: what is behind the last run, and up
     * to a vector behind the last line, is undefined. */
    void (*gather)(const float *x, int64_t n, const int64_t *at, const mx_conv_run *runs, int64_t n_runs, bool pairs,
                   int64_t width, uint32_t *out);

    /* The same from planes as they are: word w of column to + i is x[w step + from + i], or a pair of these. x is bf16
     * if `pairs`; else bf16 becomes f32. Nothing outside of the runs is read. */
    void (*take)(mx_array x, int64_t n, int64_t step, const mx_conv_run *runs, int64_t n_runs, bool pairs,
                 int64_t width, uint32_t *out);

    /* Row i of a tile of f32, (m, n) with rows `width` apart, plus bias[i] (NULL: 0), to element i step of y. `stream`:
     * past the caches where cache lines are written as a whole, until a store fence. */
    void (*put)(int64_t m, int64_t n, const float *tile, int64_t width, const float *bias, mx_array y, int64_t step,
                bool stream);

    /* Adds rows of tiles of f32, `width` apart, to sums, several terms at once: y[at[i] + from + shift + l] +=
     * tile[(i rows + row) width + to + l], i < m, for each term and l < the n of the run. Terms ascend by their
     * shift. Whole vectors of y are read and written. */
    void (*add)(int64_t m, int64_t rows, const float *tile, int64_t width, const int64_t *at, const mx_conv_term *terms,
                int64_t n_terms, const mx_conv_run *run, float *y);

    /* y[i] = x[i % step phase + i / step], i < n: columns that were sorted by their remainder. Up to 32 floats behind
     * both are read or written. */
    void (*weave)(int64_t n, const float *x, int64_t phase, int64_t step, float *y);

    /* x[i] = the word of the bf16 that x holds in the places i and i + step as f32, i < n. */
    void (*join)(int64_t n, float *x, int64_t step);

    /* y[r n + i] = x[r x_step + i step], r < rows, i < n, of the dtype of x. Nothing outside of the rows is read or
     * written. */
    void (*pick)(int64_t rows, int64_t n, int64_t step, mx_array x, int64_t x_step, void *y);

    /* y[r y_step + i step] = x[r n + i], r < rows, i < n, of the dtype of x. The elements between stay or become zero,
     * and so may 32 elements behind a row be. */
    void (*spread)(int64_t rows, int64_t n, int64_t step, mx_array x, void *y, int64_t y_step);

    /* y[i y_step + p] = x[p step + i], i < n, p < planes. */
    void (*turn)(int64_t planes, int64_t n, mx_array x, int64_t step, int64_t y_step, float *y);
} mx_conv_paths;

#endif
