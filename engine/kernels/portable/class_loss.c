#include "kernels/context.h"

#include "core/element.h"
#include "kernels/class_loss.h"

static float lse(const void *x, mx_dtype dtype, int64_t n, const float *weight, float *weighted)
{
    double largest = -INFINITY, sum = 0, total = 0;
    for (int64_t i = 0; i < n; i++) {
        double one = (double)mx_get_float(x, i, dtype);
        largest = one > largest ? one : largest;
        total += (weight ? (double)weight[i] : 1.0) * one;
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)mx_get_float(x, i, dtype) - largest);
    if (weighted)
        *weighted = (float)total;
    return (float)(largest + log(sum));
}

static void grad(const void *x, mx_dtype dtype, int64_t n, float row_lse, float factor, const float *weight,
                 float spread, void *dx, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        mx_set_float(dx, i, factor * expf(mx_get_float(x, i, dtype) - row_lse) - spread * (weight ? weight[i] : 1.0f),
                     dtype);
}

const mx_class_paths mx_classes_portable = {.lse = lse, .grad = grad};
