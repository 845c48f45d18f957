#include "kernels/context.h"

#include "core/element.h"

static uint32_t drop(mx_stream s, uint64_t group, int64_t n, uint32_t threshold, float scale, mx_array x, mx_array y,
                     bool stream)
{
    uint32_t ties = 0, words[MX_RNG_GROUP];
    (void)stream;
    for (int64_t g = 0; g < n; g++) {
        mx_rng_words(s.seed, s.offset, group + (uint64_t)g, words);
        for (int64_t i = 0; i < MX_RNG_MASK_GROUP; i++) {
            int64_t at = g * MX_RNG_MASK_GROUP + i;
            uint32_t bits = words[i / 32 * 16 + i % 32 / 2] >> 16 * (i % 2) & 0xffff;
            ties |= (uint32_t)(bits == threshold) << g;
            mx_set_float(y.data, at, bits >= threshold ? mx_get_float(x.data, at, x.dtype) * scale : 0.0f, y.dtype);
        }
    }
    return ties;
}

const mx_random_paths mx_random_portable = {.words = mx_rng_words, .normals = mx_rng_normals, .drop = drop};
