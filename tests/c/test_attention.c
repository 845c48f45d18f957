/* Attention against a plain reference (attention_reference.h): every option, both directions, every path of this
 * processor, few rows and many, and independence of the number of threads. The reference's gradient is checked against
 * finite differences of its forward pass. */
#include "attention_reference.h"
#include "kernels/elementwise.h"

static void test_problem(const mx_attention *sizes, int intervals)
{
    for (int d = ON_TILES ? MX_BF16 : MX_F32; d <= MX_BF16; d++) {
        mx_attention a = *sizes;
        a.dtype = (mx_dtype)d;
        problem p = problem_new(&a, intervals);
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
        a.value_dim = 1 + options % 5;
        problem p = problem_new(&a, options & 16 ? 2 : 0);
        refer(&p, true);
        double *inputs[] = {p.q, p.k, p.v}, *gradients[] = {p.dq, p.dk, p.dv}, most = 0, step = 1e-5;
        int64_t counts[] = {query_count(&p.a), key_count(&p.a), value_count(&p.a)};
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

/* v narrower and wider than q and k, both with sizes that fill no vector, tile or pair; with groups, masks and sinks,
 * few rows and many, in one pass and in two. */
static void test_widths(void)
{
    static const int64_t widths[][2] = {{192, 128}, {24, 16}, {16, 24}, {5, 33}, {33, 5}, {1, 48}, {48, 1}, {40, 8}};
    for (int i = 0; i < 16; i++) {
        mx_attention a = {.batch = 1 + i % 2, .queries = i % 3 ? 70 : 2, .keys = 150, .n_kv_heads = 2};
        a.n_heads = 2 * (1 + i % 3);
        a.head_dim = widths[i % 8][0];
        a.value_dim = widths[i % 8][1];
        a.causal = i / 8 & 1;
        a.offset = a.causal ? 80 : 0;
        a.window = random_below(2) ? 20 : 0;
        a.softcap = random_below(3) ? 0 : 4;
        a.sinks = random_below(2) ? SINKS : NULL;
        test_problem(&a, i % 3);
        a.dtype = i / 4 & 1 ? MX_F32 : MX_BF16;
        problem p = problem_new(&a, i % 3);
        refer(&p, true);
        for (const named_path *path = paths_of(a.dtype); path->path; path++) {
            result r = run_within(path->path, &p, i & 1 ? MX_F32 : a.dtype, 40 << 10);
            compare(path->name, &p, &r);
            free(r.data);
        }
        problem_free(&p);
    }
}

/* Random masks of every kind and their intersections against the mask of each pair. */
static void test_masks(void)
{
    for (int i = 0; i < 100; i++) {
        mx_attention a = {
            .batch = 1 + random_below(2), .queries = 1 + random_below(130), .keys = 1 + random_below(260)};
        a.n_kv_heads = 1 + random_below(2);
        a.n_heads = a.n_kv_heads * (1 + random_below(3));
        a.head_dim = 8;
        a.causal = random_below(3) > 0;
        a.window = random_below(3) ? 0 : 1 + random_below(a.keys);
        a.chunk = random_below(2) ? 0 : 1 + random_below(a.keys);
        a.prefix = a.causal && random_below(2) ? random_below(a.keys + 3) : 0;
        a.offset = random_below(2) && a.keys > a.queries ? a.keys - a.queries : 0;
        a.kv_length = random_below(3) ? 0 : 1 + random_below(a.keys);
        test_problem(&a, (int)random_below(3));
    }
}

/* Sinks, which all query heads of a kv head have of their own: with masks, queries that see no key, and decoding. */
static void test_sinks(void)
{
    for (int options = 0; options < 32; options++) {
        mx_attention a = {.batch = 2, .queries = 61, .keys = 131, .n_heads = 8, .n_kv_heads = 2, .head_dim = 16};
        a.sinks = SINKS;
        a.causal = options & 1;
        a.window = options & 2 ? 17 : 0;
        a.softcap = options & 4 ? 2.5f : 0;
        a.queries = options & 8 ? 1 : 61; /* 1: decoded, if there is no bias */
        a.offset = options & 16 ? 70 : 0;
        a.first_query = a.queries > 1 && options & 16 ? 5 : 0;
        test_problem(&a, options % 3);
    }
}

/* Central differences of the reference's loss by its sinks. */
static void test_reference_sinks(void)
{
    float sinks[8];
    memcpy(sinks, SINKS, sizeof sinks);
    mx_attention a = {.batch = 2, .queries = 5, .keys = 7, .n_heads = 8, .n_kv_heads = 4, .head_dim = 3};
    a.sinks = sinks;
    a.causal = true;
    a.softcap = 2;
    problem p = problem_new(&a, 0);
    refer(&p, true);
    for (int h = 0; h < 8; h++) {
        float step = 1.0f / 1024;
        sinks[h] = SINKS[h] + step;
        double above = refer(&p, false);
        sinks[h] = SINKS[h] - step;
        double below = refer(&p, false);
        sinks[h] = SINKS[h];
        double slope = (above - below) / (2 * (double)step);
        CHECK(fabs(slope - p.dsinks[h]) < 1e-5, "sink %d: reference gradient %g, not %g", h, p.dsinks[h], slope);
    }
    problem_free(&p);
}

static mx_attention_dropout random_dropout(void)
{
    uint32_t threshold = 1 + (uint32_t)random_below(50000);
    return (mx_attention_dropout){.threshold = threshold,
                                  .scale = (float)(1 / (1 - threshold / 65536.0)),
                                  .seed = random_bits() << 32 | random_bits(),
                                  .draw = (uint32_t)random_below(3),
                                  .drawn = random_below(2),
                                  .first_sequence = random_below(5),
                                  .first_head = random_below(9)};
}

/* With masks, groups, caps, sinks and packed documents; one query, too, which is not decoded then; in one pass and in
 * panels of keys. */
static void test_dropout(void)
{
    for (int i = 0; i < 40; i++) {
        mx_attention a = {.batch = 1 + i % 2, .queries = i % 5 ? 1 + random_below(150) : 1, .n_kv_heads = 1 + i % 2};
        a.keys = i % 3 == 0 ? a.queries : 1 + random_below(200);
        a.n_heads = a.n_kv_heads * (1 + random_below(3));
        a.head_dim = 1 + random_below(70);
        a.causal = random_below(2);
        a.window = random_below(3) ? 0 : 1 + random_below(a.keys);
        a.offset = random_below(2) ? random_below(90) : 0;
        a.softcap = random_below(3) ? 0 : 4;
        a.sinks = random_below(3) ? NULL : SINKS;
        a.dropout = random_dropout();
        test_problem(&a, i % 3 == 0 ? PACKED : (int)random_below(3));
        a.dtype = i % 2 ? MX_F32 : MX_BF16;
        problem p = problem_new(&a, 0);
        refer(&p, true);
        for (const named_path *path = paths_of(a.dtype); path->path; path++) {
            result r = run_within(path->path, &p, a.dtype, 40 << 10);
            compare(path->name, &p, &r);
            free(r.data);
        }
        problem_free(&p);
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
    int64_t word = (int64_t)mx_dtype_bytes(p->a.dtype);
    mx_attention part = p->a;
    float *part_lse = malloc((size_t)(part.n_heads * part.queries) * sizeof *part_lse);
    part.keys = 40;
    part.kv_length = 0;
    part.first_query = start < 80 ? 0 : part.queries;
    part.k = (const char *)part.k + start * part.head_dim * word;
    part.v = (const char *)part.v + start * part.value_dim * word;
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
        a.value_dim = 17;
        a.kv_length = 80;
        problem p = problem_new(&a, 0);
        refer(&p, false);
        int64_t n = out_count(&a), rows = a.n_heads * a.queries;
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

/* The same bits from 1, 2 and 3 threads; with sums of all keys, and of a panel of them. */
static void test_threads(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 16; i++) {
        bool decodes = i % 8 >= 6;
        mx_attention a = {.batch = 1, .queries = decodes ? 1 : 300, .keys = decodes ? 3000 : 300};
        a.n_heads = i & 2 ? 24 : 3;
        a.n_kv_heads = a.n_heads / 3;
        a.head_dim = 24;
        a.dtype = i & 1 ? MX_BF16 : MX_F32;
        a.causal = i & 1;
        problem p = problem_new(&a, i & 1);
        for (const named_path *path = paths_of(a.dtype) + !ON_TILES; path->path; path++) {
            int64_t limit = i < 8 ? MX_ATTENTION_SCRATCH : 0;
            mx_dtype gradient = i & 4 ? MX_F32 : MX_BF16;
            omp_set_num_threads(1);
            result one = run_within(path->path, &p, gradient, limit);
            for (int n = 2; n <= 3; n++) {
                omp_set_num_threads(n);
                result many = run_within(path->path, &p, gradient, limit);
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

/* The paths of long sequences, by limits that nothing fits into: panels of keys, calls of several blocks of rows, and
 * sums of dk and dv that are in the gradients between calls, in f32 or with bits in dq or elsewhere. Forward gives the
 * same bits; backward sums in another order. */
static void test_long_paths(void)
{
    for (int i = 0; i < 6; i++) {
        mx_attention a = {.batch = 1, .queries = 530, .keys = 800, .n_heads = 2 + i % 2, .n_kv_heads = 1};
        a.head_dim = i % 3 ? 40 : 8;
        a.value_dim = i % 2 ? 24 : a.head_dim;
        a.dtype = i & 1 ? MX_BF16 : MX_F32;
        a.causal = i & 2;
        a.window = i & 4 ? 150 : 0;
        a.offset = a.keys - a.queries;
        a.kv_length = i == 5 ? 777 : 0;
        problem p = problem_new(&a, i % 3);
        refer(&p, true);
        for (const named_path *path = paths_of(a.dtype); path->path; path++) {
            int64_t limit = (int64_t[]){0, 160 << 10, 400 << 10}[i % 3];
            result whole = run(path->path, &p, MX_F32);
            for (int wide = 0; wide <= 1; wide++) {
                result one = run_within(path->path, &p, wide ? MX_F32 : MX_BF16, limit);
                compare(path->name, &p, &one);
                size_t out = (size_t)out_count(&p.a) * mx_dtype_bytes(a.dtype);
                CHECK(memcmp(whole.a.out, one.a.out, out) == 0, "%s: forward by panels has other bits", path->name);
                free(one.data);
            }
            free(whole.data);
        }
        problem_free(&p);
    }
}

/* Documents one after the other: panels of rows that see several; sums of dk and dv for some of the keys at a time
 * (with 16 heads), in chunks of rows (with 2); all keys packed at once, and few. */
static void test_packed(void)
{
    for (int i = 0; i < 4; i++) {
        mx_attention a = {.batch = 2, .queries = 210, .keys = 210, .n_kv_heads = i & 1 ? 1 : 8};
        a.n_heads = a.n_kv_heads * (1 + i / 3);
        a.head_dim = i & 1 ? 40 : 8;
        a.dtype = i & 2 || ON_TILES ? MX_BF16 : MX_F32;
        a.causal = i != 2;
        problem p = problem_new(&a, PACKED);
        refer(&p, true);
        for (const named_path *path = paths_of(a.dtype); path->path; path++)
            for (int64_t limit = 0; limit <= MX_ATTENTION_SCRATCH; limit += MX_ATTENTION_SCRATCH) {
                result r = run_within(path->path, &p, a.dtype, limit);
                compare(path->name, &p, &r);
                free(r.data);
            }
        problem_free(&p);
    }
}

/* One key more or less than fits into a limit: the long way and the short one agree. */
static void test_threshold(void)
{
    for (int64_t keys = 450; keys < 550; keys++) {
        mx_attention a = {.batch = 1, .queries = 20, .keys = keys, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8};
        a.causal = true;
        a.offset = keys - 20;
        problem p = problem_new(&a, 0);
        const mx_attention_path *path = path_of(mx_isa_best(), MX_F32);
        result one = run_within(path, &p, MX_F32, MX_ATTENTION_SCRATCH);
        result two = run_within(path, &p, MX_F32, 64 << 10);
        double most = 0;
        for (int64_t i = 0; i < (int64_t)(one.bytes / sizeof(float)); i++)
            most = fmax(most, fabs((double)((float *)one.data)[i] - (double)((float *)two.data)[i]));
        CHECK(most <= 2e-6 * 8, "%ld keys: %g", keys, most);
        free(one.data);
        free(two.data);
        problem_free(&p);
    }
}

/* Results of more than 4 MiB are written past the caches where rows are whole cache lines, and keys that several calls
 * add to are not. Rows of bf16 have a line and a half with the second width. The portable path never does. */
static void test_streamed(void)
{
    for (int i = 0; i < 6; i++) {
        mx_attention a = {.batch = 33, .queries = 512, .keys = 512, .n_heads = i < 4 ? 2 : 4};
        a.n_kv_heads = a.n_heads / 2;
        a.head_dim = i < 4 ? 64 : 48;
        a.dtype = i & 1 ? MX_BF16 : MX_F32;
        a.causal = true;
        problem p = problem_new(&a, PACKED);
        CHECK(mx_should_stream(out_count(&p.a) * (int64_t)mx_dtype_bytes(a.dtype)), "results are too small");
        refer(&p, true);
        for (const named_path *path = paths_of(a.dtype) + 1; path->path; path++)
            for (int64_t limit = 0; limit <= MX_ATTENTION_SCRATCH; limit += MX_ATTENTION_SCRATCH) {
                result r = run_within(path->path, &p, i & 2 ? MX_BF16 : MX_F32, limit);
                compare(path->name, &p, &r);
                free(r.data);
            }
        problem_free(&p);
    }
}

/* The most memory of forward and backward of p beside its tensors, with 2 threads. */
static int64_t scratch_of(const problem *p, mx_dtype gradient)
{
    int threads = omp_get_max_threads();
    omp_set_num_threads(2);
    mx_pool_reset_peak();
    int64_t before = mx_pool_get_stats().in_use_bytes;
    result r = run(path_of(mx_isa_best(), p->a.dtype), p, gradient);
    mx_pool_stats stats = mx_pool_get_stats();
    CHECK(stats.in_use_bytes == before, "%ld bytes leaked", stats.in_use_bytes - before);
    free(r.data);
    omp_set_num_threads(threads);
    return stats.peak_bytes - before;
}

/* Scratch of a thread is below 2 MiB for a sequence of any length: where sums of all keys fit and where they do not,
 * with few heads and with many, in both dtypes of gradients. Lists of calls take a little. With bf16 gradients, the
 * call has 8 bits of each value of dk and dv if a query attends to keys after it. */
static void test_memory(void)
{
    static const int64_t lengths[] = {800, 2500, 20000};
    for (int i = 0; i < 12; i++) {
        mx_attention a = {.batch = 1, .queries = lengths[i / 4], .n_heads = i == 4 ? 32 : 2, .head_dim = 64};
        a.n_kv_heads = a.n_heads / 2;
        a.keys = a.queries;
        a.dtype = i & 1 ? MX_BF16 : MX_F32;
        a.causal = i & 2 || i >= 4;
        a.window = i >= 8 ? 32 : 0;
        problem p = problem_new(&a, 0);
        mx_dtype gradient = i & 2 ? MX_F32 : MX_BF16;
        int64_t most = 2 * (2 << 20) + (64 << 10);
        int64_t peak = scratch_of(&p, gradient);
        CHECK(peak < most, "%ld tokens, gradients in %s: scratch of %ld bytes", a.keys, mx_dtype_name(gradient), peak);
        problem_free(&p);
    }
    mx_attention a = {.batch = 1, .queries = 2500, .keys = 2500, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64};
    problem p = problem_new(&a, 0);
    int64_t peak = scratch_of(&p, MX_BF16), most = 2 * (2 << 20) + (64 << 10) + a.keys * 2 * 64;
    CHECK(peak < most, "scratch and bits of sums of %ld bytes", peak);
    problem_free(&p);
}

/* The sums of dk and dv of a thread are those of a window and of one block of rows, not of a sequence. */
static void test_sums(void)
{
    mx_attention a = {.batch = 1, .queries = 20000, .keys = 20000, .n_heads = 16, .n_kv_heads = 16, .head_dim = 8};
    a.causal = true;
    a.window = 32;
    problem p = problem_new(&a, 0);
    int64_t keys = 3 * 128 + 32, floats = 2 * 16; /* blocks have up to 128 rows and keys; padded widths of dk and dv */
    int64_t peak = scratch_of(&p, MX_F32);
    CHECK(peak < 2 * ((2 << 20) + keys * floats * 4) + (64 << 10), "scratch and sums of %ld bytes", peak);
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
        a.chunk = i & 8 ? 1 + random_below(15) : 0;
        a.prefix = i & 1 && i & 16 ? random_below(25) : 0;
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
    if (no_isa())
        return check_done();
    test_options();
    test_sizes();
    test_widths();
    test_masks();
    test_sinks();
    test_dropout();
    test_first_query();
    test_blocks();
    test_threads();
    test_long_paths();
    test_packed();
    if (ON_TILES) /* what is left runs on vectors */
        return check_done();
    test_reference();
    test_pairs();
    test_reference_sinks();
    test_merge();
    test_decode();
    test_nothing();
    test_nan();
    test_threshold();
    test_memory();
    test_sums();
    test_streamed();
    return check_done();
}
