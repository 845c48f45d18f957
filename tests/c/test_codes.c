/* Codes of one byte: quantizing them and multiplying them, on every path of this processor, to the bit. */
#include "check.h"
#include "core/cpu.h"
#include "core/element.h"
#include "core/float8.h"
#include "isas.h"
#include "kernels/context.h"
#include "kernels/gemm.h"
#include "kernels/quantize.h"

#include <omp.h>
#include <string.h>

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static const mx_dtype all_codes[] = {MX_I8, MX_E4M3, MX_E5M2, MX_E4M3FNUZ, MX_E5M2FNUZ};
enum { N_CODES = sizeof all_codes / sizeof *all_codes };

static float rounded(float x, mx_dtype code)
{
    uint8_t byte[8]; /* room for any dtype */
    float most = code == MX_I8 ? 127 : mx_dtypes[code].bound, least = code == MX_I8 ? -128 : -most;
    float y = x < least ? least : x > most ? most : x;
    mx_set_number(byte, 0, code == MX_I8 ? (double)rintf(y) : (double)y, code);
    return (float)mx_get_number(byte, 0, code);
}

/* With a scale of 1, of the tensor or of each column, each bf16 and the f32 `bits` beside it become the nearest code,
 * and what is beyond the largest becomes the largest. */
static void test_every_bf16(mx_dtype code, int bits, mx_quantize_by by)
{
    static float x[65536];
    static mx_bf16 narrow[65536];
    static uint8_t codes[65536];
    float one[1024];
    for (int i = 0; i < 1024; i++)
        one[i] = 1;
    for (int i = 0; i < 65536; i++) {
        narrow[i] = (mx_bf16)i;
        x[i] = mx_float_of_bits(((uint32_t)i << 16) + (uint32_t)bits);
    }
    mx_quantize_run(&(mx_quantize){.rows = 64,
                                   .columns = 1024,
                                   .x = bits ? (void *)x : (void *)narrow,
                                   .dtype = bits ? MX_F32 : MX_BF16,
                                   .codes = codes,
                                   .code = code,
                                   .by = by,
                                   .scale = one,
                                   .given = true});
    int wrong = 0;
    for (int i = 0; i < 65536; i++) {
        float value = x[i], got = (float)mx_get_number(codes, i, code);
        float want = rounded(value, code);
        if (isnan(value))
            wrong += code == MX_I8 ? got != 0 : !isnan(got);
        else
            wrong += got != want;
    }
    CHECK(wrong == 0, "%s: %d of the bf16 and %d become another %s", mx_isa_name(mx_isa_current()), wrong, bits,
          mx_dtype_name(code));
}

typedef struct result {
    uint8_t codes[37 * 1100];
    float scale[1100], largest;
} result;

static void quantize(const void *x, mx_dtype dtype, bool round, mx_dtype code, int form, const float *factors,
                     result *r)
{
    memset(r, 0, sizeof *r);
    r->scale[0] = 0.01f;
    mx_quantize q = {.rows = 37, .columns = 1100, .x = x, .dtype = dtype, .codes = r->codes, .code = code};
    q.rounded = round;
    q.scale = r->scale;
    q.by = (mx_quantize_by)(form < 6 ? form % 3 : form - 3);
    if (form >= 6) { /* blocks */
        q.rows = 32;
        q.columns = 1088;
        mx_quantize_run(&q);
        return;
    }
    q.given = form == 5;
    q.row_factor = form == 1 || form == 4 ? factors : NULL;
    q.column_factor = form == 0 || form == 3 ? factors : NULL;
    q.largest = &r->largest;
    q.stochastic = form >= 3;
    q.seed = 17;
    mx_quantize_run(&q);
}

/* Scales and codes of any form have the bits of the portable path, and those of f32 that is rounded have the bits of
 * bf16. */
