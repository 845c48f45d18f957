/* Functions of one array and gated pairs, against the functions of f64, which goldens of PyTorch test, and finite
 * differences of them, on every instruction set; casts and fills. */
#include "kernels/context.h"
#include "kernels/f64.h"

#include "buffers.h"
#include "check.h"

#include <omp.h>
#include <string.h>

static double difference(mx_function f, double x)
{
    bool periodic = f.op == MX_SIN || f.op == MX_COS;
    double h = 1e-5 * (periodic ? 1 : fmax(1, fabs(x)));
    return (mx_f64_value(f, x + h) - mx_f64_value(f, x - h)) / (2 * h);
}

typedef struct function_case {
    const char *name;
    mx_function f;
    double low, high; /* of x */
    double error;     /* |got - want| / (1 + |want|) allowed in f32 */
} function_case;

static const function_case cases[] = {
    {"exp", {.op = MX_EXP}, -10, 10, 4e-7},
    {"exp far", {.op = MX_EXP}, -87, 88.7, 4e-7},
    {"log", {.op = MX_LOG}, 1e-3, 1e3, 2e-7},
    {"log far", {.op = MX_LOG}, 1e30, 3e38, 2e-7},
    {"sqrt", {.op = MX_SQRT}, 0.01, 100, 1e-7},
    {"rsqrt", {.op = MX_RSQRT}, 0.01, 100, 2e-7},
    {"abs", {.op = MX_ABS}, -2, 2, 0},
    {"tanh", {.op = MX_TANH}, -4, 4, 3e-7},
    {"tanh near 0", {.op = MX_TANH}, -1e-3, 1e-3, 3e-10},
    {"sigmoid", {.op = MX_SIGMOID}, -20, 20, 3e-7},
    {"square", {.op = MX_SQUARE}, -9, 9, 1e-7},
    {"sin", {.op = MX_SIN}, -100, 100, 4e-7},
    {"sin far", {.op = MX_SIN}, -20000, 20000, 6e-7},
    {"cos", {.op = MX_COS}, -100, 100, 4e-7},
    {"cos far", {.op = MX_COS}, 8000, 8400, 6e-7},
    {"affine", {MX_AFFINE, 2.5f, -0.75f}, -9, 9, 1e-7},
    {"pow 2", {.op = MX_POW, .p0 = 2}, -3, 3, 1e-7},
    {"pow 3", {.op = MX_POW, .p0 = 3}, -3, 3, 2e-7},
    {"pow -1", {.op = MX_POW, .p0 = -1}, 0.1, 3, 2e-7},
    {"pow 1.7", {.op = MX_POW, .p0 = 1.7f}, 0.1, 3, 2e-7},
    {"relu", {.op = MX_RELU}, -2, 2, 0},
    {"gelu tanh", {.op = MX_GELU_TANH}, -8, 8, 4e-7},
    {"gelu erf", {.op = MX_GELU_ERF}, -8, 8, 4e-7},
    {"silu", {.op = MX_SILU}, -30, 30, 4e-7},
    {"erf", {.op = MX_ERF}, -4, 4, 3e-7},
    {"erf near 0", {.op = MX_ERF}, -1e-3, 1e-3, 3e-10},
    {"log1p", {.op = MX_LOG1P}, -0.99, 100, 3e-7},
    {"log1p near 0", {.op = MX_LOG1P}, -1e-3, 1e-3, 3e-10},
    {"expm1", {.op = MX_EXPM1}, -10, 10, 4e-7},
    {"expm1 near 0", {.op = MX_EXPM1}, -1e-3, 1e-3, 3e-10},
    {"softplus", {.op = MX_SOFTPLUS, .p0 = 1.5}, -20, 20, 4e-7},
    {"leaky relu", {.op = MX_LEAKY_RELU, .p0 = 0.1}, -2, 2, 1e-7},
    {"elu", {.op = MX_ELU, .p0 = 0.7}, -5, 5, 4e-7},
    {"clamp", {MX_CLAMP, -1, 0.5}, -2, 2, 0},
    {"tan", {.op = MX_TAN}, -1.5, 1.5, 5e-7},
    {"asin", {.op = MX_ASIN}, -0.99, 0.99, 3e-7},
    {"acos", {.op = MX_ACOS}, -0.99, 0.99, 3e-7},
    {"atan", {.op = MX_ATAN}, -30, 30, 3e-7},
    {"sinh", {.op = MX_SINH}, -9, 9, 4e-7},
    {"sinh near 0", {.op = MX_SINH}, -1e-3, 1e-3, 3e-10},
    {"cosh", {.op = MX_COSH}, -9, 9, 4e-7},
    {"asinh", {.op = MX_ASINH}, -50, 50, 4e-7},
    {"asinh near 0", {.op = MX_ASINH}, -1e-3, 1e-3, 4e-10},
    {"acosh", {.op = MX_ACOSH}, 1.01, 50, 4e-7},
    {"atanh", {.op = MX_ATANH}, -0.99, 0.99, 4e-7},
    {"atanh near 0", {.op = MX_ATANH}, -1e-3, 1e-3, 4e-10},
};

