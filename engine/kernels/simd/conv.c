#include "kernels/conv.h"
#include "kernels/conv_rows.h"
#include "kernels/elementwise.h"
#include "kernels/simd/rows.h"
#include "kernels/simd/transpose.h"

#include <string.h>

enum { MOST_PIECES = 64 }; /* vectors of a line, which has no more columns than these */

typedef struct piece {
    int64_t from, to;
} piece;

/* The runs in vectors. */
static int64_t cut(const mx_conv_run *runs, int64_t n_runs, piece *pieces)
{
    int64_t n = 0;
    for (const mx_conv_run *r = runs; r < runs + n_runs; r++)
        for (int64_t i = 0; i < r->n; i += VL)
            pieces[n++] = (piece){r->from + i, r->to + i};
    return n;
}

/* A line: what a later piece has is written over what an earlier one has too much. */
MX_INLINE void gather_singles(const float *x, const piece *pieces, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        vf_store(out + pieces[i].to, vf_load(x + pieces[i].from));
}

MX_INLINE void gather_pairs(const float *even, const float *odd, const piece *pieces, int64_t n, uint32_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        vi upper = odd ? vf_bits(vf_load(odd + pieces[i].from)) : vi_set1(0);
        vi lower = vi_shr(vf_bits(vf_load(even + pieces[i].from)), 16);
        vi_store((int32_t *)out + pieces[i].to, vi_or(lower, upper));
    }
}

static void gather(const float *x, int64_t n, const int64_t *at, const mx_conv_run *runs, int64_t n_runs, bool pairs,
                   int64_t width, uint32_t *out)
{
    piece pieces[MOST_PIECES];
    int64_t count = cut(runs, n_runs, pieces);
    if (!pairs)
        for (int64_t e = 0; e < n; e++, out += width)
            gather_singles(x + at[e], pieces, count, (float *)out);
    else
        for (int64_t e = 0; e < n; e += 2, out += width)
            gather_pairs(x + at[e], e + 1 < n ? x + at[e + 1] : NULL, pieces, count, out);
}

/* Up to a vector at x[i]: the words of one or of two planes. */
MX_INLINE vi take_singles(const void *x, int64_t i, int64_t n, const bool bf16)
{
    return vf_bits(n >= VL ? row_load(x, i, bf16) : row_load_part(x, i, n, bf16));
}

MX_INLINE vi take_pairs(const void *x, int64_t i, int64_t step, bool odd, int64_t n)
{
    vi lower = vi_shr(take_singles(x, i, n, true), 16);
    return odd ? vi_or(lower, take_singles(x, i + step, n, true)) : lower;
}

MX_INLINE void take_as(const bool bf16, const bool pairs, const void *x, int64_t n, int64_t step,
                       const mx_conv_run *runs, int64_t n_runs, int64_t width, uint32_t *out)
{
    for (int64_t e = 0; e < n; e += pairs ? 2 : 1, out += width)
        for (int64_t k = 0; k < n_runs; k++) {
            const mx_conv_run r = runs[k]; /* a copy, which no store changes */
            for (int64_t i = 0; i < r.n; i += VL) {
                int64_t at = e * step + r.from + i, left = r.n - i;
                vi_store((int32_t *)out + r.to + i,
                         pairs ? take_pairs(x, at, step, e + 1 < n, left) : take_singles(x, at, left, bf16));
            }
        }
}

static void take(mx_array x, int64_t n, int64_t step, const mx_conv_run *runs, int64_t n_runs, bool pairs,
                 int64_t width, uint32_t *out)
{
    if (pairs)
        take_as(true, true, x.data, n, step, runs, n_runs, width, out);
    else if (mx_is_bf16(x.dtype))
        take_as(true, false, x.data, n, step, runs, n_runs, width, out);
    else
        take_as(false, false, x.data, n, step, runs, n_runs, width, out);
}

