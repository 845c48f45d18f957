/* What loops over an index ask for while they work: a line or two at a time, as many lines at once would take all the
 * places for lines on their way, and other loads would wait for these. */
#ifndef MX_KERNELS_INDEX_AHEAD_H
#define MX_KERNELS_INDEX_AHEAD_H

#include "kernels/inline.h"

#include <stdint.h>

enum { AHEAD_STEP = 32 }; /* elements, after which mx_index_ahead_step() is called */

/* The index and the values AHEAD elements on, and the bytes from `then` to `end`, in equal parts. */
typedef struct mx_index_ahead {
    const char *index, *values, *then, *end;
    int64_t some; /* of `then`, with each step */
} mx_index_ahead;

/* For n elements. */
MX_INLINE mx_index_ahead mx_index_ahead_of(const int32_t *index, const void *values, int64_t bytes, int64_t n,
                                           const char *then, int64_t more)
{
    enum { AHEAD = 1024 };
    const int64_t steps = mx_max(1, n / AHEAD_STEP);
    return (mx_index_ahead){(const char *)(index + AHEAD), (const char *)values + AHEAD * bytes, then, then + more,
                            mx_ceil_div(mx_ceil_div(more, 64), steps) * 64};
}

MX_INLINE void mx_index_ahead_step(mx_index_ahead *a, const int64_t bytes)
{
    for (int i = 0; i < AHEAD_STEP * (int)sizeof(int32_t); i += 64)
        __builtin_prefetch(a->index + i);
    for (int i = 0; i < AHEAD_STEP * bytes; i += 64)
        __builtin_prefetch(a->values + i);
    for (const char *stop = a->then + a->some; a->then < stop && a->then < a->end; a->then += 64)
        __builtin_prefetch(a->then, 0, 2);
    a->index += AHEAD_STEP * sizeof(int32_t);
    a->values += AHEAD_STEP * bytes;
}

#endif
