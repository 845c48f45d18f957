/* Loops that scatter the elements of a line by an index, in plain C. */
#ifndef MX_KERNELS_SCATTER_LOOPS_H
#define MX_KERNELS_SCATTER_LOOPS_H

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
    static void put_greatest_##bits(int##bits##_t *x, const int32_t *index, const int##bits##_t *y, int64_t n)         \
    {                                                                                                                  \
        _Pragma("GCC unroll 8") for (int64_t k = 0; k < n; k++)                                                        \
        {                                                                                                              \
            const int##bits##_t before = x[index[k]];                                                                  \
            x[index[k]] = y[k] > before ? y[k] : before;                                                               \
        }                                                                                                              \
    }

DEFINE_PUT_GREATEST(8)
DEFINE_PUT_GREATEST(16)
DEFINE_PUT_GREATEST(32)
DEFINE_PUT_GREATEST(64)

static void add_floats(double *sums, const int32_t *index, const float *y, int64_t n)
{
    int64_t k = 0;
    for (; k + TOGETHER <= n; k += TOGETHER) {
#pragma GCC unroll 16
        for (int u = 0; u < TOGETHER; u++)
            sums[index[k + u]] += y[k + u];
    }
    for (; k < n; k++)
        sums[index[k]] += y[k];
}

/* To sums, and 1 to the counts beside them. */
static void add_pairs(double *pairs, const int32_t *index, const float *y, int64_t n)
{
#pragma GCC unroll 8
    for (int64_t k = 0; k < n; k++) {
        double *pair = pairs + 2 * index[k];
        _mm_storeu_pd(pair, _mm_add_pd(_mm_loadu_pd(pair), _mm_set_pd(1, y[k])));
    }
}

#endif
