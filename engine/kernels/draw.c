#include "kernels/draw.h"

#include "core/element.h"
#include "core/pool.h"
#include "kernels/context.h"
#include "kernels/inline.h"
#include "kernels/sort.h"

#include <float.h>
#include <math.h>

static void draw_words(mx_stream s, int64_t group, uint32_t words[MX_RNG_GROUP])
{
    mx_kernels_current()->random->words(s.seed, s.offset, (uint64_t)group | (s.drawn ? 1ULL << 59 : 0), words);
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

/* Two words for each number. */
void mx_random_integers(mx_stream s, int64_t low, uint64_t range, mx_array y, int64_t n)
{
    enum { HALF = MX_RNG_GROUP / 2 };
#pragma omp parallel for schedule(static) if (n >= MX_PARALLEL_FROM)
    for (int64_t group = 0; group < mx_ceil_div(n, HALF); group++) {
        uint32_t words[MX_RNG_GROUP];
        draw_words(s, group, words);
        for (int64_t i = group * HALF; i < mx_min(n, (group + 1) * HALF); i++) {
            uint64_t bits = (uint64_t)words[i % HALF] << 32 | words[HALF + i % HALF];
            uint64_t part = (uint64_t)((unsigned __int128)bits * range >> 64);
            mx_set_number(y.data, i, (double)(low + (int64_t)part), y.dtype);
        }
    }
}

typedef struct bernoulli {
    mx_array p, y;
} bernoulli;

static void draw_bernoulli(const void *context, int64_t i, uint32_t word)
{
    const bernoulli *b = context;
    bool one = (double)word * 0x1p-32 < (double)mx_get_float(b->p.data, i, b->p.dtype);
    mx_set_number(b->y.data, i, one, b->y.dtype);
}

void mx_random_bernoulli(mx_stream s, mx_array p, mx_array y, int64_t n)
{
    for_each_word(s, n, draw_bernoulli, &(bernoulli){p, y});
}

/* ---- truncated normals, by the inverse of the distribution function ---- */

static double normal_below(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }

/* x with normal_below(x) = p, 0 < p < 1: Acklam's rational approximation (relative error 1.2e-9) and a step of Halley's
 * method. */
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
    double x, edge = 0.02425;
    if (p < edge || p > 1 - edge) {
        double q = sqrt(-2 * log(p < edge ? p : 1 - p));
        x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
            ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
        x = p < edge ? x : -x;
    } else {
        double q = p - 0.5, r = q * q;
        x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
            (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
    }
    double off = (normal_below(x) - p) * 2.50662827463100050 * exp(0.5 * x * x); /* sqrt(2 pi) */
    return isfinite(off) ? x - off / (1 + 0.5 * x * off) : x;
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

int64_t mx_find_bad_weight(mx_array p, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float one = mx_get_float(p.data, i, p.dtype);
        if (!(one >= 0 && one < INFINITY))
            return i;
    }
    return -1;
}

/* The first place whose sum of weights up to it is above `at`; a place of weight 0 never is. */
static int32_t find_place(const double *sums, int64_t n, double at)
{
    int64_t low = 0, high = n - 1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (sums[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return (int32_t)low;
}

typedef struct choice {
    const mx_multinomial *m;
    double *sums; /* (rows, width): of the weights up to each */
    float *time;  /* (rows, width) */
} choice;

static void draw_place(const void *context, int64_t i, uint32_t word)
{
    const choice *c = context;
    const double *own = c->sums + i / c->m->n * c->m->width;
    c->m->ids[i] = find_place(own, c->m->width, open_unit(word) * own[c->m->width - 1]);
}

static mx_status draw_with_replacement(mx_stream s, const mx_multinomial *m)
{
    int64_t bytes = m->rows * m->width * (int64_t)sizeof(double);
    choice c = {.m = m};
    MX_TRY(mx_pool_alloc(bytes, (void **)&c.sums));
#pragma omp parallel for schedule(static) if (m->rows * m->width >= MX_PARALLEL_FROM)
    for (int64_t r = 0; r < m->rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < m->width; i++)
            c.sums[r * m->width + i] = sum += (double)mx_get_float(m->p.data, r * m->width + i, m->p.dtype);
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
    return m->replacement ? draw_with_replacement(s, m) : draw_without_replacement(s, m);
}
