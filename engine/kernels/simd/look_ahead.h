/* Loops over columns with little arithmetic take ROWS_AT_ONCE rows side by side. They ask for what each row has
 * LOOK_AHEAD bytes later, or at the end of a piece of the rows, for the rows that come next. On Zen 5 columns of bf16
 * are a tenth faster so than with next_rows, but those whose exponentials are computed are slower. */
#ifndef MX_KERNELS_SIMD_LOOK_AHEAD_H
#define MX_KERNELS_SIMD_LOOK_AHEAD_H

#include "core/cpu.h"
#include "kernels/simd/rows.h"

enum { ROWS_AT_ONCE = 8, LOOK_AHEAD = 1024 };

/* Where the processor reads ahead by itself (mx_cpu_reads_ahead()), so many rows of f32 side by side, and so many cache
 * lines of each, are read fastest. bf16 takes more instructions for a line, so that fewer lines are under way at once:
 * asking for them is as fast. */
enum { ROWS_UNASKED = 4, LINES = 4 };

typedef struct look_ahead {
    int64_t turn, near, far; /* elements to the place that is asked for, from before column `turn` and from there on */
} look_ahead;

MX_INLINE look_ahead look_ahead_of(int64_t rows, int64_t stride, int64_t width, const bool bf16)
{
    const int64_t columns = LOOK_AHEAD / (bf16 ? 2 : 4);
    if (rows == 1)
        return (look_ahead){0, 0, PREFETCH_AHEAD / (bf16 ? 2 : 4)};
    if (width > columns)
        return (look_ahead){width - columns, columns, columns - width + rows * stride};
    return (look_ahead){0, 0, (columns + width - 1) / width * rows * stride};
}

MX_INLINE int64_t place_ahead(const look_ahead *look, int64_t j)
{
    return j + (j < look->turn ? look->near : look->far);
}

#endif
