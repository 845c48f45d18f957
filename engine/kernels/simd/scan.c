#include "kernels/context.h"

#include "kernels/simd/rows.h"

/* Each lane plus all lanes before it, and the lanes in opposite order. */
#if MX_SIMD_512
#define SHIFT(x, lanes) vi_float(_mm512_alignr_epi32(vf_bits(x), _mm512_setzero_si512(), 16 - (lanes)))

MX_INLINE vf prefix(vf x)
{
    x = x + SHIFT(x, 1);
    x = x + SHIFT(x, 2);
    x = x + SHIFT(x, 4);
    return x + SHIFT(x, 8);
}

MX_INLINE vf reversed(vf x)
{
    return _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), x);
}

MX_INLINE float last_lane(vf x) { return _mm_cvtss_f32(_mm_permute_ps(_mm512_extractf32x4_ps(x, 3), 0xff)); }
#else
#define SHIFT(x, lanes) vi_float(_mm256_slli_si256(vf_bits(x), 4 * (lanes)))

MX_INLINE vf prefix(vf x)
{
    x = x + SHIFT(x, 1);
    x = x + SHIFT(x, 2);
    vf low = _mm256_permute2f128_ps(x, x, 0x08); /* zeros, then the lower half */
    return x + _mm256_permute_ps(low, 0xff);
}

MX_INLINE vf reversed(vf x) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }

MX_INLINE float last_lane(vf x) { return _mm_cvtss_f32(_mm_permute_ps(_mm256_extractf128_ps(x, 1), 0xff)); }
#endif

MX_INLINE double row_as(const void *x, const bool bf16, int64_t n, const bool reverse, double start, void *y)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k += VL) {
        int64_t left = n - k < VL ? n - k : VL, i = reverse ? n - k - left : k;
        float lane[VL];
        vf v = left == VL ? row_load(x, i, bf16) : row_load_part(x, i, left, bf16);
        if (reverse && left == VL) {
            v = reversed(v);
        } else if (reverse) { /* the part begins with zeros */
            vf_store(lane, reversed(v));
            memmove(lane, lane + VL - left, (size_t)left * sizeof *lane);
            memset(lane + left, 0, (size_t)(VL - left) * sizeof *lane);
            v = vf_load(lane);
        }
        v = prefix(v);
        vf result = vf_set1((float)(start + sum)) + v;
        sum += (double)last_lane(v);
        if (!y)
            continue;
        if (reverse)
            result = reversed(result);
        if (left == VL) {
            row_store(y, i, result, bf16);
        } else if (!reverse) {
            row_store_part(y, i, result, left, bf16);
        } else {
            vf_store(lane, result);
            memmove(lane, lane + VL - left, (size_t)left * sizeof *lane);
            row_store_part(y, i, vf_load(lane), left, bf16);
        }
    }
    return sum;
}

static double row(const void *x, mx_dtype dtype, int64_t n, bool reverse, double start, void *y)
{
    if (mx_is_bf16(dtype))
        return reverse ? row_as(x, true, n, true, start, y) : row_as(x, true, n, false, start, y);
    return reverse ? row_as(x, false, n, true, start, y) : row_as(x, false, n, false, start, y);
}

MX_INLINE void rows_as(const void *x, const bool bf16, int64_t n, int64_t stride, int64_t width, const float *base,
                       float *local, void *y)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i * stride, c = 0, bytes = bf16 ? 2 : 4;
        for (; c + VL <= width; c += VL) {
            _mm_prefetch((const char *)x + (at + stride + c) * bytes, _MM_HINT_T0);
            __builtin_prefetch((char *)y + (at + stride + c) * bytes, 1);
            vf sum = vf_load(local + c) + row_load(x, at + c, bf16);
            vf_store(local + c, sum);
            row_store(y, at + c, vf_load(base + c) + sum, bf16);
        }
        if (c < width) {
            int64_t left = width - c;
            vf sum = vf_load_part(local + c, left) + row_load_part(x, at + c, left, bf16);
            vf_store_part(local + c, sum, left);
            row_store_part(y, at + c, vf_load_part(base + c, left) + sum, left, bf16);
        }
    }
}

static void rows(const void *x, mx_dtype dtype, int64_t n, int64_t stride, int64_t width, const float *base,
                 float *local, void *y)
{
    if (mx_is_bf16(dtype))
        rows_as(x, true, n, stride, width, base, local, y);
    else
        rows_as(x, false, n, stride, width, base, local, y);
}

const mx_scan_paths MX_SIMD_NAME(mx_scan) = {.row = row, .rows = rows};
