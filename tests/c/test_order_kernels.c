/* Sorting, selecting, cumulative sums, and gathers by index: against one element at a time. */
#include "kernels/context.h"
#include "kernels/index.h"
#include "kernels/scan.h"
#include "kernels/sort.h"

#include "buffers.h"
#include "check.h"
#include "core/element.h"

#include <omp.h>
#include <string.h>

/* ---- sort and topk ---- */

/* Values with many ties; in floats also NaN, infinities and both zeros. */
static void *make_ties(int64_t count, mx_dtype dtype)
{
    static const float special[] = {NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f};
    void *x = malloc((size_t)(count + 1) * 4);
    for (int64_t i = 0; i < count; i++) {
        double draw = uniform();
        double one =
            mx_dtypes[dtype].lowest == 0 && mx_dtype_is_integer(dtype) ? floor(draw * 40) : floor(draw * 80) - 40;
        if (!mx_dtype_is_integer(dtype) && uniform() < 0.2)
            one = special[(int)(uniform() * 6)];
        mx_set_number(x, i, one, dtype);
    }
    return x;
}

/* Whether a is before b. */
static bool is_before(double a, double b, bool descending)
{
    bool less = isnan(a) ? false : isnan(b) || a < b, greater = isnan(b) ? false : isnan(a) || a > b;
    return descending ? greater : less;
}

typedef struct line {
    const void *x;
    mx_dtype dtype;
    int64_t first, step;
} line;

static double value_at(const line *l, int64_t i) { return mx_get_number(l->x, l->first + i * l->step, l->dtype); }

/* Whether ids are the first k of a stable sort: in order, ties by id, and nothing left out is before the last. */
static bool is_sorted(const line *l, const int32_t *ids, int64_t n, int64_t k, bool descending)
{
    char *seen = calloc((size_t)n + 1, 1);
    bool good = true;
    for (int64_t i = 0; i < k && good; i++) {
        int32_t id = ids[i * l->step];
        good = id >= 0 && id < n && !seen[id]++;
        if (i == 0 || !good)
            continue;
        int32_t before = ids[(i - 1) * l->step];
        double a = value_at(l, before), b = value_at(l, id);
        good = is_before(a, b, descending) || (!is_before(b, a, descending) && before < id);
    }
    for (int64_t id = 0; id < n && good && k > 0; id++) {
        int32_t last = ids[(k - 1) * l->step];
        double a = value_at(l, id), b = value_at(l, last);
        good = seen[id] || is_before(b, a, descending) || (!is_before(a, b, descending) && last < id);
    }
    free(seen);
    return good;
}

static void check_order(mx_extent e, int64_t k, mx_dtype dtype, bool descending, const char *isa)
{
    int64_t count = e.outer * e.n * e.inner, results = e.outer * k * e.inner;
    size_t bytes = mx_dtype_bytes(dtype);
    void *x = make_ties(count, dtype);
    char *values = malloc((size_t)(results + 1) * bytes);
    int32_t *ids = malloc((size_t)(results + 1) * sizeof *ids);
    if (k == e.n)
        CHECK(mx_sort((mx_array){x, dtype}, e, descending, values, ids) == MX_OK, "%s", isa);
    else
        CHECK(mx_topk((mx_array){x, dtype}, e, k, !descending, values, ids) == MX_OK, "%s", isa);
    bool good = true, same = true;
    for (int64_t o = 0; o < e.outer; o++)
        for (int64_t j = 0; j < e.inner; j++) {
            line l = {x, dtype, o * e.n * e.inner + j, e.inner};
            int64_t to = o * k * e.inner + j;
            good = good && is_sorted(&l, ids + to, e.n, k, descending);
            for (int64_t i = 0; i < k && good; i++) {
                int64_t at = to + i * e.inner, from = l.first + ids[at] * l.step;
                same = same && memcmp(values + at * (int64_t)bytes, (char *)x + from * (int64_t)bytes, bytes) == 0;
            }
        }
    CHECK(good && same, "%s: %lld of (%lld, %lld, %lld) %s, descending %d: order %d, values %d", isa, (long long)k,
          (long long)e.outer, (long long)e.n, (long long)e.inner, mx_dtype_name(dtype), descending, good, same);
    free(x), free(values), free(ids);
}

