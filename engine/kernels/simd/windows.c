#include "kernels/windows.h"

#include "kernels/context.h"
#include "kernels/simd/rows.h"

#include <string.h>

enum { UNROLL = 4 };

MX_INLINE void weigh_as(const int vectors, const float *x, int64_t taps, const int64_t *at, const float *weight,
                        vf start, float *y)
{
    vf sum[UNROLL];
    for (int u = 0; u < vectors; u++)
        sum[u] = start;
    for (int64_t t = 0; t < taps; t++) {
        vf w = vf_set1(weight[t]);
        for (int u = 0; u < vectors; u++)
            sum[u] = vf_fma(w, vf_load(x + at[t] + u * VL), sum[u]);
    }
    for (int u = 0; u < vectors; u++)
        vf_store(y + u * VL, sum[u]);
}

static void weigh(int64_t rows, int64_t n, const float *x, int64_t x_step, int64_t taps, const int64_t *at,
                  const float *weight, float start, float *y)
{
    vf first = vf_set1(start);
    for (int64_t r = 0; r < rows; r++, x += x_step, y += n) {
        int64_t i = 0;
        for (; i + UNROLL * VL <= n; i += UNROLL * VL)
            weigh_as(UNROLL, x + i, taps, at, weight, first, y + i);
        for (; i + 2 * VL <= n; i += 2 * VL)
            weigh_as(2, x + i, taps, at, weight, first, y + i);
        for (; i < n; i += VL)
            weigh_as(1, x + i, taps, at, weight, first, y + i);
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

/* A float's bits from a key, and back: those of negative values count down. */
MX_INLINE vi flip(vi bits) { return vi_xor(bits, vi_and(vi_sar(bits, 31), vi_set1(INT32_MAX))); }

MX_INLINE vm vi_equal(vi a, vi b)
{
#if MX_SIMD_512
    return _mm512_cmpeq_epi32_mask(a, b);
#else
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b));
#endif
}

MX_INLINE vi choose(vm mask, vi yes, vi no) { return vf_bits(vf_select(mask, vi_float(yes), vi_float(no))); }

MX_INLINE void maxima_as(const int vectors, const bool places, const int32_t *x, int64_t taps, const int64_t *at,
                         const int32_t *place_of, vi lanes, int32_t step, float *y, int32_t *place)
{
    vi best[UNROLL], found[UNROLL];
    for (int u = 0; u < vectors; u++) {
        best[u] = vi_set1(INT32_MIN);
        found[u] = vi_set1(0);
    }
    for (int64_t t = 0; t < taps; t++) {
        vi here = vi_set1(places ? place_of[t] : 0);
        for (int u = 0; u < vectors; u++) {
            vi key = vi_load(x + at[t] + u * VL);
            vm greater = vi_gt(key, best[u]);
            best[u] = choose(greater, key, best[u]);
            if (places)
                found[u] = choose(greater, here, found[u]);
        }
    }
    for (int u = 0; u < vectors; u++) {
        vi_store((int32_t *)y + u * VL, flip(best[u]));
        if (places)
            vi_store(place + u * VL, vi_add(found[u], vi_add(lanes, vi_set1(u * VL * step))));
    }
}

MX_INLINE void maxima_of(const bool places, int64_t n, const int32_t *x, int64_t taps, const int64_t *at,
                         const int32_t *place_of, vi lanes, int32_t step, float *y, int32_t *place)
{
    int64_t i = 0;
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        maxima_as(UNROLL, places, x + i, taps, at, place_of, vi_add(lanes, vi_set1((int32_t)i * step)), step, y + i,
                  place + (places ? i : 0));
    for (; i + 2 * VL <= n; i += 2 * VL)
        maxima_as(2, places, x + i, taps, at, place_of, vi_add(lanes, vi_set1((int32_t)i * step)), step, y + i,
                  place + (places ? i : 0));
    for (; i < n; i += VL)
        maxima_as(1, places, x + i, taps, at, place_of, vi_add(lanes, vi_set1((int32_t)i * step)), step, y + i,
                  place + (places ? i : 0));
}

static void maxima(int64_t rows, int64_t n, const int32_t *x, int64_t x_step, int64_t taps, const int64_t *at,
                   const int32_t *place_of, int32_t first, int32_t row_step, int32_t step, float *y, int32_t *place)
{
    int32_t lane[VL];
    for (int l = 0; l < VL; l++)
        lane[l] = first + l * step;
    vi lanes = vi_load(lane);
    for (int64_t r = 0; r < rows; r++, x += x_step, y += n, lanes = vi_add(lanes, vi_set1(row_step)))
        if (place)
            maxima_of(true, n, x, taps, at, place_of, lanes, step, y, place + r * n);
        else
            maxima_of(false, n, x, taps, at, place_of, lanes, step, y, NULL);
}

