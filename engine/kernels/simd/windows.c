#include "kernels/windows.h"

#include "kernels/context.h"
#include "kernels/simd/folds.h"
#include "kernels/simd/rows.h"

#include <string.h>

enum { UNROLL = 4 };

/* Sums over all taps for the first vectors of `rows` rows. Together they are at most UNROLL sums: independent ones, so
 * that none waits for its own last addition. */
MX_INLINE void weigh_as(const int rows, const int vectors, int64_t n, const float *x, int64_t x_step, int64_t taps,
                        const int64_t *at, const float *weight, vf start, float *y)
{
    vf sum[UNROLL];
    for (int u = 0; u < rows * vectors; u++)
        sum[u] = start;
    for (int64_t t = 0; t < taps; t++) {
        vf w = vf_set1(weight[t]);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                sum[r * vectors + v] = vf_fma(w, vf_load(x + r * x_step + at[t] + v * VL), sum[r * vectors + v]);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            vf_store(y + r * n + v * VL, sum[r * vectors + v]);
}

static void weigh(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                  const float *weight, float start, float *y)
{
    vf first = vf_set1(start);
    int64_t r = 0;
    for (; n <= VL && r + 4 <= rows; r += 4, x += 4 * x_step, y += 4 * n)
        weigh_as(4, 1, n, x, x_step, taps, at, weight, first, y);
    for (; n > VL && n <= 2 * VL && r + 2 <= rows; r += 2, x += 2 * x_step, y += 2 * n)
        weigh_as(2, 2, n, x, x_step, taps, at, weight, first, y);
    for (; r < rows; r++, x += x_step, y += n) {
        int64_t i = 0;
        for (; i + UNROLL * VL <= n; i += UNROLL * VL)
            weigh_as(1, UNROLL, n, x + i, x_step, taps, at, weight, first, y + i);
        for (; i + VL < n; i += 2 * VL)
            weigh_as(1, 2, n, x + i, x_step, taps, at, weight, first, y + i);
        if (i < n)
            weigh_as(1, 1, n, x + i, x_step, taps, at, weight, first, y + i);
    }
}

/* Of `count` taps. */
MX_INLINE void dots_of(const int count, int64_t rows, int64_t n, const float *g, int64_t g_step, const float *x,
                       int64_t x_step, const int64_t *at, double *sums)
{
    vf sum[UNROLL];
    for (int t = 0; t < count; t++)
        sum[t] = vf_zero();
    for (int64_t r = 0; r < rows; r++, g += g_step, x += x_step) {
        int64_t i = 0;
        for (; i + VL <= n; i += VL) {
            vf v = vf_load(g + i);
            for (int t = 0; t < count; t++)
                sum[t] = vf_fma(v, vf_load(x + at[t] + i), sum[t]);
        }
        if (i < n) {
            vf v = vf_load_part(g + i, n - i);
            for (int t = 0; t < count; t++)
                sum[t] = vf_fma(v, vf_load_part(x + at[t] + i, n - i), sum[t]);
        }
    }
    for (int t = 0; t < count; t++)
        sums[t] += (double)vf_sum(sum[t]);
}

static void dots(int64_t rows, int64_t n, const float *g, int64_t g_step, const float *x, int64_t x_step, int64_t taps,
                 const int64_t *at, double *sums)
{
    int64_t t = 0;
    for (; t + UNROLL <= taps; t += UNROLL)
        dots_of(UNROLL, rows, n, g, g_step, x, x_step, at + t, sums + t);
    for (; t < taps; t++)
        dots_of(1, rows, n, g, g_step, x, x_step, at + t, sums + t);
}

/* ---- maxima ---- */

MX_INLINE vi choose(vm mask, vi yes, vi no) { return vf_bits(vf_select(mask, vi_float(yes), vi_float(no))); }

/* The same vectors as in weigh_as(). A later element replaces the best one only if it is greater. lanes: what is added
 * to the places of the first vector. */
MX_INLINE void maxima_as(const int rows, const int vectors, const bool places, int64_t n, const float *x,
                         int64_t x_step, int64_t taps, const int64_t *at, const int32_t *place_of, vi lanes,
                         int32_t row_step, int32_t step, float *y, int32_t *place)
{
    vf best[UNROLL];
    vi found[UNROLL];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            best[r * vectors + v] = vf_load(x + r * x_step + at[0] + v * VL);
            found[r * vectors + v] = vi_set1(places ? place_of[0] : 0);
        }
    for (int64_t t = 1; t < taps; t++) {
        vi here = vi_set1(places ? place_of[t] : 0);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) {
                int u = r * vectors + v;
                vf value = vf_load(x + r * x_step + at[t] + v * VL);
                if (places)
                    found[u] = choose(vf_gt(value, best[u]), here, found[u]);
                best[u] = vf_max(value, best[u]);
            }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            vf_store(y + r * n + v * VL, best[r * vectors + v]);
            if (places)
                vi_store(place + r * n + v * VL,
                         vi_add(found[r * vectors + v], vi_add(lanes, vi_set1(r * row_step + v * VL * step))));
        }
}

