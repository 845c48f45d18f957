#include "core/rng.h"

#include <math.h>
#include <string.h>

static uint64_t philox_round(uint32_t c[4], uint64_t key)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ (uint32_t)key, (uint32_t)p1,
                        (uint32_t)(p0 >> 32) ^ c[3] ^ (uint32_t)(key >> 32), (uint32_t)p0};
    memcpy(c, next, sizeof next);
    uint32_t low = (uint32_t)key + 0x9E3779B9u, high = (uint32_t)(key >> 32) + 0xBB67AE85u;
    return (uint64_t)high << 32 | low;
}

void mx_philox(uint64_t seed, uint64_t offset, uint64_t block, uint32_t word[4])
{
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)offset, (uint32_t)(offset >> 32)};
    for (int round = 0; round < 10; round++)
        seed = philox_round(c, seed);
    memcpy(word, c, sizeof c);
}

void mx_rng_words(uint64_t seed, uint64_t offset, uint64_t group, uint32_t words[MX_RNG_GROUP])
{
    for (uint64_t j = 0; j < 16; j++) {
        uint32_t block[4];
        mx_philox(seed, offset, 16 * group + j, block);
        for (uint64_t w = 0; w < 4; w++)
            words[16 * w + j] = block[w];
    }
}

uint32_t mx_rng_u32(uint64_t seed, uint64_t offset, uint64_t index)
{
    uint32_t block[4];
    mx_philox(seed, offset, index / MX_RNG_GROUP * 16 + index % 16, block);
    return block[index % MX_RNG_GROUP / 16];
}

static uint32_t half_of(uint64_t seed, uint64_t offset, uint64_t group, uint64_t element)
{
    uint32_t block[4];
    mx_philox(seed, offset, 16 * group + element % 32 / 2, block);
    return block[element / 32] >> 16 * (element % 2) & 0xffff;
}

uint32_t mx_rng_mask(uint64_t seed, uint64_t offset, uint64_t group, uint64_t element)
{
    return half_of(seed, offset, group, element) << 16 | half_of(seed, offset, group | MX_RNG_FURTHER, element);
}

/* ln x for x in (0, 1] that is not denormal. Coefficients: Cephes logf (Moshier, netlib). */
static float log_unit(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t shifted = bits - 0x3f3504f3u; /* sqrt(1/2): the mantissa ends up in [sqrt(1/2), sqrt(2)) */
    float exponent = (float)((int32_t)shifted >> 23);
    bits = (shifted & 0x007fffffu) + 0x3f3504f3u;
    float m;
    memcpy(&m, &bits, sizeof m);
    static const float c[] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                              -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
    float z = m - 1.0f, p = 7.0376836292e-2f, square = z * z;
    for (int i = 0; i < 8; i++)
        p = fmaf(p, z, c[i]);
    p = fmaf(exponent, -2.12194440e-4f, (p * z) * square);
    p = fmaf(square, -0.5f, p);
    return fmaf(exponent, 0.693359375f, z + p);
}

/* sin and cos of 2 pi (word / 2^32) - pi/4: a quadrant from the upper two bits, an angle within pi/4 from the rest. */
static void sincos_turn(uint32_t word, float *sine, float *cosine)
{
    float a = (float)((int32_t)(word & 0x3fffffffu) - 0x20000000) * 1.46291807926716e-9f; /* pi / 2^31 */
    float z = a * a;
    float s = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
    s = fmaf(s * z, a, a);
    float c = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
    c = fmaf(c * z, z, fmaf(z, -0.5f, 1.0f));
    uint32_t quadrant = word >> 30;
    float swapped_s = quadrant & 1 ? c : s, swapped_c = quadrant & 1 ? s : c;
    *sine = quadrant & 2 ? -swapped_s : swapped_s;
    *cosine = (quadrant + 1) & 2 ? -swapped_c : swapped_c;
}

void mx_rng_normals(const uint32_t words[MX_RNG_GROUP], float normals[MX_RNG_GROUP])
{
    for (int i = 0; i < MX_RNG_GROUP; i++) {
        if (i & 16)
            continue;
        float unit = fmaf((float)(int32_t)(words[i] >> 1), 0x1p-31f, 0x1p-32f); /* in (0, 1] */
        float radius = sqrtf(log_unit(unit) * -2.0f);
        float sine, cosine;
        sincos_turn(words[i + 16], &sine, &cosine);
        normals[i] = radius * cosine;
        normals[i + 16] = radius * sine;
    }
}
