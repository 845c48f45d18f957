/* Loops that scatter the elements of a line by an index, in plain C. */
#ifndef MX_KERNELS_SCATTER_LOOPS_H
#define MX_KERNELS_SCATTER_LOOPS_H

#include "kernels/index_ahead.h"
#include "kernels/inline.h"

#include <immintrin.h>
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

/* Element i of y goes to x[index[i]] if it is greater. Without branches, which would often be mispredicted. */
#define DEFINE_PUT_GREATEST(bits)                                                                                      \
    MX_INLINE void put_greatest_one_##bits(int##bits##_t *x, int##bits##_t y)                                          \
    {                                                                                                                  \
        const int##bits##_t before = *x;                                                                               \
        *x = y > before ? y : before;                                                                                  \
    }                                                                                                                  \
    static void put_greatest_##bits(int##bits##_t *x, const int32_t *index, const int##bits##_t *y, int64_t n,         \
                                    mx_index_ahead ahead)                                                              \
    {                                                                                                                  \
        int64_t k = 0;                                                                                                 \
        for (; k + AHEAD_STEP <= n; k += AHEAD_STEP) {                                                                 \
            mx_index_ahead_step(&ahead, sizeof *x);                                                                    \
            _Pragma("GCC unroll 32") for (int u = 0; u < AHEAD_STEP; u++)                                              \
                put_greatest_one_##bits(x + index[k + u], y[k + u]);                                                   \
        }                                                                                                              \
        for (; k < n; k++)                                                                                             \
            put_greatest_one_##bits(x + index[k], y[k]);                                                               \
    }

DEFINE_PUT_GREATEST(8)
DEFINE_PUT_GREATEST(16)
DEFINE_PUT_GREATEST(32)
DEFINE_PUT_GREATEST(64)

#endif
