#include "kernels/context.h"

#include "core/element.h"
#include "core/rng.h"
#include "kernels/elementwise.h"
#include "kernels/random.h"

#include <string.h>

static void fill_group(const mx_draw *d, const uint32_t words[MX_RNG_GROUP], mx_array y, int64_t first)
{
    float value[MX_RNG_GROUP];
    if (d->kind == MX_DRAW_NORMAL)
        mx_rng_normals(words, value);
    else
        for (int i = 0; i < MX_RNG_GROUP; i++)
            value[i] = mx_rng_unit(words[i]);
    for (int i = 0; i < MX_RNG_GROUP; i++) {
        value[i] = d->a + d->b * value[i];
        if (d->kind == MX_DRAW_UNIFORM && value[i] > d->greatest)
            value[i] = d->greatest;
        mx_set_float(y.data, first + i, value[i], y.dtype);
    }
}

static void fill_integers(const mx_draw *d, const uint32_t words[MX_RNG_GROUP], uint32_t y[MX_RNG_GROUP / 2])
{
    for (int i = 0; i < MX_RNG_GROUP / 2; i++) {
        uint64_t lower = (uint64_t)words[MX_RNG_GROUP / 2 + i] * d->range >> 32;
        y[i] = d->low + (uint32_t)(((uint64_t)words[i] * d->range + lower) >> 32);
    }
}

static void fill(const mx_draw *d, uint64_t group, int64_t n, mx_array y, bool stream)
{
    uint32_t words[MX_RNG_GROUP], *integers = y.data;
    (void)stream;
    for (int64_t g = 0; g < n; g++) {
        mx_rng_words(d->s.seed, d->s.offset, group + (uint64_t)g, words);
        if (d->kind == MX_DRAW_WORDS)
            memcpy(integers + g * MX_RNG_GROUP, words, sizeof words);
        else if (d->kind == MX_DRAW_INTEGERS)
            fill_integers(d, words, integers + g * MX_RNG_GROUP / 2);
        else
            fill_group(d, words, y, g * MX_RNG_GROUP);
    }
}

static void chances(mx_stream s, uint64_t group, int64_t n, mx_array p, mx_array y, bool stream)
{
    uint32_t words[MX_RNG_GROUP];
    (void)stream;
    for (int64_t i = 0; i < n * MX_RNG_GROUP; i++) {
        if (i % MX_RNG_GROUP == 0)
            mx_rng_words(s.seed, s.offset, group + (uint64_t)(i / MX_RNG_GROUP), words);
        bool one = (double)words[i % MX_RNG_GROUP] < 0x1p32 * (double)mx_get_float(p.data, i, p.dtype);
        mx_set_float(y.data, i, one ? 1.0f : 0.0f, y.dtype);
    }
}

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

const mx_random_paths mx_random_portable = {.fill = fill, .chances = chances, .drop = drop};
