#include "kernels/context.h"

#include "core/element.h"
#include "kernels/scan.h"

static double row(const void *x, mx_dtype dtype, int64_t n, bool reverse, double start, void *y, bool stream)
{
    (void)stream;
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t i = reverse ? n - 1 - k : k;
        sum += mx_get_float(x, i, dtype);
        if (y)
            mx_set_float(y, i, (float)(start + sum), dtype);
    }
    return sum;
}

static void rows(const void *x, mx_dtype dtype, int64_t n, int64_t stride, int64_t width, const float *base,
                 float *local, void *y, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c++) {
            local[c] += mx_get_float(x, i * stride + c, dtype);
            mx_set_float(y, i * stride + c, base[c] + local[c], dtype);
        }
}

static void linear(mx_array a, mx_array b, int64_t n, int64_t stride, int64_t width, float *state, void *y, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c++) {
            float kept = i > 0 ? mx_get_float(a.data, (i - 1) * stride + c, a.dtype) * state[c] : 0;
            state[c] = kept + mx_get_float(b.data, i * stride + c, b.dtype);
            mx_set_float(y, i * stride + c, state[c], b.dtype);
        }
}

static void linear_rows(const void *a, const void *b, mx_dtype dtype, int64_t n, int64_t count, bool reverse,
                        bool lagged, void *y, bool stream)
{
    (void)stream;
    for (int64_t r = 0; r < count; r++) {
        int64_t step = reverse ? -1 : 1, back = lagged ? step : 0, place = r * n + (reverse ? n - 1 : 0);
        float state = 0;
        for (int64_t i = 0; i < n; i++, place += step) {
            float kept = i > 0 ? mx_get_float(a, place - back, dtype) * state : 0;
            state = kept + mx_get_float(b, place, dtype);
            mx_set_float(y, place, state, dtype);
        }
    }
}

const mx_scan_paths mx_scan_portable = {.row = row, .rows = rows, .linear = linear, .linear_rows = linear_rows};
