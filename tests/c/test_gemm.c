/* Matrix products: every path of this processor against the three plain loops, and those against sums in double. */
#include "check.h"
#include "isas.h"
#include "kernels/context.h"
#include "kernels/gemm.h"
#include "kernels/gemm_internal.h"
#include "kernels/gemm_micro.h"

#include <cblas.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 3, GUARD = 0x5a }; /* unused elements at the end of each row; the byte they hold */

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }
static float random_value(void) { return (float)random_bits() / (float)(1u << 30) - 1.0f; }

static float get(const void *data, mx_dtype dtype, int64_t at)
{
    return dtype == MX_F32 ? ((const float *)data)[at] : mx_from_bf16(((const mx_bf16 *)data)[at]);
}

static void set(void *data, mx_dtype dtype, int64_t at, float x)
{
    if (dtype == MX_F32)
        ((float *)data)[at] = x;
    else
        ((mx_bf16 *)data)[at] = mx_to_bf16(x);
}

static size_t bytes_of(const mx_matrix *x, int64_t rows)
{
    return (size_t)(rows * x->stride) * mx_dtype_bytes(x->dtype) + 64;
}

static mx_matrix new_matrix(int64_t rows, int64_t columns, mx_dtype dtype, bool trans)
{
    mx_matrix x = {NULL, dtype, columns + GAP, trans};
    x.data = malloc(bytes_of(&x, rows));
    memset(x.data, GUARD, bytes_of(&x, rows));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            set(x.data, dtype, i * x.stride + j, random_value());
    return x;
}

typedef struct shape {
    int64_t m, n, k;
} shape;

typedef struct form {
    mx_dtype a, b, c;
    bool trans_a, trans_b, accumulate, bias;
    float alpha;
} form;

static mx_gemm new_product(shape s, form f)
{
    mx_gemm g = {.m = s.m, .n = s.n, .k = s.k, .alpha = f.alpha, .accumulate = f.accumulate};
    g.a = f.trans_a ? new_matrix(s.k, s.m, f.a, true) : new_matrix(s.m, s.k, f.a, false);
    g.b = f.trans_b ? new_matrix(s.n, s.k, f.b, true) : new_matrix(s.k, s.n, f.b, false);
    g.c = new_matrix(s.m, s.n, f.c, false);
    if (f.bias)
        g.bias = new_matrix(1, s.n, MX_F32, false).data;
    return g;
}

static void free_product(mx_gemm *g)
{
    free(g->a.data);
    free(g->b.data);
    free(g->c.data);
    free((void *)g->bias);
}

/* The same product into a copy of C. */
static mx_gemm with_own_c(const mx_gemm *g)
{
    mx_gemm copy = *g;
    copy.c.data = malloc(bytes_of(&g->c, g->m) + 1); /* an empty product is one, too */
    memcpy(copy.c.data, g->c.data, bytes_of(&g->c, g->m));
    return copy;
}

static bool same_bits(const mx_gemm *x, const mx_gemm *y)
{
    return memcmp(x->c.data, y->c.data, bytes_of(&x->c, x->m)) == 0;
}

static float operand(const mx_matrix *x, int64_t row, int64_t column, bool round)
{
    float v = get(x->data, x->dtype, x->trans ? column * x->stride + row : row * x->stride + column);
    return round ? mx_from_bf16(mx_to_bf16(v)) : v;
}

/* The largest error of C over its bound, and whether what lies between the rows is untouched. Each of k products and k
 * sums is rounded once at most, relative to no more than the sum of magnitudes; so are alpha, bias and the old C, once
 * for each block of k at the worst; a bf16 C once more to 8 bits. */
