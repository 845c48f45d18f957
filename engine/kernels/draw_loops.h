/* Loops of random draws: plain C that the compiler turns into vectors. Each path includes this file once
 * (portable/draw.c, simd/draw.c); every path computes the same bits. */
#ifndef MX_KERNELS_DRAW_LOOPS_H
#define MX_KERNELS_DRAW_LOOPS_H

#include "core/element.h"
#include "kernels/draw.h"
#include "kernels/inline.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- the quantiles of the normal distribution, to a relative 1.2e-9: Acklam's rational approximations ---- */

#define EDGE 0.02425 /* p below it and above 1 - EDGE is in the tails */

MX_INLINE double middle_quantile(double p)
{
    double q = p - 0.5, r = q * q;
    double above = -3.969683028665376e+01, below = -5.447609879822406e+01;
    above = above * r + 2.209460984245205e+02;
    above = above * r + -2.759285104469687e+02;
    above = above * r + 1.383577518672690e+02;
    above = above * r + -3.066479806614716e+01;
    above = above * r + 2.506628277459239e+00;
    below = below * r + 1.615858368580409e+02;
    below = below * r + -1.556989798598866e+02;
    below = below * r + 6.680131188771972e+01;
    below = below * r + -1.328068155288572e+01;
    return above * q / (below * r + 1);
}

static double tail_quantile(double p)
{
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                               -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
    static const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};
    double q = sqrt(-2 * log(p < EDGE ? p : 1 - p));
    double x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
               ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
    return p < EDGE ? x : -x;
}

static void loops_truncate(const mx_quantiles *c, const uint32_t *words, float *y, int64_t n)
{
    const mx_quantiles k = *c;
    double p[MX_RNG_GROUP], z[MX_RNG_GROUP];
    for (int64_t first = 0; first < n; first += MX_RNG_GROUP) {
        for (int i = 0; i < MX_RNG_GROUP; i++)
            p[i] = k.below + ((double)words[first + i] + 0.5) * 0x1p-32 * k.width;
        for (int i = 0; i < MX_RNG_GROUP; i++)
            z[i] = middle_quantile(p[i]);
        for (int i = 0; i < MX_RNG_GROUP; i++)
            if (p[i] < EDGE || p[i] > 1 - EDGE)
                z[i] = tail_quantile(p[i]);
        for (int i = 0; i < MX_RNG_GROUP; i++) {
            double at = !(z[i] > k.low) ? k.low : z[i] < k.high ? z[i] : k.high;
            float value = (float)(k.mean + k.std * at);
            y[first + i] = value < k.least ? k.least : value > k.greatest ? k.greatest : value;
        }
    }
}

/* ---- chances and weights ---- */

enum { PREFETCH_BYTES = 4096 }; /* the processor's own prefetching ends with each page */

MX_INLINE void prefetch(const void *x, int64_t bytes)
{
    for (int64_t b = 0; b < bytes; b += 64)
        __builtin_prefetch((const char *)x + PREFETCH_BYTES + b);
}

/* The bits of floats from 0 on have the order of the numbers; those of NaN and of all below 0 are larger, and -0, which
 * is `sign`, is 0. */
#define DEFINE_WITHIN(name, type, sign)                                                                                \
    MX_INLINE type name##_some(const type *bits, type most, int64_t n)                                                 \
    {                                                                                                                  \
        type bad = 0;                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            bad |= (type)((bits[i] > most) & (bits[i] != (sign)));                                                     \
        return bad;                                                                                                    \
    }                                                                                                                  \
    static bool name(const type *bits, type most, int64_t n)                                                           \
    {                                                                                                                  \
        enum { STEP = 512 / sizeof(type) };                                                                            \
        type bad = 0;                                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + STEP <= n; i += STEP) {                                                                             \
            prefetch(bits + i, 512);                                                                                   \
            bad |= name##_some(bits + i, most, STEP);                                                                  \
        }                                                                                                              \
        return !(bad | name##_some(bits + i, most, n - i));                                                            \
    }
