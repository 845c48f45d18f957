#include "kernels/draw.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/sort.h"

#include <float.h>
#include <math.h>
#include <string.h>

static void draw_words(mx_stream s, int64_t group, uint32_t words[MX_RNG_GROUP])
{
    mx_kernels_current()->random->words(s.seed, s.offset, (uint64_t)group | (s.drawn ? 1ULL << 59 : 0), words);
}

static mx_array at(mx_array x, int64_t i)
{
    return (mx_array){(char *)x.data + i * (int64_t)mx_dtype_bytes(x.dtype), x.dtype};
}

/* Uniform in (0, 1). */
static double open_unit(uint32_t word) { return ((double)word + 0.5) * 0x1p-32; }

/* Calls f(context, i, word of element i) for n elements. */
typedef void draw_fn(const void *context, int64_t i, uint32_t word);

static void for_each_word(mx_stream s, int64_t n, draw_fn *f, const void *context)
{
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t group = 0; group < mx_ceil_div(n, MX_RNG_GROUP); group++) {
        uint32_t words[MX_RNG_GROUP];
        draw_words(s, group, words);
        for (int64_t i = group * MX_RNG_GROUP; i < mx_min(n, (group + 1) * MX_RNG_GROUP); i++)
            f(context, i, words[i % MX_RNG_GROUP]);
    }
}

static void integers_of(const uint32_t words[MX_RNG_GROUP], int32_t low, uint32_t range, int32_t y[MX_RNG_GROUP / 2])
{
    for (int i = 0; i < MX_RNG_GROUP / 2; i++) {
        uint64_t lower = (uint64_t)words[MX_RNG_GROUP / 2 + i] * range >> 32;
        y[i] = (int32_t)((uint32_t)low + (uint32_t)(((uint64_t)words[i] * range + lower) >> 32));
    }
}

/* Two words for each number. */
void mx_random_integers(mx_stream s, int64_t low, uint64_t range, mx_array y, int64_t n)
{
    enum { HALF = MX_RNG_GROUP / 2 };
    bool narrow = y.dtype == MX_I32 && range <= UINT32_MAX;
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t group = 0; group < mx_ceil_div(n, HALF); group++) {
        uint32_t words[MX_RNG_GROUP];
        draw_words(s, group, words);
        if (narrow && (group + 1) * HALF <= n) {
            integers_of(words, (int32_t)low, (uint32_t)range, (int32_t *)y.data + group * HALF);
            continue;
        }
        for (int64_t i = group * HALF; i < mx_min(n, (group + 1) * HALF); i++) {
            uint64_t bits = (uint64_t)words[i % HALF] << 32 | words[HALF + i % HALF];
            uint64_t part = (uint64_t)((unsigned __int128)bits * range >> 64);
            mx_set_number(y.data, i, (double)(low + (int64_t)part), y.dtype);
        }
    }
}

static void below(const uint32_t words[MX_RNG_GROUP], const float p[MX_RNG_GROUP], uint8_t y[MX_RNG_GROUP])
{
    for (int i = 0; i < MX_RNG_GROUP; i++)
        y[i] = (double)words[i] * 0x1p-32 < (double)p[i];
}

/* By way of u8. */
void mx_random_bernoulli(mx_stream s, mx_array p, mx_array y, int64_t n)
{
    enum { BLOCK = 16 * MX_RNG_GROUP };
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t m = mx_min(n - first, BLOCK);
        uint32_t words[MX_RNG_GROUP];
        float chance[BLOCK] = {0};
        uint8_t one[BLOCK];
        mx_cast(at(p, first), (mx_array){chance, MX_F32}, m);
        for (int64_t i = 0; i < m; i += MX_RNG_GROUP) {
            draw_words(s, (first + i) / MX_RNG_GROUP, words);
            below(words, chance + i, one + i);
        }
        mx_cast((mx_array){one, MX_U8}, at(y, first), m);
    }
}

/* ---- truncated normals, by the inverse of the distribution function ---- */

static double normal_below(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }

