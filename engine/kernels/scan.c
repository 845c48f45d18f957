#include "kernels/scan.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <omp.h>
#include <string.h>

enum {
    PIECE = 1 << 17, /* elements of a row that one thread sums */
    WIDTH = 1024,    /* columns that one thread sums */
    HEIGHT = 64,     /* rows whose sums are f32 */
};

static char *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

/* ---- rows: inner is 1 ---- */

/* The elements of piece p of a row, counted in the direction of the sums. */
static int64_t piece_of(mx_extent e, bool reverse, int64_t p, int64_t *n)
{
    *n = mx_min(PIECE, e.n - p * PIECE);
    return reverse ? e.n - p * PIECE - *n : p * PIECE;
}

/* Long rows are streamed only if they begin (in the direction of the sums) at a cache line: then the sum of a piece has
 * the same bits, written or not. */
static bool row_streams(mx_extent e, bool reverse, mx_array y, int64_t o)
{
    return e.n <= PIECE || (uintptr_t)at(y, (reverse ? o + 1 : o) * e.n) % 64 == 0;
}

/* A row on one thread. */
static void scan_row(mx_array x, mx_extent e, bool reverse, mx_array y, int64_t o, bool stream)
{
    const mx_scan_paths *paths = mx_kernels_current()->scan;
    double start = 0;
    stream = stream && row_streams(e, reverse, y, o);
    for (int64_t p = 0, n; p * PIECE < e.n; p++) {
        int64_t first = o * e.n + piece_of(e, reverse, p, &n);
        start += paths->row(at(x, first), x.dtype, n, reverse, start, at(y, first), stream);
    }
}

/* A long row, by all threads: each sums a piece, and scans it when the sums of those before it are known. The piece is
 * in its cache then. */
static mx_status scan_pieces(mx_array x, mx_extent e, bool reverse, mx_array y, int64_t o, bool stream)
{
    const mx_scan_paths *paths = mx_kernels_current()->scan;
    int64_t pieces = mx_ceil_div(e.n, PIECE), bytes = pieces * (int64_t)sizeof(double);
    double *sums;
    stream = stream && row_streams(e, reverse, y, o);
    MX_TRY(mx_pool_alloc(bytes, (void **)&sums));
#pragma omp parallel
    {
        int64_t threads = omp_get_num_threads(), next = 0;
        double start = 0;
        for (int64_t p = omp_get_thread_num(); p - omp_get_thread_num() < pieces; p += threads) {
            int64_t n = 0, first = p < pieces ? o * e.n + piece_of(e, reverse, p, &n) : 0;
            if (p < pieces)
                sums[p] = paths->row(at(x, first), x.dtype, n, reverse, 0, NULL, false);
#pragma omp barrier
            for (; next < p && next < pieces; next++)
                start += sums[next];
            if (p < pieces)
                paths->row(at(x, first), x.dtype, n, reverse, start, at(y, first), stream);
        }
    }
    mx_pool_free(sums, bytes);
    return MX_OK;
}

static mx_status scan_rows(mx_array x, mx_extent e, bool reverse, mx_array y)
{
    int threads = omp_get_max_threads();
    bool stream = x.data != y.data &&
                  mx_should_stream(e.outer * e.n * (int64_t)(mx_dtype_bytes(x.dtype) + mx_dtype_bytes(y.dtype)));
    if (threads > 1 && e.outer < 2 * threads && e.n > PIECE) {
        for (int64_t o = 0; o < e.outer; o++)
            MX_TRY(scan_pieces(x, e, reverse, y, o, stream));
        return MX_OK;
    }
#pragma omp parallel for schedule(static) if (e.outer * e.n >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++)
        scan_row(x, e, reverse, y, o, stream);
    return MX_OK;
}

/* ---- columns: inner > 1 ---- */

