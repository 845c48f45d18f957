#include "kernels/context.h"

static void drop(const uint32_t words[MX_RNG_GROUP], int32_t threshold, float scale, const float *x, float *y)
{
    for (int i = 0; i < MX_RNG_GROUP; i++)
        y[i] = (int32_t)(words[i] >> 8) >= threshold ? x[i] * scale : 0.0f;
}

const mx_random_paths mx_random_portable = {.words = mx_rng_words, .normals = mx_rng_normals, .drop = drop};
