/* Elements put by index: the last, the extremes, sums and means. */
#include "kernels/index_internal.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/apart.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/inline.h"
#include "kernels/scatter_loops.h"
#include "kernels/shape.h"

#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { ROOM = 16384, BLOCK = 256 }; /* bytes of a line, and positions, that are in the first-level cache for a while */

static bool is_within(const mx_index_line *l) { return mx_kernels_current()->moves->within(l->index, l->n, l->limit); }

/* ---- the last element ---- */

static bool put_line(const mx_index_job *j, const mx_index_line *l)
{
    if (!is_within(l))
        return false;
    if (l->first && l->from != l->x)
        mx_kernels_current()->elementwise->copy(l->from, l->x, l->limit * j->bytes, false);
    if (j->bytes == 8)
        scatter_as(l->x, l->index, l->y, l->n, 8);
    else if (j->bytes == 4)
        scatter_as(l->x, l->index, l->y, l->n, 4);
    else if (j->bytes == 2)
        scatter_as(l->x, l->index, l->y, l->n, 2);
    else
        scatter_as(l->x, l->index, l->y, l->n, 1);
    return true;
}

/* ---- extremes ---- */

/* Values become keys, of which the greatest is chosen. */
static mx_key_order order_of(mx_dtype dtype, bool greatest)
{
    const int bits = 8 * (int)mx_dtype_bytes(dtype);
    const uint64_t sign = 1ULL << (bits - 1), positive = sign - 1;
    const mx_dtype_traits *traits = &mx_dtypes[dtype];
    if (traits->is_float)
        return (mx_key_order){.flip = greatest ? 0 : sign,
                              .most = ((1ULL << traits->exponent_bits) - 1) << traits->mantissa_bits,
                              .below_0 = positive};
    return (mx_key_order){.flip = (traits->lowest == 0 ? sign : 0) ^ (greatest ? 0 : sign | positive),
                          .most = positive};
}

static void put_least(const mx_index_job *j, const mx_index_line *l)
{
    const uint64_t least = ~j->order.most;
    for (int64_t k = 0; k < l->n; k++)
        memcpy(l->x + l->index[k] * j->bytes, &least, (size_t)j->bytes);
}

static bool put_extremes(const mx_index_job *j, const mx_index_line *l)
{
    const mx_move_paths *paths = mx_kernels_current()->moves;
    const int64_t line = l->from && l->limit <= 64 * l->n ? l->limit * j->bytes : 0; /* the next one is asked for */
    const char *next = line > 0 ? l->from + line : l->y;
    _Alignas(64) char room[8 * BLOCK];
    if (l->fills && !is_within(l))
        return false;
    if (l->first)
        paths->keys(l->x, l->from, l->limit, &j->order, (size_t)j->bytes);
    if (l->fills)
        put_least(j, l);
    for (int64_t k = 0; k < (l->puts ? l->n : 0); k += BLOCK) {
        const int64_t n = mx_min(BLOCK, l->n - k), before = line * k / l->n, after = line * (k + n) / l->n;
        const char *y = l->y + k * j->bytes;
        const int32_t *index = l->index + k;
        if (!paths->within(index, n, l->limit))
            return false;
        const mx_index_ahead ahead = mx_index_ahead_of(index, y, j->bytes, n, next + before, after - before);
        paths->keys(room, y, n, &j->order, (size_t)j->bytes);
        if (j->bytes == 8)
            put_greatest_64((int64_t *)l->x, index, (const int64_t *)room, n, ahead);
        else if (j->bytes == 4)
            put_greatest_32((int32_t *)l->x, index, (const int32_t *)room, n, ahead);
        else if (j->bytes == 2)
            put_greatest_16((int16_t *)l->x, index, (const int16_t *)room, n, ahead);
        else
            put_greatest_8((int8_t *)l->x, index, (const int8_t *)room, n, ahead);
    }
    if (l->last)
        paths->values(l->x, l->limit, &j->order, (size_t)j->bytes);
    return true;
}

/* ---- sums and means ---- */

/* Adds the elements of y to sums, or with `pairs` to pairs of a sum and a count. false: the index is not as promised,
 * and the sums are undefined. */
