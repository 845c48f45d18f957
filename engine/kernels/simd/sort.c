#include "kernels/context.h"

#include "kernels/simd/rows.h"

/* Which lanes are beyond the bound; NaN is. */
MX_INLINE uint32_t lanes_beyond(vf x, vf bound, const bool below)
{
#if MX_SIMD_512
    return below ? _mm512_cmp_ps_mask(x, bound, _CMP_NGE_UQ) : _mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ);
#else
    vf beyond = below ? _mm256_cmp_ps(x, bound, _CMP_NGE_UQ) : _mm256_cmp_ps(x, bound, _CMP_NLE_UQ);
    return (uint32_t)_mm256_movemask_ps(beyond);
#endif
}

MX_INLINE int64_t find(const void *x, const bool bf16, int64_t i, int64_t n, float bound, const bool below)
{
    vf b = vf_set1(bound);
    for (; i + 4 * VL <= n; i += 4 * VL) {
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        uint32_t found[4], any = 0;
        for (int u = 0; u < 4; u++)
            any |= found[u] = lanes_beyond(row_load(x, i + u * VL, bf16), b, below);
        for (int u = 0; any && u < 4; u++)
            if (found[u])
                return i + u * VL + __builtin_ctz(found[u]);
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        uint32_t found = lanes_beyond(row_load_part(x, i, left, bf16), b, below) & (uint32_t)((1ull << left) - 1);
        if (found)
            return i + __builtin_ctz(found);
    }
    return n;
}

int64_t MX_SIMD_NAME(mx_beyond)(const void *x, mx_dtype dtype, int64_t from, int64_t n, float bound, bool below)
{
    if (mx_is_bf16(dtype))
        return below ? find(x, true, from, n, bound, true) : find(x, true, from, n, bound, false);
    return below ? find(x, false, from, n, bound, true) : find(x, false, from, n, bound, false);
}