static void test_order(const char *isa)
{
    static const mx_extent extents[] = {
        {1, 1, 1},   {0, 3, 2},     {3, 0, 2},     {5, 7, 1},   {2, 33, 3},  {3, 300, 1},
        {2, 500, 5}, {1, 70001, 1}, {300, 20, 17}, {67, 64, 1}, {19, 41, 1},
    };
    static const mx_dtype dtypes[] = {MX_F32, MX_BF16, MX_I32, MX_U8, MX_I8};
    for (size_t k = 0; k < sizeof extents / sizeof *extents; k++)
        for (int d = 0; d < 5; d++)
            for (int descending = 0; descending < 2; descending++) {
                int64_t n = extents[k].n, some[] = {n, n / 5, 1, 130, 7, 3};
                for (int s = 0; s < 6; s++)
                    if (some[s] <= n)
                        check_order(extents[k], some[s], dtypes[d], descending, isa);
            }
}

/* A line whose later elements are always better: the list changes at each. And a part that has nothing to offer. */
static void test_rising_line(const char *isa)
{
    enum { N = 5000, K = 100 };
    float x[N], values[K];
    int32_t ids[K];
    for (int i = 0; i < N; i++)
        x[i] = i < N / 2 ? (float)i : -1;
    CHECK(mx_topk((mx_array){x, MX_F32}, (mx_extent){1, N, 1}, K, false, values, ids) == MX_OK, "%s", isa);
    for (int i = 0; i < K; i++)
        CHECK(ids[i] == N / 2 - 1 - i && values[i] == (float)ids[i], "%s: %d is %d", isa, i, ids[i]);
}

static void test_beyond(const char *isa)
{
    const mx_kernels *paths = mx_kernels_current();
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int64_t n = 0; n <= 150; n++)
            for (int64_t place = 0; place <= n; place += 7) {
                mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
                void *x = make_values(n, dtype, 0, 1);
                if (place < n)
                    set_value(x, place, place % 2 ? 2 : NAN, dtype);
                int64_t found = paths->sort->beyond(x, dtype, place / 2, n, 1, false);
                CHECK(found == place, "%s: %lld of %lld, found %lld", isa, (long long)place, (long long)n,
                      (long long)found);
                if (place < n)
                    set_value(x, place, place % 2 ? -1 : NAN, dtype);
                CHECK(paths->sort->beyond(x, dtype, place / 2, n, 0, true) == place, "%s: below", isa);
                free(x);
            }
}

/* ---- cumulative sums ---- */

static void check_sums(mx_extent e, mx_dtype dtype, bool reverse, const char *isa)
{
    int64_t count = e.outer * e.n * e.inner;
    void *x = make_values(count, dtype, -1, 2), *y = make_values(count, dtype, 5, 6),
         *z = make_values(count, dtype, 5, 6);
    double *want = malloc(sizeof *want * (size_t)(count + 1));
    for (int64_t l = 0; l < e.outer * e.inner; l++) {
        double sum = 0;
        for (int64_t k = 0; k < e.n; k++) {
            int64_t i = (l / e.inner * e.n + (reverse ? e.n - 1 - k : k)) * e.inner + l % e.inner;
            want[i] = sum += get_value(x, i, dtype);
        }
    }
    omp_set_num_threads(1);
    CHECK(mx_cumsum((mx_array){x, dtype}, e, reverse, (mx_array){y, dtype}) == MX_OK, "%s", isa);
    omp_set_num_threads(3);
    CHECK(mx_cumsum((mx_array){x, dtype}, e, reverse, (mx_array){z, dtype}) == MX_OK, "%s", isa);
    double error = worst_error(y, dtype, want, count);
    /* f32 sums of at most 64 terms, one more addition, one rounding. */
    CHECK(error <= tolerance(dtype, 1e-6), "%s: cumsum of %s (%d, %d, %d), reverse %d: %g", isa, mx_dtype_name(dtype),
          (int)e.outer, (int)e.n, (int)e.inner, reverse, error);
    CHECK(memcmp(y, z, (size_t)count * mx_dtype_bytes(dtype)) == 0, "%s: bits on several threads", isa);
    CHECK(guard_intact(y, count, dtype), "%s: behind the end", isa);
    free(x), free(y), free(z), free(want);
}

