#include "kernels/context.h"

#include "kernels/move_loops.h"
#include "kernels/simd/transpose.h"

/* ---- squares ---- */

MX_INLINE vi load_some(const void *p, int64_t bytes)
{
#if MX_SIMD_512
    return _mm512_maskz_loadu_epi8(bytes >= 64 ? ~0ULL : (1ULL << bytes) - 1, p);
#else
    char room[sizeof(vi)] = {0};
    memcpy(room, p, (size_t)bytes);
    return vi_load((const int32_t *)room);
#endif
}

MX_INLINE void store_some(void *p, vi x, int64_t bytes)
{
#if MX_SIMD_512
    _mm512_mask_storeu_epi8(p, bytes >= 64 ? ~0ULL : (1ULL << bytes) - 1, x);
#else
    char room[sizeof(vi)];
    vi_store((int32_t *)room, x);
    memcpy(p, room, (size_t)bytes);
#endif
}

MX_INLINE void put(char *p, vi x, int64_t bytes, const bool whole, const bool stream)
{
    if (!whole)
        store_some(p, x, bytes);
    else if (stream)
        vi_stream(p, x);
    else
        vi_store((int32_t *)p, x);
}

/* A square whose rows and columns are a vector; without `whole` only the first `rows` and `columns` of it. Strides in
 * bytes. */
MX_INLINE void square_of_4(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t rows,
                           int64_t columns, const bool whole, const bool stream)
{
    vf r[VL];
    for (int i = 0; i < VL; i++)
        r[i] = whole      ? vf_load((const float *)(from + i * from_stride))
               : i < rows ? vi_float(load_some(from + i * from_stride, columns * 4))
                          : vf_zero();
    transpose(r);
    for (int i = 0; i < VL; i++)
        if (whole || i < columns)
            put(to + i * to_stride, vf_bits(r[i]), rows * 4, whole, stream);
}

/* Two rows are joined to one of pairs, which change places like floats. Unpacking takes 4 columns of 8 each. */
MX_INLINE void square_of_2(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t rows,
                           int64_t columns, const bool whole, const bool stream)
{
    vf low[VL], high[VL];
    for (int i = 0; i < VL; i++) {
        vi a[2];
        for (int k = 0; k < 2; k++)
            a[k] = whole              ? vi_load((const int32_t *)(from + (2 * i + k) * from_stride))
                   : 2 * i + k < rows ? load_some(from + (2 * i + k) * from_stride, columns * 2)
                                      : vi_set1(0);
#if MX_SIMD_512
        low[i] = vi_float(_mm512_unpacklo_epi16(a[0], a[1]));
        high[i] = vi_float(_mm512_unpackhi_epi16(a[0], a[1]));
#else
        low[i] = vi_float(_mm256_unpacklo_epi16(a[0], a[1]));
        high[i] = vi_float(_mm256_unpackhi_epi16(a[0], a[1]));
#endif
    }
    transpose(low);
    transpose(high);
    for (int i = 0; i < VL; i++) {
        int64_t column = i / 4 * 8 + i % 4;
        if (whole || column < columns)
            put(to + column * to_stride, vf_bits(low[i]), rows * 2, whole, stream);
        if (whole || column + 4 < columns)
            put(to + (column + 4) * to_stride, vf_bits(high[i]), rows * 2, whole, stream);
    }
}

MX_INLINE void squares(char *to, int64_t to_stride, const char *from, int64_t from_stride, int64_t rows,
                       int64_t columns, const int64_t bytes, const bool stream)
{
    const int64_t side = (int64_t)sizeof(vi) / bytes;
    for (int64_t r = 0; r < rows; r += side)
        for (int64_t c = 0; c < columns; c += side) {
            char *y = to + c * to_stride + r * bytes;
            const char *x = from + r * from_stride + c * bytes;
            int64_t high = mx_min(side, rows - r), wide = mx_min(side, columns - c);
            bool whole = high == side && wide == side;
            if (bytes == 4 && whole)
                square_of_4(y, to_stride, x, from_stride, side, side, true, stream);
            else if (bytes == 4)
                square_of_4(y, to_stride, x, from_stride, high, wide, false, false);
            else if (whole)
                square_of_2(y, to_stride, x, from_stride, side, side, true, stream);
            else
                square_of_2(y, to_stride, x, from_stride, high, wide, false, false);
        }
}

