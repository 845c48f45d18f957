/* Random arrays and dropout: values of (seed, offset, index) alone, by core/rng.h, the same bits on every path. */
#ifndef MX_KERNELS_RANDOM_H
#define MX_KERNELS_RANDOM_H

#include "core/rng.h"
#include "kernels/elementwise.h"

typedef struct mx_stream {
    uint64_t seed, offset;
    bool drawn; /* numbers that no other seed and offset give: the generator's counter runs through its upper half */
} mx_stream;

/* The least and the greatest value of a float dtype in [low, high); false where there is none. */
bool mx_uniform_range(double low, double high, mx_dtype dtype, float *least, float *greatest);

/* y[i] = least + (high - least) u, u uniform on [0, 1), but at most `greatest`; least and greatest are of y's dtype. */
void mx_random_uniform(mx_stream s, float least, float greatest, float high, mx_array y, int64_t n);

/* y[i] = mean + std z, z standard normal; f32 or bf16. */
void mx_random_normal(mx_stream s, float mean, float std, mx_array y, int64_t n);

/* A part of a row-major array: along each of at least one dimension, `size` of the `of` elements, from number
 * `start` (counted from 0) on. */
enum { MX_PART_DIMS = 8 };
typedef struct mx_part {
    int n_dims;
    int64_t size[MX_PART_DIMS], start[MX_PART_DIMS], of[MX_PART_DIMS];
} mx_part;

/* The elements that the part has of the array which mx_random_normal would make, to the same bits, as a dense array. */
void mx_random_normal_part(mx_stream s, float mean, float std, const mx_part *part, mx_array y);

/* y[i] = x[i] / (1 - rate) with probability 1 - rate, else 0 (where mx_rng_mask is below 2^32 rate); 0 <= rate < 1. x
 * and y f32 or bf16. y may be x. The n elements are rows of `width` (n where they are one row). Element j of row r
 * draws number column + j of the stream (seed, offset + rows[r]): a row's mask depends on its number alone, whichever
 * rows are beside it, and a part of the columns has the mask of the whole row. rows == NULL: all are 0. */
void mx_dropout(mx_stream s, double rate, const int32_t *rows, int64_t width, int64_t column, mx_array x, mx_array y,
                int64_t n);

/* What the words of a stream become. */
typedef enum mx_draw_kind {
    MX_DRAW_WORDS,    /* themselves: i32 */
    MX_DRAW_UNIFORM,  /* a + b u, u uniform on [0, 1), but at most `greatest`: f32 or bf16 */
    MX_DRAW_NORMAL,   /* a + b z, z standard normal: f32 or bf16 */
    MX_DRAW_INTEGERS, /* low, modulo 2^32, + the whole part of range times a fraction of 64 bits: i32. The words of the
                         second half of a group are the lower bits: a group has MX_RNG_GROUP / 2 integers. */
} mx_draw_kind;

typedef struct mx_draw {
    mx_draw_kind kind;
    mx_stream s;
    float a, b, greatest;
    uint32_t low, range;
} mx_draw;

/* The number in the generator's counter of a group of a stream. */
static inline uint64_t mx_group_of(mx_stream s, int64_t group) { return (uint64_t)group | (s.drawn ? 1ULL << 59 : 0); }

/* For one instruction set, `n` groups from number `group` on, which is one of mx_group_of(). x and y, which may be x,
 * have the groups' elements. `stream`: past the caches, if y lies at a multiple of 64 bytes. */
typedef struct mx_random_paths {
    void (*fill)(const mx_draw *d, uint64_t group, int64_t n, mx_array y, bool stream);
    /* y[i] = word of element i < 2^32 p[i], as 0 or 1; p in [0, 1] and y of the same dtype, f32 or bf16 */
    void (*chances)(mx_stream s, uint64_t group, int64_t n, mx_array p, mx_array y, bool stream);
    /* Of masks, see mx_rng_mask: y[i] = upper bits at or above `threshold` ? scale x[i] : 0. Bit g of the result says
     * that some upper bits of group g are the threshold's; n is at most 32. */
    uint32_t (*drop)(mx_stream s, uint64_t group, int64_t n, uint32_t threshold, float scale, mx_array x, mx_array y,
                     bool stream);
} mx_random_paths;

#endif
