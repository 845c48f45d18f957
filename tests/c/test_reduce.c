/* Reductions against loops in double precision. */
#include "core/cpu.h"
#include "kernels/slopes.h"

#include "buffers.h"
#include "check.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <string.h>

static double at(const void *x, mx_dtype dtype, mx_extent e, int64_t o, int64_t i, int64_t j)
{
    return get_value(x, (o * e.n + i) * e.inner + j, dtype);
}

static void check_extent(mx_extent e, mx_dtype dtype, const char *isa)
{
    int64_t count = e.outer * e.n * e.inner, results = e.outer * e.inner;
    void *x = make_values(count, dtype, -1, 2), *y = make_values(results, dtype, 5, 6);
    double *sums = malloc(sizeof(double) * (size_t)(results + 1)),
           *largest = malloc(sizeof(double) * (size_t)(results + 1));
    int32_t *places = malloc(sizeof(int32_t) * (size_t)(results + 1)),
            *found = malloc(sizeof(int32_t) * (size_t)(results + 1));
    for (int64_t k = 0; k < results; k++) {
        sums[k] = 0;
        largest[k] = -INFINITY;
        for (int64_t i = 0; i < e.n; i++) {
            double one = at(x, dtype, e, k / e.inner, i, k % e.inner);
            sums[k] += 0.5 * one;
            if (one > largest[k]) {
                largest[k] = one;
                places[k] = (int32_t)i;
            }
        }
    }
    CHECK(mx_reduce_sum((mx_array){x, dtype}, e, 0.5, (mx_array){y, dtype}) == MX_OK, "%s", isa);
    double error = worst_error(y, dtype, sums, results);
    /* f32 sums of n terms in lanes of a vector: errors of one unit in the last place add up as a random walk, sqrt(n).
     */
    CHECK(error <= tolerance(dtype, 1e-6 + 0x1p-24 * sqrt((double)e.n)), "sum of %s (%d, %d, %d): %g on %s",
          mx_dtype_name(dtype), (int)e.outer, (int)e.n, (int)e.inner, error, isa);
    CHECK(guard_intact(y, results, dtype), "%s", isa);
    if (e.n > 0) {
        CHECK(mx_reduce_extreme(MX_FOLD_MAX, (mx_array){x, dtype}, e, (mx_array){y, dtype}) == MX_OK, "%s", isa);
        CHECK(worst_error(y, dtype, largest, results) == 0, "max of (%d, %d, %d) on %s", (int)e.outer, (int)e.n,
              (int)e.inner, isa);
        mx_reduce_place(MX_FOLD_MAX, (mx_array){x, dtype}, e, found);
        CHECK(memcmp(places, found, sizeof(int32_t) * (size_t)results) == 0, "argmax on %s", isa);
    }
    free(x);
    free(y);
    free(sums);
    free(largest);
    free(places);
    free(found);
}