MX_INLINE void maxima_of(const bool places, int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps,
                         const int64_t *at, const int32_t *place_of, vi lanes, int32_t row_step, int32_t step, float *y,
                         int32_t *place)
{
    for (int64_t r = 0, some; r < rows; r += some) {
        const float *from = x + r * x_step;
        float *to = y + r * n;
        int32_t *found = places ? place + r * n : NULL;
        vi here = vi_add(lanes, vi_set1((int32_t)r * row_step));
        some = n <= VL && rows - r >= 4 ? 4 : n > VL && n <= 2 * VL && rows - r >= 2 ? 2 : 1;
        if (some == 4)
            maxima_as(4, 1, places, n, from, x_step, taps, at, place_of, here, row_step, step, to, found);
        else if (some == 2)
            maxima_as(2, 2, places, n, from, x_step, taps, at, place_of, here, row_step, step, to, found);
        for (int64_t i = 0, width; some == 1 && i < n; i += width) {
            vi there = vi_add(here, vi_set1((int32_t)i * step));
            int32_t *at_i = places ? found + i : NULL;
            width = n - i >= UNROLL * VL ? UNROLL * VL : n - i > VL ? 2 * VL : VL;
            if (width == UNROLL * VL)
                maxima_as(1, UNROLL, places, n, from + i, x_step, taps, at, place_of, there, 0, step, to + i, at_i);
            else if (width == 2 * VL)
                maxima_as(1, 2, places, n, from + i, x_step, taps, at, place_of, there, 0, step, to + i, at_i);
            else
                maxima_as(1, 1, places, n, from + i, x_step, taps, at, place_of, there, 0, step, to + i, at_i);
        }
    }
}

static void maxima(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                   const int32_t *place_of, int32_t first, int32_t row_step, int32_t step, float *y, int32_t *place)
{
    int32_t lane[VL];
    for (int l = 0; l < VL; l++)
        lane[l] = first + l * step;
    if (place)
        maxima_of(true, rows, n, x, x_step, taps, at, place_of, vi_load(lane), row_step, step, y, place);
    else
        maxima_of(false, rows, n, x, x_step, taps, at, place_of, vi_load(lane), row_step, step, y, NULL);
}

/* ---- copies of rows ---- */

/* Once an element is infinite or NaN, 0 times it and so the sum is NaN. */
MX_INLINE vf finite_sum(vf sum, vf v, const bool check) { return check ? vf_fma(v, vf_zero(), sum) : sum; }

/* Elements 0 to n - 1 of x in order. */
MX_INLINE vf fill_in_order(int64_t n, const void *x, float *y, vf sum, const bool bf16, const bool check)
{
    int64_t i = 0;
    for (; i + UNROLL * VL <= n; i += UNROLL * VL) {
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), UNROLL * VL * (bf16 ? 2 : 4));
        for (int u = 0; u < UNROLL; u++) {
            vf v = row_load(x, i + u * VL, bf16);
            vf_store(y + i + u * VL, v);
            sum = finite_sum(sum, v, check);
        }
    }
    for (; i < n; i += VL) {
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 64);
        vf v = n - i < VL ? row_load_part(x, i, n - i, bf16) : row_load(x, i, bf16);
        vf_store(y + i, v);
        sum = finite_sum(sum, v, check);
    }
    return sum;
}

