/* The row loops of convolutions, for every path: plain loops that the compiler vectorizes. A file that includes this
 * has set PATH_NAME. */
#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

enum { LANES = 32 }; /* partial sums, so that a sum is vectorized without changing its order */

MX_INLINE float value_at(const void *x, bool bf16, int64_t i)
{
    return bf16 ? mx_from_bf16(((const mx_bf16 *)x)[i]) : ((const float *)x)[i];
}

MX_INLINE void add_as(int64_t n, float scale, const void *x, bool bf16, int64_t x_step, float *y, int64_t y_step)
{
    for (int64_t i = 0; i < n; i++)
        y[i * y_step] += scale * value_at(x, bf16, i * x_step);
}

static void add(int64_t n, float scale, const void *x, mx_dtype dtype, int64_t x_step, float *y, int64_t y_step)
{
    bool bf16 = mx_is_bf16(dtype);
    if (x_step == 1 && y_step == 1 && bf16)
        add_as(n, scale, x, true, 1, y, 1);
    else if (x_step == 1 && y_step == 1)
        add_as(n, scale, x, false, 1, y, 1);
    else
        add_as(n, scale, x, bf16, x_step, y, y_step);
}

MX_INLINE float dot_as(int64_t n, const void *x, bool x_bf16, int64_t x_step, const void *y, bool y_bf16)
{
    float lane[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += value_at(x, x_bf16, (i + l) * x_step) * value_at(y, y_bf16, i + l);
    for (; i < n; i++)
        total += value_at(x, x_bf16, i * x_step) * value_at(y, y_bf16, i);
    for (int l = 0; l < LANES; l++)
        total += lane[l];
    return total;
}

static float dot(int64_t n, const void *x, mx_dtype x_dtype, int64_t x_step, const void *y, mx_dtype y_dtype)
{
    bool a = mx_is_bf16(x_dtype), b = mx_is_bf16(y_dtype);
    if (x_step == 1 && a && b)
        return dot_as(n, x, true, 1, y, true);
    if (x_step == 1 && !a && !b)
        return dot_as(n, x, false, 1, y, false);
    return dot_as(n, x, a, x_step, y, b);
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

const mx_conv_paths PATH_NAME = {add, dot, sum};
