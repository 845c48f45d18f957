#include "kernels/context.h"

#include "core/element.h"

#include <math.h>

static void forward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * s->width;
        float largest = -INFINITY, sum = 0;
        for (int64_t i = 0; i < s->width; i++)
            largest = fmaxf(largest, mx_get_float(s->x, row + i, s->dtype));
        for (int64_t i = 0; i < s->width; i++)
            sum += expf(mx_get_float(s->x, row + i, s->dtype) - largest);
        for (int64_t i = 0; i < s->width; i++) {
            float d = mx_get_float(s->x, row + i, s->dtype) - largest;
            mx_set_float(s->y, row + i, s->log ? d - logf(sum) : expf(d) / sum, s->dtype);
        }
    }
}

static void backward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++) {
        int64_t row = r * s->width;
        float sum = 0;
        for (int64_t i = 0; i < s->width; i++) {
            float dy = mx_get_float(s->dy, row + i, s->dtype);
            sum += s->log ? dy : dy * mx_get_float(s->y, row + i, s->dtype);
        }
        for (int64_t i = 0; i < s->width; i++) {
            float y = mx_get_float(s->y, row + i, s->dtype), dy = mx_get_float(s->dy, row + i, s->dtype);
            mx_set_float(s->dx, row + i, s->log ? dy - expf(y) * sum : y * (dy - sum), s->dtype);
        }
    }
}

const mx_softmax_paths mx_softmax_portable = {forward, backward};
