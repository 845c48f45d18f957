/* Loops that scatter the elements of a line by an index, in plain C. */
#ifndef MX_KERNELS_SCATTER_LOOPS_H
#define MX_KERNELS_SCATTER_LOOPS_H

#include "core/element.h"
#include "kernels/inline.h"

#include <math.h>
#include <string.h>

/* Asks for the index of the next line, which is checked first, and for the elements that come soon. */
MX_INLINE void prefetch_line(const int32_t *index, const char *y, int64_t k, int64_t n, const size_t bytes)
{
    __builtin_prefetch(index + n + k);
    __builtin_prefetch(y + k * (int64_t)bytes + 4096);
}

enum { TOGETHER = 16 }; /* elements, whose index is a cache line */

MX_INLINE void scatter_as(char *x, const int32_t *index, const char *y, int64_t n, const size_t bytes)
{
    int64_t k = 0;
    for (; k + TOGETHER <= n; k += TOGETHER) {
        prefetch_line(index, y, k, n, bytes);
#pragma GCC unroll 16
        for (int u = 0; u < TOGETHER; u++)
            memcpy(x + index[k + u] * (int64_t)bytes, y + (k + u) * (int64_t)bytes, bytes);
    }
    for (; k < n; k++)
        memcpy(x + index[k] * (int64_t)bytes, y + k * (int64_t)bytes, bytes);
}

/* x becomes y if that is greater (less), or NaN. Compilers choose the number by an instruction, because a branch would
 * often be mispredicted; that for NaNs is not. */
MX_INLINE void take_extreme(char *x, const char *y, const mx_dtype dtype, const bool greatest)
{
    if (mx_dtype_is_integer(dtype)) {
        int64_t a = mx_get_int(x, 0, dtype), b = mx_get_int(y, 0, dtype);
        mx_set_int(x, 0, greatest ? mx_max(a, b) : mx_min(a, b), dtype);
    } else if (dtype == MX_F64) {
        double a = mx_get_number(x, 0, dtype), b = mx_get_number(y, 0, dtype);
        double best = greatest ? (b > a ? b : a) : (b < a ? b : a);
        mx_set_number(x, 0, isnan(b) ? b : best, dtype);
    } else {
        float a = mx_get_float(x, 0, dtype), b = mx_get_float(y, 0, dtype);
        float best = greatest ? (b > a ? b : a) : (b < a ? b : a);
        best = isnan(b) ? b : best;
        if (mx_is_bf16(dtype))
            *(mx_bf16 *)(void *)x = (mx_bf16)(mx_bits_of_float(best) >> 16); /* one of two bf16 */
        else
            mx_set_float(x, 0, best, dtype);
    }
}

/* Element i of y goes to the element of x at index[i] step + i across. */
MX_INLINE void extremes_as(char *x, const int32_t *index, const char *y, int64_t n, int64_t step, int64_t across,
                           const mx_dtype dtype, const bool greatest)
{
    const int64_t bytes = (int64_t)mx_dtype_bytes(dtype);
    int64_t k = 0;
    for (; k + TOGETHER <= n; k += TOGETHER) {
        prefetch_line(index, y, k, n, (size_t)bytes);
#pragma GCC unroll 16
        for (int u = 0; u < TOGETHER; u++)
            take_extreme(x + (index[k + u] * step + (k + u) * across) * bytes, y + (k + u) * bytes, dtype, greatest);
    }
    for (; k < n; k++)
        take_extreme(x + (index[k] * step + k * across) * bytes, y + k * bytes, dtype, greatest);
}

#endif
