/* Attention against a plain double-precision reference that holds the full matrix of scores: every option, both
 * directions, every path of this processor, few rows and many, and independence of the number of threads.
 *
 * The reference's gradient is checked against finite differences of its forward pass. Bounds are relative to the sum of
 * the absolute values of the terms of each result: 1e-5 for f32; for bf16 three times 2^-8, the rounding of one value,
 * since up to three are rounded on the way to a result: score gradient, out (through delta) and the result itself. */
#include "check.h"
#include "core/cpu.h"
#include "core/pool.h"
#include "kernels/context.h"

#include <omp.h>
#include <string.h>

typedef struct problem {
    mx_attention a;
    double *q, *k, *v, *dout;                       /* the values as the kernel sees them */
    double *out, *lse, *dq, *dk, *dv;               /* by the reference */
    double *out_size, *dq_size, *dk_size, *dv_size; /* sums of absolute values of their terms */
} problem;

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
    if (i < a->first_query || j >= length || (a->causal && j > x) || (a->window && llabs(x - j) >= a->window))
        return false;
    return !a->q_segments || a->q_segments[b * a->queries + i] == a->k_segments[b * a->keys + j];
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

/* Forward for one query of one head; `prob` receives its probabilities, `slope` d capped score / d (q k). */
static void refer_row(problem *p, int64_t b, int64_t i, int64_t h, double *prob, double *slope)
{
    mx_attention *a = &p->a;
    int64_t D = a->head_dim, kv = h / (a->n_heads / a->n_kv_heads), at = ((b * a->queries + i) * a->n_heads + h) * D;
    double scale = a->scale > 0 ? (double)a->scale : 1 / sqrt((double)D), most = -INFINITY, sum = 0;
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
    p->lse[(b * a->n_heads + h) * a->queries + i] = sum > 0 ? most + log(sum) : -INFINITY;
    for (int64_t d = 0; d < D; d++)
        p->out[at + d] = p->out_size[at + d] = 0;
    for (int64_t j = 0; j < a->keys; j++) {
        prob[j] = sum > 0 ? prob[j] / sum : 0;
        if (prob[j] > 0)
            add_scaled(p->out + at, p->out_size + at, prob[j], prob[j],
                       p->v + ((b * a->keys + j) * a->n_kv_heads + kv) * D, D);
    }
}