static void transpose_any(void *to, int64_t to_stride, const void *from, int64_t from_stride, int64_t rows,
                          int64_t columns, size_t element_bytes, bool stream)
{
    int64_t bytes = (int64_t)element_bytes, line = (int64_t)sizeof(vi);
    stream = stream && to_stride * bytes % line == 0 && (uintptr_t)to % (uintptr_t)line == 0;
    if (bytes != 2 && bytes != 4)
        mx_moves_portable.transpose(to, to_stride, from, from_stride, rows, columns, element_bytes, stream);
    else if (bytes == 4)
        stream ? squares(to, to_stride * 4, from, from_stride * 4, rows, columns, 4, true)
               : squares(to, to_stride * 4, from, from_stride * 4, rows, columns, 4, false);
    else
        stream ? squares(to, to_stride * 2, from, from_stride * 2, rows, columns, 2, true)
               : squares(to, to_stride * 2, from, from_stride * 2, rows, columns, 2, false);
}

/* ---- runs ---- */

/* Runs of whole vectors, all results aligned to them. The processor does not foresee where the next run begins. */
MX_INLINE void stream_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs, int64_t bytes)
{
    enum { AHEAD = 4 };
    for (int64_t r = 0; r < runs; r++, to += to_step, from += from_step)
        for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(vi)) {
            _mm_prefetch(from + AHEAD * from_step + i, _MM_HINT_T0);
            vi_stream(to + i, vi_load((const int32_t *)(from + i)));
        }
}

/* Runs that begin anywhere: what is before the first vector's place and behind the last goes by way of the caches. */
MX_INLINE void stream_middles(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs,
                              int64_t bytes)
{
    const int64_t vector = (int64_t)sizeof(vi);
    for (int64_t r = 0; r < runs; r++, to += to_step, from += from_step) {
        int64_t i = -(intptr_t)to & (vector - 1);
        store_some(to, load_some(from, i), i);
        for (; i + vector <= bytes; i += vector) {
            _mm_prefetch(from + i + PREFETCH_AHEAD, _MM_HINT_T0);
            vi_stream(to + i, vi_load((const int32_t *)(from + i)));
        }
        store_some(to + i, load_some(from + i, bytes - i), bytes - i);
    }
}

static void copy_runs(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs, int64_t bytes,
                      bool stream)
{
    const int64_t vector = (int64_t)sizeof(vi);
    if (stream && ((uintptr_t)to | (uintptr_t)to_step | (uintptr_t)bytes) % (uintptr_t)vector == 0)
        stream_runs(to, to_step, from, from_step, runs, bytes);
    else if (stream && bytes >= 4 * vector)
        stream_middles(to, to_step, from, from_step, runs, bytes);
    else if (MX_SIMD_512 && bytes < vector)
        for (int64_t r = 0; r < runs; r++)
            store_some(to + r * to_step, load_some(from + r * from_step, bytes), bytes);
    else
        runs_plain(to, to_step, from, from_step, runs, bytes, false);
}

/* ---- patterns ---- */

/* `sum` with the lanes of `mask` taken from places `lane` of x. */
MX_INLINE vi pick(vi sum, uint32_t mask, vi lane, vi x, const size_t bytes)
{
#if MX_SIMD_512
    if (bytes == 2)
        return _mm512_mask_permutexvar_epi16(sum, mask, lane, x);
    if (bytes == 8)
        return _mm512_mask_permutexvar_epi64(sum, (__mmask8)mask, lane, x);
    return _mm512_mask_permutexvar_epi32(sum, (__mmask16)mask, lane, x);
#else
    (void)bytes; /* 4 */
    const vi bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    vi taken = _mm256_cmpeq_epi32(vi_and(vi_set1((int32_t)mask), bits), bits);
    return _mm256_blendv_epi8(sum, _mm256_permutevar8x32_epi32(x, lane), taken);
#endif
}

