/* The 8-bit floats: the only definition of how f32 becomes one of them and back. They are rounded to nearest, ties to
 * even, as the package ml_dtypes converts (float8_e4m3fn, float8_e5m2, float8_e4m3fnuz, float8_e5m2fnuz):
 *
 *   e4m3      4 bits of exponent, 3 of mantissa, no infinities; the largest is 448. What rounds to more becomes NaN.
 *   e5m2      as IEEE's formats, 5 and 2 bits; the largest is 57344. What rounds to more becomes infinite.
 *   e4m3fnuz  AMD's: the exponent's bias is one more, there are neither infinities nor -0, and 0x80 is the only NaN;
 *             the largest is 240. What rounds to more becomes NaN.
 *   e5m2fnuz  the same with 5 and 2 bits; the largest is 57344.
 *
 * A NaN keeps its sign where there are two. Denormal f32 become 0, as they would by rounding. */
#ifndef MX_CORE_FLOAT8_H
#define MX_CORE_FLOAT8_H

#include "core/dtype.h"

#include <math.h>

static inline float mx_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t mx_bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Codes of magnitude from `over` on are no numbers: the first of them stands for all that is too large. The format has
 * `mantissa` bits of mantissa; `lift` is by how much the bias of f32's exponent exceeds its own. */
static inline uint8_t mx_to_float8(float x, int mantissa, uint32_t lift, uint8_t over, uint8_t nan)
{
    uint32_t bits = mx_bits_of_float(x), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
    int cut = 23 - mantissa;
    uint32_t rounded = (magnitude + (1u << (cut - 1)) - 1 + (magnitude >> cut & 1u)) >> cut;
    uint32_t code = rounded - (lift << mantissa);
    /* A float whose last bit is the format's smallest number: adding it rounds there. */
    uint32_t ruler = (lift + 1 + (uint32_t)cut) << 23;
    if (magnitude < (lift + 1) << 23)
        code = mx_bits_of_float(mx_float_of_bits(magnitude) + mx_float_of_bits(ruler)) - ruler;
    code = code > over ? over : code;
    return (uint8_t)(sign | (magnitude > 0x7f800000u ? nan : code));
}

static inline float mx_from_float8(uint8_t code, int mantissa, uint32_t lift)
{
    uint32_t magnitude = (uint32_t)(code & 0x7fu) << (23 - mantissa), sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t hidden = (lift + 1) << 23; /* of denormals: adding and taking off the bit that they lack */
    float x = mx_float_of_bits(magnitude + (lift << 23));
    if (magnitude < 1u << 23)
        x = mx_float_of_bits(magnitude + hidden) - mx_float_of_bits(hidden);
    return mx_float_of_bits(mx_bits_of_float(x) | sign);
}

static inline uint8_t mx_to_fnuz(float x, int mantissa, uint32_t lift)
{
    uint8_t code = mx_to_float8(fabsf(x), mantissa, lift, 0x80, 0x80);
    return (uint8_t)(code && signbit(x) ? code | 0x80u : code);
}

static inline float mx_from_e4m3(uint8_t code)
{
    bool nan = (code & 0x7f) == 0x7f;
    return nan ? mx_float_of_bits((uint32_t)(code & 0x80u) << 24 | 0x7fc00000u) : mx_from_float8(code, 3, 127 - 7);
}

/* What e5m2 calls infinite or NaN has the exponent of f32's, once the mantissa is in place. */
static inline float mx_from_e5m2(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7fu;
    if (rest >= 0x7cu)
        return mx_float_of_bits(sign | (rest == 0x7cu ? 0x7f800000u : 0x7fc00000u));
    return mx_from_float8(code, 2, 127 - 15);
}

static inline float mx_from_fnuz(uint8_t code, int mantissa, uint32_t lift)
{
    return code == 0x80u ? mx_float_of_bits(0xffc00000u) : mx_from_float8(code, mantissa, lift);
}

static inline bool mx_dtype_is_float8(mx_dtype dtype)
{
    return mx_dtypes[dtype].is_float && mx_dtypes[dtype].bytes == 1;
}

/* The code of x in an 8-bit float, and the number of a code. */
static inline uint8_t mx_to_code(float x, mx_dtype dtype)
{
    switch (dtype) {
    case MX_E4M3:
        return mx_to_float8(x, 3, 127 - 7, 0x7f, 0x7f);
    case MX_E5M2:
        return mx_to_float8(x, 2, 127 - 15, 0x7c, 0x7e);
    case MX_E4M3FNUZ:
        return mx_to_fnuz(x, 3, 127 - 8);
    case MX_E5M2FNUZ:
        return mx_to_fnuz(x, 2, 127 - 16);
    default:
        mx_dtype_unexpected(dtype, __func__);
    }
}

static inline float mx_from_code(uint8_t code, mx_dtype dtype)
{
    switch (dtype) {
    case MX_E4M3:
        return mx_from_e4m3(code);
    case MX_E5M2:
        return mx_from_e5m2(code);
    case MX_E4M3FNUZ:
        return mx_from_fnuz(code, 3, 127 - 8);
    case MX_E5M2FNUZ:
        return mx_from_fnuz(code, 2, 127 - 16);
    default:
        mx_dtype_unexpected(dtype, __func__);
    }
}

#endif