static void test_paths_agree(mx_dtype code)
{
    static float x[37 * 1100], factors[1100];
    static mx_bf16 narrow[37 * 1100];
    static result fast, plain;
    for (int i = 0; i < 37 * 1100; i++) {
        x[i] = ((float)random_bits() * 0x1p-30f - 1.0f) * (random_bits() % 7 == 0 ? 30.0f : 1.0f);
        narrow[i] = mx_to_bf16(x[i]);
    }
    for (int i = 0; i < 1100; i++)
        factors[i] = 0.5f + (float)random_bits() * 0x1p-31f;
    mx_isa isa = mx_isa_current();
    static const char *const names[] = {"f32", "bf16", "rounded f32"};
    static result of_bf16;
    for (int form = 0; form < (code == MX_I8 ? 6 : 8); form++)
        for (int from = 0; from < 3; from++) {
            const void *values = from == 1 ? (void *)narrow : (void *)x;
            mx_dtype dtype = from == 1 ? MX_BF16 : MX_F32;
            quantize(values, dtype, from == 2, code, form, factors, &fast);
            (void)mx_isa_use("portable");
            quantize(values, dtype, from == 2, code, form, factors, &plain);
            (void)mx_isa_use(mx_isa_name(isa));
            CHECK(memcmp(&fast, &plain, sizeof fast) == 0, "%s: %s, form %d, %s: other bits than on the portable path",
                  mx_isa_name(isa), mx_dtype_name(code), form, names[from]);
            of_bf16 = from == 1 ? fast : of_bf16;
            CHECK(from < 2 || memcmp(&fast, &of_bf16, sizeof fast) == 0,
                  "%s: %s, form %d: rounded f32 has other bits than bf16", mx_isa_name(isa), mx_dtype_name(code), form);
        }
}

/* Columns beyond the second-level cache have the codes and scales of the same numbers in rows. */
static void test_long_columns(mx_dtype code)
{
    enum { ROWS = 50000, COLUMNS = 3 };
    static float x[ROWS * COLUMNS], turned[COLUMNS * ROWS];
    static uint8_t codes[ROWS * COLUMNS], want[COLUMNS * ROWS];
    float scale[COLUMNS], want_scale[COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) {
            x[i * COLUMNS + j] = (float)random_bits() * 0x1p-30f - 1.0f;
            turned[j * ROWS + i] = x[i * COLUMNS + j];
        }
    mx_quantize q = {.rows = ROWS, .columns = COLUMNS, .x = x, .codes = codes, .code = code, .scale = scale};
    q.by = MX_BY_COLUMN;
    mx_quantize_run(&q);
    q = (mx_quantize){.rows = COLUMNS, .columns = ROWS, .x = turned, .codes = want, .code = code, .scale = want_scale};
    mx_quantize_run(&q);
    int wrong = memcmp(scale, want_scale, sizeof scale) != 0;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            wrong += codes[i * COLUMNS + j] != want[j * ROWS + i];
    CHECK(wrong == 0, "%s: %d codes or scales of long columns of %s differ from those of rows",
          mx_isa_name(mx_isa_current()), wrong, mx_dtype_name(code));
}

/* A mean of stochastic roundings is the number itself: 4096 draws, whose deviation is at most half a step each. */
static void test_stochastic(mx_dtype code)
{
    static float x[4096];
    static uint8_t codes[4096];
    for (int sample = 0; sample < 20; sample++) {
        float value = (float)random_bits() * 0x1p-29f - 2.0f, one = 0.0625f;
        for (int i = 0; i < 4096; i++)
            x[i] = value;
        mx_quantize_run(&(mx_quantize){.rows = 1,
                                       .columns = 4096,
                                       .x = x,
                                       .codes = codes,
                                       .code = code,
                                       .by = MX_BY_TENSOR,
                                       .scale = &one,
                                       .given = true,
                                       .stochastic = true,
                                       .seed = (uint64_t)sample});
        double low = 1e30, high = -1e30, mean = 0;
        for (int i = 0; i < 4096; i++) {
            double got = mx_get_number(codes, i, code) * 0.0625;
            low = got < low ? got : low;
            high = got > high ? got : high;
            mean += got / 4096;
        }
        double deviation = (high - low) / 2 / 64;
        CHECK(low <= (double)value && (double)value <= high && fabs(mean - (double)value) <= 5 * deviation + 1e-7,
              "%s: %g is rounded to %g and %g, on average to %g", mx_dtype_name(code), (double)value, low, high, mean);
    }
}

