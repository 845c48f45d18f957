/* Pseudo-random orders of 0 to n - 1 that need no table: a Feistel network over the next power of four, whose results
 * outside the range are put through it again until they lie inside. */
#ifndef MX_DATA_PERMUTATION_H
#define MX_DATA_PERMUTATION_H

#include <stdbool.h>
#include <stdint.h>

enum { MX_PERMUTATION_ROUNDS = 6 };

typedef struct mx_permutation {
    uint64_t n;
    int half_bits; /* 0: the identity */
    uint64_t keys[MX_PERMUTATION_ROUNDS];
} mx_permutation;

/* An order of 0 to n - 1 (n up to 2^62) that depends on the seed alone; without `shuffle` the natural one. */
mx_permutation mx_permutation_new(uint64_t n, uint64_t seed, bool shuffle);

/* Which number comes at place i, for i < n. A bijection; a few tens of nanoseconds. */
uint64_t mx_permutation_at(const mx_permutation *p, uint64_t i);

/* The splitmix64 finaliser: spreads the bits of x. For seeds made from several numbers. */
uint64_t mx_mix64(uint64_t x);

#endif
