/* The random generator: published answers, equal bits on every path and for any number of threads, and moments. */
#include "kernels/random.h"

#include "buffers.h"
#include "check.h"

#include <omp.h>
#include <string.h>

/* kat_vectors of Random123, philox4x32 with 10 rounds. */
static void test_known_answers(void)
{
    static const struct {
        uint64_t seed, offset, block;
        uint32_t word[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int k = 0; k < 3; k++) {
        uint32_t word[4];
        mx_philox(known[k].seed, known[k].offset, known[k].block, word);
        for (int w = 0; w < 4; w++)
            CHECK(word[w] == known[k].word[w], "vector %d word %d is %08x", k, w, word[w]);
    }
}

static void test_element_mapping(void)
{
    const uint64_t seed = 123456789012345, offset = 77;
    for (uint64_t group = 0; group < 3; group++) {
        uint32_t words[MX_RNG_GROUP];
        mx_rng_words(seed, offset, group, words);
        for (uint64_t i = 0; i < MX_RNG_GROUP; i++) {
            uint32_t block[4];
            mx_philox(seed, offset, 16 * group + i % 16, block);
            CHECK(words[i] == block[i / 16], "group %d element %d", (int)group, (int)i);
            CHECK(mx_rng_u32(seed, offset, 64 * group + i) == words[i], "element %d", (int)(64 * group + i));
        }
    }
}

enum { N = 100000 };

/* What every path must equal, made by the scalar code of core/. */
static float normal_want[N + 64], uniform_want[N];

static void make_expected(mx_stream s)
{
    for (int64_t i = 0; i < N; i++)
        uniform_want[i] = -2.0f + 5.0f * mx_rng_unit(mx_rng_u32(s.seed, s.offset, (uint64_t)i));
    for (int64_t g = 0; g * 64 < N; g++) {
        uint32_t words[MX_RNG_GROUP];
        mx_rng_words(s.seed, s.offset, (uint64_t)g, words);
        mx_rng_normals(words, normal_want + g * 64);
    }
    for (int64_t i = 0; i < N; i++)
        normal_want[i] = 0.5f + 2.0f * normal_want[i];
}

static const mx_stream stream = {.seed = 0x123456789abcdef0, .offset = 0xfedcba9876543210};

static void check_path(const char *isa)
{
    float *normal = make_values(N, MX_F32, 0, 1), *unit = make_values(N, MX_F32, 0, 1);
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        memset(normal, 0, N * sizeof *normal);
        mx_random_normal(stream, 0.5f, 2.0f, (mx_array){normal, MX_F32}, N);
        mx_random_uniform(stream, -2.0f, 3.0f, 3.0f, (mx_array){unit, MX_F32}, N);
        CHECK(memcmp(normal, normal_want, N * sizeof *normal) == 0, "normals differ on %s, %d threads", isa, threads);
        CHECK(memcmp(unit, uniform_want, N * sizeof *unit) == 0, "uniforms differ on %s, %d threads", isa, threads);
    }
    for (int64_t n = 0; n <= 130; n += 13) {
        mx_bf16 *bf16 = make_values(n, MX_BF16, 0, 1);
        mx_random_normal(stream, 0.5f, 2.0f, (mx_array){bf16, MX_BF16}, n);
        for (int64_t i = 0; i < n; i++)
            CHECK(bf16[i] == mx_to_bf16(normal_want[i]), "bf16 normal %d of %d on %s", (int)i, (int)n, isa);
        CHECK(guard_intact(bf16, n, MX_BF16), "%d bf16 normals on %s", (int)n, isa);
        free(bf16);
    }
    free(normal);
    free(unit);
}

/* A part is what one would cut out of the whole: the elements from `start` on, walked one by one. */
static int count_wrong(const mx_part *part, const void *y, mx_dtype dtype)
{
    int64_t n = 1, wrong = 0;
    for (int d = 0; d < part->n_dims; d++)
        n *= part->size[d];
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int d = part->n_dims - 1; d >= 0; d--) {
            at += (part->start[d] + rest % part->size[d]) * stride;
            rest /= part->size[d];
            stride *= part->of[d];
        }
        float want = dtype == MX_BF16 ? mx_from_bf16(mx_to_bf16(normal_want[at])) : normal_want[at];
        wrong += (float)get_value(y, i, dtype) != want;
    }
    return (int)wrong;
}

