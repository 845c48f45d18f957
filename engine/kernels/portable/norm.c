#include "kernels/context.h"

#include "core/element.h"
#include "kernels/norm.h"

#include <math.h>

static float row_sum(const mx_norm *n, int64_t r, float mean, bool squares)
{
    float sum = 0;
    for (int64_t i = 0; i < n->width; i++) {
        float d = mx_get_float(n->x, r * n->width + i, n->dtype) - mean;
        sum += squares ? d * d : d;
    }
    return sum;
}

static void sums(const mx_norm *n, int64_t first, int64_t last, bool squares)
{
    for (int64_t r = first; r < last; r++)
        n->sums[r] = row_sum(n, r, n->mean ? n->mean[r] : 0.0f, squares);
}

static void forward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * n->width;
        float mean = 0, rstd = 0, width = (float)n->width;
        if (n->features) {
            mean = n->center ? n->mean[r] : 0.0f;
            rstd = n->rstd[r];
        } else {
            mean = n->center ? row_sum(n, r, 0, false) / width : 0.0f;
            rstd = 1.0f / sqrtf(row_sum(n, r, mean, true) / width + n->eps);
        }
        const float *weight = n->weight, *bias = n->bias;
        for (int64_t i = 0; i < n->width; i++) {
            float normal = (mx_get_float(n->x, row + i, n->dtype) - mean) * rstd;
            mx_set_float(n->y, row + i, normal * weight[i] + (n->center ? bias[i] : 0.0f), n->dtype);
        }
        if (n->features)
            continue;
        if (n->rstd)
            n->rstd[r] = rstd;
        if (n->mean && n->center)
            n->mean[r] = mean;
    }
}

static void row_grad_sums(const mx_norm *n, int64_t r, float *dot, float *sum)
{
    const float *weight = n->weight;
    float mean = n->center ? n->mean[r] : 0.0f;
    *dot = *sum = 0;
    for (int64_t i = 0; i < n->width; i++) {
        float d = mx_get_float(n->dy, r * n->width + i, n->dtype) * weight[i];
        *sum += d;
        *dot += d * (mx_get_float(n->x, r * n->width + i, n->dtype) - mean);
    }
}

static void grad_sums(const mx_norm *n, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        float sum = 0;
        row_grad_sums(n, r, &n->sums[r], n->center ? &n->sums[n->rows + r] : &sum);
    }
}

static void backward(const mx_norm *n, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    const float *weight = n->weight;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * n->width;
        float rstd = n->rstd[r], mean = n->center ? n->mean[r] : 0.0f;
        float features = (float)(n->features ? n->features : n->width), dot = 0, sum = 0;
        if (n->features) {
            dot = n->sums[r];
            sum = n->center ? n->sums[n->rows + r] : 0.0f;
        } else {
            row_grad_sums(n, r, &dot, &sum);
        }
        sum = n->center ? sum / features : 0.0f;
        dot = rstd * dot / features;
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

const mx_norm_paths mx_norm_portable = {forward, backward, sums, grad_sums, leave, leave};
