#include "kernels/bag.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/embedding.h"
#include "kernels/inline.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Rows are asked for AHEAD_BYTES before they are read, and at most MOST_AHEAD rows, which leaves room for others in the
 * first-level cache. With each PIECE of columns a part of a row is asked for: many lines at once would take all the
 * places for lines on their way. */
enum { AHEAD_BYTES = 12288, MOST_AHEAD = 32, MOST_BYTES = 4096, PIECE = 512 };

static double weight_of(const mx_bag *b, int64_t token)
{
    return b->weights.data ? mx_get_number(b->weights.data, token, b->weights.dtype) : 1;
}

static const void *row_of(const mx_bag *b, int64_t token)
{
    return (const char *)b->table.data + b->ids[token] * b->width * (int64_t)mx_dtype_bytes(b->table.dtype);
}

static void sum_f64(const mx_bag *b, int64_t first, int64_t end, double *sum)
{
    memset(sum, 0, (size_t)b->width * sizeof *sum);
    for (int64_t t = first; t < end; t++) {
        const double *row = row_of(b, t);
        for (int64_t i = 0; i < b->width; i++)
            sum[i] += weight_of(b, t) * row[i];
    }
    for (int64_t i = 0; b->is_mean && i < b->width; i++)
        sum[i] /= (double)mx_max(end - first, 1);
}

/* Asks for columns [first, first + n) of the row of a token that comes later, which may belong to another bag. Inlined,
 * as GCC takes a function that only prefetches for one without effects. */
MX_INLINE void prefetch_row(const mx_bag *b, int64_t token, int64_t first, int64_t n)
{
    const int64_t bytes = (int64_t)mx_dtype_bytes(b->table.dtype);
    const char *row = token < b->tokens ? row_of(b, token) : NULL;
    for (int64_t i = first * bytes; row && i < mx_min(MOST_BYTES, (first + n) * bytes); i += 64)
        __builtin_prefetch(row + i);
}

static void sum_rows(const mx_bag *b, int64_t first, int64_t end, float *sum)
{
    const mx_row_paths *rows = mx_kernels_current()->rows;
    const int64_t bytes = (int64_t)mx_dtype_bytes(b->table.dtype);
    const int64_t ahead = mx_min(MOST_AHEAD, 1 + AHEAD_BYTES / mx_max(1, b->width * bytes));
    float share = b->is_mean ? 1.0f / (float)mx_max(end - first, 1) : 1;
    memset(sum, 0, (size_t)b->width * sizeof *sum);
    for (int64_t t = first; t < end; t++) {
        const float weight = share * (float)weight_of(b, t);
        for (int64_t j = 0; j < b->width; j += PIECE) {
            const int64_t n = mx_min(PIECE, b->width - j);
            prefetch_row(b, t + ahead, j, n);
            rows->add(sum + j, MX_F32, (const char *)row_of(b, t) + j * bytes, b->table.dtype, weight, n);
        }
    }
}

/* best[i], the maximum, and row[i], whose it is; line: scratch of a row. */
static void maximum_of_rows(const mx_bag *b, int64_t first, int64_t end, float *best, float *line, int32_t *row)
{
    const mx_row_paths *rows = mx_kernels_current()->rows;
    for (int64_t t = first; t < end; t++) {
        rows->convert(t == first ? best : line, MX_F32, row_of(b, t), b->table.dtype, 1, b->width);
        for (int64_t i = 0; i < b->width; i++) {
            bool greater = t == first || line[i] > best[i] || (isnan(line[i]) && !isnan(best[i]));
            best[i] = greater && t > first ? line[i] : best[i];
            row[i] = greater ? b->ids[t] : row[i];
        }
    }
}

static void maximum_of_f64(const mx_bag *b, int64_t first, int64_t end, double *best, int32_t *row)
{
    for (int64_t t = first; t < end; t++) {
        const double *line = row_of(b, t);
        for (int64_t i = 0; i < b->width; i++)
            if (t == first || line[i] > best[i] || (isnan(line[i]) && !isnan(best[i]))) {
                best[i] = line[i];
                row[i] = b->ids[t];
            }
    }
}

/* scratch: three rows of f32. */
static void run_bag(const mx_bag *b, int64_t bag, float *scratch, int64_t stride)
{
    int64_t first = mx_bag_first(b, bag), end = mx_bag_end(b, bag), to = bag * b->width;
    bool f64 = b->out.dtype == MX_F64, f32 = b->out.dtype == MX_F32;
    void *out = (char *)b->out.data + to * (int64_t)mx_dtype_bytes(b->out.dtype);
    int32_t *row = b->row ? b->row + to : (int32_t *)(scratch + 2 * stride);
    float *own = f32 ? out : scratch;
    if (first == end)
        memset(out, 0, (size_t)b->width * mx_dtype_bytes(b->out.dtype));
    else if (f64 && b->is_max)
        maximum_of_f64(b, first, end, out, row);
    else if (f64)
        sum_f64(b, first, end, out);
    else if (b->is_max)
        maximum_of_rows(b, first, end, own, scratch + stride, row);
    else
        sum_rows(b, first, end, own);
    if (first < end && !f32 && !f64)
        mx_kernels_current()->rows->convert(out, b->out.dtype, own, MX_F32, 1, b->width);
    if (first == end && b->row)
        memset(row, 0, (size_t)b->width * sizeof *row);
}

mx_status mx_bag_run(const mx_bag *b)
{
    int64_t stride = mx_round_up(b->width, 16), bytes = 3 * stride * omp_get_max_threads() * (int64_t)sizeof(float);
    float *scratch;
    MX_TRY(mx_pool_alloc(bytes, (void **)&scratch));
#pragma omp parallel for schedule(static) if (b->tokens * b->width > MX_PARALLEL_FROM)
    for (int64_t bag = 0; bag < b->bags; bag++)
        run_bag(b, bag, scratch + omp_get_thread_num() * 3 * stride, stride);
    mx_pool_free(scratch, bytes);
    return MX_OK;
}