/* Dimensions from 1 to 150 long, so that rows begin anywhere in a group, and are shorter and longer than one. */
static void check_parts(const char *isa)
{
    mx_part large = {.n_dims = 2, .size = {300, 200}, .start = {7, 33}, .of = {310, 300}}; /* shared out by threads */
    for (int i = 0; i < 400; i++) {
        mx_part part = {.n_dims = 1 + i % 4};
        int64_t n = 1;
        for (int d = 0; d < part.n_dims; d++) {
            uint32_t word = mx_rng_u32(11, (uint64_t)d, (uint64_t)i);
            int64_t most = (int64_t[]){70000, 150, 40, 16}[part.n_dims - 1];
            part.of[d] = 1 + word % most;
            part.size[d] = word >> 30 == 0 ? part.of[d] : (int64_t)(word >> 8) % (part.of[d] + 1);
            part.start[d] = (int64_t)(word >> 4) % (part.of[d] - part.size[d] + 1);
            n *= part.size[d];
        }
        if (i >= 396) {
            part = large;
            n = 300 * 200;
        }
        mx_dtype dtype = i / 4 % 2 ? MX_BF16 : MX_F32;
        void *y = make_values(n, dtype, 0, 1);
        omp_set_num_threads(1 + i % 3);
        mx_random_normal_part(stream, 0.5f, 2.0f, &part, (mx_array){y, dtype});
        int wrong = count_wrong(&part, y, dtype);
        CHECK(wrong == 0, "part %d: %d of %d %s values wrong on %s", i, wrong, (int)n, mx_dtype_name(dtype), isa);
        CHECK(guard_intact(y, n, dtype), "part %d on %s", i, isa);
        free(y);
    }
}

/* The bounds are five standard errors. */
static void test_moments(void)
{
    enum { MANY = 1 << 20 };
    float *x = make_values(MANY, MX_F32, 0, 1);
    double sum = 0, square = 0, fourth = 0, largest = 0;
    mx_random_normal((mx_stream){7, 8, false}, 0, 1, (mx_array){x, MX_F32}, MANY);
    for (int i = 0; i < MANY; i++) {
        sum += x[i];
        square += (double)x[i] * x[i];
        fourth += pow(x[i], 4);
        largest = fmax(largest, fabs((double)x[i]));
    }
    CHECK(fabs(sum / MANY) < 5 / 1024.0, "mean %g", sum / MANY);
    CHECK(fabs(square / MANY - 1) < 5 * sqrt(2) / 1024, "variance %g", square / MANY);
    CHECK(fabs(fourth / MANY - 3) < 5 * sqrt(96) / 1024, "fourth moment %g", fourth / MANY);
    CHECK(largest > 4.2 && largest < 6.7, "largest %g", largest);
    double lag = 0;
    for (int i = 0; i + 16 < MANY; i++)
        lag += (double)x[i] * x[i + 16];
    CHECK(fabs(lag / MANY) < 5 / 1024.0, "the two normals of a pair correlate: %g", lag / MANY);

    sum = square = 0;
    mx_random_uniform((mx_stream){7, 9, false}, 0, 1, 1, (mx_array){x, MX_F32}, MANY);
    int outside = 0;
    for (int i = 0; i < MANY; i++) {
        sum += x[i];
        square += (x[i] - 0.5) * (x[i] - 0.5);
        outside += !(x[i] >= 0 && x[i] < 1);
    }
    CHECK(outside == 0, "%d outside [0, 1)", outside);
    CHECK(fabs(sum / MANY - 0.5) < 5 * sqrt(1 / 12.0) / 1024, "mean %g", sum / MANY);
    CHECK(fabs(square / MANY - 1 / 12.0) < 5 * sqrt(1 / 180.0) / 1024, "variance %g", square / MANY);
    free(x);
}

static uint32_t mask_bits(int32_t row, uint64_t element)
{
    return mx_rng_mask(stream.seed, stream.offset + (uint64_t)row, element / 128, element % 128);
}

/* A rate so small that the upper 16 bits alone would keep all, and one that they cannot tell from another: the lower
 * bits decide. */