static void scan_band(mx_array x, mx_extent e, bool reverse, mx_array y, int64_t o, int64_t first, bool stream)
{
    const mx_scan_paths *paths = mx_kernels_current()->scan;
    float base[WIDTH], local[WIDTH];
    double total[WIDTH];
    int64_t width = mx_min(WIDTH, e.inner - first);
    for (int64_t c = 0; c < width; c++)
        total[c] = 0;
    for (int64_t i = 0; i < e.n; i += HEIGHT) {
        int64_t row = o * e.n + (reverse ? e.n - 1 - i : i), start = row * e.inner + first;
        for (int64_t c = 0; c < width; c++) {
            base[c] = (float)total[c];
            local[c] = 0;
        }
        paths->rows(at(x, start), x.dtype, mx_min(HEIGHT, e.n - i), reverse ? -e.inner : e.inner, width, base, local,
                    at(y, start), stream);
        for (int64_t c = 0; c < width; c++)
            total[c] += local[c];
    }
}

static void scan_columns(mx_array x, mx_extent e, bool reverse, mx_array y)
{
    int64_t bands = mx_ceil_div(e.inner, WIDTH), bytes = (int64_t)mx_dtype_bytes(x.dtype);
    bool stream = x.data != y.data && e.inner * bytes % 64 == 0 && (uintptr_t)y.data % 64 == 0 &&
                  mx_should_stream(2 * e.outer * e.n * e.inner * bytes);
#pragma omp parallel for collapse(2) schedule(static) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++)
        for (int64_t b = 0; b < bands; b++)
            scan_band(x, e, reverse, y, o, b * WIDTH, stream);
}

/* ---- integers ---- */

/* The last sum of a line that does not fit, or 0. */
static int64_t scan_ints(mx_array x, mx_extent e, bool reverse, int32_t *y, int64_t line)
{
    int64_t first = line / e.inner * e.n * e.inner + line % e.inner, sum = 0, bad = 0;
    for (int64_t i = 0; i < e.n; i++) {
        int64_t place = first + (reverse ? e.n - 1 - i : i) * e.inner;
        sum += mx_get_int(x.data, place, x.dtype);
        bad = sum < INT32_MIN || sum > INT32_MAX ? sum : bad;
        y[place] = (int32_t)(uint32_t)sum;
    }
    return bad;
}

static mx_status scan_all_ints(mx_array x, mx_extent e, bool reverse, int32_t *y)
{
    int64_t lowest = 0, highest = 0;
#pragma omp parallel for schedule(static) reduction(min                                                                \
                                                    : lowest)                                                          \
    reduction(max                                                                                                      \
              : highest) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t line = 0; line < e.outer * e.inner; line++) {
        int64_t bad = scan_ints(x, e, reverse, y, line);
        lowest = mx_min(lowest, bad);
        highest = mx_max(highest, bad);
    }
    if (lowest < 0 || highest > 0)
        return mx_fail(MX_ERR_VALUE, "a sum of %lld does not fit i32; sum t:to(\"f32\")",
                       (long long)(highest > 0 ? highest : lowest));
    return MX_OK;
}

/* ---- f64 and i64 ---- */

/* Whether all sums of a line fit. */
static bool scan_wide(mx_array x, mx_extent e, bool reverse, void *y, int64_t line)
{
    int64_t first = line / e.inner * e.n * e.inner + line % e.inner, whole = 0;
    double real = 0;
    bool fits = true;
    for (int64_t i = 0; i < e.n; i++) {
        int64_t place = first + (reverse ? e.n - 1 - i : i) * e.inner;
        if (x.dtype == MX_F64) {
            ((double *)y)[place] = real += ((const double *)x.data)[place];
        } else {
            fits = !__builtin_add_overflow(whole, ((const int64_t *)x.data)[place], &whole) && fits;
            ((int64_t *)y)[place] = whole;
        }
    }
    return fits;
}

