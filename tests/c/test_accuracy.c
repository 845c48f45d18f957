/* Errors of functions of f32 in units in the last place, against the C library in double precision, on every
 * instruction set. The arguments are every 4,099th f32, or as many as the argument says: 1 takes all of them, and some
 * minutes for each function. Of bf16, all values: there the result is a function with an error of 1e-5, rounded. */
#include "kernels/context.h"
#include "kernels/f64.h"

#include "buffers.h"
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STRIDE = 4099 };

typedef struct function_case {
    const char *name;
    mx_function f;
    double bound; /* in units in the last place of f32; 0: of bf16 alone */
} function_case;

/* The sigmoid is less exact where it is tiny: there 1 / (1 + e^-x) has the error of e^-x. */
static const function_case cases[] = {
    {"exp", {.op = MX_EXP}, 2},
    {"log", {.op = MX_LOG}, 1},
    {"log1p", {.op = MX_LOG1P}, 2},
    {"expm1", {.op = MX_EXPM1}, 2},
    {"softplus", {.op = MX_SOFTPLUS, .p0 = 1}, 3},
    {"erf", {.op = MX_ERF}, 2},
    {"tanh", {.op = MX_TANH}, 3},
    {"sigmoid", {.op = MX_SIGMOID}, 3.2}, /* of all f32, -16.6397 is worst, with 3.19 */
    {"elu", {.op = MX_ELU, .p0 = 0.7}, 2},
    {"atan", {.op = MX_ATAN}, 2},
    {"asin", {.op = MX_ASIN}, 3},
    {"acos", {.op = MX_ACOS}, 3},
    {"sinh", {.op = MX_SINH}, 3},
    {"cosh", {.op = MX_COSH}, 3},
    {"asinh", {.op = MX_ASINH}, 3},
    {"acosh", {.op = MX_ACOSH}, 3},
    {"atanh", {.op = MX_ATANH}, 3},
    {"pow 1.7", {.op = MX_POW, .p0 = 1.7}, 1.1},
    {"pow -0.3", {.op = MX_POW, .p0 = -0.3}, 1.1},
    {"sin", {.op = MX_SIN}, 0},
    {"cos", {.op = MX_COS}, 0},
};

static float of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double value(mx_function f, double x)
{
    f.p0 = f.op == MX_POW ? (double)(float)f.p0 : f.p0;
    return mx_f64_value(f, x);
}

/* The error of `got` at x; 0 where denormals are flushed or count as 0. */
static double error_at(mx_function f, float x, float got)
{
    double want = value(f, x);
    if (fabs(want) < 1.5e-38 || fabsf(x) < 1.17549435e-38f)
        return 0;
    if (isnan(want) || fabs(want) >= 3.40282357e38)
        return isnan(want) ? (isnan(got) ? 0 : INFINITY) : got == (float)want ? 0 : INFINITY;
    return fabs(got - want) / ldexp(1, ilogb(want) - 23);
}

static void check_function(const function_case *c, uint64_t stride, const char *isa)
{
    enum { N = 4096 };
    static float x[N], y[N];
    double worst = 0;
    float at = 0;
    for (uint64_t first = 0; first < 1ull << 32; first += N * stride) {
        for (uint64_t i = 0; i < N; i++)
            x[i] = of_bits((uint32_t)(first + i * stride < 1ull << 32 ? first + i * stride : 0));
        mx_kernels_current()->elementwise->unary(c->f, MX_F32, x, y, N, false);
        for (int i = 0; i < N; i++) {
            double error = error_at(c->f, x[i], y[i]);
            if (!(error <= worst)) {
                worst = error;
                at = x[i];
            }
        }
    }
    CHECK(worst <= c->bound, "%s: %g units in the last place at %g on %s", c->name, worst, (double)at, isa);
    if (stride != STRIDE)
        printf("%s on %s: %.2f units in the last place at %g\n", c->name, isa, worst, (double)at);
}

/* Powers may be off by 2e-5. */
static void check_bf16(const function_case *c, const char *isa)
{
    enum { N = 65536 };
    static mx_bf16 x[N], y[N];
    int wrong = 0;
    float at = 0;
    for (int i = 0; i < N; i++)
        x[i] = (mx_bf16)i;
    mx_kernels_current()->elementwise->unary(c->f, MX_BF16, x, y, N, false);
    for (int i = 0; i < N; i++) {
        double want = value(c->f, (double)mx_from_bf16(x[i])), slack = c->f.op == MX_POW ? 2e-5 : 1e-5;
        float low = mx_from_bf16(mx_to_bf16((float)(want - slack * fabs(want)))), got = mx_from_bf16(y[i]);
        float high = mx_from_bf16(mx_to_bf16((float)(want + slack * fabs(want))));
        if (fabsf(mx_from_bf16(x[i])) < 1.17549435e-38f || fabs(want) < (c->f.op == MX_SIGMOID ? 2e-35 : 1.5e-38))
            continue; /* denormals, and what sigmoid is below -80 */
        if (isnan(want) ? isnan(got) : isinf(want) ? got == (float)want : got >= low && got <= high)
            continue;
        wrong++;
        at = mx_from_bf16(x[i]);
    }
    CHECK(wrong == 0, "%s: %d of all bf16 are not rounded once on %s, such as %g", c->name, wrong, isa, (double)at);
}

/* Powers of pairs, where the exponent makes the result as large or small as it gets: to 4e-7. */
static void check_powers(const char *isa)
{
    enum { N = 4096 };
    static float a[N], b[N], y[N];
    static const double ranges[] = {0.05, 1, 85}; /* of ln a */
    double worst = 0;
    for (int range = 0; range < 3; range++) {
        for (int i = 0; i < N; i++) {
            a[i] = (float)exp((2 * uniform() - 1) * ranges[range]);
            b[i] = (float)((250 * uniform() - 125) / log2((double)a[i]));
        }
        mx_kernels_current()->pairs->binary((mx_pair){.op = MX_POWER}, MX_F32, a, 1, b, 1, y, N, false);
        for (int i = 0; i < N; i++) {
            double want = pow((double)a[i], (double)b[i]), error = fabs((double)y[i] - want) / want;
            if (!isinf(b[i]) && !(error <= worst))
                worst = error;
        }
    }
    CHECK(worst <= 4e-7, "powers of pairs are off by %g on %s", worst, isa);
}

static uint64_t stride_asked = STRIDE;

static void check_all(const char *isa)
{
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        if (cases[k].bound > 0)
            check_function(&cases[k], stride_asked, isa);
        check_bf16(&cases[k], isa);
    }
    check_powers(isa);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        stride_asked = strtoull(argv[1], NULL, 10);
    for_each_isa(check_all);
    return check_done();
}
