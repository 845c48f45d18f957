/* The loops of quantize.h: plain C that the compiler turns into vectors. Each path includes this file once. */
#ifndef MX_KERNELS_QUANTIZE_LOOPS_H
#define MX_KERNELS_QUANTIZE_LOOPS_H

#include "core/float8.h"
#include "core/rng.h"
#include "kernels/inline.h"
#include "kernels/quantize.h"

#include <math.h>

static void load(const void *x, mx_dtype dtype, int64_t n, float row_factor, const float *column_factor, float *values)
{
    if (mx_is_bf16(dtype))
        for (int64_t i = 0; i < n; i++)
            values[i] = mx_from_bf16(((const mx_bf16 *)x)[i]);
    else
        memcpy(values, x, (size_t)n * sizeof *values);
    for (int64_t i = 0; row_factor != 1.0f && i < n; i++)
        values[i] *= row_factor;
    for (int64_t i = 0; column_factor && i < n; i++)
        values[i] *= column_factor[i];
}

MX_INLINE int32_t magnitude(float x) { return (int32_t)(mx_bits_of_float(x) & 0x7fffffffu); }

static int32_t find_largest(const float *values, int64_t n, int32_t largest)
{
    for (int64_t i = 0; i < n; i++)
        largest = magnitude(values[i]) > largest ? magnitude(values[i]) : largest;
    return largest;
}

static void find_largest_each(const float *values, int64_t n, int32_t *largest)
{
    for (int64_t i = 0; i < n; i++)
        largest[i] = magnitude(values[i]) > largest[i] ? magnitude(values[i]) : largest[i];
}

static void divide(float *values, int64_t n, float scale, const float *scale_each)
{
    float inverse = 1.0f / scale;
    if (scale_each)
        for (int64_t i = 0; i < n; i++)
            values[i] *= 1.0f / scale_each[i];
    else
        for (int64_t i = 0; i < n; i++)
            values[i] *= inverse;
}

/* The distance of neighbours around x in a format is 2^(exponent - mantissa), and not below that of denormals. */
static void scatter(float *values, int64_t n, mx_dtype code, uint64_t seed, int64_t number)
{
    const mx_dtype_traits *t = &mx_dtypes[code];
    float unit = t->is_float ? ldexpf(1.0f, -t->mantissa_bits) : 1.0f;
    float least = t->is_float ? ldexpf(unit, 1 - t->exponent_bias) : 1.0f;
    for (int64_t i = 0; i < n; i++) {
        float power = mx_float_of_bits(mx_bits_of_float(values[i]) & 0x7f800000u);
        float step = t->is_float && power * unit > least ? power * unit : least;
        float u = mx_rng_unit(mx_rng_hash((uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)(number + i)));
        values[i] = floorf(values[i] / step + u) * step;
    }
}

MX_INLINE float limit(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* The loop for one format, which is a constant in it. */
MX_INLINE void round_to_float8(const float *values, int64_t n, mx_dtype code, uint8_t *codes)
{
    float most = mx_dtypes[code].bound;
    for (int64_t i = 0; i < n; i++)
        codes[i] = mx_to_code(limit(values[i], -most, most), code);
}

static void round_to_codes(const float *values, int64_t n, mx_dtype code, void *codes)
{
    if (code == MX_I8)
        for (int64_t i = 0; i < n; i++) {
            float x = values[i] == values[i] ? values[i] : 0.0f;
            ((int8_t *)codes)[i] = (int8_t)(int32_t)rintf(limit(x, -128.0f, 127.0f));
        }
    else if (code == MX_E4M3)
        round_to_float8(values, n, MX_E4M3, codes);
    else if (code == MX_E5M2)
        round_to_float8(values, n, MX_E5M2, codes);
    else if (code == MX_E4M3FNUZ)
        round_to_float8(values, n, MX_E4M3FNUZ, codes);
    else
        round_to_float8(values, n, MX_E5M2FNUZ, codes);
}

#define QUANTIZE_LOOPS                                                                                                 \
    {                                                                                                                  \
        .load = load, .largest = find_largest, .largest_each = find_largest_each, .divide = divide,                    \
        .scatter = scatter, .round = round_to_codes                                                                    \
    }

#endif
