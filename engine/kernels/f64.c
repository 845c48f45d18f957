#include "kernels/f64.h"

#include <math.h>

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

static double sign(double x) { return isnan(x) ? x : (double)((x > 0) - (x < 0)); }

static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))) + (isnan(x) ? x : 0); }

/* The argument of the sigmoid in gelu by tanh, and its slope: 2 sqrt(2/pi) (x + 0.044715 x^3). */
static const double k0 = 1.5957691216057308, k1 = 0.071354816272600495;

double mx_f64_value(mx_function f, double x)
{
    switch (f.op) {
    case MX_EXP:
        return exp(x);
    case MX_LOG:
        return log(x);
    case MX_SQRT:
        return sqrt(x);
    case MX_RSQRT:
        return 1 / sqrt(x);
    case MX_ABS:
        return fabs(x);
    case MX_TANH:
        return tanh(x);
    case MX_SIGMOID:
        return sigmoid(x);
    case MX_SQUARE:
        return x * x;
    case MX_SIN:
        return sin(x);
    case MX_COS:
        return cos(x);
    case MX_AFFINE:
        return f.p0 * x + f.p1;
    case MX_POW:
        return pow(x, f.p0);
    case MX_SILU:
        return x == -INFINITY ? 0 : x * sigmoid(x);
    case MX_GELU_TANH:
        return x < -30 ? 0 : x * sigmoid(x * (k0 + k1 * x * x));
    case MX_GELU_ERF:
        return x < -40 ? 0 : x * 0.5 * erfc(-x * M_SQRT1_2);
    case MX_ERF:
        return erf(x);
    case MX_LOG1P:
        return log1p(x);
    case MX_EXPM1:
        return expm1(x);
    case MX_FLOOR:
        return floor(x);
    case MX_CEIL:
        return ceil(x);
    case MX_ROUND:
        return rint(x);
    case MX_SIGN:
        return sign(x);
    case MX_SOFTPLUS:
        return softplus(f.p0 * x) / f.p0;
    case MX_LEAKY_RELU:
        return x < 0 ? f.p0 * x : x;
    case MX_ELU:
        return x < 0 ? f.p0 * expm1(x) : x;
    case MX_CLAMP:
        return x < f.p0 ? f.p0 : x > f.p1 ? f.p1 : x;
    case MX_TAN:
        return tan(x);
    case MX_ASIN:
        return asin(x);
    case MX_ACOS:
        return acos(x);
    case MX_ATAN:
        return atan(x);
    case MX_SINH:
        return sinh(x);
    case MX_COSH:
        return cosh(x);
    case MX_ASINH:
        return asinh(x);
    case MX_ACOSH:
        return acosh(x);
    case MX_ATANH:
        return atanh(x);
    default: /* MX_RELU */
        return x < 0 ? 0 : x;
    }
}

double mx_f64_slope(mx_function f, double v)
{
    double s;
    switch (f.op) {
    case MX_EXP:
        return v;
    case MX_LOG:
        return 1 / v;
    case MX_SQRT:
        return 0.5 / v;
    case MX_RSQRT:
        return -0.5 * v * v * v;
    case MX_ABS:
        return sign(v);
    case MX_TANH:
        return 1 - v * v;
    case MX_SIGMOID:
        return v * (1 - v);
    case MX_SQUARE:
        return v + v;
    case MX_SIN:
        return cos(v);
    case MX_COS:
        return -sin(v);
    case MX_AFFINE:
        return f.p0;
    case MX_POW:
        return f.p0 * pow(v, f.p0 - 1);
    case MX_SILU:
        v = v < -700 ? -700 : v > 700 ? 700 : v;
        s = sigmoid(v);
        return s + v * s * (1 - s);
    case MX_GELU_TANH:
        v = v < -30 ? -30 : v > 30 ? 30 : v;
        s = sigmoid(v * (k0 + k1 * v * v));
        return s + v * s * (1 - s) * (k0 + 3 * k1 * v * v);
    case MX_GELU_ERF:
        v = v < -40 ? -40 : v > 40 ? 40 : v;
        return 0.5 * erfc(-v * M_SQRT1_2) + v * 0.3989422804014327 * exp(-0.5 * v * v);
    case MX_ERF:
        return 1.1283791670955126 * exp(-v * v);
    case MX_LOG1P:
        return 1 / (1 + v);
    case MX_EXPM1:
        return exp(v);
    case MX_FLOOR:
    case MX_CEIL:
    case MX_ROUND:
    case MX_SIGN:
        return 0;
    case MX_SOFTPLUS:
        return sigmoid(f.p0 * v);
    case MX_LEAKY_RELU:
        return isnan(v) ? v : v > 0 ? 1 : f.p0;
    case MX_ELU:
        return isnan(v) ? v : v > 0 ? 1 : f.p0 * exp(v);
    case MX_CLAMP:
        return v >= f.p0 && v <= f.p1 ? 1 : 0;
    case MX_TAN:
        return 1 + v * v;
    case MX_ASIN:
        return 1 / sqrt((1 - v) * (1 + v));
    case MX_ACOS:
        return -1 / sqrt((1 - v) * (1 + v));
    case MX_ATAN:
        return 1 / (1 + v * v);
    case MX_SINH:
        return cosh(v);
    case MX_COSH:
        return sinh(v);
    case MX_ASINH:
        return 1 / hypot(v, 1);
    case MX_ACOSH:
        return 1 / (sqrt(v - 1) * sqrt(v + 1));
    case MX_ATANH:
        return 1 / ((1 - v) * (1 + v));
    default: /* MX_RELU */
        return isnan(v) ? v : v > 0 ? 1 : 0;
    }
}

