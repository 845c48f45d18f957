/* What the files of convolutions share: conv_pass.c says which elements meet, conv_product.c and conv_grad_w.c multiply
 * matrices that conv_copy.c helps to pack, conv_thin.c adds up weighted rows, conv_points.c takes kernels of one
 * element with a stride. */
#ifndef MX_KERNELS_CONV_INTERNAL_H
#define MX_KERNELS_CONV_INTERNAL_H

#include "kernels/conv.h"
#include "kernels/gemm_micro.h"
#include "kernels/inline.h"
#include "kernels/windows.h"

static inline int64_t mx_conv_positions(const mx_conv *c) { return c->out[0] * c->out[1]; }
static inline int64_t mx_conv_pixels(const mx_conv *c) { return c->in[0] * c->in[1]; }
static inline int64_t mx_conv_group_in(const mx_conv *c) { return c->channels_in / c->groups; }
static inline int64_t mx_conv_group_out(const mx_conv *c) { return c->channels_out / c->groups; }
static inline int64_t mx_conv_taps(const mx_conv *c) { return mx_conv_group_in(c) * c->kernel[0] * c->kernel[1]; }

/* The index of x along dimension d for output i and element k of the kernel; may be outside. */
static inline int64_t mx_conv_at(const mx_conv *c, int d, int64_t i, int64_t k)
{
    return i * c->stride[d] + k * c->dilation[d] - c->before[d];
}

/* The elements of a plane of x that its outputs meet. */
static inline mx_windows mx_conv_windows(const mx_conv *c)
{
    mx_windows w = {.in = {c->in[0], c->in[1]}, .out = {c->out[0], c->out[1]}, .stride = {c->stride[0], c->stride[1]}};
    for (int d = 0; d < 2; d++) {
        w.least[d] = mx_conv_at(c, d, 0, 0);
        w.most[d] = mx_conv_at(c, d, 0, c->kernel[d] - 1);
    }
    return w;
}

static inline mx_array mx_conv_part(mx_array a, int64_t first)
{
    return (mx_array){(char *)a.data + first * (int64_t)mx_dtype_bytes(a.dtype), a.dtype};
}

/* ---- passes (conv_pass.c) ---- */

/* The taps along a dimension: tap i is element k + i k_step of the kernel, and result 0 meets there element
 * shift + i shift_step of a plane. */
typedef struct mx_conv_line {
    int64_t count, k, k_step, shift, shift_step;
} mx_conv_line;

/* Planes of results as weighted sums over windows of planes of an operand: in each group of channels each of `outputs`
 * from all of its `inputs`. Forward is one pass over x. The gradient by x has a pass over dy for each remainder of its
 * rows and columns by the stride. */
typedef struct mx_conv_pass {
    mx_windows w;  /* in: a plane of the operand; out: the results of the pass in a plane */
    bool in_place; /* each result meets just the element in its own place; planes are then one row */
    mx_conv_line lines[2];
    int64_t batch, groups, inputs, outputs, taps;     /* taps: of one input plane */
    int64_t to[2], first, row, step;                  /* a plane of results; there result (0, 0), rows, columns */
    int64_t w_group, w_output, w_input, kernel_width; /* steps between weights */
} mx_conv_pass;

mx_conv_pass mx_conv_pass_forward(const mx_conv *c);
mx_conv_pass mx_conv_pass_grad_x(const mx_conv *c, int64_t row, int64_t column);

/* Where a tap meets the plane for result (0, 0), and its place among the weights of two planes. */
typedef struct mx_conv_tap {
    int64_t d, e, weight;
} mx_conv_tap;

mx_conv_tap mx_conv_pass_tap(const mx_conv_pass *p, int64_t tap);

/* ---- blocks of results, and copies of planes for packing (conv_copy.c) ---- */

/* All results of a plane of each image, in order, are cut into blocks of at most `size`. Long rows are cut into
 * `pieces` each, so that a block has a part of one row; 0: they are not. */
typedef struct mx_conv_blocks {
    int64_t size, pieces, count;
    bool in_order; /* the columns of copies; else they are sorted by their remainder by the stride, as tiles are */
} mx_conv_blocks;

/* Blocks of at most about `most` results, a multiple of `unit`. */
mx_conv_blocks mx_conv_blocks_of(const mx_windows *w, int64_t batch, int64_t most, int64_t unit);

/* The results of a block: `first` to before first + count; and f32 copies of what they meet of a plane of each image.
 */
typedef struct mx_conv_copy {
    mx_windows w;
    int64_t first, count;
    int64_t image, images, i0;   /* the first image, their number, and the first row of results of the first image */
    int64_t j0, columns;         /* the first column of results and their number, of each row */
    int64_t rests, step;         /* remainders by which columns are sorted; columns from result to result of these */
    int64_t phase, row;          /* floats of the columns with one remainder; of a row */
    int64_t lines, lines_before; /* rows of the copies; of the first image alone */
} mx_conv_copy;

enum { MX_CONV_SLACK = 64 }; /* floats behind the last copy */

mx_conv_copy mx_conv_copy_of(const mx_windows *w, int64_t batch, const mx_conv_blocks *blocks, int64_t block);

/* The same of `count` results from `first` on, of which those of a row of results are not in several blocks. */
mx_conv_copy mx_conv_copy_between(const mx_windows *w, int64_t first, int64_t count);

/* The most floats that the copies of a plane take in any block. */
int64_t mx_conv_copy_most(const mx_windows *w, const mx_conv_blocks *blocks);

