/* Maxima and means over windows of 2 columns, two apart, or of 3 columns around each or every second one, without a
 * copy of what they meet: in single rows, or in as many rows, as far apart. A block of results reads whole vectors of
 * each row; what its windows meet beside these is one element before and one behind. The last block of a row is so far
 * to the left that it is a whole one. Rows are folded first, once for all the windows that share them. Gradients go
 * through the same windows the other way: each row of windows is loaded once and added to the rows that it covers. */
#include "kernels/simd/folds.h"

#include "kernels/simd/rows.h"

#include <math.h>
#include <string.h>

#if MX_SIMD_512

enum kind { MEANS, MAXIMA, PLACES };

/* A block has two vectors of results; in bf16, of windows one column apart, the even ones and the odd ones. */
enum { SPAN = 2 * VL };

/* In all lanes, the element of a row before element i, or element i itself; `outside` if it is none of `in`. Of bf16 it
 * is loaded together with its neighbour. */
MX_INLINE vf element_before(const void *row, int64_t i, float outside, const bool bf16)
{
    int32_t both;
    if (i == 0)
        return vf_set1(outside);
    if (!bf16)
        return vf_set1(((const float *)row)[i - 1]);
    memcpy(&both, (const mx_bf16 *)row + i - 1, sizeof both);
    return vi_float(vi_shl(vi_set1(both), 16));
}

MX_INLINE vf element_at(const void *row, int64_t i, int64_t in, float outside, const bool bf16)
{
    int32_t both;
    if (i >= in)
        return vf_set1(outside);
    if (!bf16)
        return vf_set1(((const float *)row)[i]);
    memcpy(&both, (const mx_bf16 *)row + i - 1, sizeof both);
    return vi_float(vi_and(vi_set1(both), vi_set1((int32_t)0xffff0000)));
}

MX_INLINE vi choose(vm mask, vi yes, vi no) { return vf_bits(vf_select(mask, vi_float(yes), vi_float(no))); }
MX_INLINE vf shift_up(vf before, vf x) { return vi_float(_mm512_alignr_epi32(vf_bits(x), vf_bits(before), VL - 1)); }
MX_INLINE vf shift_down(vf x, vf behind) { return vi_float(_mm512_alignr_epi32(vf_bits(behind), vf_bits(x), 1)); }

/* What taps meet of a row in 2 VL columns from `column` on: of a vector of windows two columns apart, or of two
 * vectors. all: a sum that becomes NaN once an element is not finite. */
MX_INLINE void taps_of(const enum kind kind, const int wide, const int step, const bool bf16, const void *row,
                       int64_t column, int64_t in, float outside, vf *all, vf taps[][3])
{
    vf a, b;
    if (bf16) {
        vf_split_bf16((const mx_bf16 *)row + column, &a, &b);
    } else {
        a = vf_load((const float *)row + column);
        b = vf_load((const float *)row + column + VL);
    }
    if (kind != MEANS)
        *all = vf_fma(b, vf_zero(), vf_fma(a, vf_zero(), *all));
    if (!bf16 && step == 2)
        vf_split(a, b, &a, &b);
    if (wide == 2) {
        taps[0][0] = a;
        taps[0][1] = b;
        return;
    }
    vf before = element_before(row, column, outside, bf16);
    taps[0][0] = shift_up(before, bf16 || step == 2 ? b : a);
    taps[0][1] = a;
    taps[0][2] = bf16 || step == 2 ? b : shift_down(a, b);
    if (step == 2)
        return;
    vf behind = element_at(row, column + 2 * VL, in, outside, bf16);
    taps[1][0] = bf16 ? a : shift_up(a, b);
    taps[1][1] = b;
    taps[1][2] = shift_down(bf16 ? a : b, behind);
}

/* Rows of a block: the sums or maxima of their columns, and the places of these, counted from the window's column. */
typedef struct folded {
    vf best[2];
    vi found[2];
} folded;

