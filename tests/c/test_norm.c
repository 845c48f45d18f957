/* RMSNorm, LayerNorm and their gradients against double precision, on every instruction set. */
#include "kernels/context.h"

#include "buffers.h"
#include "check.h"
#include "kernels/norm.h"

#include <omp.h>
#include <string.h>

typedef struct problem {
    int64_t rows, width;
    mx_dtype dtype, weight_dtype;
    bool center, has_weight;
} problem;

static double weight_of(const mx_norm *n, int64_t i)
{
    return n->weight ? get_value(n->weight, i, n->weight_dtype) : 1.0;
}

/* One row in double: y, and given dy also dx; adds to dweight and dbias. */
static void reference_row(const mx_norm *n, int64_t r, double *y, double *dx, double *dweight, double *dbias)
{
    int64_t width = n->width;
    double mean = 0, squares = 0, sum = 0, dot = 0;
    for (int64_t i = 0; i < width && n->center; i++)
        mean += get_value(n->x, r * width + i, n->dtype) / (double)width;
    for (int64_t i = 0; i < width; i++)
        squares += pow(get_value(n->x, r * width + i, n->dtype) - mean, 2);
    double rstd = 1 / sqrt(squares / (double)width + n->eps);
    for (int64_t i = 0; i < width; i++) {
        double normal = (get_value(n->x, r * width + i, n->dtype) - mean) * rstd;
        y[r * width + i] = normal * weight_of(n, i) + (n->bias ? get_value(n->bias, i, n->bias_dtype) : 0.0);
        double dy = get_value(n->dy, r * width + i, n->dtype);
        dweight[i] += dy * normal;
        dbias[i] += dy;
        sum += dy * weight_of(n, i) / (double)width;
        dot += dy * weight_of(n, i) * normal / (double)width;
    }
    for (int64_t i = 0; i < width; i++) {
        double normal = (get_value(n->x, r * width + i, n->dtype) - mean) * rstd;
        double dy = get_value(n->dy, r * width + i, n->dtype);
        dx[r * width + i] = rstd * (dy * weight_of(n, i) - (n->center ? sum : 0) - normal * dot);
    }
}

static void check_problem(const problem *p, const char *isa)
{
    int64_t count = p->rows * p->width;
    size_t doubles = (size_t)(count + p->width + 1) * sizeof(double);
    float *dweight = make_values(p->width, MX_F32, 7, 8), *dbias = make_values(p->width, MX_F32, 7, 8);
    float *mean = make_values(p->rows, MX_F32, 7, 8), *rstd = make_values(p->rows, MX_F32, 7, 8);
    mx_norm n = {.rows = p->rows, .width = p->width, .dtype = p->dtype, .center = p->center, .eps = 1e-5f};
    void *x = make_values(count, p->dtype, -1, 2), *dy = make_values(count, p->dtype, -1, 1);
    void *y = make_values(count, p->dtype, 7, 8), *dx = make_values(count, p->dtype, 7, 8);
    void *weight = make_values(p->width, p->weight_dtype, 0.5, 1.5);
    void *bias = make_values(p->width, p->weight_dtype, -0.5, 0.5);
    n.weight = p->has_weight ? weight : NULL;
    n.bias = p->center && p->has_weight ? bias : NULL;
    n.weight_dtype = n.bias_dtype = p->weight_dtype;
    n.x = x, n.dy = dy, n.y = y, n.dx = dx, n.mean = mean, n.rstd = rstd;
    n.dweight = dweight, n.dbias = p->center ? dbias : NULL;
    double *want_y = malloc(doubles), *want_dx = malloc(doubles);
    double *want_dw = calloc(1, doubles), *want_db = calloc(1, doubles);
    for (int64_t r = 0; r < p->rows; r++)
        reference_row(&n, r, want_y, want_dx, want_dw, want_db);

    CHECK(mx_norm_forward(&n) == MX_OK && mx_norm_backward(&n) == MX_OK, "%s", mx_message());
    /* With two columns of almost equal values 1 / std is up to 300, and f32 rounding grows as much. */
    double bound = tolerance(p->dtype, p->center && p->width < 4 ? 1e-3 : 2e-5);
    double error[4] = {worst_error(y, p->dtype, want_y, count), worst_error(dx, p->dtype, want_dx, count),
                       worst_error(dweight, MX_F32, want_dw, p->width),
                       p->center ? worst_error(dbias, MX_F32, want_db, p->width) : 0};
    for (int k = 0; k < 4; k++)
        CHECK(error[k] <= (k < 2 ? bound : 3e-5), "%s %s (%lld, %lld) %s: %s off by %g", isa,
              p->center ? "layernorm" : "rmsnorm", (long long)p->rows, (long long)p->width, mx_dtype_name(p->dtype),
              (const char *[]){"y", "dx", "dweight", "dbias"}[k], error[k]);
    CHECK(guard_intact(y, count, p->dtype) && guard_intact(dx, count, p->dtype) &&
              guard_intact(dweight, p->width, MX_F32) && guard_intact(rstd, p->rows, MX_F32),
          "%s: wrote behind a row of %lld", isa, (long long)p->width);
    void *all[] = {dweight, dbias, mean, rstd, x, dy, y, dx, weight, bias, want_y, want_dx, want_dw, want_db};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        free(all[k]);
}