static mx_matrix new_matrix(int64_t rows, int64_t columns, mx_dtype dtype, bool trans)
{
    enum { GAP = 3 };
    mx_matrix x = {NULL, dtype, columns + GAP, trans};
    int64_t n = rows * x.stride;
    uint8_t *bytes = malloc((size_t)n * 4 + 64);
    memset(bytes, 0x5a, (size_t)n * 4 + 64);
    x.data = bytes;
    for (int64_t i = 0; i < n; i++)
        if (dtype == MX_I8)
            bytes[i] = random_bits() % 5 ? (uint8_t)random_bits() : 0x80; /* -128 is where other schemes break */
        else if (mx_dtype_is_code(dtype))
            do
                bytes[i] = (uint8_t)random_bits();
            while (!isfinite(mx_from_code(bytes[i], dtype)));
        else
            mx_set_number(x.data, i, (double)random_bits() * 0x1p-30 - 1, dtype);
    return x;
}

typedef struct form {
    mx_dtype a, b, c;
    bool trans_a, trans_b, bias, rounded;
    int scales; /* bits: of rows, of columns, one for all, of blocks of a, of blocks of b */
} form;

enum { BLOCKS_OF_A = 8, BLOCKS_OF_B = 16 };

static const float *values(int64_t n)
{
    float *v = malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; i < n + 1; i++)
        v[i] = 0.001f + (float)random_bits() * 0x1p-40f;
    return v;
}

static const float *powers(int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = ldexpf(1, (int)(random_bits() % 8) - 5);
    return v;
}

/* The distance from `want` that f32 sums of k terms and the scales allow; C may be rounded to bf16 once more. */
static double error_bound(const mx_gemm *g, double magnitude, double want)
{
    double bound = (2.0 * (double)g->k + 8) * 0x1p-24 * magnitude + 1e-37;
    return g->c.dtype == MX_BF16 || g->rounded ? bound + ldexp(fabs(want) + bound, -8) : bound;
}