MX_INLINE void shuffle_as(const mx_pattern *p, const size_t bytes, const int ins, char *const *to, int64_t to_step,
                          const char *const *from, int64_t from_step, int64_t blocks, const bool stream)
{
    int64_t ahead = from_step < 0 ? -PREFETCH_AHEAD : PREFETCH_AHEAD;
    const int last = ins - 1; /* input, of which a vector in two lines has one that no other block reads */
    const bool split = (uintptr_t)from[last] % 64 != 0 && from_step > ins * (int64_t)sizeof(vi);
    for (int64_t k = 0; k < blocks; k++) {
        for (int b = 0; b < ins; b++)
            _mm_prefetch(from[b] + k * from_step + ahead, _MM_HINT_T0);
        if (split)
            _mm_prefetch(from[last] + k * from_step + ahead + (int64_t)sizeof(vi) - 1, _MM_HINT_T0);
        for (int a = 0; a < p->outs; a++) {
            vi sum = vi_set1(0), lane = vi_load((const int32_t *)p->lane[a]);
            for (int b = 0; b < ins; b++)
                sum = pick(sum, p->from[a][b], lane, vi_load((const int32_t *)(from[b] + k * from_step)), bytes);
            put(to[a] + k * to_step, sum, 0, true, stream);
        }
    }
}

#if !MX_SIMD_512
/* The same for elements of 2 bytes. Bytes change places within each half of a vector, so that each result takes some
 * from an input and some from the input with its halves exchanged: by[a][b]. Bytes that it does not take have the
 * highest bit set in these. */
typedef struct pairs_plan {
    vi by[MX_PATTERN_VECTORS][MX_PATTERN_VECTORS][2];
} pairs_plan;

static void plan_pairs(const mx_pattern *p, pairs_plan *plan)
{
    for (int a = 0; a < p->outs; a++)
        for (int b = 0; b < p->ins; b++) {
            uint8_t place[2][32];
            memset(place, 0x80, sizeof place);
            for (int i = 0; i < 16; i++) {
                uint16_t lane;
                memcpy(&lane, p->lane[a] + 2 * i, sizeof lane);
                uint8_t *to = place[(lane ^ i) >> 3 & 1] + 2 * i;
                if (p->from[a][b] >> i & 1u)
                    to[0] = (uint8_t)(2 * (lane & 7)), to[1] = (uint8_t)(to[0] + 1);
            }
            for (int k = 0; k < 2; k++)
                plan->by[a][b][k] = vi_load((const int32_t *)place[k]);
        }
}

MX_INLINE void shuffle_pairs(const mx_pattern *p, const pairs_plan *plan, const int ins, char *const *to,
                             int64_t to_step, const char *const *from, int64_t from_step, int64_t blocks,
                             const bool stream)
{
    int64_t ahead = from_step < 0 ? -PREFETCH_AHEAD : PREFETCH_AHEAD;
    for (int64_t k = 0; k < blocks; k++) {
        for (int b = 0; b < ins; b++)
            _mm_prefetch(from[b] + k * from_step + ahead, _MM_HINT_T0);
        for (int a = 0; a < p->outs; a++) {
            vi sum = vi_set1(0);
            for (int b = 0; b < ins; b++) {
                vi x = vi_load((const int32_t *)(from[b] + k * from_step)), turned = _mm256_permute2x128_si256(x, x, 1);
                sum = vi_or(sum, vi_or(_mm256_shuffle_epi8(x, plan->by[a][b][0]),
                                       _mm256_shuffle_epi8(turned, plan->by[a][b][1])));
            }
            put(to[a] + k * to_step, sum, 0, true, stream);
        }
    }
}

static void shuffle_of_2(const mx_pattern *p, char *const *to, int64_t to_step, const char *const *from,
                         int64_t from_step, int64_t blocks, bool stream)
{
    pairs_plan plan;
    plan_pairs(p, &plan);
    if (stream)
        shuffle_pairs(p, &plan, p->ins, to, to_step, from, from_step, blocks, true);
    else if (p->ins == 1)
        shuffle_pairs(p, &plan, 1, to, to_step, from, from_step, blocks, false);
    else
        shuffle_pairs(p, &plan, p->ins, to, to_step, from, from_step, blocks, false);
}
#endif

/* Compiled for one and two inputs by themselves. */
MX_INLINE void shuffle_of(const mx_pattern *p, const size_t bytes, char *const *to, int64_t to_step,
                          const char *const *from, int64_t from_step, int64_t blocks, const bool stream)
{
    if (p->ins == 1)
        shuffle_as(p, bytes, 1, to, to_step, from, from_step, blocks, stream);
    else if (p->ins == 2)
        shuffle_as(p, bytes, 2, to, to_step, from, from_step, blocks, stream);
    else
        shuffle_as(p, bytes, p->ins, to, to_step, from, from_step, blocks, stream);
}