/* A row of n results. What is streamed are the whole cache lines in it. */
MX_INLINE void put_row(int64_t n, const float *x, vf add, void *y, const bool bf16, const bool stream)
{
    int64_t i = stream ? row_head(y, n, bf16) : 0;
    for (int64_t l = 0; l < i; l += VL)
        row_store_part(y, l, vf_load_part(x + l, mx_min(VL, i - l)) + add, mx_min(VL, i - l), bf16);
    for (; i + 2 * VL <= n; i += 2 * VL)
        row_store2(y, i, vf_load(x + i) + add, vf_load(x + i + VL) + add, bf16, stream);
    for (; !bf16 && i + VL <= n; i += VL)
        stream ? vf_stream((float *)y + i, vf_load(x + i) + add) : vf_store((float *)y + i, vf_load(x + i) + add);
    for (; i < n; i += VL)
        row_store_part(y, i, vf_load_part(x + i, mx_min(VL, n - i)) + add, mx_min(VL, n - i), bf16);
}

MX_INLINE void put_as(const bool bf16, const bool stream, int64_t m, int64_t n, const float *tile, int64_t width,
                      const float *bias, char *y, int64_t step)
{
    for (int64_t i = 0; i < m; i++, tile += width, y += step * (bf16 ? 2 : 4))
        put_row(n, tile, vf_set1(bias ? bias[i] : 0), y, bf16, stream);
}

static void put(int64_t m, int64_t n, const float *tile, int64_t width, const float *bias, mx_array y, int64_t step,
                bool stream)
{
    if (mx_is_bf16(y.dtype))
        stream ? put_as(true, true, m, n, tile, width, bias, y.data, step)
               : put_as(true, false, m, n, tile, width, bias, y.data, step);
    else
        stream ? put_as(false, true, m, n, tile, width, bias, y.data, step)
               : put_as(false, false, m, n, tile, width, bias, y.data, step);
}

/* Loads where the bits of a mask are set, and zeros. */
MX_INLINE vf load_masked(const float *x, vm mask)
{
#if MX_SIMD_512
    return _mm512_maskz_loadu_ps(mask, x);
#else
    return _mm256_maskload_ps(x, _mm256_castps_si256(mask));
#endif
}

/* The lanes l for which from <= l < to. */
MX_INLINE vm lanes(int64_t from, int64_t to)
{
    vm below = vm_first(mx_max(mx_min(from, VL), 0)), first = vm_first(mx_max(mx_min(to, VL), 0));
#if MX_SIMD_512
    return (vm)(first & ~below);
#else
    return _mm256_andnot_ps(below, first);
#endif
}

/* Lines in the inner loop: an element of y that was just written is not read at once. Vectors of y are aligned. */
MX_INLINE void add_terms(const int n_terms, int64_t m, int64_t rows, const float *tile, int64_t width,
                         const int64_t *at, const mx_conv_term *terms, const mx_conv_run *run, float *y)
{
    int64_t first = run->from + terms->shift, last = run->from + terms[n_terms - 1].shift + run->n;
    for (int64_t l = first / VL * VL; l < last; l += VL) {
        const float *from[MX_CONV_TERMS];
        vm mask[MX_CONV_TERMS];
        for (int t = 0; t < n_terms; t++) {
            int64_t begin = run->from + terms[t].shift - l;
            mask[t] = lanes(begin, begin + run->n);
            from[t] = tile + terms[t].row * width + run->to - begin;
        }
        for (int64_t i = 0; i < m; i++) {
            float *to = y + at[i] + l;
            vf sum = vf_load(to);
            for (int t = 0; t < n_terms; t++)
                sum = sum + load_masked(from[t] + i * rows * width, mask[t]);
            vf_store(to, sum);
        }
    }
}

static void add(int64_t m, int64_t rows, const float *tile, int64_t width, const int64_t *at, const mx_conv_term *terms,
                int64_t n_terms, const mx_conv_run *run, float *y)
{
    switch (n_terms) {
    case 1:
        add_terms(1, m, rows, tile, width, at, terms, run, y);
        break;
    case 2:
        add_terms(2, m, rows, tile, width, at, terms, run, y);
        break;
    case 3:
        add_terms(3, m, rows, tile, width, at, terms, run, y);
        break;
    case 4:
        add_terms(4, m, rows, tile, width, at, terms, run, y);
        break;
    default:
        add_terms((int)n_terms, m, rows, tile, width, at, terms, run, y);
    }
}