static void test_sizes(const char *isa)
{
    static const int64_t widths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 256, 1000};
    static const int64_t rows[] = {0, 1, 2, 3, 5, 67, 130};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (int kind = 0; kind < 16; kind++) {
                problem p = {rows[r],         widths[w],      kind & 1 ? MX_BF16 : MX_F32, kind & 2 ? MX_BF16 : MX_F32,
                             (kind & 4) != 0, (kind & 8) != 0};
                check_problem(&p, isa);
            }
    problem wide = {9, 20000, MX_F32, MX_F32, true, true}; /* too wide for groups of four rows */
    check_problem(&wide, isa);
}

/* Columns `first` to before `first + width` of the rows of `from`, as rows of their own. */
static void *columns_of(const void *from, mx_dtype dtype, int64_t rows, int64_t of, int64_t first, int64_t width)
{
    size_t bytes = mx_dtype_bytes(dtype);
    char *part = make_values(rows * width, dtype, 0, 1);
    for (int64_t r = 0; r < rows; r++)
        memcpy(part + (size_t)(r * width) * bytes, (const char *)from + (size_t)(r * of + first) * bytes,
               (size_t)width * bytes);
    return part;
}

/* Rows that are split into 37 and 63 columns, with the sums of both: as whole rows. */
static void check_split(mx_dtype dtype, bool center, const char *isa)
{
    enum { ROWS = 5, WIDTH = 100, PARTS = 2 };
    static const int64_t first[PARTS + 1] = {0, 37, WIDTH};
    float *weight = make_values(WIDTH, MX_F32, 0.5, 1.5), *bias = make_values(WIDTH, MX_F32, -0.5, 0.5);
    float mean[ROWS] = {0}, rstd[ROWS] = {0}, dweight[WIDTH], dbias[WIDTH], sums[2 * ROWS], total[2 * ROWS];
    void *x = make_values(ROWS * WIDTH, dtype, -1, 2), *dy = make_values(ROWS * WIDTH, dtype, -1, 1);
    double want_y[ROWS * WIDTH], want_dx[ROWS * WIDTH], want_dw[WIDTH] = {0}, want_db[WIDTH] = {0};
    mx_norm n = {.rows = ROWS, .width = WIDTH, .dtype = dtype, .center = center, .eps = 1e-5f, .weight = weight};
    n.bias = center ? bias : NULL, n.weight_dtype = n.bias_dtype = MX_F32, n.x = x, n.dy = dy;
    for (int64_t r = 0; r < ROWS; r++)
        reference_row(&n, r, want_y, want_dx, want_dw, want_db);

    mx_norm part[PARTS];
    for (int p = 0; p < PARTS; p++) {
        int64_t width = first[p + 1] - first[p];
        part[p] = n;
        part[p].width = width, part[p].features = WIDTH, part[p].sums = sums;
        part[p].x = columns_of(x, dtype, ROWS, WIDTH, first[p], width);
        part[p].dy = columns_of(dy, dtype, ROWS, WIDTH, first[p], width);
        part[p].y = make_values(ROWS * width, dtype, 7, 8), part[p].dx = make_values(ROWS * width, dtype, 7, 8);
        part[p].weight = weight + first[p], part[p].bias = center ? bias + first[p] : NULL;
        part[p].dweight = dweight + first[p], part[p].dbias = center ? dbias + first[p] : NULL;
    }
    for (int step = center ? 0 : 1; step < 2; step++) { /* sums of values, then of squared distances */
        memset(total, 0, sizeof total);
        for (int p = 0; p < PARTS; p++) {
            part[p].mean = step == 0 ? NULL : mean;
            mx_norm_sums(&part[p], step == 1);
            for (int r = 0; r < ROWS; r++)
                total[r] += sums[r];
        }
        for (int r = 0; r < ROWS; r++)
            *(step == 0 ? &mean[r] : &rstd[r]) = step == 0 ? total[r] / WIDTH : 1 / sqrtf(total[r] / WIDTH + n.eps);
    }
    memset(total, 0, sizeof total);
    for (int p = 0; p < PARTS; p++) {
        part[p].mean = mean, part[p].rstd = rstd;
        CHECK(mx_norm_forward(&part[p]) == MX_OK && mx_norm_grad_sums(&part[p]) == MX_OK, "%s", mx_message());
        for (int i = 0; i < (center ? 2 : 1) * ROWS; i++)
            total[i] += sums[i];
    }
    for (int p = 0; p < PARTS; p++) {
        double y[ROWS * WIDTH], dx[ROWS * WIDTH], bound = tolerance(dtype, 2e-5);
        int64_t width = part[p].width;
        part[p].sums = total;
        CHECK(mx_norm_backward(&part[p]) == MX_OK, "%s", mx_message());
        for (int64_t i = 0; i < ROWS * width; i++) {
            y[i] = want_y[i / width * WIDTH + first[p] + i % width];
            dx[i] = want_dx[i / width * WIDTH + first[p] + i % width];
        }
        double error[2] = {worst_error(part[p].y, dtype, y, ROWS * width),
                           worst_error(part[p].dx, dtype, dx, ROWS * width)};
        CHECK(error[0] <= bound && error[1] <= bound, "%s: part %d of %s: y off by %g, dx by %g", isa, p,
              center ? "layernorm" : "rmsnorm", error[0], error[1]);
        free((void *)(uintptr_t)part[p].x), free((void *)(uintptr_t)part[p].dy), free(part[p].y), free(part[p].dx);
    }
    double off =
        fmax(worst_error(dweight, MX_F32, want_dw, WIDTH), center ? worst_error(dbias, MX_F32, want_db, WIDTH) : 0);
    CHECK(off <= 3e-5, "%s: gradients of a split norm's weights are off by %g", isa, off);
    free(weight), free(bias), free(x), free(dy);
}

