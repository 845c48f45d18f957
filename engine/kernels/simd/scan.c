#include "kernels/context.h"
#include "kernels/inline.h"

#include "kernels/scan.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/transpose.h"

#include <string.h>

/* Each lane plus all lanes before it, and the lanes in opposite order. */
#if MX_SIMD_512
#define SHIFT(x, lanes) vi_float(_mm512_alignr_epi32(vf_bits(x), _mm512_setzero_si512(), 16 - (lanes)))

MX_INLINE vf prefix(vf x)
{
    x = x + SHIFT(x, 1);
    x = x + SHIFT(x, 2);
    x = x + SHIFT(x, 4);
    return x + SHIFT(x, 8);
}

MX_INLINE vf reversed(vf x)
{
    return _mm512_permutexvar_ps(_mm512_set_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), x);
}

MX_INLINE float last_lane(vf x) { return _mm_cvtss_f32(_mm_permute_ps(_mm512_extractf32x4_ps(x, 3), 0xff)); }
#else
#define SHIFT(x, lanes) vi_float(_mm256_slli_si256(vf_bits(x), 4 * (lanes)))

MX_INLINE vf prefix(vf x)
{
    x = x + SHIFT(x, 1);
    x = x + SHIFT(x, 2);
    vf low = _mm256_permute2f128_ps(x, x, 0x08); /* zeros, then the lower half */
    return x + _mm256_permute_ps(low, 0xff);
}

MX_INLINE vf reversed(vf x) { return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }

MX_INLINE float last_lane(vf x) { return _mm_cvtss_f32(_mm_permute_ps(_mm256_extractf128_ps(x, 1), 0xff)); }
#endif

#if MX_SIMD_512
MX_INLINE vf lanes_before(vf x) { return SHIFT(x, 1); } /* lane l - 1 in lane l, and 0 in the first */
#else
MX_INLINE vf lanes_before(vf x)
{
    vf turned = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6));
    return _mm256_blend_ps(turned, vf_zero(), 1);
}
#endif

/* Up to VL neighbours. Returns their sum. `stream` is for VL of f32. */
MX_INLINE double scan_part(const void *x, const bool bf16, int64_t i, int64_t left, const bool reverse, double base,
                           void *y, const bool stream)
{
    float lane[VL];
    vf v = left == VL ? row_load(x, i, bf16) : row_load_part(x, i, left, bf16);
    if (reverse && left == VL) {
        v = reversed(v);
    } else if (reverse) { /* the part begins with zeros */
        vf_store(lane, reversed(v));
        memmove(lane, lane + VL - left, (size_t)left * sizeof *lane);
        memset(lane + left, 0, (size_t)(VL - left) * sizeof *lane);
        v = vf_load(lane);
    }
    v = prefix(v);
    vf result = vf_set1((float)base) + v;
    if (y && reverse)
        result = reversed(result);
    if (y && stream) {
        vf_stream((float *)y + i, result);
    } else if (y && left == VL) {
        row_store(y, i, result, bf16);
    } else if (y && !reverse) {
        row_store_part(y, i, result, left, bf16);
    } else if (y) {
        vf_store(lane, result);
        memmove(lane, lane + VL - left, (size_t)left * sizeof *lane);
        row_store_part(y, i, vf_load(lane), left, bf16);
    }
    return (double)last_lane(v);
}

/* 2 VL neighbours of bf16 as VL pairs, whose sums are scanned. */
MX_INLINE double scan_pairs(const mx_bf16 *x, const bool reverse, double base, mx_bf16 *y, const bool stream)
{
    vf even, odd, b = vf_set1((float)base);
    vf_split_bf16(x, &even, &odd);
    vf first = reverse ? reversed(odd) : even, sums = even + odd;
    sums = prefix(reverse ? reversed(sums) : sums);
    if (y) {
        vf one = b + (lanes_before(sums) + first), two = b + sums;
        even = reverse ? reversed(two) : one;
        odd = reverse ? reversed(one) : two;
        row_store_bits(y, vf_join_bf16(even, odd), stream);
    }
    return (double)last_lane(sums);
}

/* The neighbours of y before the first place, or with `reverse` behind the last one, that is streamed to. */
MX_INLINE int64_t unaligned(const void *y, const bool bf16, int64_t n, const bool reverse)
{
    const int64_t size = bf16 ? 2 : 4;
    return reverse ? mx_min(n, (int64_t)(((uintptr_t)y + (uintptr_t)(n * size)) % 64) / size) : row_head(y, n, bf16);
}