/* Those with even numbers and those with odd ones. */
MX_INLINE vf fill_split(int64_t n, const void *x, float *even, float *odd, vf sum, const bool bf16, const bool check)
{
    vf a, b;
    int64_t i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 2 * VL * (bf16 ? 2 : 4));
        if (bf16)
            vf_split_bf16((const mx_bf16 *)x + i, &a, &b);
        else
            vf_split(vf_load((const float *)x + i), vf_load((const float *)x + i + VL), &a, &b);
        vf_store(even + i / 2, a);
        vf_store(odd + i / 2, b);
        sum = finite_sum(finite_sum(sum, a, check), b, check);
    }
    if (i < n) {
        int64_t left = n - i;
        vf_split(row_load_part(x, i, mx_min(left, VL), bf16),
                 left > VL ? row_load_part(x, i + VL, left - VL, bf16) : vf_zero(), &a, &b);
        vf_store_part(even + i / 2, a, (left + 1) / 2);
        vf_store_part(odd + i / 2, b, left / 2);
        sum = finite_sum(finite_sum(sum, a, check), b, check);
    }
    return sum;
}

/* Where element i of a copy goes. */
MX_INLINE int64_t place_in(int64_t i, int64_t step, int64_t phase)
{
    return step == 1 ? i : step == 2 ? i % 2 * phase + i / 2 : i % step * phase + i / step;
}

MX_INLINE bool fill_as(const mx_row_copy *c, int64_t rows, const void *x, int64_t x_step, float *y, int64_t y_step,
                       const bool bf16, const bool check)
{
    const int64_t step = c->step, phase = c->phase, before = mx_min(mx_max(-c->first, 0), c->n);
    const int64_t inside = mx_max(mx_min(c->n, c->in - c->first) - before, 0);
    vf sum = vf_zero();
    for (int64_t r = 0; r < rows; r++, y += y_step) {
        const void *row = (const char *)x + (r * x_step + c->first + before) * (bf16 ? 2 : 4);
        for (int64_t i = 0; i < before; i++)
            y[place_in(i, step, phase)] = c->outside;
        if (step == 1) {
            sum = fill_in_order(inside, row, y + before, sum, bf16, check);
        } else if (step == 2) {
            sum = fill_split(inside, row, y + place_in(before, 2, phase), y + place_in(before + 1, 2, phase), sum, bf16,
                             check);
        }
        for (int64_t i = 0; step > 2 && i < inside; i += VL) {
            float lane[VL];
            int64_t some = mx_min(VL, inside - i);
            vf v = row_load_part(row, i, some, bf16);
            vf_store(lane, v);
            sum = finite_sum(sum, v, check);
            for (int64_t l = 0; l < some; l++)
                y[place_in(before + i + l, step, phase)] = lane[l];
        }
        for (int64_t i = before + inside; i < c->n; i++)
            y[place_in(i, step, phase)] = c->outside;
    }
    return !vm_any(vf_is_nan(sum));
}

static bool fill(const mx_row_copy *c, int64_t rows, mx_array x, int64_t x_step, float *y, int64_t y_step)
{
    if (mx_is_bf16(x.dtype))
        return c->check ? fill_as(c, rows, x.data, x_step, y, y_step, true, true)
                        : fill_as(c, rows, x.data, x_step, y, y_step, true, false);
    return c->check ? fill_as(c, rows, x.data, x_step, y, y_step, false, true)
                    : fill_as(c, rows, x.data, x_step, y, y_step, false, false);
}

/* ---- results ---- */

