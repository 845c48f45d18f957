#include "kernels/context.h"

#include "kernels/simd/rows.h"
#include "kernels/simd/transpose.h"
#include "kernels/sort.h"

#include <math.h>

#if MX_SIMD_512
MX_INLINE uint32_t lane_bits(vm lanes) { return lanes; }
MX_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
MX_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
#else
MX_INLINE uint32_t lane_bits(vm lanes) { return (uint32_t)_mm256_movemask_ps(lanes); }
MX_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
MX_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
#endif

/* Which lanes are beyond the bound; NaN is. */
MX_INLINE uint32_t lanes_beyond(vf x, vf bound, const bool below)
{
#if MX_SIMD_512
    return below ? _mm512_cmp_ps_mask(x, bound, _CMP_NGE_UQ) : _mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ);
#else
    return lane_bits(below ? _mm256_cmp_ps(x, bound, _CMP_NGE_UQ) : _mm256_cmp_ps(x, bound, _CMP_NLE_UQ));
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

/* ---- keys ---- */

/* mx_order_key() of VL numbers. */
MX_INLINE vi key_of(vf x, const bool smallest)
{
    vi bits = vf_bits(x), size = vi_and(bits, vi_set1(INT32_MAX)), sign = vi_sar(bits, 31),
       flipped = vi_xor(size, sign);
    vi key = smallest ? vi_sub(sign, flipped) : vi_sub(flipped, sign);
    vi most = vi_set1(smallest ? -INT32_MAX : INT32_MAX);
    return vf_bits(vf_select(vi_gt(size, vi_set1(0x7f800000)), vi_float(most), vi_float(key)));
}

/* The upper halves of those of 2 VL bf16, in which NaN has INT16_MAX. */
MX_INLINE vi short_keys_of(vi bits, const bool smallest)
{
    const int16_t most = smallest ? -INT16_MAX : INT16_MAX;
    vi size = vi_and(bits, vi_set1(0x7fff7fff));
#if MX_SIMD_512
    vi sign = _mm512_srai_epi16(bits, 15), flipped = vi_xor(size, sign);
    vi key = smallest ? _mm512_sub_epi16(sign, flipped) : _mm512_sub_epi16(flipped, sign);
    __mmask32 nan = _mm512_cmpgt_epi16_mask(size, _mm512_set1_epi16(0x7f80));
    return _mm512_mask_mov_epi16(key, nan, _mm512_set1_epi16(most));
#else
    vi sign = _mm256_srai_epi16(bits, 15), flipped = vi_xor(size, sign);
    vi key = smallest ? _mm256_sub_epi16(sign, flipped) : _mm256_sub_epi16(flipped, sign);
    return _mm256_blendv_epi8(key, _mm256_set1_epi16(most), _mm256_cmpgt_epi16(size, _mm256_set1_epi16(0x7f80)));
#endif
}

/* ---- long lines ---- */

MX_INLINE int32_t greatest_of(vi keys)
{
#if MX_SIMD_512
    return _mm512_reduce_max_epi32(keys);
#else
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(keys), _mm256_extracti128_si256(keys, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1)));
#endif
}

MX_INLINE vi short_max(vi a, vi b)
{
#if MX_SIMD_512
    return _mm512_max_epi16(a, b);
#else
    return _mm256_max_epi16(a, b);
#endif
}

MX_INLINE int32_t greatest_short_of(vi keys)
{
#if MX_SIMD_512
    __m256i half = _mm256_max_epi16(_mm512_castsi512_si256(keys), _mm512_extracti64x4_epi64(keys, 1));
#else
    __m256i half = keys;
#endif
    __m128i most = _mm_max_epi16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i turn = _mm_set1_epi16(INT16_MAX); /* the instruction has the least of unsigned numbers */
    most = _mm_xor_si128(_mm_minpos_epu16(_mm_xor_si128(most, turn)), turn);
    return (int16_t)_mm_extract_epi16(most, 0);
}

