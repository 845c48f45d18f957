#include "kernels/draw.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/sort.h"

#include <float.h>
#include <math.h>
#include <string.h>

static mx_array at(mx_array x, int64_t i)
{
    return (mx_array){(char *)x.data + i * (int64_t)mx_dtype_bytes(x.dtype), x.dtype};
}

/* Uniform in (0, 1). */
static double open_unit(uint32_t word) { return ((double)word + 0.5) * 0x1p-32; }

enum { GROUPS = 16, BLOCK = GROUPS * MX_RNG_GROUP };

/* The words of n <= BLOCK elements, of which the first begins a group. */
static void draw_words(mx_stream s, int64_t first, int64_t n, uint32_t words[BLOCK])
{
    const mx_draw draw = {.kind = MX_DRAW_WORDS, .s = s};
    mx_kernels_current()->random->fill(&draw, mx_group_of(s, first / MX_RNG_GROUP), mx_ceil_div(n, MX_RNG_GROUP),
                                       (mx_array){words, MX_I32}, false);
}

/* Calls f(context, i, word of element i) for n elements. */
typedef void draw_fn(const void *context, int64_t i, uint32_t word);

static void for_each_word(mx_stream s, int64_t n, draw_fn *f, const void *context)
{
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK) {
        uint32_t words[BLOCK];
        int64_t m = mx_min(n - first, BLOCK);
        draw_words(s, first, m, words);
        for (int64_t i = 0; i < m; i++)
            f(context, first + i, words[i]);
    }
}

/* y[i] for elements of `per_group` to a group. Whole groups are written in place, the last one by way of `rest`. */
static void fill_whole(const mx_draw *d, int64_t per_group, mx_array y, int64_t n)
{
    const int64_t groups = n / per_group, bytes = (int64_t)mx_dtype_bytes(y.dtype);
    const bool stream = mx_should_stream(n * bytes);
    const mx_random_paths *paths = mx_kernels_current()->random;
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < groups; first += 16 * GROUPS)
        paths->fill(d, mx_group_of(d->s, first), mx_min(groups - first, 16 * GROUPS), at(y, first * per_group), stream);
    uint32_t rest[MX_RNG_GROUP];
    paths->fill(d, mx_group_of(d->s, groups), 1, (mx_array){rest, MX_I32}, false);
    memcpy(at(y, groups * per_group).data, rest, (size_t)(n % per_group * bytes));
}

/* Two words for each number. */
void mx_random_integers(mx_stream s, int64_t low, uint64_t range, mx_array y, int64_t n)
{
    enum { HALF = MX_RNG_GROUP / 2 };
    if (y.dtype == MX_I32 && range <= UINT32_MAX) {
        const mx_draw d = {.kind = MX_DRAW_INTEGERS, .s = s, .low = (uint32_t)low, .range = (uint32_t)range};
        fill_whole(&d, HALF, y, n);
        return;
    }
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK / 2) {
        uint32_t words[BLOCK];
        int64_t m = mx_min(n - first, BLOCK / 2);
        draw_words(s, 2 * first, mx_round_up(2 * m, MX_RNG_GROUP), words);
        for (int64_t i = 0; i < m; i++) {
            const uint32_t *pair = words + i / HALF * MX_RNG_GROUP + i % HALF;
            uint64_t bits = (uint64_t)pair[0] << 32 | pair[HALF];
            uint64_t part = (uint64_t)((unsigned __int128)bits * range >> 64);
            mx_set_number(y.data, first + i, (double)(low + (int64_t)part), y.dtype);
        }
    }
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

/* The first of m elements from `first` on that is not in [0, most], or `none`. */
static int64_t outside_block(mx_array x, float most, int64_t first, int64_t m, int64_t none)
{
    if (mx_kernels_current()->draws->within(x.dtype, at(x, first).data, most, m))
        return none;
    return find_outside(x, most, first, first + m);
}

