/* The loops of quantize.h: plain C that the compiler turns into vectors. Each path includes this file once. */
#ifndef MX_KERNELS_QUANTIZE_LOOPS_H
#define MX_KERNELS_QUANTIZE_LOOPS_H

#include "core/float8.h"
#include "core/rng.h"
#include "kernels/inline.h"
#include "kernels/quantize.h"

#include <math.h>

/* What values are read as: f32, bf16, or f32 that is rounded to bf16. A constant in each loop. */
typedef enum { AS_F32, AS_BF16, AS_ROUNDED } source;

MX_INLINE source source_of(const mx_quantize_part *p)
{
    return mx_is_bf16(p->dtype) ? AS_BF16 : p->rounded ? AS_ROUNDED : AS_F32;
}

/* A loop for each source, with and without factors of columns. */
#define SPECIALIZED(loop, p, ...)                                                                                      \
    (source_of(p) == AS_BF16                                                                                           \
         ? (p)->column ? loop(p, AS_BF16, (p)->column, __VA_ARGS__) : loop(p, AS_BF16, NULL, __VA_ARGS__)              \
     : source_of(p) == AS_ROUNDED                                                                                      \
         ? (p)->column ? loop(p, AS_ROUNDED, (p)->column, __VA_ARGS__) : loop(p, AS_ROUNDED, NULL, __VA_ARGS__)        \
     : (p)->column ? loop(p, AS_F32, (p)->column, __VA_ARGS__)                                                         \
                   : loop(p, AS_F32, NULL, __VA_ARGS__))

