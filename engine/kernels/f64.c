#include "kernels/f64.h"

#include <math.h>

static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

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
    default: /* MX_RELU */
        return x < 0 ? 0 : x;
    }
}

static double sign(double x) { return isnan(x) ? x : (double)((x > 0) - (x < 0)); }

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
    default: /* MX_RELU */
        return isnan(v) ? v : v > 0 ? 1 : 0;
    }
}

double mx_f64_pair(mx_binary op, double a, double b)
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
        return isnan(a) || a > b ? a : b;
    default: /* MX_MINIMUM */
        return isnan(a) || a < b ? a : b;
    }
}

double mx_f64_pair_slope(mx_binary op, bool by_b, double a, double b)
{
    if (op == MX_DIV)
        return by_b ? -a / (b * b) : 1 / b;
    double mine = by_b ? b : a, other = by_b ? a : b;
    if (mine == other)
        return 0.5;
    return (op == MX_MINIMUM ? mine < other : mine > other) ? 1 : 0;
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
    default: /* MX_GE */
        return a >= b;
    }
}