/* The planes of an operand: plane c of image n begins at element c step + n image_step of x. */
typedef struct mx_conv_planes {
    mx_array x;
    int64_t step, image_step;
} mx_conv_planes;

void mx_conv_copy_fill(const mx_conv_copy *c, const mx_conv_planes *planes, int64_t plane, float *copy);

/* What copies are made from is asked for, so that reading it overlaps with arithmetic: of each image of a copy the same
 * `n_planes` planes from `begin` on, one piece each, of which `done` have been. */
typedef struct mx_conv_asking {
    mx_conv_copy copy;
    const mx_conv_planes *planes;
    int64_t begin, n_planes, done;
} mx_conv_asking;

enum { MX_CONV_AHEAD = 4 };

/* Lists further pieces until `i` of `n` parts of all have been asked for: at most MX_CONV_AHEAD entries, and one of no
 * rows, at which what it returns points. What does not fit comes with the next part. */
mx_ahead *mx_conv_list(mx_conv_asking *a, int64_t i, int64_t n, mx_ahead *list);

/* Prefetches them at once. */
void mx_conv_ask(mx_conv_asking *a, int64_t i, int64_t n);

/* The results from number `at` of the block on, n at most, as runs of neighbours; returns the number of runs. */
int64_t mx_conv_copy_runs(const mx_conv_copy *c, int64_t at, int64_t n, mx_conv_run *runs);

/* The same as runs of positions of planes in place, where each result meets just the element in its own place. */
int64_t mx_conv_copy_places(const mx_conv_copy *c, const mx_conv_planes *planes, int64_t at, int64_t n,
                            mx_conv_run *runs);

/* Where a copy has element (d, e) of the window of the first result of a run, from its `from` on. */
static inline int64_t mx_conv_copy_at(const mx_conv_copy *c, int64_t d, int64_t e)
{
    int64_t column = e - c->w.least[1];
    return (d - c->w.least[0]) * c->row + column % c->rests * c->phase + column / c->rests;
}

/* ---- packed panels ---- */

enum { MX_CONV_MOST_COLUMNS = 64, MX_CONV_TILE = 16 }; /* of a panel; of a tile's part of it (gemm_micro.h) */

/* The columns of a panel of B as runs, for each part of it that has lines of its own. */
typedef struct mx_conv_panel {
    int64_t n_runs[MX_CONV_MOST_COLUMNS / MX_CONV_TILE];
    mx_conv_run runs[MX_CONV_MOST_COLUMNS / MX_CONV_TILE][MX_CONV_MOST_COLUMNS];
} mx_conv_panel;

/* The kernels that multiply operands of these dtypes. */
const mx_micro *mx_conv_micro(mx_dtype a, mx_dtype b);

static inline int64_t mx_conv_words(const mx_micro *u, int64_t k)
{
    return mx_round_up(mx_ceil_div(k, u->k_group), u->k_unit);
}

/* Elements of k in a block: equal blocks of at most what is packed at once. */
static inline int64_t mx_conv_k_block(const mx_micro *u, int64_t k)
{
    int64_t most = (int64_t)u->k_words * u->k_group, unit = (int64_t)u->k_unit * u->k_group;
    return mx_round_up(mx_ceil_div(k, mx_max(mx_ceil_div(k, most), 1)), unit);
}

/* A panel from the runs of all its columns, and packing it from a copy: at[e], e < k, are the elements of k; or the
 * copy has words of two elements (joined), and at[w] are these. */
void mx_conv_panel_cut(const mx_micro *u, const mx_conv_run *runs, int64_t n_runs, mx_conv_panel *panel);
void mx_conv_panel_pack(const mx_micro *u, const mx_conv_panel *panel, const float *copy, int64_t k, const int64_t *at,
                        bool joined, uint32_t *packed);

/* The same from planes in place: element e, e < k, of position p is x[e step + p]; runs are of positions. */
void mx_conv_panel_take(const mx_micro *u, const mx_conv_panel *panel, mx_array x, int64_t k, int64_t step,
                        uint32_t *packed);

/* to[i] = from[at[i]], i < n, of elements of 2 or 4 bytes: weights in the order in which they are packed. */
void mx_conv_pick(const void *from, size_t bytes, int64_t n, const int64_t *at, void *to);

/* ---- the ways to compute it ---- */

/* Whether its groups are too thin for matrix products. */
static inline bool mx_conv_is_thin(const mx_conv *c) { return mx_conv_group_in(c) * mx_conv_group_out(c) <= 8; }

mx_status mx_conv_thin_pass(const mx_conv_pass *p, mx_array from, mx_array w, const float *bias, mx_array to);
mx_status mx_conv_thin_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw);

/* `from` is bf16 unless w is f32 too; so are x and dy. */
mx_status mx_conv_product_pass(const mx_conv_pass *p, mx_array from, mx_array w, const float *bias, mx_array to);
mx_status mx_conv_product_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx);
mx_status mx_conv_product_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw);

/* Whether the gradient by x is mx_conv_product_grad_x(); else it is passes. */
bool mx_conv_grad_x_adds(const mx_conv *c);

/* Of kernels of one element with a stride, and how they are computed without one (conv_points.c). */
bool mx_conv_is_points(const mx_conv *c);
mx_status mx_conv_points_forward(const mx_conv *c, mx_array x, mx_array w, const float *bias, mx_array y);
mx_status mx_conv_points_grad_x(const mx_conv *c, mx_array dy, mx_array w, mx_array dx);
mx_status mx_conv_points_grad_w(const mx_conv *c, mx_array x, mx_array dy, float *dw);

#endif
