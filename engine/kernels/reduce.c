#include "kernels/reduce.h"

#include "core/cpu.h"
#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/elementwise.h"
#include "kernels/inline.h"
#include "kernels/sort.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    WIDTH = 4096, /* columns summed at a time: their f32 sums stay in the first-level cache */
    JOINED = 512, /* columns whose blocks are joined at a time */
    INTS = 1024,  /* columns of integers at a time */
    PIECE = MX_CHUNK,
};

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

static double identity(mx_fold fold) { return fold == MX_FOLD_MAX ? -INFINITY : fold == MX_FOLD_MIN ? INFINITY : 0.0; }

static double join(mx_fold fold, double a, double b)
{
    if (fold == MX_FOLD_MAX)
        return isnan(a) || a > b ? a : b;
    if (fold == MX_FOLD_MIN)
        return isnan(a) || a < b ? a : b;
    return a + b;
}

/* What is made of a fold: `scale` times it, or its root. */
typedef struct result {
    mx_array y;
    double scale;
    bool root;
} result;

static void put(const result *r, int64_t i, double all)
{
    mx_set_number(r->y.data, i, r->root ? sqrt(all) : r->scale * all, r->y.dtype);
}

/* The same for n neighbours. */
static void put_all(const result *r, int64_t i, const float *all, int64_t n)
{
    if (r->scale == 1 && !r->root && r->y.dtype == MX_F32)
        memcpy((float *)r->y.data + i, all, (size_t)n * sizeof *all);
    else if (r->scale == 1 && !r->root && mx_is_bf16(r->y.dtype))
        mx_kernels_current()->elementwise->to_bf16(all, (mx_bf16 *)r->y.data + i, n, false);
    else
        for (int64_t j = 0; j < n; j++)
            put(r, i + j, all[j]);
}

/* ---- rows: inner is 1 ---- */

/* Each row in pieces of PIECE; partial (outer, pieces). */
static mx_status fold_rows(mx_fold fold, mx_array x, mx_extent e, const result *r)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    int64_t pieces = (e.n + PIECE - 1) / PIECE, items = e.outer * pieces;
    float *partial = NULL;
    if (items == 0) {
        for (int64_t o = 0; o < e.outer; o++)
            put(r, o, identity(fold));
        return MX_OK;
    }
    int64_t bytes = pieces == 1 ? 0 : items * (int64_t)sizeof *partial;
    if (pieces > 1)
        MX_TRY(mx_pool_alloc(bytes, (void **)&partial));
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < items; i++) {
        int64_t o = i / pieces, first = i % pieces * PIECE, n = e.n - first < PIECE ? e.n - first : PIECE;
        float part = paths->row(fold, at(x, o * e.n + first), n);
        if (pieces == 1)
            put(r, o, part);
        else
            partial[i] = part;
    }
    if (pieces == 1)
        return MX_OK;
    for (int64_t o = 0; o < e.outer; o++) {
        double all = identity(fold);
        for (int64_t p = 0; p < pieces; p++)
            all = join(fold, all, partial[o * pieces + p]);
        put(r, o, all);
    }
    mx_pool_free(partial, bytes);
    return MX_OK;
}

/* ---- columns: inner > 1 ---- */

int64_t mx_panel_columns(mx_extent e, mx_dtype dtype, int read_twice)
{
    enum { RUN = 4096, SHORT_RUN = 1024 }; /* bytes of a row */
    int64_t size = (int64_t)mx_dtype_bytes(dtype), kept = RUN / size;
    int64_t column_bytes = read_twice * e.n * size, room = mx_cpu_l3_share_bytes() / 2;
    int64_t columns = mx_is_bf16(dtype) ? MX_MOST_COLUMNS : kept;
    while (kept * size > SHORT_RUN && kept * column_bytes > room)
        kept /= 2;
    if (kept * column_bytes <= room)
        columns = kept;
    while (columns > MX_LEAST_COLUMNS && e.outer * mx_ceil_div(e.inner, columns) < omp_get_max_threads())
        columns /= 2;
    return columns;
}

typedef struct columns {
    mx_fold fold;
    mx_array x;
    const result *r;
    mx_extent e;
    int64_t width, n_widths;  /* columns in a piece, and pieces across */
    int64_t height, n_blocks; /* rows in a piece, and pieces down */
    float *partial;           /* (outer, n_blocks, inner); NULL when there is one block */
} columns;

