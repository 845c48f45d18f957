#include "kernels/special.h"

#include "core/element.h"

#include <math.h>

/* x times a polynomial of w = -ln(1 - x^2), or of its root where that is large. Coefficients: Giles, "Approximating the
 * erfinv function" (GPU Computing Gems 2, 2010), for single precision. */
static double erfinv_single(double x)
{
    static const double near[] = {2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
                                  -0.00125372503, -0.00417768164, 0.246640727,    1.50140941};
    static const double far[] = {-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
                                 -0.0076224613,   0.00943887047,  1.00167406,    2.83297682};
    if (fabs(x) >= 1)
        return fabs(x) == 1 ? copysign(INFINITY, x) : NAN;
    double w = -log((1 - x) * (1 + x));
    const double *c = w < 5 ? near : far;
    w = w < 5 ? w - 2.5 : sqrt(w) - 3;
    double p = c[0];
    for (int i = 1; i < 9; i++)
        p = p * w + c[i];
    return p * x;
}

/* Steps of Halley's from there: one, or some where that is beyond the polynomial's range. Where x is close to 1, erfc
 * has the digits that erf lacks. */
static double erfinv_double(double x)
{
    double size = fabs(erfinv_single(x));
    if (!isfinite(size))
        return copysign(size, x);
    for (int steps = size > 3.9 ? 6 : 1; steps > 0; steps--) {
        double off = fabs(x) > 0.5 ? (1 - fabs(x)) - erfc(size) : erf(size) - fabs(x);
        double step = off / (M_2_SQRTPI * exp(-size * size));
        size -= step / (1 + size * step);
    }
    return copysign(size, x);
}

/* x less the whole number below it: the functions of pi x have a period of 1. */
static double fraction(double x) { return x - floor(x); }

static double digamma(double x)
{
    /* B_2k / 2k, the coefficients of the asymptotic series */
    static const double c[] = {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240, 1.0 / 132, -691.0 / 32760, 1.0 / 12};
    double y = 0, series = 0;
    if (x == 0)
        return copysign(INFINITY, -x);
    if (x < 0) {
        double part = fraction(x);
        if (part == 0)
            return NAN;
        y = -M_PI / tan(M_PI * part);
        x = 1 - x;
    }
    while (x < 10) {
        y -= 1 / x;
        x++;
    }
    double z = 1 / (x * x);
    for (int k = 6; k >= 0; k--)
        series = (series + c[k]) * z;
    return y + log(x) - 0.5 / x - series;
}

/* The sum of (-1)^(n + 1) n! / (x + k)^(n + 1) over k >= 0: the terms up to x + k = 10 + n, and the asymptotic series
 * of the rest. A derivative of pi cot(pi x) gives the first order below 0. */
static double polygamma(int n, double x)
{
    static const double c[] = {1.0 / 6, -1.0 / 30, 1.0 / 42, -1.0 / 30, 5.0 / 66, -691.0 / 2730, 7.0 / 6}; /* B_2k */
    double sign = n % 2 ? 1 : -1, factorial = tgamma(n), sum = 0; /* (n - 1)! */
    if (n == 1 && x < 0.5) {
        double sine = sin(M_PI * fraction(x));
        return M_PI * M_PI / (sine * sine) - polygamma(1, 1 - x);
    }
    if (x < -1000)
        return NAN;
    while (x < 10 + n) {
        sum += n / pow(x, n + 1);
        x++;
    }
    double term = n / (x * x), series = 1 + 0.5 * n / x; /* n (n + 1) ... (n + 2 k - 1) / (2 k)! / x^2k */
    term *= 0.5 * (n + 1);
    for (int k = 1; k <= 7; k++) {
        series += c[k - 1] * term;
        term *= (n + 2 * k) * (n + 2 * k + 1) / ((2 * k + 1) * (2 * k + 2) * x * x);
    }
    return sign * factorial * (sum + series / pow(x, n));
}

double mx_special_f64(mx_special f, int order, double x)
{
    int sign;
    if (f == MX_ERFINV)
        return erfinv_double(x);
    if (f == MX_LGAMMA)
        return lgamma_r(x, &sign);
    return f == MX_DIGAMMA ? digamma(x) : polygamma(order, x);
}

void mx_special_run(mx_special f, int order, mx_array x, mx_array y, int64_t n)
{
    bool single = f == MX_ERFINV && y.dtype != MX_F64;
#pragma omp parallel for schedule(static) if (n >= MX_CHUNK / 16)
    for (int64_t i = 0; i < n; i++) {
        double value = mx_get_number(x.data, i, x.dtype);
        mx_set_number(y.data, i, single ? erfinv_single(value) : mx_special_f64(f, order, value), y.dtype);
    }
}