static void check_extents(const char *isa)
{
    static const mx_extent extents[] = {
        {1, 1, 1},      {1, 0, 1},     {3, 0, 5},       {0, 3, 5},    {5, 7, 1},
        {1, 100003, 1}, {3, 40000, 1}, {1, 7, 5},       {4, 9, 33},   {2, 200, 1500},
        {1, 70000, 3},  {300, 2, 17},  {1, 1000, 1024}, {70, 31, 31}, {1, 5, 0},
    };
    for (size_t k = 0; k < sizeof extents / sizeof *extents; k++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            check_extent(extents[k], bf16 ? MX_BF16 : MX_F32, isa);
    for (int64_t n = 1; n <= 70; n++)
        check_extent((mx_extent){2, n, 1}, n & 1 ? MX_BF16 : MX_F32, isa);
}

/* Against double precision: extremes, norms, variances, logsumexp; any and all. */
static void check_others(mx_extent e, mx_dtype dtype, const char *isa)
{
    enum { MIN, ARGMIN, NORM, VAR, STD, LOGSUMEXP, ANY, ALL, KINDS };
    int64_t count = e.outer * e.n * e.inner, results = e.outer * e.inner;
    /* far from zero: squares of single values would cancel */
    void *x = make_values(count, dtype, 30, 33), *y = make_values(results, dtype, 5, 6);
    double *want[KINDS];
    int32_t *found = malloc(sizeof(int32_t) * (size_t)(results + 1));
    uint8_t *flags = malloc((size_t)results + 1);
    for (int64_t i = 0; i < count; i += 3)
        set_value(x, i, 0, dtype);
    for (int k = 0; k < KINDS; k++)
        want[k] = calloc((size_t)results + 1, sizeof(double));
    for (int64_t k = 0; k < results; k++) {
        double mean = 0, squares = 0, about = 0, largest = -INFINITY, exps = 0, least = INFINITY;
        for (int64_t i = 0; i < e.n; i++) {
            double one = at(x, dtype, e, k / e.inner, i, k % e.inner);
            mean += one / (double)e.n;
            squares += one * one;
            largest = fmax(largest, one);
            if (one < least) {
                least = one;
                want[ARGMIN][k] = (double)i;
            }
            want[ANY][k] += one != 0;
        }
        for (int64_t i = 0; i < e.n; i++) {
            double one = at(x, dtype, e, k / e.inner, i, k % e.inner);
            about += (one - mean) * (one - mean);
            exps += exp(one - largest);
        }
        want[MIN][k] = least;
        want[NORM][k] = sqrt(squares);
        want[VAR][k] = 0.5 * about;
        want[STD][k] = sqrt(0.5 * about);
        want[LOGSUMEXP][k] = largest + log(exps);
        want[ALL][k] = want[ANY][k] == (double)e.n;
        want[ANY][k] = want[ANY][k] > 0;
    }
    /* Columns add up to 64 rows in one f32 sum; the pieces of a row are random walks. */
    const double bound = tolerance(dtype, 64 * 0x1p-24 + 0x1p-23 * sqrt((double)e.n));
    const mx_array in = {x, dtype}, out = {y, dtype};
    for (int k = 0; k < 3; k++) {
        CHECK((k == 2 ? mx_reduce_logsumexp(in, e, out) : mx_reduce_variance(in, e, 0.5, k == 1, out)) == MX_OK, "%s",
              isa);
        double error = worst_error(y, dtype, want[VAR + k], results);
        CHECK(error <= bound, "%s: about %d of (%d, %d, %d) %s: %g", isa, k, (int)e.outer, (int)e.n, (int)e.inner,
              mx_dtype_name(dtype), error);
    }
    CHECK(mx_reduce_norm(in, e, out) == MX_OK && worst_error(y, dtype, want[NORM], results) <= bound, "%s: norm", isa);
    mx_reduce_extreme(MX_FOLD_MIN, in, e, out);
    CHECK(worst_error(y, dtype, want[MIN], results) == 0 && guard_intact(y, results, dtype), "%s: min", isa);
    mx_reduce_place(MX_FOLD_MIN, in, e, found);
    bool places = true, any = true, all = true;
    for (int64_t k = 0; k < results; k++)
        places = places && found[k] == (int32_t)want[ARGMIN][k];
    mx_reduce_any(in, e, false, flags);
    for (int64_t k = 0; k < results; k++)
        any = any && flags[k] == (want[ANY][k] != 0);
    mx_reduce_any(in, e, true, flags);
    for (int64_t k = 0; k < results; k++)
        all = all && flags[k] == (want[ALL][k] != 0);
    CHECK(places && any && all, "%s: argmin %d, any %d, all %d of (%d, %d, %d)", isa, places, any, all, (int)e.outer,
          (int)e.n, (int)e.inner);
    for (int k = 0; k < KINDS; k++)
        free(want[k]);
    free(x), free(y), free(found), free(flags);
}

static void check_all_others(const char *isa)
{
    static const mx_extent extents[] = {{1, 1, 1}, {0, 3, 5},  {5, 7, 1},      {1, 100003, 1}, {3, 40000, 1},
                                        {1, 7, 5}, {4, 9, 33}, {2, 200, 1500}, {1, 70000, 3},  {300, 2, 17}};
    for (size_t k = 0; k < sizeof extents / sizeof *extents; k++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            check_others(extents[k], bf16 ? MX_BF16 : MX_F32, isa);
    for (int64_t n = 1; n <= 70; n++)
        check_others((mx_extent){2, n, 1}, n & 1 ? MX_BF16 : MX_F32, isa);
}

/* Logarithms of sums of exponentials in rows and in columns whose values rise and fall by more than f32 can hold, with
 * an infinity, a NaN or the lowest number among them. */
static void check_logsumexp(const char *isa)
{
    enum { N = 700 };
    static float x[N], two[2 * N], y[2];
    const struct {
        float from, by, special, want;
    } cases[] = {
        {-300, 1, 0, 399.458675f},                          /* 399 + ln(1 + 1/e + 1/e^2 ...) */
        {400, -1, 0, 400.458675f},  {-1e30f, 0, 0, -1e30f}, /* + ln 700 */
        {-FLT_MAX, 0, 0, -FLT_MAX}, {0, 1, INFINITY, INFINITY}, {0, -1, -INFINITY, 0.458675145f},
        {0, 1, NAN, NAN},           {INFINITY, 0, NAN, NAN},    {-INFINITY, 0, 3, 3},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int i = 0; i < N; i++) {
            x[i] = i == 450 && cases[k].special != 0 ? cases[k].special
                   : cases[k].by == 0                ? cases[k].from
                                                     : cases[k].from + (float)i * cases[k].by;
            two[2 * i] = two[2 * i + 1] = x[i];
        }
        float want = cases[k].want;
        mx_reduce_logsumexp((mx_array){x, MX_F32}, (mx_extent){1, N, 1}, (mx_array){y, MX_F32});
        CHECK(isnan(want) ? isnan(y[0]) : y[0] == want || fabsf(y[0] / want - 1) < 1e-6f, "%s: case %d, row: %g", isa,
              (int)k, (double)y[0]);
        mx_reduce_logsumexp((mx_array){two, MX_F32}, (mx_extent){1, N, 2}, (mx_array){y, MX_F32});
        CHECK(isnan(want) ? isnan(y[1]) : y[1] == want || fabsf(y[1] / want - 1) < 1e-6f, "%s: case %d, columns: %g",
              isa, (int)k, (double)y[1]);
    }
}

/* Variances whose first elements, from which the others are taken, are far from the rest: what cancels is at most 8
 * times the variance. Up to 256 terms in a lane of an f32 sum lose half a unit in the last place each. */
static void check_steps(const char *isa)
{
    enum { N = 4096, FAR = 1000 };
    static float x[N];
    for (int64_t columns = 1; columns <= 2; columns++) {
        double mean = 0, want = 0;
        int64_t n = N / columns;
        float y[2];
        for (int64_t i = 0; i < N; i++)
            x[i] = (i / columns < (columns == 1 ? 512 : 16) ? 0 : FAR) + (float)(i / columns % 7) / 8;
        for (int64_t i = 0; i < n; i++)
            mean += (double)x[i * columns] / (double)n;
        for (int64_t i = 0; i < n; i++)
            want += ((double)x[i * columns] - mean) * ((double)x[i * columns] - mean);
        CHECK(mx_reduce_variance((mx_array){x, MX_F32}, (mx_extent){1, n, columns}, 1, false, (mx_array){y, MX_F32}) ==
                      MX_OK &&
                  fabs((double)y[0] / want - 1) < 8 * 256 * 0x1p-25,
              "%s: %g, not %g, in %d columns", isa, (double)y[0], want, (int)columns);
    }
}

/* Any (or all) of lines, each third of which has one element that is not zero (or is), in places all over them. What is
 * behind the array would change the last lines. */
static void check_any_of(mx_extent e, mx_dtype dtype, bool all, const char *isa)
{
    enum { BEHIND = 512 };
    int64_t count = e.outer * e.n * e.inner, results = e.outer * e.inner;
    void *x = malloc((size_t)(count + BEHIND) * mx_dtype_bytes(dtype));
    uint8_t *want = malloc((size_t)results), *got = malloc((size_t)results + 1);
    for (int64_t i = 0; i < count + BEHIND; i++)
        mx_set_number(x, i, (i < count) == all, dtype);
    for (int64_t k = 0; k < results; k++) {
        want[k] = all;
        if (k % 3 > 0)
            continue;
        mx_set_number(x, (k / e.inner * e.n + k * 7919 % e.n) * e.inner + k % e.inner, !all, dtype);
        want[k] = !all;
    }
    got[results] = 77;
    mx_reduce_any((mx_array){x, dtype}, e, all, got);
    CHECK(memcmp(want, got, (size_t)results) == 0 && got[results] == 77, "%s: %s of (%d, %d, %d) %s", isa,
          all ? "all" : "any", (int)e.outer, (int)e.n, (int)e.inner, mx_dtype_name(dtype));
    free(x), free(want), free(got);
}

static void check_any(const char *isa)
{
    static const mx_extent extents[] = {{1, 1, 1},    {40, 64, 1},     {70, 63, 1},   {9, 1024, 1}, {9, 1025, 1},
                                        {5, 5000, 1}, {1, 1 << 18, 1}, {3, 700, 2},   {2, 300, 63}, {2, 300, 64},
                                        {2, 300, 65}, {1, 90, 4096},   {2, 40, 4097}, {1, 9, 20000}};
    static const mx_dtype dtypes[] = {MX_F32, MX_BF16, MX_F64, MX_I32, MX_U8};
    for (size_t k = 0; k < sizeof extents / sizeof *extents; k++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (int all = 0; all < 2; all++)
                check_any_of(extents[k], dtypes[d], all, isa);
}

/* Infinities and nothing at all. */
static void check_edges(const char *isa)
{
    float x[4] = {-INFINITY, -INFINITY, 1, INFINITY}, y[2];
    uint8_t flag = 5;
    const mx_array in = {x, MX_F32}, out = {y, MX_F32};
    mx_reduce_logsumexp(in, (mx_extent){2, 2, 1}, out);
    CHECK(y[0] == -INFINITY && y[1] == INFINITY, "%s: %g %g", isa, y[0], y[1]);
    mx_reduce_logsumexp(in, (mx_extent){1, 2, 2}, out);
    CHECK(y[0] == 1 && y[1] == INFINITY, "%s: %g %g", isa, y[0], y[1]);
    mx_reduce_logsumexp(in, (mx_extent){2, 0, 1}, out);
    CHECK(y[0] == -INFINITY && y[1] == -INFINITY, "%s: %g", isa, y[0]);
    mx_reduce_any(in, (mx_extent){1, 0, 1}, true, &flag);
    CHECK(flag == 1, "all of nothing");
    mx_reduce_any(in, (mx_extent){1, 0, 1}, false, &flag);
    CHECK(flag == 0, "any of nothing");
    const float zeros[2] = {-0.0f, NAN};
    for (int i = 0; i < 2; i++) {
        mx_reduce_any((mx_array){(void *)(zeros + i), MX_F32}, (mx_extent){1, 1, 1}, false, &flag);
        CHECK(flag == i, "-0 is 0, and NaN is not");
    }
    int32_t whole[3] = {5, -7, 2}, least;
    CHECK(mx_reduce_extreme(MX_FOLD_MIN, (mx_array){whole, MX_I32}, (mx_extent){1, 3, 1}, (mx_array){&least, MX_I32}) ==
                  MX_OK &&
              least == -7,
          "%d", least);
}

/* The same bits whatever the number of threads. */
static void check_threads(const char *isa)
{
    static const mx_extent extents[] = {{1, 500001, 1}, {1, 3000, 301}, {7, 50000, 1}};
    for (int k = 0; k < 3; k++) {
        mx_extent e = extents[k];
        int64_t count = e.outer * e.n * e.inner, results = e.outer * e.inner;
        float *x = make_values(count, MX_F32, -1, 1), *one = malloc((size_t)results * 4),
              *other = malloc((size_t)results * 4);
        float squares[2];
        omp_set_num_threads(1);
        mx_reduce_sum((mx_array){x, MX_F32}, e, 1, (mx_array){one, MX_F32});
        mx_sum_squares((mx_array){x, MX_F32}, count, (mx_array){&squares[0], MX_F32});
        omp_set_num_threads(3);
        mx_reduce_sum((mx_array){x, MX_F32}, e, 1, (mx_array){other, MX_F32});
        mx_sum_squares((mx_array){x, MX_F32}, count, (mx_array){&squares[1], MX_F32});
        CHECK(memcmp(one, other, (size_t)results * 4) == 0, "case %d on %s", k, isa);
        CHECK(squares[0] == squares[1], "case %d on %s", k, isa);
        double want = 0;
        for (int64_t i = 0; i < count; i++)
            want += (double)x[i] * x[i];
        CHECK(fabs(squares[0] / want - 1) < 3e-7, "squares %g, not %g, on %s", squares[0], want, isa);
        free(x);
        free(one);
        free(other);
    }
    float nothing = 5;
    CHECK(mx_sum_squares((mx_array){&nothing, MX_F32}, 0, (mx_array){&nothing, MX_F32}) == MX_OK && nothing == 0,
          "%g on %s", nothing, isa);
}

static void check_nan(const char *isa)
{
    enum { N = 100 };
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int64_t place = 0; place < N; place += 9) {
            mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
            void *x = make_values(N, dtype, 0, 1), *y = make_values(N, dtype, 0, 1);
            int32_t index[N];
            set_value(x, place, NAN, dtype);
            mx_reduce_extreme(MX_FOLD_MAX, (mx_array){x, dtype}, (mx_extent){1, N, 1}, (mx_array){y, dtype});
            CHECK(isnan(get_value(y, 0, dtype)), "NaN at %d on %s", (int)place, isa);
            mx_reduce_place(MX_FOLD_MAX, (mx_array){x, dtype}, (mx_extent){1, N, 1}, index);
            CHECK(index[0] == place, "NaN at %d found at %d on %s", (int)place, index[0], isa);
            mx_reduce_extreme(MX_FOLD_MAX, (mx_array){x, dtype}, (mx_extent){1, 5, 20}, (mx_array){y, dtype});
            for (int j = 0; j < 20; j++)
                CHECK(isnan(get_value(y, j, dtype)) == (j == place % 20), "column %d on %s", j, isa);
            free(x);
            free(y);
        }
}

/* One NaN in columns that are read in vectors: its own column alone has it, and the others their extremes. */
static void check_nan_of_columns(const char *isa)
{
    enum { ROWS = 11, COLUMNS = 150 };
    for (int64_t place = 0; place < ROWS * COLUMNS; place += 31) {
        mx_dtype dtype = place & 1 ? MX_BF16 : MX_F32;
        mx_fold fold = place & 2 ? MX_FOLD_MIN : MX_FOLD_MAX;
        void *x = make_values(ROWS * COLUMNS, dtype, -1, 1), *y = make_values(COLUMNS, dtype, 0, 1);
        set_value(x, place, NAN, dtype);
        mx_reduce_extreme(fold, (mx_array){x, dtype}, (mx_extent){1, ROWS, COLUMNS}, (mx_array){y, dtype});
        for (int64_t j = 0; j < COLUMNS; j++) {
            double want = get_value(x, j, dtype), got = get_value(y, j, dtype);
            for (int64_t i = 1; i < ROWS; i++) {
                double one = get_value(x, i * COLUMNS + j, dtype);
                want = fold == MX_FOLD_MIN ? fmin(want, one) : fmax(want, one);
            }
            CHECK(j == place % COLUMNS ? isnan(got) : got == want, "NaN at %d: column %d has %g, not %g, on %s",
                  (int)place, (int)j, got, want, isa);
        }
        free(x);
        free(y);
    }
}

static void test_max_backward(void)
{
    float x[6] = {1, 5, 2, 5, 3, 4}, y[3] = {5, 5, 4}, dy[3] = {2, 8, 1}, dx[6];
    mx_reduce_extreme_backward((mx_array){x, MX_F32}, (mx_array){y, MX_F32}, (mx_array){dy, MX_F32},
                               (mx_extent){3, 2, 1}, (mx_array){dx, MX_F32});
    static const float want[6] = {0, 2, 0, 8, 0, 1};
    CHECK(memcmp(dx, want, sizeof want) == 0, "%g %g %g %g %g %g", dx[0], dx[1], dx[2], dx[3], dx[4], dx[5]);
    float all = 5, d = 6;
    mx_reduce_extreme_backward((mx_array){x, MX_F32}, (mx_array){&all, MX_F32}, (mx_array){&d, MX_F32},
                               (mx_extent){1, 6, 1}, (mx_array){dx, MX_F32});
    CHECK(dx[1] == 3 && dx[3] == 3 && dx[0] == 0, "a tie is shared: %g %g", dx[1], dx[3]);
}

/* Gradients of variances, (x - mean) factor, and of extremes, a share of dy for each tie: against double precision. */
static void check_slopes(mx_extent e, mx_dtype dtype, const char *isa)
{
    int64_t count = e.outer * e.n * e.inner, lines = e.outer * e.inner;
    void *x = make_values(count, dtype, -1, 2), *dx = make_values(count, dtype, 5, 6),
         *y = make_values(lines, dtype, 0, 1);
    float *factor = make_values(lines, MX_F32, -1, 1);
    double *variance = malloc(sizeof(double) * (size_t)(count + 1)),
           *extreme = malloc(sizeof(double) * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++)
        set_value(x, i, floor(get_value(x, i, dtype) * 20) / 16, dtype); /* with ties */
    for (int64_t k = 0; k < lines; k++) {
        double sum = 0, largest = -INFINITY, ties = 0;
        for (int64_t i = 0; i < e.n; i++) {
            double one = at(x, dtype, e, k / e.inner, i, k % e.inner);
            sum += one;
            ties = one > largest ? 1 : ties + (one == largest);
            largest = one > largest ? one : largest;
        }
        set_value(y, k, (float)largest, dtype);
        for (int64_t i = 0; i < e.n; i++) {
            int64_t place = (k / e.inner * e.n + i) * e.inner + k % e.inner;
            double one = get_value(x, place, dtype);
            variance[place] = (one - sum / (double)e.n) * (double)factor[k];
            extreme[place] = one == largest ? (double)factor[k] / ties : 0;
        }
    }
    mx_array from = {x, dtype}, to = {dx, dtype};
    CHECK(mx_reduce_variance_backward(from, e, factor, to) == MX_OK, "%s", isa);
    double error = worst_error(dx, dtype, variance, count);
    void *threes = make_values(count, dtype, 5, 6);
    int threads = omp_get_max_threads();
    omp_set_num_threads(3);
    CHECK(mx_reduce_variance_backward(from, e, factor, (mx_array){threes, dtype}) == MX_OK, "%s", isa);
    omp_set_num_threads(threads);
    CHECK(memcmp(threes, dx, (size_t)count * mx_dtype_bytes(dtype)) == 0, "threads change bits on %s", isa);
    CHECK(error <= tolerance(dtype, 2e-6), "gradient of var of %s (%d, %d, %d): %g on %s", mx_dtype_name(dtype),
          (int)e.outer, (int)e.n, (int)e.inner, error, isa);
    CHECK(mx_reduce_extreme_backward(from, (mx_array){y, dtype}, (mx_array){factor, MX_F32}, e, to) == MX_OK, "%s",
          isa);
    error = worst_error(dx, dtype, extreme, count);
    CHECK(error <= tolerance(dtype, 1e-6), "gradient of max of %s (%d, %d, %d): %g on %s", mx_dtype_name(dtype),
          (int)e.outer, (int)e.n, (int)e.inner, error, isa);
    CHECK(guard_intact(dx, count, dtype), "%s", isa);
    omp_set_num_threads(3);
    mx_reduce_extreme_backward(from, (mx_array){y, dtype}, (mx_array){factor, MX_F32}, e, (mx_array){threes, dtype});
    omp_set_num_threads(threads);
    CHECK(memcmp(threes, dx, (size_t)count * mx_dtype_bytes(dtype)) == 0, "threads change bits of max on %s", isa);
    free(threes);
    CHECK(mx_reduce_extreme_backward(from, (mx_array){y, dtype}, (mx_array){factor, MX_F32}, e, from) == MX_OK &&
              worst_error(x, dtype, extreme, count) == error,
          "in place on %s", isa);
    free(x), free(dx), free(y), free(factor), free(variance), free(extreme);
}

static void test_slopes(const char *isa)
{
    static const mx_extent extents[] = {{0, 3, 2},
                                        {1, 1, 1},
                                        {7, 5, 1},
                                        {3, 301, 1},
                                        {2, 4096 + 9, 1},
                                        {2, 70, 3},
                                        {1, 131, 70},
                                        {3, 9, 1000},
                                        {1, 270000, 1},
                                        {600, 2048, 1},
                                        {1, 600, 2048},
                                        {2, 301, 1030},
                                        {3, 1000, 300},
                                        /* the places of extremes are listed; in the last one there are too many */
                                        {1, 1030, 50},
                                        {2, 1100, 310},
                                        {1, 1100, 2110}};
    for (size_t k = 0; k < sizeof extents / sizeof *extents; k++)
        for (int dtype = MX_F32; dtype <= MX_BF16; dtype++)
            check_slopes(extents[k], (mx_dtype)dtype, isa);
}

static void test_integers(void)
{
    int32_t x[6] = {3, -2, 7, 7, 0, 1}, y[3], index[3];
    uint8_t u[6] = {255, 255, 1, 0, 2, 9}, largest;
    mx_reduce_sum((mx_array){x, MX_I32}, (mx_extent){3, 2, 1}, 1, (mx_array){y, MX_I32});
    CHECK(y[0] == 1 && y[1] == 14 && y[2] == 1, "%d %d %d", y[0], y[1], y[2]);
    mx_reduce_sum((mx_array){x, MX_I32}, (mx_extent){1, 2, 3}, 1, (mx_array){y, MX_I32});
    CHECK(y[0] == 10 && y[1] == -2 && y[2] == 8, "%d %d %d", y[0], y[1], y[2]);
    mx_reduce_place(MX_FOLD_MAX, (mx_array){x, MX_I32}, (mx_extent){1, 6, 1}, index);
    CHECK(index[0] == 2, "the first of equals: %d", index[0]);
    mx_reduce_sum((mx_array){u, MX_U8}, (mx_extent){1, 6, 1}, 1, (mx_array){y, MX_I32});
    CHECK(y[0] == 522, "%d", y[0]);
    mx_reduce_extreme(MX_FOLD_MAX, (mx_array){u, MX_U8}, (mx_extent){1, 6, 1}, (mx_array){&largest, MX_U8});
    CHECK(largest == 255, "%d", largest);
    float mean;
    mx_reduce_sum((mx_array){u, MX_U8}, (mx_extent){1, 6, 1}, 1 / 6.0, (mx_array){&mean, MX_F32});
    CHECK(mean == 87, "%g", mean);
    int32_t large[3] = {INT32_MAX, 1, -1};
    mx_array sum = {y, MX_I32};
    CHECK(mx_reduce_sum((mx_array){large, MX_I32}, (mx_extent){1, 3, 1}, 1, sum) == MX_OK && y[0] == INT32_MAX,
          "only the whole sum counts: %d", y[0]);
    CHECK(mx_reduce_sum((mx_array){large, MX_I32}, (mx_extent){1, 2, 1}, 1, sum) == MX_ERR_VALUE &&
              strstr(mx_message(), "2147483648"),
          "a sum that does not fit: %s", mx_message());
}

/* As the ranks of an all-reduce do: int64 sums that saturate. */
static void test_integers_across(void)
{
    static const int32_t a[2] = {INT32_MAX, -5}, b[2] = {INT32_MAX, INT32_MIN}, c[2] = {-INT32_MAX, 5};
    static const uint8_t p[2] = {200, 3}, q[2] = {100, 4};
    int32_t y[2];
    uint8_t r[2];
    mx_reduce_across(MX_FOLD_SUM, 2, (const void *const[]){a, b}, MX_I32, 2, 1, (mx_array){y, MX_I32}, NULL, false);
    CHECK(y[0] == INT32_MAX && y[1] == INT32_MIN, "%d %d", y[0], y[1]);
    mx_reduce_across(MX_FOLD_SUM, 3, (const void *const[]){a, b, c}, MX_I32, 2, 1, (mx_array){y, MX_I32}, NULL, false);
    CHECK(y[0] == INT32_MAX && y[1] == INT32_MIN, "what is between may be larger: %d %d", y[0], y[1]);
    mx_reduce_across(MX_FOLD_SUM, 2, (const void *const[]){p, q}, MX_U8, 2, 1, (mx_array){r, MX_U8}, NULL, false);
    CHECK(r[0] == 255 && r[1] == 7, "%d %d", r[0], r[1]);
}

static void check_all(const char *isa)
{
    check_extents(isa);
    check_all_others(isa);
    check_edges(isa);
    check_any(isa);
    check_logsumexp(isa);
    check_threads(isa);
    check_nan(isa);
    check_nan_of_columns(isa);
}

int main(void)
{
    const bool reads_ahead = mx_cpu_reads_ahead();
    for (int ahead = 0; ahead < 2; ahead++) {
        mx_cpu_assume_reads_ahead(ahead);
        for_each_isa(check_all);
        for_each_isa(test_slopes);
        for_each_isa(check_steps);
    }
    mx_cpu_assume_reads_ahead(reads_ahead);
    test_max_backward();
    test_integers();
    test_integers_across();
    return check_done();
}