/* k counts in the direction of the sums. */
MX_INLINE double row_as(const void *x, const bool bf16, int64_t n, const bool reverse, double start, void *y,
                        const bool stream)
{
    double sum = 0;
    int64_t k = 0;
    for (const int64_t head = stream ? unaligned(y, bf16, n, reverse) : 0; k < head;) {
        int64_t left = lanes_left(head, k);
        sum += scan_part(x, bf16, reverse ? n - k - left : k, left, reverse, start + sum, y, false);
        k += left;
    }
    for (; bf16 && k + 2 * VL <= n; k += 2 * VL) {
        int64_t i = reverse ? n - k - 2 * VL : k;
        prefetch_ahead((const mx_bf16 *)x + i, 4 * VL);
        sum += scan_pairs((const mx_bf16 *)x + i, reverse, start + sum, y ? (mx_bf16 *)y + i : NULL, stream);
    }
    for (; !bf16 && k + VL <= n; k += VL) {
        int64_t i = reverse ? n - k - VL : k;
        prefetch_ahead((const float *)x + i, 4 * VL);
        sum += scan_part(x, bf16, i, VL, reverse, start + sum, y, stream);
    }
    for (; k < n; k += VL) {
        int64_t left = lanes_left(n, k);
        sum += scan_part(x, bf16, reverse ? n - k - left : k, left, reverse, start + sum, y, false);
    }
    if (stream)
        _mm_sfence();
    return sum;
}

MX_INLINE double row_of_dtype(const void *x, const bool bf16, int64_t n, bool reverse, double start, void *y,
                              bool stream)
{
    if (stream)
        return reverse ? row_as(x, bf16, n, true, start, y, true) : row_as(x, bf16, n, false, start, y, true);
    return reverse ? row_as(x, bf16, n, true, start, y, false) : row_as(x, bf16, n, false, start, y, false);
}

static double row(const void *x, mx_dtype dtype, int64_t n, bool reverse, double start, void *y, bool stream)
{
    return mx_is_bf16(dtype) ? row_of_dtype(x, true, n, reverse, start, y, stream)
                             : row_of_dtype(x, false, n, reverse, start, y, stream);
}

/* How many elements ahead loops over rows of columns, one at a time, prefetch: four rows, or eight short ones. */
MX_INLINE int64_t rows_ahead(int64_t stride, int64_t width, const bool bf16)
{
    return (width * (bf16 ? 2 : 4) < 1024 ? 8 : 4) * stride;
}

/* base and local are arranged as row_get() has the columns. */
MX_INLINE void rows_as(const void *x, const bool bf16, int64_t n, int64_t stride, int64_t width, const float *base,
                       float *local, void *y, const bool stream)
{
    const int64_t ahead = rows_ahead(stride, width, bf16);
    for (int64_t i = 0, at = 0; i < n; i++, at += stride) {
        int64_t c = 0;
        for (; c + 2 * VL <= width; c += 2 * VL) {
            vf v[2];
            row_prefetch(x, at + ahead + c, 2 * VL, bf16);
            row_get(x, at + c, v, bf16);
            for (int u = 0; u < 2; u++) {
                v[u] = vf_load(local + c + u * VL) + v[u];
                vf_store(local + c + u * VL, v[u]);
                v[u] = vf_load(base + c + u * VL) + v[u];
            }
            row_put(y, at + c, v, bf16, stream);
        }
        for (; c < width; c += VL) {
            int64_t left = lanes_left(width, c);
            vf sum = vf_load_part(local + c, left) + row_load_part(x, at + c, left, bf16);
            vf_store_part(local + c, sum, left);
            row_store_part(y, at + c, vf_load_part(base + c, left) + sum, left, bf16);
        }
    }
}

static void rows(const void *x, mx_dtype dtype, int64_t n, int64_t stride, int64_t width, const float *base,
                 float *local, void *y, bool stream)
{
    if (mx_is_bf16(dtype))
        stream ? rows_as(x, true, n, stride, width, base, local, y, true)
               : rows_as(x, true, n, stride, width, base, local, y, false);
    else
        stream ? rows_as(x, false, n, stride, width, base, local, y, true)
               : rows_as(x, false, n, stride, width, base, local, y, false);
    if (stream)
        _mm_sfence();
}

/* One row: state = a state + b, or b without a. The state is arranged as row_get() has the columns; a and b of two
 * dtypes are read in order. */
