/* Softmax and log-softmax, forward and backward, against double precision, on every instruction set. */
#include "core/cpu.h"
#include "kernels/context.h"

#include "buffers.h"
#include "check.h"
#include "kernels/softmax.h"

#include <omp.h>
#include <string.h>

typedef struct problem {
    int64_t rows, width;
    mx_dtype dtype;
    bool log;
    double spread; /* x lies in [-spread, spread) */
} problem;

/* How far off y may be where softmax has `want` and x lies `d` below its row's largest. In f32 d is rounded to 2^-24 of
 * itself, which e^d shows as a relative error; the exponential adds a few units in the last place, and the sum, term by
 * term, about the root of the width of them. For bf16
 * exponentials are good to 3e-6, and so is their sum, of whose logarithm that is the absolute error. */
static double forward_bound(const problem *p, double want, double d)
{
    double units = fabs(d) + 8 + sqrt((double)p->width);
    double f32 = p->log ? (units + fabs(want)) * 0x1p-24 : fabs(want) * units * 0x1p-24 + 1e-37;
    return p->dtype == MX_BF16 ? fabs(want) * (0x1p-8 + 1e-5) + (p->log ? 4e-6 : 0) + f32 : f32;
}

static void check_forward(const problem *p, const mx_softmax *s, const char *isa)
{
    for (int64_t r = 0; r < p->rows; r++) {
        double largest = -INFINITY, sum = 0;
        for (int64_t i = r * p->width; i < (r + 1) * p->width; i++)
            largest = fmax(largest, get_value(s->x, i, p->dtype));
        for (int64_t i = r * p->width; i < (r + 1) * p->width; i++)
            sum += exp(get_value(s->x, i, p->dtype) - largest);
        for (int64_t i = r * p->width; i < (r + 1) * p->width; i++) {
            double d = get_value(s->x, i, p->dtype) - largest, got = get_value(s->y, i, p->dtype);
            double want = p->log ? d - log(sum) : exp(d) / sum;
            bool good = isinf(want) ? got == want : fabs(got - want) <= forward_bound(p, want, isinf(d) ? 0 : d);
            CHECK(good, "%s: (%lld, %lld) %s log %d: %.9g at %lld, expected %.9g", isa, (long long)p->rows,
                  (long long)p->width, mx_dtype_name(p->dtype), p->log, got, (long long)i, want);
        }
    }
}

static void check_backward(const problem *p, const mx_softmax *s, const char *isa)
{
    int64_t count = p->rows * p->width;
    double *want = malloc((size_t)count * sizeof *want);
    for (int64_t r = 0; r < p->rows; r++) {
        double sum = 0;
        for (int64_t i = r * p->width; i < (r + 1) * p->width; i++)
            sum += get_value(s->dy, i, p->dtype) * (p->log ? 1 : get_value(s->y, i, p->dtype));
        for (int64_t i = r * p->width; i < (r + 1) * p->width; i++) {
            double y = get_value(s->y, i, p->dtype), dy = get_value(s->dy, i, p->dtype);
            want[i] = p->log ? dy - exp(y) * sum : y * (dy - sum);
        }
    }
    double worst = worst_error(s->dx, p->dtype, want, count);
    CHECK(worst <= tolerance(p->dtype, 3e-6), "%s: (%lld, %lld) %s log %d: dx off by %g", isa, (long long)p->rows,
          (long long)p->width, mx_dtype_name(p->dtype), p->log, worst);
    free(want);
}

static void check_problem(const problem *p, const char *isa)
{
    int64_t count = p->rows * p->width;
    size_t bytes = (size_t)count * mx_dtype_bytes(p->dtype);
    void *x = make_values(count, p->dtype, -p->spread, p->spread), *y = make_values(count, p->dtype, 0, 1);
    void *dy = make_values(count, p->dtype, -1, 1), *dx = make_values(count, p->dtype, 0, 1);
    void *in_place = make_values(count, p->dtype, 0, 1);
    if (p->width > 3)
        set_value(x, 2, -INFINITY, p->dtype);
    memcpy(in_place, x, bytes);
    mx_softmax s = {.rows = p->rows, .width = p->width, .dtype = p->dtype, .log = p->log, .x = x, .y = y};
    CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
    check_forward(p, &s, isa);
    s.dy = dy, s.dx = dx;
    CHECK(mx_softmax_backward(&s) == MX_OK, "softmax");
    check_backward(p, &s, isa);
    CHECK(guard_intact(y, count, p->dtype) && guard_intact(dx, count, p->dtype), "%s: wrote behind a row of %lld", isa,
          (long long)p->width);
    s.x = s.y = in_place;
    CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
    CHECK(memcmp(in_place, y, bytes) == 0, "%s: in place differs at width %lld", isa, (long long)p->width);
    free(x), free(y), free(dy), free(dx), free(in_place);
}

