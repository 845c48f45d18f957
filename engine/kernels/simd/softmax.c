/* Softmax of rows, and of columns, each in a lane. */
#include "core/cpu.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include "kernels/reduce.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/vmath.h"
#include "kernels/softmax.h"

#include <float.h>
#include <math.h>

/* e^d, d <= 4 or NaN; where rows are bf16, to a hundredth of its rounding. */
MX_INLINE vf row_exp(vf d, const bool bf16)
{
    if (bf16)
        return vf_exp2_fast(d * vf_set1(LOG2E));
    return vf_exp(d);
}

/* Of places i to before end. */
MX_INLINE float row_max(const void *x, int64_t i, int64_t end, const bool bf16)
{
    vf low = vf_set1(-INFINITY), largest[4] = {low, low, low, low};
    for (; i + 4 * VL <= end; i += 4 * VL) {
        vf v[4];
        row_get4(x, i, v, bf16);
        for (int u = 0; u < 4; u++)
            largest[u] = vf_max(largest[u], v[u]);
    }
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        largest[0] = vf_max(largest[0], vf_select(vm_first(n), row_load_part(x, i, n, bf16), low));
    }
    return vf_hmax(vf_max(vf_max(largest[0], largest[1]), vf_max(largest[2], largest[3])));
}

/* The exponentials of rows of up to KEPT columns are kept from the sum on, in pieces: those that the first-level cache
 * takes, each with a center of its own. */
enum { STEP = 4 * VL, PIECE = 4096, KEPT = 1 << 16 };

/* A row of which the sum is known, and from `next` on the results are not put yet: they are while the next row is
 * summed, so that arithmetic overlaps with both reading and writing. */
typedef struct pending {
    const float *kept, *centers; /* kept from `head` on */
    void *y;
    int64_t head, next, end; /* whole steps lie between head and end */
    float center, factor;
} pending;

/* For the piece that `next` is in. */
MX_INLINE vf pending_factor(const pending *p)
{
    float own = p->centers[(p->next - p->head) / PIECE];
    return vf_set1(own < p->center ? p->factor * expf(own - p->center) : p->factor);
}

MX_INLINE void put_step(pending *p, vf factor, const bool bf16, const bool stream)
{
    vf v[4];
    for (int u = 0; u < 4; u++)
        v[u] = vf_load(p->kept + p->next - p->head + u * VL) * factor;
    row_put(p->y, p->next, v, bf16, stream);
    row_put(p->y, p->next + 2 * VL, v + 2, bf16, stream);
    p->next += STEP;
}

MX_INLINE void put_rest(pending *p, const bool bf16, const bool stream)
{
    while (p->next < p->end) {
        vf factor = pending_factor(p);
        for (int64_t n = PIECE - (p->next - p->head) % PIECE; n > 0 && p->next < p->end; n -= STEP)
            put_step(p, factor, bf16, stream);
    }
}

/* A piece of a row: whole steps from `first` to before `last`, and before and behind them elements that are no whole
 * step. */
typedef struct piece {
    int64_t start, first, last, end;
} piece;

MX_INLINE vf part_sum_exp(const void *x, int64_t i, int64_t end, vf center, vf sum, const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        sum = sum + vf_select(vm_first(n), row_exp(row_load_part(x, i, n, bf16) - center, bf16), vf_zero());
    }
    return sum;
}

/* Step i, of which the exponentials are kept. What is `ahead` is asked for. */
MX_INLINE void sum_step(const void *x, int64_t i, int64_t ahead, vf center, vf sum[4], float *kept, const bool log,
                        const bool bf16)
{
    vf v[4];
    row_prefetch(x, ahead + i, STEP, bf16);
    row_get4(x, i, v, bf16);
    for (int u = 0; u < 4; u++) {
        v[u] = row_exp(v[u] - center, bf16);
        sum[u] = vf_add_exp(sum[u], v[u]);
        if (!log)
            vf_store(kept + u * VL, v[u]);
    }
}