/* i8 x i8 is exact, so it equals the reference to the bit; all else is near sums in double. */
static void check_product(int64_t m, int64_t n, int64_t k, form f)
{
    mx_gemm g = {.m = m, .n = n, .k = k, .alpha = 1, .rounded = f.rounded};
    g.a = f.trans_a ? new_matrix(k, m, f.a, true) : new_matrix(m, k, f.a, false);
    g.b = f.trans_b ? new_matrix(n, k, f.b, true) : new_matrix(k, n, f.b, false);
    g.c = new_matrix(m, n, f.c, false);
    int step = f.scales & 4 ? 0 : 1;
    g.scale_a = f.scales & 1 ? (mx_scale){values(m), step} : (mx_scale){0};
    g.scale_b = f.scales & 2 ? (mx_scale){values(n), step} : (mx_scale){0};
    g.block_a = f.scales & BLOCKS_OF_A ? powers(m * k / MX_BLOCK) : NULL;
    g.block_b = f.scales & BLOCKS_OF_B ? powers(n * k / MX_BLOCK) : NULL;
    g.bias = f.bias ? values(n) : NULL;
    mx_gemm plain = g;
    mx_matrix expected = new_matrix(m, n, f.c, false);
    plain.c = expected;
    size_t bytes = (size_t)(m * g.c.stride) * mx_dtype_bytes(f.c);
    memcpy(expected.data, g.c.data, bytes);
    CHECK(mx_gemm_run(&g) == MX_OK, "%s", mx_message());
    mx_gemm_reference(&plain);
    bool exact = f.a == MX_I8 && f.b == MX_I8;
    int wrong = exact && memcmp(g.c.data, expected.data, bytes) != 0;
    for (int64_t i = 0; !exact && i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0, magnitude = 0, factor = 1;
            for (int64_t p = 0; p < k; p++) {
                float a = (float)mx_get_number(g.a.data, f.trans_a ? p * g.a.stride + i : i * g.a.stride + p, f.a);
                float b = (float)mx_get_number(g.b.data, f.trans_b ? j * g.b.stride + p : p * g.b.stride + j, f.b);
                double term = (double)mx_from_bf16(mx_to_bf16(a)) * (double)mx_from_bf16(mx_to_bf16(b));
                int64_t block = p / MX_BLOCK, blocks = k / MX_BLOCK;
                term *= g.block_a ? (double)g.block_a[f.trans_a ? block * m + i : i * blocks + block] : 1;
                term *= g.block_b ? (double)g.block_b[f.trans_b ? j * blocks + block : block * n + j] : 1;
                sum += term;
                magnitude += fabs(term);
            }
            factor *= g.scale_a.value ? (double)g.scale_a.value[i * step] : 1;
            factor *= g.scale_b.value ? (double)g.scale_b.value[j * step] : 1;
            double shift = g.bias ? (double)g.bias[j] : 0, want = sum * factor + shift;
            double got = mx_get_number(g.c.data, i * g.c.stride + j, f.c);
            wrong += f.rounded && (double)mx_from_bf16(mx_to_bf16((float)got)) != got;
            wrong += !(fabs(got - want) <= error_bound(&g, magnitude * factor + fabs(shift), want));
        }
    CHECK(wrong == 0, "%s%s: (%d, %d, %d) %s%s x %s%s -> %s%s, scales %d%s: %d wrong", mx_isa_name(mx_isa_current()),
          mx_cpu_has(MX_CPU_VNNI) ? "" : " without VNNI", (int)m, (int)n, (int)k, mx_dtype_name(f.a),
          f.trans_a ? "'" : "", mx_dtype_name(f.b), f.trans_b ? "'" : "", f.rounded ? "rounded " : "",
          mx_dtype_name(f.c), f.scales, f.bias ? " + bias" : "", wrong);
    free(g.a.data);
    free(g.b.data);
    free(g.c.data);
    free(expected.data);
    free((void *)g.scale_a.value);
    free((void *)g.scale_b.value);
    free((void *)g.block_a);
    free((void *)g.block_b);
    free((void *)g.bias);
}

static void test_products(void)
{
    static const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 49, 97};
    static const mx_dtype pairs[][2] = {
        {MX_I8, MX_I8},   {MX_E4M3, MX_E4M3}, {MX_E5M2, MX_E4M3},         {MX_E4M3, MX_E5M2},
        {MX_BF16, MX_I8}, {MX_F32, MX_E4M3},  {MX_E4M3FNUZ, MX_E5M2FNUZ}, {MX_E5M2FNUZ, MX_E4M3FNUZ}};
    enum { N_SIZES = sizeof sizes / sizeof *sizes, N_PAIRS = sizeof pairs / sizeof *pairs };
    for (int blocks = 0; blocks < 2; blocks++) {
        mx_gemm_set_blocks(blocks == 0 ? &(mx_gemm_blocks){16, 48, 16} : NULL);
        for (int i = 0; i < 160; i++) {
            const mx_dtype *pair = pairs[i % 2 ? 0 : random_bits() % N_PAIRS];
            form f = {.a = pair[0],
                      .b = pair[1],
                      .c = random_bits() & 1 ? MX_F32 : MX_BF16,
                      .trans_a = random_bits() & 1,
                      .trans_b = random_bits() & 1,
                      .bias = random_bits() & 1,
                      .scales = (int)(random_bits() & 7)};
            f.rounded = f.c == MX_F32 && !f.bias && random_bits() & 1;
            check_product(sizes[random_bits() % N_SIZES], sizes[random_bits() % N_SIZES],
                          sizes[random_bits() % N_SIZES], f);
        }
    }
    for (int i = 0; i < 16; i++) {
        form f = {.a = MX_E4M3, .b = i & 1 ? MX_E4M3 : MX_E5M2, .c = i & 2 ? MX_BF16 : MX_F32};
        f.trans_a = i & 4;
        f.trans_b = i & 8;
        f.scales = i % 3 == 0 ? BLOCKS_OF_A | BLOCKS_OF_B : i % 3 == 1 ? BLOCKS_OF_A : BLOCKS_OF_B | 1;
        check_product(sizes[random_bits() % N_SIZES], sizes[random_bits() % N_SIZES], 32 * (1 + random_bits() % 3), f);
    }
    check_product(67, 101, 5024, (form){.a = MX_E4M3, .b = MX_E4M3, .c = MX_F32, .scales = BLOCKS_OF_A | BLOCKS_OF_B});
    check_product(29, 53, 9000, (form){.a = MX_I8, .b = MX_I8, .c = MX_BF16, .scales = 3});
    check_product(29, 53, 5000, (form){.a = MX_E4M3, .b = MX_E4M3, .c = MX_F32, .scales = 3});
    check_product(29, 53, 9000, (form){.a = MX_I8, .b = MX_I8, .c = MX_F32, .scales = 3, .rounded = true});
    check_product(29, 53, 5000, (form){.a = MX_E4M3, .b = MX_E5M2, .c = MX_F32, .scales = 3, .rounded = true});
    check_product(130, 290, 700, (form){.a = MX_I8, .b = MX_I8, .c = MX_F32, .scales = 3, .bias = true});
}

