/* Quantizing: threads have parts of the rows, or where columns have scales, strips of columns. The largest magnitude
 * does not depend on the order, so neither do the bits. Blocks have no factors and no given scales. */
#include "kernels/quantize.h"

#include "core/float8.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"

#include <omp.h>
#include <string.h>

enum {
    COLUMNS = 4096, /* at most, that are quantized at once by column or by blocks of columns */
    CHUNK = 1024    /* neighbours in a row whose values or scales are in scratch, a multiple of MX_BLOCK */
};

/* Rows [row, row + rows) and columns [first, first + n) with their factors. */
static mx_quantize_part part_of(const mx_quantize *q, int64_t row, int64_t rows, int64_t first, int64_t n)
{
    return (mx_quantize_part){.x = (const char *)q->x + (row * q->columns + first) * (int64_t)mx_dtype_bytes(q->dtype),
                              .dtype = q->dtype,
                              .rounded = q->rounded,
                              .rows = rows,
                              .n = n,
                              .stride = q->columns,
                              .row = q->row_factor ? q->row_factor + row : NULL,
                              .column = q->column_factor ? q->column_factor + first : NULL,
                              .inverse = 1};
}

/* Rounding keeps the order of magnitudes. So where no factors follow, the largest one alone is rounded. */
static bool rounds_largest(const mx_quantize *q) { return q->rounded && !q->row_factor && !q->column_factor; }

static mx_quantize_part part_for_largest(const mx_quantize *q, int64_t row, int64_t rows, int64_t first, int64_t n)
{
    mx_quantize_part p = part_of(q, row, rows, first, n);
    p.rounded = p.rounded && !rounds_largest(q);
    return p;
}

static int32_t rounded(const mx_quantize *q, int32_t largest)
{
    float x = mx_float_of_bits((uint32_t)largest);
    return rounds_largest(q) ? (int32_t)mx_bits_of_float(mx_from_bf16(mx_to_bf16(x))) : largest;
}

static int32_t largest_of_row(const mx_quantize *q, int64_t row)
{
    mx_quantize_part p = part_for_largest(q, row, 1, 0, q->columns);
    return rounded(q, mx_kernels_current()->quantize->largest(&p));
}

static float scale_of(const mx_quantize *q, int32_t largest)
{
    float scale = mx_float_of_bits((uint32_t)largest) * (1.0f / mx_dtypes[q->code].bound);
    return scale < 0x1p-63f ? 1.0f : scale;
}

/* One row of it in several steps: where values are moved before they are rounded, or have two factors for each column.
 */
static void write_slowly(const mx_quantize *q, int64_t row, int64_t first, int64_t n, float inverse, const float *each)
{
    const mx_quantize_paths *paths = mx_kernels_current()->quantize;
    float values[CHUNK];
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t count = mx_min(CHUNK, n - i), start = row * q->columns + first + i;
        mx_quantize_part p = part_of(q, row, 1, first + i, count);
        paths->multiply(&p, values);
        p = (mx_quantize_part){
            .x = values, .rows = 1, .n = count, .column = each ? each + i : NULL, .inverse = inverse};
        paths->multiply(&p, values);
        if (q->stochastic)
            paths->scatter(values, count, q->code, q->seed, start);
        p = (mx_quantize_part){.x = values, .rows = 1, .n = count, .inverse = 1};
        paths->round(&p, q->code, (uint8_t *)q->codes + start);
    }
}

/* Rows and columns of a part, times 1 / scale: `inverse` for all, or with 1 as `inverse` those of `each` column. */
static void write_codes(const mx_quantize *q, int64_t row, int64_t rows, int64_t first, int64_t n, float inverse,
                        const float *each)
{
    mx_quantize_part p = part_of(q, row, rows, first, n);
    if (q->stochastic || (p.column && each)) {
        for (int64_t i = row; i < row + rows; i++)
            write_slowly(q, i, first, n, inverse, each);
        return;
    }
    p.column = each ? each : p.column;
    p.inverse = inverse;
    mx_kernels_current()->quantize->round(&p, q->code, (uint8_t *)q->codes + row * q->columns + first);
}

/* The scale of a block: the least power of two that is not below largest / bound. At least 2^-120: bf16 then holds the
 * smallest code times it. */
static float scale_of_block(const mx_quantize *q, int32_t largest)
{
    enum { MANTISSA = 0x7fffff, EXPONENT = 0x7f800000 };
    float exact = mx_float_of_bits((uint32_t)largest) * (1.0f / mx_dtypes[q->code].bound);
    float power = mx_float_of_bits((mx_bits_of_float(exact) + MANTISSA) & EXPONENT);
    return largest >= EXPONENT ? exact : power < 0x1p-120f ? 0x1p-120f : power;
}

/* Rows of n columns, each of which has a scale: scale[0] is that of the first. */
static void quantize_columns(const mx_quantize *q, int64_t row, int64_t rows, int64_t first, int64_t n, float *scale)
{
    int32_t largest[COLUMNS];
    float inverse[COLUMNS];
    memset(largest, 0, (size_t)n * sizeof *largest);
    mx_quantize_part p = part_for_largest(q, row, rows, first, n);
    if (!q->given)
        mx_kernels_current()->quantize->largest_each(&p, largest);
    for (int64_t j = 0; j < n; j++) {
        int32_t most = rounded(q, largest[j]);
        if (!q->given)
            scale[j] = q->by == MX_BY_COLUMN_BLOCK ? scale_of_block(q, most) : scale_of(q, most);
        inverse[j] = 1.0f / scale[j];
    }
    write_codes(q, row, rows, first, n, 1, inverse);
}

