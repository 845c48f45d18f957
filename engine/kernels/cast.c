/* Casts, fill and arange: what elementwise.h offers for all dtypes. */
#include "kernels/elementwise.h"

#include <math.h>

enum { BLOCK = 1024 };

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

/* Toward zero, to the nearest end of the range, and 0 for NaN: only then is the conversion defined. */
static int32_t saturate(double x, mx_dtype dtype)
{
    if (isnan(x))
        return 0;
    double low = mx_dtype_lowest(dtype), high = mx_dtype_highest(dtype);
    return (int32_t)(x < low ? low : x > high ? high : x);
}

static void widen(mx_array x, int64_t first, int32_t *wide, int64_t n)
{
    const void *p = at(x, first);
    if (x.dtype == MX_I32)
        memcpy(wide, p, (size_t)n * sizeof *wide);
    else if (x.dtype == MX_U8)
        for (int64_t i = 0; i < n; i++)
            wide[i] = ((const uint8_t *)p)[i];
    else
        for (int64_t i = 0; i < n; i++)
            wide[i] = ((const int8_t *)p)[i];
}

static void narrow(const int32_t *wide, mx_array y, int64_t first, int64_t n)
{
    void *p = at(y, first);
    if (y.dtype == MX_I32)
        memcpy(p, wide, (size_t)n * sizeof *wide);
    else
        for (int64_t i = 0; i < n; i++) /* the lower byte is the same for u8 and i8 */
            ((uint8_t *)p)[i] = (uint8_t)mx_dtype_saturate(y.dtype, wide[i]);
}

/* One block by way of i32 or f32, whatever the dtypes. */
static void cast_block(const mx_elementwise_paths *paths, mx_array x, mx_array y, int64_t first, int64_t n)
{
    float real[BLOCK];
    int32_t wide[BLOCK];
    if (mx_dtype_is_float(x.dtype)) {
        if (x.dtype == MX_BF16)
            paths->to_f32(at(x, first), real, n, false);
        else
            memcpy(real, at(x, first), (size_t)n * sizeof *real);
        for (int64_t i = 0; i < n; i++)
            wide[i] = saturate(real[i], y.dtype);
    } else {
        widen(x, first, wide, n);
        for (int64_t i = 0; i < n; i++)
            real[i] = (float)wide[i];
    }
    if (y.dtype == MX_BF16)
        paths->to_bf16(real, at(y, first), n, false);
    else if (y.dtype == MX_F32)
        memcpy(at(y, first), real, (size_t)n * sizeof *real);
    else
        narrow(wide, y, first, n);
}

static void cast_chunk(const mx_elementwise_paths *paths, mx_array x, mx_array y, int64_t first, int64_t n, bool stream)
{
    if (x.dtype == y.dtype)
        paths->copy(at(x, first), at(y, first), n * (int64_t)mx_dtype_bytes(x.dtype), stream);
    else if (x.dtype == MX_BF16 && y.dtype == MX_F32)
        paths->to_f32(at(x, first), at(y, first), n, stream);
    else if (x.dtype == MX_F32 && y.dtype == MX_BF16)
        paths->to_bf16(at(x, first), at(y, first), n, stream);
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            cast_block(paths, x, y, first + i, n - i < BLOCK ? n - i : BLOCK);
}

void mx_cast(mx_array x, mx_array y, int64_t n)
{
    const mx_elementwise_paths *paths = mx_elementwise_current();
    bool stream =
        x.data != y.data && mx_should_stream(n * (int64_t)(mx_dtype_bytes(x.dtype) + mx_dtype_bytes(y.dtype)));
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        cast_chunk(paths, x, y, first, first + MX_CHUNK < n ? MX_CHUNK : n - first, stream);
}

static void set(mx_array y, int64_t i, double value)
{
    if (y.dtype == MX_F32)
        ((float *)y.data)[i] = (float)value;
    else if (y.dtype == MX_BF16)
        ((mx_bf16 *)y.data)[i] = mx_to_bf16((float)value);
    else if (y.dtype == MX_I32)
        ((int32_t *)y.data)[i] = saturate(value, MX_I32);
    else
        ((uint8_t *)y.data)[i] = (uint8_t)saturate(value, y.dtype);
}

void mx_affine_int(mx_array x, mx_array y, double scale, double shift, int64_t n)
{
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK) {
        int32_t wide[BLOCK];
        int64_t m = n - first < BLOCK ? n - first : BLOCK;
        widen(x, first, wide, m);
        for (int64_t i = 0; i < m; i++)
            set(y, first + i, scale * wide[i] + shift);
    }
}

static void fill_chunk(mx_array y, const void *element, int64_t first, int64_t last)
{
    if (mx_dtype_bytes(y.dtype) == 4) {
        uint32_t bits;
        memcpy(&bits, element, sizeof bits);
        for (int64_t i = first; i < last; i++)
            ((uint32_t *)y.data)[i] = bits;
    } else if (mx_dtype_bytes(y.dtype) == 2) {
        uint16_t bits;
        memcpy(&bits, element, sizeof bits);
        for (int64_t i = first; i < last; i++)
            ((uint16_t *)y.data)[i] = bits;
    } else {
        memset((uint8_t *)y.data + first, *(const uint8_t *)element, (size_t)(last - first));
    }
}

void mx_fill(mx_array y, double value, int64_t n)
{
    uint32_t element = 0;
    set((mx_array){&element, y.dtype}, 0, value);
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += 16 * MX_CHUNK) {
        int64_t last = first + 16 * MX_CHUNK < n ? first + 16 * MX_CHUNK : n;
        if (element == 0) /* memset knows how to clear without reading */
            memset(at(y, first), 0, (size_t)((last - first) * (int64_t)mx_dtype_bytes(y.dtype)));
        else
            fill_chunk(y, &element, first, last);
    }
}

void mx_arange(mx_array y, double start, double step, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        set(y, i, start + (double)i * step);
}