static mx_status scan_all_wide(mx_array x, mx_extent e, bool reverse, void *y)
{
    bool fits = true;
#pragma omp parallel for schedule(static) reduction(&& : fits) if (e.outer * e.n * e.inner >= MX_PARALLEL_FROM)
    for (int64_t line = 0; line < e.outer * e.inner; line++)
        fits = scan_wide(x, e, reverse, y, line) && fits;
    return fits ? MX_OK : mx_fail(MX_ERR_VALUE, "a sum does not fit i64; sum t:to(\"f64\")");
}

mx_status mx_cumsum(mx_array x, mx_extent e, bool reverse, mx_array y)
{
    if (e.outer * e.n * e.inner == 0)
        return MX_OK;
    if (mx_dtype_bytes(x.dtype) == 8)
        return scan_all_wide(x, e, reverse, y.data);
    if (mx_dtype_is_integer(x.dtype))
        return scan_all_ints(x, e, reverse, y.data);
    if (e.inner == 1)
        return scan_rows(x, e, reverse, y);
    scan_columns(x, e, reverse, y);
    return MX_OK;
}

/* ---- linear recurrences ---- */

static void linear_band(mx_array a, mx_array b, mx_extent e, bool reverse, bool lagged, mx_array y, int64_t o,
                        int64_t first, bool stream)
{
    float state[WIDTH];
    int64_t step = reverse ? -e.inner : e.inner, start = (o * e.n + (reverse ? e.n - 1 : 0)) * e.inner + first;
    mx_array second = {at(a, start + (lagged || e.n == 1 ? 0 : step)), a.dtype}, b0 = {at(b, start), b.dtype};
    mx_kernels_current()->scan->linear(second, b0, e.n, step, mx_min(WIDTH, e.inner - first), state, at(y, start),
                                       stream);
}

/* Lines of few columns, or of one with two dtypes: LINES together, because each waits for its last value. STEPS of each
 * are brought side by side first: their addresses may meet in the same sets of the cache. */
enum { NARROW = 8, LINES = 16, STEPS = 64 };

MX_INLINE void linear_lines_as(const void *a, const mx_dtype a_dtype, const void *b, const mx_dtype dtype, mx_extent e,
                               bool reverse, bool lagged, void *y, int64_t first, int64_t count)
{
    int64_t step = reverse ? -e.inner : e.inner, back = lagged ? step : 0;
    float by[STEPS][LINES] = {{0}}, sum[STEPS][LINES] = {{0}}, state[LINES] = {0};
    for (int64_t i = 0; i < e.n; i += STEPS) {
        int64_t steps = mx_min(STEPS, e.n - i), start[LINES];
        for (int64_t l = 0; l < count; l++) {
            int64_t line = first + l, end = reverse ? (e.n - 1) * e.inner : 0;
            start[l] = line / e.inner * e.n * e.inner + line % e.inner + end + i * step;
            for (int64_t k = 0; k < steps; k++) {
                by[k][l] = i + k > 0 ? mx_get_float(a, start[l] + k * step - back, a_dtype) : 0;
                sum[k][l] = mx_get_float(b, start[l] + k * step, dtype);
            }
        }
        for (int64_t k = 0; k < steps; k++)
            for (int64_t l = 0; l < LINES; l++)
                state[l] = sum[k][l] = by[k][l] * state[l] + sum[k][l];
        for (int64_t l = 0; l < count; l++)
            for (int64_t k = 0; k < steps; k++)
                mx_set_float(y, start[l] + k * step, sum[k][l], dtype);
    }
}

static void linear_lines(mx_array a, mx_array b, mx_extent e, bool reverse, bool lagged, mx_array y, int64_t first)
{
    int64_t count = mx_min(LINES, e.outer * e.inner - first);
    if (a.dtype != b.dtype)
        linear_lines_as(a.data, a.dtype, b.data, b.dtype, e, reverse, lagged, y.data, first, count);
    else if (mx_is_bf16(b.dtype))
        linear_lines_as(a.data, MX_BF16, b.data, MX_BF16, e, reverse, lagged, y.data, first, count);
    else
        linear_lines_as(a.data, MX_F32, b.data, MX_F32, e, reverse, lagged, y.data, first, count);
}

