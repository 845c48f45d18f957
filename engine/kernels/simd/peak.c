/* Loops for the peaks of this instruction set. The sums are as many as in the register block of the product kernels:
 * enough to hide the latency of any multiply-add unit. */
#include "kernels/context.h"
#include "kernels/peak_paths.h"
#include "kernels/simd/simd.h"

enum { SUMS = MX_SIMD_512 ? 24 : 12 };

static double f32(int64_t rounds, float *result)
{
    vf sum[SUMS], a = vf_set1(1.0f), b = vf_set1(1e-9f);
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++)
        sum[i] = vf_set1((float)i); /* not all alike, or the compiler could keep one */
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++)
            sum[i] = vf_fma(a, b, sum[i]);
        __asm__ volatile("" ::: "memory");
    }
#pragma GCC unroll 24
    for (int i = 1; i < SUMS; i++)
        sum[0] = sum[0] + sum[i];
    *result = vf_sum(sum[0]);
    return 2.0 * VL * SUMS * (double)rounds;
}

const mx_peak_path MX_SIMD_NAME(mx_peak_f32) = {MX_SIMD_512 ? "VFMADD231PS, 512 bits" : "VFMADD231PS, 256 bits", f32};

#if defined(MX_SIMD_AVX512_BF16)
static double bf16(int64_t rounds, float *result)
{
    vf sum[SUMS];
    __m512bh a = (__m512bh)vi_set1(0x3f803f80), b = (__m512bh)vi_set1(0x2f802f80);
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++)
        sum[i] = vf_set1((float)i); /* not all alike, or the compiler could keep one */
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 24
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], a, b);
        __asm__ volatile("" ::: "memory");
    }
#pragma GCC unroll 24
    for (int i = 1; i < SUMS; i++)
        sum[0] = sum[0] + sum[i];
    *result = vf_sum(sum[0]);
    return 4.0 * VL * SUMS * (double)rounds;
}
const mx_peak_path MX_SIMD_NAME(mx_peak_bf16) = {"VDPBF16PS, 512 bits", bf16};
#endif

static void copy(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 4 * VL) {
        prefetch_ahead(from + i, 16 * VL);
        vf a = vf_load(from + i), b = vf_load(from + i + VL);
        vf c = vf_load(from + i + 2 * VL), d = vf_load(from + i + 3 * VL);
        vf_stream(to + i, a);
        vf_stream(to + i + VL, b);
        vf_stream(to + i + 2 * VL, c);
        vf_stream(to + i + 3 * VL, d);
    }
    _mm_sfence();
}

const mx_peak_copy_paths MX_SIMD_NAME(mx_peak_copy) = {.copy = copy};
