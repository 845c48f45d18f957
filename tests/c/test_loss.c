/* The fused unembedding and cross-entropy, and the embedding, against double precision on every instruction set. */
#include "kernels/context.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"

#include "buffers.h"
#include "check.h"
#include "kernels/class_loss.h"

#include <omp.h>
#include <string.h>

/* Loss and gradients as the formulas of kernels/loss.h say, one token after the other. dweight and dh start as 0. */
static double naive_loss(const mx_cross_entropy *c, double *dh, double *dweight)
{
    double *z = malloc((size_t)c->vocab * sizeof *z), total = 0, count = 0;
    for (int64_t t = 0; t < c->tokens; t++)
        count += !c->mask || c->mask[t];
    double normalizer = c->normalizer != 0 ? c->normalizer : count;
    for (int64_t t = 0; t < c->tokens; t++) {
        if (c->mask && !c->mask[t])
            continue;
        double largest = -INFINITY, sum = 0;
        for (int64_t v = 0; v < c->vocab; v++) {
            z[v] = 0;
            for (int64_t e = 0; e < c->width; e++)
                z[v] += get_value(c->h, t * c->width + e, c->h_dtype) *
                        get_value(c->weight, c->trans ? v * c->width + e : e * c->vocab + v, c->weight_dtype);
            z[v] *= c->logit_scale;
            if (c->softcap > 0)
                z[v] = c->softcap * tanh(z[v] / c->softcap);
            largest = fmax(largest, z[v]);
        }
        for (int64_t v = 0; v < c->vocab; v++)
            sum += exp(z[v] - largest);
        double lse = largest + log(sum);
        total += lse - z[c->targets[t]] + c->z_loss * lse * lse;
        for (int64_t v = 0; v < c->vocab; v++) {
            double d = exp(z[v] - lse) * (1 + 2 * c->z_loss * lse) - (v == c->targets[t]);
            d *= c->logit_scale / normalizer * (c->softcap > 0 ? 1 - pow(z[v] / c->softcap, 2) : 1);
            for (int64_t e = 0; e < c->width; e++) {
                int64_t w = c->trans ? v * c->width + e : e * c->vocab + v;
                dh[t * c->width + e] += d * get_value(c->weight, w, c->weight_dtype);
                dweight[w] += d * get_value(c->h, t * c->width + e, c->h_dtype);
            }
        }
    }
    free(z);
    return normalizer != 0 ? total / normalizer : 0;
}

static double largest_of(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    return most;
}

/* Largest difference over the largest magnitude expected. */
static double distance(const void *got, mx_dtype dtype, const double *want, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(get_value(got, i, dtype) - want[i]));
    return most / fmax(largest_of(want, n), 1e-30);
}

/* `amplitude` of h: large ones make logits of thousands. */
static void check_loss(const char *isa, mx_cross_entropy c, double amplitude, const char *what)
{
    int64_t n_h = c.tokens * c.width, n_w = c.vocab * c.width;
    void *h = make_values(n_h, c.h_dtype, -amplitude, amplitude), *weight = make_values(n_w, c.weight_dtype, -1, 1);
    void *dh = make_values(n_h, c.h_dtype, 7, 8);
    float *dweight = make_values(n_w, MX_F32, 7, 8), loss = 7, alone = 7;
    int32_t *targets = malloc((size_t)(c.tokens + 1) * sizeof *targets);
    for (int64_t t = 0; t < c.tokens; t++)
        targets[t] = (int32_t)(uniform() * (double)c.vocab);
    uint8_t *mask = malloc((size_t)c.tokens + 1);
    for (int64_t t = 0; t < c.tokens && c.mask; t++) {
        mask[t] = uniform() < 0.6;
        if (!mask[t])
            targets[t] = -100; /* may hold anything */
    }
    c.h = h, c.weight = weight, c.targets = targets, c.mask = c.mask ? mask : NULL;
    double *want_dh = calloc((size_t)n_h + 1, sizeof *want_dh), *want_dw = calloc((size_t)n_w + 1, sizeof *want_dw);
    double want = naive_loss(&c, want_dh, want_dw);
    CHECK(mx_cross_entropy_find_bad(&c, c.vocab) == -1, "%s", what);
    c.loss = &alone;
    CHECK(mx_cross_entropy_run(&c) == MX_OK, "%s", mx_message());
    c.loss = &loss, c.dh = dh, c.dweight = dweight;
    CHECK(mx_cross_entropy_run(&c) == MX_OK, "%s", mx_message());
    bool bf16 = c.h_dtype == MX_BF16;
    /* bf16 also rounds an f32 weight: each logit is then off by about 2^-9 of its products' size. */
    double rounded = c.weight_dtype != c.h_dtype ? 0.02 * (1 + amplitude * (double)c.width) : 0;
    CHECK(fabs(loss - want) <= 1e-5 * (1 + fabs(want)) + rounded, "%s %s: loss %.8g, expected %.8g", isa, what, loss,
          want);
    CHECK(loss == alone, "%s %s: the loss depends on whether a gradient is made", isa, what);
    double bound = rounded > 0 ? 0.1 : bf16 ? 0.01 : 2e-4;
    double off_h = distance(dh, c.h_dtype, want_dh, n_h), off_w = distance(dweight, MX_F32, want_dw, n_w);
    CHECK(off_h <= bound && off_w <= bound, "%s %s: dh off by %g, dweight by %g", isa, what, off_h, off_w);
    CHECK(guard_intact(dh, n_h, c.h_dtype) && guard_intact(dweight, n_w, MX_F32), "%s %s: behind the end", isa, what);
    free(h), free(weight), free(dh), free(dweight), free(targets), free(mask), free(want_dh), free(want_dw);
}

