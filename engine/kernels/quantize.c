/* Quantizing: the work is split by rows, or where each column has its scale, by columns. The largest magnitude does not
 * depend on the order, so neither do the bits. */
#include "kernels/quantize.h"

#include "core/float8.h"
#include "kernels/context.h"
#include "kernels/inline.h"

enum { COLUMNS = 256 }; /* of a block that one thread quantizes by column: its rows stay in the cache for both passes */

/* Columns [first, first + n) of a row, at most MX_QUANTIZE_BLOCK of them. */
static void load(const mx_quantize *q, int64_t row, int64_t first, int64_t n, float *values)
{
    const char *x = (const char *)q->x + (row * q->columns + first) * (int64_t)mx_dtype_bytes(q->dtype);
    mx_kernels_current()->quantize->load(x, q->dtype, n, q->row_factor ? q->row_factor[row] : 1.0f,
                                         q->column_factor ? q->column_factor + first : NULL, values);
}

static int32_t largest_of_row(const mx_quantize *q, int64_t row, int32_t largest)
{
    float values[MX_QUANTIZE_BLOCK];
    for (int64_t j = 0; j < q->columns; j += MX_QUANTIZE_BLOCK) {
        int64_t n = mx_min(MX_QUANTIZE_BLOCK, q->columns - j);
        load(q, row, j, n, values);
        largest = mx_kernels_current()->quantize->largest(values, n, largest);
    }
    return largest;
}

static float scale_of(const mx_quantize *q, int32_t largest)
{
    float scale = mx_float_of_bits((uint32_t)largest) * (1.0f / mx_dtypes[q->code].bound);
    return scale < 0x1p-63f ? 1.0f : scale;
}

static void write_codes(const mx_quantize *q, int64_t row, int64_t first, int64_t n, float scale, const float *each)
{
    const mx_quantize_paths *paths = mx_kernels_current()->quantize;
    float values[MX_QUANTIZE_BLOCK];
    int64_t at = row * q->columns + first;
    load(q, row, first, n, values);
    paths->divide(values, n, scale, each);
    if (q->stochastic)
        paths->scatter(values, n, q->code, q->seed, at);
    paths->round(values, n, q->code, (char *)q->codes + at);
}

static void write_row(const mx_quantize *q, int64_t row, float scale)
{
    for (int64_t j = 0; j < q->columns; j += MX_QUANTIZE_BLOCK)
        write_codes(q, row, j, mx_min(MX_QUANTIZE_BLOCK, q->columns - j), scale, NULL);
}

static void quantize_columns(const mx_quantize *q, int64_t first)
{
    int64_t n = mx_min(COLUMNS, q->columns - first);
    int32_t largest[COLUMNS] = {0};
    float values[COLUMNS];
    for (int64_t i = 0; !q->given && i < q->rows; i++) {
        load(q, i, first, n, values);
        mx_kernels_current()->quantize->largest_each(values, n, largest);
    }
    for (int64_t j = 0; !q->given && j < n; j++)
        q->scale[first + j] = scale_of(q, largest[j]);
    for (int64_t i = 0; i < q->rows; i++)
        write_codes(q, i, first, n, 1, q->scale + first);
}

static int32_t largest_of_all(const mx_quantize *q)
{
    int32_t largest = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < q->rows; i++)
        largest = largest_of_row(q, i, largest);
    return largest;
}

void mx_quantize_run(const mx_quantize *q)
{
    bool parallel = q->rows * q->columns >= MX_PARALLEL_FROM;
    int32_t largest = q->largest || (q->by == MX_BY_TENSOR && !q->given) ? largest_of_all(q) : 0;
    if (q->largest && largest > (int32_t)mx_bits_of_float(*q->largest))
        *q->largest = mx_float_of_bits((uint32_t)largest);
    if (q->by == MX_BY_TENSOR && !q->given)
        q->scale[0] = scale_of(q, largest);
    if (q->by == MX_BY_COLUMN) {
#pragma omp parallel for schedule(static) if (parallel)
        for (int64_t j = 0; j < q->columns; j += COLUMNS)
            quantize_columns(q, j);
        return;
    }
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < q->rows; i++) {
        if (q->by == MX_BY_ROW)
            q->scale[i] = scale_of(q, largest_of_row(q, i, 0));
        write_row(q, i, q->scale[q->by == MX_BY_ROW ? i : 0]);
    }
}
