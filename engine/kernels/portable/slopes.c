#include "kernels/context.h"

#include "core/element.h"
#include "kernels/elementwise.h"
#include "kernels/slopes.h"

static float row_equal(mx_array x, int64_t n, float value)
{
    float count = 0;
    for (int64_t i = 0; i < n; i++)
        count += (float)(mx_get_float(x.data, i, x.dtype) == value);
    return count;
}

static void rows_equal(float *count, mx_array x, int64_t n, int64_t stride, int64_t width, const float *value)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            count[j] += (float)(mx_get_float(x.data, i * stride + j, x.dtype) == value[j]);
}

static void put_slope(mx_about what, mx_array x, int64_t i, float center, float factor, void *y)
{
    float one = mx_get_float(x.data, i, x.dtype);
    float slope = what == MX_SQUARES_ABOUT ? (one - center) * factor : one == center ? factor : 0;
    mx_set_float(y, i, slope, x.dtype);
}

static void row_slopes(mx_about what, mx_array x, int64_t n, float center, float factor, void *y, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        put_slope(what, x, i, center, factor, y);
}

static void rows_slopes(mx_about what, mx_array x, int64_t n, int64_t stride, int64_t width, const float *center,
                        const float *factor, void *y, bool stream)
{
    (void)stream;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            put_slope(what, x, i * stride + j, center[j], factor[j], y);
}

static int64_t rows_hits(mx_array x, int64_t n, int64_t stride, int64_t width, const float *value, const float *factor,
                         void *y, bool stream, int64_t *hits, int64_t room)
{
    int64_t found = 0;
    rows_slopes(MX_EQUAL_ABOUT, x, n, stride, width, value, factor, y, stream);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) {
            if (mx_get_float(x.data, i * stride + j, x.dtype) != value[j])
                continue;
            if (found == room)
                return -1;
            hits[found++] = i * stride + j;
        }
    return found;
}

const mx_slope_paths mx_slopes_portable = {
    .row_equal = row_equal,
    .rows_equal = rows_equal,
    .row_slopes = row_slopes,
    .rows_slopes = rows_slopes,
    .rows_hits = rows_hits,
};