/* ---- copies of rows ---- */

/* The lanes from `low` to before `high`. */
MX_INLINE vm lanes_between(int64_t low, int64_t high)
{
#if MX_SIMD_512
    return (vm)(vm_first(high) & ~vm_first(low));
#else
    return _mm256_andnot_ps(vm_first(low), vm_first(high));
#endif
}

/* Those lanes of the vector at element i, and zeros; the others are not read. */
MX_INLINE vf load_lanes(const void *x, int64_t i, int64_t low, int64_t high, const bool bf16)
{
#if MX_SIMD_512
    vm lanes = lanes_between(low, high);
    return bf16 ? vf_from_bf16(_mm256_maskz_loadu_epi16(lanes, (const mx_bf16 *)x + i))
                : _mm512_maskz_loadu_ps(lanes, (const float *)x + i);
#else
    if (!bf16)
        return _mm256_maskload_ps((const float *)x + i, _mm256_castps_si256(lanes_between(low, high)));
    float room[VL] = {0};
    for (int64_t l = low; l < high; l++)
        room[l] = mx_from_bf16(((const mx_bf16 *)x)[i + l]);
    return vf_load(room);
#endif
}

/* -0 plus 0 is 0. */
MX_INLINE vf key_of(vf v) { return vi_float(choose(vf_is_nan(v), vi_set1(INT32_MAX), flip(vf_bits(v + vf_zero())))); }

/* The vector from element i on of a row whose elements 0 to in - 1 are at x. */
MX_INLINE vf row_part(const void *x, int64_t i, int64_t in, const bool bf16, const bool keys)
{
    if (i >= 0 && i + VL <= in) {
        vf v = row_load(x, i, bf16);
        return keys ? key_of(v) : v;
    }
    int64_t low = mx_min(mx_max(-i, 0), VL), high = mx_max(mx_min(in - i, VL), low);
    vf v = load_lanes(x, i, low, high, bf16);
    return keys ? vf_select(lanes_between(low, high), key_of(v), vi_float(vi_set1(INT32_MIN))) : v;
}

MX_INLINE void fill_as(int64_t n, int64_t first, int64_t in, const void *x, int64_t step, float *y, int64_t phase,
                       const bool bf16, const bool keys)
{
    for (int64_t i = 0, some; step == 1 && i < n; i += some) { /* a few vectors at once where all are inside */
        some = first + i >= 0 && first + i + UNROLL * VL <= in && i + UNROLL * VL <= n ? UNROLL * VL : VL;
        if (some == VL) {
            vf_store(y + i, row_part(x, first + i, in, bf16, keys));
            continue;
        }
#pragma GCC unroll 4
        for (int u = 0; u < UNROLL; u++) {
            vf v = row_load(x, first + i + u * VL, bf16);
            vf_store(y + i + u * VL, keys ? key_of(v) : v);
        }
    }
    for (int64_t i = 0; step == 2 && i < n; i += 2 * VL) {
        vf even, odd;
        int64_t at = first + i;
        if (at < 0 || at + 2 * VL > in) {
            vf_split(row_part(x, at, in, bf16, keys), row_part(x, at + VL, in, bf16, keys), &even, &odd);
        } else {
            if (bf16)
                vf_split_bf16((const mx_bf16 *)x + at, &even, &odd);
            else
                vf_split(vf_load((const float *)x + at), vf_load((const float *)x + at + VL), &even, &odd);
            even = keys ? key_of(even) : even;
            odd = keys ? key_of(odd) : odd;
        }
        vf_store(y + i / 2, even);
        vf_store(y + phase + i / 2, odd);
    }
    for (int64_t i = 0; step > 2 && i < n; i += VL) {
        float lane[VL];
        vf_store(lane, row_part(x, first + i, in, bf16, keys));
        for (int64_t l = 0; l < mx_min(VL, n - i); l++)
            memcpy(&y[(i + l) % step * phase + (i + l) / step], &lane[l], sizeof *lane);
    }
}

