/* Sorts and selects along a dimension. An array is (outer, n, inner), row-major; each of its outer * inner lines of n
 * elements is sorted by itself. Ids count from 0 along the line.
 *
 * The order: NaN is greater than every number, and 0 equals -0. Equal elements stay in the order of their ids, in both
 * directions. So each result is unique: it depends on neither threads nor instruction set. */
#ifndef MX_KERNELS_SORT_H
#define MX_KERNELS_SORT_H

#include "kernels/reduce.h"

/* values (outer, n, inner), of x's dtype, and ids of the same shape; either may be NULL. n fits i32. x has a dtype with
 * arithmetic. MX_ERR_MEMORY without memory for 20 bytes per element of a line, for each thread. */
mx_status mx_sort(mx_array x, mx_extent e, bool descending, void *values, int32_t *ids);

/* The k greatest elements of each line (the k least, with `smallest`) in their order: values and ids (outer, k, inner);
 * 0 <= k <= n. Otherwise as mx_sort. */
mx_status mx_topk(mx_array x, mx_extent e, int64_t k, bool smallest, void *values, int32_t *ids);

/* Element i as an unsigned integer, so that these are in the order of the elements: of up to 4 bytes. */
static inline uint32_t mx_sort_key(const void *x, int64_t i, mx_dtype dtype)
{
    switch (dtype) {
    case MX_F32: {
        uint32_t bits = ((const uint32_t *)x)[i];
        if (bits << 1 > 0xff000000u) /* NaN */
            return UINT32_MAX;
        if (bits << 1 == 0)
            bits = 0;
        return bits ^ ((uint32_t) - (int32_t)(bits >> 31) | 0x80000000u);
    }
    case MX_BF16: {
        uint32_t bits = ((const uint16_t *)x)[i];
        if ((bits & 0x7fff) > 0x7f80)
            return UINT16_MAX;
        if ((bits & 0x7fff) == 0)
            bits = 0;
        return bits & 0x8000 ? bits ^ 0xffff : bits | 0x8000;
    }
    case MX_I32:
        return ((const uint32_t *)x)[i] ^ 0x80000000u;
    case MX_I8:
        return ((const uint8_t *)x)[i] ^ 0x80u;
    case MX_U8:
        return ((const uint8_t *)x)[i];
    default:
        mx_dtype_unexpected(dtype, __func__);
    }
}

/* Element i of f32 or bf16 as a number in the order of the results, the greatest first: the bits of the f32 without its
 * sign, negative if it has one, and INT32_MAX for NaN; negated with `smallest`. Never INT32_MIN. */
static inline int32_t mx_order_key(const void *x, int64_t i, mx_dtype dtype, bool smallest)
{
    uint32_t bits = dtype == MX_BF16 ? (uint32_t)((const uint16_t *)x)[i] << 16 : ((const uint32_t *)x)[i];
    int32_t size = (int32_t)(bits & INT32_MAX), key = size > 0x7f800000 ? INT32_MAX : bits >> 31 ? -size : size;
    return smallest ? -key : key;
}

/* For one instruction set, x f32 or bf16. */
enum { MX_BEST_N = 1024, MX_BEST_K = 16, MX_MOST_PARTS = 512, MX_PART_UNIT = 32 };
typedef struct mx_sort_paths {
    /* The first i in [from, n) for which x[i] <= bound does not hold (with `below`: x[i] >= bound), or n. So NaN is
     * found. */
    int64_t (*beyond)(const void *x, mx_dtype dtype, int64_t from, int64_t n, float bound, bool below);
    /* The greatest key of each `part` elements of a line of n (less in the last part), in keys[MX_MOST_PARTS]. Returns
     * a number that at least k of these keys are greater than, few more if possible, or INT32_MIN. part: a multiple of
     * MX_PART_UNIT. */
    int32_t (*best_of_parts)(const void *x, mx_dtype dtype, int64_t n, int64_t part, int64_t k, bool smallest,
                             int32_t *keys);
    /* Where in [from, n) the elements with greater keys than `bound` are, in `ids`; returns how many. */
    int64_t (*above)(const void *x, mx_dtype dtype, int64_t from, int64_t n, int32_t bound, bool smallest,
                     int32_t *ids);
    /* On one thread: mx_topk of `lines` lines of n <= MX_BEST_N neighbours, with 1 <= k <= MX_BEST_K. */
    void (*best)(const void *x, mx_dtype dtype, int64_t lines, int64_t n, int64_t k, bool smallest, void *values,
                 int32_t *ids);
} mx_sort_paths;

#endif
