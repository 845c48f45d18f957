/* Functions of arrays that broadcast against each other, against a loop over indices. */
#include "kernels/elementwise.h"

#include "buffers.h"
#include "check.h"

#include <omp.h>
#include <string.h>

typedef struct form {
    int n_dims;
    int64_t size[4];
} form;

static int64_t count_of(const form *f)
{
    int64_t n = 1;
    for (int d = 0; d < f->n_dims; d++)
        n *= f->size[d];
    return n;
}

/* Where element `i` of an output of form y comes from in an input of form x. */
static int64_t source_of(const form *y, const form *x, int64_t i)
{
    int64_t at = 0, dense = 1;
    for (int d = y->n_dims - 1; d >= 0; d--) {
        int own = d - (y->n_dims - x->n_dims);
        int64_t index = i % y->size[d];
        i /= y->size[d];
        if (own >= 0) {
            at += x->size[own] == 1 ? 0 : index * dense;
            dense *= x->size[own];
        }
    }
    return at;
}

static bool plan_for(mx_broadcast *plan, int n, const form *in, form *out)
{
    int dims[3];
    const int64_t *sizes[3];
    int64_t size[8];
    for (int k = 0; k < n; k++) {
        dims[k] = in[k].n_dims;
        sizes[k] = in[k].size;
    }
    if (!mx_broadcast_sizes(n, dims, sizes, &out->n_dims, size))
        return false;
    memcpy(out->size, size, sizeof out->size);
    mx_broadcast_plan(plan, n, dims, sizes, out->n_dims, out->size);
    return true;
}

/* numpy's rule, said once more in another way. */
static bool fits(const form *a, const form *b)
{
    for (int d = 1; d <= a->n_dims && d <= b->n_dims; d++) {
        int64_t p = a->size[a->n_dims - d], q = b->size[b->n_dims - d];
        if (p != q && p != 1 && q != 1)
            return false;
    }
    return true;
}

static double pair(mx_binary op, double a, double b)
{
    switch (op) {
    case MX_ADD:
        return a + b;
    case MX_SUB:
        return a - b;
    case MX_MUL:
        return a * b;
    case MX_DIV:
        return a / b;
    case MX_MAXIMUM:
        return a > b ? a : b;
    default:
        return a < b ? a : b;
    }
}

static void check_binary(const form *a, const form *b, mx_binary op, mx_dtype a_type, mx_dtype b_type, const char *isa)
{
    form in[2] = {*a, *b}, y;
    mx_broadcast plan;
    if (!plan_for(&plan, 2, in, &y))
        return;
    int64_t n = count_of(&y);
    void *pa = make_values(count_of(a), a_type, 0.5, 2), *pb = make_values(count_of(b), b_type, 0.5, 2);
    void *py = make_values(n, a_type, 7, 8);
    double *want = malloc((size_t)(n + 1) * sizeof *want);
    for (int64_t i = 0; i < n; i++)
        want[i] = pair(op, get_value(pa, source_of(&y, a, i), a_type), get_value(pb, source_of(&y, b, i), b_type));
    mx_binary_forward((mx_pair){.op = op}, &plan, (mx_array){pa, a_type}, (mx_array){pb, b_type},
                      (mx_array){py, a_type});
    double error = worst_error(py, a_type, want, n);
    CHECK(error <= tolerance(a_type, 1e-6), "op %d %s %s (%d: %d %d %d) (%d: %d %d %d): %g on %s", op,
          mx_dtype_name(a_type), mx_dtype_name(b_type), a->n_dims, (int)a->size[0], (int)a->size[1], (int)a->size[2],
          b->n_dims, (int)b->size[0], (int)b->size[1], (int)b->size[2], error, isa);
    CHECK(guard_intact(py, n, a_type), "op %d on %s", op, isa);
    free(pa);
    free(pb);
    free(py);
    free(want);
}

/* All forms of up to three dimensions with sizes among 1, 2, 3 and 0. */
static int all_forms(form *forms)
{
    static const int64_t sizes[] = {1, 2, 3, 0};
    int n = 0;
    for (int n_dims = 0; n_dims <= 3; n_dims++) {
        int combinations = 1 << (2 * n_dims);
        for (int c = 0; c < combinations; c++) {
            form f = {.n_dims = n_dims};
            for (int d = 0; d < n_dims; d++)
                f.size[d] = sizes[c >> (2 * d) & 3];
            forms[n++] = f;
        }
    }
    return n;
}