static void fill(int64_t n, int64_t first, int64_t in, const void *x, bool bf16, bool keys, int64_t step, float *y,
                 int64_t phase)
{
    if (bf16)
        keys ? fill_as(n, first, in, x, step, y, phase, true, true)
             : fill_as(n, first, in, x, step, y, phase, true, false);
    else
        keys ? fill_as(n, first, in, x, step, y, phase, false, true)
             : fill_as(n, first, in, x, step, y, phase, false, false);
}

/* ---- gradients of pooling ---- */

/* The elements of dy that a row meets: rows low to before high. */
typedef struct met {
    const void *dy;
    const int32_t *places;
    int64_t low, high;
} met;

/* Of column q with remainder r, and its neighbours with it. `here`: their places. */
MX_INLINE vf spread_sum(const bool bf16, const bool chosen, const mx_spreading *s, const met *m, int64_t r, int64_t q,
                        vi here)
{
    const int64_t *shift = s->shift + r * s->span;
    int64_t n = s->out[1], taps = s->taps[r];
    vf sum = vf_zero();
    for (int64_t i = m->low; i < m->high; i++)
        for (int64_t t = 0; t < taps; t++) {
            int64_t j = q + shift[t], at = i * n + j;
            vf v;
            vi place = here;
            if (j >= 0 && j + VL <= n) {
                v = row_load(m->dy, at, bf16);
                if (chosen)
                    place = vi_load(m->places + at);
            } else {
                int64_t low = mx_min(mx_max(-j, 0), VL), high = mx_max(mx_min(n - j, VL), low);
                v = load_lanes(m->dy, at, low, high, bf16);
                if (chosen)
                    place = vf_bits(load_lanes(m->places, at, low, high, false));
            }
            sum = sum + (chosen ? vf_select(vi_equal(place, here), v, vf_zero()) : v);
        }
    return sum * vf_set1(s->scale);
}

/* A row of columns, of which the first has place `first`. */
MX_INLINE void spread_row(const bool bf16, const bool chosen, const mx_spreading *s, const met *m, int32_t first,
                          float *y, float *phases)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t width = s->in[1], step = s->stride[1], count = (width + step - 1) / step;
    vi lanes = vi_mullo(vi_load(numbers), vi_set1((int32_t)step));
    for (int64_t q = 0; step == 1 && q < count; q += VL)
        vf_store(y + q, spread_sum(bf16, chosen, s, m, 0, q, vi_add(lanes, vi_set1(first + (int32_t)q))));
    for (int64_t q = 0; step == 2 && q < count; q += VL) {
        vi here = vi_add(lanes, vi_set1(first + 2 * (int32_t)q));
        vf even = spread_sum(bf16, chosen, s, m, 0, q, here);
        vf_store_in_turn(y + 2 * q, even, spread_sum(bf16, chosen, s, m, 1, q, vi_add(here, vi_set1(1))));
    }
    if (step <= 2)
        return;
    for (int64_t r = 0; r < step; r++)
        for (int64_t q = 0; q < count; q += VL)
            vf_store(phases + r * s->phase + q,
                     spread_sum(bf16, chosen, s, m, r, q, vi_add(lanes, vi_set1(first + (int32_t)(q * step + r)))));
    for (int64_t x = 0; x < width; x++)
        y[x] = phases[x % step * s->phase + x / step];
}

MX_INLINE void spread_as(const bool bf16, const bool chosen, const mx_spreading *s, int64_t first, int64_t last,
                         const void *dy, const int32_t *places, float *y, float *phases)
{
    met m = {dy, places, mx_spreading_low(s, first), 0};
    m.high = m.low;
    for (int64_t row = first; row < last; row++, y += s->in[1]) {
        while (m.low < s->out[0] && m.low * s->stride[0] + s->size <= row + s->before)
            m.low++;
        while (m.high < s->out[0] && m.high * s->stride[0] <= row + s->before)
            m.high++;
        spread_row(bf16, chosen, s, &m, (int32_t)(row * s->in[1]), y, phases);
    }
}

static void spread(const mx_spreading *s, int64_t first, int64_t last, mx_array dy, const int32_t *places, float *y,
                   float *phases)
{
    if (mx_is_bf16(dy.dtype))
        places ? spread_as(true, true, s, first, last, dy.data, places, y, phases)
               : spread_as(true, false, s, first, last, dy.data, places, y, phases);
    else
        places ? spread_as(false, true, s, first, last, dy.data, places, y, phases)
               : spread_as(false, false, s, first, last, dy.data, places, y, phases);
}

const mx_window_paths MX_SIMD_NAME(mx_windows) = {weigh, dots, maxima, fill, spread};
