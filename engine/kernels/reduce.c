#include "kernels/reduce.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 1024, /* columns summed at a time: their f32 sums stay in the first-level cache */
    PIECE = MX_CHUNK,
};

static mx_array at(mx_array v, int64_t i)
{
    return (mx_array){(char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype), v.dtype};
}

static double identity(mx_fold fold) { return fold == MX_FOLD_MAX ? -INFINITY : 0.0; }

static double join(mx_fold fold, double a, double b)
{
    if (fold == MX_FOLD_MAX)
        return isnan(a) || a > b ? a : b;
    return a + b;
}

/* ---- rows: inner is 1 ---- */

/* Each row in pieces of PIECE; partial (outer, pieces). */
static mx_status fold_rows(mx_fold fold, mx_array x, mx_extent e, double scale, mx_array y)
{
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    int64_t pieces = (e.n + PIECE - 1) / PIECE, items = e.outer * pieces;
    float *partial = NULL;
    if (items == 0) {
        for (int64_t o = 0; o < e.outer; o++)
            mx_set_number(y.data, o, scale * identity(fold), y.dtype);
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
            mx_set_number(y.data, o, scale * part, y.dtype);
        else
            partial[i] = part;
    }
    if (pieces == 1)
        return MX_OK;
    for (int64_t o = 0; o < e.outer; o++) {
        double all = identity(fold);
        for (int64_t p = 0; p < pieces; p++)
            all = join(fold, all, partial[o * pieces + p]);
        mx_set_number(y.data, o, scale * all, y.dtype);
    }
    mx_pool_free(partial, bytes);
    return MX_OK;
}

/* ---- columns: inner > 1 ---- */

typedef struct columns {
    mx_fold fold;
    mx_array x, y;
    mx_extent e;
    int64_t width, n_widths;  /* columns in a piece, and pieces across */
    int64_t height, n_blocks; /* rows in a piece, and pieces down */
    double scale;
    float *partial; /* (outer, n_blocks, inner); NULL when there is one block */
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
        for (int64_t j = 0; j < width; j++)
            mx_set_number(c->y.data, o * c->e.inner + from + j, c->scale * acc[j], c->y.dtype);
}

static void join_blocks(const columns *c, int64_t o, int64_t piece)
{
    double acc[WIDTH];
    int64_t from = piece * c->width, width = c->e.inner - from < c->width ? c->e.inner - from : c->width;
    for (int64_t j = 0; j < width; j++)
        acc[j] = identity(c->fold);
    for (int64_t b = 0; b < c->n_blocks; b++)
        for (int64_t j = 0; j < width; j++)
            acc[j] = join(c->fold, acc[j], c->partial[(o * c->n_blocks + b) * c->e.inner + from + j]);
    for (int64_t j = 0; j < width; j++)
        mx_set_number(c->y.data, o * c->e.inner + from + j, c->scale * acc[j], c->y.dtype);
}

static mx_status fold_columns(mx_fold fold, mx_array x, mx_extent e, double scale, mx_array y)
{
    columns c = {.fold = fold, .x = x, .y = y, .e = e, .scale = scale};
    const mx_reduce_paths *paths = mx_kernels_current()->reduce;
    c.width = e.inner < WIDTH ? e.inner : WIDTH;
    c.n_widths = c.width ? (e.inner + c.width - 1) / c.width : 0;
    /* Blocks of at least 64 Ki elements and 64 rows: partial sums are then a small part of x. */
    c.height = c.width > 0 && MX_PARALLEL_FROM / c.width > 64 ? MX_PARALLEL_FROM / c.width : 64;
    c.n_blocks = e.n > c.height ? (e.n + c.height - 1) / c.height : 1;
    int64_t bytes = c.n_blocks == 1 ? 0 : e.outer * c.n_blocks * e.inner * (int64_t)sizeof(float);
    if (bytes > 0)
        MX_TRY(mx_pool_alloc(bytes, (void **)&c.partial));
    int64_t items = e.outer * c.n_blocks * c.n_widths, ends = e.outer * c.n_widths;
#pragma omp parallel if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < items; i++)
            fold_block(&c, paths, i / c.n_widths / c.n_blocks, i / c.n_widths % c.n_blocks, i % c.n_widths);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (c.partial ? ends : 0); i++)
            join_blocks(&c, i / c.n_widths, i % c.n_widths);
    }
    if (c.partial)
        mx_pool_free(c.partial, bytes);
    return MX_OK;
}

/* f64 is for checks: each sum on one thread, in the order of the elements. */
static void fold_f64(mx_fold fold, const double *x, mx_extent e, double scale, double *y)
{
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t k = 0; k < e.outer * e.inner; k++) {
        double all = identity(fold);
        for (int64_t i = 0; i < e.n; i++) {
            double one = x[(k / e.inner * e.n + i) * e.inner + k % e.inner];
            all = join(fold, all, fold == MX_FOLD_SQUARES ? one * one : one);
        }
        y[k] = scale * all;
    }
}

