/* Casts, fill and arange: what elementwise.h offers for all dtypes. */
#include "kernels/elementwise.h"

#include "core/element.h"
#include "kernels/context.h"
#include "kernels/inline.h"

#include <immintrin.h>

enum { BLOCK = 1024 };

static void *at(mx_array v, int64_t i) { return (char *)v.data + i * (int64_t)mx_dtype_bytes(v.dtype); }

static void read_ints(mx_array x, int64_t first, int32_t *wide, int64_t n)
{
    const void *p = at(x, first);
    if (x.dtype == MX_I32)
        memcpy(wide, p, (size_t)n * sizeof *wide);
    else
        for (int64_t i = 0; i < n; i++)
            wide[i] = (int32_t)mx_get_int(p, i, x.dtype);
}

static void write_ints(const int32_t *wide, mx_array y, int64_t first, int64_t n)
{
    void *p = at(y, first);
    int32_t low = (int32_t)mx_dtypes[y.dtype].lowest, high = (int32_t)mx_dtypes[y.dtype].highest;
    if (y.dtype == MX_I32)
        memcpy(p, wide, (size_t)n * sizeof *wide);
    else
        for (int64_t i = 0; i < n; i++)
            mx_set_int(p, i, wide[i] < low ? low : wide[i] > high ? high : wide[i], y.dtype);
}

/* The loops for one 8-bit float, which is a constant in them. */
MX_INLINE void read_codes(const uint8_t *codes, mx_dtype dtype, float *real, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        real[i] = mx_from_code(codes[i], dtype);
}

MX_INLINE void write_codes(const float *real, mx_dtype dtype, uint8_t *codes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = mx_to_code(real[i], dtype);
}

static void read_floats(const mx_elementwise_paths *paths, mx_array x, int64_t first, float *real, int64_t n)
{
    const void *p = at(x, first);
    if (x.dtype == MX_E4M3)
        read_codes(p, MX_E4M3, real, n);
    else if (x.dtype == MX_E5M2)
        read_codes(p, MX_E5M2, real, n);
    else if (x.dtype == MX_E4M3FNUZ)
        read_codes(p, MX_E4M3FNUZ, real, n);
    else if (x.dtype == MX_E5M2FNUZ)
        read_codes(p, MX_E5M2FNUZ, real, n);
    else if (mx_is_bf16(x.dtype))
        paths->to_f32(p, real, n, false);
    else
        memcpy(real, p, (size_t)n * sizeof *real);
}

static void write_floats(const mx_elementwise_paths *paths, const float *real, mx_array y, int64_t first, int64_t n)
{
    void *p = at(y, first);
    if (y.dtype == MX_E4M3)
        write_codes(real, MX_E4M3, p, n);
    else if (y.dtype == MX_E5M2)
        write_codes(real, MX_E5M2, p, n);
    else if (y.dtype == MX_E4M3FNUZ)
        write_codes(real, MX_E4M3FNUZ, p, n);
    else if (y.dtype == MX_E5M2FNUZ)
        write_codes(real, MX_E5M2FNUZ, p, n);
    else if (mx_is_bf16(y.dtype))
        paths->to_bf16(real, p, n, false);
    else
        memcpy(p, real, (size_t)n * sizeof *real);
}

/* For dtypes of 8 bytes on either side. An i64 is rounded once, whatever the float. */
static void cast_wide(mx_array x, mx_array y, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++) {
        if (!mx_dtype_is_integer(x.dtype)) {
            mx_set_number(y.data, i, mx_get_number(x.data, i, x.dtype), y.dtype);
            continue;
        }
        int64_t whole = mx_get_int(x.data, i, x.dtype);
        if (mx_dtype_is_integer(y.dtype))
            mx_set_int(y.data, i, mx_dtype_saturate(y.dtype, whole), y.dtype);
        else
            mx_set_number(y.data, i, y.dtype == MX_F64 ? (double)whole : (double)(float)whole, y.dtype);
    }
}

/* One block by way of i32 or f32, whatever the dtypes. */
static void cast_block(const mx_elementwise_paths *paths, mx_array x, mx_array y, int64_t first, int64_t n)
{
    float real[BLOCK];
    int32_t wide[BLOCK];
    bool from_ints = mx_dtype_is_integer(x.dtype), to_ints = mx_dtype_is_integer(y.dtype);
    if (from_ints)
        read_ints(x, first, wide, n);
    else
        read_floats(paths, x, first, real, n);
    for (int64_t i = 0; from_ints && !to_ints && i < n; i++)
        real[i] = (float)wide[i];
    int64_t low = mx_dtypes[y.dtype].lowest, high = mx_dtypes[y.dtype].highest;
    for (int64_t i = 0; !from_ints && to_ints && i < n; i++)
        wide[i] = (int32_t)mx_dtype_truncate(real[i], low, high);
    if (to_ints)
        write_ints(wide, y, first, n);
    else
        write_floats(paths, real, y, first, n);
}

static void cast_chunk(const mx_elementwise_paths *paths, mx_array x, mx_array y, int64_t first, int64_t n, bool stream)
{
    if (x.dtype == y.dtype)
        paths->copy(at(x, first), at(y, first), n * (int64_t)mx_dtype_bytes(x.dtype), stream);
    else if (x.dtype == MX_BF16 && y.dtype == MX_F32)
        paths->to_f32(at(x, first), at(y, first), n, stream);
    else if (x.dtype == MX_F32 && y.dtype == MX_BF16)
        paths->to_bf16(at(x, first), at(y, first), n, stream);
    else if (mx_dtype_bytes(x.dtype) == 8 || mx_dtype_bytes(y.dtype) == 8)
        cast_wide(x, y, first, n);
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            cast_block(paths, x, y, first + i, n - i < BLOCK ? n - i : BLOCK);
}

