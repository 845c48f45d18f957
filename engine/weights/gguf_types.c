/* Decodes GGUF's quantised types. A block of n values has a scale d, perhaps a minimum m, and a few bits q per value; a
 * value is d q + m, or d (q - middle). In the K types, a block of 256 values has further scales for each 16 or 32 of
 * them.
 */
#include "core/f16.h"
#include "weights/gguf.h"

#include <string.h>

static float half_at(const unsigned char *p) { return mx_from_f16((uint16_t)(p[0] | p[1] << 8)); }

static float float_at(const unsigned char *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* ---- blocks of 32: value i is in the low bits of byte i, value 16 + i in the high ones ---- */

static mx_status decode_q4_0(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 32, b += 18, y += 32) {
        float d = half_at(b);
        for (int i = 0; i < 16; i++) {
            y[i] = d * (float)((b[2 + i] & 15) - 8);
            y[16 + i] = d * (float)((b[2 + i] >> 4) - 8);
        }
    }
    return MX_OK;
}

static mx_status decode_q4_1(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 32, b += 20, y += 32) {
        float d = half_at(b), m = half_at(b + 2);
        for (int i = 0; i < 16; i++) {
            y[i] = d * (float)(b[4 + i] & 15) + m;
            y[16 + i] = d * (float)(b[4 + i] >> 4) + m;
        }
    }
    return MX_OK;
}

/* Five bits per value: the fifth bits of all 32 values come first, then the four low bits of each. */
static void decode_fives(const unsigned char *fifth, const unsigned char *fours, float d, float m, float *y)
{
    for (int i = 0; i < 16; i++) {
        int low = (fifth[i / 8] >> i % 8 & 1) << 4, high = (fifth[2 + i / 8] >> i % 8 & 1) << 4;
        y[i] = d * (float)((fours[i] & 15) | low) + m;
        y[16 + i] = d * (float)((fours[i] >> 4) | high) + m;
    }
}

static mx_status decode_q5_0(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 32, b += 22, y += 32)
        decode_fives(b + 2, b + 6, half_at(b), -16 * half_at(b), y);
    return MX_OK;
}

static mx_status decode_q5_1(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 32, b += 24, y += 32)
        decode_fives(b + 4, b + 8, half_at(b), half_at(b + 2), y);
    return MX_OK;
}

static mx_status decode_q8_0(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 32, b += 34, y += 32) {
        float d = half_at(b);
        for (int i = 0; i < 32; i++)
            y[i] = d * (float)(int8_t)b[2 + i];
    }
    return MX_OK;
}

/* ---- blocks of 256 ---- */

/* Scale and minimum of part j of 8. They have six bits each, packed in twelve bytes: the upper two bits of the last
 * four parts are in the upper bits of the first four parts. */
static void part_scale(const unsigned char *s, int j, float *scale, float *minimum)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *minimum = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
        *minimum = (float)((s[j + 4] >> 4) | (s[j] >> 6) << 4);
    }
}

/* Two parts of 32 values share 32 bytes with four bits per value; bit j of the 32 bytes in `fifth` (NULL: none) belongs
 * to part j. */
static void decode_parts(const unsigned char *b, const unsigned char *fours, const unsigned char *fifth, float *y)
{
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        float scale, minimum;
        part_scale(b + 4, j, &scale, &minimum);
        scale *= d;
        minimum *= m;
        for (int i = 0; i < 32; i++) {
            int q = fours[j / 2 * 32 + i] >> j % 2 * 4 & 15;
            if (fifth)
                q |= (fifth[i] >> j & 1) << 4;
            y[32 * j + i] = scale * (float)q - minimum;
        }
    }
}

static mx_status decode_q4_k(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 256, b += 144, y += 256)
        decode_parts(b, b + 16, NULL, y);
    return MX_OK;
}

static mx_status decode_q5_k(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 256, b += 176, y += 256)
        decode_parts(b, b + 48, b + 16, y);
    return MX_OK;
}

/* Six bits per value, in two halves of 128 values: four groups of 32 values take their low four bits from 64 bytes and
 * their high two bits from 32 bytes. */
static void decode_sixes(const unsigned char *low, const unsigned char *high, const unsigned char *scales, float d,
                         float *y)
{
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 32; i++) {
            int q = (low[g % 2 * 32 + i] >> g / 2 * 4 & 15) | (high[i] >> 2 * g & 3) << 4;
            y[32 * g + i] = d * (float)(int8_t)scales[2 * g + i / 16] * (float)(q - 32);
        }
}

static mx_status decode_q6_k(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 256, b += 210, y += 256) {
        float d = half_at(b + 208);
        decode_sixes(b, b + 128, b + 192, d, y);
        decode_sixes(b + 64, b + 160, b + 200, d, y + 128);
    }
    return MX_OK;
}

static mx_status decode_q8_k(const unsigned char *b, int64_t values, void *to)
{
    float *y = to;
    for (int64_t v = 0; v < values; v += 256, b += 292, y += 256) {
        float d = float_at(b);
        for (int i = 0; i < 256; i++)
            y[i] = d * (float)(int8_t)b[4 + i];
    }
    return MX_OK;
}

/* ---- the types by number; GGUF has removed those without a name ---- */

static const mx_stored_type types[] = {
    [1] = {"F16", 1, 2, MX_F32, mx_decode_f16},
    [2] = {"Q4_0", 32, 18, MX_F32, decode_q4_0},
    [3] = {"Q4_1", 32, 20, MX_F32, decode_q4_1},
    [6] = {"Q5_0", 32, 22, MX_F32, decode_q5_0},
    [7] = {"Q5_1", 32, 24, MX_F32, decode_q5_1},
    [8] = {"Q8_0", 32, 34, MX_F32, decode_q8_0},
    [9] = {"Q8_1", 32, 36, -1, NULL},
    [10] = {"Q2_K", 256, 84, -1, NULL},
    [11] = {"Q3_K", 256, 110, -1, NULL},
    [12] = {"Q4_K", 256, 144, MX_F32, decode_q4_k},
    [13] = {"Q5_K", 256, 176, MX_F32, decode_q5_k},
    [14] = {"Q6_K", 256, 210, MX_F32, decode_q6_k},
    [15] = {"Q8_K", 256, 292, MX_F32, decode_q8_k},
    [16] = {"IQ2_XXS", 256, 66, -1, NULL},
    [17] = {"IQ2_XS", 256, 74, -1, NULL},
    [18] = {"IQ3_XXS", 256, 98, -1, NULL},
    [19] = {"IQ1_S", 256, 50, -1, NULL},
    [20] = {"IQ4_NL", 32, 18, -1, NULL},
    [21] = {"IQ3_S", 256, 110, -1, NULL},
    [22] = {"IQ2_S", 256, 82, -1, NULL},
    [23] = {"IQ4_XS", 256, 136, -1, NULL},
    [25] = {"I16", 1, 2, -1, NULL},
    [29] = {"IQ1_M", 256, 56, -1, NULL},
};

bool mx_gguf_type(uint32_t number, mx_stored_type *type)
{
    for (int d = 0; d < MX_DTYPES; d++)
        if (mx_dtypes[d].gguf >= 0 && (uint32_t)mx_dtypes[d].gguf == number) {
            *type = mx_stored_as_dtype((mx_dtype)d);
            return true;
        }
    if (number >= sizeof types / sizeof *types || !types[number].name)
        return false;
    *type = types[number];
    return true;
}
