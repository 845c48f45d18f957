/* Copies of runs, choices by index and sums of them in plain C, for each path that has no better ones. */
#ifndef MX_KERNELS_MOVE_LOOPS_H
#define MX_KERNELS_MOVE_LOOPS_H

#include "core/element.h"
#include "kernels/index_ahead.h"
#include "kernels/inline.h"
#include "kernels/move.h"

#include <immintrin.h>
#include <string.h>

static inline void runs_plain(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t runs,
                              int64_t bytes, bool stream)
{
    (void)stream;
    for (int64_t r = 0; r < runs; r++)
        memcpy(to + r * to_step, from + r * from_step, (size_t)bytes);
}

static bool within_plain(const int32_t *index, int64_t n, int64_t limit)
{
    uint32_t most = 0; /* a negative one is a large unsigned one */
    for (int64_t i = 0; i < n; i++)
        most = (uint32_t)index[i] > most ? (uint32_t)index[i] : most;
    return n == 0 || most < limit;
}

/* One element after the other: from the first-level cache, the gather instructions of AMD take twice as long, those of
 * Intel as long. */
MX_INLINE void gather_as(char *to, const char *from, const int32_t *index, int64_t n, const bool rows, int64_t across,
                         const size_t bytes)
{
#pragma GCC unroll 8
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = rows ? index[i] * across + i : index[i];
        memcpy(to + i * (int64_t)bytes, from + at * (int64_t)bytes, bytes);
    }
}

static bool gather_plain(void *to, const void *from, const int32_t *index, int64_t n, int64_t limit,
                         size_t element_bytes)
{
    if (!within_plain(index, n, limit))
        return false;
    if (element_bytes == 8)
        gather_as(to, from, index, n, false, 0, 8);
    else if (element_bytes == 4)
        gather_as(to, from, index, n, false, 0, 4);
    else if (element_bytes == 2)
        gather_as(to, from, index, n, false, 0, 2);
    else
        gather_as(to, from, index, n, false, 0, 1);
    return true;
}

/* Elements [first, n) of row k. */
MX_INLINE bool gather_row_plain(const mx_gather_rows *g, int64_t k, int64_t first, const int64_t bytes)
{
    const int32_t *index = g->index + k * g->step + first;
    if (!within_plain(index, g->n - first, g->limit))
        return false;
    gather_as(g->to + (k * g->step + first) * bytes, g->from + first * bytes, index, g->n - first, true, g->across,
              (size_t)bytes);
    return true;
}

static bool gather_rows_plain(const mx_gather_rows *g, size_t element_bytes, bool stream)
{
    bool good = true;
    (void)stream;
    for (int64_t k = 0; k < g->rows; k++)
        good &= element_bytes == 8   ? gather_row_plain(g, k, 0, 8)
                : element_bytes == 4 ? gather_row_plain(g, k, 0, 4)
                : element_bytes == 2 ? gather_row_plain(g, k, 0, 2)
                                     : gather_row_plain(g, k, 0, 1);
    return good;
}

MX_INLINE void add_one(double *sums, int32_t index, const double *y, const bool pairs)
{
    double *sum = sums + (pairs ? 2 : 1) * (int64_t)index;
    if (pairs)
        _mm_storeu_pd(sum, _mm_add_pd(_mm_loadu_pd(sum), _mm_loadu_pd(y)));
    else
        *sum += *y;
}

/* Elements are widened by vectors, then added one by one. */
MX_INLINE void add_some(double *sums, const int32_t *index, const void *y, int64_t k, int64_t n, const bool bf16,
                        const bool pairs)
{
    const int each = pairs ? 2 : 1;
    _Alignas(64) double room[2 * AHEAD_STEP];
    for (int64_t u = 0; u < n; u++) {
        room[each * u] = bf16 ? mx_from_bf16(((const mx_bf16 *)y)[k + u]) : ((const float *)y)[k + u];
        if (pairs)
            room[2 * u + 1] = 1;
    }
#pragma GCC unroll 32
    for (int64_t u = 0; u < n; u++)
        add_one(sums, index[k + u], room + each * u, pairs);
}

MX_INLINE void add_as(double *sums, const int32_t *index, const void *y, int64_t n, const char *then, int64_t more,
                      const bool bf16, const bool pairs)
{
    mx_index_ahead ahead = mx_index_ahead_of(index, y, bf16 ? 2 : 4, n, then, more);
    int64_t k = 0;
    for (; k + AHEAD_STEP <= n; k += AHEAD_STEP) {
        mx_index_ahead_step(&ahead, bf16 ? 2 : 4);
        add_some(sums, index, y, k, AHEAD_STEP, bf16, pairs);
    }
    add_some(sums, index, y, k, n - k, bf16, pairs);
}

