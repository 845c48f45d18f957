#include "kernels/windows.h"

#include "kernels/context.h"
#include "kernels/simd/rows.h"

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

static void weigh(int64_t n, const float *x, int64_t taps, const int64_t *at, const float *weight, float start,
                  float *y)
{
    int64_t i = 0;
    vf first = vf_set1(start);
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        weigh_as(UNROLL, x + i, taps, at, weight, first, y + i);
    for (; i < n; i += VL)
        weigh_as(1, x + i, taps, at, weight, first, y + i);
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
                         const int32_t *place_of, int32_t first, int32_t step, float *y, int32_t *place)
{
    int32_t lane[VL];
    for (int l = 0; l < VL; l++)
        lane[l] = first + l * step;
    vi lanes = vi_load(lane);
    int64_t i = 0;
    for (; i + UNROLL * VL <= n; i += UNROLL * VL)
        maxima_as(UNROLL, places, x + i, taps, at, place_of, vi_add(lanes, vi_set1((int32_t)i * step)), step, y + i,
                  place + (places ? i : 0));
    for (; i < n; i += VL)
        maxima_as(1, places, x + i, taps, at, place_of, vi_add(lanes, vi_set1((int32_t)i * step)), step, y + i,
                  place + (places ? i : 0));
}

static void maxima(int64_t n, const int32_t *x, int64_t taps, const int64_t *at, const int32_t *place_of, int32_t first,
                   int32_t step, float *y, int32_t *place)
{
    if (place)
        maxima_of(true, n, x, taps, at, place_of, first, step, y, place);
    else
        maxima_of(false, n, x, taps, at, place_of, first, step, y, NULL);
}

static void to_keys(int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf v = vf_load_part(x + i, left);
        vi key = choose(vf_not_equal(v, vf_zero()), flip(vf_bits(v)), vi_set1(0));
        vf_store_part(x + i, vi_float(choose(vf_is_nan(v), vi_set1(INT32_MAX), key)), left);
    }
}

MX_INLINE void split_by(int64_t n, const int64_t step, const float *x, float *y, int64_t phase)
{
    for (int64_t r = 0; r < step; r++)
        for (int64_t i = 0; i * step + r < n; i++)
            y[r * phase + i] = x[i * step + r];
}

static void split(int64_t n, int64_t step, const float *x, float *y, int64_t phase)
{
    int64_t i = 0;
    if (step != 2) {
        split_by(n, step, x, y, phase);
        return;
    }
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf even, odd;
        vf_split(vf_load(x + i), vf_load(x + i + VL), &even, &odd);
        vf_store(y + i / 2, even);
        vf_store(y + phase + i / 2, odd);
    }
    split_by(n - i, 2, x + i, y + i / 2, phase);
}

const mx_window_paths MX_SIMD_NAME(mx_windows) = {weigh, dots, maxima, to_keys, split};
