#include "kernels/context.h"

#include "kernels/mark_loops.h"

/* `bits`: those of an element that are not 0 unless the number is 0. */
#define MARK(type, bits)                                                                                               \
    for (int64_t i = 0; i < n; i++)                                                                                    \
    mask[i / 64] |= (uint64_t)((((const type *)x)[i] & (type)(bits)) != 0) << i % 64

static int64_t mark(mx_dtype dtype, const void *x, uint64_t *mask, int64_t n)
{
    const size_t bytes = mx_dtype_bytes(dtype);
    const uint64_t bits = mx_dtype_is_integer(dtype) ? UINT64_MAX : UINT64_MAX >> (65 - 8 * bytes);
    for (int64_t w = 0; w < mx_ceil_div(n, 64); w++)
        mask[w] = 0;
    if (bytes == 8)
        MARK(uint64_t, bits);
    else if (bytes == 4)
        MARK(uint32_t, bits);
    else if (bytes == 2)
        MARK(uint16_t, bits);
    else
        MARK(uint8_t, bits);
    int64_t found = 0;
    for (int64_t w = 0; w < mx_ceil_div(n, 64); w++)
        found += __builtin_popcountll(mask[w]);
    return found;
}

const mx_mark_paths mx_marks_portable = {.mark = mark, .places = loops_places, .pairs = loops_pairs};
