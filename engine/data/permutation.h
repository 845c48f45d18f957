/* Pseudo-random permutations of 0 to n - 1 without a table: a Feistel network over the next power of four. Results
 * outside the range go through the network again until they are inside. */
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

/* A permutation of 0 to n - 1 (n up to 2^62) that depends only on the seed; without `shuffle`, the identity. */
mx_permutation mx_permutation_new(uint64_t n, uint64_t seed, bool shuffle);

/* The number at position i, for i < n. A bijection; takes a few tens of nanoseconds. */
uint64_t mx_permutation_at(const mx_permutation *p, uint64_t i);

/* The splitmix64 finaliser: spreads the bits of x. For seeds made from several numbers. */
uint64_t mx_mix64(uint64_t x);

#endif