static void weave(int64_t n, const float *x, int64_t phase, int64_t step, float *y)
{
    if (step == 1)
        memcpy(y, x, (size_t)n * sizeof *x);
    else if (step == 2)
        for (int64_t i = 0; i < n; i += 2 * VL)
            vf_store_in_turn(y + i, vf_load(x + i / 2), vf_load(x + phase + i / 2));
    else
        for (int64_t rest = 0; rest < mx_min(step, n); rest++)
            for (int64_t i = rest, q = rest * phase; i < n; i += step)
                y[i] = x[q++];
}

static void join(int64_t n, float *x, int64_t step)
{
    int64_t i = 0;
    for (; i + VL <= n; i += VL)
        vi_store((int32_t *)x + i, vi_or(vi_shr(vf_bits(vf_load(x + i)), 16), vf_bits(vf_load(x + i + step))));
    for (; i < n; i++) {
        uint32_t word[2];
        memcpy(word, x + i, 4);
        memcpy(word + 1, x + i + step, 4);
        word[0] = word[0] >> 16 | word[1];
        memcpy(x + i, word, 4);
    }
}

MX_INLINE void turn_as(const bool bf16, int64_t planes, int64_t n, const void *x, int64_t step, int64_t y_step,
                       float *y)
{
    for (int64_t p = 0; p < planes; p += VL)
        for (int64_t i = 0; i < n; i += VL) {
            int64_t lines = mx_min(planes - p, VL), columns = mx_min(n - i, VL);
            vf square[VL];
            if (lines == VL && columns == VL)
#pragma GCC unroll 16
                for (int l = 0; l < VL; l++)
                    square[l] = row_load(x, (p + l) * step + i, bf16);
            else
                for (int l = 0; l < VL; l++)
                    square[l] = l < lines ? row_load_part(x, (p + l) * step + i, columns, bf16) : vf_zero();
            transpose(square);
            for (int l = 0; l < VL && l < columns; l++)
                if (lines == VL)
                    vf_store(y + (i + l) * y_step + p, square[l]);
                else
                    vf_store_part(y + (i + l) * y_step + p, square[l], lines);
        }
}

#if MX_SIMD_512
/* Up to four planes that are all of y: float f of y is element f / planes of plane f % planes. */
MX_INLINE void turn_few(const bool bf16, int64_t planes, int64_t n, const void *x, int64_t step, float *y)
{
    vi place[4];
    vm upper[4];
    for (int v = 0; v < planes; v++) {
        int32_t at[VL];
        upper[v] = 0;
        for (int l = 0; l < VL; l++) {
            int64_t plane = (v * VL + l) % planes;
            at[l] = (int32_t)((v * VL + l) / planes + plane % 2 * VL);
            upper[v] = (vm)(upper[v] | (plane / 2) << l);
        }
        place[v] = vi_load(at);
    }
    for (int64_t i = 0; i < n; i += VL) {
        vf row[4];
        for (int p = 0; p < 4; p++)
            row[p] = p < planes ? row_load_part(x, p * step + i, mx_min(n - i, VL), bf16) : vf_zero();
        for (int v = 0; v < planes; v++) {
            vf lower = _mm512_permutex2var_ps(row[0], place[v], row[1]);
            vf both = vf_select(upper[v], _mm512_permutex2var_ps(row[2], place[v], row[3]), lower);
            int64_t to = i * planes + v * VL;
            if (to + VL <= n * planes)
                vf_store(y + to, both);
            else
                vf_store_part(y + to, both, mx_max(n * planes - to, 0));
        }
    }
}
#endif