static void check_small_forms(const char *isa)
{
    form forms[85];
    int n = all_forms(forms);
    CHECK(n == 85, "%d forms", n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            form in[2] = {forms[i], forms[j]}, y;
            mx_broadcast plan;
            CHECK(plan_for(&plan, 2, in, &y) == fits(&forms[i], &forms[j]), "forms %d and %d", i, j);
            check_binary(&forms[i], &forms[j], MX_SUB, MX_F32, MX_F32, isa);
        }
}

/* Rows, columns, scalars and middles, long enough for vectors and tails, in all mixes of dtypes. */
static void check_long_forms(const char *isa)
{
    static const form forms[][2] = {
        {{2, {7, 37}}, {2, {7, 37}}},
        {{2, {7, 37}}, {1, {37}}},
        {{1, {37}}, {2, {7, 37}}},
        {{2, {7, 37}}, {2, {7, 1}}},
        {{2, {7, 1}}, {2, {7, 37}}},
        {{2, {7, 37}}, {0, {0}}},
        {{0, {0}}, {2, {7, 37}}},
        {{2, {37, 1}}, {2, {1, 41}}},
        {{3, {3, 1, 40}}, {3, {3, 5, 40}}},
        {{4, {2, 3, 1, 33}}, {3, {3, 5, 1}}},
        {{2, {1, 1}}, {1, {1}}},
        {{3, {300, 1, 257}}, {2, {3, 257}}},
    };
    for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
        for (int op = 0; op <= MX_MINIMUM; op++)
            for (int types = 0; types < 4; types++)
                check_binary(&forms[k][0], &forms[k][1], (mx_binary)op, types & 1 ? MX_BF16 : MX_F32,
                             types & 2 ? MX_BF16 : MX_F32, isa);
}

static bool holds(mx_compare op, double a, double b)
{
    return op == MX_EQ   ? a == b
           : op == MX_NE ? a != b
           : op == MX_LT ? a < b
           : op == MX_LE ? a <= b
           : op == MX_GT ? a > b
                         : a >= b;
}

static void check_compare(const char *isa)
{
    static const form in[2] = {{2, {30, 41}}, {2, {30, 1}}};
    form y;
    mx_broadcast plan;
    plan_for(&plan, 2, in, &y);
    for (int types = 0; types < 4; types++)
        for (int op = 0; op <= MX_GE; op++) { /* MX_FINITE reads one operand: tests/lua/test_ops.lua */
            mx_dtype a_type = types & 1 ? MX_BF16 : MX_F32, b_type = types & 2 ? MX_BF16 : MX_F32;
            void *a = make_values(30 * 41, a_type, 0, 1), *b = make_values(30, b_type, 0, 1);
            for (int64_t i = 0; i < 30 * 41; i++) /* few different values, so that some are equal; and NaN */
                set_value(a, i, i % 11 == 0 ? NAN : round(get_value(a, i, a_type) * 3), a_type);
            for (int64_t i = 0; i < 30; i++)
                set_value(b, i, i == 7 ? NAN : round(get_value(b, i, b_type) * 3), b_type);
            uint8_t out[30 * 41 + 1];
            out[30 * 41] = 99;
            mx_compare_forward((mx_compare)op, &plan, (mx_array){a, a_type}, (mx_array){b, b_type}, out);
            int wrong = 0;
            for (int64_t i = 0; i < 30 * 41; i++)
                wrong += out[i] != holds((mx_compare)op, get_value(a, i, a_type), get_value(b, i / 41, b_type));
            CHECK(wrong == 0 && out[30 * 41] == 99, "comparison %d, types %d: %d wrong on %s", op, types, wrong, isa);
            free(a);
            free(b);
        }
}

static void check_nan_extremes(const char *isa)
{
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int op = MX_MAXIMUM; op <= MX_MINIMUM; op++) {
            mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
            form in[2] = {{1, {20}}, {1, {20}}}, y;
            mx_broadcast plan;
            plan_for(&plan, 2, in, &y);
            void *a = make_values(20, dtype, 0, 1), *b = make_values(20, dtype, 0, 1),
                 *out = make_values(20, dtype, 0, 1);
            set_value(a, 3, NAN, dtype);
            set_value(b, 4, NAN, dtype);
            mx_binary_forward((mx_pair){.op = (mx_binary)op}, &plan, (mx_array){a, dtype}, (mx_array){b, dtype},
                              (mx_array){out, dtype});
            for (int i = 0; i < 20; i++)
                CHECK(isnan(get_value(out, i, dtype)) == (i == 3 || i == 4), "element %d on %s", i, isa);
            free(a);
            free(b);
            free(out);
        }
}