static void test_cumsum(const char *isa)
{
    static const mx_extent extents[] = {{1, 1, 1},    {3, 0, 5},      {5, 7, 1},      {2, 600000, 1},
                                        {3, 1000, 1}, {4, 9, 33},     {2, 200, 1500}, {1, 70000, 3},
                                        {300, 2, 17}, {3, 400001, 1}, {1100, 1001, 1}}; /* past the caches, from odd
                                                                                           places */
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int reverse = 0; reverse < 2; reverse++) {
            for (size_t k = 0; k < sizeof extents / sizeof *extents; k++)
                check_sums(extents[k], bf16 ? MX_BF16 : MX_F32, reverse, isa);
            for (int64_t n = 1; n <= 40; n++)
                check_sums((mx_extent){2, n, 1}, bf16 ? MX_BF16 : MX_F32, reverse, isa);
        }
}

static void test_integer_sums(const char *isa)
{
    const uint8_t x[6] = {200, 100, 0, 1, 2, 3};
    int32_t y[6], large[3] = {INT32_MAX, 1, -1};
    CHECK(mx_cumsum((mx_array){(void *)x, MX_U8}, (mx_extent){1, 3, 2}, false, (mx_array){y, MX_I32}) == MX_OK, "%s",
          isa);
    CHECK(memcmp(y, (int32_t[]){200, 100, 200, 101, 202, 104}, sizeof y) == 0, "%s: %d %d", isa, y[2], y[3]);
    mx_array sums = {y, MX_I32};
    CHECK(mx_cumsum((mx_array){large, MX_I32}, (mx_extent){1, 3, 1}, true, sums) == MX_OK && y[0] == INT32_MAX, "%d",
          y[0]);
    CHECK(mx_cumsum((mx_array){large, MX_I32}, (mx_extent){1, 3, 1}, false, sums) == MX_ERR_VALUE &&
              strstr(mx_message(), "2147483648"),
          "a sum that does not fit: %s", mx_message());
}

/* ---- gather and scatter ---- */

/* The offset in a tensor of `size` of coordinates `at`. */
static int64_t offset_of(const int64_t *size, const int64_t *at) { return (at[0] * size[1] + at[1]) * size[2] + at[2]; }

static bool gathers(const mx_gather *g, void *y, const void *x, size_t bytes)
{
    bool good = false;
    return mx_gather_run(g, y, x, bytes, &good) == MX_OK && good;
}

static bool scatters(const mx_gather *g, void *to, const void *x, const void *y)
{
    bool good = false;
    return mx_scatter_run(g, to, x, y, 4, &good) == MX_OK && good;
}

static void check_gather(const char *isa, int dim, const int64_t *x_size, const int64_t *index_size)
{
    int64_t count = index_size[0] * index_size[1] * index_size[2], x_count = x_size[0] * x_size[1] * x_size[2];
    int32_t *index = malloc((size_t)count * sizeof *index);
    for (int64_t i = 0; i < count; i++)
        index[i] = (int32_t)(uniform() * (double)x_size[dim]);
    mx_gather g = {3, dim, x_size, index_size, index};
    double *want = calloc((size_t)x_count, sizeof *want);
    float *x = make_values(x_count, MX_F32, -1, 1), *y = make_values(count, MX_F32, 0, 0);
    int right = gathers(&g, y, x, 4);
    mx_bf16 *half_x = (mx_bf16 *)malloc((size_t)x_count * 2), *half_y = (mx_bf16 *)malloc((size_t)count * 2);
    for (int64_t i = 0; i < x_count; i++)
        half_x[i] = (mx_bf16)i;
    right = right && gathers(&g, half_y, half_x, 2);
    for (int64_t i = 0; i < count; i++) {
        int64_t at[3] = {i / index_size[2] / index_size[1], i / index_size[2] % index_size[1], i % index_size[2]};
        at[dim] = index[i];
        right = right && y[i] == x[offset_of(x_size, at)] && half_y[i] == (mx_bf16)offset_of(x_size, at);
        want[offset_of(x_size, at)] += y[i];
    }
    CHECK(right, "%s: gather along %d", isa, dim);
    for (int bad = -1; count > 0 && bad < 2; bad += 2) {
        int32_t kept = index[count - 1];
        index[count - 1] = bad < 0 ? -1 : (int32_t)x_size[dim];
        CHECK(!gathers(&g, y, x, 4) && !gathers(&g, half_y, half_x, 2), "%s: an index outside", isa);
        float *to = calloc((size_t)x_count, sizeof *to);
        bool good = true;
        CHECK(!scatters(&g, to, x, y), "%s: an index outside of scatter", isa);
        CHECK(mx_scatter_extreme_run(&g, MX_SCATTER_MAX, true, (mx_array){to, MX_F32}, (mx_array){x, MX_F32},
                                     (mx_array){y, MX_F32}, &good) == MX_OK &&
                  !good,
              "%s: an index outside of the maxima", isa);
        good = true;
        CHECK(mx_scatter_mean_run(&g, true, (mx_array){to, MX_F32}, (mx_array){x, MX_F32}, (mx_array){y, MX_F32},
                                  &good) == MX_OK &&
                  !good,
              "%s: an index outside of the means", isa);
        good = true;
        CHECK(mx_scatter_add_run(&g, (mx_array){to, MX_F32}, (mx_array){x, MX_F32}, (mx_array){y, MX_F32}, &good) ==
                      MX_OK &&
                  !good,
              "%s: an index outside of scatter_add", isa);
        free(to);
        index[count - 1] = kept;
    }
    CHECK(gathers(&g, y, x, 4), "%s: gather along %d once more", isa, dim);
    free(half_x), free(half_y);
    memset(x, 0, (size_t)x_count * sizeof *x);
    bool good = false;
    CHECK(mx_scatter_add_run(&g, (mx_array){x, MX_F32}, (mx_array){x, MX_F32}, (mx_array){y, MX_F32}, &good) == MX_OK &&
              good,
          "scatter_add");
    CHECK(worst_error(x, MX_F32, want, x_count) < 1e-6, "%s: scatter_add along %d", isa, dim);
    float *last = calloc((size_t)x_count, sizeof *last);
    for (int64_t i = 0; i < count; i++) {
        int64_t at[3] = {i / index_size[2] / index_size[1], i / index_size[2] % index_size[1], i % index_size[2]};
        at[dim] = index[i];
        last[offset_of(x_size, at)] = y[i] = (float)i;
    }
    memset(x, 0, (size_t)x_count * sizeof *x);
    CHECK(scatters(&g, x, NULL, y), "%s: the index of scatter", isa);
    CHECK(memcmp(x, last, (size_t)x_count * sizeof *x) == 0, "%s: scatter along %d", isa, dim);
    free(last);
    free(index), free(want), free(x), free(y);
}

