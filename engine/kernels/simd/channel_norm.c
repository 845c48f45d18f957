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
    FOR_EACH_KIND(forward_as, line->each, mx_is_bf16(x.dtype), stream, x.data, line, y);
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
    FOR_EACH_KIND(backward_as, line->each, mx_is_bf16(x.dtype), stream, x.data, dy, line, dx);
}

/* ---- sets ---- */

MX_INLINE vf set_value(const mx_channel_set *s, vf x, vf weight, vf bias)
{
    return vf_fma(vf_fma(x - vf_set1(s->mean), vf_set1(s->scale), vf_set1(s->shift)), weight, bias);
}

MX_INLINE void set_forward_part(const void *x, const mx_channel_set *s, int64_t i, int64_t end, void *y,
                                const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        vf v = set_value(s, row_load_part(x, i, n, bf16), vf_load_part(s->weight + i, n), vf_load_part(s->bias + i, n));
        row_store_part(y, i, v, n, bf16);
    }
}

MX_INLINE void set_forward_as(const void *x, const mx_channel_set *given, void *y, const bool bf16, const bool stream)
{
    const mx_channel_set s = *given;
    int64_t i = stream ? row_head(y, s.n, bf16) : 0;
    set_forward_part(x, &s, 0, i, y, bf16);
    for (; i + 2 * VL <= s.n; i += 2 * VL) {
        vf v[2];
        row_prefetch_later(x, i + s.ahead, 2 * VL, bf16);
        for (int u = 0; u < 2; u++) {
            int64_t at = i + u * VL;
            v[u] = set_value(&s, row_load(x, at, bf16), vf_load(s.weight + at), vf_load(s.bias + at));
        }
        row_store2(y, i, v[0], v[1], bf16, stream);
    }
    set_forward_part(x, &s, i, s.n, y, bf16);
}

static void set_forward(mx_array x, const mx_channel_set *set, void *y, bool stream)
{
    if (mx_is_bf16(x.dtype))
        stream ? set_forward_as(x.data, set, y, true, true) : set_forward_as(x.data, set, y, true, false);
    else
        stream ? set_forward_as(x.data, set, y, false, true) : set_forward_as(x.data, set, y, false, false);
}

MX_INLINE void set_sums_as(const void *x, const void *dy, const mx_channel_set *s, float sums[2], const bool bf16)
{
    const vf mean = vf_set1(s->mean);
    vf sum[2] = {vf_zero(), vf_zero()}, dot[2] = {vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 2 * VL <= s->n; i += 2 * VL) {
        row_prefetch_later(x, i + PREFETCH_AHEAD / 4, 2 * VL, bf16);
        row_prefetch_later(dy, i + PREFETCH_AHEAD / 4, 2 * VL, bf16);
        for (int u = 0; u < 2; u++) {
            vf d = row_load(dy, i + u * VL, bf16) * vf_load(s->weight + i + u * VL);
            sum[u] = sum[u] + d;
            dot[u] = vf_fma(d, row_load(x, i + u * VL, bf16) - mean, dot[u]);
        }
    }
    for (; i < s->n; i += VL) {
        int64_t n = lanes_left(s->n, i);
        vf d = row_load_part(dy, i, n, bf16) * vf_load_part(s->weight + i, n);
        sum[0] = sum[0] + d;
        dot[0] = dot[0] + vf_select(vm_first(n), d * (row_load_part(x, i, n, bf16) - mean), vf_zero());
    }
    sums[0] = vf_sum(sum[0] + sum[1]);
    sums[1] = vf_sum(dot[0] + dot[1]);
}

static void set_sums(mx_array x, const void *dy, const mx_channel_set *set, float sums[2])
{
    mx_is_bf16(x.dtype) ? set_sums_as(x.data, dy, set, sums, true) : set_sums_as(x.data, dy, set, sums, false);
}

/* dx; adds to the gradients of weight and of bias. */
MX_INLINE vf set_slope(const mx_channel_set *s, vf x, vf dy, vf weight, vf *dweight, vf *dbias)
{
    vf d = x - vf_set1(s->mean), scaled = dy * vf_set1(s->scale);
    *dweight = vf_fma(scaled, d, *dweight);
    *dbias = *dbias + dy;
    return vf_fma(scaled, weight, vf_fma(d, vf_set1(s->slope), vf_set1(s->shift)));
}

MX_INLINE void set_backward_part(const void *x, const void *dy, const mx_channel_set *s, int64_t i, int64_t end,
                                 void *dx, float *dweight, float *dbias, const bool bf16)
{
    for (; i < end; i += VL) {
        int64_t n = lanes_left(end, i);
        vf dw = vf_load_part(dweight + i, n), db = vf_load_part(dbias + i, n);
        vf v = set_slope(s, row_load_part(x, i, n, bf16), row_load_part(dy, i, n, bf16), vf_load_part(s->weight + i, n),
                         &dw, &db);
        vf_store_part(dweight + i, dw, n);
        vf_store_part(dbias + i, db, n);
        row_store_part(dx, i, v, n, bf16);
    }
}

MX_INLINE void set_backward_as(const void *x, const void *dy, const mx_channel_set *given, void *dx, float *dweight,
                               float *dbias, const bool bf16, const bool stream)
{
    const mx_channel_set s = *given;
    int64_t i = stream ? row_head(dx, s.n, bf16) : 0;
    set_backward_part(x, dy, &s, 0, i, dx, dweight, dbias, bf16);
    for (; i + 2 * VL <= s.n; i += 2 * VL) {
        vf v[2];
        row_prefetch_later(x, i + s.ahead, 2 * VL, bf16);
        row_prefetch_later(dy, i + s.ahead, 2 * VL, bf16);
        for (int u = 0; u < 2; u++) {
            int64_t at = i + u * VL;
            vf dw = vf_load(dweight + at), db = vf_load(dbias + at);
            v[u] = set_slope(&s, row_load(x, at, bf16), row_load(dy, at, bf16), vf_load(s.weight + at), &dw, &db);
            vf_store(dweight + at, dw);
            vf_store(dbias + at, db);
        }
        row_store2(dx, i, v[0], v[1], bf16, stream);
    }
    set_backward_part(x, dy, &s, i, s.n, dx, dweight, dbias, bf16);
}

static void set_backward(mx_array x, const void *dy, const mx_channel_set *set, void *dx, float *dweight, float *dbias,
                         bool stream)
{
    if (mx_is_bf16(x.dtype))
        stream ? set_backward_as(x.data, dy, set, dx, dweight, dbias, true, true)
               : set_backward_as(x.data, dy, set, dx, dweight, dbias, true, false);
    else
        stream ? set_backward_as(x.data, dy, set, dx, dweight, dbias, false, true)
               : set_backward_as(x.data, dy, set, dx, dweight, dbias, false, false);
}

const mx_channel_paths MX_SIMD_NAME(mx_channels) = {forward, sums, backward, set_forward, set_sums, set_backward};
