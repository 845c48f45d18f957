/* Gradients of reductions: of extremes and of variances along the middle of an array (outer, n, inner). The bits do not
 * depend on the number of threads. */
#ifndef MX_KERNELS_SLOPES_H
#define MX_KERNELS_SLOPES_H

#include "kernels/reduce.h"

/* Of mx_reduce_extreme: dx = dy where x is y in each (outer, inner), shared equally at a tie, 0 elsewhere. All f64, or
 * y and dy f32 or bf16, and x and dx both f32 or both bf16. dx may be x. MX_ERR_MEMORY as below. */
mx_status mx_reduce_extreme_backward(mx_array x, mx_array y, mx_array dy, mx_extent e, mx_array dx);

/* Of mx_reduce_variance: dx = (x - mean) factor, with a factor for each (outer, inner). x and dx both f32 or both bf16;
 * dx may be x. MX_ERR_MEMORY when scratch for a long row cannot be had. */
mx_status mx_reduce_variance_backward(mx_array x, mx_extent e, const float *factor, mx_array dx);

/* Of mx_reduce_norm: the same with a mean of 0; x is read once. */
mx_status mx_reduce_norm_backward(mx_array x, mx_extent e, const float *factor, mx_array dx);

/* ---- the loops for one instruction set, on one thread; x f32 or bf16 ---- */

/* Of which sums about a center: of squared distances, or of ones where an element equals it. */
typedef enum mx_about { MX_SQUARES_ABOUT, MX_EQUAL_ABOUT } mx_about;

typedef struct mx_slope_paths {
    /* How many of n neighbours are `value`; and the same for `width` columns, added, each with n elements
     * that are `stride` apart. */
    float (*row_equal)(mx_array x, int64_t n, float value);
    void (*rows_equal)(float *count, mx_array x, int64_t n, int64_t stride, int64_t width, const float *value);
    /* y = (x - center) factor; or factor where x is the center, else 0. y has x's dtype and may be x. stream: write
     * past the caches; columns then start at cache lines in each row. */
    void (*row_slopes)(mx_about what, mx_array x, int64_t n, float center, float factor, void *y, bool stream);
    void (*rows_slopes)(mx_about what, mx_array x, int64_t n, int64_t stride, int64_t width, const float *center,
                        const float *factor, void *y, bool stream);
    /* y = factor where x is `value`, else 0, of columns as above, and the places of these in x, in any order. Returns
     * how many there are, or -1, with part of y written, if they are more than `room`. y is not x. */
    int64_t (*rows_hits)(mx_array x, int64_t n, int64_t stride, int64_t width, const float *value, const float *factor,
                         void *y, bool stream, int64_t *hits, int64_t room);
} mx_slope_paths;

#endif
