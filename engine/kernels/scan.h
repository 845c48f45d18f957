/* Cumulative sums and linear recurrences along a dimension of an array (outer, n, inner).
 *
 * The split of the work and the order of the sums follow from the sizes alone, so the bits do not depend on the number
 * of threads. Floats: f32 sums of short runs on f64 sums of all before them, rounded once. */
#ifndef MX_KERNELS_SCAN_H
#define MX_KERNELS_SCAN_H

#include "kernels/reduce.h"

/* y[i] = x[0] + ... + x[i] along n; with `reverse`, x[i] + ... + x[n - 1]. Floats: y of x's dtype. Integers: y i32, i64
 * for i64; MX_ERR_VALUE when a sum does not fit. */
mx_status mx_cumsum(mx_array x, mx_extent e, bool reverse, mx_array y);

/* y[0] = b[0] and y[i] = a[i] y[i - 1] + b[i] along n; with `reverse` from the other end, y[i] = a[i] y[i + 1] + b[i].
 * lagged: a of the element before takes the place of a[i], as in the gradient. y of b's dtype. f32 and
 * bf16, which may mix, with a state of f32; or all f64. a[0] (lagged: the last a) is not used. */
void mx_linear_scan(mx_array a, mx_array b, mx_extent e, bool reverse, bool lagged, mx_array y);

/* The gradient of the recurrence by a: out[i] = x[i - 1] y[i] along n, and with `reverse` x[i + 1] y[i]; at the end
 * that has no x before it, 0. If y.data is NULL, every y is 1. All arrays have one dtype: f32, bf16 or f64. */
void mx_times_previous(mx_array x, mx_array y, mx_extent e, bool reverse, mx_array out);

/* For one instruction set, on one thread; x and y of one dtype, f32 or bf16. */
typedef struct mx_scan_paths {
    /* y[i] = start + x[0] + ... + x[i] (with `reverse`, from the other end) for n neighbours. y NULL: writes nothing.
     * Returns the sum of all x. stream: write past the caches; the sum has the same bits without it if y begins there
     * at a cache line. */
    double (*row)(const void *x, mx_dtype dtype, int64_t n, bool reverse, double start, void *y, bool stream);
    /* For n rows of `width` columns, `stride` elements apart (it may be negative): local += x, y = base + local, each
     * of these two a number for each column, in an order of the path's own. stream: write past the caches; columns then
     * start at cache lines in each row. */
    void (*rows)(const void *x, mx_dtype dtype, int64_t n, int64_t stride, int64_t width, const float *base,
                 float *local, void *y, bool stream);
    /* For n rows as above: state = b in the first row and a state + b in the others, y = state. `a` is that of the
     * second row. */
    void (*linear)(mx_array a, mx_array b, int64_t n, int64_t stride, int64_t width, float *state, void *y,
                   bool stream);
    /* mx_linear_scan() of `count` rows of n >= 1 neighbours, all of one dtype. stream: write past the caches; every row
     * of y then starts at a cache line. */
    void (*linear_rows)(const void *a, const void *b, mx_dtype dtype, int64_t n, int64_t count, bool reverse,
                        bool lagged, void *y, bool stream);
} mx_scan_paths;

#endif
