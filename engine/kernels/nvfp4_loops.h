/* The loops of nvfp4.h: plain C that the compiler turns into vectors. Each path includes this file once. */
#ifndef MX_KERNELS_NVFP4_LOOPS_H
#define MX_KERNELS_NVFP4_LOOPS_H

#include "core/float8.h"
#include "core/rng.h"
#include "kernels/inline.h"
#include "kernels/nvfp4.h"

#include <float.h>

enum { RUN = MX_FP4_RUN, WIDTH = MX_FP4_COLUMNS, ONE = 0x3f800000, SIX = 0x40c00000 };

/* Rows of reals, or of their codes as bytes, of which the first n columns are in use. */
typedef struct panel {
    _Alignas(64) float x[RUN][WIDTH];
} panel;
typedef struct panel_codes {
    _Alignas(64) uint16_t pair[RUN][WIDTH / 2];
} panel_codes;

/* x rounded to bf16, as mx_to_bf16 rounds, in words of 32 bits. */
MX_INLINE float fp4_to_bf16(float x)
{
    uint32_t bits = mx_bits_of_float(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    bool is_nan = (int32_t)(bits & 0x7fffffffu) > 0x7f800000;
    return mx_float_of_bits((is_nan ? bits | 0x400000u : rounded) & 0xffff0000u);
}

MX_INLINE int32_t fp4_magnitude(float x) { return (int32_t)(mx_bits_of_float(x) & 0x7fffffffu); }

MX_INLINE int32_t fp4_larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* ---- the random Hadamard transform ---- */

/* The signs of Transformer Engine, the same in every layer and step, times 1 / 4, which makes the transform
 * orthogonal. */
static const float fp4_signs[RUN] = {0.25f,  0.25f,  0.25f,  -0.25f, 0.25f,  -0.25f, -0.25f, -0.25f,
                                     -0.25f, -0.25f, -0.25f, 0.25f,  -0.25f, 0.25f,  -0.25f, -0.25f};

/* Two levels of sums and differences, of a and b, c and d, then of a and c, b and d. `signs`: factors before them, or
 * NULL; then the results are rounded to bf16. */
MX_INLINE void fp4_two_levels(int64_t n, float *restrict a, float *restrict b, float *restrict c, float *restrict d,
                              const float *signs)
{
    for (int64_t j = 0; j < n; j++) {
        float w = signs ? a[j] * signs[0] : a[j], x = signs ? b[j] * signs[1] : b[j];
        float y = signs ? c[j] * signs[2] : c[j], z = signs ? d[j] * signs[3] : d[j];
        float sum = w + x, difference = w - x, other_sum = y + z, other_difference = y - z;
        a[j] = signs ? sum + other_sum : fp4_to_bf16(sum + other_sum);
        b[j] = signs ? difference + other_difference : fp4_to_bf16(difference + other_difference);
        c[j] = signs ? sum - other_sum : fp4_to_bf16(sum - other_sum);
        d[j] = signs ? difference - other_difference : fp4_to_bf16(difference - other_difference);
    }
}

static void fp4_transform(panel *p, int64_t n)
{
    for (int i = 0; i < RUN; i += 4)
        fp4_two_levels(n, p->x[i], p->x[i + 1], p->x[i + 2], p->x[i + 3], fp4_signs + i);
    for (int i = 0; i < 4; i++)
        fp4_two_levels(n, p->x[i], p->x[i + 4], p->x[i + 8], p->x[i + 12], NULL);
}

static void fp4_load(const mx_fp4_part *p, panel *to)
{
    for (int64_t i = 0; i < p->rows; i++) {
        const mx_bf16 *narrow = (const mx_bf16 *)p->x + i * p->stride;
        const float *wide = (const float *)p->x + i * p->stride;
        if (mx_is_bf16(p->dtype))
            for (int64_t j = 0; j < p->n; j++)
                to->x[i][j] = mx_from_bf16(narrow[j]);
        else
            for (int64_t j = 0; j < p->n; j++)
                to->x[i][j] = fp4_to_bf16(wide[j]);
    }
    if (p->hadamard)
        fp4_transform(to, p->n);
}

/* Rounding keeps the order of magnitudes, so the largest one alone is rounded. */
static int32_t fp4_largest_of_reals(const mx_fp4_part *p)
{
    int32_t largest = 0, narrow = 0;
    for (int64_t i = 0; i < p->rows; i++) {
        const float *x = (const float *)p->x + i * p->stride;
        const mx_bf16 *y = (const mx_bf16 *)p->x + i * p->stride;
        if (mx_is_bf16(p->dtype))
            for (int64_t j = 0; j < p->n; j++)
                narrow = fp4_larger(y[j] & 0x7fff, narrow);
        else
            for (int64_t j = 0; j < p->n; j++)
                largest = fp4_larger(fp4_magnitude(x[j]), largest);
    }
    return mx_is_bf16(p->dtype) ? narrow << 16 : fp4_magnitude(fp4_to_bf16(mx_float_of_bits((uint32_t)largest)));
}

static int32_t fp4_largest(const mx_fp4_part *p)
{
    if (!p->hadamard)
        return fp4_largest_of_reals(p);
    panel v;
    int32_t largest = 0;
    fp4_load(p, &v);
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->n; j++)
            largest = fp4_larger(fp4_magnitude(v.x[i][j]), largest);
    return largest;
}