static bool add_line(const mx_index_job *j, const mx_index_line *l, const bool pairs)
{
    const mx_move_paths *paths = mx_kernels_current()->moves;
    const bool bf16 = j->y_dtype == MX_BF16, floats = bf16 || j->y_dtype == MX_F32;
    const int64_t line = l->from ? l->limit * j->bytes : 0;
    const char *then = l->from ? l->from : l->y;
    for (int64_t k = 0, n; k < l->n; k += n) {
        n = mx_min(BLOCK, l->n - k);
        if (!paths->within(l->index + k, n, l->limit))
            return false;
        if (floats) {
            const int64_t before = line * k / l->n, after = line * (k + n) / l->n;
            paths->add(l->sums, l->index + k, l->y + k * j->y_bytes, n, bf16, pairs, then + before, after - before);
            continue;
        }
        for (int64_t i = k; i < k + n; i++) {
            double *sum = l->sums + l->index[i] * (1 + (int)pairs);
            *sum += mx_get_number(l->y, i, j->y_dtype);
            if (pairs)
                sum[1]++;
        }
    }
    return true;
}

/* The line of x from a line of sums or pairs; these become 0. */
static void put_sums(const mx_index_job *j, const mx_index_line *l, const bool pairs)
{
    const mx_move_paths *paths = mx_kernels_current()->moves;
    if (pairs)
        paths->put_means(l->x, l->from, l->sums, l->limit, j->dtype, j->afresh, l->stream);
    else
        paths->add_sums(l->x, l->from, l->sums, l->limit, j->dtype == MX_BF16, l->stream);
}

static bool add_or_not(const mx_index_job *j, const mx_index_line *l)
{
    if (!add_line(j, l, false))
        return false;
    if (!l->last)
        return true;
    if (j->dtype == MX_F32 || j->dtype == MX_BF16) {
        put_sums(j, l, false);
        return true;
    }
    for (int64_t k = 0; k < l->limit; k++) {
        double before = l->from ? mx_get_number(l->from, k, j->dtype) : 0;
        mx_set_number(l->x, k, before + l->sums[k], j->dtype);
        l->sums[k] = 0;
    }
    return true;
}

static bool put_mean(const mx_index_job *j, const mx_index_line *l)
{
    if (!add_line(j, l, true))
        return false;
    if (l->last)
        put_sums(j, l, true);
    return true;
}

/* ---- all lines ---- */

/* Short lines are put together in the first-level cache. */
static mx_status run_lines(const mx_index_job *j, bool *good)
{
    const int64_t n = j->n, length = j->limit * j->bytes;
    const int64_t sums = mx_round_up(j->sums * j->limit, 8) + MX_APART / (int64_t)sizeof(double);
    const int64_t threads = j->large ? omp_get_max_threads() : 1;
    const bool by_room = j->sums == 0 && j->stream && length <= ROOM;
    double *all;
    int bad = 0;
    MX_TRY(mx_pool_alloc(threads * sums * (int64_t)sizeof *all, (void **)&all));
    memset(all, 0, (size_t)(threads * sums) * sizeof *all);
#pragma omp parallel if (j->large)
    {
#pragma omp for schedule(static) reduction(| : bad)
        for (int64_t o = 0; o < j->outer; o++) {
            _Alignas(64) char room[ROOM];
            const int64_t at = mx_index_outer_offset(j, o) * j->bytes;
            const mx_index_line l = {.from = j->start ? j->start + at : NULL,
                                     .x = by_room ? room : j->x + at,
                                     .index = j->g->index + o * n,
                                     .y = j->y + o * n * j->y_bytes,
                                     .n = n,
                                     .limit = j->limit,
                                     .sums = all + omp_get_thread_num() * sums,
                                     .first = true,
                                     .last = true,
                                     .fills = j->afresh,
                                     .puts = true,
                                     .stream = j->stream};
            bool done = j->line(j, &l);
            bad |= !done;
            if (by_room && done)
                mx_kernels_current()->elementwise->copy(room, j->x + at, length, true);
        }
        _mm_sfence();
    }
    *good = !bad;
    mx_pool_free(all, threads * sums * (int64_t)sizeof *all);
    return MX_OK;
}

