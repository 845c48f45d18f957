/* Prefetching line by line while a micro-kernel multiplies. Many lines at once would take all the places for lines on
 * their way, and the operands would wait for one. */
#ifndef MX_KERNELS_SIMD_PREFETCH_H
#define MX_KERNELS_SIMD_PREFETCH_H

#include "kernels/gemm_micro.h"
#include "kernels/inline.h"

#include <immintrin.h>

typedef struct prefetcher {
    mx_ahead now; /* no rows: all is done */
    int64_t at;   /* bytes into the row */
    const mx_ahead *next;
    int64_t lines; /* in each step */
} prefetcher;

MX_INLINE int64_t lines_of(mx_ahead x) { return x.rows * ((x.bytes + 63) / 64); }

/* `first` and then the list `ahead`, NULL: none; evenly in so many steps. */
MX_INLINE prefetcher prefetcher_of(mx_ahead first, const mx_ahead *ahead, int64_t steps)
{
    static const mx_ahead nothing = {0};
    prefetcher f = {.now = first, .next = ahead ? ahead : &nothing};
    int64_t lines = lines_of(first);
    for (const mx_ahead *x = f.next; x->rows > 0; x++)
        lines += lines_of(*x);
    f.lines = steps > 0 ? mx_ceil_div(lines, steps) : 0;
    return f;
}

/* A step. */
MX_INLINE void prefetch_some(prefetcher *f)
{
    for (int64_t i = 0; i < f->lines && f->now.rows > 0; i++) {
        _mm_prefetch(f->now.at + f->at, _MM_HINT_T0);
        f->at += 64;
        if (f->at < f->now.bytes)
            continue;
        f->at = 0;
        f->now.at += f->now.step;
        if (--f->now.rows == 0)
            f->now = *f->next++;
    }
}

#endif