static bool near_kink(mx_unary op, double x)
{
    if (op == MX_CLAMP)
        return fabs(x + 1) < 1e-4 || fabs(x - 0.5) < 1e-4;
    return (op == MX_RELU || op == MX_ABS || op == MX_LEAKY_RELU || op == MX_ELU) && fabs(x) < 1e-4;
}

/* Its slope does not depend on x, but for steps. */
static bool is_flat(mx_unary op) { return op == MX_AFFINE || (op >= MX_FLOOR && op <= MX_SIGN) || op == MX_CLAMP; }

static mx_array shifted(void *data, mx_dtype dtype, int64_t shift)
{
    return (mx_array){(char *)data + shift * (int64_t)mx_dtype_bytes(dtype), dtype};
}

/* Forward and gradient of n elements that start `shift` elements behind a boundary. */
static void check_function(const function_case *c, const char *isa, mx_dtype x_type, mx_dtype y_type, int64_t n,
                           int64_t shift)
{
    void *x = make_values(n + shift, x_type, c->low, c->high), *y = make_values(n + shift, y_type, 0, 1);
    void *dy = make_values(n + shift, y_type, -1, 1), *dx = make_values(n + shift, x_type, 0, 1);
    mx_array ax = shifted(x, x_type, shift), ay = shifted(y, y_type, shift), ady = shifted(dy, y_type, shift),
             adx = shifted(dx, x_type, shift);
    mx_unary_forward(c->f, ax, ay, n);
    double worst = 0, worst_grad = 0;
    for (int64_t i = 0; i < n; i++) {
        double want = mx_f64_value(c->f, get_value(ax.data, i, x_type));
        worst = fmax(worst, fabs(get_value(ay.data, i, y_type) - want) / (1 + fabs(want)));
    }
    mx_unary_backward(c->f, mx_unary_reads_output(c->f.op) ? ay : ax, ady, adx, n);
    for (int64_t i = 0; i < n; i++) {
        double at = get_value(ax.data, i, x_type), want = get_value(ady.data, i, y_type) * difference(c->f, at);
        if (!near_kink(c->f.op, at))
            worst_grad = fmax(worst_grad, fabs(get_value(adx.data, i, x_type) - want) / (1 + fabs(want)));
    }
    /* Forward rounds to bf16 once; the gradient may be made from a rounded output, which rsqrt cubes. */
    double allowed = y_type == MX_BF16 ? 0x1p-8 : c->error;
    double allowed_grad = x_type == MX_BF16 || y_type == MX_BF16 ? 3 * 0x1p-8 : 4e-6;
    CHECK(worst <= allowed, "%s %s->%s, n = %d: error %g on %s", c->name, mx_dtype_name(x_type), mx_dtype_name(y_type),
          (int)n, worst, isa);
    CHECK(worst_grad <= allowed_grad, "%s gradient %s->%s, n = %d: error %g on %s", c->name, mx_dtype_name(x_type),
          mx_dtype_name(y_type), (int)n, worst_grad, isa);
    CHECK(guard_intact(y, n + shift, y_type) && guard_intact(dx, n + shift, x_type), "%s on %s", c->name, isa);
    free(x);
    free(y);
    free(dy);
    free(dx);
}