static void test_loss(const char *isa)
{
    static const uint8_t masked;
    for (int kind = 0; kind < 8; kind++) {
        mx_cross_entropy c = {.tokens = 37, .width = 9, .vocab = 131, .logit_scale = 1, .trans = !(kind & 4)};
        c.h_dtype = kind & 1 ? MX_BF16 : MX_F32;
        c.weight_dtype = kind & 2 ? MX_BF16 : MX_F32;
        check_loss(isa, c, 1, "plain");
        c.mask = &masked;
        check_loss(isa, c, 1, "mask");
        c.normalizer = 17;
        check_loss(isa, c, 1, "normalizer");
        c.z_loss = 0.01f;
        check_loss(isa, c, 1, "z_loss");
        c.logit_scale = 0.3f;
        check_loss(isa, c, 1, "logit_scale");
        c.softcap = 2.5f;
        check_loss(isa, c, 1, "all");
        c.mask = NULL, c.z_loss = 0, c.normalizer = 0, c.logit_scale = 1;
        check_loss(isa, c, 1, "softcap");
        /* Chunk boundaries: one token at a time, chunks that divide the tokens and do not. */
        for (c.chunk = 1; c.chunk <= 64; c.chunk = c.chunk * 2 + 1)
            check_loss(isa, c, 1, "chunks");
    }
    for (int64_t vocab = 1; vocab < 70; vocab += 3) {
        mx_cross_entropy c = {.tokens = 3, .width = 2, .vocab = vocab, .logit_scale = 1, .trans = true};
        check_loss(isa, c, 1, "vocabulary");
        c.h_dtype = c.weight_dtype = MX_BF16, c.softcap = 3;
        check_loss(isa, c, 1, "vocabulary in bf16");
    }
    mx_cross_entropy large = {.tokens = 20, .width = 7, .vocab = 67, .logit_scale = 1, .trans = true};
    check_loss(isa, large, 1e4, "large");
    mx_cross_entropy none = {.tokens = 0, .width = 7, .vocab = 67, .logit_scale = 1, .trans = true};
    check_loss(isa, none, 1, "no tokens");
}

enum { PARTS = 3 };