/* The step of the row before that is put lies at the same place of `kept` as the one that is summed then. */
MX_INLINE float piece_sum_exp(const void *x, const piece *p, int64_t ahead, vf center, float *kept, pending *before,
                              const bool log, const bool bf16, const bool stream)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = p->first, both = p->first + mx_min(p->last - p->first, before->end - before->next);
    sum[0] = part_sum_exp(x, p->start, p->first, center, sum[0], bf16);
    if (!log && i < both) {
        vf factor = pending_factor(before);
        for (; i < both; i += STEP, kept += STEP) {
            put_step(before, factor, bf16, stream);
            sum_step(x, i, ahead, center, sum, kept, log, bf16);
        }
    }
    for (; i < p->last; i += STEP, kept += STEP)
        sum_step(x, i, ahead, center, sum, kept, log, bf16);
    sum[0] = part_sum_exp(x, p->last, p->end, center, sum[0], bf16);
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

MX_INLINE vf row_value(vf d, vf k, const bool log, const bool bf16)
{
    if (log)
        return d - k;
    return row_exp(d, bf16) * k;
}

MX_INLINE void part_values(const void *x, void *y, int64_t i, int64_t end, vf largest, vf k, const bool log,
                           const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        row_store_part(y, i, row_value(row_load_part(x, i, n, bf16) - largest, k, log, bf16), n, bf16);
    }
}

/* What is taken off the elements of a row before the exponentials, and the sum of these. */
typedef struct row_sum {
    float center, sum;
} row_sum;

/* Centers move up from piece to piece. The next piece is asked for, which may be in the next row. */
MX_INLINE row_sum sum_pieces(const void *x, int64_t width, int64_t head, float *centers, float *kept, pending *before,
                             const bool log, const bool bf16, const bool stream)
{
    const int64_t end = head + (width - head) / STEP * STEP, ahead = mx_min(width, PIECE);
    row_sum all = {-FLT_MAX, 0};
    bool is_empty = true; /* e^-inf alone has no sum, which row_exp() may take for a little */
    int64_t i = head;
    do {
        piece p = {i > head ? i : 0, i, mx_min(i + PIECE, end), i + PIECE < end ? i + PIECE : width};
        float largest = row_max(x, p.start, p.end, bf16);
        is_empty = is_empty && largest == -INFINITY;
        if (largest > all.center) {
            if (i > head)
                all.sum *= expf(all.center - largest);
            all.center = largest;
        }
        all.sum += piece_sum_exp(x, &p, ahead, vf_set1(all.center), kept + (i - head), before, log, bf16, stream);
        *centers++ = all.center;
        i += PIECE;
    } while (i < end);
    all.sum = is_empty ? NAN : all.sum;
    return all;
}

/* Rows whose exponentials are not kept are read twice: for a number near the largest and the sum of exponentials, and
 * for the results. */
MX_INLINE void forward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool bf16,
                            const bool stream)
{
    _Alignas(64) float kept[KEPT];
    float centers[2][KEPT / PIECE + 1];
    pending before = {.end = 0};
    const bool in_pieces = s->width <= (log ? 2 * PIECE : KEPT), keeps = in_pieces && !log;
    for (int64_t r = first; r < last; r++) {
        const void *x = row_of(s->x, r, s->width, bf16);
        void *y = row_of_out(s->y, r, s->width, bf16);
        int64_t head = stream || in_pieces ? row_head(y, s->width, bf16) : 0, i = head;
        row_sum all = {-FLT_MAX, 0};
        if (in_pieces)
            all = sum_pieces(x, s->width, head, centers[r % 2], kept, &before, log, bf16, stream);
        else
            MX_SIMD_NAME(mx_reduce).row_exps((mx_array){(void *)x, s->dtype}, s->width, &all.center, &all.sum);
        float factor = !isfinite(all.sum) ? NAN : log ? logf(all.sum) : 1.0f / all.sum, center = all.center;
        if (s->scale) {
            factor = center > FLT_MAX || isinf(all.sum) ? 0 : factor * s->scale[r];
            center = fminf(center, FLT_MAX);
        }
        vf largest = vf_set1(center), k = vf_set1(factor);
        part_values(x, y, 0, head, largest, k, log, bf16);
        if (keeps) {
            put_rest(&before, bf16, stream);
            i = head + (s->width - head) / STEP * STEP;
            before = (pending){kept, centers[r % 2], y, head, head, i, center, factor};
        }
        for (; i + STEP <= s->width; i += STEP) {
            vf v[4];
            row_get4(x, i, v, bf16);
            for (int u = 0; u < 4; u++)
                v[u] = row_value(v[u] - largest, k, log, bf16);
            row_put(y, i, v, bf16, stream);
            row_put(y, i + 2 * VL, v + 2, bf16, stream);
        }
        part_values(x, y, i, s->width, largest, k, log, bf16);
    }
    put_rest(&before, bf16, stream);
}