static void check_where(const char *isa)
{
    static const form in[3] = {{2, {1, 43}}, {2, {9, 43}}, {2, {9, 1}}};
    form y;
    mx_broadcast plan;
    plan_for(&plan, 3, in, &y);
    uint8_t cond[43];
    for (int i = 0; i < 43; i++)
        cond[i] = (uint8_t)(i % 3);
    for (int types = 0; types < 4; types++) {
        mx_dtype a_type = types & 1 ? MX_BF16 : MX_F32, b_type = types & 2 ? MX_BF16 : MX_F32;
        void *a = make_values(9 * 43, a_type, 0, 1), *b = make_values(9, b_type, 1, 2),
             *out = make_values(9 * 43, a_type, 0, 1);
        double want[9 * 43];
        for (int64_t i = 0; i < 9 * 43; i++)
            want[i] = i % 43 % 3 ? get_value(a, i, a_type) : get_value(b, i / 43, b_type);
        mx_where_forward(&plan, cond, (mx_array){a, a_type}, (mx_array){b, b_type}, (mx_array){out, a_type});
        CHECK(worst_error(out, a_type, want, 9 * 43) <= (a_type == MX_BF16 && b_type == MX_F32 ? 0x1p-8 : 0),
              "types %d on %s", types, isa);
        free(a);
        free(b);
        free(out);
    }
    int8_t a[9 * 43], b[9], out[9 * 43];
    for (int i = 0; i < 9 * 43; i++)
        a[i] = (int8_t)i;
    for (int i = 0; i < 9; i++)
        b[i] = (int8_t)-i;
    mx_where_forward(&plan, cond, (mx_array){a, MX_I8}, (mx_array){b, MX_I8}, (mx_array){out, MX_I8});
    int wrong = 0;
    for (int i = 0; i < 9 * 43; i++)
        wrong += out[i] != (i % 43 % 3 ? a[i] : b[i / 43]);
    CHECK(wrong == 0, "i8: %d wrong on %s", wrong, isa);
}

/* The derivatives of div, maximum and minimum, against differences. */
static void check_grad(const char *isa)
{
    static const form in[3] = {{2, {6, 19}}, {1, {19}}, {2, {6, 1}}};
    static const mx_binary ops[] = {MX_DIV, MX_MAXIMUM, MX_MINIMUM};
    form y;
    mx_broadcast plan;
    plan_for(&plan, 3, in, &y);
    for (int k = 0; k < 3 * 2 * 2; k++) {
        mx_binary op = ops[k % 3];
        bool by_b = k / 3 % 2;
        mx_dtype dtype = k / 6 ? MX_BF16 : MX_F32;
        void *a = make_values(6 * 19, dtype, 0.5, 2), *b = make_values(19, dtype, 0.5, 2),
             *dy = make_values(6, dtype, -1, 1);
        void *out = make_values(6 * 19, dtype, 0, 1);
        double want[6 * 19], h = 1e-6;
        for (int64_t i = 0; i < 6 * 19; i++) {
            double p = get_value(a, i, dtype), q = get_value(b, i % 19, dtype), d = get_value(dy, i / 19, dtype);
            if (op != MX_DIV && p == q)
                want[i] = d / 2;
            else
                want[i] = d *
                          (by_b ? pair(op, p, q + h) - pair(op, p, q - h) : pair(op, p + h, q) - pair(op, p - h, q)) /
                          (2 * h);
        }
        mx_binary_backward((mx_pair){.op = op}, by_b, &plan, (mx_array){a, dtype}, (mx_array){b, dtype},
                           (mx_array){dy, dtype}, (mx_array){out, dtype});
        double error = worst_error(out, dtype, want, 6 * 19);
        CHECK(error < tolerance(dtype, 1e-6), "op %d by_b %d: %g on %s", op, by_b, error, isa);
        free(a);
        free(b);
        free(dy);
        free(out);
    }
    float a[2] = {1, 2}, b[2] = {1, 3}, dy[2] = {4, 4}, out[2];
    form same[3] = {{1, {2}}, {1, {2}}, {1, {2}}};
    plan_for(&plan, 3, same, &y);
    mx_binary_backward((mx_pair){.op = MX_MAXIMUM}, true, &plan, (mx_array){a, MX_F32}, (mx_array){b, MX_F32},
                       (mx_array){dy, MX_F32}, (mx_array){out, MX_F32});
    CHECK(out[0] == 2 && out[1] == 4, "a tie is shared: %g %g on %s", out[0], out[1], isa);
}