static void check_functions(const char *isa)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int pair = 0; pair < 4; pair++)
            check_function(&cases[k], isa, pair & 1 ? MX_BF16 : MX_F32, pair & 2 ? MX_BF16 : MX_F32, 3001, 0);
        for (int64_t n = 0; n <= 35; n++)
            check_function(&cases[k], isa, n & 1 ? MX_BF16 : MX_F32, n & 1 ? MX_BF16 : MX_F32, n, n % 5);
    }
}

/* bf16 in and out: each value must be what rounding gives, but for the few that lie within 1e-5 of the middle between
 * two halves. */
static void check_rounding(const char *isa)
{
    enum { N = 4096 };
    static const mx_unary ops[] = {MX_SILU, MX_GELU_TANH, MX_GELU_ERF, MX_SIGMOID, MX_TANH, MX_EXP, MX_RELU};
    mx_bf16 *x = make_values(N, MX_BF16, -6, 6), *y = make_values(N, MX_BF16, 0, 1);
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
        mx_function f = {.op = ops[k]};
        mx_unary_forward(f, (mx_array){x, MX_BF16}, (mx_array){y, MX_BF16}, N);
        int wrong = 0;
        for (int i = 0; i < N; i++) {
            double want = mx_f64_value(f, mx_from_bf16(x[i])), slack = 1e-5 * (fabs(want) + 1e-3);
            float low = mx_from_bf16(mx_to_bf16((float)(want - slack))), got = mx_from_bf16(y[i]);
            wrong += got < low || got > mx_from_bf16(mx_to_bf16((float)(want + slack)));
        }
        CHECK(wrong == 0, "function %d: %d of %d not rounded once on %s", ops[k], wrong, N, isa);
    }
    free(x);
    free(y);
}

static void check_gated(const char *isa)
{
    static const mx_unary acts[] = {MX_SILU, MX_GELU_TANH, MX_GELU_ERF, MX_RELU};
    for (int k = 0; k < 4 * 2 * 3; k++) {
        mx_unary act = acts[k % 4];
        mx_dtype dtype = k / 4 % 2 ? MX_BF16 : MX_F32;
        int64_t n = (const int64_t[]){1, 37, 5000}[k / 8];
        void *gate = make_values(n, dtype, -5, 5), *up = make_values(n, dtype, -2, 2),
             *dy = make_values(n, dtype, -1, 1);
        void *y = make_values(n, dtype, 0, 1), *dgate = make_values(n, dtype, 0, 1), *dup = make_values(n, dtype, 0, 1);
        mx_array g = {gate, dtype}, u = {up, dtype}, d = {dy, dtype};
        mx_gated_forward((mx_function){.op = act}, g, u, (mx_array){y, dtype}, n);
        mx_gated_backward((mx_function){.op = act}, g, u, d, (mx_array){dgate, dtype}, (mx_array){dup, dtype}, n);
        double worst = 0;
        for (int64_t i = 0; i < n; i++) {
            mx_function f = {.op = act};
            double at = get_value(gate, i, dtype), by = get_value(up, i, dtype), in = get_value(dy, i, dtype);
            double want[3] = {mx_f64_value(f, at) * by, in * by * difference(f, at), in * mx_f64_value(f, at)};
            double got[3] = {get_value(y, i, dtype), get_value(dgate, i, dtype), get_value(dup, i, dtype)};
            for (int j = 0; j < 3; j++)
                if (j != 1 || !near_kink(act, at))
                    worst = fmax(worst, fabs(got[j] - want[j]) / (1 + fabs(want[j])));
        }
        CHECK(worst < (dtype == MX_BF16 ? 0x1p-8 : 2e-6), "gated %d %s n = %d: error %g on %s", act,
              mx_dtype_name(dtype), (int)n, worst, isa);
        CHECK(guard_intact(y, n, dtype) && guard_intact(dgate, n, dtype) && guard_intact(dup, n, dtype), "%s", isa);
        free(gate);
        free(up);
        free(dy);
        free(y);
        free(dgate);
        free(dup);
    }
}