static void shuffle(const mx_pattern *p, size_t element_bytes, char *const *to, int64_t to_step,
                    const char *const *from, int64_t from_step, int64_t blocks, bool stream)
{
    uintptr_t places = (uintptr_t)to_step;
    for (int a = 0; a < p->outs; a++)
        places |= (uintptr_t)to[a];
    stream = stream && places % sizeof(vi) == 0;
    if (element_bytes == 4)
        stream ? shuffle_of(p, 4, to, to_step, from, from_step, blocks, true)
               : shuffle_of(p, 4, to, to_step, from, from_step, blocks, false);
#if MX_SIMD_512
    else if (element_bytes == 8)
        stream ? shuffle_of(p, 8, to, to_step, from, from_step, blocks, true)
               : shuffle_of(p, 8, to, to_step, from, from_step, blocks, false);
    else
        stream ? shuffle_of(p, 2, to, to_step, from, from_step, blocks, true)
               : shuffle_of(p, 2, to, to_step, from, from_step, blocks, false);
#else
    else
        shuffle_of_2(p, to, to_step, from, from_step, blocks, stream);
#endif
}

/* ---- choices ---- */

/* With the path avx512_bf16 only: microcode makes the gather instructions of Intel's processors before it slow. From
 * the second and third-level cache they are faster than single loads on Zen 5, too. */
#ifdef __AVX512BF16__
/* Elements `at` of `from`, widened. Those of 2 bytes are halves of aligned words. */
MX_INLINE vi choose(const char *from, vi at, const int64_t bytes)
{
    if (bytes == 4)
        return _mm512_i32gather_epi32(at, from, 4);
    const vi words = _mm512_i32gather_epi32(vi_shr(at, 1), from, 4);
    return _mm512_srlv_epi32(words, _mm512_slli_epi32(vi_and(at, vi_set1(1)), 4));
}

enum { LINE = 64, AHEAD_ROWS = 8 };

/* A cache line or less, `at` bytes from the beginning, of the rows of `next` from r to before `end`. */
MX_INLINE void copy_lines(const mx_gather_rows *g, int64_t r, int64_t end, int64_t at, const bool whole)
{
    for (; r < end; r++) {
        const char *from = g->next + r * g->next_step + at;
        char *to = g->copy + r * g->copy_step + at;
        __builtin_prefetch(from + AHEAD_ROWS * g->next_step);
        if (whole)
            vi_store((int32_t *)to, vi_load((const int32_t *)from));
        else
            store_some(to, load_some(from, g->next_bytes - at), g->next_bytes - at);
    }
}

/* Row k, and rows of `next` from r to before `end`. Lines of both take turns: many loads that wait for memory one after
 * the other would keep the processor from looking further ahead. */
MX_INLINE bool gather_row(const mx_gather_rows *g, int64_t k, int64_t r, int64_t end, const int64_t bytes,
                          const bool stream)
{
    const int64_t per_line = LINE / bytes;
    const int32_t *index = g->index + k * g->step;
    const char *words = g->from - (uintptr_t)g->from % 4;
    const vi most = vi_set1((int32_t)(g->limit - 1)), across = vi_set1((int32_t)g->across);
    vi column = vi_add(vi_set1((int32_t)((g->from - words) / bytes)),
                       _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    vi greatest = vi_set1(0);
    int64_t i = 0, copied = 0;
    for (; i + per_line <= g->n; i += per_line) {
        vi chosen[2];
        for (int part = 0; part < per_line / VL; part++) {
            const vi id = vi_load(index + i + part * VL);
            __builtin_prefetch(index + AHEAD_ROWS * g->step + i + part * VL);
            greatest = _mm512_max_epu32(greatest, id);
            chosen[part] = choose(words, vi_add(_mm512_mullo_epi32(_mm512_min_epu32(id, most), across), column), bytes);
            column = vi_add(column, vi_set1(VL));
        }
        if (bytes == 2)
            chosen[0] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(chosen[0])),
                                           _mm512_cvtepi32_epi16(chosen[1]), 1);
        put(g->to + (k * g->step + i) * bytes, chosen[0], 0, true, stream);
        if (copied + LINE <= g->next_bytes) {
            copy_lines(g, r, end, copied, true);
            copied += LINE;
        }
    }
    for (; copied < g->next_bytes; copied += LINE)
        copy_lines(g, r, end, copied, false);
    return _mm512_cmpgt_epu32_mask(greatest, most) == 0 && (i == g->n || gather_row_plain(g, k, i, bytes));
}

