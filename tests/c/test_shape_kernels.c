/* Permutations over all small shapes and orders, runs, parts of rows, reversed and repeated elements: against one
 * element at a time. */
#include "kernels/shape.h"

#include "buffers.h"
#include "check.h"

#include <string.h>

/* Where element `i` of the permuted tensor comes from. */
static int64_t source_of(int64_t i, int n_dims, const int64_t *size, const int *order)
{
    int64_t at[8] = {0}, from = 0;
    for (int d = n_dims - 1; d >= 0; d--) {
        at[order[d]] = i % size[order[d]];
        i /= size[order[d]];
    }
    for (int d = 0; d < n_dims; d++)
        from = from * size[d] + at[d];
    return from;
}

static int permute_is_right(int n_dims, const int64_t *size, const int *order, int64_t bytes)
{
    int64_t count = 1;
    for (int d = 0; d < n_dims; d++)
        count *= size[d];
    unsigned char *from = malloc((size_t)(count * bytes) + 1), *to = malloc((size_t)(count * bytes) + 64);
    memset(to, 0x5a, (size_t)(count * bytes) + 64);
    for (int64_t i = 0; i < count * bytes; i++)
        from[i] = (unsigned char)(uniform() * 256);
    mx_permute(to, from, n_dims, size, order, (size_t)bytes);
    int right = 1;
    for (int64_t i = 0; i < count; i++)
        right = right && memcmp(to + i * bytes, from + source_of(i, n_dims, size, order) * bytes, (size_t)bytes) == 0;
    for (int i = 0; i < 64; i++)
        right = right && to[count * bytes + i] == 0x5a;
    free(from), free(to);
    return right;
}

static int next_order(int *order, int n)
{
    int i = n - 2;
    while (i >= 0 && order[i] > order[i + 1])
        i--;
    if (i < 0)
        return 0;
    int j = n - 1;
    while (order[j] < order[i])
        j--;
    int t = order[i];
    order[i] = order[j], order[j] = t;
    for (int a = i + 1, b = n - 1; a < b; a++, b--)
        t = order[a], order[a] = order[b], order[b] = t;
    return 1;
}