MX_INLINE folded fold_row(const enum kind kind, const int wide, const int step, const bool bf16, const mx_windows *w,
                          const char *plane, int64_t row, int64_t column, vf *all)
{
    const float outside = kind == MEANS ? 0 : -INFINITY;
    const int64_t size = bf16 ? 2 : 4;
    const char *from = plane + row * w->in[1] * size;
    folded r;
    vf taps[2][3];
    if (row < 0 || row >= w->in[0]) {
        for (int u = 0; u < 2; u++) {
            r.best[u] = vf_set1(outside);
            r.found[u] = vi_set1(0);
        }
        return r;
    }
    for (int u = 0; u < step; u++) {
        prefetch_ahead(from + (column + u * 2 * VL) * size, bf16 ? 64 : 128);
        taps_of(kind, wide, step, bf16, from, column + u * 2 * VL, w->in[1], outside, all, taps + u);
    }
    for (int u = 0; u < 2; u++) {
        r.best[u] = taps[u][0];
        r.found[u] = vi_set1(0);
        for (int t = 1; t < wide; t++) {
            if (kind == PLACES)
                r.found[u] = choose(vf_gt(taps[u][t], r.best[u]), vi_set1(t), r.found[u]);
            if (kind == MEANS)
                r.best[u] = r.best[u] + taps[u][t];
            else
                r.best[u] = vf_max(taps[u][t], r.best[u]);
        }
        r.found[u] = vi_add(r.found[u], vi_set1((int32_t)(row * w->in[1])));
    }
    return r;
}

/* The same of the columns of `a` and of the rows below, `b`. */
MX_INLINE folded fold_both(const enum kind kind, folded a, folded b)
{
    for (int u = 0; u < 2; u++) {
        if (kind == PLACES)
            a.found[u] = choose(vf_gt(b.best[u], a.best[u]), b.found[u], a.found[u]);
        if (kind == MEANS)
            a.best[u] = a.best[u] + b.best[u];
        else
            a.best[u] = vf_max(b.best[u], a.best[u]);
    }
    return a;
}

/* Stores a block; `turned`: even and odd ones. What is streamed is whole cache lines, also of the last block of a row.
 */
MX_INLINE void put_block(const vf v[2], void *y, const bool bf16, const bool turned, bool stream)
{
    if (bf16) {
        const vi bits = turned ? vf_join_bf16(v[0], v[1]) : vf_pack_bf16(v[0], v[1]);
        stream ? vi_stream(y, bits) : vi_store(y, bits);
        return;
    }
    vf a = v[0], b = v[1];
    if (turned) {
        const vi low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        a = _mm512_permutex2var_ps(v[0], low, v[1]);
        b = _mm512_permutex2var_ps(v[0], vi_add(low, vi_set1(8)), v[1]);
    }
    if (stream) {
        vf_stream(y, a);
        vf_stream((float *)y + VL, b);
    } else {
        vf_store(y, a);
        vf_store((float *)y + VL, b);
    }
}