MX_INLINE void linear_row(const void *a, const bool a_bf16, const void *b, const bool bf16, int64_t width,
                          int64_t ahead, float *state, void *y, const bool stream)
{
    int64_t c = 0;
    for (; a_bf16 == bf16 && c + 2 * VL <= width; c += 2 * VL) {
        vf v[2], by[2];
        row_prefetch(b, ahead + c, 2 * VL, bf16);
        row_get(b, c, v, bf16);
        if (a) {
            row_prefetch(a, ahead + c, 2 * VL, bf16);
            row_get(a, c, by, bf16);
        }
        for (int u = 0; u < 2; u++) {
            v[u] = a ? vf_fma(by[u], vf_load(state + c + u * VL), v[u]) : v[u];
            vf_store(state + c + u * VL, v[u]);
        }
        row_put(y, c, v, bf16, stream);
    }
    for (; c < width; c += VL) {
        int64_t left = lanes_left(width, c);
        vf v = row_load_part(b, c, left, bf16);
        v = a ? vf_fma(row_load_part(a, c, left, a_bf16), vf_load_part(state + c, left), v) : v;
        vf_store_part(state + c, v, left);
        row_store_part(y, c, v, left, bf16);
    }
}

MX_INLINE void linear_as(const void *a, const bool a_bf16, const void *b, const bool bf16, int64_t n, int64_t stride,
                         int64_t width, float *state, void *y, const bool stream)
{
    const int64_t ahead = rows_ahead(stride, width, bf16), step = stride * (bf16 ? 2 : 4);
    const char *row_a = a, *row_b = b;
    char *row_y = y;
    linear_row(NULL, a_bf16, row_b, bf16, width, ahead, state, row_y, stream);
    for (int64_t i = 1; i < n; i++, row_a += stride * (a_bf16 ? 2 : 4))
        linear_row(row_a, a_bf16, row_b + i * step, bf16, width, ahead, state, row_y + i * step, stream);
}

static void linear(mx_array a, mx_array b, int64_t n, int64_t stride, int64_t width, float *state, void *y, bool stream)
{
    const bool a_bf16 = mx_is_bf16(a.dtype), bf16 = mx_is_bf16(b.dtype);
    if (a_bf16 != bf16)
        bf16 ? linear_as(a.data, false, b.data, true, n, stride, width, state, y, false)
             : linear_as(a.data, true, b.data, false, n, stride, width, state, y, false);
    else if (bf16)
        stream ? linear_as(a.data, true, b.data, true, n, stride, width, state, y, true)
               : linear_as(a.data, true, b.data, true, n, stride, width, state, y, false);
    else
        stream ? linear_as(a.data, false, b.data, false, n, stride, width, state, y, true)
               : linear_as(a.data, false, b.data, false, n, stride, width, state, y, false);
    if (stream)
        _mm_sfence();
}

/* ---- linear recurrences of rows ---- */

/* VL rows, each in a lane, since each waits for its last value. Squares of 32-bit words (an f32, or two bf16) are
 * turned over in registers. Results are gathered in runs, because memory is written slowly in single lines that are as
 * far apart as the rows. Runs at the ends of rows, and those of fewer rows, are read by way of such runs too. Their
 * rows are a cache line more than RUN bytes apart, so that they are not in the same sets of the first-level cache. Of
 * so many rows side by side a processor fetches little by itself: loops ask for what is AHEAD bytes later, in two
 * squares. */
enum { RUN = 1024, WORDS = RUN / 4, AHEAD = 128 };

typedef struct runs {
    _Alignas(64) float a[VL][WORDS + 16], b[VL][WORDS + 16];
} runs;

/* Of a square, one word of each row, in the direction of the recurrence. */
MX_INLINE vf linear_word(vf a, vf b, const bool bf16, const bool reverse, vf *state)
{
    if (!bf16) {
        *state = vf_fma(a, *state, b);
        return *state;
    }
    const vi upper = vi_set1((int32_t)0xffff0000);
    vf by[2] = {vi_float(vi_shl(vf_bits(a), 16)), vi_float(vi_and(vf_bits(a), upper))};
    vf to[2] = {vi_float(vi_shl(vf_bits(b), 16)), vi_float(vi_and(vf_bits(b), upper))};
    const int first = reverse ? 1 : 0, second = 1 - first;
    to[first] = vf_fma(by[first], *state, to[first]);
    *state = to[second] = vf_fma(by[second], to[first], to[second]);
    return vi_float(vf_join_bf16(to[0], to[1]));
}

/* VL rows of both inputs, `pitch` bytes apart. What is `ahead` bytes further is asked for. */
typedef struct words {
    const char *a, *b;
    int64_t pitch, ahead;
} words;

MX_INLINE vf linear_square(const words *from, int64_t place, runs *r, const bool bf16, const bool reverse, vf state)
{
    vf a[VL], b[VL];
#pragma GCC unroll 16
    for (int64_t l = 0; l < VL; l++) {
        const int64_t at = l * from->pitch + place;
        _mm_prefetch(from->a + at + from->ahead, _MM_HINT_T0);
        _mm_prefetch(from->b + at + from->ahead, _MM_HINT_T0);
        a[l] = vf_load((const float *)(from->a + at));
        b[l] = vf_load((const float *)(from->b + at));
    }
    transpose(a);
    transpose(b);
#pragma GCC unroll 16
    for (int k = 0; k < VL; k++) {
        const int w = reverse ? VL - 1 - k : k;
        b[w] = linear_word(a[w], b[w], bf16, reverse, &state);
    }
    transpose(b);
#pragma GCC unroll 16
    for (int l = 0; l < VL; l++)
        vf_store(r->b[l] + place / 4, b[l]);
    return state;
}