MX_INLINE vf gradient_term(vf sum, vf y, vf dy, const bool log)
{
    if (log)
        return sum + dy;
    return vf_fma(dy, y, sum);
}

MX_INLINE float row_gradient_sum(const void *y, const void *dy, int64_t width, const bool log, const bool bf16)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VL <= width; i += 4 * VL) {
        row_prefetch(dy, width + i, 4 * VL, bf16);
        vf a[4], d[4];
        for (int u = 0; u < 4; u += 2) {
            row_get(y, i + u * VL, a + u, bf16);
            row_get(dy, i + u * VL, d + u, bf16);
        }
        for (int u = 0; u < 4; u++)
            sum[u] = gradient_term(sum[u], a[u], d[u], log);
    }
    for (; i < width; i += VL) {
        int64_t n = lanes_left(width, i);
        sum[0] = gradient_term(sum[0], row_load_part(y, i, n, bf16), row_load_part(dy, i, n, bf16), log);
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

MX_INLINE vf gradient(vf y, vf dy, vf sum, const bool log, const bool bf16)
{
    if (!log)
        return y * (dy - sum);
    return dy - (bf16 ? vf_exp2_fast(y * vf_set1(LOG2E)) : vf_exp(y)) * sum;
}

MX_INLINE void part_gradients(const void *y, const void *dy, void *dx, int64_t i, int64_t end, vf sum, const bool log,
                              const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        vf d = gradient(row_load_part(y, i, n, bf16), row_load_part(dy, i, n, bf16), sum, log, bf16);
        row_store_part(dx, i, d, n, bf16);
    }
}

MX_INLINE void backward_rows(const mx_softmax *s, int64_t first, int64_t last, const bool log, const bool bf16,
                             const bool stream)
{
    for (int64_t r = first; r < last; r++) {
        const void *y = row_of(s->y, r, s->width, bf16), *dy = row_of(s->dy, r, s->width, bf16);
        void *dx = row_of_out(s->dx, r, s->width, bf16);
        vf sum = vf_set1(row_gradient_sum(y, dy, s->width, log, bf16));
        int64_t head = stream ? row_head(dx, s->width, bf16) : 0, i = head;
        part_gradients(y, dy, dx, 0, head, sum, log, bf16);
        for (; i + 2 * VL <= s->width; i += 2 * VL) {
            row_prefetch(y, s->width + i, 2 * VL, bf16);
            vf a[2], d[2];
            row_get(y, i, a, bf16);
            row_get(dy, i, d, bf16);
            for (int u = 0; u < 2; u++)
                d[u] = gradient(a[u], d[u], sum, log, bf16);
            row_put(dx, i, d, bf16, stream);
        }
        part_gradients(y, dy, dx, i, s->width, sum, log, bf16);
    }
}

MX_INLINE void forward_as(const mx_softmax *s, int64_t first, int64_t last, const bool bf16, const bool stream)
{
    s->log ? forward_rows(s, first, last, true, bf16, stream) : forward_rows(s, first, last, false, bf16, stream);
}

static void forward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    if (mx_is_bf16(s->dtype))
        stream ? forward_as(s, first, last, true, true) : forward_as(s, first, last, true, false);
    else
        stream ? forward_as(s, first, last, false, true) : forward_as(s, first, last, false, false);
    _mm_sfence();
}

MX_INLINE void backward_as(const mx_softmax *s, int64_t first, int64_t last, const bool bf16, const bool stream)
{
    s->log ? backward_rows(s, first, last, true, bf16, stream) : backward_rows(s, first, last, false, bf16, stream);
}

static void backward(const mx_softmax *s, int64_t first, int64_t last, bool stream)
{
    if (mx_is_bf16(s->dtype))
        stream ? backward_as(s, first, last, true, true) : backward_as(s, first, last, true, false);
    else
        stream ? backward_as(s, first, last, false, true) : backward_as(s, first, last, false, false);
    _mm_sfence();
}

/* ---- columns ---- */

MX_INLINE vf load_column(const void *x, int64_t i, int64_t left, const bool bf16)
{
    return left >= VL ? row_load(x, i, bf16) : row_load_part(x, i, left, bf16);
}