/* Windows of `high` rows, `down` apart. */
MX_INLINE bool fold_as(const enum kind kind, const int wide, const int step, const int high, const int down,
                       const bool bf16, const mx_fold *f, const mx_tile *tile, const char *plane, char *y,
                       int32_t *place)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const mx_windows *w = &f->w;
    const bool turned = bf16 && step == 1;
    const int64_t n = tile->j1 - tile->j0, out = w->out[1], size = bf16 ? 2 : 4;
    const vi lanes = vi_mullo(vi_load(numbers), vi_set1(turned ? 2 : step));
    const vi second = vi_set1(turned ? 1 : VL * step); /* what the second vector's places are beyond the first one's */
    vf all = vf_zero(), scale = vf_set1(f->scale);
    for (int64_t block = 0; block < n; block += SPAN) {
        const int64_t j = block + SPAN <= n ? block : n - SPAN, column = (tile->j0 + j) * step;
        const vi first = vi_add(lanes, vi_set1((int32_t)(column + w->least[1])));
        /* The rows of a window in order. Not an array: that would be in memory. */
        folded a, b = {0}, c = {0};
        if (high > down) {
            const int64_t row = tile->i0 * down + w->least[0];
            b = fold_row(kind, wide, step, bf16, w, plane, row, column, &all);
            c = down == 1 ? fold_row(kind, wide, step, bf16, w, plane, row + 1, column, &all) : b;
        }
        for (int64_t i = tile->i0; i < tile->i1; i++) {
            const int64_t top = i * down + w->least[0], to = i * out + tile->j0 + j;
            if (high > down) {
                a = down == 1 ? b : c;
                b = down == 1 ? c : fold_row(kind, wide, step, bf16, w, plane, top + 1, column, &all);
                c = fold_row(kind, wide, step, bf16, w, plane, top + 2, column, &all);
            } else {
                a = fold_row(kind, wide, step, bf16, w, plane, top, column, &all);
                b = high == 2 ? fold_row(kind, wide, step, bf16, w, plane, top + 1, column, &all) : a;
            }
            folded r = high == 1 ? a : fold_both(kind, a, b);
            if (high == 3)
                r = fold_both(kind, r, c);
            if (kind == MEANS) {
                r.best[0] = r.best[0] * scale;
                r.best[1] = r.best[1] * scale;
            }
            put_block(r.best, y + to * size, bf16, turned, f->stream);
            if (kind == PLACES) {
                const vi here[2] = {vi_add(r.found[0], first), vi_add(r.found[1], vi_add(first, second))};
                const vf places[2] = {vi_float(here[0]), vi_float(here[1])};
                put_block(places, place + to, false, turned, f->stream);
            }
        }
    }
    return kind == MEANS || !vm_any(vf_is_nan(all));
}

/* call(width of a window, columns to the next one, height, rows to the next one), as constants for the windows w. */
#define BY_FORM(w, call)                                                                                               \
    ((w)->most[1] - (w)->least[1] == 1 ? ((w)->most[0] == (w)->least[0] ? call(2, 2, 1, 1) : call(2, 2, 2, 2))         \
     : (w)->stride[1] == 1             ? ((w)->most[0] == (w)->least[0] ? call(3, 1, 1, 1) : call(3, 1, 3, 1))         \
                                       : ((w)->most[0] == (w)->least[0] ? call(3, 2, 1, 1) : call(3, 2, 3, 2)))

MX_INLINE bool fold_dtype(const enum kind kind, const bool bf16, const mx_fold *f, const mx_tile *tile, const void *x,
                          char *y, int32_t *place)
{
#define FOLD(wide, step, high, down) fold_as(kind, wide, step, high, down, bf16, f, tile, x, y, place)
    return BY_FORM(&f->w, FOLD);
#undef FOLD
}

MX_INLINE bool fold_kind(const enum kind kind, const mx_fold *f, const mx_tile *tile, mx_array x, char *y,
                         int32_t *place)
{
    return mx_is_bf16(x.dtype) ? fold_dtype(kind, true, f, tile, x.data, y, place)
                               : fold_dtype(kind, false, f, tile, x.data, y, place);
}

bool MX_SIMD_NAME(mx_fold)(const mx_fold *f, const mx_tile *tile, mx_array x, mx_array y, int32_t *place)
{
    if (f->scale != 0)
        return fold_kind(MEANS, f, tile, x, y.data, NULL);
    return place ? fold_kind(PLACES, f, tile, x, y.data, place) : fold_kind(MAXIMA, f, tile, x, y.data, NULL);
}

/* ---- gradients ---- */

/* How many windows of one row an element of dx meets, in vector v of two: they are neighbours, or with windows two
 * columns apart the even columns and the odd ones. */
MX_INLINE int windows_met(const int wide, const int step, const int v)
{
    return wide == 2 || (step == 2 && v == 0) ? 1 : step == 2 ? 2 : 3;
}

/* Of the windows that two vectors meet in a row: elements of dy and places, from the last window to the first one. */
typedef struct met {
    vf dy[2][3];
    vi place[2][3];
} met;

MX_INLINE vf load_masked(const void *row, int64_t i, vm mask, const bool bf16)
{
    return bf16 ? vf_from_bf16(_mm256_maskz_loadu_epi16(mask, (const mx_bf16 *)row + i))
                : _mm512_maskz_loadu_ps(mask, (const float *)row + i);
}