/* The instruction that multiplies i8: the best that the path and the processor have. */
static void test_instruction(void)
{
    const char *want = "IMUL", *got = mx_gemm_instruction(MX_I8);
    if (mx_isa_current() >= MX_ISA_AVX2)
        want = "VPMADDWD";
    if (mx_isa_current() >= MX_ISA_AVX512 && mx_cpu_has(MX_CPU_VNNI))
        want = "VPDPBUSD";
    if (mx_isa_current() >= MX_ISA_AMX && mx_cpu_has(MX_CPU_AMX_INT8))
        want = "TDPBSSD";
    CHECK(strncmp(got, want, strlen(want)) == 0, "%s multiplies i8 by %s, not %s", mx_isa_name(mx_isa_current()), got,
          want);
}

/* B of i8 in blocks, from sums in double of what is multiplied: B as it is for few rows, and otherwise rounded to A's
 * dtype. With few rows, all vector paths give the bits of the first one. */
static void check_blocks(int64_t m, int64_t n, int64_t k, mx_dtype dtype, float *first)
{
    mx_gemm g = {.m = m, .n = n, .k = k, .alpha = 1};
    g.a = new_matrix(m, k, dtype, false);
    g.b = new_matrix(n, k, MX_I8, true);
    g.c = (mx_matrix){malloc((size_t)(m * n) * 4), MX_F32, n, false};
    g.block_b = values(n * k / MX_BLOCK);
    g.bias = values(n);
    CHECK(mx_gemm_run(&g) == MX_OK, "%s", mx_message());
    const float *c = g.c.data;
    int wrong = 0;
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, magnitude = 0;
        for (int64_t p = 0; p < k; p++) {
            int64_t row = i % n;
            float b = (float)mx_get_number(g.b.data, row * g.b.stride + p, MX_I8) * g.block_b[(row * k + p) / MX_BLOCK];
            if (m > MX_THIN_ROWS && dtype == MX_BF16)
                b = mx_from_bf16(mx_to_bf16(b));
            double term = mx_get_number(g.a.data, i / n * g.a.stride + p, dtype) * (double)b;
            sum += term;
            magnitude += fabs(term);
        }
        double bound = (2.0 * (double)k + 8) * 0x1p-24 * (magnitude + (double)g.bias[i % n]);
        wrong += !(fabs((double)c[i] - sum - (double)g.bias[i % n]) <= bound);
    }
    bool compares = mx_isa_current() > MX_ISA_AVX2 && mx_isa_current() > FIRST_ISA && m <= MX_THIN_ROWS;
    bool same = !compares || memcmp(first, c, (size_t)(m * n) * 4) == 0;
    memcpy(first, c, (size_t)(m * n) * 4);
    CHECK(wrong == 0 && same, "%s: blocks (%d, %d, %d) %s: %d wrong%s", mx_isa_name(mx_isa_current()), (int)m, (int)n,
          (int)k, mx_dtype_name(dtype), wrong, same ? "" : ", other bits than avx2");
    free(g.a.data);
    free(g.b.data);
    free(g.c.data);
    free((void *)g.block_b);
    free((void *)g.bias);
}