static void check_small_rates(const char *isa)
{
    enum { MANY = 1 << 23 };
    static const double rates[] = {4e-6, 0.25 + 0x1p-18};
    mx_bf16 *x = make_values(MANY, MX_BF16, 1, 1), *y = make_values(MANY, MX_BF16, 0, 0);
    for (int k = 0; k < 2; k++) {
        mx_dropout(stream, rates[k], NULL, MANY, 0, (mx_array){x, MX_BF16}, (mx_array){y, MX_BF16}, MANY);
        int dropped = 0, wrong = 0;
        uint32_t upper = (uint32_t)(rates[k] * 0x1p16);
        for (int64_t i = 0; i < MANY; i++) {
            dropped += y[i] == 0;
            if (k == 0 || i < 1 << 20) {
                uint32_t bits = mask_bits(0, (uint64_t)i);
                wrong += bits >> 16 == upper && (y[i] == 0) != (bits < rates[k] * 0x1p32);
            }
        }
        CHECK(wrong == 0, "%s: %d wrong at rate %g", isa, wrong, rates[k]);
        CHECK(fabs(dropped - rates[k] * MANY) < 5 * sqrt(rates[k] * MANY), "%s: %d dropped at rate %g", isa, dropped,
              rates[k]);
    }
    free(x), free(y);
}

static void check_dropout(const char *isa)
{
    enum { MANY = 100003 };
    const double rate = 0.3;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
        void *x = make_values(MANY, dtype, 1, 2), *y = make_values(MANY, dtype, 0, 1), *again = malloc(MANY * 4);
        omp_set_num_threads(2);
        mx_dropout(stream, rate, NULL, MANY, 0, (mx_array){x, dtype}, (mx_array){y, dtype}, MANY);
        int kept = 0, wrong = 0;
        for (int64_t i = 0; i < MANY; i++) {
            bool keep = mask_bits(0, (uint64_t)i) >= rate * 0x1p32;
            float want = keep ? (float)get_value(x, i, dtype) * (float)(1 / (1 - rate)) : 0.0f;
            kept += keep;
            wrong += get_value(y, i, dtype) != (bf16 ? mx_from_bf16(mx_to_bf16(want)) : want);
        }
        CHECK(wrong == 0, "%d values wrong, %s on %s", wrong, mx_dtype_name(dtype), isa);
        CHECK(fabs(kept / (double)MANY - 0.7) < 5 * sqrt(0.21 / MANY), "kept %d", kept);
        CHECK(guard_intact(y, MANY, dtype), "%s", isa);
        memcpy(again, x, MANY * mx_dtype_bytes(dtype));
        omp_set_num_threads(1);
        mx_dropout(stream, rate, NULL, MANY, 0, (mx_array){again, dtype}, (mx_array){again, dtype}, MANY);
        CHECK(memcmp(again, y, MANY * mx_dtype_bytes(dtype)) == 0, "in place, one thread, on %s", isa);
        mx_dropout(stream, 0, NULL, MANY, 0, (mx_array){x, dtype}, (mx_array){y, dtype}, MANY);
        CHECK(memcmp(x, y, MANY * mx_dtype_bytes(dtype)) == 0, "a rate of 0 keeps everything, on %s", isa);
        free(x);
        free(y);
        free(again);
    }
}

/* Rows that draw from streams of their own: the values of each are those of mx_rng_mask, wherever the row is. */
static void check_dropout_rows(const char *isa)
{
    enum { ROWS = 521, WIDTH = 300 }; /* a row ends within a group of numbers */
    const double rate = 0.4;
    int32_t rows[ROWS];
    float *x = make_values((int64_t)ROWS * WIDTH, MX_F32, 1, 2), *y = make_values((int64_t)ROWS * WIDTH, MX_F32, 0, 1);
    for (int r = 0; r < ROWS; r++)
        rows[r] = (r * 7919 + 5) % ROWS;
    rows[1] = INT32_MAX;
    for (int threads = 1; threads <= 2; threads++) {
        omp_set_num_threads(threads);
        mx_dropout(stream, rate, rows, WIDTH, 0, (mx_array){x, MX_F32}, (mx_array){y, MX_F32}, (int64_t)ROWS * WIDTH);
        int wrong = 0;
        for (int64_t i = 0; i < (int64_t)ROWS * WIDTH; i++) {
            uint32_t bits = mask_bits(rows[i / WIDTH], (uint64_t)(i % WIDTH));
            wrong += y[i] != (bits >= rate * 0x1p32 ? x[i] * (float)(1 / (1 - rate)) : 0.0f);
        }
        CHECK(wrong == 0, "%d values wrong with %d threads on %s", wrong, threads, isa);
    }
    for (int64_t column = 0; column < WIDTH; column += 37) { /* some columns: the mask of the whole row */
        int64_t width = WIDTH - column < 170 ? WIDTH - column : 170, wrong = 0;
        mx_dropout(stream, rate, rows, width, column, (mx_array){x, MX_F32}, (mx_array){y, MX_F32}, ROWS * width);
        for (int64_t i = 0; i < ROWS * width; i++) {
            uint64_t element = (uint64_t)(column + i % width);
            uint32_t bits = mask_bits(rows[i / width], element);
            wrong += y[i] != (bits >= rate * 0x1p32 ? x[i] * (float)(1 / (1 - rate)) : 0.0f);
        }
        CHECK(wrong == 0, "%lld values wrong from column %lld on %s", (long long)wrong, (long long)column, isa);
    }
    CHECK(guard_intact(y, (int64_t)ROWS * WIDTH, MX_F32), "%s", isa);
    free(x);
    free(y);
}