static void test_split(const char *isa)
{
    for (int kind = 0; kind < 4; kind++)
        check_split(kind & 1 ? MX_BF16 : MX_F32, (kind & 2) != 0, isa);
}

/* A large common offset must not cost LayerNorm its precision, nor large values overflow. */
static void test_offset(const char *isa)
{
    enum { WIDTH = 100 };
    float *x = make_values(WIDTH, MX_F32, 0, 1), y[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        x[i] = 4096 + (float)(i % 10);
    mx_norm n = {.rows = 1, .width = WIDTH, .dtype = MX_F32, .center = true, .eps = 1e-5f, .x = x, .y = y};
    mx_norm_forward(&n);
    for (int i = 0; i < WIDTH; i++) {
        double want = (i % 10 - 4.5) / sqrt(8.25 + 1e-5);
        CHECK(fabs(y[i] - want) < 1e-4, "%s: %g, expected %g", isa, y[i], want);
    }
    free(x);
}

/* The weight gradient's bits depend on the problem alone; so do those of streamed stores. */
static void test_threads(const char *isa)
{
    enum { ROWS = 1001, WIDTH = 96 };
    int most = omp_get_max_threads();
    float *x = make_values(ROWS * WIDTH, MX_F32, -1, 1), *dy = make_values(ROWS * WIDTH, MX_F32, -1, 1);
    float *dx = make_values(ROWS * WIDTH, MX_F32, 0, 1), *rstd = make_values(ROWS, MX_F32, 0, 1);
    float dweight[3][WIDTH];
    mx_norm n = {.rows = ROWS, .width = WIDTH, .dtype = MX_F32, .eps = 1e-6f, .x = x, .dy = dy, .y = dx, .dx = dx};
    n.rstd = rstd;
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        n.dweight = dweight[threads - 1];
        mx_norm_forward(&n);
        mx_norm_backward(&n);
    }
    omp_set_num_threads(most);
    CHECK(memcmp(dweight[0], dweight[1], sizeof dweight[0]) == 0, "%s: 1 and 2 threads differ", isa);
    CHECK(memcmp(dweight[0], dweight[2], sizeof dweight[0]) == 0, "%s: 1 and 3 threads differ", isa);
    free(x), free(dy), free(dx), free(rstd);
}