static void refer_row_gradient(problem *p, int64_t b, int64_t i, int64_t h, const double *prob, const double *slope)
{
    mx_attention *a = &p->a;
    int64_t D = a->head_dim, kv = h / (a->n_heads / a->n_kv_heads), at = ((b * a->queries + i) * a->n_heads + h) * D;
    const double *dout = p->dout + at;
    double delta = dot(dout, p->out + at, D), delta_size = dot_size(dout, p->out + at, D);
    for (int64_t j = 0; j < a->keys; j++) {
        if (prob[j] == 0)
            continue;
        int64_t key = ((b * a->keys + j) * a->n_kv_heads + kv) * D;
        double ds = prob[j] * (dot(dout, p->v + key, D) - delta) * slope[j];
        double size = prob[j] * (dot_size(dout, p->v + key, D) + delta_size) * slope[j];
        add_scaled(p->dq + at, p->dq_size + at, ds, size, p->k + key, D);
        add_scaled(p->dk + key, p->dk_size + key, ds, size, p->q + at, D);
        add_scaled(p->dv + key, p->dv_size + key, prob[j], prob[j], dout, D);
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
                int64_t at = ((b * a->queries + i) * a->n_heads + h) * a->head_dim;
                loss += dot(p->out + at, p->dout + at, a->head_dim);
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

/* Segments in runs of random length, as in packed sequences, or (mixed) in any order; the first queries may have one
 * that no key has. */
static int32_t *random_segments(int64_t batch, int64_t n, bool mixed, bool stranger)
{
    int32_t *s = malloc((size_t)(batch * n) * sizeof *s + 1);
    for (int64_t b = 0; b < batch; b++) {
        int32_t current = 0;
        for (int64_t i = 0; i < n; i++) {
            current = mixed ? (int32_t)random_below(3) : current + (random_below(20) == 0);
            s[b * n + i] = stranger && i < 3 ? 1000 : current;
        }
    }
    return s;
}

/* Takes sizes and options from *a. segments: 0 none, 1 in runs, 2 in any order. */
static problem problem_new(const mx_attention *a, int segments)
{
    problem p = {.a = *a};
    int64_t queries = query_count(a), keys = key_count(a), rows = a->batch * a->n_heads * a->queries;
    p.a.q = random_tensor(queries, a->dtype, &p.q);
    p.a.k = random_tensor(keys, a->dtype, &p.k);
    p.a.v = random_tensor(keys, a->dtype, &p.v);
    p.a.dout = random_tensor(queries, a->dtype, &p.dout);
    if (segments) {
        p.a.q_segments = random_segments(a->batch, a->queries, segments == 2, true);
        p.a.k_segments = random_segments(a->batch, a->keys, segments == 2, false);
    }
    p.out = zeros(queries);
    p.out_size = zeros(queries);
    p.lse = zeros(rows);
    p.dq = zeros(queries);
    p.dq_size = zeros(queries);
    p.dk = zeros(keys);
    p.dk_size = zeros(keys);
    p.dv = zeros(keys);
    p.dv_size = zeros(keys);
    return p;
}

static void problem_free(problem *p)
{
    const void *all[] = {p->a.q,     p->a.k, p->a.v,     p->a.dout, p->a.q_segments, p->a.k_segments, p->q,
                         p->k,       p->v,   p->dout,    p->out,    p->out_size,     p->lse,          p->dq,
                         p->dq_size, p->dk,  p->dk_size, p->dv,     p->dv_size};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free((void *)all[i]);
}

/* What a path computes, in one block of memory so that runs can be compared bit by bit. */
typedef struct result {
    char *data;
    size_t bytes;
    mx_attention a;
} result;

static result run(const mx_attention_path *path, const problem *p, mx_dtype gradient)
{
    const mx_attention *a = &p->a;
    size_t own = mx_dtype_bytes(a->dtype), grad = mx_dtype_bytes(gradient);
    size_t queries = (size_t)query_count(a), keys = (size_t)key_count(a);
    size_t rows = (size_t)(a->batch * a->n_heads * a->queries);
    result r = {NULL, queries * (own + grad) + 2 * keys * grad + rows * 4, *a};
    r.data = malloc(r.bytes + 1);
    memset(r.data, 0x7f, r.bytes); /* values that must all be overwritten */
    r.a.lse = (float *)r.data;
    r.a.dq = r.data + rows * 4;
    r.a.dk = (char *)r.a.dq + queries * grad;
    r.a.dv = (char *)r.a.dk + keys * grad;
    r.a.out = (char *)r.a.dv + keys * grad;
    r.a.dq_dtype = r.a.dk_dtype = r.a.dv_dtype = gradient;
    CHECK(mx_attention_forward_by(path, &r.a) == MX_OK, "%s", mx_message());
    CHECK(mx_attention_backward_by(path, &r.a) == MX_OK, "%s", mx_message());
    return r;
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
    double bound = a->dtype == MX_F32 ? 1e-5 : 3.0 / 256;
    double errors[] = {worst(r->a.out, a->dtype, p->out, p->out_size, query_count(a)),
                       worst_lse(r->a.lse, p->lse, a->batch * a->n_heads * a->queries),
                       worst(r->a.dq, g, p->dq, p->dq_size, query_count(a)),
                       worst(r->a.dk, g, p->dk, p->dk_size, key_count(a)),
                       worst(r->a.dv, g, p->dv, p->dv_size, key_count(a))};
    static const char *const what[] = {"out", "lse", "dq", "dk", "dv"};
    for (int i = 0; i < 5; i++)
        CHECK(errors[i] <= (i == 1 ? 1e-5 : bound),
              "%s %s %s: %g; B %ld S %ld T %ld H %ld K %ld D %ld causal %d window %ld offset %ld length %ld cap %g "
              "scale %g segments %d",
              name, mx_dtype_name(a->dtype), what[i], errors[i], a->batch, a->queries, a->keys, a->n_heads,
              a->n_kv_heads, a->head_dim, a->causal, a->window, a->offset, a->kv_length, (double)a->softcap,
              (double)a->scale, a->q_segments != NULL);
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
    for (int isa = 0; isa <= (int)mx_isa_best(); isa++)
        paths[n++] = (named_path){mx_isa_name((mx_isa)isa), path_of((mx_isa)isa, dtype)};
    if (dtype == MX_BF16 && mx_isa_best() >= MX_ISA_AVX2)
        paths[n++] = (named_path){"pairs avx2", &mx_attention_pairs_avx2};
    if (dtype == MX_BF16 && mx_isa_best() >= MX_ISA_AVX512)
        paths[n++] = (named_path){"pairs avx512", &mx_attention_pairs_avx512};
    paths[n] = (named_path){NULL, NULL};
    return paths;
}

static void test_problem(const mx_attention *sizes, int segments)
{
    for (int d = MX_F32; d <= MX_BF16; d++) {
        mx_attention a = *sizes;
        a.dtype = (mx_dtype)d;
        problem p = problem_new(&a, segments);
        refer(&p, true);
        for (const named_path *path = paths_of(a.dtype); path->path; path++) {
            result r = run(path->path, &p, random_below(2) ? MX_F32 : a.dtype);
            compare(path->name, &p, &r);
            free(r.data);
        }
        problem_free(&p);
    }
}

/* ---- the tests ---- */

/* Central differences of the reference's loss, sum of out dout, in every option. */
static void test_reference(void)
{
    for (int options = 0; options < 32; options++) {
        mx_attention a = {.batch = 1, .queries = 5, .keys = 7, .n_heads = 2, .n_kv_heads = 1, .head_dim = 3};
        a.causal = options & 1;
        a.window = options & 2 ? 3 : 0;
        a.softcap = options & 4 ? 0.8f : 0;
        a.offset = options & 8 ? 2 : 0;
        a.kv_length = options & 8 ? 6 : 0;
        problem p = problem_new(&a, options & 16 ? 2 : 0);
        refer(&p, true);
        double *inputs[] = {p.q, p.k, p.v}, *gradients[] = {p.dq, p.dk, p.dv}, most = 0, step = 1e-5;
        int64_t counts[] = {query_count(&a), key_count(&a), key_count(&a)};
        for (int x = 0; x < 3; x++)
            for (int64_t i = 0; i < counts[x]; i++) {
                double value = inputs[x][i];
                inputs[x][i] = value + step;
                double above = refer(&p, false);
                inputs[x][i] = value - step;
                double below = refer(&p, false);
                inputs[x][i] = value;
                most = fmax(most, fabs((above - below) / (2 * step) - gradients[x][i]));
            }
        CHECK(most < 1e-8, "options %d: reference gradient off by %g", options, most);
        problem_free(&p);
    }
}

/* Every combination of options at a size of a few panels; T != S; sizes that divide nothing. */
static void test_options(void)
{
    for (int options = 0; options < 96; options++) {
        mx_attention a = {.batch = 2, .queries = 29, .keys = 71, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};
        a.causal = options & 1;
        a.window = options & 2 ? 17 : 0;
        a.softcap = options & 4 ? 2.5f : 0;
        a.offset = options & 8 ? 37 : 0;
        a.kv_length = options & 16 ? 53 : 0;
        a.scale = options & 4 ? 0.4f : 0;
        test_problem(&a, options / 32);
    }
}

static void test_sizes(void)
{
    static const int64_t head_dims[] = {8, 16, 40, 64, 128, 256, 1, 5, 33};
    for (size_t d = 0; d < sizeof head_dims / sizeof *head_dims; d++)
        for (int i = 0; i < 8; i++) {
            int64_t group = 1 + random_below(3), queries = 1 + random_below(60);
            mx_attention a = {.batch = 1 + random_below(2), .queries = queries, .keys = 1 + random_below(120)};
            a.n_kv_heads = 1 + random_below(2);
            a.n_heads = a.n_kv_heads * group;
            a.head_dim = head_dims[d];
            a.causal = random_below(2);
            a.window = random_below(3) ? 0 : 1 + random_below(a.keys);
            a.softcap = random_below(3) ? 0 : 5;
            a.offset = random_below(2) && a.keys > queries ? a.keys - queries : 0;
            test_problem(&a, (int)random_below(3));
        }
}

/* Queries that are left out: within a panel, whole panels and blocks, nearly all, and those of a decoder. */
static void test_first_query(void)
{
    for (int i = 0; i < 48; i++) {
        mx_attention a = {.batch = 2, .queries = 90, .keys = 70, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};
        a.queries = (int64_t[]){90, 4, 400}[i % 3];
        a.first_query = (int64_t[]){a.queries / 2, 1, a.queries - 1, a.queries}[i / 3 % 4];
        a.causal = i / 12 & 1;
        a.offset = a.causal ? 20 : 0;
        a.kv_length = i / 24 ? 51 : 0;
        test_problem(&a, i & 1);
    }
}

/* What a run of 40 keys of p gives, merged into sums and lse; no query sees those from 80 on. */
static void merge_run(const problem *p, int64_t start, void *out, float *sums, float *lse)
{
    int64_t row = p->a.head_dim * (int64_t)mx_dtype_bytes(p->a.dtype);
    mx_attention part = p->a;
    float *part_lse = malloc((size_t)(part.n_heads * part.queries) * sizeof *part_lse);
    part.keys = 40;
    part.kv_length = 0;
    part.first_query = start < 80 ? 0 : part.queries;
    part.k = (const char *)part.k + start * row;
    part.v = (const char *)part.v + start * row;
    part.out = out;
    part.lse = part_lse;
    CHECK(mx_attention_forward(&part) == MX_OK, "%s", mx_message());
    mx_attention_merge(&part, sums, lse);
    free(part_lse);
}

/* Attention to one run of keys after the other is attention to all; sums are not read before there are any. */
static void test_merge(void)
{
    for (int d = MX_F32; d <= MX_BF16; d++) {
        mx_attention a = {.batch = 1, .queries = 75, .keys = 120, .n_heads = 4, .n_kv_heads = 1, .head_dim = 24};
        a.dtype = (mx_dtype)d;
        a.kv_length = 80;
        problem p = problem_new(&a, 0);
        refer(&p, false);
        int64_t n = query_count(&a), rows = a.n_heads * a.queries;
        float *sums = malloc((size_t)n * sizeof *sums), *lse = malloc((size_t)rows * sizeof *lse);
        float *out = malloc((size_t)n * sizeof *out);
        memset(sums, 0xff, (size_t)n * sizeof *sums); /* NaN */
        for (int64_t i = 0; i < rows; i++)
            lse[i] = -INFINITY;
        for (int run = 0; run < 4; run++)
            merge_run(&p, (int64_t[]){80, 0, 80, 40}[run], out, sums, lse);
        double error = worst(sums, MX_F32, p.out, p.out_size, n), bound = a.dtype == MX_F32 ? 1e-5 : 1.0 / 256;
        CHECK(error <= bound, "%s merged: %g", mx_dtype_name(a.dtype), error);
        CHECK(worst_lse(lse, p.lse, rows) <= 1e-5, "%s merged: lse", mx_dtype_name(a.dtype));
        free(sums);
        free(lse);
        free(out);
        problem_free(&p);
    }
}

/* Several blocks of rows and of keys on any cache, and several chunks of the backward pass. */
static void test_blocks(void)
{
    for (int i = 0; i < 6; i++) {
        mx_attention a = {.batch = 1, .n_heads = 1, .n_kv_heads = 1, .queries = 1150, .keys = 1150, .head_dim = 8};
        a.causal = i & 1;
        a.window = i & 2 ? 300 : 0;
        test_problem(&a, i / 2);
    }
    for (int i = 0; i < 4; i++) {
        mx_attention a = {.batch = 1, .n_heads = 3, .n_kv_heads = 1, .queries = 130, .keys = 410, .head_dim = 128};
        a.causal = i & 1;
        a.offset = 250;
        test_problem(&a, i & 2);
    }
}

/* Few queries: decoding from a cache, in several parts. */
static void test_decode(void)
{
    for (int i = 0; i < 24; i++) {
        int64_t group = (int64_t[]){1, 4, 7}[i % 3];
        mx_attention a = {.batch = 2, .queries = 1 + i / 12, .keys = 10 + 700 * (i % 4), .n_kv_heads = 2};
        a.n_heads = 2 * group;
        a.head_dim = (int64_t[]){64, 40, 7}[i % 3];
        a.causal = i & 1;
        a.offset = random_below(a.keys);
        a.kv_length = a.offset + 1;
        a.window = i % 5 == 0 ? 100 : 0;
        a.softcap = i % 7 == 0 ? 3 : 0;
        test_problem(&a, i % 6 == 5);
    }
}

/* A window that lies behind all keys: nothing to attend to, no NaN, zero gradients; and empty sizes. */
static void test_nothing(void)
{
    for (int64_t queries = 0; queries < 100; queries += 33)
        for (int64_t keys = 0; keys < 80; keys += 40) {
            mx_attention a = {.batch = 1, .queries = queries, .keys = keys, .n_heads = 2, .n_kv_heads = 1};
            a.head_dim = 16;
            a.window = 5;
            a.offset = 100;
            test_problem(&a, 0);
            a.batch = 0;
            test_problem(&a, 0);
        }
}

/* The same bits from 1, 2 and 3 threads. */
static void test_threads(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 8; i++) {
        mx_attention a = {.batch = 1, .queries = i < 6 ? 300 : 1, .keys = i < 6 ? 300 : 3000};
        a.n_heads = i & 2 ? 24 : 3;
        a.n_kv_heads = a.n_heads / 3;
        a.head_dim = 24;
        a.dtype = i & 1 ? MX_BF16 : MX_F32;
        a.causal = i & 1;
        problem p = problem_new(&a, i & 1);
        for (const named_path *path = paths_of(a.dtype) + 1; path[-1].path && path->path; path++) {
            omp_set_num_threads(1);
            result one = run(path->path, &p, MX_F32);
            for (int n = 2; n <= 3; n++) {
                omp_set_num_threads(n);
                result many = run(path->path, &p, MX_F32);
                CHECK(memcmp(one.data, many.data, one.bytes) == 0, "%s: %d threads give other bits", path->name, n);
                free(many.data);
            }
            free(one.data);
        }
        problem_free(&p);
    }
    omp_set_num_threads(threads);
}

/* A NaN in one key reaches the queries that attend to it, and no others. */
static void test_nan(void)
{
    mx_attention a = {.batch = 1, .queries = 64, .keys = 64, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
    a.causal = true;
    for (const named_path *path = paths_of(MX_F32); path->path; path++) {
        problem p = problem_new(&a, 0);
        ((float *)p.a.k)[40 * 8 + 3] = NAN;
        result r = run(path->path, &p, MX_F32);
        CHECK(!isnan(at(r.a.out, MX_F32, 0)), "%s: a masked NaN came through", path->name);
        CHECK(isnan(at(r.a.out, MX_F32, 40 * 8)) && isnan(at(r.a.out, MX_F32, 63 * 8)), "%s: a NaN was lost",
              path->name);
        free(r.data);
        problem_free(&p);
    }
}

/* Scratch stays below one byte for each pair of tokens. */
static void test_memory(void)
{
    mx_attention a = {.batch = 1, .queries = 6000, .keys = 6000, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
    a.causal = true;
    problem p = problem_new(&a, 0);
    mx_pool_reset_peak();
    int64_t before = mx_pool_get_stats().in_use_bytes;
    result r = run(path_of(mx_isa_best(), MX_F32), &p, MX_F32);
    mx_pool_stats stats = mx_pool_get_stats();
    CHECK(stats.peak_bytes - before < a.queries * a.keys, "scratch of %ld bytes", stats.peak_bytes - before);
    CHECK(stats.in_use_bytes == before, "%ld bytes leaked", stats.in_use_bytes - before);
    free(r.data);
    problem_free(&p);
}

static void test_pairs(void)
{
    for (int i = 0; i < 64; i++) {
        mx_attention a = {.batch = 1, .queries = 1 + random_below(20), .keys = 1 + random_below(20), .n_heads = 1};
        a.n_kv_heads = 1;
        a.head_dim = 1;
        a.causal = i & 1;
        a.window = i & 2 ? 1 + random_below(25) : 0;
        a.offset = i & 4 ? random_below(25) : 0;
        double pairs = 0;
        for (int64_t q = 0; q < a.queries; q++)
            for (int64_t k = 0; k < a.keys; k++)
                pairs += may_attend(&a, 0, q, k);
        CHECK(pairs == mx_attention_pairs(&a), "%g pairs, not %g", mx_attention_pairs(&a), pairs);
    }
}

int main(void)
{
    mx_cpu_flush_denormals();
    test_reference();
    test_pairs();
    test_options();
    test_sizes();
    test_first_query();
    test_merge();
    test_decode();
    test_blocks();
    test_nothing();
    test_threads();
    test_nan();
    test_memory();
    return check_done();
}