static void turn(int64_t planes, int64_t n, mx_array x, int64_t step, int64_t y_step, float *y)
{
#if MX_SIMD_512
    if (planes <= 4 && planes == y_step) {
        mx_is_bf16(x.dtype) ? turn_few(true, planes, n, x.data, step, y) : turn_few(false, planes, n, x.data, step, y);
        return;
    }
#endif
    if (mx_is_bf16(x.dtype))
        turn_as(true, planes, n, x.data, step, y_step, y);
    else
        turn_as(false, planes, n, x.data, step, y_step, y);
}

/* Every second element of a row, n of them. */
MX_INLINE void pick_second(int64_t n, const void *x, void *y, const bool bf16)
{
    vf even, odd;
    int64_t i = 0;
    for (; i + VL < n; i += VL) {
        if (bf16)
            vf_split_bf16((const mx_bf16 *)x + 2 * i, &even, &odd);
        else
            vf_split(vf_load((const float *)x + 2 * i), vf_load((const float *)x + 2 * i + VL), &even, &odd);
        row_store(y, i, even, bf16);
    }
    int64_t left = 2 * (n - i) - 1;
    vf_split(row_load_part(x, 2 * i, mx_min(left, VL), bf16), row_load_part(x, 2 * i + VL, mx_max(left - VL, 0), bf16),
             &even, &odd);
    row_store_part(y, i, even, n - i, bf16);
}

MX_INLINE void pick_as(const bool bf16, int64_t rows, int64_t n, int64_t step, const char *x, int64_t x_step, char *y)
{
    const int64_t bytes = bf16 ? 2 : 4, row = x_step * bytes, ahead = mx_max(PREFETCH_AHEAD / row, 1) * row;
    for (int64_t r = 0; r < rows; r++, x += row, y += n * bytes) {
        for (int64_t b = 0; b < n * step * bytes; b += 64)
            _mm_prefetch(x + ahead + b, _MM_HINT_T0);
        if (step == 1)
            memcpy(y, x, (size_t)(n * bytes));
        else if (step == 2)
            pick_second(n, x, y, bf16);
        else
            for (int64_t i = 0; i < n; i++)
                memcpy(y + i * bytes, x + i * step * bytes, bf16 ? 2 : 4);
    }
}

static void pick(int64_t rows, int64_t n, int64_t step, mx_array x, int64_t x_step, void *y)
{
    mx_is_bf16(x.dtype) ? pick_as(true, rows, n, step, x.data, x_step, y)
                        : pick_as(false, rows, n, step, x.data, x_step, y);
}

/* A row, with zeros between. */
MX_INLINE void spread_second(int64_t n, const void *x, char *y, const bool bf16)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf v = n - i < VL ? row_load_part(x, i, n - i, bf16) : row_load(x, i, bf16);
        if (bf16)
            vi_store((int32_t *)y + i, vi_shr(vf_bits(v), 16));
        else
            vf_store_in_turn((float *)y + 2 * i, v, vf_zero());
    }
}

MX_INLINE void spread_as(const bool bf16, int64_t rows, int64_t n, int64_t step, const char *x, char *y, int64_t y_step)
{
    const int64_t bytes = bf16 ? 2 : 4;
    for (int64_t r = 0; r < rows; r++, x += n * bytes, y += y_step * bytes)
        if (step == 1)
            memcpy(y, x, (size_t)(n * bytes));
        else if (step == 2)
            spread_second(n, x, y, bf16);
        else
            for (int64_t i = 0; i < n; i++)
                memcpy(y + i * step * bytes, x + i * bytes, bf16 ? 2 : 4);
}

static void spread(int64_t rows, int64_t n, int64_t step, mx_array x, void *y, int64_t y_step)
{
    mx_is_bf16(x.dtype) ? spread_as(true, rows, n, step, x.data, y, y_step)
                        : spread_as(false, rows, n, step, x.data, y, y_step);
}

const mx_conv_paths MX_SIMD_NAME(mx_conv) = {sum, gather, take, put, add, weave, join, pick, spread, turn};