/* Streams to memory give the same bits as plain stores, wherever the output starts. */
static void check_streams(const char *isa)
{
    enum { N = 1003 };
    const mx_elementwise_paths *p = mx_kernels_current()->elementwise;
    const mx_pair_paths *q = mx_kernels_current()->pairs;
    for (int k = 0; k < 2 * 17; k++) {
        mx_dtype dtype = k & 1 ? MX_BF16 : MX_F32;
        int64_t bytes = (int64_t)mx_dtype_bytes(dtype), shift = k / 2 * bytes;
        char *x = make_values(N + 40, dtype, -3, 3), *plain = make_values(N + 40, dtype, 5, 6);
        char *streamed = make_values(N + 40, dtype, 5, 6), *other = make_values(N + 40, dtype, 5, 6);
        memcpy(streamed, plain, (size_t)((N + 40) * bytes));
        mx_function f = {.op = MX_SILU};
        for (int64_t n = 0; n < N; n = 3 * n + 1) {
            p->unary(f, dtype, x, plain + shift, n, false);
            p->unary(f, dtype, x, streamed + shift, n, true);
            CHECK(memcmp(plain, streamed, (size_t)((N + 40) * bytes)) == 0, "silu, shift %d, n %d on %s", k / 2, (int)n,
                  isa);
            p->gated_grad((mx_function){.op = MX_GELU_TANH}, dtype, x, x, x, plain + shift, other, n, false);
            p->gated_grad((mx_function){.op = MX_GELU_TANH}, dtype, x, x, x, streamed + shift, other, n, true);
            CHECK(memcmp(plain, streamed, (size_t)((N + 40) * bytes)) == 0, "gated, shift %d, n %d on %s", k / 2,
                  (int)n, isa);
            q->binary((mx_pair){.op = MX_ADD}, dtype, x, 1, x, 0, plain + shift, n, false);
            q->binary((mx_pair){.op = MX_ADD}, dtype, x, 1, x, 0, streamed + shift, n, true);
            CHECK(memcmp(plain, streamed, (size_t)((N + 40) * bytes)) == 0, "add, shift %d, n %d on %s", k / 2, (int)n,
                  isa);
            p->copy(x, plain + shift + 1, n * bytes, false);
            p->copy(x, streamed + shift + 1, n * bytes, true);
            CHECK(memcmp(plain, streamed, (size_t)((N + 40) * bytes)) == 0, "copy, shift %d, n %d on %s", k / 2, (int)n,
                  isa);
        }
        free(x);
        free(plain);
        free(streamed);
        free(other);
    }
}

/* Large enough to be streamed and shared by threads; the bits may depend on neither. */
static void check_large(const char *isa)
{
    int64_t n = mx_cpu_l3_bytes() / 4 + 12345;
    if (n > 40 << 20)
        n = 40 << 20;
    if (mx_isa_current() == MX_ISA_PORTABLE)
        n = 200000;
    mx_bf16 *x = make_values(n, MX_BF16, -4, 4), *y[2];
    for (int t = 0; t < 2; t++) {
        y[t] = aligned_alloc(64, (size_t)(n * 2 + 63) / 64 * 64);
        omp_set_num_threads(2 - t);
        mx_unary_forward((mx_function){.op = MX_SILU}, (mx_array){x, MX_BF16}, (mx_array){y[t], MX_BF16}, n);
    }
    CHECK(memcmp(y[0], y[1], (size_t)n * 2) == 0, "one and two threads differ on %s", isa);
    free(x);
    free(y[0]);
    free(y[1]);
}

