/* Batch norm and group norm in vectors. */
#include "kernels/context.h"

#include "kernels/channel_norm.h"
#include "kernels/elementwise.h"
#include "kernels/simd/rows.h"

enum { STEP = 4 * VL }; /* elements at a time: a cache line of bf16, or more */

/* STEP elements from i on. With `each` they are in order, as the numbers for them are; otherwise as row_get() has them.
 */
MX_INLINE void get_step(const void *x, int64_t i, vf v[4], const bool each, const bool bf16)
{
    if (!each) {
        row_get4(x, i, v, bf16);
        return;
    }
    for (int u = 0; u < 4; u++)
        v[u] = row_load(x, i + u * VL, bf16);
}

MX_INLINE void put_step(void *y, int64_t i, const vf v[4], const bool each, const bool bf16, const bool stream)
{
    for (int u = 0; u < 4; u += 2) {
        if (each)
            row_store2(y, i + u * VL, v[u], v[u + 1], bf16, stream);
        else
            row_put(y, i + u * VL, v + u, bf16, stream);
    }
}

MX_INLINE vf number(const float *numbers, int64_t i, const bool each)
{
    return each ? vf_load(numbers + i) : vf_set1(numbers[0]);
}

MX_INLINE vf number_part(const float *numbers, int64_t i, int64_t n, const bool each)
{
    return each ? vf_load_part(numbers + i, n) : vf_set1(numbers[0]);
}

/* ---- forward ---- */

MX_INLINE vf scaled(vf x, vf mean, vf scale, vf shift) { return vf_fma(x - mean, scale, shift); }

MX_INLINE void forward_part(const void *x, const mx_channel_line *l, int64_t i, int64_t end, void *y, const bool each,
                            const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        vf v = scaled(row_load_part(x, i, n, bf16), number_part(l->mean, i, n, each), number_part(l->scale, i, n, each),
                      number_part(l->shift, i, n, each));
        row_store_part(y, i, v, n, bf16);
    }
}

MX_INLINE void forward_as(const void *x, const mx_channel_line *l, void *y, const bool each, const bool bf16,
                          const bool stream)
{
    int64_t i = stream ? row_head(y, l->n, bf16) : 0;
    forward_part(x, l, 0, i, y, each, bf16);
    for (; i + STEP <= l->n; i += STEP) {
        vf v[4];
        row_prefetch(x, i + l->ahead, STEP, bf16);
        get_step(x, i, v, each, bf16);
        for (int u = 0; u < 4; u++)
            v[u] = scaled(v[u], number(l->mean, i + u * VL, each), number(l->scale, i + u * VL, each),
                          number(l->shift, i + u * VL, each));
        put_step(y, i, v, each, bf16, stream);
    }
    forward_part(x, l, i, l->n, y, each, bf16);
}

/* Calls `function` with each, bf16 and stream as constants. */
#define FOR_EACH_KIND(function, each, bf16, stream, ...)                                                               \
    if (each) {                                                                                                        \
        if (bf16)                                                                                                      \
            stream ? function(__VA_ARGS__, true, true, true) : function(__VA_ARGS__, true, true, false);               \
        else                                                                                                           \
            stream ? function(__VA_ARGS__, true, false, true) : function(__VA_ARGS__, true, false, false);             \
    } else {                                                                                                           \
        if (bf16)                                                                                                      \
            stream ? function(__VA_ARGS__, false, true, true) : function(__VA_ARGS__, false, true, false);             \
        else                                                                                                           \
            stream ? function(__VA_ARGS__, false, false, true) : function(__VA_ARGS__, false, false, false);           \
    }

static void forward(mx_array x, const mx_channel_line *line, void *y, bool stream)
{
    FOR_EACH_KIND(forward_as, line->each, mx_is_bf16(x.dtype), stream, x.data, line, y)
    if (stream)
        _mm_sfence();
}

/* ---- backward ---- */