static double residual(const mx_gemm *g, const void *old_c)
{
    bool round = g->a.dtype == MX_BF16 || g->b.dtype == MX_BF16;
    double worst = 0;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t p = 0; p < g->k; p++) {
                double term = (double)operand(&g->a, i, p, round) * operand(&g->b, p, j, round);
                sum += term;
                magnitude += fabs(term);
            }
            double old = g->accumulate ? get(old_c, g->c.dtype, i * g->c.stride + j) : 0;
            double shift = g->bias ? g->bias[j] : 0;
            double exact = g->alpha * sum + shift + old;
            double bound = (2.0 * (double)g->k + 8) * ldexp(1, -24) *
                               (fabs((double)g->alpha) * magnitude + fabs(shift) + fabs(old)) +
                           1e-37;
            if (g->c.dtype == MX_BF16)
                bound += ldexp(fabs(exact) + bound, -8);
            double error = fabs(get(g->c.data, g->c.dtype, i * g->c.stride + j) - exact) / bound;
            worst = error > worst || error != error ? error : worst;
        }
    for (int64_t i = 0; i < g->m; i++)
        for (size_t x = 0; x < GAP * mx_dtype_bytes(g->c.dtype); x++)
            if (((unsigned char *)g->c.data)[(size_t)(i * g->c.stride + g->n) * mx_dtype_bytes(g->c.dtype) + x] !=
                GUARD)
                return INFINITY;
    return worst;
}

static void check_product(shape s, form f, const char *what)
{
    mx_gemm g = new_product(s, f);
    mx_gemm fast = with_own_c(&g), plain = with_own_c(&g);
    CHECK(mx_gemm_run(&fast) == MX_OK, "%s: %s", what, mx_message());
    mx_gemm_reference(&plain);
    double fast_residual = residual(&fast, g.c.data), plain_residual = residual(&plain, g.c.data);
    CHECK(fast_residual <= 1 && plain_residual <= 1,
          "%s %s: (%d, %d, %d) %s%s x %s%s -> %s%s%s alpha %g: residual %g, of the reference %g, in bounds", what,
          mx_isa_name(mx_isa_current()), (int)s.m, (int)s.n, (int)s.k, mx_dtype_name(f.a), f.trans_a ? "'" : "",
          mx_dtype_name(f.b), f.trans_b ? "'" : "", mx_dtype_name(f.c), f.accumulate ? " +=" : "",
          f.bias ? " + bias" : "", f.alpha, fast_residual, plain_residual);
    free(fast.c.data);
    free(plain.c.data);
    free_product(&g);
}

static form form_of(int bits)
{
    return (form){bits & 1 ? MX_BF16 : MX_F32,
                  bits & 2 ? MX_BF16 : MX_F32,
                  bits & 4 ? MX_BF16 : MX_F32,
                  bits & 8,
                  bits & 16,
                  bits & 32,
                  bits & 64,
                  bits % 3 == 0 ? 0.375f : 1.0f};
}

/* All 128 forms, each on sizes around the edges of the register block, with blocks so small that every loop turns. */
static void test_forms(void)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 49, 97};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    mx_gemm_set_blocks(&(mx_gemm_blocks){16, 48, 16});
    for (int bits = 0; bits < 128; bits++)
        for (int repeat = 0; repeat < (ON_TILES ? 4 : 12); repeat++) {
            shape s = {sizes[random_below(N_SIZES)], sizes[random_below(N_SIZES)], sizes[random_below(N_SIZES)]};
            check_product(s, form_of(bits), "small blocks");
        }
    mx_gemm_set_blocks(NULL);
    for (int bits = 0; bits < 128; bits++)
        check_product((shape){1 + random_below(130), 1 + random_below(130), 1 + random_below(130)}, form_of(bits),
                      "standard blocks");
}

/* Rows of C 4 KiB apart. A block of many rows has its sums apart from C, which then takes 2^24 + 2 and not 2^24 + 1 +
 * 1, where each addition is rounded to 2^24. */
