/* Random numbers without state: each depends only on (seed, offset, index).
 *
 * The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). `seed` is its
 * key; `offset` is the stream (a call, a step), `index` the element. So a value does not depend on threads, the
 * instruction set or earlier draws, and backward can compute a dropout mask again. */
#ifndef MX_CORE_RNG_H
#define MX_CORE_RNG_H

#include <stdint.h>

/* One block of the generator: four words for the counter (block, offset) under the key `seed`. */
void mx_philox(uint64_t seed, uint64_t offset, uint64_t block, uint32_t word[4]);

/* Elements are made in groups of 64 from 16 blocks, so that vectors of up to 16 lanes can store their results directly:
 * element 64 g + 16 w + j is word w of block 16 g + j. */
enum { MX_RNG_GROUP = 64 };
void mx_rng_words(uint64_t seed, uint64_t offset, uint64_t group, uint32_t words[MX_RNG_GROUP]);

/* The word of one element. */
uint32_t mx_rng_u32(uint64_t seed, uint64_t offset, uint64_t index);

/* 32 random bits for an element of a mask: for element 32 w + 2 j + h of a group of 128, half h (0: the lower one) of
 * word w of block 16 group + j are the upper bits. They decide almost always, so four words serve eight elements. The
 * same half of the same word of group + MX_RNG_FURTHER are the lower bits, which are only drawn where the upper ones
 * are those of the threshold. */
enum { MX_RNG_MASK_GROUP = 2 * MX_RNG_GROUP };
#define MX_RNG_FURTHER (1ULL << 58)
uint32_t mx_rng_mask(uint64_t seed, uint64_t offset, uint64_t group, uint64_t element);

/* 32 random bits of element `number` under a key, from few operations: only for the rounding of updates. The integer
 * hash lowbias32 (Wellons, "Prospecting for Hash Functions", 2018) with a key before each product. */
static inline uint32_t mx_rng_hash(uint32_t key0, uint32_t key1, uint32_t number)
{
    uint32_t x = number + key0;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = ((x ^ x >> 15) + key1) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Uniform on [0, 1), with 24 bits. */
static inline float mx_rng_unit(uint32_t word) { return (float)(int32_t)(word >> 8) * 0x1p-24f; }

/* Standard normals from a group of words, by Box-Muller: words w and w + 1 (w = 0, 2) of a block give the elements at
 * the same positions. Their magnitude is at most 6.7. Each step is an IEEE f32 operation (fma where written so), in the
 * order of the vector paths, so all paths give the same bits. */
void mx_rng_normals(const uint32_t words[MX_RNG_GROUP], float normals[MX_RNG_GROUP]);

#endif