/* m elements, by way of f32. */
static void draw_chances(mx_stream s, mx_array p, mx_array y, int64_t first, int64_t m)
{
    float chance[BLOCK] = {0};
    mx_array block = {chance, MX_F32};
    mx_cast(at(p, first), block, m);
    mx_kernels_current()->random->chances(s, mx_group_of(s, first / MX_RNG_GROUP), GROUPS, block, block, false);
    mx_cast(block, at(y, first), m);
}

int64_t mx_random_bernoulli(mx_stream s, mx_array p, mx_array y, int64_t n)
{
    const mx_random_paths *paths = mx_kernels_current()->random;
    const bool alike = p.dtype == y.dtype, stream = alike && mx_should_stream(2 * n * (int64_t)mx_dtype_bytes(y.dtype));
    int64_t bad = n;
#pragma omp parallel for schedule(static) reduction(min : bad) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t m = mx_min(n - first, BLOCK);
        bad = mx_min(bad, outside_block(p, 1, first, m, n));
        if (bad < n)
            continue;
        if (alike && m == BLOCK)
            paths->chances(s, mx_group_of(s, first / MX_RNG_GROUP), GROUPS, at(p, first), at(y, first), stream);
        else
            draw_chances(s, p, y, first, m);
    }
    return bad < n ? bad : -1;
}

/* ---- truncated normals, by the inverse of the distribution function ---- */

static double normal_below(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }

/* Where both bounds are positive, their mirror image: there the distribution function is accurate. */
void mx_random_truncated(mx_stream s, const mx_truncated *t, mx_array y, int64_t n)
{
    const bool mirrored = t->low > 0;
    mx_quantiles c = {.low = mirrored ? -t->high : t->low,
                      .high = mirrored ? -t->low : t->high,
                      .mean = t->mean,
                      .std = mirrored ? -t->std : t->std,
                      .least = t->least,
                      .greatest = t->greatest};
    c.below = normal_below(c.low);
    c.width = normal_below(c.high) - c.below;
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += BLOCK) {
        uint32_t words[BLOCK];
        float value[BLOCK];
        int64_t m = mx_min(n - first, BLOCK);
        draw_words(s, first, m, words);
        mx_kernels_current()->draws->truncate(&c, words, value, mx_round_up(m, MX_RNG_GROUP));
        mx_cast((mx_array){value, MX_F32}, at(y, first), m);
    }
}

/* ---- choices ---- */