/* x with normal_below(x) = p, 0 < p < 1, to a relative 1.2e-9: Acklam's rational approximation. */
static double normal_quantile(double p)
{
    static const double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                               1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
    static const double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                               6.680131188771972e+01, -1.328068155288572e+01};
    static const double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                               -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
    static const double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                               3.754408661907416e+00};
    const double edge = 0.02425;
    if (p < edge || p > 1 - edge) {
        double q = sqrt(-2 * log(p < edge ? p : 1 - p));
        double x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
                   ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
        return p < edge ? x : -x;
    }
    double q = p - 0.5, r = q * q;
    return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
           (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

typedef struct truncated {
    const mx_truncated *t;
    bool mirrored;
    double low, high, below, width; /* the share below `low`, and between the bounds */
    mx_array y;
} truncated;

static void draw_truncated(const void *context, int64_t i, uint32_t word)
{
    const truncated *c = context;
    const mx_truncated *t = c->t;
    double z = normal_quantile(c->below + open_unit(word) * c->width);
    z = !(z > c->low) ? c->low : z < c->high ? z : c->high;
    float value = (float)(t->mean + t->std * (c->mirrored ? -z : z));
    value = value < t->least ? t->least : value > t->greatest ? t->greatest : value;
    mx_set_float(c->y.data, i, value, c->y.dtype);
}

/* Where both bounds are positive, their mirror image: there the distribution function is accurate. */
void mx_random_truncated(mx_stream s, const mx_truncated *t, mx_array y, int64_t n)
{
    truncated c = {.t = t, .mirrored = t->low > 0, .y = y};
    c.low = c.mirrored ? -t->high : t->low;
    c.high = c.mirrored ? -t->low : t->high;
    c.below = normal_below(c.low);
    c.width = normal_below(c.high) - c.below;
    for_each_word(s, n, draw_truncated, &c);
}

/* ---- choices ---- */

static void draw_key(const void *context, int64_t i, uint32_t word) { ((int32_t *)context)[i] = (int32_t)word; }

/* The order of random words. Equal words keep their order: of n words, n^2 / 2^33 pairs. */
mx_status mx_random_permutation(mx_stream s, int32_t *y, int64_t n)
{
    int32_t *key;
    MX_TRY(mx_pool_alloc(n * (int64_t)sizeof *key, (void **)&key));
    for_each_word(s, n, draw_key, key);
    mx_status status = mx_sort((mx_array){key, MX_I32}, (mx_extent){1, n, 1}, false, NULL, y);
    mx_pool_free(key, n * (int64_t)sizeof *key);
    return status;
}

/* The bits of floats from 0 on have the order of the numbers; those of NaN and of all below 0 are larger, and -0 is 0.
 */
static bool within(mx_dtype dtype, const void *x, float most, int64_t n)
{
    uint32_t limit, bad = 0;
    memcpy(&limit, &most, sizeof limit);
    if (mx_is_bf16(dtype)) {
        const uint16_t *bits = x, top = (uint16_t)(limit >> 16);
        uint16_t outside = 0;
        for (int64_t i = 0; i < n; i++)
            outside |= (uint16_t)((bits[i] > top) & (bits[i] != 0x8000));
        return !outside;
    }
    const uint32_t *bits = x;
    for (int64_t i = 0; i < n; i++)
        bad |= (uint32_t)((bits[i] > limit) & (bits[i] != 0x80000000u));
    return !bad;
}

static int64_t find_outside(mx_array x, float most, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        float one = mx_get_float(x.data, i, x.dtype);
        if (!(one >= 0 && one <= most))
            return i;
    }
    return end;
}

int64_t mx_find_outside(mx_array x, float most, int64_t n)
{
    int64_t found = n;
#pragma omp parallel for schedule(static) reduction(min : found) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK) {
        int64_t m = mx_min(n - first, MX_CHUNK);
        if (found >= n && !within(x.dtype, at(x, first).data, most, m))
            found = mx_min(found, find_outside(x, most, first, first + m));
    }
    return found < n ? found : -1;
}

enum { SUM_BLOCK = 64 }; /* weights that are summed at once */

/* In 16 sums, which are added in halves. */
static double block_sum(const float *x)
{
    double sum[16] = {0};
    for (int i = 0; i < SUM_BLOCK; i += 16)
        for (int k = 0; k < 16; k++)
            sum[k] += (double)x[i + k];
    for (int half = 8; half; half /= 2)
        for (int k = 0; k < half; k++)
            sum[k] += sum[k + half];
    return sum[0];
}