void mx_cast(mx_array x, mx_array y, int64_t n)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    bool stream =
        x.data != y.data && mx_should_stream(n * (int64_t)(mx_dtype_bytes(x.dtype) + mx_dtype_bytes(y.dtype)));
#pragma omp parallel if (n >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < n; first += MX_CHUNK)
            cast_chunk(paths, x, y, first, first + MX_CHUNK < n ? MX_CHUNK : n - first, stream);
        _mm_sfence();
    }
}

static void affine_i64(const int64_t *x, int64_t *y, int64_t scale, int64_t shift, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        __int128 value = (__int128)scale * x[i] + shift;
        y[i] = value < INT64_MIN ? INT64_MIN : value > INT64_MAX ? INT64_MAX : (int64_t)value;
    }
}

static void affine_block(mx_array x, void *y, int64_t scale, int64_t shift, int64_t first, int64_t n)
{
    const int64_t low = mx_dtypes[x.dtype].lowest, high = mx_dtypes[x.dtype].highest;
    const mx_loop_paths *loops = mx_kernels_current()->loops;
    _Alignas(8) char room[8];
    int32_t wide[BLOCK];
    if ((scale == 1 || scale == -1) && low <= shift && shift <= high) {
        mx_set_int(room, 0, shift, x.dtype);
        loops->pair(scale == 1 ? MX_ADD : MX_SUB, x.dtype, room, 0, at(x, first), 1, y, n);
        return;
    }
    if (x.dtype == MX_I64) {
        affine_i64(at(x, first), y, scale, shift, n);
        return;
    }
    read_ints(x, first, wide, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t value = scale * wide[i] + shift;
        wide[i] = (int32_t)(value < low ? low : value > high ? high : value);
    }
    write_ints(wide, (mx_array){y, x.dtype}, 0, n);
}

/* Large results go by way of the first-level cache, from which they are written past the others. */
void mx_affine_int(mx_array x, mx_array y, int64_t scale, int64_t shift, int64_t n)
{
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    const int64_t bytes = (int64_t)mx_dtype_bytes(x.dtype);
    bool stream = x.data != y.data && mx_should_stream(2 * n * bytes);
#pragma omp parallel if (n >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < n; first += BLOCK) {
            int64_t room[BLOCK], m = n - first < BLOCK ? n - first : BLOCK;
            affine_block(x, stream ? room : at(y, first), scale, shift, first, m);
            if (stream)
                paths->copy(room, at(y, first), m * bytes, true);
        }
        _mm_sfence();
    }
}

void mx_clamp_int(mx_array x, mx_array y, int64_t low, int64_t high, int64_t n)
{
    _Alignas(8) char limit[2][8];
    const mx_loop_paths *loops = mx_kernels_current()->loops;
    mx_set_int(limit[0], 0, low, x.dtype);
    mx_set_int(limit[1], 0, high, x.dtype);
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t m = n - first < BLOCK ? n - first : BLOCK;
        loops->pair(MX_MAXIMUM, x.dtype, at(x, first), 1, limit[0], 0, at(y, first), m);
        loops->pair(MX_MINIMUM, x.dtype, at(y, first), 1, limit[1], 0, at(y, first), m);
    }
}

static void fill_chunk(mx_array y, const void *element, int64_t first, int64_t last)
{
    if (mx_dtype_bytes(y.dtype) == 8) {
        uint64_t bits;
        memcpy(&bits, element, sizeof bits);
        for (int64_t i = first; i < last; i++)
            ((uint64_t *)y.data)[i] = bits;
    } else if (mx_dtype_bytes(y.dtype) == 4) {
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

/* The same past the caches, from copies of the element in the first-level cache. */
static void stream_chunk(mx_array y, const void *element, int64_t first, int64_t last)
{
    _Alignas(64) char room[8192];
    const mx_elementwise_paths *paths = mx_kernels_current()->elementwise;
    int64_t bytes = (int64_t)mx_dtype_bytes(y.dtype), block = (int64_t)sizeof room / bytes;
    fill_chunk((mx_array){room, y.dtype}, element, 0, block);
    for (int64_t i = first; i < last; i += block)
        paths->copy(room, at(y, i), mx_min(block, last - i) * bytes, true);
}

void mx_fill(mx_array y, double value, int64_t n)
{
    uint64_t element = 0;
    mx_set_number(&element, 0, value, y.dtype);
    bool stream = mx_should_stream(n * (int64_t)mx_dtype_bytes(y.dtype));
#pragma omp parallel if (n >= MX_PARALLEL_FROM)
    {
#pragma omp for schedule(static)
        for (int64_t first = 0; first < n; first += 16 * MX_CHUNK) {
            int64_t last = first + 16 * MX_CHUNK < n ? first + 16 * MX_CHUNK : n;
            if (stream)
                stream_chunk(y, &element, first, last);
            else if (element == 0)
                memset(at(y, first), 0, (size_t)((last - first) * (int64_t)mx_dtype_bytes(y.dtype)));
            else
                fill_chunk(y, &element, first, last);
        }
        _mm_sfence();
    }
}

void mx_arange(mx_array y, double start, double step, int64_t n)
{
    if (mx_dtype_is_integer(y.dtype))
        for (int64_t i = 0; i < n; i++)
            mx_set_int(y.data, i, (int64_t)start + i * (int64_t)step, y.dtype);
    else
        for (int64_t i = 0; i < n; i++)
            mx_set_number(y.data, i, start + (double)i * step, y.dtype);
}