/* ---- scales ---- */

/* The block scales of n largest magnitudes, and what the reals of these blocks are multiplied by. */
MX_INLINE void fp4_scales(int64_t n, const float *restrict largest, float encode, uint8_t *restrict scales,
                          float *restrict factors)
{
    float decode = 1.0f / encode, part = encode * (1.0f / 6.0f);
    for (int64_t b = 0; b < n; b++) {
        float exact = largest[b] * part;
        exact = exact > 448.0f ? 448.0f : exact;
        scales[b] = mx_to_float8(exact, 3, 127 - 7, 0x7f, 0x7f) & 0x7f; /* the sign of a NaN is any */
        float factor = 1.0f / (mx_from_float8(scales[b], 3, 127 - 7) * decode);
        factors[b] = factor < FLT_MAX ? factor : FLT_MAX;
    }
}

/* ---- codes ---- */

/* The nearest code, or with `random` bits one of both neighbours. Neighbours around a magnitude are half of its power
 * of two apart, and below 1 half of 1. Codes count these distances, from an offset for each power. */
MX_INLINE uint8_t fp4_code(float x, bool stochastic, uint32_t random)
{
    int32_t bits = (int32_t)mx_bits_of_float(x), size = bits & 0x7fffffff;
    int32_t near = size < SIX ? size : SIX, power = near & 0x7f800000;
    power = power > ONE ? power : ONE;
    int32_t steps = 0, ruler = power + (22 << 23);
    if (stochastic) { /* 21 bits: adding them to a whole number of steps, below 4, is exact */
        float inverse = mx_float_of_bits((uint32_t)((255 << 23) - power));
        float u = (float)(int32_t)(random >> 11) * 0x1p-21f;
        steps = (int32_t)(mx_float_of_bits((uint32_t)near) * inverse + u);
    } else { /* a float whose last bit is the distance rounds what is added */
        float sum = mx_float_of_bits((uint32_t)near) + mx_float_of_bits((uint32_t)ruler);
        steps = (int32_t)mx_bits_of_float(sum) - ruler;
    }
    return (uint8_t)(steps + ((power - ONE) >> 22) + (int32_t)((uint32_t)bits >> 28 & 8u));
}

MX_INLINE void fp4_codes_of_row(int64_t n, const float *restrict x, const float *restrict factors, bool stochastic,
                                const uint32_t keys[2], uint32_t column, uint8_t *restrict to)
{
    for (int64_t j = 0; j < n; j++) {
        uint32_t random = stochastic ? mx_rng_hash(keys[0], keys[1], column + (uint32_t)j) : 0;
        to[j] = fp4_code(x[j] * factors[j], stochastic, random);
    }
}

static void fp4_codes(const mx_fp4_part *p, int64_t i, const float *x, const float *factors, uint16_t *pairs)
{
    uint8_t *to = (uint8_t *)pairs;
    if (p->stochastic)
        fp4_codes_of_row(p->n, x, factors, true, p->keys[i], (uint32_t)p->column, to);
    else
        fp4_codes_of_row(p->n, x, factors, false, p->keys[i], 0, to);
}

/* Two codes a byte along a row. */
MX_INLINE void fp4_pairs(int64_t n, const uint16_t *restrict pair, uint8_t *restrict to)
{
    for (int64_t j = 0; j < n / 2; j++)
        to[j] = (uint8_t)(pair[j] | pair[j] >> 4);
}

/* The same along columns: the 16 codes of one are 8 bytes. */
static void fp4_pairs_of_columns(const mx_fp4_part *p, const panel_codes *c)
{
    uint64_t words[WIDTH] = {0};
    for (int i = 0; i < RUN; i += 2) {
        const uint8_t *low = (const uint8_t *)c->pair[i], *high = (const uint8_t *)c->pair[i + 1];
        for (int64_t j = 0; j < p->n; j++)
            words[j] |= (uint64_t)(uint8_t)(low[j] | high[j] << 4) << 4 * i;
    }
    for (int64_t j = 0; j < p->n; j++)
        memcpy(p->codes + j * p->code_stride, &words[j], sizeof *words);
}

/* Of each run of columns, the largest magnitude. */
MX_INLINE void fp4_largest_of_runs(int64_t n, const float *restrict x, float *restrict largest)
{
    for (int64_t b = 0; b < n / RUN; b++) {
        int32_t most = 0;
        for (int j = 0; j < RUN; j++)
            most = fp4_larger(fp4_magnitude(x[b * RUN + j]), most);
        largest[b] = mx_float_of_bits((uint32_t)most);
    }
}