/* What one element becomes: `best` of the values put there, by `kind`, and their number. */
static double put_value(mx_scatter_kind kind, double best, double value, double count)
{
    if (kind == MX_SCATTER_MEAN)
        return count == 0 ? value : best + value;
    if (count == 0 || isnan(value))
        return value;
    return kind == MX_SCATTER_MAX ? (value > best ? value : best) : (value < best ? value : best);
}

/* Values are small whole numbers, whose sums are exact. */
static void check_reduce(const char *isa, mx_scatter_kind kind, bool with_x, mx_dtype dtype, int dim,
                         const int64_t *x_size, const int64_t *index_size)
{
    const int64_t count = index_size[0] * index_size[1] * index_size[2], n = x_size[0] * x_size[1] * x_size[2];
    int32_t *index = malloc((size_t)count * sizeof *index);
    void *x = make_ties(n, dtype), *y = make_ties(count, dtype), *want = make_ties(n, dtype);
    void *to = make_values(n, MX_F32, 7, 8), *again = make_values(n, MX_F32, 5, 6);
    double *best = calloc((size_t)n, sizeof *best), *counts = calloc((size_t)n, sizeof *counts);
    const mx_gather g = {3, dim, x_size, index_size, index};
    for (int64_t i = 0; i < count; i++) {
        int64_t at[3] = {i / index_size[2] / index_size[1], i / index_size[2] % index_size[1], i % index_size[2]};
        at[dim] = index[i] = (int32_t)(uniform() * 0.9 * (double)x_size[dim]); /* some are not named */
        int64_t k = offset_of(x_size, at);
        best[k] = put_value(kind, best[k], mx_get_number(y, i, dtype), counts[k]++);
    }
    for (int64_t k = 0; k < n; k++) {
        if (with_x || counts[k] == 0)
            best[k] = put_value(kind, best[k], mx_get_number(x, k, dtype), counts[k]++);
        mx_set_number(want, k, kind == MX_SCATTER_MEAN ? best[k] / counts[k] : best[k], dtype);
    }
    for (int threads = 3; threads > 0; threads -= 2) {
        bool good = true;
        mx_array result = {threads == 1 ? to : again, dtype}, old = {x, dtype}, values = {y, dtype};
        omp_set_num_threads(threads);
        if (kind == MX_SCATTER_MEAN)
            CHECK(mx_scatter_mean_run(&g, with_x, result, old, values, &good) == MX_OK, "%s: memory", isa);
        else
            CHECK(mx_scatter_extreme_run(&g, kind, with_x, result, old, values, &good) == MX_OK, "%s: memory", isa);
        CHECK(good, "%s: the index of kind %d", isa, (int)kind);
    }
    bool right = memcmp(to, again, (size_t)n * mx_dtype_bytes(dtype)) == 0;
    for (int64_t k = 0; k < n && right; k++) {
        double a = mx_get_number(to, k, dtype), b = mx_get_number(want, k, dtype);
        right = a == b || (isnan(a) && isnan(b));
    }
    CHECK(right, "%s: kind %d of %s along %d of %d x %d x %d, x counts: %d", isa, (int)kind, mx_dtype_name(dtype), dim,
          (int)x_size[0], (int)x_size[1], (int)x_size[2], with_x);
    free(index), free(x), free(y), free(want), free(to), free(again), free(best), free(counts);
}

