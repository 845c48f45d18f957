/* A plain double-precision reference of attention that holds the full matrix of scores, with every option and both
 * directions, and the comparison of a path of this processor with it.
 *
 * Bounds are relative to the sum of the absolute values of the terms of each result: 1e-5 for f32; for bf16 three times
 * 2^-8, the rounding of one value, since up to three are rounded on the way to a result: score gradient, out (through
 * delta) and the result itself. Gradients in bf16 of operands in f32 are rounded once. */
#ifndef ATTENTION_REFERENCE_H
#define ATTENTION_REFERENCE_H

#include "check.h"
#include "core/pool.h"
#include "isas.h"
#include "kernels/attention_paths.h"
#include "kernels/context.h"

#include <omp.h>
#include <string.h>

typedef struct problem {
    mx_attention a;
    double *q, *k, *v, *dout;                       /* the values as the kernel sees them */
    double *out, *lse, *dq, *dk, *dv;               /* by the reference */
    double *out_size, *dq_size, *dk_size, *dv_size; /* sums of absolute values of their terms */
    double dsinks[8], dsinks_size[8];               /* with sinks there are at most 8 heads */
} problem;

/* Some above all scores, some below; one for each head. */
static const float SINKS[8] = {1.5f, -2, 0, 30, -40, 0.3f, 6, -1};

static uint64_t random_state = 1;

static uint64_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static int64_t random_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }

static double random_value(void)
{
    double sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (double)random_bits() / 2147483648.0 - 0.5;
    return sum * 1.4;
}

/* n values of standard deviation about 1, stored as `dtype` and, as stored, in double. */
static void *random_tensor(int64_t n, mx_dtype dtype, double **values)
{
    void *data = malloc((size_t)n * mx_dtype_bytes(dtype) + 1);
    *values = malloc((size_t)n * sizeof(double) + 1);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)random_value();
        if (dtype == MX_BF16) {
            ((mx_bf16 *)data)[i] = mx_to_bf16(x);
            x = mx_from_bf16(mx_to_bf16(x));
        } else {
            ((float *)data)[i] = x;
        }
        (*values)[i] = x;
    }
    return data;
}

static double *zeros(int64_t n) { return calloc((size_t)n + 1, sizeof(double)); }

/* ---- the reference ---- */

static bool may_attend(const mx_attention *a, int64_t b, int64_t i, int64_t j)
{
    int64_t x = a->offset + i, length = a->kv_length ? a->kv_length : a->keys;
    if (i < a->first_query || j >= length || (a->causal && j > x && j >= a->prefix))
        return false;
    if ((a->window && llabs(x - j) >= a->window) || (a->chunk && x / a->chunk != j / a->chunk))
        return false;
    const int32_t *own = a->intervals ? a->intervals + 2 * (b * a->queries + i) : NULL;
    return !own || (own[0] <= j && j < own[1]);
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += x[d] * y[d];
    return sum;
}

static double dot_size(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += fabs(x[d] * y[d]);
    return sum;
}

static void add_scaled(double *sum, double *size, double factor, double factor_size, const double *x, int64_t n)
{
    for (int64_t d = 0; d < n; d++) {
        sum[d] += factor * x[d];
        size[d] += factor_size * fabs(x[d]);
    }
}

/* What dropout multiplies a probability by. Tests of the operation check the masks themselves, by their definition. */
static double mask_of(const mx_attention *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const mx_attention_plan plan = {.a = a};
    return a->dropout.threshold == 0 ? 1 : (double)mx_attention_mask_at(&plan, b, h, i, j);
}

