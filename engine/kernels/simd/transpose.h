/* A square of VL vectors turned over in registers. */
#ifndef MX_KERNELS_SIMD_TRANSPOSE_H
#define MX_KERNELS_SIMD_TRANSPOSE_H

#include "kernels/simd/simd.h"

/* r[i] lane j <-> r[j] lane i. */
MX_INLINE void transpose(vf r[VL])
{
    vf t[VL], u[VL];
#if MX_SIMD_512
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        __m512d t0 = _mm512_castps_pd(t[i]), t1 = _mm512_castps_pd(t[i + 1]);
        __m512d t2 = _mm512_castps_pd(t[i + 2]), t3 = _mm512_castps_pd(t[i + 3]);
        u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(t0, t2));
        u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t0, t2));
        u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t1, t3));
        u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t1, t3));
    }
    /* The 128-bit lane L of u[4 i + c] holds column 4 L + c of rows 4 i to 4 i + 3. */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vf even01 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), odd01 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
        vf even23 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
        vf odd23 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
        r[c] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        r[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        r[8 + c] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
        r[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
#else
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        r[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
        r[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
    }
#endif
}

#endif
