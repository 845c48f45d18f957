/* The loops of quantize.h: plain C that the compiler turns into vectors. Each path includes this file once. */
#ifndef MX_KERNELS_QUANTIZE_LOOPS_H
#define MX_KERNELS_QUANTIZE_LOOPS_H

#include "core/float8.h"
#include "core/rng.h"
#include "kernels/inline.h"
#include "kernels/quantize.h"

#include <math.h>

/* Value i of a row times its factors. `bf16` is a constant in each loop, and so is whether `column` is NULL. */
MX_INLINE float factored(const void *x, bool bf16, int64_t i, float row, const float *column)
{
    float value = bf16 ? mx_from_bf16(((const mx_bf16 *)x)[i]) : ((const float *)x)[i];
    return column ? value * row * column[i] : value * row;
}

MX_INLINE const void *row_of(const mx_quantize_part *p, bool bf16, int64_t i)
{
    return (const char *)p->x + i * p->stride * (bf16 ? 2 : 4);
}

MX_INLINE float factor_of(const mx_quantize_part *p, int64_t i) { return p->row ? p->row[i] : 1.0f; }

MX_INLINE int32_t magnitude(float x) { return (int32_t)(mx_bits_of_float(x) & 0x7fffffffu); }

MX_INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* Below, each loop is compiled for both dtypes, with and without `column`. */
MX_INLINE int32_t largest_of(const void *x, bool bf16, int64_t n, float row, const float *column)
{
    int32_t largest = 0;
    for (int64_t i = 0; i < n; i++)
        largest = larger(magnitude(factored(x, bf16, i, row, column)), largest);
    return largest;
}

static int32_t find_largest(const mx_quantize_part *p)
{
    bool bf16 = mx_is_bf16(p->dtype);
    int32_t largest = 0;
    for (int64_t i = 0; i < p->rows; i++) {
        const void *x = row_of(p, bf16, i);
        float row = factor_of(p, i);
        int32_t own = bf16
                          ? p->column ? largest_of(x, true, p->n, row, p->column) : largest_of(x, true, p->n, row, NULL)
                      : p->column ? largest_of(x, false, p->n, row, p->column)
                                  : largest_of(x, false, p->n, row, NULL);
        largest = larger(own, largest);
    }
    return largest;
}

MX_INLINE void largest_each_of(const mx_quantize_part *p, bool bf16, const float *column, int32_t *restrict largest)
{
    for (int64_t i = 0; i < p->rows; i++) {
        const void *x = row_of(p, bf16, i);
        float row = factor_of(p, i);
        for (int64_t j = 0; j < p->n; j++)
            largest[j] = larger(magnitude(factored(x, bf16, j, row, column)), largest[j]);
    }
}

static void find_largest_each(const mx_quantize_part *p, int32_t *largest)
{
    if (mx_is_bf16(p->dtype))
        p->column ? largest_each_of(p, true, p->column, largest) : largest_each_of(p, true, NULL, largest);
    else
        p->column ? largest_each_of(p, false, p->column, largest) : largest_each_of(p, false, NULL, largest);
}

static void find_largest_blocks(const mx_quantize_part *p, int32_t *largest)
{
    bool bf16 = mx_is_bf16(p->dtype);
    for (int64_t i = 0; i < p->n; i += MX_BLOCK)
        largest[i / MX_BLOCK] = bf16 ? largest_of((const mx_bf16 *)p->x + i, true, MX_BLOCK, 1, NULL)
                                     : largest_of((const float *)p->x + i, false, MX_BLOCK, 1, NULL);
}

MX_INLINE void multiply_of(const mx_quantize_part *p, bool bf16, const float *column, float *values)
{
    for (int64_t i = 0; i < p->n; i++)
        values[i] = factored(p->x, bf16, i, factor_of(p, 0), column) * p->inverse;
}

