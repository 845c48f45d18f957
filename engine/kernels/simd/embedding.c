/* The row primitives of embedding.h: to = scale from, and to += scale from. */
#include "kernels/context.h"

#include "kernels/embedding.h"
#include "kernels/simd/rows.h"

MX_INLINE vf combine(vf to, vf from, vf scale, const bool add)
{
    if (add)
        return vf_fma(from, scale, to);
    return from * scale;
}

MX_INLINE void row(void *to, const void *from, float factor, int64_t n, const bool add, const bool to_bf16,
                   const bool from_bf16)
{
    vf scale = vf_set1(factor), old = vf_zero();
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        if (add)
            old = row_load(to, i, to_bf16);
        row_store(to, i, combine(old, row_load(from, i, from_bf16), scale, add), to_bf16);
    }
    if (i < n) {
        if (add)
            old = row_load_part(to, i, n - i, to_bf16);
        row_store_part(to, i, combine(old, row_load_part(from, i, n - i, from_bf16), scale, add), n - i, to_bf16);
    }
}

MX_INLINE void row_of_dtypes(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n,
                             const bool add)
{
    if (mx_is_bf16(to_dtype))
        mx_is_bf16(from_dtype) ? row(to, from, scale, n, add, true, true) : row(to, from, scale, n, add, true, false);
    else
        mx_is_bf16(from_dtype) ? row(to, from, scale, n, add, false, true) : row(to, from, scale, n, add, false, false);
}

static void convert(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n)
{
    row_of_dtypes(to, to_dtype, from, from_dtype, scale, n, false);
}

static void add_row(void *to, mx_dtype to_dtype, const void *from, mx_dtype from_dtype, float scale, int64_t n)
{
    row_of_dtypes(to, to_dtype, from, from_dtype, scale, n, true);
}

/* Four sums, so that additions need not wait for each other. */
MX_INLINE float dot_of(const void *a, const void *b, int64_t n, const bool bf16)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        for (int u = 0; u < 4; u++)
            sum[u] = vf_fma(row_load(a, i + u * VL, bf16), row_load(b, i + u * VL, bf16), sum[u]);
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        sum[0] = vf_fma(row_load_part(a, i, left, bf16), row_load_part(b, i, left, bf16), sum[0]);
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float dot(const void *a, const void *b, mx_dtype dtype, int64_t n)
{
    return mx_is_bf16(dtype) ? dot_of(a, b, n, true) : dot_of(a, b, n, false);
}

const mx_row_paths MX_SIMD_NAME(mx_rows) = {convert, add_row, dot};
