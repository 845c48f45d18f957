/* What lists the places of marks, in plain C: each path includes this file once (portable/marks.c, simd/marks.c). */
#ifndef MX_KERNELS_MARK_LOOPS_H
#define MX_KERNELS_MARK_LOOPS_H

#include "kernels/index.h"
#include "kernels/inline.h"

static inline int64_t loops_places(const uint64_t *mask, int64_t words, int32_t *place)
{
    int64_t n = 0;
    for (int64_t w = 0; w < words; w++)
        for (uint64_t bits = mask[w]; bits; bits &= bits - 1)
            place[n++] = (int32_t)(64 * w + __builtin_ctzll(bits));
    return n;
}

static void loops_pairs(const int32_t *place, int64_t n, int32_t first, int32_t less, int32_t *y)
{
    for (int64_t i = 0; i < n; i++) {
        y[2 * i] = first;
        y[2 * i + 1] = place[i] - less;
    }
}

#endif