static void test_rows_far_apart(void)
{
    enum { N = 1024 - GAP, K = 64 };
    mx_gemm_set_blocks(&(mx_gemm_blocks){64, 96, 32});
    check_product((shape){70, N, 2 * K}, form_of(32 + 1), "rows 4 KiB apart");
    mx_gemm g =
        new_product((shape){40, N, K}, (form){.a = MX_BF16, .b = MX_BF16, .c = MX_F32, .accumulate = true, .alpha = 1});
    for (int64_t i = 0; i < 40 * g.a.stride; i++)
        set(g.a.data, MX_BF16, i, i % g.a.stride == 0 || i % g.a.stride == K / 2 ? 1 : 0);
    for (int64_t i = 0; i < K * g.b.stride; i++)
        set(g.b.data, MX_BF16, i, 1);
    for (int64_t i = 0; i < 40 * g.c.stride; i++)
        set(g.c.data, MX_F32, i, 0x1p24f);
    CHECK(mx_gemm_run(&g) == MX_OK, "%s", mx_message());
    const mx_micro *u = mx_gemm_micro(&g);
    float want = 0x1p24f + (u->mr > 8 ? 2 : 0);
    int wrong = 0;
    for (int64_t i = 0; i < 40; i++)
        for (int64_t j = 0; j < N; j++)
            wrong += get(g.c.data, MX_F32, i * g.c.stride + j) != want;
    CHECK(wrong == 0, "%s: %d sums are not %.1f", u->instruction, wrong, (double)want);
    free_product(&g);
    mx_gemm_set_blocks(NULL);
}

/* Large enough for several blocks of the standard size in k. */
static void test_large(void)
{
    for (int bits = 0; bits < 128; bits += 1 + (int)random_below(12))
        check_product((shape){29, 53, 2600}, form_of(bits), "large");
}

/* The products of a generation step. */
static void test_few_rows(void)
{
    for (int64_t m = 1; m <= 9; m++)
        for (int bits = 0; bits < 128; bits += 1 + (int)random_below(3))
            check_product((shape){m, 1 + random_below(300), 1 + random_below(300)}, form_of(bits), "few rows");
}

static void test_special_values(void)
{
    mx_gemm g = new_product((shape){7, 50, 9}, (form){.a = MX_F32, .b = MX_BF16, .c = MX_F32, .alpha = 1});
    ((float *)g.a.data)[2 * g.a.stride + 3] = NAN;
    ((float *)g.a.data)[4 * g.a.stride + 3] = INFINITY;
    set(g.b.data, MX_BF16, 3 * g.b.stride + 1, 2.0f);
    CHECK(mx_gemm_run(&g) == MX_OK, "%s", mx_message());
    const float *c = g.c.data;
    CHECK(isnan(c[2 * g.c.stride + 49]), "a NaN operand gives %g", (double)c[2 * g.c.stride + 49]);
    CHECK(isinf(c[4 * g.c.stride + 1]) && c[4 * g.c.stride + 1] > 0, "an infinite one %g",
          (double)c[4 * g.c.stride + 1]);
    CHECK(isfinite(c[3 * g.c.stride + 1]), "its neighbour row %g", (double)c[3 * g.c.stride + 1]);
    free_product(&g);
}

static void test_threads(shape s, form f)
{
    mx_gemm g = new_product(s, f);
    omp_set_num_threads(1);
    mx_gemm one = with_own_c(&g);
    CHECK(mx_gemm_run(&one) == MX_OK, "%s", mx_message());
    for (int threads = 2; threads <= 6; threads++) {
        omp_set_num_threads(threads);
        mx_gemm many = with_own_c(&g);
        CHECK(mx_gemm_run(&many) == MX_OK, "%s", mx_message());
        CHECK(same_bits(&one, &many), "(%d, %d, %d) on %d threads differs from one thread", (int)s.m, (int)s.n,
              (int)s.k, threads);
        free(many.c.data);
    }
    omp_set_num_threads(2);
    free(one.c.data);
    free_product(&g);
}