/* x rounded to bf16, as mx_to_bf16 rounds, in words of 32 bits. */
MX_INLINE float rounded_to_bf16(float x)
{
    uint32_t bits = mx_bits_of_float(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    bool is_nan = (int32_t)(bits & 0x7fffffffu) > 0x7f800000;
    return mx_float_of_bits((is_nan ? bits | 0x400000u : rounded) & 0xffff0000u);
}

/* Value i of a row times its factors. */
MX_INLINE float factored(const void *x, source from, int64_t i, float row, const float *column)
{
    float value = from == AS_BF16 ? mx_from_bf16(((const mx_bf16 *)x)[i]) : ((const float *)x)[i];
    value = from == AS_ROUNDED ? rounded_to_bf16(value) : value;
    return column ? value * row * column[i] : value * row;
}

MX_INLINE const char *row_of(const mx_quantize_part *p, source from, int64_t i)
{
    return (const char *)p->x + i * p->stride * (from == AS_BF16 ? 2 : 4);
}

MX_INLINE float factor_of(const mx_quantize_part *p, int64_t i) { return p->row ? p->row[i] : 1.0f; }

MX_INLINE int32_t magnitude(float x) { return (int32_t)(mx_bits_of_float(x) & 0x7fffffffu); }

MX_INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

MX_INLINE void largest_of(const mx_quantize_part *p, source from, const float *column, int32_t *result)
{
    int32_t largest = *result;
    for (int64_t i = 0; i < p->rows; i++) {
        const void *x = row_of(p, from, i);
        float row = factor_of(p, i);
        for (int64_t j = 0; j < p->n; j++)
            largest = larger(magnitude(factored(x, from, j, row, column)), largest);
    }
    *result = largest;
}

static int32_t find_largest(const mx_quantize_part *p)
{
    int32_t largest = 0;
    SPECIALIZED(largest_of, p, &largest);
    return largest;
}

MX_INLINE void largest_each_of(const mx_quantize_part *p, source from, const float *column, int32_t *restrict largest)
{
    for (int64_t i = 0; i < p->rows; i++) {
        const void *x = row_of(p, from, i);
        float row = factor_of(p, i);
        for (int64_t j = 0; j < p->n; j++)
            largest[j] = larger(magnitude(factored(x, from, j, row, column)), largest[j]);
    }
}

static void find_largest_each(const mx_quantize_part *p, int32_t *largest) { SPECIALIZED(largest_each_of, p, largest); }

MX_INLINE void largest_blocks_of(const mx_quantize_part *p, source from, const float *column, int32_t *largest)
{
    for (int64_t i = 0; i < p->n; i += MX_BLOCK) {
        int32_t most = 0;
        for (int64_t j = i; j < i + MX_BLOCK; j++)
            most = larger(magnitude(factored(p->x, from, j, 1, column)), most);
        largest[i / MX_BLOCK] = most;
    }
}

static void find_largest_blocks(const mx_quantize_part *p, int32_t *largest)
{
    SPECIALIZED(largest_blocks_of, p, largest);
}

MX_INLINE void multiply_of(const mx_quantize_part *p, source from, const float *column, float *values)
{
    for (int64_t i = 0; i < p->n; i++)
        values[i] = factored(p->x, from, i, factor_of(p, 0), column) * p->inverse;
}

static void multiply(const mx_quantize_part *p, float *values) { SPECIALIZED(multiply_of, p, values); }

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

/* mx_to_code (core/float8.h) of x within the range of the format, in the fewest steps that are the same for all x. The
 * distance of neighbours around x follows from its power of two, at least that of the smallest normal number. A float
 * whose last bit is that distance rounds x when it is added. Its last bits then count from the power's first code. */
MX_INLINE int32_t nearest_float8(float x, mx_dtype code)
{
    int32_t bits = (int32_t)mx_bits_of_float(x), size = bits & 0x7fffffff, most, least, sign = 0x80;
    int32_t mantissa = mx_dtypes[code].mantissa_bits, cut = 23 - mantissa, lift = 127 - mx_dtypes[code].exponent_bias;
    most = (int32_t)mx_bits_of_float(mx_dtypes[code].bound);
    least = (lift + 1) << 23;
    int32_t near = size < most ? size : most, power = near & 0x7f800000;
    power = power > least ? power : least;
    float ruler = mx_float_of_bits((uint32_t)(power + (cut << 23)));
    int32_t sum = (int32_t)mx_bits_of_float(mx_float_of_bits((uint32_t)near) + ruler);
    int32_t result = (sum + (power >> cut) - (least >> cut)) & 0x7f;
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

MX_INLINE void nearest_of_row(const void *x, source from, int64_t n, float row, const float *column, float inverse,
                              mx_dtype code, uint8_t *restrict codes)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = nearest(factored(x, from, i, row, column) * inverse, code);
}

MX_INLINE void nearest_of(const mx_quantize_part *p, source from, const float *column, mx_dtype code, uint8_t *codes)
{
    for (int64_t i = 0; i < p->rows; i++)
        nearest_of_row(row_of(p, from, i), from, p->n, factor_of(p, i), column, p->inverse, code,
                       codes + i * p->stride);
}

MX_INLINE void to_codes(const mx_quantize_part *p, mx_dtype code, uint8_t *codes)
{
    SPECIALIZED(nearest_of, p, code, codes);
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

static void scale_by_blocks(mx_bf16 *values, int64_t n, const float *scale, int run)
{
    for (int64_t i = 0; run == 1 && i < n; i++)
        values[i] = (mx_bf16)(mx_bits_of_float(mx_from_bf16(values[i]) * scale[i]) >> 16);
    for (int64_t b = 0; run == MX_BLOCK && b < n / MX_BLOCK; b++)
        for (int64_t i = b * MX_BLOCK; i < (b + 1) * MX_BLOCK; i++)
            values[i] = (mx_bf16)(mx_bits_of_float(mx_from_bf16(values[i]) * scale[b]) >> 16);
}

#define QUANTIZE_LOOPS(own_each, own_round)                                                                            \
    {                                                                                                                  \
        .largest = find_largest, .largest_each = own_each, .largest_blocks = find_largest_blocks,                      \
        .multiply = multiply, .scatter = scatter, .round = own_round, .widen = widen, .scale = scale_by_blocks         \
    }

#endif