/* [low, high) as it is stored: a value that would round to `high` is the greatest below it. */
static void check_half_open(const char *isa)
{
    enum { MANY = 1 << 20 };
    static const double ranges[][2] = {{1, 2}, {-2, -1}, {0, 1}, {1.001, 1.5}, {-1e-3, 1e30}, {16777215.5, 16777220}};
    float *y = make_values(MANY, MX_F32, 0, 1);
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++) {
            mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
            double low = ranges[r][0], high = ranges[r][1];
            float least, greatest;
            if (bf16 && r == 5)
                continue; /* bf16 has no number there */
            CHECK(mx_uniform_range(low, high, dtype, &least, &greatest), "[%g, %g)", low, high);
            mx_random_uniform(stream, least, greatest, (float)high, (mx_array){y, dtype}, MANY);
            int outside = 0;
            for (int64_t i = 0; i < MANY; i++)
                outside += !(get_value(y, i, dtype) >= low && get_value(y, i, dtype) < high);
            CHECK(outside == 0, "%s: %d %s outside [%g, %g)", isa, outside, mx_dtype_name(dtype), low, high);
        }
    free(y);
    float least, greatest;
    CHECK(mx_uniform_range(1, 2, MX_F32, &least, &greatest) && least == 1 && greatest == 2 - 0x1p-23f, "%g", greatest);
    CHECK(mx_uniform_range(1, 2, MX_BF16, &least, &greatest) && greatest == 2 - 0x1p-7f, "%g", greatest);
    CHECK(mx_uniform_range(-2, -1, MX_BF16, &least, &greatest) && greatest == -1 - 0x1p-7f, "%g", greatest);
    CHECK(mx_uniform_range(-1, 0, MX_BF16, &least, &greatest) && greatest < 0, "%g", greatest);
    static const double none[][2] = {{1, 1}, {2, 1}, {NAN, 1}, {0, INFINITY}, {-3e38, 3e38}, {1.0001, 1.0002}};
    for (size_t r = 0; r < sizeof none / sizeof *none; r++)
        CHECK(!mx_uniform_range(none[r][0], none[r][1], MX_BF16, &least, &greatest), "[%g, %g)", none[r][0],
              none[r][1]);
}

/* A drawn stream has no number in common with one of the same key and offset. */
static void check_drawn(const char *isa)
{
    enum { MANY = 200 };
    mx_stream given = {5, 1, false}, drawn = {5, 1, true};
    float a[MANY], b[MANY];
    mx_random_normal(given, 0, 1, (mx_array){a, MX_F32}, MANY);
    mx_random_normal(drawn, 0, 1, (mx_array){b, MX_F32}, MANY);
    int same = 0;
    for (int i = 0; i < MANY; i++)
        for (int j = 0; j < MANY; j++)
            same += a[i] == b[j];
    CHECK(same == 0, "%s: %d numbers alike", isa, same);
    uint32_t words[MX_RNG_GROUP], block[4];
    mx_philox(5, 1, 1ULL << 63, block); /* the first block of the upper half */
    mx_rng_words(5, 1, 1ULL << 59, words);
    CHECK(words[0] == block[0] && words[16] == block[1], "%s: the upper half of the counter", isa);
}

int main(void)
{
    test_known_answers();
    test_element_mapping();
    make_expected(stream);
    for_each_isa(check_path);
    for_each_isa(check_parts);
    test_moments();
    for_each_isa(check_half_open);
    for_each_isa(check_drawn);
    for_each_isa(check_dropout);
    check_small_rates("the best path");
    for_each_isa(check_dropout_rows);
    return check_done();
}
