/* The loops of pairs in plain C, computed in f64: the definition that the vector paths are tested against. */
#include "kernels/context.h"

#include "core/element.h"
#include "kernels/f64.h"

static void binary(mx_pair f, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, void *y, int64_t n,
                   bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(
            y, i, (float)mx_f64_pair(f, mx_get_float(a, i * a_step, dtype), mx_get_float(b, i * b_step, dtype)), dtype);
}

static void binary_grad(mx_pair f, bool by_b, const float *a, int a_step, const float *b, int b_step, const float *dy,
                        int dy_step, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dy[i * dy_step] * (float)mx_f64_pair_slope(f, by_b, a[i * a_step], b[i * b_step]);
}

static double operand(const void *p, int step, int64_t i, mx_dtype dtype)
{
    return step ? mx_get_float(p, i, dtype) : *(const float *)p;
}

static void compare(mx_compare op, mx_dtype dtype, const void *a, int a_step, const void *b, int b_step, uint8_t *y,
                    int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = mx_f64_holds(op, operand(a, a_step, i, dtype), operand(b, b_step, i, dtype));
}

static float sum(mx_pair f, mx_dtype dtype, const void *a, const void *b, int64_t n)
{
    double all = 0;
    for (int64_t i = 0; i < n; i++)
        all += mx_f64_pair(f, mx_get_float(a, i, dtype), mx_get_float(b, i, dtype));
    return (float)all;
}

const mx_pair_paths mx_pairs_portable = {.binary = binary, .binary_grad = binary_grad, .compare = compare, .sum = sum};