static void fold_block(const columns *c, const mx_reduce_paths *paths, int64_t o, int64_t block, int64_t piece)
{
    float acc[WIDTH];
    int64_t from = piece * c->width, width = c->e.inner - from < c->width ? c->e.inner - from : c->width;
    int64_t first = block * c->height, n = c->e.n - first < c->height ? c->e.n - first : c->height;
    for (int64_t j = 0; j < width; j++)
        acc[j] = (float)identity(c->fold);
    paths->rows(c->fold, acc, at(c->x, (o * c->e.n + first) * c->e.inner + from), n, c->e.inner, width);
    if (c->partial)
        memcpy(c->partial + (o * c->n_blocks + block) * c->e.inner + from, acc, (size_t)width * sizeof *acc);
    else
        put_all(c->r, o * c->e.inner + from, acc, width);
}

MX_INLINE void join_all(const mx_fold fold, double *acc, const float *parts, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        acc[j] = join(fold, acc[j], (double)parts[j]);
}

/* What the blocks have of up to JOINED columns, in the order of the blocks. */
static void join_blocks(const columns *c, int64_t o, int64_t from, int64_t width)
{
    double acc[JOINED];
    for (int64_t j = 0; j < width; j++)
        acc[j] = identity(c->fold);
    for (int64_t b = 0; b < c->n_blocks; b++) {
        const float *parts = c->partial + (o * c->n_blocks + b) * c->e.inner + from;
        if (c->fold == MX_FOLD_MAX)
            join_all(MX_FOLD_MAX, acc, parts, width);
        else if (c->fold == MX_FOLD_MIN)
            join_all(MX_FOLD_MIN, acc, parts, width);
        else
            join_all(MX_FOLD_SUM, acc, parts, width);
    }
    for (int64_t j = 0; j < width; j++)
        put(c->r, o * c->e.inner + from + j, acc[j]);
}

static mx_status fold_columns(mx_fold fold, mx_array x, mx_extent e, const result *r)
{
    columns c = {.fold = fold, .x = x, .r = r, .e = e};
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    c.width = mx_min(e.inner, WIDTH);
    c.n_widths = c.width ? (e.inner + c.width - 1) / c.width : 0;
    /* Blocks of at least 64 Ki elements and 64 rows, or of 256 where there are enough: partial sums are then a small
     * part of x. */
    c.height = mx_max(mx_min(mx_max(e.n / 64, 64), 256), c.width > 0 ? MX_PARALLEL_FROM / c.width : 0);
    c.n_blocks = e.n > c.height ? (e.n + c.height - 1) / c.height : 1;
    int64_t bytes = c.n_blocks == 1 ? 0 : e.outer * c.n_blocks * e.inner * (int64_t)sizeof(float);
    if (bytes > 0)
        MX_TRY(mx_pool_alloc(bytes, (void **)&c.partial));
    int64_t items = e.outer * c.n_blocks * c.n_widths, across = mx_ceil_div(e.inner, JOINED), ends = e.outer * across;
#pragma omp parallel if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < items; i++)
            fold_block(&c, paths, i / c.n_widths / c.n_blocks, i / c.n_widths % c.n_blocks, i % c.n_widths);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (c.partial ? ends : 0); i++)
            join_blocks(&c, i / across, i % across * JOINED, mx_min(JOINED, e.inner - i % across * JOINED));
    }
    if (c.partial)
        mx_pool_free(c.partial, bytes);
    return MX_OK;
}

/* f64 is for checks: each sum on one thread, in the order of the elements. */
static void fold_f64(mx_fold fold, const double *x, mx_extent e, const result *r)
{
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t k = 0; k < e.outer * e.inner; k++) {
        double all = identity(fold);
        for (int64_t i = 0; i < e.n; i++) {
            double one = x[(k / e.inner * e.n + i) * e.inner + k % e.inner];
            all = join(fold, all, fold == MX_FOLD_SQUARES ? one * one : one);
        }
        put(r, k, all);
    }
}

static mx_status fold(mx_fold kind, mx_array x, mx_extent e, double scale, bool root, mx_array y)
{
    const result r = {y, scale, root};
    if (x.dtype == MX_F64) {
        fold_f64(kind, x.data, e, &r);
        return MX_OK;
    }
    return e.inner == 1 ? fold_rows(kind, x, e, &r) : fold_columns(kind, x, e, &r);
}

/* ---- integers ---- */

MX_INLINE int64_t fold_one(const mx_fold fold, int64_t acc, int64_t one)
{
    if (fold == MX_FOLD_SUM)
        return acc + one;
    return fold == MX_FOLD_MAX ? mx_max(acc, one) : mx_min(acc, one);
}

