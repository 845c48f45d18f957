/* NVFP4: the work is split into pieces of rows and columns. The largest magnitude does not depend on the order, so
 * neither do the bits. */
#include "kernels/nvfp4.h"

#include "core/float8.h"
#include "core/rng.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <float.h>

/* Rows of a piece: the codes of so many are a line of a cache where they are written along columns. */
enum { PIECE_ROWS = 128 };

static mx_fp4_part part_of(const mx_fp4_quantize *q, int64_t row, int64_t column)
{
    return (mx_fp4_part){.x = (const char *)q->x + (row * q->columns + column) * (int64_t)mx_dtype_bytes(q->dtype),
                         .dtype = q->dtype,
                         .rows = mx_min(MX_FP4_RUN, q->rows - row),
                         .n = mx_min(MX_FP4_COLUMNS, q->columns - column),
                         .stride = q->columns,
                         .square = q->square,
                         .trans = q->trans,
                         .hadamard = q->hadamard,
                         .stochastic = q->stochastic,
                         .column = column};
}

static int32_t largest_of_all(const mx_fp4_quantize *q)
{
    const mx_fp4_paths *paths = mx_kernels_current()->fp4;
    int32_t largest = 0;
#pragma omp parallel for collapse(2) schedule(static)                                                                  \
    reduction(max                                                                                                      \
              : largest) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t row = 0; row < q->rows; row += MX_FP4_RUN)
        for (int64_t column = 0; column < q->columns; column += MX_FP4_COLUMNS) {
            mx_fp4_part p = part_of(q, row, column);
            int32_t own = paths->largest(&p);
            largest = own > largest ? own : largest;
        }
    return largest;
}

/* The keys of a row follow from its number, so they do not depend on who has the row. */
static void set_keys(const mx_fp4_quantize *q, int64_t row, mx_fp4_part *p)
{
    for (int64_t i = 0; i < p->rows; i++) {
        int64_t number = q->first + (q->numbers ? q->numbers[row + i] : row + i);
        uint32_t word[4];
        mx_philox(q->seed, q->stream, (uint64_t)number, word);
        p->keys[i][0] = word[0];
        p->keys[i][1] = word[1];
    }
}

static void quantize_piece(const mx_fp4_quantize *q, int64_t first, int64_t column, float encode)
{
    int64_t length = q->trans ? q->rows : q->columns; /* of a line */
    for (int64_t row = first; row < mx_min(first + PIECE_ROWS, q->rows); row += MX_FP4_RUN) {
        mx_fp4_part p = part_of(q, row, column);
        int64_t line = q->trans ? column : row, at = q->trans ? row : column;
        p.encode = encode;
        p.code_stride = length / 2;
        p.scale_stride = length / MX_FP4_RUN;
        p.codes = q->codes + line * p.code_stride + at / 2;
        p.scales = q->scales + line * p.scale_stride + at / MX_FP4_RUN;
        if (q->stochastic)
            set_keys(q, row, &p);
        mx_kernels_current()->fp4->quantize(&p);
    }
}

void mx_fp4_quantize_run(const mx_fp4_quantize *q)
{
    float largest = mx_float_of_bits((uint32_t)largest_of_all(q)), encode = 2688.0f / largest;
    encode = encode > FLT_MAX ? FLT_MAX : encode;
    if (largest == 0 || encode == 0)
        encode = 1;
    *q->scale = largest / 2688.0f;
#pragma omp parallel for collapse(2) schedule(static) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t row = 0; row < q->rows; row += PIECE_ROWS)
        for (int64_t column = 0; column < q->columns; column += MX_FP4_COLUMNS)
            quantize_piece(q, row, column, encode);
}

void mx_fp4_widen(int64_t lines, int64_t length, const uint8_t *codes, const uint8_t *scales, mx_bf16 *values)
{
    const mx_fp4_paths *paths = mx_kernels_current()->fp4;
#pragma omp parallel for schedule(static) if (lines * length >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < lines; i++)
        paths->widen(length, codes + i * (length / 2), scales + i * (length / MX_FP4_RUN), values + i * length);
}
