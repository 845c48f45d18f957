#include "kernels/softmax.h"

#include "kernels/context.h"
#include "kernels/elementwise.h"

/* Rows to `out` from the tensors it is made of; past the caches where these could not keep them. */
static void run(const mx_softmax *s, const void *out, const void *const in[2],
                void (*path)(const mx_softmax *, int64_t, int64_t, bool))
{
    if (s->width == 0)
        return;
    int64_t row_bytes = s->width * (int64_t)mx_dtype_bytes(s->dtype), tensors = in[1] ? 3 : 2;
    bool stream = row_bytes % 64 == 0 && (uintptr_t)out % 64 == 0 && out != in[0] && out != in[1] &&
                  mx_should_stream(tensors * s->rows * row_bytes);
    int64_t rows_at_once = 1 + 4096 / s->width;
    int64_t pieces = (s->rows + rows_at_once - 1) / rows_at_once;
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path(s, first, last < s->rows ? last : s->rows, stream);
    }
}

void mx_softmax_forward(const mx_softmax *s)
{
    run(s, s->y, (const void *[2]){s->x}, mx_kernels_current()->softmax->forward);
}

void mx_softmax_backward(const mx_softmax *s)
{
    run(s, s->dx, (const void *[2]){s->y, s->dy}, mx_kernels_current()->softmax->backward);
}