static void all_orders(const char *isa, int n_dims, const int64_t *size, int64_t bytes)
{
    int order[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    do {
        CHECK(permute_is_right(n_dims, size, order, bytes),
              "%s: %d dimensions, first of %lld to place of %d, %lld bytes", isa, n_dims, (long long)size[0], order[0],
              (long long)bytes);
    } while (next_order(order, n_dims));
}

static void test_permute(const char *isa)
{
    static const int64_t sizes[] = {0, 1, 2, 3};
    for (int64_t bytes = 1; bytes <= 4; bytes *= 2) {
        for (int n = 1; n <= 4; n++)
            for (int pick = 0; pick < 1 << (2 * n); pick++) {
                int64_t size[4];
                for (int d = 0; d < n; d++)
                    size[d] = sizes[pick >> (2 * d) & 3];
                all_orders(isa, n, size, bytes);
            }
        all_orders(isa, 3, (int64_t[]){9, 17, 23}, bytes);
        all_orders(isa, 3, (int64_t[]){64, 2, 70}, bytes);
        all_orders(isa, 3, (int64_t[]){160, 50, 12}, bytes);
        all_orders(isa, 4, (int64_t[]){64, 3, 43, 12}, bytes);
        all_orders(isa, 2, (int64_t[]){131, 257}, bytes);
        all_orders(isa, 5, (int64_t[]){2, 8, 3, 8, 4}, bytes);
        all_orders(isa, 6, (int64_t[]){2, 3, 1, 2, 3, 2}, bytes);
    }
}

static void test_runs(const char *isa)
{
    for (int64_t n = 0; n < 70; n += 3)
        for (int kind = 0; kind < 2; kind++) {
            mx_dtype dtype = kind ? MX_BF16 : MX_F32;
            int64_t bytes = (int64_t)mx_dtype_bytes(dtype), step = n + 5;
            void *a = make_values(3 * step, dtype, -1, 1), *b = make_values(3 * step, dtype, -1, 1);
            void *sum = make_values(3 * step, dtype, 0, 0), *copy = make_values(3 * step, dtype, 0, 0);
            memcpy(sum, a, (size_t)(3 * step * bytes));
            mx_add_runs(sum, step, b, step, dtype, 3, n);
            mx_copy_runs(copy, step * bytes, b, step * bytes, 3, n * bytes);
            int right = 1;
            for (int64_t i = 0; i < 3 * step; i++) {
                int inside = i % step < n;
                double x = get_value(a, i, dtype), y = get_value(b, i, dtype);
                double want = inside ? get_value((float[]){(float)(x + y)}, 0, MX_F32) : x;
                right = right && fabs(get_value(sum, i, dtype) - want) <= (kind ? 0x1p-8 : 1e-7) * (1 + fabs(want));
                right = right && get_value(copy, i, dtype) == (inside ? y : 0.0);
            }
            mx_zero_runs(a, step * bytes, 3, n * bytes);
            for (int64_t i = 0; i < 3 * step; i++)
                right = right && (get_value(a, i, dtype) == 0.0) == (i % step < n);
            CHECK(right, "%s: runs of %lld %s", isa, (long long)n, mx_dtype_name(dtype));
            free(a), free(b), free(sum), free(copy);
        }
    enum { LONG = 300000 };
    char *a = malloc(LONG), *b = calloc(1, LONG);
    memset(a, 7, LONG);
    mx_copy_runs(b, 0, a, 0, 1, LONG);
    CHECK(memcmp(a, b, LONG) == 0, "one long run");
    mx_zero_runs(b, 0, 1, LONG);
    CHECK(b[0] == 0 && b[LONG - 1] == 0, "one long run of zeros");
    free(a), free(b);
}

/* Sizes that are streamed past the caches: rows that begin at cache lines and others, few rows, few columns. */
static void test_large(const char *isa)
{
    for (int64_t bytes = 2; bytes <= 4; bytes += 2) {
        CHECK(permute_is_right(2, (int64_t[]){1056, 1088}, (int[]){1, 0}, bytes), "%s: cache lines", isa);
        CHECK(permute_is_right(2, (int64_t[]){1031, 1047}, (int[]){1, 0}, bytes), "%s: odd rows", isa);
        CHECK(permute_is_right(3, (int64_t[]){2, 190007, 3}, (int[]){0, 2, 1}, bytes), "%s: few columns", isa);
        CHECK(permute_is_right(3, (int64_t[]){2, 3, 190007}, (int[]){0, 2, 1}, bytes), "%s: few rows", isa);
        CHECK(permute_is_right(4, (int64_t[]){8, 40, 64, 64}, (int[]){0, 2, 1, 3}, bytes), "%s: runs", isa);
    }
}

/* Rows of parts of several sizes, of one, and of whole cache lines; and the parts taken out of them again. */
static void test_parts(const char *isa)
{
    static const int64_t sizes[][3] = {{2, 2, 2}, {4, 4, 4}, {4, 4, 0},   {8, 8, 8},     {6, 6, 6},   {12, 12, 12},
                                       {1, 1, 1}, {3, 8, 2}, {64, 64, 0}, {64, 128, 64}, {36, 4, 60}, {5000, 4, 8}};
    enum { PARTS = 3 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int large = 0; large < 2; large++) {
            int64_t row = sizes[k][0] + sizes[k][1] + sizes[k][2], rows = large ? 2200000 / row : 37;
            unsigned char *to = malloc((size_t)(rows * row + 64)), *part[PARTS],
                          *back = malloc((size_t)(rows * row + 1));
            mx_row_part parts[PARTS];
            memset(to, 0x5a, (size_t)(rows * row + 64));
            for (int p = 0; p < PARTS; p++) {
                part[p] = malloc((size_t)(rows * sizes[k][p] + 1));
                for (int64_t i = 0; i < rows * sizes[k][p]; i++)
                    part[p][i] = (unsigned char)(uniform() * 256);
                parts[p] = (mx_row_part){part[p], sizes[k][p]};
            }
            mx_join_rows(to, rows, PARTS, parts);
            int right = to[rows * row] == 0x5a, taken = 1;
            int64_t at = 0;
            for (int p = 0; p < PARTS; at += sizes[k][p++]) {
                for (int64_t r = 0; r < rows; r++)
                    right = right && memcmp(to + r * row + at, part[p] + r * sizes[k][p], (size_t)sizes[k][p]) == 0;
                mx_copy_runs(back, sizes[k][p], to + at, row, rows, sizes[k][p]);
                taken = taken && memcmp(back, part[p], (size_t)(rows * sizes[k][p])) == 0;
                free(part[p]);
            }
            CHECK(right, "%s: %lld rows of parts, number %d", isa, (long long)rows, (int)k);
            CHECK(taken, "%s: parts of %lld rows, number %d", isa, (long long)rows, (int)k);
            free(to), free(back);
        }
}

/* Reversed and repeated elements, in lines of `n`. */
static void test_strided(const char *isa)
{
    static const int64_t lengths[] = {1, 2, 3, 5, 7, 8, 12, 16, 31, 100, 4099, 20011};
    for (int64_t bytes = 1; bytes <= 8; bytes *= 2)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
            for (int large = 0; large <= (bytes == (k % 2 ? 4 : 2)); large++) {
                int64_t n = lengths[k], rows = large ? 2300000 / n / bytes + 1 : 3, count = rows * n;
                unsigned char *from = malloc((size_t)(count * bytes)), *to = malloc((size_t)(count * bytes + 64));
                for (int64_t i = 0; i < count * bytes; i++)
                    from[i] = (unsigned char)(uniform() * 256);
                memset(to, 0x5a, (size_t)(count * bytes + 64));
                mx_copy_strided(to, from + (n - 1) * bytes, 2, (int64_t[]){rows, n}, (int64_t[]){n, -1}, (size_t)bytes);
                int right = to[count * bytes] == 0x5a;
                for (int64_t i = 0; i < count; i++)
                    right =
                        right && memcmp(to + i * bytes, from + (i / n * n + n - 1 - i % n) * bytes, (size_t)bytes) == 0;
                CHECK(right, "%s: %lld lines of %lld reversed, %lld bytes", isa, (long long)rows, (long long)n,
                      (long long)bytes);
                mx_copy_strided(to, from, 2, (int64_t[]){rows, n}, (int64_t[]){1, 0}, (size_t)bytes);
                for (int64_t i = 0; i < count; i++)
                    right = right && memcmp(to + i * bytes, from + i / n * bytes, (size_t)bytes) == 0;
                CHECK(right, "%s: %lld elements %lld times, %lld bytes", isa, (long long)rows, (long long)n,
                      (long long)bytes);
                free(from), free(to);
            }
}

int main(void)
{
    for_each_isa(test_permute);
    for_each_isa(test_large);
    for_each_isa(test_parts);
    for_each_isa(test_strided);
    for_each_isa(test_runs);
    return check_done();
}