static mx_status fold(mx_fold kind, mx_array x, mx_extent e, double scale, mx_array y)
{
    if (x.dtype == MX_F64) {
        fold_f64(kind, x.data, e, scale, y.data);
        return MX_OK;
    }
    return e.inner == 1 ? fold_rows(kind, x, e, scale, y) : fold_columns(kind, x, e, scale, y);
}

/* ---- integers ---- */

/* In 128 bits, so that no sum of i64 is cut. */
static __int128 fold_ints(mx_fold fold, mx_array x, mx_extent e, int64_t o, int64_t j)
{
    __int128 all = fold == MX_FOLD_MAX ? INT64_MIN : 0;
    for (int64_t i = 0; i < e.n; i++) {
        int64_t one = mx_get_int(x.data, (o * e.n + i) * e.inner + j, x.dtype);
        if (fold == MX_FOLD_SUM)
            all += one;
        else if (one > all)
            all = one;
    }
    return all;
}

static mx_status fold_all_ints(mx_fold fold, mx_array x, mx_extent e, double scale, mx_array y)
{
    double unfit = 0; /* one of the sums that do not fit */
    int64_t low = mx_dtypes[y.dtype].lowest, high = mx_dtypes[y.dtype].highest;
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t i = 0; i < e.outer * e.inner; i++) {
        __int128 all = fold_ints(fold, x, e, i / e.inner, i % e.inner);
        if (!mx_dtype_is_integer(y.dtype)) {
            mx_set_number(y.data, i, scale * (double)all, y.dtype);
        } else if (all < low || all > high) {
#pragma omp atomic write
            unfit = (double)all;
        } else {
            mx_set_int(y.data, i, (int64_t)all, y.dtype);
        }
    }
    if (unfit != 0)
        return mx_fail(MX_ERR_VALUE, "a sum of %.0f does not fit %s; sum t:to(\"%s\")", unfit, mx_dtype_name(y.dtype),
                       y.dtype == MX_I64 ? "f64" : "f32");
    return MX_OK;
}

/* ---- */

mx_status mx_reduce_sum(mx_array x, mx_extent e, double scale, mx_array y)
{
    if (!mx_dtype_is_integer(x.dtype))
        return fold(MX_FOLD_SUM, x, e, scale, y);
    return fold_all_ints(MX_FOLD_SUM, x, e, scale, y);
}

mx_status mx_reduce_max(mx_array x, mx_extent e, mx_array y)
{
    if (!mx_dtype_is_integer(x.dtype))
        return fold(MX_FOLD_MAX, x, e, 1.0, y);
    return fold_all_ints(MX_FOLD_MAX, x, e, 1.0, y);
}

mx_status mx_sum_squares(mx_array x, int64_t n, mx_array y)
{
    return fold(MX_FOLD_SQUARES, x, (mx_extent){1, n, 1}, 1.0, y);
}

void mx_reduce_max_backward(mx_array x, mx_array y, mx_array dy, mx_extent e, mx_array dx)
{
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t k = 0; k < e.outer * e.inner; k++) {
        int64_t first = k / e.inner * e.n * e.inner + k % e.inner, ties = 0;
        for (int64_t i = 0; i < e.n; i++)
            ties += mx_get_number(x.data, first + i * e.inner, x.dtype) == mx_get_number(y.data, k, y.dtype);
        double share = mx_get_number(dy.data, k, dy.dtype) / (double)ties;
        for (int64_t i = 0; i < e.n; i++) {
            bool largest = mx_get_number(x.data, first + i * e.inner, x.dtype) == mx_get_number(y.data, k, y.dtype);
            mx_set_number(dx.data, first + i * e.inner, largest ? share : 0.0, dx.dtype);
        }
    }
}

/* Whether element i of x is larger than element j, or is a NaN; the latter is none. */
static bool beats(mx_array x, int64_t i, int64_t j)
{
    if (mx_dtype_is_integer(x.dtype))
        return mx_get_int(x.data, i, x.dtype) > mx_get_int(x.data, j, x.dtype);
    double one = mx_get_number(x.data, i, x.dtype);
    return one > mx_get_number(x.data, j, x.dtype) || isnan(one);
}

static bool is_nan(mx_array x, int64_t i)
{
    return !mx_dtype_is_integer(x.dtype) && isnan(mx_get_number(x.data, i, x.dtype));
}

void mx_reduce_argmax(mx_array x, mx_extent e, int32_t *index)
{
#pragma omp parallel for schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t k = 0; k < e.outer * e.inner; k++) {
        int64_t first = k / e.inner * e.n * e.inner + k % e.inner, best = 0;
        for (int64_t i = 1; i < e.n && !is_nan(x, first + best * e.inner); i++)
            if (beats(x, first + i * e.inner, first + best * e.inner))
                best = i;
        index[k] = (int32_t)best;
    }
}

#define DEFINE_ACROSS(name, type, dtype)                                                                               \
    static void name(mx_fold fold, int k, const void *const *from, int64_t n, type *y)                                 \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            int64_t acc = ((const type *)from[0])[i];                                                                  \
            for (int r = 1; r < k; r++) {                                                                              \
                int64_t x = ((const type *)from[r])[i];                                                                \
                if (fold == MX_FOLD_MAX)                                                                               \
                    acc = x > acc ? x : acc;                                                                           \
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