static void test_sizes(const char *isa)
{
    static const int64_t widths[] = {1,  2,  3,  7,  8,   15,  16,  17,  31,  32,  33,  47,   48,  63,
                                     64, 65, 79, 96, 127, 128, 129, 160, 255, 256, 257, 1000, 1031};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int kind = 0; kind < 8; kind++) {
            problem p = {5, widths[w], kind & 1 ? MX_BF16 : MX_F32, (kind & 2) != 0, kind & 4 ? 60 : 3};
            check_problem(&p, isa);
        }
    /* Rows in several pieces, the widest of which exponentials are kept, and one that is wider. */
    static const int64_t wide[] = {4096 + 1, 8192 + 199, 3 * 4096 + 63, 1 << 16, (1 << 16) + 5};
    for (size_t w = 0; w < sizeof wide / sizeof *wide; w++)
        for (int kind = 0; kind < 8; kind++) {
            problem p = {3, wide[w], kind & 1 ? MX_BF16 : MX_F32, (kind & 2) != 0, kind & 4 ? 60 : 3};
            check_problem(&p, isa);
        }
}

/* Rows of which one piece has far larger numbers than those before it, or none but -inf. */
static void test_pieces(const char *isa)
{
    enum { WIDTH = 3 * 4096 + 40, ROWS = 4 };
    for (int kind = 0; kind < 4; kind++)
        for (int r = 0; r < ROWS; r++) {
            problem p = {ROWS, WIDTH, kind & 1 ? MX_BF16 : MX_F32, (kind & 2) != 0, 3};
            void *x = make_values(ROWS * WIDTH, p.dtype, -3, 3), *y = make_values(ROWS * WIDTH, p.dtype, 0, 1);
            for (int64_t i = r * WIDTH; i < (r + 1) * WIDTH; i++) {
                if (r < 3 && i % WIDTH / 4096 == r)
                    set_value(x, i, get_value(x, i, p.dtype) + 50, p.dtype);
                else if (i % WIDTH / 4096 == (r + 1) % 3)
                    set_value(x, i, -INFINITY, p.dtype);
            }
            mx_softmax s = {.rows = ROWS, .width = WIDTH, .dtype = p.dtype, .log = p.log, .x = x, .y = y};
            CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
            check_forward(&p, &s, isa);
            free(x), free(y);
        }
}

/* Stores that pass the caches give the same bits, wherever rows start. */
static void test_stream(const char *isa)
{
    enum { ROWS = 3 };
    static const int64_t widths[] = {5, 160, 161, 8192 + 199};
    const mx_softmax_paths *path = mx_kernels_current()->softmax;
    for (int kind = 0; kind < 16; kind++) {
        mx_dtype dtype = kind & 1 ? MX_BF16 : MX_F32;
        int64_t width = widths[kind / 4], count = ROWS * width;
        void *x = make_values(count, dtype, -1, 1), *dy = make_values(count, dtype, -1, 1);
        void *a = make_values(count, dtype, 0, 1), *b = make_values(count, dtype, 0, 1);
        mx_softmax s = {.rows = ROWS, .width = width, .dtype = dtype, .log = (kind & 2) != 0, .x = x, .dy = dy};
        for (int back = 0; back < 2; back++) {
            s.y = back ? x : a, s.dx = a;
            (back ? path->backward : path->forward)(&s, 0, ROWS, false);
            s.y = back ? x : b, s.dx = b;
            (back ? path->backward : path->forward)(&s, 0, ROWS, true);
            CHECK(memcmp(a, b, (size_t)count * mx_dtype_bytes(dtype)) == 0,
                  "%s: streamed stores differ, kind %d, backward %d", isa, kind, back);
        }
        free(x), free(dy), free(a), free(b);
    }
}

