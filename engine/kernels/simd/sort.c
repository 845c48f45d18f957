#include "kernels/context.h"

#include "kernels/simd/rows.h"
#include "kernels/simd/transpose.h"
#include "kernels/sort.h"

#include <math.h>

/* Which lanes are beyond the bound; NaN is. */
MX_INLINE uint32_t lanes_beyond(vf x, vf bound, const bool below)
{
#if MX_SIMD_512
    return below ? _mm512_cmp_ps_mask(x, bound, _CMP_NGE_UQ) : _mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ);
#else
    vf beyond = below ? _mm256_cmp_ps(x, bound, _CMP_NGE_UQ) : _mm256_cmp_ps(x, bound, _CMP_NLE_UQ);
    return (uint32_t)_mm256_movemask_ps(beyond);
#endif
}

MX_INLINE int64_t find(const void *x, const bool bf16, int64_t i, int64_t n, float bound, const bool below)
{
    vf b = vf_set1(bound);
    for (; i + 4 * VL <= n; i += 4 * VL) {
        prefetch_ahead((const char *)x + i * (bf16 ? 2 : 4), 4 * VL * (bf16 ? 2 : 4));
        uint32_t found[4], any = 0;
        for (int u = 0; u < 4; u++)
            any |= found[u] = lanes_beyond(row_load(x, i + u * VL, bf16), b, below);
        for (int u = 0; any && u < 4; u++)
            if (found[u])
                return i + u * VL + __builtin_ctz(found[u]);
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        uint32_t found = lanes_beyond(row_load_part(x, i, left, bf16), b, below) & (uint32_t)((1ull << left) - 1);
        if (found)
            return i + __builtin_ctz(found);
    }
    return n;
}

static int64_t beyond(const void *x, mx_dtype dtype, int64_t from, int64_t n, float bound, bool below)
{
    if (mx_is_bf16(dtype))
        return below ? find(x, true, from, n, bound, true) : find(x, true, from, n, bound, false);
    return below ? find(x, false, from, n, bound, true) : find(x, false, from, n, bound, false);
}

/* ---- the best of short lines, each in a lane ---- */

/* Numbers as integers in the order of the results: the greatest first, NaN as the greatest number, -0 as 0; with
 * `smallest`, the other way around. None is INT32_MIN. */
MX_INLINE vi key_of(vf x, const bool smallest)
{
    vi bits = vf_bits(x), size = vi_and(bits, vi_set1(INT32_MAX)), key = vi_xor(bits, vi_shr(vi_sar(bits, 31), 1));
    vf whole = vf_select(vi_gt(size, vi_set1(0)), vi_float(key), vf_zero());
    whole = vf_select(vi_gt(size, vi_set1(0x7f800000)), vf_set1(NAN), whole);
    return smallest ? vi_xor(vf_bits(whole), vi_set1(-1)) : vf_bits(whole);
}

/* The k best so far of VL lines, the best first. */
typedef struct best {
    vi key[MX_BEST_K], id[MX_BEST_K];
} best;

/* Puts an element of each line in its place. Elements come in the order of their ids, so equal ones stay behind. */
MX_INLINE void insert(best *b, const int k, vi key, vi id)
{
    vm before[MX_BEST_K];
    before[k - 1] = vi_gt(key, b->key[k - 1]);
    if (!vm_any(before[k - 1]))
        return;
#pragma GCC unroll 16
    for (int s = k - 1; s > 0; s--) {
        before[s - 1] = vi_gt(key, b->key[s - 1]);
        vf k_new = vf_select(before[s - 1], vi_float(b->key[s - 1]), vi_float(key));
        vf id_new = vf_select(before[s - 1], vi_float(b->id[s - 1]), vi_float(id));
        b->key[s] = vf_bits(vf_select(before[s], k_new, vi_float(b->key[s])));
        b->id[s] = vf_bits(vf_select(before[s], id_new, vi_float(b->id[s])));
    }
    b->key[0] = vf_bits(vf_select(before[0], vi_float(key), vi_float(b->key[0])));
    b->id[0] = vf_bits(vf_select(before[0], vi_float(id), vi_float(b->id[0])));
}

/* Elements i to i + VL - 1 of VL lines, a line in each lane; lines beyond `lines` are the last one again. */
MX_INLINE void load_lines(const void *x, const bool bf16, int64_t lines, int64_t n, int64_t i, vf square[VL])
{
    int64_t left = lanes_left(n, i);
    for (int64_t l = 0; l < VL; l++) {
        int64_t at = mx_min(l, lines - 1) * n + i;
        prefetch_ahead((const char *)x + at * (bf16 ? 2 : 4), 64);
        square[l] = left == VL ? row_load(x, at, bf16) : row_load_part(x, at, left, bf16);
    }
    transpose(square);
}

/* Of VL lines; those beyond `lines` are the last one again. `ids` gets k for each line. */
MX_INLINE void best_of_lines(const void *x, const bool bf16, int64_t lines, int64_t n, const int k, const bool smallest,
                             int32_t ids[MX_BEST_K][VL])
{
    best b;
    for (int s = 0; s < k; s++)
        b.key[s] = b.id[s] = vi_set1(INT32_MIN);
    for (int64_t i = 0; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf square[VL];
        load_lines(x, bf16, lines, n, i, square);
        for (int64_t e = 0; e < left; e++)
            insert(&b, k, key_of(square[e], smallest), vi_set1((int32_t)(i + e)));
    }
    for (int s = 0; s < k; s++)
        vi_store(ids[s], b.id[s]);
}

/* ---- the same with key and id in one number ---- */