static void test_integers(void)
{
    /* Results saturate; MX_DIV is for floats alone. */
    int32_t a[6] = {INT32_MAX, -7, 7, INT32_MIN, 5, 0}, b[6] = {1, 2, -2, -1, 6, 3}, y[6];
    form in[2] = {{1, {6}}, {1, {6}}}, out;
    mx_broadcast plan;
    plan_for(&plan, 2, in, &out);
    static const int32_t want[MX_BINARIES][6] = {
        [MX_ADD] = {INT32_MAX, -5, 5, INT32_MIN, 11, 3},    [MX_SUB] = {INT32_MAX - 1, -9, 9, INT32_MIN + 1, -1, -3},
        [MX_MUL] = {INT32_MAX, -14, -14, INT32_MAX, 30, 0}, [MX_IDIV] = {INT32_MAX, -4, -4, INT32_MAX, 0, 0},
        [MX_MAXIMUM] = {INT32_MAX, 2, 7, -1, 6, 3},         [MX_MINIMUM] = {1, -7, -2, INT32_MIN, 5, 0},
    };
    static const mx_binary ops[] = {MX_ADD, MX_SUB, MX_MUL, MX_IDIV, MX_MAXIMUM, MX_MINIMUM};
    for (int k = 0; k < 6; k++) {
        mx_binary op = ops[k];
        mx_binary_forward((mx_pair){.op = op}, &plan, (mx_array){a, MX_I32}, (mx_array){b, MX_I32},
                          (mx_array){y, MX_I32});
        for (int i = 0; i < 6; i++)
            CHECK(y[i] == want[op][i], "op %d: %d and %d give %d", op, a[i], b[i], y[i]);
    }
    uint8_t p[6] = {255, 1, 2, 3, 0, 9}, q[6] = {1, 2, 2, 1, 0, 10}, r[6];
    mx_binary_forward((mx_pair){.op = MX_ADD}, &plan, (mx_array){p, MX_U8}, (mx_array){q, MX_U8}, (mx_array){r, MX_U8});
    CHECK(r[0] == 255 && r[1] == 3 && r[5] == 19, "%d %d %d", r[0], r[1], r[5]);
    mx_binary_forward((mx_pair){.op = MX_SUB}, &plan, (mx_array){p, MX_U8}, (mx_array){q, MX_U8}, (mx_array){r, MX_U8});
    CHECK(r[0] == 254 && r[1] == 0 && r[5] == 0, "%d %d %d", r[0], r[1], r[5]);
    mx_compare_forward(MX_GE, &plan, (mx_array){p, MX_U8}, (mx_array){q, MX_U8}, r);
    CHECK(r[0] == 1 && r[1] == 0 && r[2] == 1 && r[5] == 0, "%d %d %d %d", r[0], r[1], r[2], r[5]);
}

/* Elements of b that an operation refuses: the first of them, on any number of threads, where b has all elements, one
 * row or one value. */
static void test_refused(void)
{
    enum { ROWS = 40, WIDTH = 2500, N = ROWS * WIDTH };
    static int64_t a[N], b[N], y[N];
    const form whole = {2, {ROWS, WIDTH}}, row = {1, {WIDTH}}, one = {1, {1}};
    const struct {
        mx_binary op;
        int64_t wrong;
    } cases[] = {{MX_IDIV, 0}, {MX_REMAINDER, 0}, {MX_FMOD, 0}, {MX_SHIFT_LEFT, -3}, {MX_SHIFT_RIGHT, INT64_MIN}};
    for (int k = 0; k < 5; k++)
        for (int s = 0; s < 3; s++) {
            form in[2] = {whole, s == 0 ? whole : s == 1 ? row : one}, out;
            const int64_t count = s == 0 ? N : s == 1 ? WIDTH : 1;
            mx_broadcast plan;
            plan_for(&plan, 2, in, &out);
            for (int64_t i = 0; i < N; i++)
                b[i] = 1 + i % 7;
            for (int64_t first = -1; first < count; first = first < 0 ? 0 : 3 * first + 1) {
                if (first >= 0)
                    b[first] = b[count - 1] = cases[k].wrong;
                int64_t got = mx_binary_forward((mx_pair){.op = cases[k].op}, &plan, (mx_array){a, MX_I64},
                                                (mx_array){b, MX_I64}, (mx_array){y, MX_I64});
                CHECK(got == first, "op %d, b %d: %lld, want %lld", cases[k].op, s, (long long)got, (long long)first);
                if (first >= 0)
                    b[first] = b[count - 1] = 1;
            }
        }
}