/* A row that holds NaN, whatever its bits, is NaN throughout; so is one of only -inf. Its neighbour is not. */
static void test_nan(const char *isa)
{
    static const int64_t widths[] = {77, 2 * 4096 + 91};
    for (int kind = 0; kind < 8; kind++)
        for (int64_t width = widths[kind / 4], at = 0; at <= width; at += width / 11) {
            mx_dtype dtype = kind & 1 ? MX_BF16 : MX_F32;
            void *x = make_values(2 * width, dtype, -1, 1), *y = make_values(2 * width, dtype, 0, 1);
            for (int64_t i = 0; i < width && at == width; i++)
                set_value(x, i, -INFINITY, dtype);
            if (at < width && dtype == MX_BF16)
                ((mx_bf16 *)x)[at] = at % 2 ? 0x7fff : 0xff81;
            else if (at < width)
                memcpy((float *)x + at, &(uint32_t){at % 2 ? 0x7fffffff : 0xff800001}, sizeof(float));
            mx_softmax s = {.rows = 2, .width = width, .dtype = dtype, .log = (kind & 2) != 0, .x = x, .y = y};
            CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
            int wrong = 0;
            for (int64_t i = 0; i < width; i++)
                wrong += !isnan(get_value(y, i, dtype)) || isnan(get_value(y, width + i, dtype));
            CHECK(wrong == 0, "%s: NaN at %lld of %lld, kind %d: %d are wrong", isa, (long long)at, (long long)width,
                  kind, wrong);
            free(x), free(y);
        }
}

/* Values at the end of the range of numbers: the largest takes all. */
static void test_huge(const char *isa)
{
    enum { WIDTH = 77 };
    for (int dtype = MX_F32; dtype <= MX_BF16; dtype++)
        for (int64_t at = 0; at < WIDTH; at += 19) {
            void *x = make_values(WIDTH, dtype, -1, 1), *y = make_values(WIDTH, dtype, 0, 1);
            set_value(x, at, 3e38f, dtype);
            set_value(x, (at + 1) % WIDTH, -3e38f, dtype);
            CHECK(mx_softmax_forward(
                      &(mx_softmax){.rows = 1, .width = WIDTH, .dtype = (mx_dtype)dtype, .x = x, .y = y}) == MX_OK,
                  "softmax");
            int wrong = 0;
            for (int64_t i = 0; i < WIDTH; i++)
                wrong += fabs(get_value(y, i, dtype) - (i == at ? 1.0 : 0.0)) > 1e-30;
            CHECK(wrong == 0, "%s: 3e38 at %lld of %s: %d wrong", isa, (long long)at, mx_dtype_name(dtype), wrong);
            free(x), free(y);
        }
}

/* With a scale for each row, along rows, columns and a row that all threads share: y = scale e^x / sum. A row with an
 * infinite element is NaN there and 0 elsewhere. */
static void check_scale(int64_t outer, int64_t width, int64_t inner, mx_dtype dtype, const char *isa)
{
    int64_t rows = outer * inner, count = rows * width, infinite = width / 2 * inner;
    void *x = make_values(count, dtype, -3, 3), *y = make_values(count, dtype, 0, 1);
    float *scale = make_values(rows, MX_F32, -2, 2);
    double *want = malloc((size_t)count * sizeof *want);
    if (rows > 1)
        set_value(x, infinite, INFINITY, dtype);
    for (int64_t r = 0; r < rows; r++) {
        int64_t first = r / inner * width * inner + r % inner;
        double sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += exp(get_value(x, first + i * inner, dtype));
        for (int64_t i = 0; i < width; i++)
            want[first + i * inner] = (double)scale[r] * exp(get_value(x, first + i * inner, dtype)) / sum;
    }
    mx_softmax s = {.rows = rows, .width = width, .inner = inner, .dtype = dtype, .scale = scale, .x = x, .y = y};
    CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
    if (rows > 1) {
        CHECK(isnan(get_value(y, infinite, dtype)), "%s: the infinite element", isa);
        want[infinite] = 0;
        set_value(y, infinite, 0, dtype);
    }
    double worst = worst_error(y, dtype, want, count);
    CHECK(worst <= tolerance(dtype, 3e-6), "%s: scaled (%lld, %lld, %lld) %s off by %g", isa, (long long)outer,
          (long long)width, (long long)inner, mx_dtype_name(dtype), worst);
    CHECK(guard_intact(y, count, dtype), "%s: wrote behind", isa);
    free(x), free(y), free(scale), free(want);
}

static void test_scale(const char *isa)
{
    for (int dtype = MX_F32; dtype <= MX_BF16; dtype++) {
        check_scale(5, 70, 1, (mx_dtype)dtype, isa);
        check_scale(2, 8192 + 37, 1, (mx_dtype)dtype, isa);
        check_scale(2, 70, 103, (mx_dtype)dtype, isa);
        check_scale(1, (1 << 18) + 77, 1, (mx_dtype)dtype, isa);
    }
}