static void linear_f64(const double *a, const double *b, mx_extent e, bool reverse, bool lagged, double *y,
                       int64_t line)
{
    int64_t step = reverse ? -e.inner : e.inner, back = lagged ? step : 0;
    int64_t start = line / e.inner * e.n * e.inner + line % e.inner + (reverse ? (e.n - 1) * e.inner : 0);
    double state = b[start];
    y[start] = state;
    for (int64_t i = 1; i < e.n; i++) {
        int64_t place = start + i * step;
        y[place] = state = a[place - back] * state + b[place];
    }
}

void mx_linear_scan(mx_array a, mx_array b, mx_extent e, bool reverse, bool lagged, mx_array y)
{
    int64_t total = e.outer * e.n * e.inner, lines = e.outer * e.inner, bytes = (int64_t)mx_dtype_bytes(b.dtype);
    if (total == 0)
        return;
    if (b.dtype == MX_F64) {
#pragma omp parallel for schedule(static) if (total >= MX_PARALLEL_FROM)
        for (int64_t line = 0; line < lines; line++)
            linear_f64(a.data, b.data, e, reverse, lagged, y.data, line);
        return;
    }
    if (e.inner == 1 && a.dtype == b.dtype) {
        bool stream = e.n * bytes % 64 == 0 && (uintptr_t)y.data % 64 == 0 && mx_should_stream(3 * total * bytes);
#pragma omp parallel for schedule(static) if (total >= MX_PARALLEL_FROM)
        for (int64_t r = 0; r < lines; r += LINES)
            mx_kernels_current()->scan->linear_rows(at(a, r * e.n), at(b, r * e.n), b.dtype, e.n,
                                                    mx_min(LINES, lines - r), reverse, lagged, at(y, r * e.n), stream);
        return;
    }
    if (e.inner < NARROW) {
#pragma omp parallel for schedule(static) if (total >= MX_PARALLEL_FROM)
        for (int64_t first = 0; first < lines; first += LINES)
            linear_lines(a, b, e, reverse, lagged, y, first);
        return;
    }
    bool stream = a.dtype == b.dtype && e.inner * bytes % 64 == 0 && (uintptr_t)y.data % 64 == 0 &&
                  mx_should_stream(3 * total * bytes);
    int64_t bands = mx_ceil_div(e.inner, WIDTH);
#pragma omp parallel for collapse(2) schedule(static) if (total >= MX_PARALLEL_FROM)
    for (int64_t o = 0; o < e.outer; o++)
        for (int64_t band = 0; band < bands; band++)
            linear_band(a, b, e, reverse, lagged, y, o, band * WIDTH, stream);
}

void mx_times_previous(mx_array x, mx_array y, mx_extent e, bool reverse, mx_array out)
{
    int64_t rest = (e.n - 1) * e.inner;
    mx_broadcast plan;
    mx_broadcast_plan(&plan, 2, (int[]){1, 1}, (const int64_t *[]){&rest, &rest}, 1, &rest);
    for (int64_t o = 0; o < e.outer && e.n * e.inner > 0; o++) {
        int64_t start = o * e.n * e.inner, to = start + (reverse ? 0 : e.inner), from = start + (reverse ? e.inner : 0);
        mx_array before = {at(x, from), x.dtype}, result = {at(out, to), out.dtype};
        memset(at(out, reverse ? start + rest : start), 0, (size_t)e.inner * mx_dtype_bytes(out.dtype));
        if (y.data)
            mx_binary_forward((mx_pair){.op = MX_MUL}, &plan, before, (mx_array){at(y, to), y.dtype}, result);
        else
            memcpy(result.data, before.data, (size_t)rest * mx_dtype_bytes(x.dtype));
    }
}