MX_INLINE void put_as(const float *x, int64_t n, void *y, const bool bf16, const bool stream)
{
    int64_t i = stream ? row_head(y, n, bf16) : 0;
    for (int64_t l = 0; l < i; l += VL)
        row_store_part(y, l, vf_load_part(x + l, mx_min(VL, i - l)), mx_min(VL, i - l), bf16);
    for (; i + 2 * VL <= n; i += 2 * VL)
        row_store2(y, i, vf_load(x + i), vf_load(x + i + VL), bf16, stream);
    for (; i < n; i += VL)
        row_store_part(y, i, vf_load_part(x + i, mx_min(VL, n - i)), mx_min(VL, n - i), bf16);
}

static void put(const float *x, int64_t n, mx_array y, int64_t first, bool stream)
{
    const bool bf16 = mx_is_bf16(y.dtype);
    void *to = (char *)y.data + first * (bf16 ? 2 : 4);
    if (bf16)
        stream ? put_as(x, n, to, true, true) : put_as(x, n, to, true, false);
    else
        stream ? put_as(x, n, to, false, true) : put_as(x, n, to, false, false);
}

/* ---- rows that are read where they are ---- */

enum { BLOCK = UNROLL * VL, PIECE = 4096 }; /* results that are computed together; summed in f32 */

/* Pairs of neighbours in bf16: a lane holds two, which are multiplied and added at once; n >= 2 VL: all, else n bf16.
 */
