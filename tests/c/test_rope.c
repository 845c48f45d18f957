/* Rotary embedding against double precision, on every instruction set. */
#include "kernels/context.h"

#include "buffers.h"
#include "check.h"
#include "kernels/rope.h"

#include <string.h>

static double position(const mx_rope *r, int64_t t)
{
    return (double)(r->offset + (r->positions ? r->positions[t % r->period] : t % r->period));
}

static double frequency(const mx_rope_frequencies *f, int64_t i)
{
    return f->table ? (double)f->table[i] + (double)f->table[f->dims / 2 + i]
                    : pow(f->theta, -2.0 * (double)i / (double)f->dims);
}

/* Largest error of r->y against the rotation of x; infinity where a component behind dims has changed. */
static double rope_error(const mx_rope *r)
{
    int64_t dim = r->frequencies.dims;
    double worst = 0, f = r->frequencies.factor;
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t h = 0; h < r->heads; h++) {
            int64_t head = (t * r->heads + h) * r->head_dim;
            for (int64_t i = dim; i < r->head_dim; i++)
                if (get_value(r->y, head + i, r->dtype) != get_value(r->x, head + i, r->dtype))
                    return INFINITY;
            for (int64_t i = 0; i < dim / 2; i++) {
                double angle = position(r, t) * frequency(&r->frequencies, i);
                double s = f * (r->inverse ? -sin(angle) : sin(angle)), c = f * cos(angle);
                int64_t one = head + (r->frequencies.interleaved ? 2 * i : i);
                int64_t two = r->frequencies.interleaved ? one + 1 : one + dim / 2;
                double x1 = get_value(r->x, one, r->dtype), x2 = get_value(r->x, two, r->dtype);
                worst = fmax(worst, fabs(get_value(r->y, one, r->dtype) - (x1 * c - x2 * s)));
                worst = fmax(worst, fabs(get_value(r->y, two, r->dtype) - (x2 * c + x1 * s)));
            }
        }
    return worst;
}

/* Bits of `kind`: bf16, interleaved, inverse, positions, negative positions, a table of frequencies with a factor. A
 * head has `rest` components that do not turn. */
static void check_rope(const char *isa, int64_t tokens, int64_t heads, int64_t dim, int64_t rest, int kind)
{
    mx_dtype dtype = kind & 1 ? MX_BF16 : MX_F32;
    int64_t count = tokens * heads * (dim + rest);
    void *x = make_values(count, dtype, -1, 1), *y = make_values(count, dtype, 7, 8);
    int32_t positions[64];
    for (int i = 0; i < 64; i++)
        positions[i] = (i * 37) % 101 - (kind & 16 ? 50 : 0);
    float *table = make_values(dim, MX_F32, -1, 1);
    mx_rope r = {.frequencies = {.table = kind & 32 ? table : NULL,
                                 .theta = 10000,
                                 .factor = kind & 32 ? 0.75 : 1,
                                 .dims = dim,
                                 .interleaved = kind & 2},
                 .tokens = tokens,
                 .heads = heads,
                 .head_dim = dim + rest,
                 .dtype = dtype,
                 .inverse = kind & 4,
                 .x = x,
                 .y = y,
                 .positions = kind & 8 ? positions : NULL,
                 .period = tokens < 5 ? tokens : 5,
                 .offset = kind & 16 ? 3 : 0};
    CHECK(mx_rope_run(&r) == MX_OK, "%s", mx_message());
    double error = rope_error(&r);
    /* bf16: half a unit in the last place of a result in [1, 2), and what f32 arithmetic adds where that is a tie. */
    CHECK(error <= (dtype == MX_BF16 ? 0x1p-8 + 1e-6 : 1e-6), "%s: (%lld, %lld, %lld + %lld) kind %d off by %g", isa,
          (long long)tokens, (long long)heads, (long long)dim, (long long)rest, kind, error);
    CHECK(guard_intact(y, count, dtype), "%s: wrote behind the end", isa);
    free(x), free(y), free(table);
}

static void test_sizes(const char *isa)
{
    static const int64_t dims[] = {2, 4, 6, 14, 16, 18, 32, 34, 62, 64, 66, 96, 128, 130, 256};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int kind = 0; kind < 64; kind++) {
            check_rope(isa, 11, 3, dims[d], 0, kind);
            check_rope(isa, 11, 3, dims[d], d % 2 ? 32 : 7, kind);
            check_rope(isa, 1, 1, dims[d], 0, kind);
            check_rope(isa, 0, 2, dims[d], 0, kind);
        }
    check_rope(isa, 300, 2, 64, 0, 1);
}

/* The row loop with stores that pass the caches gives the same bits. */
static void test_stream(const char *isa)
{
    const mx_rope_paths *path = mx_kernels_current()->rope;
    enum { COUNT = 3 * 2 * 128 };
    static const int64_t row[3] = {0, 1, 2};
    float *angles = make_values(3 * 256, MX_F32, -1, 1);
    for (int kind = 0; kind < 4; kind++) {
        mx_dtype dtype = kind & 1 ? MX_BF16 : MX_F32;
        void *x = make_values(COUNT, dtype, -1, 1), *a = make_values(COUNT, dtype, 0, 1);
        void *b = make_values(COUNT, dtype, 0, 1);
        mx_rope r = {.frequencies = {.dims = 128, .interleaved = kind & 2}, .tokens = 3, .heads = 2, .head_dim = 128};
        r.dtype = dtype, r.x = x, r.y = a;
        mx_rope_tokens t = {.rope = &r, .angles = angles, .row = row, .first = 0, .last = 3};
        path->rotate(&t);
        r.y = b;
        t.stream = true;
        path->rotate(&t);
        CHECK(memcmp(a, b, COUNT * mx_dtype_bytes(dtype)) == 0, "%s: streamed stores differ, kind %d", isa, kind);
        free(x), free(a), free(b);
    }
    free(angles);
}

/* Tables of frequencies are told apart by their values, wherever these lie, and the two rows of one are added in
 * double: at position 100000 an f32 alone would be off by up to 3e-3 rad. */
static void test_tables(void)
{
    float x[2] = {1, 0}, y[2], table[2];
    mx_rope r = {.frequencies = {.table = table, .factor = 1, .dims = 2}, .tokens = 1, .heads = 1, .head_dim = 2};
    r.x = x, r.y = y, r.period = 1, r.offset = 100000;
    for (int i = 0; i < 9; i++) {
        double wanted = 0.7 / (1 + i);
        table[0] = (float)wanted, table[1] = (float)(wanted - (double)table[0]);
        CHECK(mx_rope_run(&r) == MX_OK, "%s", mx_message());
        CHECK(fabs(y[0] - cos(wanted * 100000)) < 1e-6 && fabs(y[1] - sin(wanted * 100000)) < 1e-6, "table %d", i);
    }
}

int main(void)
{
    for_each_isa(test_sizes);
    for_each_isa(test_stream);
    test_tables();
    return check_done();
}