/* In vectors, because the compiler takes "rep movs" for memcpy(), which is slow for short runs. */
MX_INLINE void copy_run(void *to, const void *from, int64_t bytes, const bool stream)
{
    int64_t i = 0;
    for (; i + VL * 4 <= bytes; i += VL * 4) {
        vf v = vf_load((const float *)((const char *)from + i));
        if (stream)
            vf_stream((float *)((char *)to + i), v);
        else
            vf_store((float *)((char *)to + i), v);
    }
    memcpy((char *)to + i, (const char *)from + i, (size_t)(bytes - i));
}

/* Row l, with zeros up to a whole square. Of a, `unused` bytes at the first step are 0: they may be outside of a. */
MX_INLINE void take_run(runs *r, int64_t l, const words *from, int64_t bytes, int64_t unused, const bool reverse)
{
    const int64_t at = l * from->pitch, skip = reverse ? 0 : unused;
    const size_t rest = (size_t)(mx_round_up(bytes, VL * 4) - bytes);
    char *a = (char *)r->a[l], *b = (char *)r->b[l];
    copy_run(a + skip, from->a + at + skip, bytes - unused, false);
    copy_run(b, from->b + at, bytes, false);
    memset(a + (reverse ? bytes - unused : 0), 0, (size_t)unused);
    memset(a + bytes, 0, rest);
    memset(b + bytes, 0, rest);
}

/* Runs are those of memory in either direction, so that they start at the same cache lines. */
MX_INLINE void linear_rows_as(const char *a, const char *b, const bool bf16, int64_t n, int64_t count,
                              const bool reverse, bool lagged, char *y, bool stream)
{
    const int64_t size = bf16 ? 2 : 4, row = n * size, last = (row - 1) / RUN * RUN, square = VL * 4;
    runs r;
    vf state = vf_zero();
    a -= lagged ? (reverse ? -size : size) : 0;
    if (count < VL)
        memset(&r, 0, sizeof r);
    for (int64_t done = 0; done <= last; done += RUN) {
        const int64_t first = reverse ? last - done : done, bytes = mx_min(RUN, row - first);
        const int64_t whole = mx_round_up(bytes, square);
        words from = {a + first, b + first, row, reverse ? -AHEAD : AHEAD};
        if (done == 0 || bytes < RUN || count < VL) {
            for (int64_t l = 0; l < count; l++)
                take_run(&r, l, &from, bytes, done == 0 ? size : 0, reverse);
            from = (words){(const char *)r.a, (const char *)r.b, sizeof r.a[0], 0};
        }
        for (int64_t w = 0; w < whole; w += square)
            state = linear_square(&from, reverse ? whole - square - w : w, &r, bf16, reverse, state);
        for (int64_t l = 0; l < count; l++)
            stream ? copy_run(y + l * row + first, r.b[l], bytes, true)
                   : copy_run(y + l * row + first, r.b[l], bytes, false);
    }
}

MX_INLINE void linear_rows_of(const void *a, const void *b, const bool bf16, int64_t n, int64_t count, bool reverse,
                              bool lagged, void *y, bool stream)
{
    if (reverse)
        linear_rows_as(a, b, bf16, n, count, true, lagged, y, stream);
    else
        linear_rows_as(a, b, bf16, n, count, false, lagged, y, stream);
}

static void linear_rows(const void *a, const void *b, mx_dtype dtype, int64_t n, int64_t count, bool reverse,
                        bool lagged, void *y, bool stream)
{
    for (int64_t r = 0; r < count; r += VL) {
        const int64_t at = r * n * (int64_t)mx_dtype_bytes(dtype), rows = mx_min(VL, count - r);
        const char *own_a = (const char *)a + at, *own_b = (const char *)b + at;
        if (mx_is_bf16(dtype))
            linear_rows_of(own_a, own_b, true, n, rows, reverse, lagged, (char *)y + at, stream);
        else
            linear_rows_of(own_a, own_b, false, n, rows, reverse, lagged, (char *)y + at, stream);
    }
    if (stream)
        _mm_sfence();
}

const mx_scan_paths MX_SIMD_NAME(mx_scan) = {.row = row, .rows = rows, .linear = linear, .linear_rows = linear_rows};