/* Columns that threads quantize together: their largest magnitudes and 1 / scale. */
typedef struct columns {
    int64_t first, n;
    int32_t largest[COLUMNS];
    float inverse[COLUMNS];
} columns;

static void find_scales(const mx_quantize *q, columns *c)
{
    for (int64_t j = 0; j < c->n; j++) {
        if (!q->given)
            q->scale[c->first + j] = scale_of(q, rounded(q, c->largest[j]));
        c->inverse[j] = 1.0f / q->scale[c->first + j];
    }
}

/* Rows [begin, end), one thread's part. */
static void quantize_rows_of(const mx_quantize *q, int64_t begin, int64_t end, columns *c)
{
    if (!q->given) {
        int32_t largest[COLUMNS] = {0};
        mx_quantize_part p = part_for_largest(q, begin, end - begin, c->first, c->n);
        mx_kernels_current()->quantize->largest_each(&p, largest);
#pragma omp critical(mx_quantize_columns)
        for (int64_t j = 0; j < c->n; j++)
            c->largest[j] = largest[j] > c->largest[j] ? largest[j] : c->largest[j];
    }
#pragma omp barrier
#pragma omp single
    find_scales(q, c);
    write_codes(q, begin, end - begin, c->first, c->n, 1, c->inverse);
}

/* Columns too long for the second-level cache are read twice from memory, as they are stored. */
static void quantize_long_columns(const mx_quantize *q)
{
    for (int64_t first = 0; first < q->columns; first += COLUMNS) {
        columns c = {.first = first, .n = mx_min(COLUMNS, q->columns - first)};
#pragma omp parallel if (q->rows * c.n >= MX_PARALLEL_FROM)
        {
            int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
            quantize_rows_of(q, q->rows * thread / threads, q->rows * (thread + 1) / threads, &c);
        }
    }
}

static void quantize_by_column(const mx_quantize *q)
{
    enum { STRIP = MX_QUANTIZE_STRIP };
    if (q->rows * STRIP * (int64_t)mx_dtype_bytes(q->dtype) > mx_cpu_l2_bytes() * 3 / 4) {
        quantize_long_columns(q);
        return;
    }
#pragma omp parallel for schedule(static) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t j = 0; j < q->columns; j += STRIP)
        quantize_columns(q, 0, q->rows, j, mx_min(STRIP, q->columns - j), q->scale + j);
}

static void quantize_by_column_block(const mx_quantize *q)
{
#pragma omp parallel for schedule(static) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t row = 0; row < q->rows; row += MX_BLOCK)
        for (int64_t j = 0; j < q->columns; j += COLUMNS)
            quantize_columns(q, row, MX_BLOCK, j, mx_min(COLUMNS, q->columns - j),
                             q->scale + row / MX_BLOCK * q->columns + j);
}

static void quantize_blocks_of_row(const mx_quantize *q, int64_t row)
{
    int32_t largest[CHUNK / MX_BLOCK];
    float scales[CHUNK / MX_BLOCK], inverse[CHUNK];
    for (int64_t first = 0; first < q->columns; first += CHUNK) {
        int64_t n = mx_min(CHUNK, q->columns - first);
        mx_quantize_part p = part_for_largest(q, row, 1, first, n);
        mx_kernels_current()->quantize->largest_blocks(&p, largest);
        for (int64_t b = 0; b < n / MX_BLOCK; b++)
            scales[b] = scale_of_block(q, rounded(q, largest[b]));
        memcpy(q->scale + (row * q->columns + first) / MX_BLOCK, scales, (size_t)(n / MX_BLOCK) * sizeof *scales);
        for (int64_t b = 0; b < n / MX_BLOCK; b++) {
            float by = 1.0f / scales[b];
            for (int64_t i = 0; i < MX_BLOCK; i++)
                inverse[b * MX_BLOCK + i] = by;
        }
        write_codes(q, row, 1, first, n, 1, inverse);
    }
}

static int32_t largest_of_all(const mx_quantize *q)
{
    int32_t largest = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < q->rows; i++) {
        int32_t own = largest_of_row(q, i);
        largest = own > largest ? own : largest;
    }
    return largest;
}

/* By row, by blocks of a row, or with the scale of the tensor. */
static void quantize_row(const mx_quantize *q, int64_t row)
{
    if (q->by == MX_BY_ROW_BLOCK) {
        quantize_blocks_of_row(q, row);
        return;
    }
    if (q->by == MX_BY_ROW)
        q->scale[row] = scale_of(q, largest_of_row(q, row));
    write_codes(q, row, 1, 0, q->columns, 1.0f / q->scale[q->by == MX_BY_ROW ? row : 0], NULL);
}

void mx_quantize_run(const mx_quantize *q)
{
    int32_t largest = q->largest || (q->by == MX_BY_TENSOR && !q->given) ? largest_of_all(q) : 0;
    if (q->largest && largest > (int32_t)mx_bits_of_float(*q->largest))
        *q->largest = mx_float_of_bits((uint32_t)largest);
    if (q->by == MX_BY_TENSOR && !q->given)
        q->scale[0] = scale_of(q, largest);
    if (q->by == MX_BY_COLUMN) {
        quantize_by_column(q);
        return;
    }
    if (q->by == MX_BY_COLUMN_BLOCK) {
        quantize_by_column_block(q);
        return;
    }
#pragma omp parallel for schedule(static) if (q->rows * q->columns >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < q->rows; i++)
        quantize_row(q, i);
}
