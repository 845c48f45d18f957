#include "data/permutation.h"

uint64_t mx_mix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

mx_permutation mx_permutation_new(uint64_t n, uint64_t seed, bool shuffle)
{
    mx_permutation p = {.n = n};
    for (int i = 0; i < MX_PERMUTATION_ROUNDS; i++) {
        seed += 0x9e3779b97f4a7c15u;
        p.keys[i] = mx_mix64(seed);
    }
    if (!shuffle || n < 2)
        return p;
    p.half_bits = 1;
    while ((uint64_t)1 << 2 * p.half_bits < n)
        p.half_bits++;
    return p;
}

static uint64_t feistel(const mx_permutation *p, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << p->half_bits) - 1;
    uint64_t left = x >> p->half_bits, right = x & mask;
    for (int i = 0; i < MX_PERMUTATION_ROUNDS; i++) {
        uint64_t mixed = left ^ (mx_mix64(right + p->keys[i]) & mask);
        left = right;
        right = mixed;
    }
    return left << p->half_bits | right;
}

uint64_t mx_permutation_at(const mx_permutation *p, uint64_t i)
{
    if (p->half_bits == 0)
        return i;
    do
        i = feistel(p, i);
    while (i >= p->n);
    return i;
}