static void widen(mx_dtype dtype, const void *x, float *y, int64_t n)
{
    if (!mx_is_bf16(dtype)) {
        memcpy(y, x, (size_t)n * sizeof *y);
        return;
    }
    const mx_bf16 *p = x;
    for (int64_t i = 0; i < n; i++)
        y[i] = mx_from_bf16(p[i]);
}

static void block_sums(mx_dtype dtype, const void *x, int64_t n, double *sums)
{
    const int64_t bytes = mx_is_bf16(dtype) ? 2 : 4;
    for (int64_t i = 0; i < n; i += SUM_BLOCK) {
        float block[SUM_BLOCK] = {0};
        if (n - i >= SUM_BLOCK)
            widen(dtype, (const char *)x + i * bytes, block, SUM_BLOCK);
        else
            widen(dtype, (const char *)x + i * bytes, block, n - i);
        sums[i / SUM_BLOCK] = block_sum(block);
    }
}

typedef struct choice {
    const mx_multinomial *m;
    int64_t blocks; /* of a row */
    double *sums;   /* (rows, blocks): of the weights up to the end of each block */
    float *time;    /* (rows, width) */
} choice;

/* The first block whose sum is above `at`. */
static int64_t find_block(const double *sums, int64_t blocks, double at)
{
    int64_t low = 0, high = blocks - 1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (sums[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The first place whose sum of weights up to it is above a random part of the row's. Should rounding leave none in the
 * block, it is the last that has a weight. */
static void draw_place(const void *context, int64_t i, uint32_t word)
{
    const choice *c = context;
    const mx_multinomial *m = c->m;
    int64_t row = i / m->n, place = 0;
    const double *sums = c->sums + row * c->blocks;
    double at = open_unit(word) * sums[c->blocks - 1];
    int64_t block = find_block(sums, c->blocks, at), first = block * SUM_BLOCK;
    double sum = block ? sums[block - 1] : 0;
    for (int64_t k = first; k < mx_min(first + SUM_BLOCK, m->width) && !(sum > at); k++) {
        double weight = (double)mx_get_float(m->p.data, row * m->width + k, m->p.dtype);
        sum += weight;
        place = weight > 0 ? k : place;
    }
    m->ids[i] = (int32_t)place;
}

static mx_status draw_with_replacement(mx_stream s, const mx_multinomial *m)
{
    choice c = {.m = m, .blocks = mx_ceil_div(m->width, SUM_BLOCK)};
    int64_t bytes = m->rows * c.blocks * (int64_t)sizeof(double);
    MX_TRY(mx_pool_alloc(bytes, (void **)&c.sums));
#pragma omp parallel for schedule(static) if (m->rows * m->width >= MX_PARALLEL_FROM)
    for (int64_t r = 0; r < m->rows; r++) {
        double *sums = c.sums + r * c.blocks;
        block_sums(m->p.dtype, at(m->p, r * m->width).data, m->width, sums);
        for (int64_t k = 1; k < c.blocks; k++)
            sums[k] += sums[k - 1];
    }
    for_each_word(s, m->rows * m->n, draw_place, &c);
    mx_pool_free(c.sums, bytes);
    return MX_OK;
}

static void draw_time(const void *context, int64_t i, uint32_t word)
{
    const choice *c = context;
    double weight = (double)mx_get_float(c->m->p.data, i, c->m->p.dtype), at = -log(open_unit(word)) / weight;
    c->time[i] = weight > 0 ? (float)fmin(at, FLT_MAX) : INFINITY;
}

/* A race: each weight arrives at an exponentially distributed time, sooner if it is larger. The first n have the
 * distribution, and the order, of n draws. */
static mx_status draw_without_replacement(mx_stream s, const mx_multinomial *m)
{
    int64_t count = m->rows * m->width, bytes = count * (int64_t)sizeof(float);
    choice c = {.m = m};
    MX_TRY(mx_pool_alloc(bytes, (void **)&c.time));
    for_each_word(s, count, draw_time, &c);
    const mx_extent rows = {m->rows, m->width, 1};
    mx_status status = mx_topk((mx_array){c.time, MX_F32}, rows, m->n, true, NULL, m->ids);
    mx_pool_free(c.time, bytes);
    return status;
}

mx_status mx_random_multinomial(mx_stream s, const mx_multinomial *m)
{
    return m->replacement || m->n == 1 ? draw_with_replacement(s, m) : draw_without_replacement(s, m);
}
