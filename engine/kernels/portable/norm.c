#include "kernels/context.h"

#include "core/element.h"

#include <math.h>

static void forward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * n->width;
        float mean = 0, squares = 0;
        for (int64_t i = 0; i < n->width && n->center; i++)
            mean += mx_get_float(n->x, row + i, n->dtype);
        mean /= (float)n->width;
        for (int64_t i = 0; i < n->width; i++) {
            float d = mx_get_float(n->x, row + i, n->dtype) - mean;
            squares += d * d;
        }
        float rstd = 1.0f / sqrtf(squares / (float)n->width + n->eps);
        const float *weight = n->weight, *bias = n->bias;
        for (int64_t i = 0; i < n->width; i++) {
            float normal = (mx_get_float(n->x, row + i, n->dtype) - mean) * rstd;
            mx_set_float(n->y, row + i, normal * weight[i] + (n->center ? bias[i] : 0.0f), n->dtype);
        }
        if (n->rstd)
            n->rstd[r] = rstd;
        if (n->mean && n->center)
            n->mean[r] = mean;
    }
}

static void backward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    const float *weight = n->weight;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * n->width;
        float rstd = n->rstd[r], mean = n->center ? n->mean[r] : 0.0f;
        float sum = 0, dot = 0;
        for (int64_t i = 0; i < n->width; i++) {
            float normal = (mx_get_float(n->x, row + i, n->dtype) - mean) * rstd;
            float d = mx_get_float(n->dy, row + i, n->dtype) * weight[i];
            sum += d;
            dot += d * normal;
        }
        sum = n->center ? sum / (float)n->width : 0.0f;
        dot /= (float)n->width;
        for (int64_t i = 0; i < n->width; i++) {
            float normal = (mx_get_float(n->x, row + i, n->dtype) - mean) * rstd;
            float dy = mx_get_float(n->dy, row + i, n->dtype);
            n->dweight[i] += dy * normal;
            if (n->dbias)
                n->dbias[i] += dy;
            mx_set_float(n->dx, row + i, rstd * (dy * weight[i] - sum - normal * dot), n->dtype);
        }
    }
}

static void leave(float *values, int64_t width)
{
    (void)values;
    (void)width;
}

const mx_norm_paths mx_norm_portable = {forward, backward, leave, leave};
