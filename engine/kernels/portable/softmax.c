#include "kernels/context.h"

#include "core/element.h"
#include "kernels/softmax.h"

#include <float.h>
#include <math.h>

static void forward_row(const mx_softmax *s, int64_t r)
{
    int64_t first = r * s->width;
    float largest = -INFINITY, sum = 0, factor;
    for (int64_t i = first; i < first + s->width; i++)
        largest = fmaxf(largest, mx_get_float(s->x, i, s->dtype));
    bool infinite = s->scale && largest > FLT_MAX;
    largest = infinite ? FLT_MAX : largest;
    for (int64_t i = first; i < first + s->width; i++)
        sum += expf(mx_get_float(s->x, i, s->dtype) - largest);
    factor = infinite ? 0 : (s->scale ? s->scale[r] : 1) / sum;
    for (int64_t i = first; i < first + s->width; i++) {
        float d = mx_get_float(s->x, i, s->dtype) - largest;
        mx_set_float(s->y, i, s->log ? d - logf(sum) : expf(d) * factor, s->dtype);
    }
}

static float gradient_term(const mx_softmax *s, int64_t i)
{
    float dy = mx_get_float(s->dy, i, s->dtype);
    return s->log ? dy : dy * mx_get_float(s->y, i, s->dtype);
}

static void put_gradient(const mx_softmax *s, int64_t i, float sum)
{
    float y = mx_get_float(s->y, i, s->dtype), dy = mx_get_float(s->dy, i, s->dtype);
    mx_set_float(s->dx, i, s->log ? dy - expf(y) * sum : y * (dy - sum), s->dtype);
}

static void backward_row(const mx_softmax *s, int64_t first)
{
    float sum = 0;
    for (int64_t i = first; i < first + s->width; i++)
        sum += gradient_term(s, i);
    for (int64_t i = first; i < first + s->width; i++)
        put_gradient(s, i, sum);
}

static void forward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++)
        forward_row(s, r);
}

static void backward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++)
        backward_row(s, r * s->width);
}

static void forward_columns(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                            bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < s->width; i++, at += s->inner)
        for (int64_t c = 0; c < n; c++) {
            float d = mx_get_float(s->x, at + c, s->dtype) - center[c];
            mx_set_float(s->y, at + c, s->log ? d - factor[c] : expf(d) * factor[c], s->dtype);
        }
}

static void column_terms(const mx_softmax *s, int64_t at, int64_t height, int64_t n, float *sum)
{
    for (int64_t i = 0; i < height; i++, at += s->inner)
        for (int64_t c = 0; c < n; c++)
            sum[c] += gradient_term(s, at + c);
}

static void backward_columns(const mx_softmax *s, int64_t at, int64_t n, const float *sum, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < s->width; i++, at += s->inner)
        for (int64_t c = 0; c < n; c++)
            put_gradient(s, at + c, sum[c]);
}

const mx_softmax_paths mx_softmax_portable = {forward, backward, forward_columns, backward_columns, column_terms};
