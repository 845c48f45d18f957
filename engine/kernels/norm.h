/* RMSNorm and LayerNorm over the last dimension, forward and backward.
 *
 *   y = (x - mean) rstd weight + bias      rstd = 1 / sqrt(mean of (x - mean)^2 + eps)
 *
 * RMSNorm is the same with mean = 0 and without bias. Statistics and sums are f32, whatever the dtype of the rows.
 *
 * Rows may be split over ranks: each has `width` of their `features` values. Then a rank sums over its part of a row
 * (mx_norm_sums, mx_norm_grad_sums), the caller adds the sums of all ranks, and the rest of the work uses the totals.
 */
#ifndef MX_KERNELS_NORM_H
#define MX_KERNELS_NORM_H

#include "core/dtype.h"
#include "core/status.h"

typedef struct mx_norm {
    int64_t rows, width;
    int64_t features; /* of rows that are split over ranks; 0: rows are whole, features = width */
    mx_dtype dtype;   /* of x, y, dy and dx, which are (rows, width): f32 or bf16 */
    bool center;      /* LayerNorm; otherwise RMSNorm, which touches no mean, bias or dbias */
    float eps;
    const void *weight, *bias; /* (width); NULL: ones, zeros */
    mx_dtype weight_dtype, bias_dtype;
    const void *x;
    float *mean, *rstd; /* (rows): forward writes them (NULL: not wanted), backward reads them; with `features`, both
                           read them */
    void *y;
    const void *dy;
    void *dx;
    float *dweight, *dbias; /* (width), overwritten; NULL: not wanted */
    float *sums;            /* of split rows: see mx_norm_sums and mx_norm_grad_sums; backward reads the totals */
} mx_norm;

/* x is read and y written once. y may be x. MX_ERR_MEMORY when scratch of the size of a few rows cannot be had. */
mx_status mx_norm_forward(const mx_norm *n);

/* dx, dweight and dbias in one pass over x and dy. dx may be dy. Sums over rows run over fixed blocks of rows, so the
 * bits do not depend on the number of threads. */
mx_status mx_norm_backward(const mx_norm *n);

/* sums[r] = the sum over row r of x - mean; with `squares`, of its square. Without n->mean it is 0. */
void mx_norm_sums(const mx_norm *n, bool squares);

/* sums[r] = the sum over row r of dy weight (x - mean), and sums[rows + r] = that of dy weight (only with `center`). */
mx_status mx_norm_grad_sums(const mx_norm *n);

/* The row loops for one instruction set. Here weight and bias are f32 and present; a block of rows adds its weight
 * gradients to n->dweight and n->dbias (if there is a bias gradient). Rows `first` to before `last`. For rows of bf16
 * each path has an order of its own for weight, bias and their gradients: arrange() brings `width` values there, and
 * arrange_back() from there to where they belong. */
typedef struct mx_norm_paths {
    void (*forward)(const mx_norm *n, int64_t first, int64_t last, bool stream);
    void (*backward)(const mx_norm *n, int64_t first, int64_t last, bool stream);
    void (*sums)(const mx_norm *n, int64_t first, int64_t last, bool squares);
    void (*grad_sums)(const mx_norm *n, int64_t first, int64_t last);
    void (*arrange)(float *values, int64_t width), (*arrange_back)(float *values, int64_t width);
} mx_norm_paths;

#endif