/* Forward for one query of one head; `prob` receives its probabilities, `slope` d capped score / d (q k). */
static void refer_row(problem *p, int64_t b, int64_t i, int64_t h, double *prob, double *slope)
{
    mx_attention *a = &p->a;
    int64_t D = a->head_dim, V = a->value_dim, kv = h / (a->n_heads / a->n_kv_heads);
    int64_t row = (b * a->queries + i) * a->n_heads + h, at = row * D, to = row * V;
    double scale = a->scale > 0 ? (double)a->scale : 1 / sqrt((double)D), sum = 0;
    double sink = a->sinks ? (double)a->sinks[h] : -INFINITY, most = sink;
    for (int64_t j = 0; j < a->keys; j++) {
        prob[j] = -INFINITY;
        if (!may_attend(a, b, i, j))
            continue;
        double s = scale * dot(p->q + at, p->k + ((b * a->keys + j) * a->n_kv_heads + kv) * D, D), t = 0;
        if (a->softcap > 0) {
            t = tanh(s / (double)a->softcap);
            s = (double)a->softcap * t;
        }
        prob[j] = s;
        slope[j] = scale * (1 - t * t);
        most = s > most ? s : most;
    }
    for (int64_t j = 0; j < a->keys; j++) {
        prob[j] = prob[j] == -INFINITY ? 0 : exp(prob[j] - most);
        sum += prob[j];
    }
    sum += a->sinks ? exp(sink - most) : 0;
    p->lse[(b * a->n_heads + h) * a->queries + i] = sum > 0 ? most + log(sum) : -INFINITY;
    for (int64_t d = 0; d < V; d++)
        p->out[to + d] = p->out_size[to + d] = 0;
    for (int64_t j = 0; j < a->keys; j++) {
        prob[j] = sum > 0 ? prob[j] / sum : 0;
        double kept = prob[j] > 0 ? prob[j] * mask_of(a, b, h, i, j) : 0;
        if (kept > 0)
            add_scaled(p->out + to, p->out_size + to, kept, kept, p->v + ((b * a->keys + j) * a->n_kv_heads + kv) * V,
                       V);
    }
}

static void refer_row_gradient(problem *p, int64_t b, int64_t i, int64_t h, const double *prob, const double *slope)
{
    mx_attention *a = &p->a;
    int64_t D = a->head_dim, V = a->value_dim, kv = h / (a->n_heads / a->n_kv_heads);
    int64_t row = (b * a->queries + i) * a->n_heads + h, at = row * D;
    const double *dout = p->dout + row * V, *out = p->out + row * V;
    double delta = dot(dout, out, V), delta_size = dot_size(dout, p->out_size + row * V, V);
    if (a->sinks) {
        double at_sink = exp((double)a->sinks[h] - p->lse[(b * a->n_heads + h) * a->queries + i]);
        p->dsinks[h] -= at_sink * delta;
        p->dsinks_size[h] += at_sink * delta_size;
    }
    for (int64_t j = 0; j < a->keys; j++) {
        if (prob[j] == 0)
            continue;
        int64_t key_row = (b * a->keys + j) * a->n_kv_heads + kv, key = key_row * D, value = key_row * V;
        double mask = mask_of(a, b, h, i, j), kept = mask * prob[j];
        double ds = prob[j] * (mask * dot(dout, p->v + value, V) - delta) * slope[j];
        double size = prob[j] * (mask * dot_size(dout, p->v + value, V) + delta_size) * slope[j];
        add_scaled(p->dq + at, p->dq_size + at, ds, size, p->k + key, D);
        add_scaled(p->dk + key, p->dk_size + key, ds, size, p->q + at, D);
        add_scaled(p->dv + value, p->dv_size + value, kept, kept, dout, V);
    }
}

static double refer(problem *p, bool gradient)
{
    mx_attention *a = &p->a;
    double *prob = zeros(a->keys), *slope = zeros(a->keys), loss = 0;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t i = 0; i < a->queries; i++)
            for (int64_t h = 0; h < a->n_heads; h++) {
                refer_row(p, b, i, h, prob, slope);
                int64_t at = ((b * a->queries + i) * a->n_heads + h) * a->value_dim;
                loss += dot(p->out + at, p->dout + at, a->value_dim);
                if (gradient)
                    refer_row_gradient(p, b, i, h, prob, slope);
            }
    free(prob);
    free(slope);
    return loss;
}

/* ---- problems ---- */

static int64_t query_count(const mx_attention *a) { return a->batch * a->queries * a->n_heads * a->head_dim; }

static int64_t key_count(const mx_attention *a) { return a->batch * a->keys * a->n_kv_heads * a->head_dim; }

static int64_t value_count(const mx_attention *a) { return a->batch * a->keys * a->n_kv_heads * a->value_dim; }

static int64_t out_count(const mx_attention *a) { return a->batch * a->queries * a->n_heads * a->value_dim; }

enum { NO_INTERVALS, DOCUMENTS, ANY_INTERVALS, PACKED };