/* From the window of the first column on. first, last: the lanes of vectors that begin with the window before it, or
 * end with the one behind the last column's, that exist; others have 0. */
MX_INLINE met met_in_row(const bool chosen, const int wide, const int step, const bool bf16, const void *dy,
                         const int32_t *place, vm first, vm last)
{
    met m;
    for (int v = 0; v < 2; v++) {
        const int windows = windows_met(wide, step, v);
        for (int u = 0; u < windows; u++) {
            const int64_t j = (step == 1 ? v * VL : 0) + windows / 2 - u;
            const bool left = step == 1 && v == 0 && u == 2, right = v == 1 && u == 0 && windows > 1;
            const vm mask = left ? first : last;
            m.dy[v][u] = left || right ? load_masked(dy, j, mask, bf16) : row_load(dy, j, bf16);
            if (chosen)
                m.place[v][u] = left || right ? vf_bits(load_masked(place, j, mask, false)) : vi_load(place + j);
        }
    }
    return m;
}

/* The sums of dy in a row of windows; `chosen`: where the place is that of the element of dx, `here`. Zeros are added
 * by the multipliers, since comparing keeps the adders busy. */
MX_INLINE void sum_met(const bool chosen, const int wide, const int step, const met *m, const vi here[2], vf sum[2])
{
    for (int v = 0; v < 2; v++)
        for (int u = 0; u < windows_met(wide, step, v); u++) {
            const vf dy = m->dy[v][u];
            if (!chosen) {
                sum[v] = u == 0 ? dy : _mm512_add_ps(sum[v], dy);
                continue;
            }
            const vm mask = _mm512_cmpeq_epi32_mask(m->place[v][u], here[v]);
            sum[v] = u == 0 ? _mm512_maskz_fmadd_ps(mask, dy, vf_set1(1), vf_zero())
                            : _mm512_mask3_fmadd_ps(dy, vf_set1(1), sum[v], mask);
        }
}

/* Stores 2 VL columns of a row, if it belongs to the tile. */
MX_INLINE void put_row(const bool chosen, const int step, const bool bf16, const mx_fold *f, const mx_tile *tile,
                       int64_t row, int64_t column, const vf sum[2], char *dx)
{
    vf v[2] = {sum[0], sum[1]};
    if (row < tile->i0 || row >= tile->i1)
        return;
    for (int u = 0; u < 2 && !chosen; u++)
        v[u] = vf_fma(sum[u], vf_set1(f->scale), vf_zero()); /* a sum that starts from 0 is not -0 */
    put_block(v, dx + (row * f->w.in[1] + column) * (bf16 ? 2 : 4), bf16, step == 2, f->stream);
}

/* 2 VL columns of a tile's rows, which meet windows of rows low to before end. Row `row` + d of dx, d < high, meets the
 * next row of windows; its sum so far is sum[d]. *next counts elements of dy in the order of memory, in which they are
 * prefetched: blocks are read in another order. Returns the greatest of `most` and of places. */