/* What the header says of NaN and infinities. */
static void check_extremes(const char *isa)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        mx_dtype dtype = bf16 ? MX_BF16 : MX_F32;
        float in[5] = {NAN, INFINITY, -INFINITY, 0, -1}, values[5], out[5], grads[5];
        void *x = make_values(5, dtype, 0, 1), *y = make_values(5, dtype, 0, 1), *dx = make_values(5, dtype, 0, 1);
        void *one = make_values(5, dtype, 1, 1);
        for (int i = 0; i < 5; i++)
            set_value(x, i, in[i], dtype);
        for (int op = 0; op < MX_UNARIES; op++) {
            mx_function f = {.op = (mx_unary)op, .p0 = op == MX_POW ? 1.5f : 2, .p1 = 1};
            mx_unary_forward(f, (mx_array){x, dtype}, (mx_array){y, dtype}, 5);
            mx_array v = {mx_unary_reads_output(f.op) ? y : x, dtype};
            mx_unary_backward(f, v, (mx_array){one, dtype}, (mx_array){dx, dtype}, 5);
            for (int i = 0; i < 5; i++) {
                values[i] = (float)get_value(y, i, dtype);
                grads[i] = (float)get_value(dx, i, dtype);
            }
            CHECK(isnan(values[0]), "f%d(NaN) = %g, %s on %s", op, values[0], mx_dtype_name(dtype), isa);
            CHECK(is_flat(f.op) || isnan(grads[0]), "f%d'(NaN) = %g, %s on %s", op, grads[0], mx_dtype_name(dtype),
                  isa);
            memcpy(out, values, sizeof out);
            if (op == MX_EXP)
                CHECK(out[1] == INFINITY && out[2] == 0 && out[3] == 1, "exp: %g %g %g on %s", out[1], out[2], out[3],
                      isa);
            if (op == MX_LOG)
                CHECK(out[1] == INFINITY && isnan(out[2]) && out[3] == -INFINITY && isnan(out[4]),
                      "log: %g %g %g %g on %s", out[1], out[2], out[3], out[4], isa);
            if (op == MX_TANH)
                CHECK(out[1] == 1 && out[2] == -1 && out[3] == 0, "tanh: %g %g %g on %s", out[1], out[2], out[3], isa);
            if (op == MX_SIGMOID)
                CHECK(out[1] == 1 && fabsf(out[2]) < 1e-30f && out[3] == 0.5f, "sigmoid: %g %g on %s", out[1], out[2],
                      isa);
            if (op >= MX_RELU && op <= MX_SILU) {
                CHECK(out[1] == INFINITY && fabsf(out[2]) < 1e-26f && out[3] == 0, "activation %d: %g %g %g on %s", op,
                      out[1], out[2], out[3], isa);
                CHECK(grads[1] == 1 && fabsf(grads[2]) < 1e-24f, "slope %d: %g %g on %s", op, grads[1], grads[2], isa);
            }
        }
        free(x);
        free(y);
        free(dx);
        free(one);
    }
}

/* ---- casts ---- */

static double int_value(const void *p, int64_t i, mx_dtype dtype)
{
    switch (dtype) {
    case MX_I32:
        return ((const int32_t *)p)[i];
    case MX_U8:
        return ((const uint8_t *)p)[i];
    case MX_I8:
        return ((const int8_t *)p)[i];
    case MX_I64:
        return (double)((const int64_t *)p)[i];
    case MX_F64:
        return ((const double *)p)[i];
    default:
        return get_value(p, i, dtype);
    }
}

static double cast_value(double x, mx_dtype to)
{
    if (to == MX_F32)
        return (float)x;
    if (to == MX_BF16)
        return mx_from_bf16(mx_to_bf16((float)x));
    if (to == MX_F64)
        return x;
    return isnan(x) ? 0 : fmin(fmax(trunc(x), (double)mx_dtypes[to].lowest), (double)mx_dtypes[to].highest);
}

static void check_casts(const char *isa)
{
    static const double samples[] = {
        0,      1,     -1,  1.5, -1.5, 2.999,       127,          128,      -128,      -129, 255.7, 256,  300,
        -300.2, 65537, 1e6, 3e9, -3e9, 2147483648., -2147483648., INFINITY, -INFINITY, NAN,  0.1,   1e-30};
    enum { N = 4003 };
    for (int from = 0; from < MX_DTYPES; from++)
        for (int to = 0; to < MX_DTYPES; to++) {
            if (!mx_dtype_has_arithmetic((mx_dtype)from) || !mx_dtype_has_arithmetic((mx_dtype)to))
                continue;
            double *x = malloc(N * 8), *y = malloc(N * 8);
            for (int64_t i = 0; i < N; i++) {
                double s = samples[i % 25];
                mx_fill((mx_array){(char *)x + i * (int64_t)mx_dtype_bytes((mx_dtype)from), (mx_dtype)from}, s, 1);
                double held = int_value(x, i, (mx_dtype)from), want = cast_value(s, (mx_dtype)from);
                CHECK(held == want || (isnan(held) && isnan(want)), "fill %s with %g gives %g",
                      mx_dtype_name((mx_dtype)from), s, held);
            }
            mx_cast((mx_array){x, (mx_dtype)from}, (mx_array){y, (mx_dtype)to}, N);
            int wrong = 0;
            for (int64_t i = 0; i < N; i++) {
                double got = int_value(y, i, (mx_dtype)to),
                       want = cast_value(int_value(x, i, (mx_dtype)from), (mx_dtype)to);
                wrong += !(got == want || (isnan(got) && isnan(want)));
            }
            CHECK(wrong == 0, "%s to %s: %d wrong on %s", mx_dtype_name((mx_dtype)from), mx_dtype_name((mx_dtype)to),
                  wrong, isa);
            free(x);
            free(y);
        }
}

