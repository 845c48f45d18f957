/* Sums, extremes, variances and the like along a dimension or over everything.
 *
 * An array is seen as (outer, n, inner), row-major, and reduced over the middle; all of it is (1, count, 1). Work is
 * cut by sizes alone and partial results are combined in order, so the bits do not depend on the number of threads.
 * Sums are f32 within a piece of up to 16 Ki elements and f64 across pieces of a row. */
#ifndef MX_KERNELS_REDUCE_H
#define MX_KERNELS_REDUCE_H

#include "core/status.h"
#include "kernels/elementwise.h"

typedef struct mx_extent {
    int64_t outer, n, inner;
} mx_extent;

/* y (outer, inner) = scale * the sum of x. x f32 or bf16: y either of them; x f64: y f64. x an integer: y i32 (i64 for
 * i64; scale 1), or f32. An empty sum is 0. MX_ERR_MEMORY when scratch for partial sums cannot be had; MX_ERR_VALUE
 * when a sum does not fit y. */
mx_status mx_reduce_sum(mx_array x, mx_extent e, double scale, mx_array y);

typedef enum mx_fold { MX_FOLD_SUM, MX_FOLD_SQUARES, MX_FOLD_MAX, MX_FOLD_MIN } mx_fold;

/* y (outer, inner), of x's dtype, = the largest of x, or the least with MX_FOLD_MIN; NaN where there is one. n >= 1. */
mx_status mx_reduce_extreme(mx_fold extreme, mx_array x, mx_extent e, mx_array y);

/* index (outer, inner) = the place of the largest (or least), counted from 0; the first at a tie; the first NaN.
 * n >= 1, and fits i32. */
mx_status mx_reduce_place(mx_fold fold, mx_array x, mx_extent e, int32_t *index);

/* y (outer, inner) = the root of the sum of squares; f32 or bf16. */
mx_status mx_reduce_norm(mx_array x, mx_extent e, mx_array y);

/* The sum of the squares of n values: f32 for f32 or bf16, f64 for f64. */
mx_status mx_sum_squares(mx_array x, int64_t n, mx_array y);

/* y (outer, inner) = the sum of squared distances from the mean times `scale`, and its root with `root`. Computed in
 * f32 within a piece, around a number near its mean, and joined in f64. x and y f32 or bf16. */
mx_status mx_reduce_variance(mx_array x, mx_extent e, double scale, bool root, mx_array y);

/* n elements: their mean, and the sum of (x - mean)^2. */
typedef struct mx_moments {
    double n, mean, sum;
} mx_moments;

/* Of two sets together; of n neighbours; and of each of `width` columns, whose n >= 1 elements are `stride` apart. x
 * f32 or bf16; computed as variances are. On the calling thread alone. */
mx_moments mx_moments_join(mx_moments a, mx_moments b);
mx_moments mx_row_moments(mx_array x, int64_t n);
void mx_column_moments(mx_array x, int64_t n, int64_t stride, int64_t width, mx_moments *moments);

/* y (outer, inner) = log(sum of e^x), -inf where n is 0; f32 or bf16. x is read once. */
mx_status mx_reduce_logsumexp(mx_array x, mx_extent e, mx_array y);

/* Of `width` columns, whose n elements are `stride` apart: sum[j] = sum of e^(x - center[j]), with centers near the
 * largest x. A center is finite; the sum is infinite or NaN if an x is. On the calling thread alone. */
void mx_column_exps(mx_array x, int64_t n, int64_t stride, int64_t width, float *center, double *sum);

/* How many columns are done at a time, a power of two of MX_LEAST_COLUMNS to MX_MOST_COLUMNS: of each row 8 KiB of
 * bf16, since memory is read faster in long runs, or 4 KiB of f32, whose longer runs would take the room in the
 * first-level cache that the numbers of the columns need. Fewer, so that threads share the work, or so that the last
 * cache keeps what is `read_twice`: that many tensors of the dtype, 0 of what is read once. Results must not depend on
 * it. */
enum { MX_MOST_COLUMNS = 4096, MX_LEAST_COLUMNS = 64 };
int64_t mx_panel_columns(mx_extent e, mx_dtype dtype, int read_twice);

/* y (outer, inner) = 1 where any element (with `all`: every one) is not 0, else 0. Any dtype; NaN is not 0. */
void mx_reduce_any(mx_array x, mx_extent e, bool all, uint8_t *y);

/* y[i] = scale * the sum (or the largest, or the least; NaN where there is one) over the k arrays from[0 .. k) of their
 * element i, taken in this order. Floats: summed in f32 and rounded once, y either float; f64 in f64. Integers: y of
 * the same dtype, sums saturate, scale 1. y may be one of `from`. Never MX_FOLD_SQUARES. `again`, unless NULL, gets the
 * same bits as y; it may be one of `from` too. `stream`: write it past the caches, for which a store fence must follow.
 * On the calling thread alone.
 */
void mx_reduce_across(mx_fold fold, int k, const void *const *from, mx_dtype dtype, int64_t n, float scale, mx_array y,
                      void *again, bool stream);

/* ---- the loops for one instruction set, on one thread; x f32 or bf16 ---- */

typedef struct mx_reduce_paths {
    /* n >= 1 neighbours folded into one. */
    float (*row)(mx_fold fold, mx_array x, int64_t n);
    /* acc[j] folded with x[i * stride + j] for i in 0 .. n, j in 0 .. width <= MX_MOST_COLUMNS. */
    void (*rows)(mx_fold fold, float *acc, mx_array x, int64_t n, int64_t stride, int64_t width);
    /* Of n neighbours, the sum of x - center, and of its square; and the same as `rows`, added. */
    void (*row_moments)(mx_array x, int64_t n, float center, float sums[2]);
    void (*rows_moments)(float *sum, float *squares, mx_array x, int64_t n, int64_t stride, int64_t width,
                         const float *center);
    /* Adds e^(x - center) of n neighbours to *sum; and the same as `rows`. Where an x is far above the center, the
     * center moves up to it first, and the sum is scaled to the new one. Centers start at -FLT_MAX and end within 4 of
     * the largest x, but for infinities: they stay finite, so that sums are 0 and infinite there. */
    void (*row_exps)(mx_array x, int64_t n, float *center, float *sum);
    void (*rows_exps)(float *center, float *sum, mx_array x, int64_t n, int64_t stride, int64_t width);
    /* As `rows`, of numbers `first` to first + n of lines: index[j] is the place of acc[j], the first of equal ones. A
     * NaN in acc stays. MX_FOLD_MAX or MX_FOLD_MIN. */
    void (*places)(mx_fold fold, float *acc, int32_t *index, mx_array x, int64_t first, int64_t n, int64_t stride,
                   int64_t width);
    /* mx_reduce_across for floats. */
    void (*across)(mx_fold fold, int k, const void *const *from, mx_dtype dtype, int64_t n, float scale, mx_array y,
                   void *again, bool stream);
} mx_reduce_paths;

#endif
