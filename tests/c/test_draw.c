/* Draws by blocks against their definitions, number by number, on every path: integers, chances, truncated normals, the
 * first bad weight; and numbers so far into a stream that the generator's counter carries. */
#include "kernels/draw.h"

#include "buffers.h"
#include "check.h"

#include <float.h>
#include <omp.h>
#include <string.h>

enum { N = 70001 }; /* ends within a group, and within a block of groups */

static const mx_stream stream = {.seed = 0x123456789abcdef0, .offset = 0xfedcba9876543210};

static uint32_t word_of(uint64_t element) { return mx_rng_u32(stream.seed, stream.offset, element); }

/* The whole part of range times a fraction whose upper and lower 32 bits are 32 words apart. */
static int32_t integer_of(int64_t i, int64_t low, uint64_t range)
{
    uint64_t at = (uint64_t)(i / 32 * 64 + i % 32), bits = (uint64_t)word_of(at) << 32 | word_of(at + 32);
    return (int32_t)(low + (int64_t)(uint64_t)((unsigned __int128)bits * range >> 64));
}

static void check_integers(const char *isa)
{
    static const struct {
        int64_t low;
        uint64_t range;
    } cases[] = {{0, 1000}, {-7, 1}, {INT32_MIN, UINT32_MAX}, {INT32_MIN, 1ULL << 32}, {5, (1U << 31) - 5}};
    int32_t *y = make_values(N, MX_F32, 0, 1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        int wrong = 0;
        omp_set_num_threads(1 + (int)k % 3);
        mx_random_integers(stream, cases[k].low, cases[k].range, (mx_array){y, MX_I32}, N);
        for (int64_t i = 0; i < N; i++)
            wrong += y[i] != integer_of(i, cases[k].low, cases[k].range);
        CHECK(wrong == 0, "%s: %d integers of case %d wrong", isa, wrong, (int)k);
    }
    CHECK(guard_intact(y, N, MX_F32), "%s", isa);
    free(y);
}

/* Numbers of both dtypes from 0 to 1, 0 and 1 themselves, tiny ones, and in f32 those next to the words. */
static float chance_of(int64_t i, bool bf16)
{
    uint32_t word = word_of((uint64_t)i);
    if (i % 8 == 0)
        return i % 16 ? 1.0f : 0.0f;
    if (i % 8 == 1)
        return i % 3 ? 0x1p-140f : 0x1p-33f;
    if (i % 8 == 2 && !bf16)
        return fminf((float)((double)word * 0x1p-32), 1);
    float p = mx_rng_unit(mx_rng_u32(3, 4, (uint64_t)i));
    return bf16 ? mx_from_bf16(mx_to_bf16(p)) : p;
}

static void check_chances(const char *isa)
{
    static const mx_dtype results[] = {MX_F32, MX_BF16, MX_U8};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        mx_array p = {make_values(N, bf16 ? MX_BF16 : MX_F32, 0, 1), bf16 ? MX_BF16 : MX_F32};
        for (int64_t i = 0; i < N; i++)
            set_value(p.data, i, (double)chance_of(i, bf16), p.dtype);
        for (int r = 0; r < 3; r++) {
            const mx_dtype room = results[r] == MX_U8 ? MX_F32 : results[r];
            void *y = make_values(N, room, 0, 1);
            int wrong = 0;
            omp_set_num_threads(1 + r);
            CHECK(mx_random_bernoulli(stream, p, (mx_array){y, results[r]}, N) == -1, "%s: a good p is refused", isa);
            for (int64_t i = 0; i < N; i++)
                wrong += mx_get_number(y, i, results[r]) !=
                         ((double)word_of((uint64_t)i) < 0x1p32 * get_value(p.data, i, p.dtype) ? 1 : 0);
            CHECK(wrong == 0, "%s: %d chances wrong, %s to %s", isa, wrong, mx_dtype_name(p.dtype),
                  mx_dtype_name(results[r]));
            CHECK(guard_intact(y, N, room), "%s", isa);
            free(y);
        }
        free(p.data);
    }
}