MX_INLINE void sums_as(const void *x, const void *dy, const mx_channel_line *l, float *total, float *total_dot,
                       const bool each, const bool bf16)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, dot[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + STEP <= l->n; i += STEP) {
        vf v[4], d[4];
        row_prefetch(x, i + l->ahead, STEP, bf16);
        row_prefetch(dy, i + l->ahead, STEP, bf16);
        get_step(x, i, v, each, bf16);
        get_step(dy, i, d, each, bf16);
        for (int u = 0; u < 4; u++) {
            int64_t at = i + u * VL;
            sum[u] = (each ? vf_load(total + at) : sum[u]) + d[u];
            dot[u] = vf_fma(d[u], v[u] - number(l->mean, at, each), each ? vf_load(total_dot + at) : dot[u]);
            if (each) {
                vf_store(total + at, sum[u]);
                vf_store(total_dot + at, dot[u]);
            }
        }
    }
    for (; i < l->n; i += VL) {
        int64_t n = lanes_left(l->n, i);
        vf d = row_load_part(dy, i, n, bf16), off = row_load_part(x, i, n, bf16) - number_part(l->mean, i, n, each);
        vf one = vf_select(vm_first(n), d * off, vf_zero());
        if (each) {
            vf_store_part(total + i, vf_load_part(total + i, n) + d, n);
            vf_store_part(total_dot + i, vf_load_part(total_dot + i, n) + one, n);
        } else {
            sum[0] = sum[0] + d;
            dot[0] = dot[0] + one;
        }
    }
    if (!each) {
        *total += vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
        *total_dot += vf_sum((dot[0] + dot[1]) + (dot[2] + dot[3]));
    }
}

static void sums(mx_array x, const void *dy, const mx_channel_line *line, float *sum, float *dot)
{
    bool bf16 = mx_is_bf16(x.dtype);
    if (line->each)
        bf16 ? sums_as(x.data, dy, line, sum, dot, true, true) : sums_as(x.data, dy, line, sum, dot, true, false);
    else
        bf16 ? sums_as(x.data, dy, line, sum, dot, false, true) : sums_as(x.data, dy, line, sum, dot, false, false);
}

MX_INLINE vf slope_of(vf x, vf dy, vf mean, vf scale, vf slope, vf shift)
{
    return vf_fma(dy, scale, vf_fma(x - mean, slope, shift));
}

MX_INLINE void backward_part(const void *x, const void *dy, const mx_channel_line *l, int64_t i, int64_t end, void *dx,
                             const bool each, const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        vf v = slope_of(row_load_part(x, i, n, bf16), row_load_part(dy, i, n, bf16), number_part(l->mean, i, n, each),
                        number_part(l->scale, i, n, each), number_part(l->slope, i, n, each),
                        number_part(l->shift, i, n, each));
        row_store_part(dx, i, v, n, bf16);
    }
}

MX_INLINE void backward_as(const void *x, const void *dy, const mx_channel_line *l, void *dx, const bool each,
                           const bool bf16, const bool stream)
{
    int64_t i = stream ? row_head(dx, l->n, bf16) : 0;
    backward_part(x, dy, l, 0, i, dx, each, bf16);
    for (; i + STEP <= l->n; i += STEP) {
        vf v[4], d[4];
        row_prefetch(x, i + l->ahead, STEP, bf16);
        row_prefetch(dy, i + l->ahead, STEP, bf16);
        get_step(x, i, v, each, bf16);
        get_step(dy, i, d, each, bf16);
        for (int u = 0; u < 4; u++) {
            int64_t at = i + u * VL;
            v[u] = slope_of(v[u], d[u], number(l->mean, at, each), number(l->scale, at, each),
                            number(l->slope, at, each), number(l->shift, at, each));
        }
        put_step(dx, i, v, each, bf16, stream);
    }
    backward_part(x, dy, l, i, l->n, dx, each, bf16);
}

static void backward(mx_array x, const void *dy, const mx_channel_line *line, void *dx, bool stream)
{
    FOR_EACH_KIND(backward_as, line->each, mx_is_bf16(x.dtype), stream, x.data, dy, line, dx)
    if (stream)
        _mm_sfence();
}

const mx_channel_paths MX_SIMD_NAME(mx_channels) = {forward, sums, backward};