/* As Lua's %: with the sign of b. */
static double remainder_down(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double mx_f64_pair(mx_pair f, double a, double b)
{
    double d = fabs(a - b);
    switch (f.op) {
    case MX_ADD:
        return a + b;
    case MX_SUB:
        return a - b;
    case MX_MUL:
        return a * b;
    case MX_DIV:
        return a / b;
    case MX_MAXIMUM:
        return isnan(a) || a > b ? a : b;
    case MX_POWER:
        return pow(a, b);
    case MX_ADD_SCALED:
        return a + f.p * b;
    case MX_LERP:
        return a + f.p * (b - a);
    case MX_ATAN2:
        return atan2(a, b);
    case MX_REMAINDER:
        return remainder_down(a, b);
    case MX_FMOD:
        return fmod(a, b);
    case MX_SQUARED:
        return d * d;
    case MX_ABSOLUTE:
        return d;
    case MX_HUBER:
        return d <= f.p ? 0.5 * d * d : f.p * (d - 0.5 * f.p);
    case MX_BCE:
        return softplus(a) - a * b;
    case MX_DIVERGENCE:
        return b == 0 ? 0 : b * (log(b) - a);
    case MX_DIVERGENCE_LOG:
        return exp(b) * (b - a);
    default: /* MX_MINIMUM */
        return isnan(a) || a < b ? a : b;
    }
}

static double power_slope(bool by_b, double a, double b)
{
    if (by_b)
        return a == 0 && b >= 0 ? 0 : pow(a, b) * log(a);
    return b == 0 ? 0 : b * pow(a, b - 1);
}

double mx_f64_pair_slope(mx_pair f, bool by_b, double a, double b)
{
    double mine = by_b ? b : a, other = by_b ? a : b, d = mine - other;
    switch (f.op) {
    case MX_DIV:
        return by_b ? -a / (b * b) : 1 / b;
    case MX_POWER:
        return power_slope(by_b, a, b);
    case MX_LERP:
        return by_b ? f.p : 1 - f.p;
    case MX_ATAN2:
        return (by_b ? -a : b) / (a * a + b * b);
    case MX_REMAINDER:
        return by_b ? -rint((a - remainder_down(a, b)) / b) : 1;
    case MX_FMOD:
        return by_b ? -rint((a - fmod(a, b)) / b) : 1;
    case MX_SQUARED:
        return 2 * d;
    case MX_ABSOLUTE:
        return sign(d);
    case MX_HUBER:
        return d < -f.p ? -f.p : d > f.p ? f.p : d;
    case MX_BCE:
        return by_b ? -a : sigmoid(a) - b;
    case MX_DIVERGENCE:
        return by_b ? log(b) + 1 - a : -b;
    case MX_DIVERGENCE_LOG:
        return by_b ? exp(b) * (b - a + 1) : -exp(b);
    case MX_MINIMUM:
        return mine < other ? 1 : mine == other ? 0.5 : 0;
    default: /* MX_MAXIMUM */
        return mine > other ? 1 : mine == other ? 0.5 : 0;
    }
}

bool mx_f64_holds(mx_compare op, double a, double b)
{
    switch (op) {
    case MX_EQ:
        return a == b;
    case MX_NE:
        return a != b;
    case MX_LT:
        return a < b;
    case MX_LE:
        return a <= b;
    case MX_GT:
        return a > b;
    case MX_FINITE:
        return isfinite(a);
    default: /* MX_GE */
        return a >= b;
    }
}
