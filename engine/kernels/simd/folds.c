/* Maxima and means over windows of 2 columns, two apart, or of 3 columns around each or every second one, without a
 * copy of what they meet: in single rows, or in as many rows, as far apart. A block of results reads whole vectors of
 * each row; what its windows meet beside these is one element before and one behind. The last block of a row is so far
 * to the left that it is a whole one. Rows are folded first, once for all the windows that share them. */
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

MX_INLINE bool fold_dtype(const enum kind kind, const bool bf16, const mx_fold *f, const mx_tile *tile, const void *x,
                          char *y, int32_t *place)
{
    const bool single = f->w.most[0] == f->w.least[0];
    if (f->w.most[1] - f->w.least[1] == 1)
        return single ? fold_as(kind, 2, 2, 1, 1, bf16, f, tile, x, y, place)
                      : fold_as(kind, 2, 2, 2, 2, bf16, f, tile, x, y, place);
    if (f->w.stride[1] == 1)
        return single ? fold_as(kind, 3, 1, 1, 1, bf16, f, tile, x, y, place)
                      : fold_as(kind, 3, 1, 3, 1, bf16, f, tile, x, y, place);
    return single ? fold_as(kind, 3, 2, 1, 1, bf16, f, tile, x, y, place)
                  : fold_as(kind, 3, 2, 3, 2, bf16, f, tile, x, y, place);
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

#endif