/* acc[j] folded with x[i * stride + j]; a single column is a row of n neighbours. */
#define DEFINE_FOLD_INTS(name, type)                                                                                   \
    MX_INLINE void name##_as(const mx_fold fold, const type *x, int64_t n, int64_t stride, int64_t width,              \
                             int64_t *acc)                                                                             \
    {                                                                                                                  \
        if (stride == 1) {                                                                                             \
            int64_t all = acc[0];                                                                                      \
            for (int64_t i = 0; i < n; i++)                                                                            \
                all = fold_one(fold, all, x[i]);                                                                       \
            acc[0] = all;                                                                                              \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                                                \
            for (int64_t j = 0; j < width; j++)                                                                        \
                acc[j] = fold_one(fold, acc[j], x[i * stride + j]);                                                    \
    }                                                                                                                  \
    static void name(mx_fold fold, const void *x, int64_t first, int64_t n, int64_t stride, int64_t width,             \
                     int64_t *acc)                                                                                     \
    {                                                                                                                  \
        const type *from = (const type *)x + first;                                                                    \
        if (fold == MX_FOLD_SUM)                                                                                       \
            name##_as(MX_FOLD_SUM, from, n, stride, width, acc);                                                       \
        else if (fold == MX_FOLD_MAX)                                                                                  \
            name##_as(MX_FOLD_MAX, from, n, stride, width, acc);                                                       \
        else                                                                                                           \
            name##_as(MX_FOLD_MIN, from, n, stride, width, acc);                                                       \
    }
DEFINE_FOLD_INTS(fold_i32, int32_t)
DEFINE_FOLD_INTS(fold_u8, uint8_t)
DEFINE_FOLD_INTS(fold_i8, int8_t)

/* One of the sums that do not fit, or 0. */
typedef struct unfit {
    double sum;
} unfit;

static void put_int(const result *r, int64_t i, __int128 all, unfit *bad)
{
    if (!mx_dtype_is_integer(r->y.dtype)) {
        put(r, i, (double)all);
    } else if (all < mx_dtypes[r->y.dtype].lowest || all > mx_dtypes[r->y.dtype].highest) {
#pragma omp atomic write
        bad->sum = (double)all;
    } else {
        mx_set_int(r->y.data, i, (int64_t)all, r->y.dtype);
    }
}

/* Columns [from, from + width) of block o. */
static void fold_band(mx_fold fold, mx_array x, mx_extent e, const result *r, int64_t o, int64_t from, unfit *bad)
{
    int64_t acc[INTS], first = o * e.n * e.inner + from, width = mx_min(INTS, e.inner - from);
    acc[0] = fold == MX_FOLD_SUM ? 0 : fold == MX_FOLD_MAX ? INT64_MIN : INT64_MAX;
    for (int64_t j = 1; j < width; j++)
        acc[j] = acc[0];
    if (x.dtype == MX_I32)
        fold_i32(fold, x.data, first, e.n, e.inner, width, acc);
    else if (x.dtype == MX_U8)
        fold_u8(fold, x.data, first, e.n, e.inner, width, acc);
    else if (x.dtype == MX_I8)
        fold_i8(fold, x.data, first, e.n, e.inner, width, acc);
    else
        mx_dtype_unexpected(x.dtype, __func__);
    for (int64_t j = 0; j < width; j++)
        put_int(r, o * e.inner + from + j, acc[j], bad);
}

/* A line of i64; in 128 bits, so that no sum is cut. */
static void fold_i64(mx_fold fold, const int64_t *x, mx_extent e, const result *r, int64_t k, unfit *bad)
{
    __int128 all = fold == MX_FOLD_SUM ? 0 : fold == MX_FOLD_MAX ? INT64_MIN : INT64_MAX;
    for (int64_t i = 0; i < e.n; i++) {
        int64_t one = x[(k / e.inner * e.n + i) * e.inner + k % e.inner];
        all = fold == MX_FOLD_SUM ? all + one : fold_one(fold, (int64_t)all, one);
    }
    put_int(r, k, all, bad);
}

static mx_status fold_ints(mx_fold fold, mx_array x, mx_extent e, double scale, mx_array y)
{
    const result r = {y, scale, false};
    bool wide = x.dtype == MX_I64;
    int64_t width = wide ? 1 : INTS, bands = mx_ceil_div(e.inner, width);
    unfit bad = {0};
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands; i++) {
        if (wide)
            fold_i64(fold, x.data, e, &r, i, &bad);
        else
            fold_band(fold, x, e, &r, i / bands, i % bands * width, &bad);
    }
    if (bad.sum != 0)
        return mx_fail(MX_ERR_VALUE, "a sum of %.0f does not fit %s; sum t:to(\"%s\")", bad.sum, mx_dtype_name(y.dtype),
                       y.dtype == MX_I64 ? "f64" : "f32");
    return MX_OK;
}

