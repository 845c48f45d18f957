#include "kernels/context.h"

#include "core/element.h"

#include <math.h>

/* One row, whose elements are `step` apart. */
static void forward_row(const mx_softmax *s, int64_t row, int64_t step)
{
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < s->width; i++)
        largest = fmaxf(largest, mx_get_float(s->x, row + i * step, s->dtype));
    for (int64_t i = 0; i < s->width; i++)
        sum += expf(mx_get_float(s->x, row + i * step, s->dtype) - largest);
    for (int64_t i = 0; i < s->width; i++) {
        float d = mx_get_float(s->x, row + i * step, s->dtype) - largest;
        mx_set_float(s->y, row + i * step, s->log ? d - logf(sum) : expf(d) / sum, s->dtype);
    }
}

static void backward_row(const mx_softmax *s, int64_t row, int64_t step)
{
    float sum = 0;
    for (int64_t i = 0; i < s->width; i++) {
        float dy = mx_get_float(s->dy, row + i * step, s->dtype);
        sum += s->log ? dy : dy * mx_get_float(s->y, row + i * step, s->dtype);
    }
    for (int64_t i = 0; i < s->width; i++) {
        float y = mx_get_float(s->y, row + i * step, s->dtype), dy = mx_get_float(s->dy, row + i * step, s->dtype);
        mx_set_float(s->dx, row + i * step, s->log ? dy - expf(y) * sum : y * (dy - sum), s->dtype);
    }
}

static void forward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++)
        forward_row(s, r * s->width, 1);
}

static void backward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    (void)stream;
    for (int64_t r = first; r < last; r++)
        backward_row(s, r * s->width, 1);
}

static void forward_columns(const mx_softmax *s, int64_t at, int64_t n, float *scratch, bool stream)
{
    (void)scratch;
    (void)stream;
    for (int64_t c = 0; c < n; c++)
        forward_row(s, at + c, s->inner);
}

static void backward_columns(const mx_softmax *s, int64_t at, int64_t n, float *scratch, bool stream)
{
    (void)scratch;
    (void)stream;
    for (int64_t c = 0; c < n; c++)
        backward_row(s, at + c, s->inner);
}

const mx_softmax_paths mx_softmax_portable = {forward, backward, forward_columns, backward_columns};