/* Asks for what is read after 2 VL columns of some rows: further on, or if several are read side by side, in `next`. */
MX_INLINE void ask_for_columns(const void *x, int64_t i, const int rows, next_rows *next, const bool bf16)
{
    const int size = bf16 ? 2 : 4;
    if (rows == 1)
        prefetch_ahead((const char *)x + i * size, 2 * VL * size);
    else
        prefetch_rows(next, 2 * rows * VL, bf16);
}

/* Some rows at once, which are streamed to memory together. Numbers of columns are arranged as row_get() has the
 * columns. */
MX_INLINE void values_of_rows(const mx_softmax *s, int64_t at, const int rows, int64_t n, const float *center,
                              const float *factor, const bool log, const bool bf16, const bool stream)
{
    next_rows next = rows_after(s->x, at, s->inner, n, bf16);
    int64_t c = 0;
    for (; c + 2 * VL <= n; c += 2 * VL) {
        if (bf16)
            prefetch_rows(&next, 2 * rows * VL, bf16);
#pragma GCC unroll 4
        for (int64_t r = 0, i = at + c; r < rows; r++, i += s->inner) {
            vf v[2];
            if (!bf16) /* 5 % faster than as above */
                row_prefetch(s->x, i + 4 * s->inner, 2 * VL, bf16);
            row_get(s->x, i, v, bf16);
            for (int u = 0; u < 2; u++)
                v[u] = row_value(v[u] - vf_load(center + c + u * VL), vf_load(factor + c + u * VL), log, bf16);
            row_put(s->y, i, v, bf16, stream);
        }
    }
    for (; c < n; c += VL) {
        int64_t left = lanes_left(n, c);
        for (int64_t r = 0, i = at + c; r < rows; r++, i += s->inner) {
            vf v = row_value(load_column(s->x, i, left, bf16) - vf_load_part(center + c, left),
                             vf_load_part(factor + c, left), log, bf16);
            row_store_part(s->y, i, v, left, bf16);
        }
    }
}

MX_INLINE void forward_columns_as(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                                  const bool log, const bool bf16, const bool stream)
{
    int64_t i = 0;
    for (; i + 4 <= s->width; i += 4)
        values_of_rows(s, at + i * s->inner, 4, n, center, factor, log, bf16, stream);
    for (; i < s->width; i++)
        values_of_rows(s, at + i * s->inner, 1, n, center, factor, log, bf16, stream);
}

MX_INLINE void terms_of_rows(const mx_softmax *s, int64_t at, const int rows, int64_t n, float *sum, const bool asks,
                             const bool log, const bool bf16)
{
    next_rows next_y = rows_after(s->y, at, s->inner, n, bf16), next_dy = rows_after(s->dy, at, s->inner, n, bf16);
    int64_t c = 0;
    for (; c + 2 * VL <= n; c += 2 * VL) {
        vf all[2] = {vf_load(sum + c), vf_load(sum + c + VL)};
        if (asks) {
            ask_for_columns(s->y, at + c, rows, &next_y, bf16);
            ask_for_columns(s->dy, at + c, rows, &next_dy, bf16);
        }
#pragma GCC unroll 4
        for (int64_t r = 0, i = at + c; r < rows; r++, i += s->inner) {
            vf y[2], dy[2];
            row_get(s->y, i, y, bf16);
            row_get(s->dy, i, dy, bf16);
            for (int u = 0; u < 2; u++)
                all[u] = gradient_term(all[u], y[u], dy[u], log);
        }
        vf_store(sum + c, all[0]);
        vf_store(sum + c + VL, all[1]);
    }
    for (; c < n; c += VL) {
        int64_t left = lanes_left(n, c);
        vf all = vf_load_part(sum + c, left);
        for (int64_t r = 0, i = at + c; r < rows; r++, i += s->inner)
            all = gradient_term(all, load_column(s->y, i, left, bf16), load_column(s->dy, i, left, bf16), log);
        vf_store_part(sum + c, all, left);
    }
}

MX_INLINE void column_terms_as(const mx_softmax *s, int64_t at, int64_t height, int64_t n, float *sum, const bool log,
                               const bool bf16)
{
    const bool asks = !mx_cpu_reads_ahead();
    int64_t i = 0;
    for (; !in_order(s->inner, n) && i + 4 <= height; i += 4)
        terms_of_rows(s, at + i * s->inner, 4, n, sum, true, log, bf16);
    for (; i < height; i++)
        terms_of_rows(s, at + i * s->inner, 1, n, sum, asks, log, bf16);
}