MX_INLINE bool gather_rows_of(const mx_gather_rows *g, const int64_t bytes, const bool stream)
{
    bool good = true;
    for (int64_t k = 0, r = 0, end = 0, due = 0; k < g->rows; k++, r = end) {
        for (due += g->next_bytes > 0 ? g->limit : 0; due >= g->rows; due -= g->rows)
            end++;
        good &= gather_row(g, k, r, end, bytes, stream);
    }
    return good;
}

static bool gather_rows(const mx_gather_rows *g, size_t element_bytes, bool stream)
{
    stream = stream && ((uintptr_t)g->to | (uintptr_t)g->step * element_bytes) % sizeof(vi) == 0;
    if ((element_bytes != 4 && element_bytes != 2) || g->limit * g->across + g->n >= INT32_MAX)
        return gather_rows_plain(g, element_bytes, false);
    if (element_bytes == 4)
        return stream ? gather_rows_of(g, 4, true) : gather_rows_of(g, 4, false);
    return stream ? gather_rows_of(g, 2, true) : gather_rows_of(g, 2, false);
}
#endif

/* ---- sums ---- */

/* VL sums added to x; they become 0. */
MX_INLINE vf take_sums(double *sums, vf x)
{
#if MX_SIMD_512
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                  high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    const __m256 a = _mm512_cvtpd_ps(_mm512_add_pd(low, _mm512_loadu_pd(sums)));
    const __m256 b = _mm512_cvtpd_ps(_mm512_add_pd(high, _mm512_loadu_pd(sums + 8)));
    _mm512_storeu_pd(sums, _mm512_setzero_pd());
    _mm512_storeu_pd(sums + 8, _mm512_setzero_pd());
    return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
#else
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    const __m128 a = _mm256_cvtpd_ps(_mm256_add_pd(low, _mm256_loadu_pd(sums)));
    const __m128 b = _mm256_cvtpd_ps(_mm256_add_pd(high, _mm256_loadu_pd(sums + 4)));
    _mm256_storeu_pd(sums, _mm256_setzero_pd());
    _mm256_storeu_pd(sums + 4, _mm256_setzero_pd());
    return _mm256_insertf128_ps(_mm256_castps128_ps256(a), b, 1);
#endif
}

MX_INLINE void add_sums_of(char *to, const char *from, double *sums, int64_t n, const bool bf16, const bool stream)
{
    const int64_t of_vector = bf16 ? 2 * VL : VL, bytes = bf16 ? 2 : 4;
    int64_t i = 0;
    for (; i + of_vector <= n; i += of_vector) {
        vf x = vf_zero(), y = vf_zero();
        if (from && bf16)
            x = vf_load_bf16((const mx_bf16 *)from + i), y = vf_load_bf16((const mx_bf16 *)from + i + VL);
        else if (from)
            x = vf_load((const float *)from + i);
        x = take_sums(sums + i, x);
        put(to + i * bytes, bf16 ? vf_pack_bf16(x, take_sums(sums + i + VL, y)) : vf_bits(x), 0, true, stream);
    }
    add_sums_plain(to + i * bytes, from ? from + i * bytes : NULL, sums + i, n - i, bf16, false);
}

static void add_sums(void *to, const void *from, double *sums, int64_t n, bool bf16, bool stream)
{
    stream = stream && (uintptr_t)to % sizeof(vi) == 0;
    if (bf16)
        stream ? add_sums_of(to, from, sums, n, true, true) : add_sums_of(to, from, sums, n, true, false);
    else
        stream ? add_sums_of(to, from, sums, n, false, true) : add_sums_of(to, from, sums, n, false, false);
}

#if MX_SIMD_512
/* The means of half a vector of pairs and of x; the pairs become 0. Sums are multiplied by 1 / count, which is right
 * but for the last bits of an f64: a division takes more than twice as long. */