/* Loss and gradients from three parts of the vocabulary, in chunks, against those of the whole. */
static void check_parts(const char *isa, mx_cross_entropy c)
{
    enum { TOKENS = 37, WIDTH = 9, VOCAB = 131, ROWS = 16 };
    c.tokens = TOKENS, c.width = WIDTH, c.vocab = VOCAB, c.trans = true;
    void *h = make_values(TOKENS * WIDTH, c.h_dtype, -1, 1), *weight = make_values(VOCAB * WIDTH, MX_F32, -1, 1);
    double want_dh[TOKENS * WIDTH] = {0}, want_dw[VOCAB * WIDTH] = {0}, sum_dh[TOKENS * WIDTH] = {0};
    int32_t targets[TOKENS];
    for (int t = 0; t < TOKENS; t++)
        targets[t] = (int32_t)(uniform() * VOCAB);
    float *logits[PARTS], *dweight = make_values(VOCAB * WIDTH, MX_F32, 7, 8), losses[TOKENS], loss = 7;
    void *dh[PARTS];
    int64_t first_id[PARTS + 1] = {0, 50, 51, VOCAB}, stride = mx_cross_entropy_stride(80);
    c.h = h, c.weight = weight, c.weight_dtype = MX_F32, c.targets = targets, c.loss = &loss;
    double want = naive_loss(&c, want_dh, want_dw);
    for (int p = 0; p < PARTS; p++) {
        logits[p] = malloc((size_t)(ROWS * stride) * sizeof(float));
        dh[p] = make_values(TOKENS * WIDTH, c.h_dtype, 7, 8);
    }
    for (int64_t first = 0; first < TOKENS; first += ROWS) {
        mx_loss_sums sums[PARTS * ROWS];
        for (int step = 0; step < 2 * PARTS; step++) { /* the logits of all parts, then all gradients */
            int p = step % PARTS;
            mx_loss_chunk k = {.first = first, .stride = stride, .logits = logits[p], .parts = PARTS, .losses = losses};
            k.rows = TOKENS - first < ROWS ? TOKENS - first : ROWS;
            k.sums = step < PARTS ? sums + p * k.rows : sums;
            mx_cross_entropy own = c;
            own.first_id = first_id[p], own.vocab = first_id[p + 1] - first_id[p];
            own.weight = (float *)weight + own.first_id * WIDTH;
            own.dh = dh[p], own.dweight = dweight + own.first_id * WIDTH;
            mx_status status = step < PARTS ? mx_cross_entropy_logits(&own, &k) : mx_cross_entropy_gradients(&own, &k);
            CHECK(status == MX_OK, "%s", mx_message());
        }
    }
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < TOKENS * WIDTH; i++)
            sum_dh[i] += get_value(dh[p], i, c.h_dtype);
    double bound = c.h_dtype == MX_BF16 ? 0.02 : 2e-4, off = distance(dweight, MX_F32, want_dw, VOCAB * WIDTH);
    float *all_dh = malloc(sizeof(float) * TOKENS * WIDTH);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        all_dh[i] = (float)sum_dh[i];
    double off_h = distance(all_dh, MX_F32, want_dh, TOKENS * WIDTH);
    CHECK(fabs(loss - want) <= (c.h_dtype == MX_BF16 ? 0.02 : 1e-5) * (1 + fabs(want)),
          "%s: loss of parts %.8g, expected %.8g", isa, loss, want);
    CHECK(off <= bound && off_h <= bound, "%s: parts: dweight off by %g, dh by %g", isa, off, off_h);
    for (int p = 0; p < PARTS; p++)
        free(logits[p]), free(dh[p]);
    free(h), free(weight), free(dweight), free(all_dh);
}

static void test_parts(const char *isa)
{
    for (int kind = 0; kind < 8; kind++)
        check_parts(isa, (mx_cross_entropy){.h_dtype = kind & 1 ? MX_BF16 : MX_F32,
                                            .logit_scale = kind & 2 ? 0.3f : 1,
                                            .softcap = kind & 4 ? 2.5f : 0,
                                            .z_loss = kind & 4 ? 0.01f : 0});
}

static void test_all_masked(const char *isa)
{
    float h[6] = {1, 2, 3, 4, 5, 6}, weight[9] = {1}, dh[6], dweight[9], loss = 7;
    memset(dh, 1, sizeof dh), memset(dweight, 1, sizeof dweight);
    uint8_t mask[2] = {0, 0};
    int32_t targets[2] = {99, -1};
    mx_cross_entropy c = {.tokens = 2, .width = 3, .vocab = 3, .logit_scale = 1, .trans = true, .mask = mask};
    c.h = h, c.weight = weight, c.targets = targets, c.loss = &loss, c.dh = dh, c.dweight = dweight;
    CHECK(mx_cross_entropy_find_bad(&c, c.vocab) == -1, "masked targets are not looked at");
    CHECK(mx_cross_entropy_run(&c) == MX_OK && loss == 0, "%s: loss %g", isa, loss);
    for (int i = 0; i < 9; i++)
        CHECK(dweight[i] == 0 && dh[i % 6] == 0, "%s: gradient %d", isa, i);
    mask[1] = 1;
    CHECK(mx_cross_entropy_find_bad(&c, c.vocab) == 1, "target -1");
    targets[1] = 3;
    CHECK(mx_cross_entropy_find_bad(&c, c.vocab) == 1, "target 3 of 3");
}