/* The row loops with stores that pass the caches give the same bits. */
static void test_stream(const char *isa)
{
    enum { ROWS = 6, WIDTH = 160 };
    const mx_norm_paths *path = mx_kernels_current()->norm;
    float *ones = make_values(WIDTH, MX_F32, 1, 1), *sums = make_values(2 * WIDTH, MX_F32, 0, 0);
    float *rstd = make_values(ROWS, MX_F32, 1, 2), *mean = make_values(ROWS, MX_F32, 0, 1);
    for (int kind = 0; kind < 4; kind++) {
        mx_dtype dtype = kind & 1 ? MX_BF16 : MX_F32;
        size_t bytes = ROWS * WIDTH * mx_dtype_bytes(dtype);
        void *x = make_values(ROWS * WIDTH, dtype, -1, 1), *dy = make_values(ROWS * WIDTH, dtype, -1, 1);
        void *a = make_values(ROWS * WIDTH, dtype, 0, 1), *b = make_values(ROWS * WIDTH, dtype, 0, 1);
        mx_norm n = {.rows = ROWS, .width = WIDTH, .dtype = dtype, .center = kind >= 2, .weight = ones, .bias = ones};
        n.x = x, n.dy = dy, n.dweight = sums, n.dbias = sums + WIDTH, n.rstd = rstd, n.mean = mean, n.eps = 1e-6f;
        for (int back = 0; back < 2; back++) {
            n.y = n.dx = a;
            (back ? path->backward : path->forward)(&n, 0, ROWS, false);
            n.y = n.dx = b;
            (back ? path->backward : path->forward)(&n, 0, ROWS, true);
            CHECK(memcmp(a, b, bytes) == 0, "%s: streamed stores differ, kind %d, backward %d", isa, kind, back);
        }
        free(x), free(dy), free(a), free(b);
    }
    free(ones), free(sums), free(rstd), free(mean);
}

/* A weight of NaN, whatever its bits, gives NaN, in bf16 too. */
static void test_nan(const char *isa)
{
    enum { WIDTH = 80 };
    float *weight = make_values(WIDTH, MX_F32, 1, 2);
    mx_bf16 *x = make_values(WIDTH, MX_BF16, 1, 2), *y = make_values(WIDTH, MX_BF16, 0, 1);
    const uint32_t bits[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0x7fc08001};
    for (size_t b = 0; b < sizeof bits / sizeof *bits; b++)
        memcpy(weight + 25 * b, &bits[b], sizeof *bits);
    for (int center = 0; center < 2; center++) {
        mx_norm n = {.rows = 1, .width = WIDTH, .dtype = MX_BF16, .center = center, .weight = weight, .x = x, .y = y};
        CHECK(mx_norm_forward(&n) == MX_OK, "%s", mx_message());
        for (int i = 0; i < WIDTH; i++)
            CHECK(isnan(mx_from_bf16(y[i])) == (i % 25 == 0), "%s: %g at %d", isa, mx_from_bf16(y[i]), i);
    }
    free(weight), free(x), free(y);
}

int main(void)
{
    for_each_isa(test_nan);
    for_each_isa(test_sizes);
    for_each_isa(test_split);
    for_each_isa(test_offset);
    for_each_isa(test_threads);
    for_each_isa(test_stream);
    return check_done();
}
