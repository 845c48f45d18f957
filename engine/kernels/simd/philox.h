/* Philox (core/rng.h) on vectors. Words are the lower halves of 64-bit lanes; what the upper halves are does not
 * matter, so both halves of a product serve as they are. */
#ifndef MX_KERNELS_SIMD_PHILOX_H
#define MX_KERNELS_SIMD_PHILOX_H

#include "kernels/simd/simd.h"

#if MX_SIMD_512
MX_INLINE vi times(vi a, vi b) { return _mm512_mul_epu32(a, b); }
MX_INLINE vi upper(vi a) { return _mm512_shuffle_epi32(a, _MM_PERM_CDAB); }
MX_INLINE vi xor3(vi a, vi b, vi c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
MX_INLINE vi blend_odd(vi even, vi odd) { return _mm512_mask_blend_epi32(0xaaaa, even, odd); }
#else
MX_INLINE vi times(vi a, vi b) { return _mm256_mul_epu32(a, b); }
MX_INLINE vi upper(vi a) { return _mm256_shuffle_epi32(a, 0xb1); }
MX_INLINE vi xor3(vi a, vi b, vi c) { return vi_xor(vi_xor(a, b), c); }
MX_INLINE vi blend_odd(vi even, vi odd) { return _mm256_blend_epi32(even, odd, 0xaa); }
#endif

/* The four words of VL blocks with the counters c (one word of each block a lane). */
MX_INLINE void philox(uint64_t seed, const vi c[4], vi word[4])
{
    const vi m0 = vi_set1((int32_t)0xD2511F53), m1 = vi_set1((int32_t)0xCD9E8D57);
    uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    vi x[2][4]; /* of even and odd lanes */
    for (int w = 0; w < 4; w++) {
        x[0][w] = c[w];
        x[1][w] = upper(c[w]);
    }
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < 2; k++) {
            vi product0 = times(x[k][0], m0), product1 = times(x[k][2], m1);
            x[k][0] = xor3(upper(product1), x[k][1], vi_set1((int32_t)low));
            x[k][1] = product1;
            x[k][2] = xor3(upper(product0), x[k][3], vi_set1((int32_t)high));
            x[k][3] = product0;
        }
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
    for (int w = 0; w < 4; w++)
        word[w] = blend_odd(x[0][w], upper(x[1][w]));
}

#endif