/* Of n elements, n a multiple of MX_PART_UNIT. */
MX_INLINE int32_t best_key(const void *x, const bool bf16, int64_t i, int64_t n, const bool smallest)
{
    if (bf16) {
        vi most = vi_set1((int32_t)0x80008000);
        for (int64_t end = i + n; i < end; i += 2 * VL) {
            const mx_bf16 *from = (const mx_bf16 *)x + i;
            prefetch_ahead(from, 64);
            most = short_max(most, short_keys_of(vi_load((const int32_t *)from), smallest));
        }
        int32_t key = greatest_short_of(most);
        return key == INT16_MAX ? INT32_MAX : key == -INT16_MAX ? -INT32_MAX : key * 65536;
    }
    vi most = vi_set1(INT32_MIN);
    for (int64_t end = i + n; i < end; i += VL) {
        prefetch_ahead((const float *)x + i, 64);
        most = vi_max(most, key_of(vf_load((const float *)x + i), smallest));
    }
    return greatest_of(most);
}

/* The upper 16 bits of the kth greatest key, and less than it; keys[n] to the next full vector are set. */
MX_INLINE int32_t below_kth(int32_t *keys, int64_t n, int64_t k)
{
    int32_t kth = INT32_MIN;
    for (int64_t i = n; i % VL; i++)
        keys[i] = INT32_MIN;
    for (int bit = 31; bit >= 16; bit--) {
        int32_t next = (int32_t)((uint32_t)kth + (1u << bit)), count = 0;
        for (int64_t i = 0; i < n; i += VL)
            count += __builtin_popcount(lane_bits(vi_gt(vi_load(keys + i), vi_set1(next - 1))));
        kth = count >= k ? next : kth;
    }
    return kth > INT32_MIN ? kth - 1 : kth;
}

MX_INLINE int32_t parts_as(const void *x, const bool bf16, int64_t n, int64_t part, int64_t k, const bool smallest,
                           int32_t *keys)
{
    int64_t parts = 0;
    for (int64_t i = 0; i < n; i += part) {
        int64_t end = mx_min(n, i + part), whole = (end - i) / MX_PART_UNIT * MX_PART_UNIT;
        int32_t key = whole > 0 ? best_key(x, bf16, i, whole, smallest) : INT32_MIN;
        for (int64_t at = i + whole; at < end; at++)
            key = (int32_t)mx_max(key, mx_order_key(x, at, bf16 ? MX_BF16 : MX_F32, smallest));
        keys[parts++] = key;
    }
    return below_kth(keys, parts, k);
}

static int32_t best_of_parts(const void *x, mx_dtype dtype, int64_t n, int64_t part, int64_t k, bool smallest,
                             int32_t *keys)
{
    if (mx_is_bf16(dtype))
        return smallest ? parts_as(x, true, n, part, k, true, keys) : parts_as(x, true, n, part, k, false, keys);
    return smallest ? parts_as(x, false, n, part, k, true, keys) : parts_as(x, false, n, part, k, false, keys);
}

/* Which of 2 VL short keys are greater. */
MX_INLINE uint32_t short_bits_above(vi keys, int16_t bound)
{
#if MX_SIMD_512
    return _mm512_cmpgt_epi16_mask(keys, _mm512_set1_epi16(bound));
#else
    vi greater = _mm256_cmpgt_epi16(keys, _mm256_set1_epi16(bound));
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(greater), _mm256_extracti128_si256(greater, 1));
    return (uint32_t)_mm_movemask_epi8(bytes);
#endif
}

MX_INLINE int64_t above_as(const void *x, const bool bf16, int64_t i, int64_t n, int32_t bound, const bool smallest,
                           int32_t *ids)
{
    int64_t count = 0;
    for (; bf16 && i + 2 * VL <= n; i += 2 * VL) {
        vi keys = short_keys_of(vi_load((const int32_t *)((const mx_bf16 *)x + i)), smallest);
        for (uint32_t found = short_bits_above(keys, (int16_t)(bound >> 16)); found; found &= found - 1)
            ids[count++] = (int32_t)i + __builtin_ctz(found);
    }
    for (; i < n; i += VL) {
        int64_t left = lanes_left(n, i);
        vf v = left == VL ? row_load(x, i, bf16) : row_load_part(x, i, left, bf16);
        uint32_t found = lane_bits(vi_gt(key_of(v, smallest), vi_set1(bound))) & (uint32_t)((1ull << left) - 1);
        for (; found; found &= found - 1)
            ids[count++] = (int32_t)i + __builtin_ctz(found);
    }
    return count;
}