#if defined(MX_SIMD_AVX512_BF16)
static const bool HAS_PAIRS = true;
MX_INLINE vf add_pairs(vf sum, vf a, vf b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
MX_INLINE vf load_pairs(const mx_bf16 *x, int64_t n)
{
    return vi_float(n >= 2 * VL ? _mm512_loadu_si512(x) : _mm512_maskz_loadu_epi16((1u << n) - 1u, x));
}
#else /* never called */
static const bool HAS_PAIRS = false;
MX_INLINE vf add_pairs(vf sum, vf a, vf b) { return vf_fma(a, b, sum); }
MX_INLINE vf load_pairs(const mx_bf16 *x, int64_t n) { return vf_load_bf16_part(x, n); }
#endif

/* A block of results of a row, the first of which meets x[at[t]]. `pairs`: by[t / 2] is a pair of weights, and results
 * are arranged as row_put() wants them; else in order. */
MX_INLINE void weigh_block(const mx_row_windows *w, const void *x, const float *by, vf start, const bool bf16,
                           const bool pairs, vf sum[UNROLL])
{
    for (int u = 0; u < UNROLL; u++)
        sum[u] = start;
    for (int64_t t = 0; t < w->taps; t += pairs ? 2 : 1) {
        vf weight = vf_set1(by[pairs ? t / 2 : t]);
        for (int u = 0; u < UNROLL; u++)
            sum[u] = pairs
                         ? add_pairs(sum[u], load_pairs((const mx_bf16 *)x + w->at[t] + u / 2 * 2 * VL + u % 2, 2 * VL),
                                     weight)
                         : vf_fma(weight, row_load(x, w->at[t] + u * VL, bf16), sum[u]);
    }
}

MX_INLINE void put_block(void *y, int64_t i, const vf sum[UNROLL], const bool bf16, const bool pairs, const bool stream)
{
    for (int u = 0; u < UNROLL; u += 2)
        if (pairs)
            row_put(y, i + u * VL, sum + u, true, stream);
        else
            row_store2(y, i + u * VL, sum[u], sum[u + 1], bf16, stream);
}

/* Elements `first` to before first + n of a row of `in` elements; those that it does not have are 0. */
static void copy_part(const char *x, int64_t size, int64_t in, int64_t first, int64_t n, char *copy)
{
    int64_t from = mx_min(mx_max(-first, 0), n), to = mx_max(mx_min(in - first, n), from);
    memset(copy, 0, (size_t)(from * size));
    memcpy(copy + from * size, x + (first + from) * size, (size_t)((to - from) * size));
    memset(copy + to * size, 0, (size_t)((n - to) * size));
}

MX_INLINE void weigh_row_as(const mx_row_windows *w, int64_t from, int64_t to, const char *x, const float *by, vf start,
                            char *y, const bool bf16, const bool pairs, const bool stream)
{
    const int64_t size = bf16 ? 2 : 4, low = -w->first, high = w->in - w->first - w->span;
    int64_t head = stream ? row_head(y + from * size, to - from, bf16) : 0;
    for (int64_t i = from, some; i < to; i += some) {
        vf sum[UNROLL];
        some = head > 0 && i == from ? mx_min(head, BLOCK) : mx_min(to - i, BLOCK);
        prefetch_ahead(x + (i + w->first) * size, BLOCK * (bf16 ? 2 : 4));
        if (some == BLOCK && i >= low && i + BLOCK <= high) {
            weigh_block(w, x + (i + w->first) * size, by, start, bf16, pairs, sum);
            put_block(y, i, sum, bf16, pairs, stream);
        } else {
            char copy[(BLOCK + MX_ROW_SPAN) * sizeof(float)], results[BLOCK * sizeof(float)];
            copy_part(x, size, w->in, i + w->first, BLOCK + w->span, copy);
            weigh_block(w, copy, by, start, bf16, pairs, sum);
            put_block(results, 0, sum, bf16, pairs, false);
            memcpy(y + i * size, results, (size_t)(some * size));
        }
    }
}

/* The weights as pairs of bf16, if they are exact in it and the taps of each pair are neighbours. */
static bool pair_weights(const mx_row_windows *w, const float *weight, float *pairs)
{
    bool can = w->taps % 2 == 0;
    for (int64_t t = 0; t + 1 < w->taps && can; t += 2) {
        uint32_t bits[2], both;
        memcpy(bits, weight + t, sizeof bits);
        both = bits[0] >> 16 | bits[1];
        memcpy(pairs + t / 2, &both, sizeof both);
        can = w->at[t + 1] == w->at[t] + 1 && ((bits[0] | bits[1]) & 0xffff) == 0;
    }
    return can;
}

static void weigh_row(const mx_row_windows *w, int64_t from, int64_t to, mx_array x, const float *weight, float start,
                      mx_array y, bool stream)
{
    float pairs[MX_ROW_SPAN + 1];
    vf first = vf_set1(start);
    if (!mx_is_bf16(x.dtype))
        stream ? weigh_row_as(w, from, to, x.data, weight, first, y.data, false, false, true)
               : weigh_row_as(w, from, to, x.data, weight, first, y.data, false, false, false);
    else if (HAS_PAIRS && pair_weights(w, weight, pairs))
        stream ? weigh_row_as(w, from, to, x.data, pairs, first, y.data, true, true, true)
               : weigh_row_as(w, from, to, x.data, pairs, first, y.data, true, true, false);
    else
        stream ? weigh_row_as(w, from, to, x.data, weight, first, y.data, true, false, true)
               : weigh_row_as(w, from, to, x.data, weight, first, y.data, true, false, false);
}

/* The first n elements of a vector, or of pairs that fill one. */
MX_INLINE vf load_some(const void *x, int64_t n, const bool bf16, const bool pairs)
{
    if (pairs)
        return load_pairs(x, n);
    return n >= VL ? row_load(x, 0, bf16) : row_load_part(x, 0, n, bf16);
}

/* Of `count` taps and results from <= i < to. */
MX_INLINE void dots_row_of(const int count, const mx_row_windows *w, int64_t from, int64_t to, const int64_t *at,
                           const char *g, const char *x, double *sums, const bool bf16, const bool pairs)
{
    const int64_t size = bf16 ? 2 : 4, low = -w->first, high = w->in - w->first - w->span, step = pairs ? 2 * VL : VL;
    vf sum[UNROLL];
    for (int t = 0; t < count; t++)
        sum[t] = vf_zero();
    for (int64_t i = from; i < to; i += step) {
        char copy[(2 * VL + MX_ROW_SPAN) * sizeof(float)];
        const char *row = x + (i + w->first) * size;
        int64_t n = mx_min(to - i, step);
        prefetch_ahead(row, 64);
        prefetch_ahead(g + i * size, 64);
        if (i < low || i + n > high) {
            copy_part(x, size, w->in, i + w->first, step + w->span, copy);
            row = copy;
        }
        vf v = load_some(g + i * size, n, bf16, pairs);
        for (int t = 0; t < count; t++) {
            vf u = load_some(row + at[t] * size, n, bf16, pairs);
            sum[t] = pairs ? add_pairs(sum[t], v, u) : vf_fma(v, u, sum[t]);
        }
    }
    for (int t = 0; t < count; t++)
        sums[t] += (double)vf_sum(sum[t]);
}

MX_INLINE void dots_row_as(const mx_row_windows *w, const void *g, const void *x, double *sums, const bool bf16,
                           const bool pairs)
{
    for (int64_t from = 0; from < w->out; from += PIECE) {
        int64_t t = 0, to = mx_min(from + PIECE, w->out);
        for (; t + UNROLL <= w->taps; t += UNROLL)
            dots_row_of(UNROLL, w, from, to, w->at + t, g, x, sums + t, bf16, pairs);
        for (; t < w->taps; t++)
            dots_row_of(1, w, from, to, w->at + t, g, x, sums + t, bf16, pairs);
    }
}

static void dots_row(const mx_row_windows *w, mx_array g, mx_array x, double *sums)
{
    if (!mx_is_bf16(x.dtype))
        dots_row_as(w, g.data, x.data, sums, false, false);
    else if (HAS_PAIRS)
        dots_row_as(w, g.data, x.data, sums, true, true);
    else
        dots_row_as(w, g.data, x.data, sums, true, false);
}

/* ---- gradients of pooling ---- */

MX_INLINE vf add_where_equal(vf sum, vi a, vi b, vf v)
{
#if MX_SIMD_512
    return _mm512_mask_add_ps(sum, _mm512_cmpeq_epi32_mask(a, b), sum, v);
#else
    return sum + _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b)), v);