static void multiply(const mx_quantize_part *p, float *values)
{
    if (mx_is_bf16(p->dtype))
        p->column ? multiply_of(p, true, p->column, values) : multiply_of(p, true, NULL, values);
    else
        p->column ? multiply_of(p, false, p->column, values) : multiply_of(p, false, NULL, values);
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

/* mx_to_code (core/float8.h) of x within the range of the format, in the fewest steps that are the same for all x. */
MX_INLINE int32_t nearest_float8(float x, mx_dtype code)
{
    int32_t bits = (int32_t)mx_bits_of_float(x), size = bits & 0x7fffffff, sign = 0x80;
    int32_t mantissa = mx_dtypes[code].mantissa_bits, cut = 23 - mantissa, lift = 127 - mx_dtypes[code].exponent_bias;
    int32_t ruler = (lift + 1 + cut) << 23; /* a float whose last bit is the format's smallest number */
    int32_t most = (int32_t)mx_bits_of_float(mx_dtypes[code].bound);
    int32_t near = size < most ? size : most;
    int32_t normal = ((near + (1 << (cut - 1)) - 1 + (near >> cut & 1)) >> cut) - (lift << mantissa);
    int32_t denormal =
        (int32_t)mx_bits_of_float(mx_float_of_bits((uint32_t)near) + mx_float_of_bits((uint32_t)ruler)) - ruler;
    int32_t result = near < (lift + 1) << 23 ? denormal : normal;
    bool fnuz = code == MX_E4M3FNUZ || code == MX_E5M2FNUZ; /* neither -0 nor a NaN with a sign */
    if (fnuz)
        sign = result ? sign : 0;
    result |= bits >> 24 & sign;
    return size <= 0x7f800000 ? result : fnuz ? 0x80 : (code == MX_E4M3 ? 0x7f : 0x7e) | (bits >> 24 & 0x80);
}

/* The nearest code. `code` is a constant in each loop. */
MX_INLINE uint8_t nearest(float x, mx_dtype code)
{
    if (code != MX_I8)
        return (uint8_t)nearest_float8(x, code);
    float most = x < 127.0f ? x : 127.0f, limited = most > -128.0f ? most : -128.0f;
    return (uint8_t)(int32_t)rintf(x == x ? limited : 0.0f);
}

MX_INLINE void nearest_of_row(const void *x, bool bf16, int64_t n, float row, const float *column, float inverse,
                              mx_dtype code, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = nearest(factored(x, bf16, i, row, column) * inverse, code);
}

MX_INLINE void nearest_of(const mx_quantize_part *p, bool bf16, const float *column, mx_dtype code, uint8_t *codes)
{
    for (int64_t i = 0; i < p->rows; i++)
        nearest_of_row(row_of(p, bf16, i), bf16, p->n, factor_of(p, i), column, p->inverse, code,
                       codes + i * p->stride);
}

MX_INLINE void to_codes(const mx_quantize_part *p, mx_dtype code, uint8_t *codes)
{
    if (mx_is_bf16(p->dtype))
        p->column ? nearest_of(p, true, p->column, code, codes) : nearest_of(p, true, NULL, code, codes);
    else
        p->column ? nearest_of(p, false, p->column, code, codes) : nearest_of(p, false, NULL, code, codes);
}

static void round_to_codes(const mx_quantize_part *p, mx_dtype code, uint8_t *codes)
{
    if (code == MX_I8)
        to_codes(p, MX_I8, codes);
    else if (code == MX_E4M3)
        to_codes(p, MX_E4M3, codes);
    else if (code == MX_E5M2)
        to_codes(p, MX_E5M2, codes);
    else if (code == MX_E4M3FNUZ)
        to_codes(p, MX_E4M3FNUZ, codes);
    else
        to_codes(p, MX_E5M2FNUZ, codes);
}

/* An 8-bit float as bf16, in integers of 16 bits. As a denormal has fewer bits of mantissa than a number, there is a
 * formula for each place of its highest bit; the least of them is right. */
MX_INLINE mx_bf16 bf16_of_float8(uint16_t code, mx_dtype dtype)
{
    int mantissa = mx_dtypes[dtype].mantissa_bits, lift = 127 - mx_dtypes[dtype].exponent_bias;
    uint16_t rest = code & 0x7f, sign = (uint16_t)(code << 8) & 0x8000, bits = 0x7fff;
    for (int i = 0; i <= mantissa; i++) {
        uint16_t other = (uint16_t)((rest << (7 - mantissa + i)) + ((lift - i) << 7));
        bits = other < bits ? other : bits;
    }
    bits = rest ? bits : 0;
    if (dtype == MX_E4M3)
        bits = rest == 0x7f ? 0x7fc0 : bits;
    else if (dtype == MX_E5M2)
        bits = rest > 0x7c ? 0x7fc0 : rest == 0x7c ? 0x7f80 : bits;
    else
        bits = code == 0x80 ? 0x7fc0 : bits;
    return bits | sign;
}

MX_INLINE mx_bf16 bf16_of_code(uint8_t code, mx_dtype dtype)
{
    if (dtype == MX_I8)
        return (mx_bf16)(mx_bits_of_float((float)(int8_t)code) >> 16);
    return bf16_of_float8(code, dtype);
}

/* `dtype` is a constant in each loop, and so is `n` for a vector of 512 bits. */
MX_INLINE void widen_run(int n, const uint8_t *restrict codes, mx_dtype dtype, mx_bf16 *restrict values)
{
    for (int i = 0; i < n; i++)
        values[i] = bf16_of_code(codes[i], dtype);
}

/* Runs of 32 codes, of which the last may overlap another. */
MX_INLINE void widen_dtype(int64_t rows, int64_t n, const uint8_t *codes, int64_t stride, mx_dtype dtype,
                           mx_bf16 *values)
{
    enum { RUN = 32 };
    for (int64_t i = 0; i < rows; i++, codes += stride, values += n) {
        for (int64_t j = 0; j + RUN <= n; j += RUN)
            widen_run(RUN, codes + j, dtype, values + j);
        if (n < RUN)
            widen_run((int)n, codes, dtype, values);
        else if (n % RUN)
            widen_run(RUN, codes + n - RUN, dtype, values + n - RUN);
    }
}

static void widen(int64_t rows, int64_t n, const uint8_t *codes, int64_t stride, mx_dtype code, mx_bf16 *values)
{
    if (code == MX_I8)
        widen_dtype(rows, n, codes, stride, MX_I8, values);
    else if (code == MX_E4M3)
        widen_dtype(rows, n, codes, stride, MX_E4M3, values);
    else if (code == MX_E5M2)
        widen_dtype(rows, n, codes, stride, MX_E5M2, values);
    else if (code == MX_E4M3FNUZ)
        widen_dtype(rows, n, codes, stride, MX_E4M3FNUZ, values);
    else
        widen_dtype(rows, n, codes, stride, MX_E5M2FNUZ, values);
}

static void scale_by_blocks(mx_bf16 *values, int64_t n, const float *scale, int run)
{
    for (int64_t i = 0; run == 1 && i < n; i++)
        values[i] = (mx_bf16)(mx_bits_of_float(mx_from_bf16(values[i]) * scale[i]) >> 16);
    for (int64_t b = 0; run == MX_BLOCK && b < n / MX_BLOCK; b++)
        for (int64_t i = b * MX_BLOCK; i < (b + 1) * MX_BLOCK; i++)
            values[i] = (mx_bf16)(mx_bits_of_float(mx_from_bf16(values[i]) * scale[b]) >> 16);
}

#define QUANTIZE_LOOPS                                                                                                 \
    {                                                                                                                  \
        .largest = find_largest, .largest_each = find_largest_each, .largest_blocks = find_largest_blocks,             \
        .multiply = multiply, .scatter = scatter, .round = round_to_codes, .widen = widen, .scale = scale_by_blocks    \
    }

#endif