static void test_chunk_size(void)
{
    mx_cross_entropy c = {.tokens = 8192, .width = 768, .vocab = 50257};
    int64_t rows = mx_cross_entropy_chunk(&c);
    CHECK(rows >= 256 && rows * c.vocab * 4 <= 140 << 20, "gpt2: %lld tokens at a time", (long long)rows);
    c.vocab = 256, c.tokens = 100;
    CHECK(mx_cross_entropy_chunk(&c) == 100, "all at once: %lld", (long long)mx_cross_entropy_chunk(&c));
    c.vocab = 1000000, c.tokens = 4096;
    CHECK(mx_cross_entropy_chunk(&c) >= 256, "a huge vocabulary: %lld", (long long)mx_cross_entropy_chunk(&c));
}

static void check_embedding(const char *isa, int64_t vocab, int64_t width, int64_t tokens, int kind)
{
    mx_dtype from = kind & 1 ? MX_BF16 : MX_F32, to = kind & 2 ? MX_BF16 : MX_F32;
    float scale = kind & 4 ? 2.5f : 1.0f;
    void *table = make_values(vocab * width, from, -1, 1), *out = make_values(tokens * width, to, 7, 8);
    int32_t *ids = malloc((size_t)(tokens + 1) * sizeof *ids);
    for (int64_t t = 0; t < tokens; t++)
        ids[t] = (int32_t)(uniform() * uniform() * (double)vocab); /* small ids more often */
    CHECK(mx_embedding_find_bad(ids, tokens, vocab) == -1, "all are valid");
    mx_embedding_gather(&(mx_embedding){tokens, width, vocab, 0, ids, table, out, from, to, scale});
    double *want = calloc((size_t)(tokens * width) + 1, sizeof *want);
    double *sums = calloc((size_t)(vocab * width) + 1, sizeof *sums);
    float *grad = make_values(vocab * width, MX_F32, 1, 1);
    for (int64_t i = 0; i < vocab * width; i++)
        sums[i] = 1;
    for (int64_t i = 0; i < tokens * width; i++) {
        want[i] = scale * get_value(table, ids[i / width] * width + i % width, from);
        sums[ids[i / width] * width + i % width] += scale * get_value(out, i, to);
    }
    double error = worst_error(out, to, want, tokens * width);
    CHECK(error <= tolerance(to, 1e-7), "%s: gather off by %g, kind %d", isa, error, kind);
    CHECK(guard_intact(out, tokens * width, to), "%s: wrote behind the end", isa);
    mx_embedding_sum sum = {tokens, width, vocab, 0, ids, out, to, scale, grad, false};
    CHECK(mx_embedding_add(&sum) == MX_OK, "%s", mx_message());
    error = worst_error(grad, MX_F32, sums, vocab * width);
    CHECK(error <= 1e-5, "%s: sums off by %g, kind %d", isa, error, kind);
    for (int64_t i = 0; i < vocab * width; i++)
        sums[i]--;
    sum.replace = true;
    CHECK(mx_embedding_add(&sum) == MX_OK, "%s", mx_message());
    error = worst_error(grad, MX_F32, sums, vocab * width);
    CHECK(error <= 1e-5, "%s: new sums off by %g, kind %d", isa, error, kind);
    free(table), free(out), free(ids), free(want), free(sums), free(grad);
}

static void test_embedding(const char *isa)
{
    for (int kind = 0; kind < 8; kind++) {
        static const int64_t widths[] = {1, 7, 8, 16, 31, 33, 65, 768};
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            check_embedding(isa, 11, widths[w], 50, kind);
        check_embedding(isa, 1, 1, 1, kind);
        check_embedding(isa, 5, 8, 0, kind);
    }
    static const int32_t bad[3][3] = {{0, 5, 1}, {0, 1, -1}, {INT32_MIN, 0, 0}};
    CHECK(mx_embedding_find_bad(bad[0], 3, 5) == 1, "5 of 5");
    CHECK(mx_embedding_find_bad(bad[1], 3, 5) == 2, "-1");
    CHECK(mx_embedding_find_bad(bad[2], 3, 5) == 0, "the smallest number");
}

