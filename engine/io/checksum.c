#include "io/checksum.h"

#include <string.h>

enum { POLYNOMIAL = 0x82f63b78 }; /* of CRC-32C, bit-reversed */

uint32_t mx_crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t row = i;
            for (int bit = 0; bit < 8; bit++)
                row = row >> 1 ^ (row & 1 ? (uint32_t)POLYNOMIAL : 0);
            table[i] = row;
        }
    const unsigned char *p = data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++)
        crc = table[(crc ^ p[i]) & 255] ^ crc >> 8;
    return ~crc;
}

#ifdef __x86_64__
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t state = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        state = _mm_crc32_u64(state, word);
    }
    uint32_t rest = (uint32_t)state;
    for (; bytes > 0; bytes--)
        rest = _mm_crc32_u8(rest, *p++);
    return ~rest;
}

uint32_t mx_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return __builtin_cpu_supports("sse4.2") ? crc32c_sse42(crc, data, bytes) : mx_crc32c_portable(crc, data, bytes);
}
#else
uint32_t mx_crc32c(uint32_t crc, const void *data, size_t bytes) { return mx_crc32c_portable(crc, data, bytes); }
#endif