/* a / b as integers have it: rounded down for MX_IDIV and MX_REMAINDER, else toward 0. */
static int64_t quotient_or_rest(mx_binary op, int64_t a, int64_t b, int64_t highest)
{
    __int128 q = (__int128)a / b, rest = (__int128)a % b;
    if (op != MX_FMOD && rest != 0 && (rest < 0) != (b < 0)) {
        q -= 1;
        rest += b;
    }
    return (int64_t)(op != MX_IDIV ? rest : q > highest ? highest : q);
}

/* A whole number of up to `bits` bits beside its sign. */
static int64_t whole_of(int bits)
{
    int64_t x = (int64_t)(uniform() * 0x1p31) << 32 ^ (int64_t)(uniform() * 0x1p32);
    return (uniform() < 0.5 ? -1 : 1) * (x >> (63 - bits));
}

/* Dividends next to multiples of the divisor are the hard ones for quotients that are rounded, and those of more than
 * 53 bits do not fit f64. Each tenth pair is the least value and -1. */
static void check_division(const char *isa)
{
    enum { N = 700 };
    static int64_t a[N], b[N], y[N];
    static int32_t narrow_a[N], narrow_b[N], narrow_y[N];
    static const mx_binary ops[] = {MX_IDIV, MX_REMAINDER, MX_FMOD};
    form in[2] = {{1, {N}}, {1, {N}}}, out;
    mx_broadcast plan;
    plan_for(&plan, 2, in, &out);
    for (int bits = 7; bits <= 63; bits += bits < 51 ? 4 : 1) {
        for (int i = 0; i < N; i++) {
            b[i] = whole_of(1 + i % bits);
            b[i] = b[i] == 0 ? 1 : b[i];
            a[i] = whole_of(bits) / b[i] * b[i] + i % 3 - 1;
            narrow_a[i] = i % 10 == 0 ? INT32_MIN : (int32_t)a[i];
            narrow_b[i] = i % 10 == 0 ? -1 : (int32_t)b[i] != 0 ? (int32_t)b[i] : 3;
            if (bits == 63 && i % 10 == 0) {
                a[i] = INT64_MIN;
                b[i] = -1;
            }
        }
        for (int k = 0; k < 3; k++) {
            mx_binary_forward((mx_pair){.op = ops[k]}, &plan, (mx_array){a, MX_I64}, (mx_array){b, MX_I64},
                              (mx_array){y, MX_I64});
            mx_binary_forward((mx_pair){.op = ops[k]}, &plan, (mx_array){narrow_a, MX_I32},
                              (mx_array){narrow_b, MX_I32}, (mx_array){narrow_y, MX_I32});
            int wrong = 0;
            for (int i = 0; i < N; i++)
                wrong += (y[i] != quotient_or_rest(ops[k], a[i], b[i], INT64_MAX)) +
                         (narrow_y[i] != quotient_or_rest(ops[k], narrow_a[i], narrow_b[i], INT32_MAX));
            CHECK(wrong == 0, "op %d with %d bits: %d wrong on %s", ops[k], bits, wrong, isa);
        }
    }
}

/* Threads and streaming stores: a row vector added to an array larger than the caches. */
static void check_large(const char *isa)
{
    const int64_t width = 4099, rows = mx_isa_current() == MX_ISA_PORTABLE ? 60 : mx_cpu_l3_bytes() / 8 / width + 7;
    form in[2] = {{2, {rows, width}}, {1, {width}}}, y;
    mx_broadcast plan;
    plan_for(&plan, 2, in, &y);
    float *a = make_values(rows * width, MX_F32, 0, 1), *b = make_values(width, MX_F32, 0, 1);
    float *out = make_values(rows * width, MX_F32, 0, 1);
    omp_set_num_threads(2);
    mx_binary_forward((mx_pair){.op = MX_ADD}, &plan, (mx_array){a, MX_F32}, (mx_array){b, MX_F32},
                      (mx_array){out, MX_F32});
    int wrong = 0;
    for (int64_t i = 0; i < rows * width; i++)
        wrong += out[i] != a[i] + b[i % width];
    CHECK(wrong == 0, "%d wrong on %s", wrong, isa);
    CHECK(guard_intact(out, rows * width, MX_F32), "%s", isa);
    free(a);
    free(b);
    free(out);
}

static void check_all(const char *isa)
{
    check_small_forms(isa);
    check_long_forms(isa);
    check_compare(isa);
    check_nan_extremes(isa);
    check_where(isa);
    check_grad(isa);
    check_division(isa);
    check_large(isa);
}

int main(void)
{
    for_each_isa(check_all);
    test_integers();
    test_refused();
    return check_done();
}