/* The same of each column. */
MX_INLINE void fp4_largest_of_columns(const mx_fp4_part *p, const panel *v, float *restrict largest)
{
    for (int64_t j = 0; j < p->n; j++) {
        int32_t most = 0;
        for (int i = 0; i < RUN; i++)
            most = fp4_larger(fp4_magnitude(v->x[i][j]), most);
        largest[j] = mx_float_of_bits((uint32_t)most);
    }
}

MX_INLINE void fp4_spread(int64_t n, const float *restrict factors, float *restrict each)
{
    for (int64_t b = 0; b < n / RUN; b++)
        for (int j = 0; j < RUN; j++)
            each[b * RUN + j] = factors[b];
}

/* One scale for each column, or with `square` for 16 of them. */
static void fp4_quantize_columns(const mx_fp4_part *p, const panel *v, panel_codes *c)
{
    float factors[WIDTH] = {0}, each[WIDTH], largest[WIDTH], most[WIDTH];
    uint8_t scales[WIDTH];
    int run = p->square ? RUN : 1;
    fp4_largest_of_columns(p, v, largest);
    if (p->square)
        fp4_largest_of_runs(p->n, largest, most);
    fp4_scales(p->n / run, p->square ? most : largest, p->encode, scales, factors);
    if (p->square)
        fp4_spread(p->n, factors, each);
    for (int64_t i = 0; i < RUN; i++) {
        fp4_codes(p, i, v->x[i], p->square ? each : factors, c->pair[i]);
        if (!p->trans)
            memcpy(p->scales + i * p->scale_stride, scales, (size_t)(p->n / RUN));
    }
    for (int64_t j = 0; p->trans && j < p->n; j++)
        p->scales[j * p->scale_stride] = scales[j / run];
}

/* The scales of all rows at once, so that they are many. */
static void fp4_quantize_rows(const mx_fp4_part *p, const panel *v, panel_codes *c)
{
    int64_t runs = p->n / RUN;
    uint8_t scales[WIDTH];
    float factors[WIDTH] = {0}, each[WIDTH], most[WIDTH];
    for (int64_t i = 0; i < p->rows; i++)
        fp4_largest_of_runs(p->n, v->x[i], most + i * runs);
    fp4_scales(p->rows * runs, most, p->encode, scales, factors);
    for (int64_t i = 0; i < p->rows; i++) {
        fp4_spread(p->n, factors + i * runs, each);
        fp4_codes(p, i, v->x[i], each, c->pair[i]);
        memcpy(p->scales + i * p->scale_stride, scales + i * runs, (size_t)runs);
    }
}

static void fp4_quantize(const mx_fp4_part *p)
{
    panel v;
    panel_codes c;
    fp4_load(p, &v);
    if (p->square || p->trans)
        fp4_quantize_columns(p, &v, &c);
    else
        fp4_quantize_rows(p, &v, &c);
    if (p->trans)
        fp4_pairs_of_columns(p, &c);
    for (int64_t i = 0; !p->trans && i < p->rows; i++)
        fp4_pairs(p->n, c.pair[i], p->codes + i * p->code_stride);
}

/* ---- back ---- */

/* The bits of a code's magnitude are those of f32 but for the bias of the exponent, from 1 on. */
MX_INLINE float fp4_value(int32_t code)
{
    int32_t size = code & 7, bits = (size << 22) + (126 << 23);
    bits = size > 1 ? bits : size * (126 << 23);
    return mx_float_of_bits((uint32_t)bits | (uint32_t)(code & 8) << 28);
}

MX_INLINE void fp4_widen_part(int64_t n, const uint8_t *restrict codes, const float *restrict each,
                              mx_bf16 *restrict values)
{
    uint16_t pairs[WIDTH / 2];
    const uint8_t *code = (const uint8_t *)pairs;
    for (int64_t j = 0; j < n / 2; j++)
        pairs[j] = (uint16_t)((codes[j] & 15) | codes[j] >> 4 << 8);
    for (int64_t j = 0; j < n; j++)
        values[j] = (mx_bf16)(mx_bits_of_float(fp4_value(code[j]) * each[j]) >> 16);
}

static void fp4_widen(int64_t length, const uint8_t *restrict codes, const uint8_t *restrict scales,
                      mx_bf16 *restrict values)
{
    for (int64_t first = 0; first < length; first += WIDTH) {
        int64_t n = mx_min(WIDTH, length - first);
        float scale[WIDTH / RUN] = {0}, each[WIDTH];
        for (int64_t b = 0; b < n / RUN; b++)
            scale[b] = mx_from_e4m3(scales[first / RUN + b]);
        fp4_spread(n, scale, each);
        fp4_widen_part(n, codes + first / 2, each, values + first);
    }
}

#define FP4_LOOPS                                                                                                      \
    {                                                                                                                  \
        .largest = fp4_largest, .quantize = fp4_quantize, .widen = fp4_widen                                           \
    }

#endif