#endif
}

/* Copies of the rows of dy, and of their places, that a row of x meets: column 0 of x meets their first floats. */
typedef struct met {
    const float *dy;
    const int32_t *places;
    int64_t rows, step;
} met;

/* Of columns with remainder r from number q on. here: the places of the first vector. */
MX_INLINE void spread_as(const int vectors, const bool chosen, const mx_spreading *s, const met *m, int64_t r,
                         int64_t q, vi here, vf *sum)
{
    const int64_t *shift = s->shift + r * s->span, taps = s->taps[r], from = q - s->least;
    vf of_row[UNROLL];
    for (int u = 0; u < vectors; u++)
        sum[u] = vf_zero();
    for (int64_t i = 0; i < m->rows; i++) {
        for (int u = 0; u < vectors; u++)
            of_row[u] = vf_zero();
        for (int64_t t = 0; t < taps; t++) {
            int64_t at = i * m->step + from + shift[t];
            for (int u = 0; u < vectors; u++) {
                vf v = vf_load(m->dy + at + u * VL);
                vi there = vi_add(here, vi_set1(u * VL * (int32_t)s->stride[1]));
                if (chosen)
                    of_row[u] = add_where_equal(of_row[u], vi_load(m->places + at + u * VL), there, v);
                else
                    of_row[u] = of_row[u] + v;
            }
        }
        for (int u = 0; u < vectors; u++)
            sum[u] = sum[u] + of_row[u];
    }
    if (!chosen)
        for (int u = 0; u < vectors; u++)
            sum[u] = sum[u] * vf_set1(s->scale);
}

/* Such columns of all remainders: the whole row, or by remainder, `phase` floats apart, if there are more than 2. */
MX_INLINE void spread_columns(const int vectors, const bool chosen, const mx_spreading *s, const met *m, int64_t q,
                              vi here, float *y, int64_t phase)
{
    vf sum[UNROLL], odd[UNROLL];
    spread_as(vectors, chosen, s, m, 0, q, here, sum);
    if (s->stride[1] == 2) {
        spread_as(vectors, chosen, s, m, 1, q, vi_add(here, vi_set1(1)), odd);
        for (int u = 0; u < vectors; u++)
            vf_store_in_turn(y + 2 * (q + u * VL), sum[u], odd[u]);
        return;
    }
    for (int u = 0; u < vectors; u++)
        vf_store(y + q + u * VL, sum[u]);
    for (int64_t r = 1; r < s->stride[1]; r++) {
        spread_as(vectors, chosen, s, m, r, q, vi_add(here, vi_set1((int32_t)r)), sum);
        for (int u = 0; u < vectors; u++)
            vf_store(y + r * phase + q + u * VL, sum[u]);
    }
}

