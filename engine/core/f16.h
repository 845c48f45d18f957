/* IEEE binary16, which no tensor has: files of other programs do. */
#ifndef MX_CORE_F16_H
#define MX_CORE_F16_H

#include <stdint.h>
#include <string.h>

/* The number with these bits of an IEEE binary16: 1 sign, 5 exponent and 10 mantissa bits. */
static inline float mx_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, size = h & 0x7fff, bits;
    float x = (float)size * 0x1p-24f; /* of a number without a leading one */
    memcpy(&bits, &x, sizeof bits);
    if (size >= 1 << 10)
        bits = (size << 13) + (size < 31 << 10 ? 127 - 15 : 255 - 31) * (1u << 23);
    bits |= sign;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#endif