/* The order of random words. Equal words keep their order: of n words, n^2 / 2^33 pairs. */
mx_status mx_random_permutation(mx_stream s, int32_t *y, int64_t n)
{
    int32_t *key;
    MX_TRY(mx_pool_alloc(n * (int64_t)sizeof *key, (void **)&key));
    const mx_draw words = {.kind = MX_DRAW_WORDS, .s = s};
    fill_whole(&words, MX_RNG_GROUP, (mx_array){key, MX_I32}, n);
    mx_status status = mx_sort((mx_array){key, MX_I32}, (mx_extent){1, n, 1}, false, NULL, y);
    mx_pool_free(key, n * (int64_t)sizeof *key);
    return status;
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
static int32_t place_of(const choice *c, int64_t row, uint32_t word)
{
    const mx_multinomial *m = c->m;
    const double *sums = c->sums + row * c->blocks;
    double at = open_unit(word) * sums[c->blocks - 1];
    int64_t block = find_block(sums, c->blocks, at), first = block * MX_WEIGHT_BLOCK, place = 0;
    double sum = block ? sums[block - 1] : 0;
    for (int64_t k = first; k < mx_min(first + MX_WEIGHT_BLOCK, m->width) && !(sum > at); k++) {
        double weight = (double)mx_get_float(m->p.data, row * m->width + k, m->p.dtype);
        sum += weight;
        place = weight > 0 ? k : place;
    }
    return (int32_t)place;
}

/* The sums of a row up to the end of each block. Returns the first bad weight, or `none`. */
static int64_t sum_row(const choice *c, int64_t row, int64_t none)
{
    const mx_draw_paths *paths = mx_kernels_current()->draws;
    const int64_t width = c->m->width, start = row * width;
    double *sums = c->sums + row * c->blocks;
    if (!paths->sums(c->m->p.dtype, at(c->m->p, start).data, width, sums))
        return find_outside(c->m->p, FLT_MAX, start, start + width);
    for (int64_t k = 1; k < c->blocks; k++)
        sums[k] += sums[k - 1];
    return none;
}

/* The ids of a row whose weights were just read. A thread's next rows share its words. */
static void draw_row(const choice *c, mx_stream s, int64_t row, int64_t *group, uint32_t words[BLOCK])
{
    const int64_t n = c->m->n;
    for (int64_t i = row * n; i < (row + 1) * n; i++) {
        if (i / MX_RNG_GROUP != *group) {
            *group = i / MX_RNG_GROUP;
            draw_words(s, *group * MX_RNG_GROUP, MX_RNG_GROUP, words);
        }
        c->m->ids[i] = place_of(c, row, words[i % MX_RNG_GROUP]);
    }
}

static mx_status draw_with_replacement(mx_stream s, const mx_multinomial *m, int64_t *bad)
{
    choice c = {.m = m, .blocks = mx_ceil_div(m->width, MX_WEIGHT_BLOCK)};
    int64_t bytes = m->rows * c.blocks * (int64_t)sizeof(double), count = m->rows * m->width, found = count;
    MX_TRY(mx_pool_alloc(bytes, (void **)&c.sums));
#pragma omp parallel reduction(min : found) if (count >= MX_PARALLEL_FROM)
    {
        int64_t group = -1;
        uint32_t words[BLOCK];
#pragma omp for schedule(static)
        for (int64_t r = 0; r < m->rows; r++) {
            found = mx_min(found, sum_row(&c, r, count));
            if (found == count && c.blocks > 0)
                draw_row(&c, s, r, &group, words);
        }
    }
    *bad = found < count ? found : -1;
    mx_pool_free(c.sums, bytes);
    return MX_OK;
}

static int64_t find_bad(mx_array x, float most, int64_t n)
{
    int64_t found = n;
#pragma omp parallel for schedule(static) reduction(min : found) if (n >= MX_PARALLEL_FROM)
    for (int64_t first = 0; first < n; first += MX_CHUNK)
        if (found >= n)
            found = outside_block(x, most, first, mx_min(n - first, MX_CHUNK), n);
    return found < n ? found : -1;
}

static void draw_time(const void *context, int64_t i, uint32_t word)
{
    const choice *c = context;
    double weight = (double)mx_get_float(c->m->p.data, i, c->m->p.dtype), at = -log(open_unit(word)) / weight;
    c->time[i] = weight > 0 ? (float)fmin(at, FLT_MAX) : INFINITY;
}

/* A race: each weight arrives at an exponentially distributed time, sooner if it is larger. The first n have the
 * distribution, and the order, of n draws. */
static mx_status draw_without_replacement(mx_stream s, const mx_multinomial *m, int64_t *bad)
{
    int64_t count = m->rows * m->width, bytes = count * (int64_t)sizeof(float);
    choice c = {.m = m};
    if ((*bad = find_bad(m->p, FLT_MAX, count)) >= 0)
        return MX_OK;
    MX_TRY(mx_pool_alloc(bytes, (void **)&c.time));
    for_each_word(s, count, draw_time, &c);
    const mx_extent rows = {m->rows, m->width, 1};
    mx_status status = mx_topk((mx_array){c.time, MX_F32}, rows, m->n, true, NULL, m->ids);
    mx_pool_free(c.time, bytes);
    return status;
}

mx_status mx_random_multinomial(mx_stream s, const mx_multinomial *m, int64_t *bad)
{
    return m->replacement || m->n == 1 ? draw_with_replacement(s, m, bad) : draw_without_replacement(s, m, bad);
}