static int64_t above(const void *x, mx_dtype dtype, int64_t from, int64_t n, int32_t bound, bool smallest, int32_t *ids)
{
    if (mx_is_bf16(dtype))
        return smallest ? above_as(x, true, from, n, bound, true, ids) : above_as(x, true, from, n, bound, false, ids);
    return smallest ? above_as(x, false, from, n, bound, true, ids) : above_as(x, false, from, n, bound, false, ids);
}

/* ---- the best of short lines, each in a lane ---- */

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

/* Memory is asked for in its own order, the lines that come next one after the other: Zen 5 reads it faster so than a
 * piece of each. `i` of the n elements of VL lines at x are done, and `l` lines of the ones that follow. */
MX_INLINE void prefetch_lines(const void *x, const bool bf16, int64_t n, int64_t i, int64_t l)
{
    const int64_t size = bf16 ? 2 : 4, ahead = mx_max(VL * n * size, PREFETCH_AHEAD);
    _mm_prefetch((const char *)x + ahead + VL * i * size + 64 * l, _MM_HINT_T0);
}

/* Elements i to i + VL - 1 of VL lines, a line in each lane; lines beyond `lines` are the last one again. */
MX_INLINE void load_lines(const void *x, const bool bf16, int64_t lines, int64_t n, int64_t i, vf square[VL])
{
    int64_t left = lanes_left(n, i);
    for (int64_t l = 0; l < VL; l++) {
        int64_t at = mx_min(l, lines - 1) * n + i;
        prefetch_lines(x, bf16, n, i, l);
        square[l] = left == VL ? row_load(x, at, bf16) : row_load_part(x, at, left, bf16);
    }
    transpose(square);
}

/* of[s] has result s of each line; own[l] gets the results of line l. */
MX_INLINE void put_results(const vi *of, const int k, int32_t own[VL][MX_BEST_K])
{
    for (int s = 0; s < k; s += VL) {
        vf square[VL];
        for (int i = 0; i < VL; i++)
            square[i] = s + i < k ? vi_float(of[s + i]) : vf_zero();
        transpose(square);
        for (int l = 0; l < VL; l++)
            vf_store((float *)own[l] + s, square[l]);
    }
}

/* Of VL lines; those beyond `lines` are the last one again. `own` gets k ids for each line. */
MX_INLINE void best_of_lines(const void *x, const bool bf16, int64_t lines, int64_t n, const int k, const bool smallest,
                             int32_t own[VL][MX_BEST_K])
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
    put_results(b.id, k, own);
}

/* ---- the same with key and id in one number ---- */

/* Key and id are a positive normal f32, so that maxima and minima order it: the key without its two lowest bits, and in
 * place of its bits in id_mask the id from the end, so that of equal keys the first element is the greatest. LEAST is
 * below them all. */
enum { LEAST = 0x00800000, MIDDLE = (1 << 29) + LEAST };
enum { AT_ONCE = 2 * VL }; /* elements of a line that are loaded together, of bf16 */

/* places[i] and the key of element i add up to the packed number. Behind the end of a line there are zeros, whose key
 * is 0. */
MX_INLINE void set_places(int64_t n, int32_t id_mask, int32_t places[MX_BEST_N + AT_ONCE])
{
    for (int64_t i = 0; i < n; i++)
        places[i] = MIDDLE + id_mask - (int32_t)i;
    for (int64_t i = n; i < n + AT_ONCE; i++)
        places[i] = LEAST;
}

/* Elements i to i + 2 VL - 1 of VL lines of bf16 as short keys, the line in a lane, two neighbours in each. */
MX_INLINE void load_pairs(const mx_bf16 *x, int64_t n, int64_t i, const bool smallest, vf pairs[VL])
{
    for (int64_t l = 0; l < VL; l++) {
        const mx_bf16 *from = x + l * n + i;
        vi bits;
        prefetch_lines(x, true, n, i, l);
        if (n - i >= AT_ONCE) {
            bits = vi_load((const int32_t *)from);
        } else {
            mx_bf16 full[AT_ONCE] = {0};
            memcpy(full, from, (size_t)(n - i) * sizeof *from);
            bits = vi_load((const int32_t *)full);
        }
        pairs[l] = vi_float(short_keys_of(bits, smallest));
    }
    transpose(pairs);
}