/* A row that all threads share has the same bits on any number of them; so has its logarithm. */
static void test_long_row(const char *isa)
{
    for (int kind = 0; kind < 2; kind++) {
        problem p = {1, (1 << 18) + 1000, kind ? MX_BF16 : MX_F32, kind != 0, 3};
        void *x = make_values(p.width, p.dtype, -3, 3), *y = make_values(p.width, p.dtype, 0, 1);
        void *alone = make_values(p.width, p.dtype, 0, 1);
        int threads = omp_get_max_threads();
        mx_softmax s = {.rows = 1, .width = p.width, .inner = 1, .dtype = p.dtype, .log = p.log, .x = x, .y = alone};
        omp_set_num_threads(1);
        CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
        omp_set_num_threads(3);
        s.y = y;
        CHECK(mx_softmax_forward(&s) == MX_OK, "softmax");
        omp_set_num_threads(threads);
        check_forward(&p, &s, isa);
        CHECK(memcmp(y, alone, (size_t)p.width * mx_dtype_bytes(p.dtype)) == 0, "%s: threads change bits", isa);
        free(x), free(y), free(alone);
    }
}

/* The gradient of columns whose rows all threads share: in double precision, with the same bits on any number. */
static void check_shared_columns(int64_t width, int64_t inner, mx_dtype dtype, bool log, const char *isa)
{
    enum { OUTER = 2 };
    int64_t count = OUTER * width * inner, threads = omp_get_max_threads();
    float most = log ? 1 - logf((float)width) : 1 / sqrtf((float)width); /* sums are near 1 */
    void *y = make_values(count, dtype, log ? most - 2 : 0, most), *dy = make_values(count, dtype, -1, 1);
    void *alone = make_values(count, dtype, 0, 1), *dx = make_values(count, dtype, 0, 1);
    double *want = malloc(sizeof(double) * (size_t)count);
    for (int64_t c = 0; c < OUTER * inner; c++) {
        int64_t first = c / inner * width * inner + c % inner;
        double sum = 0;
        for (int64_t i = first; i < first + width * inner; i += inner)
            sum += get_value(dy, i, dtype) * (log ? 1 : get_value(y, i, dtype));
        for (int64_t i = first; i < first + width * inner; i += inner)
            want[i] = log ? get_value(dy, i, dtype) - exp(get_value(y, i, dtype)) * sum
                          : get_value(y, i, dtype) * (get_value(dy, i, dtype) - sum);
    }
    mx_softmax s = {
        .rows = OUTER * inner, .width = width, .inner = inner, .dtype = dtype, .log = log, .y = y, .dy = dy};
    for (int n = 1; n <= 3; n += 2) {
        s.dx = n == 1 ? alone : dx;
        omp_set_num_threads(n);
        CHECK(mx_softmax_backward(&s) == MX_OK, "%s", isa);
    }
    omp_set_num_threads((int)threads);
    double worst = worst_error(dx, dtype, want, count);
    CHECK(worst <= tolerance(dtype, 3e-6), "%s: columns %lld by %lld, %s, log %d: dx off by %g", isa, (long long)width,
          (long long)inner, mx_dtype_name(dtype), log, worst);
    CHECK(memcmp(alone, dx, (size_t)count * mx_dtype_bytes(dtype)) == 0, "%s: threads change bits", isa);
    CHECK(guard_intact(dx, count, dtype), "%s: wrote behind", isa);
    free(y), free(dy), free(alone), free(dx), free(want);
}

static void test_shared_columns(const char *isa)
{
    for (int kind = 0; kind < 4; kind++) {
        check_shared_columns(301, 1030, kind & 1 ? MX_BF16 : MX_F32, kind & 2, isa);
        check_shared_columns(1500, 200, kind & 1 ? MX_BF16 : MX_F32, kind & 2, isa);
        check_shared_columns(257, 4096 + 70, kind & 1 ? MX_BF16 : MX_F32, kind & 2, isa);
    }
}

int main(void)
{
    for_each_isa(test_scale);
    for_each_isa(test_long_row);
    const bool reads_ahead = mx_cpu_reads_ahead();
    for (int ahead = 0; ahead < 2; ahead++) {
        mx_cpu_assume_reads_ahead(ahead);
        for_each_isa(test_shared_columns);
    }
    mx_cpu_assume_reads_ahead(reads_ahead);
    for_each_isa(test_sizes);
    for_each_isa(test_pieces);
    for_each_isa(test_stream);
    for_each_isa(test_huge);
    for_each_isa(test_nan);
    return check_done();
}