/* ---- */

mx_status mx_reduce_sum(mx_array x, mx_extent e, double scale, mx_array y)
{
    if (!mx_dtype_is_integer(x.dtype))
        return fold(MX_FOLD_SUM, x, e, scale, false, y);
    return fold_ints(MX_FOLD_SUM, x, e, scale, y);
}

mx_status mx_reduce_extreme(mx_fold extreme, mx_array x, mx_extent e, mx_array y)
{
    if (!mx_dtype_is_integer(x.dtype))
        return fold(extreme, x, e, 1.0, false, y);
    return fold_ints(extreme, x, e, 1.0, y);
}

mx_status mx_reduce_norm(mx_array x, mx_extent e, mx_array y) { return fold(MX_FOLD_SQUARES, x, e, 1.0, true, y); }

mx_status mx_sum_squares(mx_array x, int64_t n, mx_array y)
{
    return fold(MX_FOLD_SQUARES, x, (mx_extent){1, n, 1}, 1.0, false, y);
}

/* ---- places of extremes ---- */

static bool is_beyond(mx_fold fold, double a, double b) { return fold == MX_FOLD_MAX ? a > b : a < b; }

/* Whether element i of x is beyond element j, or is a NaN; the latter is none. */
static bool beats(mx_fold fold, mx_array x, int64_t i, int64_t j)
{
    if (mx_dtype_is_integer(x.dtype)) {
        int64_t a = mx_get_int(x.data, i, x.dtype), b = mx_get_int(x.data, j, x.dtype);
        return fold == MX_FOLD_MAX ? a > b : a < b;
    }
    double one = mx_get_number(x.data, i, x.dtype);
    return is_beyond(fold, one, mx_get_number(x.data, j, x.dtype)) || isnan(one);
}

static bool is_nan(mx_array x, int64_t i)
{
    return !mx_dtype_is_integer(x.dtype) && isnan(mx_get_number(x.data, i, x.dtype));
}

static void place_of_line(mx_fold fold, mx_array x, mx_extent e, int64_t k, int32_t *index)
{
    int64_t first = k / e.inner * e.n * e.inner + k % e.inner, best = 0;
    for (int64_t i = 1; i < e.n && !is_nan(x, first + best * e.inner); i++) {
        if (beats(fold, x, first + i * e.inner, first + best * e.inner))
            best = i;
    }
    index[k] = (int32_t)best;
}

/* The first of n neighbours that is `value`, which is one of them: the block that contains it, which the compiler
 * searches in vectors, and the place in it. */
MX_INLINE int64_t find_value_as(const void *x, int64_t n, float value, const mx_dtype dtype)
{
    enum { BLOCK = 64 };
    const int wants_nan = isnan(value);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        int found = 0;
        for (int64_t j = i; j < i + BLOCK; j++) {
            float one = mx_get_float(x, j, dtype);
            found |= (one == value) | ((one != one) & wants_nan);
        }
        if (found)
            break;
    }
    for (; i < n - 1; i++) {
        float one = mx_get_float(x, i, dtype);
        if (one == value || (isnan(one) && isnan(value)))
            break;
    }
    return i;
}

/* An extreme is looked for in vectors, as the first number beyond its neighbour, or as a NaN. Where that finds nothing,
 * as for -inf and for 0, whose neighbours count as 0, numbers are compared. */
static int64_t find_extreme(mx_fold fold, mx_array x, int64_t n, float value)
{
    bool least = fold == MX_FOLD_MIN;
    float outside = least ? INFINITY : -INFINITY, bound = isnan(value) ? -outside : nextafterf(value, outside);
    int64_t i = mx_kernels_current()->sort->beyond(x.data, x.dtype, 0, n, bound, least);
    if (i < n)
        return i;
    return mx_is_bf16(x.dtype) ? find_value_as(x.data, n, value, MX_BF16) : find_value_as(x.data, n, value, MX_F32);
}

/* The extremes of all pieces of the rows, each of which is NaN if it has one; then the place in the first of the best
 * pieces of each row. */