/* Documents of up to 60 tokens, one after the other. */
static void pack_documents(const mx_attention *a, int32_t *runs)
{
    int64_t first = 0, end = 0;
    for (int64_t i = 0; i < a->batch * a->queries; i++) {
        int64_t at = i % a->queries;
        if (at == 0 || at == end) {
            first = at;
            end = mx_min(at + 1 + random_below(60), a->queries);
        }
        runs[2 * i] = (int32_t)first;
        runs[2 * i + 1] = (int32_t)end;
    }
}

/* Runs of random length, of which the first queries see nothing; any intervals, beyond the keys, too; or packed
 * documents. */
static int32_t *random_intervals(const mx_attention *a, int kind)
{
    int32_t *runs = malloc((size_t)(a->batch * a->queries) * 2 * sizeof *runs + 1), first = 0, keys = (int32_t)a->keys;
    if (kind == PACKED) {
        pack_documents(a, runs);
        return runs;
    }
    for (int64_t i = 0; i < a->batch * a->queries; i++) {
        int32_t *own = runs + 2 * i;
        if (i % a->queries == 0 || random_below(20) == 0)
            first = i % a->queries == 0 ? 0 : (int32_t)random_below(keys + 1);
        own[0] = kind == DOCUMENTS ? first : (int32_t)random_below(keys + 4) - 2;
        own[1] = kind == DOCUMENTS ? first + 20 : (int32_t)random_below(keys + 4) - 2;
        if (i % a->queries < 3)
            own[1] = own[0];
    }
    return runs;
}

/* Takes sizes and options from *a; without a width of v, v is as wide as k. */
static problem problem_new(const mx_attention *sizes, int intervals)
{
    problem p = {.a = *sizes};
    const mx_attention *a = &p.a;
    p.a.value_dim = sizes->value_dim > 0 ? sizes->value_dim : sizes->head_dim;
    int64_t queries = query_count(a), keys = key_count(a), rows = a->batch * a->n_heads * a->queries;
    int64_t values = value_count(a), outs = out_count(a);
    p.a.q = random_tensor(queries, a->dtype, &p.q);
    p.a.k = random_tensor(keys, a->dtype, &p.k);
    p.a.v = random_tensor(values, a->dtype, &p.v);
    p.a.dout = random_tensor(outs, a->dtype, &p.dout);
    p.a.intervals = intervals ? random_intervals(a, intervals) : NULL;
    p.out = zeros(outs);
    p.out_size = zeros(outs);
    p.lse = zeros(rows);
    p.dq = zeros(queries);
    p.dq_size = zeros(queries);
    p.dk = zeros(keys);
    p.dk_size = zeros(keys);
    p.dv = zeros(values);
    p.dv_size = zeros(values);
    return p;
}

static void problem_free(problem *p)
{
    const void *all[] = {p->a.q, p->a.k, p->a.v,      p->a.dout, p->a.intervals, p->q,  p->k,       p->v,  p->dout,
                         p->out, p->lse, p->out_size, p->dq,     p->dq_size,     p->dk, p->dk_size, p->dv, p->dv_size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free((void *)all[i]);
}

/* What a path computes, in one block of memory so that runs can be compared bit by bit. */
typedef struct result {
    char *data;
    size_t bytes;
    mx_attention a;
    float dsinks[8];
} result;

static result run_within(const mx_attention_path *path, const problem *p, mx_dtype gradient, int64_t scratch)
{
    const mx_attention *a = &p->a;
    size_t own = mx_dtype_bytes(a->dtype), grad = mx_dtype_bytes(gradient);
    size_t queries = (size_t)query_count(a), keys = (size_t)key_count(a), values = (size_t)value_count(a);
    size_t rows = (size_t)(a->batch * a->n_heads * a->queries), outs = (size_t)out_count(a);
    result r = {NULL, outs * own + (queries + keys + values) * grad + rows * 4, *a, {0}};
    r.data = aligned_alloc(64, (r.bytes / 64 + 1) * 64);
    memset(r.data, 0x7f, r.bytes); /* values that must all be overwritten */
    r.a.lse = (float *)r.data;
    r.a.dq = r.data + rows * 4;
    r.a.dk = (char *)r.a.dq + queries * grad;
    r.a.dv = (char *)r.a.dk + keys * grad;
    r.a.out = (char *)r.a.dv + values * grad;
    r.a.dq_dtype = r.a.dk_dtype = r.a.dv_dtype = gradient;
    CHECK(mx_attention_forward_by(path, &r.a, scratch) == MX_OK, "%s", mx_message());
    CHECK(mx_attention_backward_by(path, &r.a, scratch) == MX_OK, "%s", mx_message());
    if (a->sinks)
        mx_attention_sinks_backward(&r.a, r.dsinks);
    return r;
}

static result run(const mx_attention_path *path, const problem *p, mx_dtype gradient)
{
    return run_within(path, p, gradient, MX_ATTENTION_SCRATCH);
}

static double at(const void *x, mx_dtype dtype, int64_t i)
{
    return (double)(dtype == MX_F32 ? ((const float *)x)[i] : mx_from_bf16(((const mx_bf16 *)x)[i]));
}

/* The worst error relative to the size of its terms; infinite where not a number, or not 0 where it must be. */
static double worst(const void *x, mx_dtype dtype, const double *expected, const double *size, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = fabs(at(x, dtype, i) - expected[i]);
        double relative = error == 0 ? 0 : error / size[i];
        most = relative <= most ? most : relative; /* takes a NaN */
        if (isnan(most))
            return INFINITY;
    }
    return most;
}