/* Every bf16, and the middles between neighbours with what lies next to them, round as core/dtype.h says. */
static void check_all_bf16(const char *isa)
{
    enum { N = 65536 * 4 };
    uint32_t *bits = malloc(N * 4);
    mx_bf16 *bf16 = malloc(N * 2);
    for (uint32_t i = 0; i < N; i++)
        bits[i] = i / 4 << 16 | (const uint32_t[]){0, 0x7fff, 0x8000, 0x8001}[i % 4];
    mx_cast((mx_array){bits, MX_F32}, (mx_array){bf16, MX_BF16}, N);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        float x;
        memcpy(&x, &bits[i], 4);
        bool denormal = fabsf(x) < 1.17549435e-38f; /* AVX512-BF16 rounds these to 0 */
        wrong += isnan(x) ? !isnan(mx_from_bf16(bf16[i])) : bf16[i] != mx_to_bf16(x) && !denormal;
    }
    CHECK(wrong == 0, "%d of all bf16 wrong on %s", wrong, isa);
    free(bits);
    free(bf16);
}

static void check_add_to(const char *isa)
{
    for (int k = 0; k < 4; k++)
        for (int64_t n = 0; n < 70000; n = 5 * n + 3) {
            mx_dtype c_type = k & 1 ? MX_BF16 : MX_F32, x_type = k & 2 ? MX_BF16 : MX_F32;
            void *c = make_values(n, c_type, -1, 1), *x = make_values(n, x_type, -1, 1);
            double *want = malloc(sizeof(double) * (size_t)(n + 1));
            for (int64_t i = 0; i < n; i++)
                want[i] = get_value(c, i, c_type) + get_value(x, i, x_type);
            mx_add_to((mx_array){c, c_type}, (mx_array){x, x_type}, n);
            CHECK(worst_error(c, c_type, want, n) <= (c_type == MX_BF16 ? 0x1p-8 : 1e-7), "n = %d on %s", (int)n, isa);
            CHECK(guard_intact(c, n, c_type), "n = %d on %s", (int)n, isa);
            free(c);
            free(x);
            free(want);
        }
    float nan = NAN;
    uint32_t worst_nan = 0x7fffffff;
    memcpy(&nan, &worst_nan, 4);
    mx_bf16 c[9] = {0};
    float x[9] = {nan, nan, nan, nan, nan, nan, nan, nan, nan};
    mx_add_to((mx_array){c, MX_BF16}, (mx_array){x, MX_F32}, 9);
    for (int i = 0; i < 9; i++)
        CHECK(isnan(mx_from_bf16(c[i])), "a NaN of f32 is lost in bf16 on %s", isa);
}

static void test_arange_and_affine(void)
{
    float f[5];
    int32_t i[5] = {-3, 0, 7, INT32_MAX, INT32_MIN}, j[5];
    mx_arange((mx_array){f, MX_F32}, 1, 0.25, 5);
    CHECK(f[0] == 1 && f[4] == 2, "%g %g", f[0], f[4]);
    mx_affine_int((mx_array){i, MX_I32}, (mx_array){j, MX_I32}, 2, 1, 5);
    CHECK(j[0] == -5 && j[1] == 1 && j[2] == 15 && j[3] == INT32_MAX && j[4] == INT32_MIN, "%d %d %d %d %d", j[0], j[1],
          j[2], j[3], j[4]);
}

static void check_all(const char *isa)
{
    check_functions(isa);
    check_rounding(isa);
    check_gated(isa);
    check_streams(isa);
    check_large(isa);
    check_extremes(isa);
    check_casts(isa);
    check_all_bf16(isa);
    check_add_to(isa);
}

int main(void)
{
    for_each_isa(check_all);
    test_arange_and_affine();
    return check_done();
}