MX_INLINE __m256 take_means(double *pairs, __m256 x, const bool afresh)
{
    const __m512i sums = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), one = _mm512_set1_epi64(1);
    const __m512d a = _mm512_loadu_pd(pairs), b = _mm512_loadu_pd(pairs + 8), unit = _mm512_set1_pd(1);
    const __m512d count = _mm512_permutex2var_pd(a, _mm512_add_epi64(sums, one), b);
    const __mmask8 own = afresh ? _mm512_cmp_pd_mask(count, _mm512_setzero_pd(), _CMP_EQ_OQ) : 0xff; /* x counts */
    const __m512d n = _mm512_mask_add_pd(count, own, count, unit), two = _mm512_set1_pd(2);
    const __m512d sum = _mm512_add_pd(_mm512_maskz_cvtps_pd(own, x), _mm512_permutex2var_pd(a, sums, b));
    __m512d inverse = _mm512_rcp14_pd(n);
    for (int i = 0; i < 2; i++)
        inverse = _mm512_mul_pd(inverse, _mm512_fnmadd_pd(inverse, n, two));
    _mm512_storeu_pd(pairs, _mm512_setzero_pd());
    _mm512_storeu_pd(pairs + 8, _mm512_setzero_pd());
    return _mm512_cvtpd_ps(_mm512_mul_pd(sum, inverse));
}

MX_INLINE vf take_means_of_16(double *pairs, vf x, const bool afresh)
{
    const __m256 low = take_means(pairs, _mm512_castps512_ps256(x), afresh);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), take_means(pairs + VL, _mm512_extractf32x8_ps(x, 1), afresh),
                              1);
}

MX_INLINE void put_means_of(char *to, const char *from, double *pairs, int64_t n, const bool bf16, const bool afresh,
                            const bool stream)
{
    const int64_t of_vector = bf16 ? 2 * VL : VL, bytes = bf16 ? 2 : 4;
    int64_t i = 0;
    for (; i + of_vector <= n; i += of_vector) {
        const vf x = bf16 ? vf_load_bf16((const mx_bf16 *)from + i) : vf_load((const float *)from + i);
        const vf mean = take_means_of_16(pairs + 2 * i, x, afresh);
        vi result = vf_bits(mean);
        if (bf16) {
            const vf y = vf_load_bf16((const mx_bf16 *)from + i + VL);
            result = vf_pack_bf16(mean, take_means_of_16(pairs + 2 * (i + VL), y, afresh));
        }
        put(to + i * bytes, result, 0, true, stream);
    }
    put_means_plain(to + i * bytes, from + i * bytes, pairs + 2 * i, n - i, bf16 ? MX_BF16 : MX_F32, afresh, false);
}

static void put_means(void *to, const void *from, double *pairs, int64_t n, mx_dtype dtype, bool afresh, bool stream)
{
    stream = stream && (uintptr_t)to % sizeof(vi) == 0;
    if (dtype != MX_F32 && dtype != MX_BF16)
        put_means_plain(to, from, pairs, n, dtype, afresh, false);
    else if (dtype == MX_BF16 && stream)
        afresh ? put_means_of(to, from, pairs, n, true, true, true)
               : put_means_of(to, from, pairs, n, true, false, true);
    else if (stream)
        afresh ? put_means_of(to, from, pairs, n, false, true, true)
               : put_means_of(to, from, pairs, n, false, false, true);
    else
        put_means_of(to, from, pairs, n, dtype == MX_BF16, afresh, false);
}
#endif

const mx_move_paths MX_SIMD_NAME(mx_moves) = {
    .transpose = transpose_any,
    .runs = copy_runs,
    .shuffle = shuffle,
#if MX_SIMD_512
    .lanes = {[2] = 32, [4] = 16, [8] = 8},
#else
    .lanes = {[2] = 16, [4] = 8},
#endif
    .gather = gather_plain,
#ifdef __AVX512BF16__
    .gather_rows = gather_rows,
    .copies = true,
#else
    .gather_rows = gather_rows_plain,
#endif
    .within = within_plain,
    .add = add_plain,
    .add_sums = add_sums,
#if MX_SIMD_512
    .put_means = put_means,
#else
    .put_means = put_means_plain,
#endif
    .keys = keys_plain,
    .values = values_plain,
};