/* A positive normal f32, so that maxima and minima order it: the upper bits of the key, and in those of id_mask the id
 * from the end, so that of equal keys the first element is the greatest. LEAST is below them all. */
#define LEAST 0x00800000
MX_INLINE vf packed_of(vi key, int32_t id, int32_t id_mask)
{
    vi upper = vi_and(vi_sar(key, 2), vi_set1(~id_mask));
    return vi_float(vi_add(upper, vi_set1((1 << 29) + LEAST + id_mask - id)));
}

MX_INLINE void order(vf *a, vf *b)
{
    vf high = vf_max(*a, *b);
    *b = vf_min(*a, *b);
    *a = high;
}

/* Sorts a sequence that falls and then rises, or the other way around; the greatest comes first. n: a power of 2. */
MX_INLINE void sort_bitonic(vf *v, const int n)
{
#pragma GCC unroll 8
    for (int apart = n / 2; apart > 0; apart /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            if (!(i & apart))
                order(&v[i], &v[i + apart]);
}

MX_INLINE void sort_all(vf *v, const int n)
{
#pragma GCC unroll 8
    for (int size = 2; size <= n; size *= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < n; i++)
            if (i < (i ^ (size - 1)))
                order(&v[i], &v[i ^ (size - 1)]);
#pragma GCC unroll 16
        for (int part = 0; part < n; part += size)
            for (int half = 0; half < 2; half++)
                sort_bitonic(v + part + half * size / 2, size / 2);
    }
}

/* As best_of_lines(). Of f32, the keys are cut; false: some elements of a line that matter have equal cut keys. */
MX_INLINE bool best_of_packed(const void *x, const bool bf16, int64_t lines, int64_t n, int64_t k, const int room,
                              const bool smallest, int32_t ids[MX_BEST_K][VL])
{
    const int32_t id_mask = (int32_t)(UINT32_MAX >> __builtin_clz((uint32_t)n - 1));
    vf first[MX_BEST_K + 1]; /* and behind them the best of those that are left out */
#pragma GCC unroll 17
    for (int s = 0; s <= room; s++)
        first[s] = vi_float(vi_set1(LEAST));
    for (int64_t i = 0; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf square[VL];
        load_lines(x, bf16, lines, n, i, square);
        for (int e = 0; e < VL; e++)
            square[e] =
                e < left ? packed_of(key_of(square[e], smallest), (int32_t)(i + e), id_mask) : vi_float(vi_set1(LEAST));
        for (int e = 0; e < VL; e += room) {
            sort_all(square + e, room);
#pragma GCC unroll 16
            for (int s = 0; s < room; s++) {
                order(&first[s], &square[e + room - 1 - s]);
                first[room] = vf_max(first[room], square[e + room - 1 - s]);
            }
            sort_bitonic(first, room);
        }
    }
    bool equal = false;
#pragma GCC unroll 16
    for (int s = 0; s < room; s++) {
        vi differ = vi_xor(vf_bits(first[s]), vf_bits(first[s + 1]));
        equal = equal || (s < k && vm_any(vi_gt(vi_set1(id_mask + 1), differ)));
        vi_store(ids[s], vi_sub(vi_set1(id_mask), vi_and(vf_bits(first[s]), vi_set1(id_mask))));
    }
    return bf16 || !equal;
}

MX_INLINE void best_as(const void *x, const bool bf16, int64_t lines, int64_t n, int64_t k, const int room,
                       const bool smallest, void *values, int32_t *ids)
{
    enum { LONGEST = 255 }; /* lines whose keys keep 13 bits of the mantissa */
    int32_t own[MX_BEST_K][VL];
    for (int64_t line = 0; line < lines; line += VL) {
        const char *from = (const char *)x + line * n * (bf16 ? 2 : 4);
        int64_t count = mx_min(VL, lines - line);
        if (room > VL || !(bf16 || n <= LONGEST) || !best_of_packed(from, bf16, count, n, k, room, smallest, own))
            best_of_lines(from, bf16, count, n, room, smallest, own);
        for (int64_t l = 0; l < count; l++)
            for (int64_t i = 0; i < k; i++) {
                int64_t to = (line + l) * k + i, at = l * n + own[i][l];
                if (ids)
                    ids[to] = own[i][l];
                if (values && bf16)
                    ((mx_bf16 *)values)[to] = ((const mx_bf16 *)from)[at];
                else if (values)
                    ((float *)values)[to] = ((const float *)from)[at];
            }
    }
}

MX_INLINE void best_in(const void *x, const bool bf16, int64_t lines, int64_t n, int64_t k, const bool smallest,
                       void *values, int32_t *ids)
{
    if (k <= 2)
        best_as(x, bf16, lines, n, k, 2, smallest, values, ids);
    else if (k <= 4)
        best_as(x, bf16, lines, n, k, 4, smallest, values, ids);
    else if (k <= 8)
        best_as(x, bf16, lines, n, k, 8, smallest, values, ids);
    else
        best_as(x, bf16, lines, n, k, MX_BEST_K, smallest, values, ids);
}

static void best_of(const void *x, mx_dtype dtype, int64_t lines, int64_t n, int64_t k, bool smallest, void *values,
                    int32_t *ids)
{
    if (mx_is_bf16(dtype))
        smallest ? best_in(x, true, lines, n, k, true, values, ids) : best_in(x, true, lines, n, k, false, values, ids);
    else
        smallest ? best_in(x, false, lines, n, k, true, values, ids)
                 : best_in(x, false, lines, n, k, false, values, ids);
}

const mx_sort_paths MX_SIMD_NAME(mx_sort) = {.beyond = beyond, .best = best_of};