/* Few elements, each put as a line of one. Threads share the columns. */
static bool put_apart(const mx_index_job *j)
{
    const int32_t first[] = {0};
    if (!mx_kernels_current()->moves->within(j->g->index, j->outer * j->n * j->inner, j->limit))
        return false;
    for (int pass = j->afresh ? 0 : 1; pass < 2; pass++)
#pragma omp parallel for collapse(2) schedule(static) if (j->large)
        for (int64_t o = 0; o < j->outer; o++)
            for (int64_t i = 0; i < j->inner; i++) {
                char *line = j->x + (mx_index_outer_offset(j, o) + mx_index_inner_offset(j, i)) * j->bytes;
                for (int64_t k = 0; k < j->n; k++) {
                    const int64_t at = (o * j->n + k) * j->inner + i;
                    char *x = line + j->g->index[at] * j->step * j->bytes;
                    j->line(j, &(mx_index_line){.from = x,
                                                .x = x,
                                                .index = first,
                                                .y = j->y + at * j->bytes,
                                                .n = 1,
                                                .limit = 1,
                                                .first = true,
                                                .last = true,
                                                .fills = pass == 0,
                                                .puts = pass == 1});
                }
            }
    return true;
}

/* x becomes `start`; NULL: zeros. */
static void begin_with(mx_index_job *j, const void *start, int64_t bytes)
{
    if (start && start != j->x)
        mx_copy_runs(j->x, 0, start, 0, 1, bytes);
    else if (!start)
        mx_zero_runs(j->x, 0, 1, bytes);
    j->start = j->x;
}

/* Puts elements to x, which is `start` so far; NULL: zeros. Few elements of long lines are put apart. */
static mx_status put(mx_index_job *j, const void *start, bool *good)
{
    enum { SEVERAL = 4 };
    int64_t all = j->bytes, count = j->outer * j->n * j->inner;
    for (int d = 0; d < j->g->n_dims; d++)
        all *= j->g->x_size[d];
    *good = all > 0 || count == 0;
    if (all == 0)
        return MX_OK;
    j->start = start;
    if (count == 0 || j->outer * j->limit * j->inner * j->bytes != all) /* the index does not reach all lines */
        begin_with(j, start, all);
    if (count == 0)
        return MX_OK;
    if (mx_index_has_lines(j))
        return run_lines(j, good);
    if (j->sums > 0 || j->limit <= SEVERAL * j->n)
        return mx_index_run_strips(j, good);
    if (j->start != j->x)
        begin_with(j, start, all);
    *good = put_apart(j);
    return MX_OK;
}

mx_status mx_scatter_run(const mx_gather *g, void *to, const void *x, const void *y, size_t element_bytes, bool *good)
{
    mx_index_job j = mx_index_job_of(g, to, (void *)y, element_bytes);
    j.line = put_line;
    return put(&j, x ? x : to, good);
}

mx_status mx_scatter_extreme_run(const mx_gather *g, mx_scatter_kind kind, bool with_x, mx_array to, mx_array x,
                                 mx_array y, bool *good)
{
    mx_index_job j = mx_index_job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    j.line = put_extremes;
    j.order = order_of(to.dtype, kind == MX_SCATTER_MAX);
    j.afresh = !with_x;
    return put(&j, x.data, good);
}

static mx_status run_sums(mx_index_job j, mx_array x, mx_array y, bool *good)
{
    j.dtype = x.dtype;
    j.y_dtype = y.dtype;
    j.y_bytes = (int64_t)mx_dtype_bytes(y.dtype);
    return put(&j, x.data, good);
}

mx_status mx_scatter_add_run(const mx_gather *g, mx_array to, mx_array x, mx_array y, bool *good)
{
    mx_index_job j = mx_index_job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    j.line = add_or_not;
    j.sums = 1;
    return run_sums(j, x, y, good);
}

mx_status mx_scatter_mean_run(const mx_gather *g, bool with_x, mx_array to, mx_array x, mx_array y, bool *good)
{
    mx_index_job j = mx_index_job_of(g, to.data, y.data, mx_dtype_bytes(to.dtype));
    j.line = put_mean;
    j.sums = 2; /* a sum and a count */
    j.afresh = !with_x;
    return run_sums(j, x, y, good);
}
