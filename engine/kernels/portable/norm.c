#include "kernels/norm.h"

#include <math.h>

static float get(const void *data, int64_t i, mx_dtype dtype)
{
    return dtype == MX_BF16 ? mx_from_bf16(((const mx_bf16 *)data)[i]) : ((const float *)data)[i];
}

static void set(void *data, int64_t i, float x, mx_dtype dtype)
{
    if (dtype == MX_BF16)
        ((mx_bf16 *)data)[i] = mx_to_bf16(x);
    else
        ((float *)data)[i] = x;
}

static void forward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * n->width;
        float mean = 0, squares = 0;
        for (int64_t i = 0; i < n->width && n->center; i++)
            mean += get(n->x, row + i, n->dtype);
        mean /= (float)n->width;
        for (int64_t i = 0; i < n->width; i++) {
            float d = get(n->x, row + i, n->dtype) - mean;
            squares += d * d;
        }
        float rstd = 1.0f / sqrtf(squares / (float)n->width + n->eps);
        const float *weight = n->weight, *bias = n->bias;
        for (int64_t i = 0; i < n->width; i++) {
            float normal = (get(n->x, row + i, n->dtype) - mean) * rstd;
            set(n->y, row + i, normal * weight[i] + (n->center ? bias[i] : 0.0f), n->dtype);
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
            float normal = (get(n->x, row + i, n->dtype) - mean) * rstd;
            float d = get(n->dy, row + i, n->dtype) * weight[i];
            sum += d;
            dot += d * normal;
        }
        sum = n->center ? sum / (float)n->width : 0.0f;
        dot /= (float)n->width;
        for (int64_t i = 0; i < n->width; i++) {
            float normal = (get(n->x, row + i, n->dtype) - mean) * rstd;
            float dy = get(n->dy, row + i, n->dtype);
            n->dweight[i] += dy * normal;
            if (n->dbias)
                n->dbias[i] += dy;
            set(n->dx, row + i, rstd * (dy * weight[i] - sum - normal * dot), n->dtype);
        }
    }
}

const mx_norm_paths mx_norm_portable = {forward, backward};
