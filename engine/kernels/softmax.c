#include "kernels/softmax.h"

#include "core/cpu.h"

static const mx_softmax_paths *const paths[MX_VECTOR_ISAS] = {&mx_softmax_portable, &mx_softmax_avx2,
                                                              &mx_softmax_avx512, &mx_softmax_avx512_bf16};

static void run(const mx_softmax *s, void (*path)(const mx_softmax *, int64_t, int64_t))
{
    if (s->width == 0)
        return;
    int64_t rows_at_once = 1 + 4096 / s->width;
    int64_t pieces = (s->rows + rows_at_once - 1) / rows_at_once;
#pragma omp parallel for schedule(static) if (s->rows * s->width > 8192)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t first = p * rows_at_once, last = first + rows_at_once;
        path(s, first, last < s->rows ? last : s->rows);
    }
}

void mx_softmax_forward(const mx_softmax *s) { run(s, paths[mx_isa_vectors()]->forward); }

void mx_softmax_backward(const mx_softmax *s) { run(s, paths[mx_isa_vectors()]->backward); }