static void test_parallel_region(void)
{
    enum { PRODUCTS = 6 };
    mx_gemm outside[PRODUCTS], inside[PRODUCTS];
    for (int i = 0; i < PRODUCTS; i++) {
        mx_gemm g = new_product((shape){90 + i, 150, 700}, form_of(1 + 4 * i));
        outside[i] = g;
        inside[i] = with_own_c(&g);
        CHECK(mx_gemm_run(&outside[i]) == MX_OK, "%s", mx_message());
    }
    int failed = 0;
#pragma omp parallel for reduction(+ : failed) schedule(static, 1) num_threads(3)
    for (int i = 0; i < PRODUCTS; i++)
        failed += mx_gemm_run(&inside[i]) != MX_OK;
    CHECK(failed == 0, "%d products failed inside a parallel region", failed);
    for (int i = 0; i < PRODUCTS; i++) {
        bool f32 = inside[i].a.dtype == MX_F32 && inside[i].b.dtype == MX_F32;
        bool close = f32 && strcmp(mx_gemm_instruction(MX_F32), "OpenBLAS") == 0; /* its bits depend on the threads */
        CHECK(close || same_bits(&inside[i], &outside[i]), "product %d differs inside a parallel region", i);
        free(inside[i].c.data);
        free_product(&outside[i]);
    }
}

static void test_batched(int64_t batch, int64_t b_step_matrices)
{
    shape s = {13, 34, 55};
    mx_gemm g = {.m = s.m, .n = s.n, .k = s.k, .alpha = 1};
    g.a = new_matrix(s.m * batch, s.k, MX_BF16, false);
    g.b = new_matrix(s.k * batch, s.n, MX_F32, false);
    g.c = new_matrix(s.m * batch, s.n, MX_F32, false);
    int64_t a_step = s.m * g.a.stride, b_step = b_step_matrices * s.k * g.b.stride, c_step = s.m * g.c.stride;
    CHECK(mx_gemm_batched(&g, batch, a_step, b_step, c_step) == MX_OK, "%s", mx_message());
    for (int64_t i = 0; i < batch; i++) {
        mx_gemm one = g;
        one.a.data = (mx_bf16 *)g.a.data + i * a_step;
        one.b.data = (float *)g.b.data + i * b_step;
        one.c.data = (float *)g.c.data + i * c_step;
        double r = residual(&one, NULL);
        CHECK(r <= 1, "product %d of a batch of %d: residual %g", (int)i, (int)batch, r);
    }
    free_product(&g);
}

typedef struct layout { /* of gemm_micro.h */
    int block, k_group, k_unit;
} layout;

static int64_t words_of(layout l, int64_t k)
{
    int64_t words = (k + l.k_group - 1) / l.k_group;
    return (words + l.k_unit - 1) / l.k_unit * l.k_unit;
}

/* The element of a packed operand, its word taken apart. */
static float packed_element(const uint32_t *packed, layout l, bool a_side, int64_t item, int64_t p, int64_t k)
{
    int64_t w = p / l.k_group, at = item / l.block * l.block * words_of(l, k);
    if (l.k_unit == 1)
        at += w * l.block + item % l.block;
    else /* in tiles */
        at += w / 16 * 16 * l.block + item % l.block / 16 * 256 +
              (a_side ? item % 16 * 16 + w % 16 : w % 16 * 16 + item % 16);
    uint32_t word = packed[at];
    if (l.k_group == 2)
        word = p % 2 ? word & 0xffff0000u : word << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}

static void check_packing(mx_micro_pack *pack, bool a_side, layout l, int64_t length, int64_t k, mx_dtype dtype,
                          bool trans)
{
    bool along = a_side != trans;
    mx_matrix x = along ? new_matrix(length, k, dtype, trans) : new_matrix(k, length, dtype, trans);
    int64_t padded = (length + l.block - 1) / l.block * l.block, words = padded * words_of(l, k);
    uint32_t *packed = aligned_alloc(64, (size_t)(words + 32) / 16 * 64);
    memset(packed, GUARD, (size_t)(words + 8) * 4);
    pack(length, k, x.data, dtype, x.stride, trans, packed);
    int wrong = 0;
    for (int64_t i = 0; i < padded; i++)
        for (int64_t p = 0; p < words_of(l, k) * l.k_group; p++) {
            float want = 0;
            if (i < length && p < k)
                want = mx_from_bf16(mx_to_bf16(get(x.data, dtype, along ? i * x.stride + p : p * x.stride + i)));
            wrong += packed_element(packed, l, a_side, i, p, k) != want;
        }
    for (int i = 0; i < 8 * 4; i++)
        wrong += ((unsigned char *)(packed + words))[i] != GUARD;
    CHECK(wrong == 0, "packing %s of (%d, %d) %s%s, block %d, %d to a word, %d words to a unit: %d wrong",
          a_side ? "A" : "B", (int)length, (int)k, mx_dtype_name(dtype), trans ? "'" : "", l.block, l.k_group, l.k_unit,
          wrong);
    free(packed);
    free(x.data);
}

