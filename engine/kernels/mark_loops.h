/* What lists the places of marks, in plain C: each path includes this file once (portable/marks.c, simd/marks.c). */
#ifndef MX_KERNELS_MARK_LOOPS_H
#define MX_KERNELS_MARK_LOOPS_H

#include "kernels/index.h"
#include "kernels/inline.h"

/* The places of a word's marks if these are few, SOME at a time: how often the loop runs is then foreseen by the
 * processor. Up to SOME - 1 values behind them do not matter. */
MX_INLINE void places_of_few(uint64_t bits, int32_t first, int32_t *place)
{
    enum { SOME = 8 };
    do {
#pragma GCC unroll 8
        for (int i = 0; i < SOME; i++, bits &= bits - 1)
            place[i] = first + __builtin_ctzll(bits | 1ULL << 63);
        place += SOME;
    } while (bits);
}

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