MX_INLINE void gradients_of_rows(const mx_softmax *s, int64_t at, const int rows, int64_t n, const float *sum,
                                 const bool asks, const bool log, const bool bf16, const bool stream)
{
    next_rows next_y = rows_after(s->y, at, s->inner, n, bf16), next_dy = rows_after(s->dy, at, s->inner, n, bf16);
    int64_t c = 0;
    for (; c + 2 * VL <= n; c += 2 * VL) {
        if (asks) {
            ask_for_columns(s->y, at + c, rows, &next_y, bf16);
            ask_for_columns(s->dy, at + c, rows, &next_dy, bf16);
        }
#pragma GCC unroll 4
        for (int64_t r = 0, i = at + c; r < rows; r++, i += s->inner) {
            vf y[2], d[2];
            row_get(s->y, i, y, bf16);
            row_get(s->dy, i, d, bf16);
            for (int u = 0; u < 2; u++)
                d[u] = gradient(y[u], d[u], vf_load(sum + c + u * VL), log, bf16);
            row_put(s->dx, i, d, bf16, stream);
        }
    }
    for (; c < n; c += VL) {
        int64_t left = lanes_left(n, c);
        for (int64_t r = 0, i = at + c; r < rows; r++, i += s->inner) {
            vf d = gradient(load_column(s->y, i, left, bf16), load_column(s->dy, i, left, bf16),
                            vf_load_part(sum + c, left), log, bf16);
            row_store_part(s->dx, i, d, left, bf16);
        }
    }
}

MX_INLINE void backward_columns_as(const mx_softmax *s, int64_t at, int64_t n, const float *sum, const bool log,
                                   const bool bf16, const bool stream)
{
    const bool asks = !mx_cpu_reads_ahead();
    int64_t i = 0;
    for (; !in_order(s->inner, n) && i + 4 <= s->width; i += 4)
        gradients_of_rows(s, at + i * s->inner, 4, n, sum, true, log, bf16, stream);
    for (; i < s->width; i++)
        gradients_of_rows(s, at + i * s->inner, 1, n, sum, asks, log, bf16, stream);
}

/* Calls `function` with log and dtype as constants. */
#define FOR_EACH_KIND(function, s, ...)                                                                                \
    if (mx_is_bf16((s)->dtype))                                                                                        \
        (s)->log ? function(s, __VA_ARGS__, true, true) : function(s, __VA_ARGS__, false, true);                       \
    else                                                                                                               \
        (s)->log ? function(s, __VA_ARGS__, true, false) : function(s, __VA_ARGS__, false, false);

MX_INLINE void forward_columns_of(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                                  bool stream, const bool log, const bool bf16)
{
    float arranged[2][MX_MOST_COLUMNS];
    center = row_arranged(center, arranged[0], n, bf16);
    factor = row_arranged(factor, arranged[1], n, bf16);
    stream ? forward_columns_as(s, at, n, center, factor, log, bf16, true)
           : forward_columns_as(s, at, n, center, factor, log, bf16, false);
}

static void forward_columns(const mx_softmax *s, int64_t at, int64_t n, const float *center, const float *factor,
                            bool stream)
{
    FOR_EACH_KIND(forward_columns_of, s, at, n, center, factor, stream)
    _mm_sfence();
}

static void column_terms(const mx_softmax *s, int64_t at, int64_t height, int64_t n,
                         float *sum){FOR_EACH_KIND(column_terms_as, s, at, height, n, sum)}

MX_INLINE void backward_columns_of(const mx_softmax *s, int64_t at, int64_t n, const float *sum, bool stream,
                                   const bool log, const bool bf16)
{
    stream ? backward_columns_as(s, at, n, sum, log, bf16, true) : backward_columns_as(s, at, n, sum, log, bf16, false);
}

static void backward_columns(const mx_softmax *s, int64_t at, int64_t n, const float *sum, bool stream)
{
    FOR_EACH_KIND(backward_columns_of, s, at, n, sum, stream)
    _mm_sfence();
}

const mx_softmax_paths MX_SIMD_NAME(mx_softmax) = {forward, backward, forward_columns, backward_columns, column_terms};
