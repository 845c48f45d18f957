#include "kernels/context.h"

#include "core/element.h"
#include "kernels/inline.h"
#include "kernels/sort.h"

static int64_t beyond(const void *x, mx_dtype dtype, int64_t from, int64_t n, float bound, bool below)
{
    for (int64_t i = from; i < n; i++) {
        float one = mx_get_float(x, i, dtype);
        if (below ? !(one >= bound) : !(one <= bound))
            return i;
    }
    return n;
}

/* Any number below the kth best will do: this one does not save work. */
static int32_t best_of_parts(const void *x, mx_dtype dtype, int64_t n, int64_t part, int64_t k, bool smallest,
                             int32_t *keys)
{
    (void)k;
    for (int64_t i = 0; i < n; i++) {
        int32_t key = mx_order_key(x, i, dtype, smallest), *best = &keys[i / part];
        if (i % part == 0 || key > *best)
            *best = key;
    }
    return INT32_MIN;
}

static int64_t above(const void *x, mx_dtype dtype, int64_t from, int64_t n, int32_t bound, bool smallest, int32_t *ids)
{
    int64_t found = 0;
    for (int64_t i = from; i < n; i++)
        if (mx_order_key(x, i, dtype, smallest) > bound)
            ids[found++] = (int32_t)i;
    return found;
}

static void best_of(const void *x, mx_dtype dtype, int64_t lines, int64_t n, int64_t k, bool smallest, void *values,
                    int32_t *ids)
{
    uint32_t order = smallest ? 0 : UINT32_MAX, key[MX_BEST_K] = {0};
    int32_t list[MX_BEST_K] = {0};
    for (int64_t line = 0; line < lines; line++) {
        for (int64_t i = 0; i < n; i++) {
            uint32_t one = mx_sort_key(x, line * n + i, dtype) ^ order;
            int64_t at = mx_min(i, k);
            for (; at > 0 && one < key[at - 1]; at--)
                if (at < k) {
                    key[at] = key[at - 1];
                    list[at] = list[at - 1];
                }
            if (at < k) {
                key[at] = one;
                list[at] = (int32_t)i;
            }
        }
        for (int64_t i = 0; i < k; i++) {
            if (ids)
                ids[line * k + i] = list[i];
            if (values)
                mx_set_float(values, line * k + i, mx_get_float(x, line * n + list[i], dtype), dtype);
        }
    }
}

const mx_sort_paths mx_sort_portable = {
    .beyond = beyond, .best_of_parts = best_of_parts, .above = above, .best = best_of};