/* The same bits on any number of threads. */
static void test_threads(const char *isa)
{
    enum { TOKENS = 4000, WIDTH = 520, VOCAB = 30 }; /* ids below 4 come up more than 256 times */
    int most = omp_get_max_threads();
    float *dy = make_values(TOKENS * WIDTH, MX_F32, -1, 1);
    float *grads[5];
    int32_t ids[TOKENS];
    for (int t = 0; t < TOKENS; t++)
        ids[t] = (int32_t)(t % 2 ? uniform() * VOCAB : uniform() * 4);
    for (int threads = 1; threads <= 5; threads++) {
        omp_set_num_threads(threads);
        float *grad = grads[threads - 1] = make_values(VOCAB * WIDTH, MX_F32, 0, 0);
        mx_embedding_sum sum = {TOKENS, WIDTH, VOCAB, 0, ids, dy, MX_F32, 0.3f, grad, false};
        CHECK(mx_embedding_add(&sum) == MX_OK, "%s", mx_message());
        CHECK(memcmp(grad, grads[0], sizeof(float) * VOCAB * WIDTH) == 0, "%s: %d threads differ from 1", isa, threads);
    }
    omp_set_num_threads(most);
    for (int i = 0; i < 5; i++)
        free(grads[i]);
    free(dy);
}

/* One f32 sum of so many is off by 1.7 %; here each f32 sum has 256 terms of half a unit in the last place at most. */
static void test_one_id_many_times(const char *isa)
{
    enum { TOKENS = 1 << 21, VOCAB = 3 };
    int32_t *ids = calloc(TOKENS, sizeof *ids);
    float *dy = malloc(TOKENS * sizeof *dy), grad[VOCAB] = {0, 0, 0};
    for (int64_t t = 0; t < TOKENS; t++) {
        ids[t] = t % 1000 == 999 ? 2 : 1;
        dy[t] = 0.1f;
    }
    mx_embedding_sum sum = {TOKENS, 1, VOCAB, 0, ids, dy, MX_F32, 1, grad, false};
    CHECK(mx_embedding_add(&sum) == MX_OK, "%s", mx_message());
    double rare = TOKENS / 1000, often = TOKENS - TOKENS / 1000; /* NOLINT(bugprone-integer-division) */
    CHECK(grad[0] == 0 && fabs(grad[1] / (0.1f * often) - 1) < 1e-5 && fabs(grad[2] / (0.1f * rare) - 1) < 1e-5,
          "%s: %g and %g", isa, grad[1], grad[2]);
    free(ids);
    free(dy);
}

/* The gradient of a row of softmax_cross_entropy past the caches has the same bits, wherever the row starts. */
static void test_streamed_classes(const char *isa)
{
    const mx_class_paths *path = mx_kernels_current()->classes;
    enum { MOST = 200, BEFORE = 31 };
    for (int kind = 0; kind < 4; kind++)
        for (int64_t n = 1; n <= MOST; n += 3) {
            mx_dtype dtype = kind & 1 ? MX_BF16 : MX_F32;
            int64_t size = (int64_t)mx_dtype_bytes(dtype), before = n % (BEFORE + 1);
            void *x = make_values(n, dtype, -3, 3), *a = make_values(n, dtype, 0, 1);
            float *weight = kind & 2 ? make_values(n, MX_F32, 0, 2) : NULL;
            char *b = make_values(before + n, dtype, 0, 1), *row = b + before * size;
            path->grad(x, dtype, n, 5, 0.5f, weight, 0.01f, a, false);
            path->grad(x, dtype, n, 5, 0.5f, weight, 0.01f, row, true);
            CHECK(memcmp(a, row, (size_t)(n * size)) == 0, "%s: %lld classes, kind %d", isa, (long long)n, kind);
            CHECK(guard_intact(b, before + n, dtype), "%s: wrote behind %lld classes", isa, (long long)n);
            free(x), free(a), free(weight), free(b);
        }
}

int main(void)
{
    for_each_isa(test_streamed_classes);
    for_each_isa(test_loss);
    for_each_isa(test_parts);
    for_each_isa(test_all_masked);
    test_chunk_size();
    for_each_isa(test_embedding);
    for_each_isa(test_threads);
    for_each_isa(test_one_id_many_times);
    return check_done();
}