static void test_blocks(void)
{
    static const int64_t sizes[][3] = {{1, 1, 32}, {1, 37, 96}, {3, 8, 4128}, {8, 5, 64}, {9, 6, 64}, {40, 70, 160}};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    static float first[2 * N_SIZES][40 * 70];
    random_state = 5; /* the same on every path */
    for (int i = 0; i < 2 * N_SIZES; i++)
        check_blocks(sizes[i / 2][0], sizes[i / 2][1], sizes[i / 2][2], i % 2 ? MX_BF16 : MX_F32, first[i]);
}

/* The largest sum: 131,071 products of -128 and -128. */
static void test_largest_sum(void)
{
    enum { K = 131071 };
    int8_t *a = malloc(2 * K);
    memset(a, -128, 2 * K);
    float c = 0;
    mx_gemm g = {.m = 1, .n = 1, .k = K, .alpha = 1};
    g.a = (mx_matrix){a, MX_I8, K, false};
    g.b = (mx_matrix){a + K, MX_I8, 1, false};
    g.c = (mx_matrix){&c, MX_F32, 1, false};
    CHECK(mx_gemm_run(&g) == MX_OK && c == (float)(16384LL * K), "the largest sum is %.0f", (double)c);
    free(a);
}

/* Every code, unpacked: its product with 1. */
static void test_every_code(mx_dtype code)
{
    uint8_t codes[256];
    float one = 1, c[256];
    for (int i = 0; i < 256; i++)
        codes[i] = (uint8_t)i;
    for (int trans = 0; trans < 2; trans++) {
        mx_gemm g = {.m = 256, .n = 1, .k = 1, .alpha = 1};
        g.a = (mx_matrix){codes, code, trans ? 256 : 1, trans};
        g.b = (mx_matrix){&one, MX_F32, 1, false};
        g.c = (mx_matrix){c, MX_F32, 1, false};
        CHECK(mx_gemm_run(&g) == MX_OK, "%s", mx_message());
        int wrong = 0;
        for (int i = 0; i < 256; i++) {
            float want = (float)mx_get_number(codes, i, code);
            wrong += isnan(want) ? !isnan(c[i]) : c[i] != want;
        }
        CHECK(wrong == 0, "%s: %d codes of %s are unpacked to other numbers", mx_isa_name(mx_isa_current()), wrong,
              mx_dtype_name(code));
    }
}

int main(void)
{
    omp_set_num_threads(2);
    if (no_isa())
        return check_done();
    for (mx_isa isa = FIRST_ISA; isa <= mx_isa_best(); isa++) {
        CHECK(mx_isa_use(mx_isa_name(isa)) == MX_OK, "%s", mx_message());
        for (int i = 0; i < N_CODES; i++) {
            for (int bits = -1; bits <= 1; bits++) {
                test_every_bf16(all_codes[i], bits, MX_BY_TENSOR);
                test_every_bf16(all_codes[i], bits, MX_BY_COLUMN);
            }
            test_paths_agree(all_codes[i]);
            test_long_columns(all_codes[i]);
            test_every_code(all_codes[i]);
        }
        const char *before = "";
        for (int left_out = 0; left_out <= MX_CPU_FLAGS; left_out++) { /* the best instructions are left out first */
            for (int flag = 0; flag < MX_CPU_FLAGS; flag++)
                mx_cpu_use((mx_cpu_flag)flag, flag < MX_CPU_FLAGS - left_out);
            test_instruction();
            if (strcmp(before, mx_gemm_instruction(MX_I8)) != 0) {
                test_products();
                test_blocks();
                test_largest_sum();
            }
            before = mx_gemm_instruction(MX_I8);
        }
    }
    for (int i = 0; i < N_CODES; i++)
        test_stochastic(all_codes[i]);
    return check_done();
}