MX_INLINE vi unfold_block(const bool chosen, const int wide, const int step, const int high, const int down,
                          const bool bf16, const mx_fold *f, const mx_tile *tile, int64_t low, int64_t end,
                          int64_t column, const char *dy, const int32_t *place, char *dx, vi most, int64_t *next)
{
    static const int32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const mx_windows *w = &f->w;
    const vi lanes = vi_mullo(vi_load(numbers), vi_set1(step)), second = vi_set1(step == 2 ? 1 : VL);
    const vm first = (vm)(0xffffu << (column == 0)), last = 0xffffu >> (column + SPAN == w->in[1]);
    int64_t row = low * down + (high == 1 ? 0 : w->least[0]);
    vf sum[3][2];
    for (int d = 0; d < 3; d++)
        sum[d][0] = sum[d][1] = vf_zero();
    for (int64_t i = low; i < end; i++, row += down) {
        const int64_t from = i * w->out[1] + column / step;
        const met m =
            met_in_row(chosen, wide, step, bf16, dy + from * (bf16 ? 2 : 4), chosen ? place + from : NULL, first, last);
        prefetch_ahead(dy + *next * (bf16 ? 2 : 4), SPAN / step * (bf16 ? 2 : 4));
        if (chosen)
            prefetch_ahead(place + *next, SPAN / step * 4);
        *next += SPAN / step;
        vi here = vi_add(lanes, vi_set1((int32_t)(row * w->in[1] + column)));
        if (chosen)
            most = _mm512_max_epu32(most, step == 2 ? m.place[0][0] : _mm512_max_epu32(m.place[0][1], m.place[1][1]));
#pragma GCC unroll 3
        for (int d = 0; d < high; d++) {
            const vi places[2] = {here, vi_add(here, second)};
            vf more[2];
            sum_met(chosen, wide, step, &m, places, more);
            here = vi_add(here, vi_set1((int32_t)w->in[1]));
            for (int v = 0; v < 2; v++)
                sum[d][v] = d < high - down ? _mm512_add_ps(sum[d][v], more[v]) : more[v];
            if (d < down)
                put_row(chosen, step, bf16, f, tile, row + d, column, sum[d], dx);
        }
#pragma GCC unroll 3
        for (int d = 0; d < high - down; d++)
            for (int v = 0; v < 2; v++)
                sum[d][v] = sum[d + down][v];
    }
#pragma GCC unroll 3
    for (int d = 0; d < high - down; d++)
        put_row(chosen, step, bf16, f, tile, row++, column, sum[d], dx);
    const vf none[2] = {vf_zero(), vf_zero()};
    for (; high > 1 && row < tile->i1; row++) /* which no window meets */
        put_row(chosen, step, bf16, f, tile, row, column, none, dx);
    return most;
}

MX_INLINE bool unfold_as(const bool chosen, const int wide, const int step, const int high, const int down,
                         const bool bf16, const mx_fold *f, const mx_tile *tile, const char *dy, const int32_t *place,
                         char *dx)
{
    const mx_windows *w = &f->w;
    const int64_t n = tile->j1 - tile->j0, before = -w->least[0], pixels = w->in[0] * w->in[1];
    const int64_t low = mx_max((tile->i0 + before - high + down) / down, 0);
    const int64_t end = mx_min((tile->i1 - 1 + before) / down + 1, w->out[0]);
    int64_t next = low * w->out[1];
    vi most = vi_set1(0);
    /* Rows one after the other if no two have windows in common. */
    for (int64_t i = high == 1 ? tile->i0 : tile->i1 - 1; i < tile->i1; i++)
        for (int64_t block = 0; block < n; block += SPAN)
            most = unfold_block(chosen, wide, step, high, down, bf16, f, tile, high == 1 ? i : low,
                                high == 1 ? i + 1 : end, tile->j0 + (block + SPAN <= n ? block : n - SPAN), dy, place,
                                dx, most, &next);
    return !chosen || _mm512_cmplt_epu32_mask(most, vi_set1((int32_t)pixels)) == 0xffff;
}

MX_INLINE bool unfold_dtype(const bool chosen, const bool bf16, const mx_fold *f, const mx_tile *tile, const void *dy,
                            const int32_t *place, char *dx)
{
#define UNFOLD(wide, step, high, down) unfold_as(chosen, wide, step, high, down, bf16, f, tile, dy, place, dx)
    return BY_FORM(&f->w, UNFOLD);
#undef UNFOLD
}

bool MX_SIMD_NAME(mx_unfold)(const mx_fold *f, const mx_tile *tile, mx_array dy, const int32_t *place, mx_array dx)
{
    if (mx_is_bf16(dy.dtype))
        return place ? unfold_dtype(true, true, f, tile, dy.data, place, dx.data)
                     : unfold_dtype(false, true, f, tile, dy.data, NULL, dx.data);
    return place ? unfold_dtype(true, false, f, tile, dy.data, place, dx.data)
                 : unfold_dtype(false, false, f, tile, dy.data, NULL, dx.data);
}

#endif
