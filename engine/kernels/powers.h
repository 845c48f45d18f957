/* Powers of f32, computed in f64 by plain C that the compiler turns into vectors: log2 a by its series in
 * (m - 1) / (m + 1), 2^y by its Taylor polynomial, both to 1e-11. */
#ifndef MX_KERNELS_POWERS_H
#define MX_KERNELS_POWERS_H

#include "kernels/inline.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* log2 of a normal positive number. */
MX_INLINE double mx_log2_normal(double x)
{
    uint64_t bits, mantissa;
    memcpy(&bits, &x, sizeof bits);
    uint64_t shifted = bits - 0x3fe6a09e667f3bcdull; /* of sqrt(1/2): the mantissa is in [sqrt(1/2), sqrt(2)) */
    mantissa = (shifted & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull;
    /* The exponent as a double without a conversion of 64 bits, which AVX2 lacks. */
    uint64_t biased = ((shifted >> 52 ^ 0x800) & 0xfff) | 0x4330000000000000ull;
    double m, exponent;
    memcpy(&m, &mantissa, sizeof m);
    memcpy(&exponent, &biased, sizeof exponent);
    exponent -= 4503599627370496.0 + 2048.0;
    double z = (m - 1) / (m + 1), s = z * z;
    double p = 1.0 / 13;
    p = p * s + 1.0 / 11;
    p = p * s + 1.0 / 9;
    p = p * s + 1.0 / 7;
    p = p * s + 1.0 / 5;
    p = p * s + 1.0 / 3;
    p = p * s + 1.0;
    return exponent + 2.8853900817779268 * z * p;
}

/* 2^y for |y| < 1000. */
MX_INLINE double mx_exp2_near(double y)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52: the low bits of the sum are the whole number */
    double t = y + magic, r = (y - (t - magic)) * 0.69314718055994531;
    double p = 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    uint64_t whole, bits;
    memcpy(&whole, &t, sizeof whole);
    memcpy(&bits, &p, sizeof bits);
    bits += whole << 52;
    memcpy(&p, &bits, sizeof p);
    return p;
}

enum { MX_POWERS = 64 }; /* at a time */

/* y = a^b for n <= MX_POWERS elements. Zeros, infinities, NaN, negative and tiny a are left to the C library. */
static inline void mx_powers(const float *a, const float *b, float *y, int n)
{
    bool plain = true;
    for (int i = 0; i < n; i++)
        plain &= a[i] >= 1.17549435e-38f && a[i] <= 3.40282347e38f && fabsf(b[i]) <= 1e30f;
    if (!plain) {
        for (int i = 0; i < n; i++)
            y[i] = powf(a[i], b[i]);
        return;
    }
    for (int i = 0; i < n; i++) {
        double e = (double)b[i] * mx_log2_normal((double)a[i]);
        e = e < -300 ? -300 : e > 300 ? 300 : e; /* f32 has 0 and infinity there */
        y[i] = (float)mx_exp2_near(e);
    }
}

#endif
