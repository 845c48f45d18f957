/* The functions of core/rng.c on vectors, step by step the same. */
#include "kernels/context.h"

#include "kernels/simd/vmath.h"

/* 32 bits of a word for all lanes. */
MX_INLINE vi all(uint64_t word) { return vi_set1((int32_t)(uint32_t)word); }

MX_INLINE void philox_round(vi c[4], uint64_t key_low, uint64_t key_high)
{
    vi m0 = all(0xD2511F53u), m1 = all(0xCD9E8D57u);
    vi high0 = vi_mulhi_u32(c[0], m0), high1 = vi_mulhi_u32(c[2], m1);
    vi low0 = vi_mullo(c[0], m0), low1 = vi_mullo(c[2], m1);
    c[0] = vi_xor(vi_xor(high1, c[1]), all(key_low));
    c[1] = low1;
    c[2] = vi_xor(vi_xor(high0, c[3]), all(key_high));
    c[3] = low0;
}

/* The 16 blocks of a group start at a multiple of 16, so counting through them carries nothing. */
static void words(uint64_t seed, uint64_t offset, uint64_t group, uint32_t out[MX_RNG_GROUP])
{
    static const int32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint64_t block = 16 * group;
    for (int j = 0; j < 16; j += VL) {
        vi c[4] = {vi_add(all(block), vi_load(lanes + j)), all(block >> 32), all(offset), all(offset >> 32)};
        uint32_t low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
        for (int round = 0; round < 10; round++) {
            philox_round(c, low, high);
            low += 0x9E3779B9u;
            high += 0xBB67AE85u;
        }
        for (int w = 0; w < 4; w++)
            vi_store((int32_t *)out + 16 * w + j, c[w]);
    }
}

static void normals(const uint32_t in[MX_RNG_GROUP], float out[MX_RNG_GROUP])
{
    for (int i = 0; i < MX_RNG_GROUP; i += VL) {
        if (i & 16)
            continue;
        vi first = vi_load((const int32_t *)in + i), second = vi_load((const int32_t *)in + i + 16);
        vf unit = vf_fma(vi_to_vf(vi_shr(first, 1)), vf_set1(0x1p-31f), vf_set1(0x1p-32f));
        vf radius = vf_sqrt(vf_log_normal(unit) * vf_set1(-2.0f));
        vi turn = vi_sub(vi_and(second, vi_set1(0x3fffffff)), vi_set1(0x20000000));
        vf sine, cosine;
        vf_sincos_octant(vi_to_vf(turn) * vf_set1(1.46291807926716e-9f), &sine, &cosine);
        vf_turn(vi_shr(second, 30), &sine, &cosine);
        vf_store(out + i, radius * cosine);
        vf_store(out + i + 16, radius * sine);
    }
}

static void drop(const uint32_t in[MX_RNG_GROUP], int32_t threshold, float scale, const float *x, float *y)
{
    for (int i = 0; i < MX_RNG_GROUP; i += VL) {
        vm keep = vi_gt(vi_shr(vi_load((const int32_t *)in + i), 8), vi_set1(threshold - 1));
        vf_store(y + i, vf_select(keep, vf_load(x + i) * vf_set1(scale), vf_zero()));
    }
}

const mx_random_paths MX_SIMD_NAME(mx_random) = {.words = words, .normals = normals, .drop = drop};