#define SIGN_F32 0x80000000u
#define SIGN_BF16 0x8000
DEFINE_WITHIN(within_f32, uint32_t, SIGN_F32)
DEFINE_WITHIN(within_bf16, uint16_t, SIGN_BF16)

static bool loops_within(mx_dtype dtype, const void *x, float most, int64_t n)
{
    uint32_t limit;
    memcpy(&limit, &most, sizeof limit);
    return mx_is_bf16(dtype) ? within_bf16(x, (uint16_t)(limit >> 16), n) : within_f32(x, limit, n);
}

/* In 16 sums, which are added in halves. */
MX_INLINE double block_sum(const float *x)
{
    double sum[16];
    for (int k = 0; k < 16; k++)
        sum[k] = (double)x[k];
    for (int i = 16; i < MX_WEIGHT_BLOCK; i += 16)
        for (int k = 0; k < 16; k++)
            sum[k] += (double)x[i + k];
#pragma GCC unroll 4
    for (int half = 8; half; half /= 2)
        for (int k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

/* Lower and upper halves of words apart: vectors of 16 bits would be widened in more steps. */
MX_INLINE double block_sum_bf16(const mx_bf16 *x)
{
    enum { WORDS = MX_WEIGHT_BLOCK / 2 };
    uint32_t words[WORDS], widened[2 * WORDS];
    float block[2 * WORDS];
    memcpy(words, x, sizeof words);
    for (int i = 0; i < WORDS; i++) {
        widened[i] = words[i] << 16;
        widened[WORDS + i] = words[i] & 0xffff0000u;
    }
    memcpy(block, widened, sizeof block);
    return block_sum(block);
}

/* Whether all n are weights: each place of a block has a flag of its own, so that nothing is gathered before the end.
 * The last block may be smaller. */
#define DEFINE_SUMS(name, type, sum, sign)                                                                             \
    MX_INLINE double name##_block(const type *x, type most, type bad[MX_WEIGHT_BLOCK])                                 \
    {                                                                                                                  \
        for (int i = 0; i < MX_WEIGHT_BLOCK; i++)                                                                      \
            bad[i] |= (type)((x[i] > most) & (x[i] != (sign)));                                                        \
        return sum((const void *)x);                                                                                   \
    }                                                                                                                  \
    static bool name(const type *x, type most, int64_t n, double *sums)                                                \
    {                                                                                                                  \
        type bad[MX_WEIGHT_BLOCK] = {0}, rest[MX_WEIGHT_BLOCK] = {0}, any = 0;                                         \
        int64_t i = 0;                                                                                                 \
        for (; i + MX_WEIGHT_BLOCK <= n; i += MX_WEIGHT_BLOCK) {                                                       \
            prefetch(x + i, sizeof rest);                                                                              \
            sums[i / MX_WEIGHT_BLOCK] = name##_block(x + i, most, bad);                                                \
        }                                                                                                              \
        if (i < n) {                                                                                                   \
            memcpy(rest, x + i, (size_t)(n - i) * sizeof(type));                                                       \
            sums[i / MX_WEIGHT_BLOCK] = name##_block(rest, most, bad);                                                 \
        }                                                                                                              \
        for (i = 0; i < MX_WEIGHT_BLOCK; i++)                                                                          \
            any |= bad[i];                                                                                             \
        return !any;                                                                                                   \
    }
DEFINE_SUMS(sums_f32, uint32_t, block_sum, SIGN_F32)
DEFINE_SUMS(sums_bf16, uint16_t, block_sum_bf16, SIGN_BF16)

static bool loops_sums(mx_dtype dtype, const void *x, int64_t n, double *sums)
{
    const float most = FLT_MAX;
    uint32_t limit;
    memcpy(&limit, &most, sizeof limit);
    return mx_is_bf16(dtype) ? sums_bf16(x, (uint16_t)(limit >> 16), n, sums) : sums_f32(x, limit, n, sums);
}

#endif