/* The packing of pairs is compiled for AVX2 too: tested here even where its kernel does not run. */
mx_micro_pack mx_pack_a_pairs_avx2, mx_pack_b_pairs_avx2;

static void test_packing(mx_isa isa)
{
    for (int i = 0; i < 200; i++) {
        int64_t length = 1 + random_below(120), k = 1 + random_below(60);
        mx_dtype dtype = i & 1 ? MX_BF16 : MX_F32;
        const mx_micro *u = mx_kernels_of(isa)->micro;
        check_packing(u->pack_a, true, (layout){u->mr, u->k_group, u->k_unit}, length, k, dtype, i & 2);
        check_packing(u->pack_b, false, (layout){u->nr, u->k_group, u->k_unit}, length, k, dtype, i & 2);
        if (isa >= MX_ISA_AVX2) {
            check_packing(mx_pack_a_pairs_avx2, true, (layout){8, 2, 1}, length, k, dtype, i & 2);
            check_packing(mx_pack_b_pairs_avx2, false, (layout){48, 2, 1}, length, k, dtype, i & 2);
        }
    }
}

/* f32 sums of blocks of rows: each term is rounded no more often than there are rows. */
static void test_column_sum(int64_t rows, int64_t n, mx_dtype dtype)
{
    mx_matrix x = new_matrix(1, rows * n, dtype, false);
    float *sums = malloc((size_t)(n + 1) * sizeof *sums);
    sums[n] = 12345;
    mx_column_sum(rows, n, x.data, dtype, sums);
    double worst = 0;
    for (int64_t j = 0; j < n; j++) {
        double sum = 0, magnitude = 1e-30;
        for (int64_t i = 0; i < rows; i++) {
            sum += get(x.data, dtype, i * n + j);
            magnitude += fabs((double)get(x.data, dtype, i * n + j));
        }
        worst = fmax(worst, fabs(sums[j] - sum) / ((double)rows * ldexp(1, -24) * magnitude));
    }
    CHECK(worst <= 1 && sums[n] == 12345, "sums of %d columns of %d rows of %s: %g bounds", (int)n, (int)rows,
          mx_dtype_name(dtype), worst);
    free(sums);
    free(x.data);
}

int main(void)
{
    CHECK(mx_isa_best() < MX_ISA_AVX2 || getenv("OPENBLAS_CORETYPE") ||
              strcmp(openblas_get_corename(), "Prescott") != 0,
          "OpenBLAS leaves AVX unused");
    omp_set_num_threads(2);
    if (no_isa())
        return check_done();
    for (mx_isa isa = FIRST_ISA; isa <= mx_isa_best(); isa++) {
        CHECK(mx_isa_use(mx_isa_name(isa)) == MX_OK, "%s", mx_message());
        test_packing(isa);
        test_forms();
        test_large();
        test_rows_far_apart();
        test_few_rows();
        test_special_values();
        test_threads((shape){200, 300, 900}, (form){.a = MX_BF16, .b = MX_F32, .c = MX_BF16, .alpha = 1, .bias = true});
        test_threads((shape){16, 700, 600},
                     (form){.a = MX_BF16, .b = MX_BF16, .c = MX_F32, .alpha = 1, .accumulate = true});
        test_threads((shape){3, 700, 600}, (form){.a = MX_BF16, .b = MX_BF16, .c = MX_BF16, .alpha = 1});
        test_parallel_region();
        for (int rows = 1; rows <= 1000; rows += 333)
            for (int n = 0; n <= 600; n += 150)
                test_column_sum(rows, n, rows % 2 ? MX_F32 : MX_BF16);
        test_batched(1, 1);
        test_batched(7, 1);
        test_batched(7, 0);
    }
    return check_done();
}
