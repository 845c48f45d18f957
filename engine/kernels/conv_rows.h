/* The row loops of convolutions, for every path: plain loops that the compiler vectorizes. */
#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

enum { LANES = 32 }; /* partial sums, so that a sum is vectorized without changing its order */

MX_INLINE float value_at(const void *x, bool bf16, int64_t i)
{
    return bf16 ? mx_from_bf16(((const mx_bf16 *)x)[i]) : ((const float *)x)[i];
}

MX_INLINE float sum_as(int64_t n, const void *x, bool bf16)
{
    float lane[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += value_at(x, bf16, i + l);
    for (; i < n; i++)
        total += value_at(x, bf16, i);
    for (int l = 0; l < LANES; l++)
        total += lane[l];
    return total;
}

static float sum(int64_t n, const void *x, mx_dtype dtype)
{
    return mx_is_bf16(dtype) ? sum_as(n, x, true) : sum_as(n, x, false);
}