/* Keys of 16 bits, in their place within packed numbers: of the first or the second of two neighbours. */
MX_INLINE vi key_of_pair(vi pair, const bool second)
{
    vi factors = vi_set1(second ? 1 << 30 : 1 << 14);
#if MX_SIMD_512
    return _mm512_madd_epi16(pair, factors);
#else
    return _mm256_madd_epi16(pair, factors);
#endif
}

/* Zen 5 has units of its own for maxima of f32; Intel's processors have more for f32 than for integers. */
MX_INLINE void order(vf *a, vf *b)
{
    vf high = vf_max(*a, *b);
    *b = vi_float(vi_min(vf_bits(*a), vf_bits(*b)));
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

/* A step of Batcher's merging of even and of odd places: those with the bit `apart` and the ones so far behind them. */
MX_INLINE void merge_step(vf *v, const int n, const int apart)
{
#pragma GCC unroll 16
    for (int i = 0; i < n - apart; i++)
        if (i & apart)
            order(&v[i], &v[i + apart]);
}

/* Merges the sorted halves of each part of `size` elements. */
MX_INLINE void merge_halves(vf *v, const int n, const int size)
{
#pragma GCC unroll 8
    for (int part = 0; part < n; part += size) {
#pragma GCC unroll 8
        for (int i = part; i < part + size / 2; i++)
            order(&v[i], &v[i + size / 2]);
        if (size > 8)
            merge_step(v + part, size, 4);
        if (size > 4)
            merge_step(v + part, size, 2);
        if (size > 2)
            merge_step(v + part, size, 1);
    }
}

/* n: 2, 4, 8 or 16. */
MX_INLINE void sort_all(vf *v, const int n)
{
    merge_halves(v, n, 2);
    if (n > 2)
        merge_halves(v, n, 4);
    if (n > 4)
        merge_halves(v, n, 8);
    if (n > 8)
        merge_halves(v, n, 16);
}

/* What best_of_packed() found: nothing, as some elements of a line that matter have equal cut keys; ids; or ids with
 * the bits of the bf16 in the upper halves. */
enum { NOTHING, IDS, IDS_AND_BITS };

/* The bits of the bf16 with a short key. A key that several of them have, that of zeros or NaNs, makes *least 0. */
MX_INLINE vi bits_of_key(vi key, const bool smallest, vi *least)
{
    vi number = smallest ? vi_sub(vi_set1(0), key) : key, sign = vi_sar(number, 31);
    vi size = vi_sub(vi_xor(number, sign), sign);
    *least = vi_min(*least, vi_and(vi_add(size, vi_set1(1)), vi_set1(INT16_MAX - 1)));
    return vi_or(size, vi_and(sign, vi_set1(1 << 15)));
}

/* As best_of_lines(), of VL lines. Of f32, the keys are cut. */
MX_INLINE int best_of_packed(const void *x, const bool bf16, int64_t n, int64_t k, const int room, const bool smallest,
                             const int32_t *places, int32_t id_mask, int32_t own[VL][MX_BEST_K])
{
    const int step = bf16 ? AT_ONCE : VL;
    vf first[MX_BEST_K + 1]; /* and behind them the best of those that are left out */
#pragma GCC unroll 17
    for (int s = 0; s <= room; s++)
        first[s] = vi_float(vi_set1(LEAST));
    for (int64_t i = 0; i < n; i += step) {
        vf square[VL];
        if (bf16)
            load_pairs(x, n, i, smallest, square);
        else
            load_lines(x, false, VL, n, i, square);
        for (int e = 0; e < step; e += room) {
            const vf *from = square + (bf16 ? e / 2 : e);
            vf v[MX_BEST_K];
#pragma GCC unroll 16
            for (int s = 0; s < room; s++) {
                vi key = bf16 ? key_of_pair(vf_bits(from[s / 2]), s % 2)
                              : vi_and(vi_sar(key_of(from[s], smallest), 2), vi_set1(~id_mask));
                v[s] = vi_float(vi_add(key, vi_set1(places[i + e + s])));
            }
            sort_all(v, room);
#pragma GCC unroll 16
            for (int s = 0; s < room; s++) {
                order(&first[s], &v[room - 1 - s]);
                first[room] = vf_max(first[room], v[room - 1 - s]);
            }
            sort_bitonic(first, room);
        }
    }
    bool equal = false;
    vi results[MX_BEST_K], least = vi_set1(1);
#pragma GCC unroll 16
    for (int s = 0; s < room; s++) {
        vi bits = vf_bits(first[s]), differ = vi_xor(bits, vf_bits(first[s + 1]));
        equal = equal || (s < k && vm_any(vi_gt(vi_set1(id_mask + 1), differ)));
        results[s] = vi_sub(vi_set1(id_mask), vi_and(bits, vi_set1(id_mask)));
        if (bf16) {
            vi key = vi_sar(vi_sub(bits, vi_set1(MIDDLE)), 14);
            results[s] = vi_or(results[s], vi_shl(bits_of_key(key, smallest, &least), 16));
        }
    }
    put_results(results, room, own);
    if (bf16)
        return vm_any(vi_gt(vi_set1(1), least)) ? IDS : IDS_AND_BITS;
    return equal ? NOTHING : IDS;
}

/* The upper halves of the first n lanes. */
MX_INLINE void put_upper_halves(mx_bf16 *to, vi v, int64_t n)
{
    vi upper = vi_shr(v, 16);
#if MX_SIMD_512
    _mm256_mask_storeu_epi16(to, vm_first(n), _mm512_cvtepi32_epi16(upper));
#else
    __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    memcpy(to, &halves, (size_t)n * sizeof *to);
#endif
}

/* Stores are done in order, so one that waits for its cache line keeps all others waiting. */
MX_INLINE void prefetch_results(const void *results, int64_t i, const int bytes)
{
    if (results)
        _mm_prefetch((const char *)results + i * bytes, _MM_HINT_T0);
}

MX_INLINE void best_as(const void *x, const bool bf16, int64_t lines, int64_t n, int64_t k, const int room,
                       const bool smallest, void *values, int32_t *ids)
{
    enum { LONGEST = 255 }; /* lines whose keys keep 13 bits of the mantissa */
    const int32_t id_mask = (int32_t)(UINT32_MAX >> __builtin_clz((uint32_t)n - 1));
    const bool packs = room <= VL && (bf16 || n <= LONGEST);
    int32_t own[VL][MX_BEST_K], places[MX_BEST_N + AT_ONCE];
    if (packs)
        set_places(n, id_mask, places);
    for (int64_t line = 0; line < lines; line += VL) {
        const char *from = (const char *)x + line * n * (bf16 ? 2 : 4);
        int64_t count = mx_min(VL, lines - line);
        int found = NOTHING;
        if (packs && count == VL)
            found = best_of_packed(from, bf16, n, k, room, smallest, places, id_mask, own);
        if (found == NOTHING)
            best_of_lines(from, bf16, count, n, room, smallest, own);
        for (int64_t l = 0; l < count; l++) {
            int64_t to = (line + l) * k;
            prefetch_results(ids, to + 2 * VL * k, 4);
            prefetch_results(values, to + 2 * VL * k, bf16 ? 2 : 4);
            for (int64_t i = 0; i < k; i += VL) {
                vi part = vi_load(own[l] + i), id = vi_and(part, vi_set1(UINT16_MAX));
                if (ids && k - i >= VL)
                    vi_store(ids + to + i, id);
                else if (ids)
                    vf_store_part((float *)ids + to + i, vi_float(id), k - i);
                if (values && found == IDS_AND_BITS)
                    put_upper_halves((mx_bf16 *)values + to + i, part, lanes_left(k, i));
            }
#pragma GCC unroll 16
            for (int i = 0; i < room; i++) {
                if (!values || i >= k || found == IDS_AND_BITS)
                    break;
                int64_t at = l * n + (own[l][i] & UINT16_MAX);
                if (bf16)
                    ((mx_bf16 *)values)[to + i] = ((const mx_bf16 *)from)[at];
                else
                    ((float *)values)[to + i] = ((const float *)from)[at];
            }
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

const mx_sort_paths MX_SIMD_NAME(mx_sort) = {
    .beyond = beyond, .best_of_parts = best_of_parts, .above = above, .best = best_of};