/* The first of two elements that are no probabilities, or no weights. */
static void check_bad(const char *isa)
{
    static const float bad[] = {-1e-30f, 1.0078125f, NAN, -INFINITY, INFINITY};
    for (int k = 0; k < 10; k++) {
        mx_dtype dtype = k % 2 ? MX_BF16 : MX_F32;
        void *p = make_values(N, dtype, 0, 1), *y = make_values(N, dtype, 0, 1);
        const int64_t first = (int64_t[]){0, 511, 16384, 50000, N - 1}[k / 2];
        int32_t ids[1];
        int64_t found;
        for (int64_t i = 0; i < N; i++)
            set_value(p, i, i % 5 ? 0.5 : -0.0, dtype);
        set_value(p, first, (double)bad[k / 2], dtype);
        set_value(p, N - 1, (double)bad[k / 2], dtype);
        omp_set_num_threads(1 + k % 3);
        int64_t got = mx_random_bernoulli(stream, (mx_array){p, dtype}, (mx_array){y, dtype}, N);
        CHECK(got == first, "%s: bad chance %d found at %d, not %d", isa, k, (int)got, (int)first);
        const mx_multinomial m = {.rows = 1, .width = N, .n = 1, .p = {p, dtype}, .ids = ids};
        CHECK(mx_random_multinomial(stream, &m, &found) == MX_OK, "%s", isa);
        int64_t want = bad[k / 2] > 1 && bad[k / 2] < 2 ? -1 : first; /* a weight may be above 1 */
        CHECK(found == want, "%s: bad weight %d found at %d, not %d", isa, k, (int)found, (int)want);
        free(p), free(y);
    }
}

static double normal_below(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }

/* The distribution function takes a result back to the uniform number that it is from, but for the rounding to f32. */
static void check_truncated(const char *isa)
{
    static const double bounds[][2] = {{-2, 2}, {-INFINITY, INFINITY}, {0.5, 6}, {-9, -2.5}};
    float *y = make_values(N, MX_F32, 0, 1);
    for (int k = 0; k < 4; k++) {
        double low = bounds[k][0], high = bounds[k][1], worst = 0;
        mx_truncated t = {.mean = 0, .std = 1, .low = low, .high = high, .least = -FLT_MAX, .greatest = FLT_MAX};
        omp_set_num_threads(1 + k % 3);
        mx_random_truncated(stream, &t, (mx_array){y, MX_F32}, N);
        for (int64_t i = 0; i < N; i++) {
            double u = ((double)word_of((uint64_t)i) + 0.5) * 0x1p-32, z = (double)y[i];
            if (low > 0) /* mirrored */
                z = -z;
            double from = normal_below(low > 0 ? -high : low), to = normal_below(low > 0 ? -low : high);
            worst = fmax(worst, fabs(normal_below(z) - (from + u * (to - from))) / (to - from));
        }
        CHECK(worst < 1e-6, "%s: normals in [%g, %g] are off by %g", isa, low, high, worst);
    }
    CHECK(guard_intact(y, N, MX_F32), "%s", isa);
    free(y);
}

/* Element 2^34 belongs to block 2^32: the lower half of its number is 0 again. */
static void check_carry(const char *isa)
{
    enum { FEW = 600, BEFORE = 267 };
    const int64_t start = (1LL << 34) - BEFORE;
    const mx_part part = {.n_dims = 1, .size = {FEW}, .start = {start}, .of = {1LL << 35}};
    float y[FEW], want[MX_RNG_GROUP];
    int wrong = 0;
    mx_random_normal_part(stream, 0, 1, &part, (mx_array){y, MX_F32});
    for (int64_t i = 0; i < FEW; i++) {
        uint32_t words[MX_RNG_GROUP];
        mx_rng_words(stream.seed, stream.offset, (uint64_t)(start + i) / MX_RNG_GROUP, words);
        mx_rng_normals(words, want);
        wrong += y[i] != want[(start + i) % MX_RNG_GROUP];
    }
    CHECK(wrong == 0, "%s: %d normals around element 2^34 wrong", isa, wrong);
}

int main(void)
{
    for_each_isa(check_integers);
    for_each_isa(check_chances);
    for_each_isa(check_bad);
    for_each_isa(check_truncated);
    for_each_isa(check_carry);
    return check_done();
}