static mx_status places_in_rows(mx_fold fold, mx_array x, mx_extent e, int32_t *index)
{
    enum { PART = 4096 }; /* stays in the first-level cache */
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    int64_t pieces = mx_ceil_div(e.n, PART), items = e.outer * pieces, bytes = items * (int64_t)sizeof(float);
    float *extremes = NULL;
    if (pieces > 1) {
        MX_TRY(mx_pool_alloc(bytes, (void **)&extremes));
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
        for (int64_t i = 0; i < items; i++) {
            int64_t first = i % pieces * PART;
            extremes[i] = paths->row(fold, at(x, i / pieces * e.n + first), mx_min(PART, e.n - first));
        }
    }
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++) {
        int64_t best = 0;
        float value = pieces > 1 ? extremes[o * pieces] : paths->row(fold, at(x, o * e.n), e.n);
        for (int64_t p = 1; p < pieces && !isnan(value); p++) {
            float own = extremes[o * pieces + p];
            if (is_beyond(fold, (double)own, (double)value) || isnan(own)) {
                best = p;
                value = own;
            }
        }
        int64_t first = best * PART, n = mx_min(PART, e.n - first);
        index[o] = (int32_t)(first + find_extreme(fold, at(x, o * e.n + first), n, value));
    }
    if (pieces > 1)
        mx_pool_free(extremes, bytes);
    return MX_OK;
}

static void places_in_band(mx_fold fold, mx_array x, mx_extent e, int64_t o, int64_t from, int64_t width,
                           int32_t *index)
{
    float acc[MX_MOST_COLUMNS];
    int64_t first = o * e.n * e.inner + from;
    for (int64_t j = 0; j < width; j++) {
        acc[j] = mx_get_float(x.data, first + j, x.dtype);
        index[o * e.inner + from + j] = 0;
    }
    mx_kernels_current()->reduce->places(fold, acc, index + o * e.inner + from, at(x, first + e.inner), 1, e.n - 1,
                                         e.inner, width);
}

mx_status mx_reduce_place(mx_fold fold, mx_array x, mx_extent e, int32_t *index)
{
    bool single = !mx_dtype_computes(x.dtype);
    if (e.inner == 1 && !single)
        return places_in_rows(fold, x, e, index);
    int64_t width = single ? 1 : mx_panel_columns(e, x.dtype, 0), bands = mx_ceil_div(e.inner, width);
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * bands; i++) {
        if (single)
            place_of_line(fold, x, e, i, index);
        else
            places_in_band(fold, x, e, i / bands, i % bands * width, mx_min(width, e.inner - i % bands * width), index);
    }
    return MX_OK;
}

/* ---- folds of several arrays ---- */

#define DEFINE_ACROSS(name, type, dtype)                                                                               \
    static void name(mx_fold fold, int k, const void *const *from, int64_t n, type *y)                                 \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int64_t acc = ((const type *)from[0])[i];                                                                  \
            for (int r = 1; r < k; r++) {                                                                              \
                int64_t x = ((const type *)from[r])[i];                                                                \
                if (fold != MX_FOLD_SUM)                                                                               \
                    acc = fold_one(fold, acc, x);                                                                      \
                else if (__builtin_add_overflow(acc, x, &acc))                                                         \
                    acc = x < 0 ? INT64_MIN : INT64_MAX;                                                               \
            }                                                                                                          \
            y[i] = (type)mx_dtype_saturate(dtype, acc);                                                                \
        }                                                                                                              \
    }
DEFINE_ACROSS(across_i32, int32_t, MX_I32)
DEFINE_ACROSS(across_u8, uint8_t, MX_U8)
DEFINE_ACROSS(across_i8, int8_t, MX_I8)
DEFINE_ACROSS(across_i64, int64_t, MX_I64)

static void across_f64(mx_fold fold, int k, const void *const *from, int64_t n, double scale, double *y)
{
    for (int64_t i = 0; i < n; i++) {
        double acc = ((const double *)from[0])[i];
        for (int r = 1; r < k; r++)
            acc = join(fold, acc, ((const double *)from[r])[i]);
        y[i] = scale * acc;
    }
}

void mx_reduce_across(mx_fold fold, int k, const void *const *from, mx_dtype dtype, int64_t n, float scale, mx_array y,
                      void *again, bool stream)
{
    switch (dtype) {
    case MX_F32:
    case MX_BF16:
        mx_kernels_current()->reduce->across(fold, k, from, dtype, n, scale, y, again, stream);
        return;
    case MX_I32:
        across_i32(fold, k, from, n, y.data);
        break;
    case MX_U8:
        across_u8(fold, k, from, n, y.data);
        break;
    case MX_I8:
        across_i8(fold, k, from, n, y.data);
        break;
    case MX_I64:
        across_i64(fold, k, from, n, y.data);
        break;
    case MX_F64:
        across_f64(fold, k, from, n, scale, y.data);
        break;
    default:
        mx_dtype_unexpected(dtype, __func__);
    }
    if (again)
        memcpy(again, y.data, (size_t)n * mx_dtype_bytes(dtype));
}