static void test_reduce(const char *isa)
{
    static const int64_t sizes[][2][3] = {
        {{5, 300, 7}, {4, 280, 7}},
        {{2, 40, 1030}, {2, 40, 900}},  /* lines of neighbours, or of a few columns */
        {{2, 40, 130}, {2, 9, 129}},    /* few elements of long lines */
        {{1, 70, 140}, {1, 4200, 140}}, /* longer than what is turned over at once */
    };
    static const mx_dtype dtypes[] = {MX_F32, MX_BF16, MX_I32, MX_U8, MX_I8};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int d = 0; d < 5; d++)
            for (int with_x = 0; with_x < 2; with_x++)
                for (int dim = k == 1 ? 2 : 1; dim < 3 && (k != 3 || dim == 1); dim++) {
                    check_reduce(isa, MX_SCATTER_MAX, with_x, dtypes[d], dim, sizes[k][0], sizes[k][1]);
                    check_reduce(isa, MX_SCATTER_MIN, with_x, dtypes[d], dim, sizes[k][0], sizes[k][1]);
                    if (mx_dtypes[dtypes[d]].is_real)
                        check_reduce(isa, MX_SCATTER_MEAN, with_x, dtypes[d], dim, sizes[k][0], sizes[k][1]);
                }
}

static void test_gather(const char *isa)
{
    for (int dim = 0; dim < 3; dim++) {
        check_gather(isa, dim, (int64_t[]){4, 5, 6}, (int64_t[]){4, 5, 6});
        check_gather(isa, dim, (int64_t[]){4, 5, 6}, (int64_t[]){2, 3, 4});
        check_gather(isa, dim, (int64_t[]){3, 2, 200}, (int64_t[]){3, 1, 199});
        check_gather(isa, dim, (int64_t[]){33, 70, 30}, (int64_t[]){31, 69, 28});
    }
    check_gather(isa, 0, (int64_t[]){2, 5, 6}, (int64_t[]){7, 5, 6});           /* longer than x along dim */
    check_gather(isa, 2, (int64_t[]){1, 150, 4001}, (int64_t[]){1, 150, 4003}); /* streamed */
    check_gather(isa, 2, (int64_t[]){1, 150, 4001}, (int64_t[]){1, 149, 4003});
    check_gather(isa, 1, (int64_t[]){2, 70, 4001}, (int64_t[]){2, 71, 4001});
    check_gather(isa, 1, (int64_t[]){2, 600, 20}, (int64_t[]){2, 4200, 20});   /* turned over in several parts */
    check_gather(isa, 1, (int64_t[]){2, 600, 150}, (int64_t[]){2, 4200, 150}); /* from copies of strips */
    check_gather(isa, 1, (int64_t[]){1, 700, 192}, (int64_t[]){1, 9000, 192}); /* streamed */
    check_gather(isa, 1, (int64_t[]){1, 700, 64}, (int64_t[]){1, 2001, 64});   /* threads share a strip */
    check_gather(isa, 0, (int64_t[]){900, 6, 101}, (int64_t[]){333, 5, 100});
    check_gather(isa, 0, (int64_t[]){600, 5, 150}, (int64_t[]){599, 4, 149});
}

int main(void)
{
    for_each_isa(test_beyond);
    for_each_isa(test_order);
    for_each_isa(test_rising_line);
    for_each_isa(test_cumsum);
    for_each_isa(test_integer_sums);
    for_each_isa(test_gather);
    for_each_isa(test_reduce);
    return check_done();
}