static void add_plain(double *sums, const int32_t *index, const void *y, int64_t n, bool bf16, bool pairs,
                      const char *then, int64_t more)
{
    if (bf16)
        pairs ? add_as(sums, index, y, n, then, more, true, true) : add_as(sums, index, y, n, then, more, true, false);
    else
        pairs ? add_as(sums, index, y, n, then, more, false, true)
              : add_as(sums, index, y, n, then, more, false, false);
}

MX_INLINE void add_sums_as(void *to, const void *from, double *sums, int64_t n, const bool bf16, const bool zero)
{
    for (int64_t i = 0; i < n && bf16; i++)
        ((mx_bf16 *)to)[i] = mx_to_bf16((float)((zero ? 0 : mx_from_bf16(((const mx_bf16 *)from)[i])) + sums[i]));
    for (int64_t i = 0; i < n && !bf16; i++)
        ((float *)to)[i] = (float)((zero ? 0 : ((const float *)from)[i]) + sums[i]);
    memset(sums, 0, (size_t)n * sizeof *sums);
}

static void add_sums_plain(void *to, const void *from, double *sums, int64_t n, bool bf16, bool stream)
{
    (void)stream;
    if (bf16)
        from ? add_sums_as(to, from, sums, n, true, false) : add_sums_as(to, from, sums, n, true, true);
    else
        from ? add_sums_as(to, from, sums, n, false, false) : add_sums_as(to, from, sums, n, false, true);
}

MX_INLINE void put_means_as(void *to, const void *from, const double *pairs, int64_t n, const mx_dtype dtype,
                            const bool afresh)
{
    for (int64_t i = 0; i < n; i++) {
        const double sum = pairs[2 * i], count = pairs[2 * i + 1], before = mx_get_number(from, i, dtype);
        const bool counts = !afresh || count == 0;
        mx_set_number(to, i, ((counts ? before : 0) + sum) / (count + (counts ? 1 : 0)), dtype);
    }
}

static void put_means_plain(void *to, const void *from, double *pairs, int64_t n, mx_dtype dtype, bool afresh,
                            bool stream)
{
    (void)stream;
    if (dtype == MX_F32)
        afresh ? put_means_as(to, from, pairs, n, MX_F32, true) : put_means_as(to, from, pairs, n, MX_F32, false);
    else if (dtype == MX_BF16)
        afresh ? put_means_as(to, from, pairs, n, MX_BF16, true) : put_means_as(to, from, pairs, n, MX_BF16, false);
    else
        afresh ? put_means_as(to, from, pairs, n, MX_F64, true) : put_means_as(to, from, pairs, n, MX_F64, false);
    memset(pairs, 0, (size_t)(2 * n) * sizeof *pairs);
}

#define DEFINE_KEYS(bits)                                                                                              \
    static void keys_##bits(int##bits##_t *to, const int##bits##_t *from, int64_t n, const mx_key_order *order)        \
    {                                                                                                                  \
        const int##bits##_t flip = (int##bits##_t)order->flip, most = (int##bits##_t)order->most,                      \
                            below_0 = (int##bits##_t)order->below_0;                                                   \
        _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)                                                           \
        {                                                                                                              \
            const int##bits##_t x = from[i] ^ flip, magnitude = x & INT##bits##_MAX;                                   \
            const int##bits##_t ordered = magnitude > most ? magnitude : x;                                            \
            to[i] = ordered ^ (ordered < 0 ? below_0 : 0);                                                             \
        }                                                                                                              \
    }                                                                                                                  \
    static void values_##bits(int##bits##_t *x, int64_t n, const mx_key_order *order)                                  \
    {                                                                                                                  \
        const int##bits##_t flip = (int##bits##_t)order->flip, below_0 = (int##bits##_t)order->below_0;                \
        for (int64_t i = 0; i < n; i++)                                                                                \
            x[i] = x[i] ^ (x[i] < 0 ? below_0 : 0) ^ flip;                                                             \
    }

DEFINE_KEYS(8)
DEFINE_KEYS(16)
DEFINE_KEYS(32)
DEFINE_KEYS(64)

static void keys_plain(void *to, const void *from, int64_t n, const mx_key_order *order, size_t element_bytes)
{
    if (element_bytes == 8)
        keys_64(to, from, n, order);
    else if (element_bytes == 4)
        keys_32(to, from, n, order);
    else if (element_bytes == 2)
        keys_16(to, from, n, order);
    else
        keys_8(to, from, n, order);
}

static void values_plain(void *x, int64_t n, const mx_key_order *order, size_t element_bytes)
{
    if (element_bytes == 8)
        values_64(x, n, order);
    else if (element_bytes == 4)
        values_32(x, n, order);
    else if (element_bytes == 2)
        values_16(x, n, order);
    else
        values_8(x, n, order);
}

#endif