static double worst_lse(const float *lse, const double *expected, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double error = (double)lse[i] == expected[i] ? 0 : fabs((double)lse[i] - expected[i]) / (1 + fabs(expected[i]));
        most = error <= most ? most : error;
    }
    return isnan(most) ? INFINITY : most;
}

static void compare(const char *name, const problem *p, const result *r)
{
    const mx_attention *a = &p->a;
    mx_dtype g = r->a.dq_dtype;
    double bound = a->dtype == MX_F32 ? 1e-5 : 3.0 / 256, rounded = a->dtype == MX_F32 && g == MX_BF16 ? 1.01 / 256 : 0;
    double errors[] = {worst(r->a.out, a->dtype, p->out, p->out_size, out_count(a)),
                       worst_lse(r->a.lse, p->lse, a->batch * a->n_heads * a->queries),
                       worst(r->a.dq, g, p->dq, p->dq_size, query_count(a)),
                       worst(r->a.dk, g, p->dk, p->dk_size, key_count(a)),
                       worst(r->a.dv, g, p->dv, p->dv_size, value_count(a)),
                       worst(r->dsinks, MX_F32, p->dsinks, p->dsinks_size, a->sinks ? a->n_heads : 0)};
    static const char *const what[] = {"out", "lse", "dq", "dk", "dv", "dsinks"};
    for (int i = 0; i < 6; i++)
        CHECK(errors[i] <= (i == 1 ? 1e-5 : bound) + (i > 1 && i < 5 ? rounded : 0),
              "%s %s %s: %g; B %ld S %ld T %ld H %ld K %ld D %ld V %ld causal %d window %ld chunk %ld prefix %ld "
              "offset %ld "
              "length %ld "
              "cap %g scale %g intervals %d",
              name, mx_dtype_name(a->dtype), what[i], errors[i], a->batch, a->queries, a->keys, a->n_heads,
              a->n_kv_heads, a->head_dim, a->value_dim, a->causal, a->window, a->chunk, a->prefix, a->offset,
              a->kv_length, (double)a->softcap, (double)a->scale, a->intervals != NULL);
}

typedef struct named_path {
    const char *name;
    const mx_attention_path *path;
} named_path;

static const mx_attention_path *path_of(mx_isa isa, mx_dtype dtype)
{
    const mx_kernels *kernels = mx_kernels_of(isa);
    return dtype == MX_BF16 ? kernels->attention_bf16 : kernels->attention_f32;
}

/* The paths of this processor for a dtype, NULL at the end. */
static const named_path *paths_of(mx_dtype dtype)
{
    static named_path paths[MX_ISAS + 3];
    int n = 0;
    for (int isa = FIRST_ISA; isa <= (int)mx_isa_best(); isa++)
        paths[n++] = (named_path){mx_isa_name((mx_isa)isa), path_of((mx_isa)isa, dtype)};
    bool pairs = dtype == MX_BF16 && !ON_TILES;
    if (pairs && mx_isa_best() >= MX_ISA_AVX2)
        paths[n++] = (named_path){"pairs avx2", &mx_attention_pairs_avx2};
    if (pairs && mx_isa_best() >= MX_ISA_AVX512)
        paths[n++] = (named_path){"pairs avx512", &mx_attention_pairs_avx512};
    paths[n] = (named_path){NULL, NULL};
    return paths;
}

#endif