/* A row of n columns of one remainder. */
MX_INLINE void spread_row(const bool chosen, const mx_spreading *s, const met *m, int64_t n, vi here, float *y,
                          int64_t phase)
{
    const int32_t step = (int32_t)s->stride[1];
    int64_t q = 0;
    for (; q + UNROLL * VL <= n; q += UNROLL * VL)
        spread_columns(UNROLL, chosen, s, m, q, vi_add(here, vi_set1((int32_t)q * step)), y, phase);
    for (; q + VL < n; q += 2 * VL)
        spread_columns(2, chosen, s, m, q, vi_add(here, vi_set1((int32_t)q * step)), y, phase);
    if (q < n)
        spread_columns(1, chosen, s, m, q, vi_add(here, vi_set1((int32_t)q * step)), y, phase);
}

static bool are_below(const int32_t *places, int64_t n, uint32_t most)
{
    uint32_t beyond = 0;
    for (int64_t i = 0; i < n; i++)
        beyond |= (uint32_t)places[i] >= most;
    return !beyond;
}

static bool spread(const mx_spreading *s, const mx_spread_part *part, mx_array dy, const int32_t *places, float *y,
                   float *scratch)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int64_t n = part->columns[1] - part->columns[0], step = s->stride[1], first = part->columns[0] * step;
    const int64_t width = mx_min(n * step, s->in[1] - first), out = s->out[1], row = mx_spreading_row(s, n);
    const int64_t low = mx_spreading_low(s, part->rows[0]);
    const int64_t rows = mx_max(mx_spreading_high(s, part->rows[1] - 1) - low, 0);
    const mx_row_copy copy = {.n = n + s->most - s->least, .first = part->columns[0] + s->least, .in = out, .step = 1};
    float *place = scratch + s->copy, *phases = places ? place + s->copy : place;
    const vi lanes = vi_mullo(vi_load(numbers), vi_set1((int32_t)step));
    dy.data = (char *)dy.data + low * out * (int64_t)mx_dtype_bytes(dy.dtype);
    fill(&copy, rows, dy, out, scratch, row);
    if (places)
        fill(&copy, rows, (mx_array){(void *)(places + low * out), MX_F32}, out, place, row);
    for (int64_t line = part->rows[0], from = 0, to = 0; line < part->rows[1]; line++, y += width) {
        while (from < rows && (low + from) * s->stride[0] + s->size <= line + s->before)
            from++;
        while (to < rows && (low + to) * s->stride[0] <= line + s->before)
            to++;
        const met m = {scratch + from * row, (const int32_t *)place + from * row, to - from, row};
        const vi here = vi_add(lanes, vi_set1((int32_t)(line * s->in[1] + first)));
        float *out_row = step > 2 ? phases : y;
        if (places)
            spread_row(true, s, &m, n, here, out_row, n + VL);
        else
            spread_row(false, s, &m, n, here, out_row, n + VL);
        for (int64_t x = 0; step > 2 && x < width; x++)
            y[x] = phases[x % step * (n + VL) + x / step];
    }
    return !places || are_below(places + low * out, rows * out, (uint32_t)(s->in[0] * s->in[1]));
}

#if MX_SIMD_512
#define FOLD MX_SIMD_NAME(mx_fold)
#define UNFOLD MX_SIMD_NAME(mx_unfold)
#else
#define FOLD NULL
#define UNFOLD NULL
#endif

const mx_window_paths MX_SIMD_NAME(mx_windows) = {weigh, weigh_row, dots_row, dots,   maxima,
                                                  FOLD,  fill,      put,      spread, UNFOLD};
