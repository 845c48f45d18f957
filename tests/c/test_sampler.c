/* The sampler against a straightforward reference that has the whole epoch in memory, and orders without a table. */
#include "check.h"
#include "temporary.h"

#include "data/feed.h"
#include "data/permutation.h"
#include "data/sampler_source.h"
#include "data/token_store.h"

/* ---- permutations ---- */

static void test_permutation(void)
{
    static unsigned char seen[5000];
    for (uint64_t n = 1; n <= 5000; n = n < 70 ? n + 1 : n * 3 / 2) {
        mx_permutation p = mx_permutation_new(n, 7 * n, true);
        int64_t repeated = 0, outside = 0;
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = mx_permutation_at(&p, i);
            outside += at >= n;
            repeated += at < n && seen[at]++;
        }
        CHECK(repeated == 0 && outside == 0, "n = %d: %d repeated, %d outside", (int)n, (int)repeated, (int)outside);
    }
    mx_permutation none = mx_permutation_new(100, 3, false);
    CHECK(mx_permutation_at(&none, 42) == 42, "not shuffled");
}

/* Each place of an order of 8 gets each number about as often; bound: 5 standard deviations of a fair draw. */
static void test_permutation_is_even(void)
{
    enum { N = 8, TRIES = 8000 };
    int count[N][N] = {{0}}, worst = 0;
    for (uint64_t seed = 0; seed < TRIES; seed++) {
        mx_permutation p = mx_permutation_new(N, seed, true);
        for (uint64_t i = 0; i < N; i++)
            count[i][mx_permutation_at(&p, i)]++;
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            worst = abs(count[i][j] - TRIES / N) > worst ? abs(count[i][j] - TRIES / N) : worst;
    CHECK(worst < 5 * sqrt(TRIES / (double)N), "%d off %d", worst, TRIES / N);
}

/* ---- a store, and its epochs as a reference makes them ---- */

enum { DOCUMENTS = 700, LENGTH = 48, MOST = 180 };

typedef struct corpus {
    int64_t lengths[DOCUMENTS], starts[DOCUMENTS + 1];
    uint16_t *tokens;
} corpus;

/* Token ids are their place in the file, modulo the vocabulary: so each can be told from its neighbours. */
static corpus make_corpus(void)
{
    corpus c = {.starts = {0}};
    for (int d = 0; d < DOCUMENTS; d++) {
        c.lengths[d] = d % 13 == 5 ? 0 : d % 17 == 3 ? 1 : (int64_t)(mx_mix64((uint64_t)d + 1) % MOST);
        c.starts[d + 1] = c.starts[d] + c.lengths[d];
    }
    c.tokens = malloc((size_t)c.starts[DOCUMENTS] * 2);
    for (int64_t i = 0; i < c.starts[DOCUMENTS]; i++)
        c.tokens[i] = (uint16_t)i;
    return c;
}

static void write_corpus(const corpus *c, const char *path)
{
    mx_store_writer *w;
    mx_store_about about = {c->starts[DOCUMENTS], DOCUMENTS, 65536, -1, 7, "bytes", "none"};
    CHECK(mx_store_create(path, &about, &w) == MX_OK, "%s", mx_message());
    for (int64_t i = 0; i < about.tokens; i += 10007) {
        int64_t part = about.tokens - i < 10007 ? about.tokens - i : 10007;
        CHECK(mx_store_put_tokens(w, c->tokens + i, part) == MX_OK, "%s", mx_message());
    }
    CHECK(mx_store_put_documents(w, c->lengths, DOCUMENTS) == MX_OK, "%s", mx_message());
    CHECK(mx_store_commit(w) == MX_OK, "%s", mx_message());
}

static mx_sampler *open_sampler(const char *path, bool packing, bool shuffle, uint64_t seed)
{
    mx_sampler_options o = {LENGTH, packing, shuffle, seed, 65536};
    mx_tokens *tokens;
    mx_sampler *s;
    int64_t weight = 1;
    CHECK(mx_tokens_open(path, "hdf5", &tokens) == MX_OK, "%s", mx_message());
    CHECK(mx_sampler_new(&tokens, &weight, 1, &o, &s) == MX_OK, "%s", mx_message());
    return s;
}

typedef struct row {
    int32_t tokens[LENGTH], targets[LENGTH], segments[LENGTH], positions[LENGTH];
    uint8_t mask[LENGTH];
} row;

static row read_row(mx_sampler *s, int64_t sample)
{
    row r;
    mx_samples to = {r.tokens, r.targets, r.segments, r.positions, r.mask};
    memset(&r, 0x55, sizeof r);
    CHECK(mx_sampler_fill(s, sample, 1, &to) == MX_OK, "%s", mx_message());
    return r;
}

/* The epoch without shuffling: the documents end to end, cut. */
static void test_packing_against_a_reference(void)
{
    const char *path = temporary_path("packed.h5");
    corpus c = make_corpus();
    write_corpus(&c, path);
    mx_sampler *s = open_sampler(path, true, false, 0);
    int64_t samples = (c.starts[DOCUMENTS] - 1) / LENGTH, wrong = 0;
    CHECK(mx_sampler_epoch(s, 0) == samples, "%d samples", (int)mx_sampler_epoch(s, 0));
    for (int64_t q = 0; q < 2 * samples; q++) {
        row r = read_row(s, q);
        int64_t start = q % samples * LENGTH, d = 0;
        int32_t segment = 1, position = 0;
        while (c.starts[d + 1] <= start)
            d++;
        for (int i = 0; i < LENGTH; i++) {
            int64_t at = start + i;
            while (c.starts[d + 1] <= at)
                d++;
            bool begins = at == c.starts[d];
            if (i > 0) {
                segment += begins;
                position = begins ? 0 : position + 1;
            }
            int64_t next = d;
            while (c.starts[next + 1] <= at + 1)
                next++;
            bool counts = at + 1 != c.starts[next];
            wrong += r.tokens[i] != (uint16_t)at || r.targets[i] != (uint16_t)(at + 1) || r.mask[i] != counts ||
                     r.segments[i] != segment || r.positions[i] != position;
        }
    }
    CHECK(wrong == 0, "%d wrong", (int)wrong);
    mx_sampler_free(s);
    unlink(path);
    free(c.tokens);
}

/* How often each token of the file is a target that counts, over one epoch. */
static void count_targets(const corpus *c, mx_sampler *s, int64_t epoch, unsigned char *times)
{
    int64_t samples = mx_sampler_epoch(s, 0), outside = 0;
    memset(times, 0, (size_t)c->starts[DOCUMENTS]);
    for (int64_t q = epoch * samples; q < (epoch + 1) * samples; q++) {
        row r = read_row(s, q);
        for (int i = 0; i < LENGTH; i++) {
            if (!r.mask[i])
                continue;
            outside += r.targets[i] != r.tokens[i] + 1 || r.targets[i] >= c->starts[DOCUMENTS];
            times[r.targets[i]]++;
        }
    }
    CHECK(outside == 0, "%d targets do not follow their token", (int)outside);
}

static void test_each_token_is_a_target_once(void)
{
    const char *path = temporary_path("once.h5");
    corpus c = make_corpus();
    write_corpus(&c, path);
    int64_t all = c.starts[DOCUMENTS];
    CHECK(all <= 65536, "ids repeat");
    unsigned char *times = malloc((size_t)all);
    for (int packing = 0; packing < 2; packing++) {
        mx_sampler *s = open_sampler(path, packing, true, 5);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int64_t missing = 0, repeated = 0, first = 0;
            count_targets(&c, s, epoch, times);
            for (int d = 0; d < DOCUMENTS; d++)
                for (int64_t i = c.starts[d]; i < c.starts[d + 1]; i++) {
                    repeated += times[i] > 1;
                    first += i == c.starts[d] && times[i] > 0;
                    missing += i != c.starts[d] && times[i] == 0;
                }
            CHECK(repeated == 0 && first == 0, "%d repeated, %d document starts", (int)repeated, (int)first);
            CHECK(missing <= (packing ? LENGTH : 0), "packing %d: %d missing", packing, (int)missing);
        }
        mx_sampler_free(s);
    }
    free(times);
    free(c.tokens);
    unlink(path);
}

static void test_padding(void)
{
    const char *path = temporary_path("padded.h5");
    corpus c = make_corpus();
    write_corpus(&c, path);
    mx_sampler *s = open_sampler(path, false, false, 0);
    int64_t q = 0, wrong = 0;
    for (int d = 0; d < DOCUMENTS; d++)
        for (int64_t start = 0; start + 1 < c.lengths[d]; start += LENGTH) {
            row r = read_row(s, q++);
            for (int i = 0; i < LENGTH; i++) {
                bool there = start + i + 1 < c.lengths[d];
                uint16_t token = (uint16_t)(c.starts[d] + start + i);
                wrong += r.mask[i] != there || r.tokens[i] != (there ? token : 0) || r.segments[i] != there ||
                         r.targets[i] != (there ? token + 1 : 0) || r.positions[i] != (there ? i : 0);
            }
        }
    CHECK(q == mx_sampler_epoch(s, 0) && wrong == 0, "%d samples, %d wrong", (int)q, (int)wrong);
    mx_sampler_free(s);
    free(c.tokens);
    unlink(path);
}

/* Epochs differ from each other and by the seed; the same numbers give the same samples in any order of asking. */
static void test_orders(void)
{
    const char *path = temporary_path("orders.h5");
    corpus c = make_corpus();
    write_corpus(&c, path);
    mx_sampler *s = open_sampler(path, true, true, 1), *other = open_sampler(path, true, true, 2);
    int64_t n = mx_sampler_epoch(s, 0), same_epoch = 0, same_seed = 0, differ = 0;
    row *rows = malloc((size_t)(2 * n) * sizeof *rows);
    for (int64_t q = 0; q < 2 * n; q++)
        rows[q] = read_row(s, q);
    for (int64_t q = 2 * n - 1; q >= 0; q -= 37) {
        row again = read_row(s, q);
        differ += memcmp(&again, &rows[q], sizeof again) != 0;
    }
    for (int64_t q = 0; q < n; q++) {
        row others = read_row(other, q);
        same_epoch += memcmp(rows[q].tokens, rows[q + n].tokens, sizeof others.tokens) == 0;
        same_seed += memcmp(rows[q].tokens, others.tokens, sizeof others.tokens) == 0;
    }
    CHECK(differ == 0, "%d differ when asked again", (int)differ);
    CHECK(same_epoch < n / 20 && same_seed < n / 20, "%d of %d as in the epoch before, %d with another seed",
          (int)same_epoch, (int)n, (int)same_seed);
    free(rows);
    mx_sampler_free(s);
    mx_sampler_free(other);
    free(c.tokens);
    unlink(path);
}

/* ---- several sources ---- */

static const char *text_file(const char *name, char letter, int64_t bytes)
{
    const char *path = temporary_path(name);
    char *data = malloc((size_t)bytes);
    memset(data, letter, (size_t)bytes);
    spill(path, data, (size_t)bytes);
    free(data);
    return path;
}

static void test_mix(void)
{
    static const int64_t weights[] = {5, 3, 2};
    enum { PERIODS = 40 };
    mx_sampler_options o = {4, true, true, 9, 256};
    mx_tokens *tokens[3];
    char path[3][256];
    for (int i = 0; i < 3; i++) {
        snprintf(path[i], sizeof path[i], "%s", text_file((const char *[]){"a", "b", "c"}[i], (char)('a' + i), 41));
        CHECK(mx_tokens_open(path[i], "text", &tokens[i]) == MX_OK, "%s", mx_message());
    }
    mx_sampler *s;
    CHECK(mx_sampler_new(tokens, weights, 3, &o, &s) == MX_OK, "%s", mx_message());
    int64_t count[3] = {0};
    double worst = 0;
    for (int64_t q = 0; q < 10 * PERIODS; q++) {
        int32_t data[4][4];
        uint8_t mask[4];
        mx_samples to = {data[0], data[1], data[2], data[3], mask};
        CHECK(mx_sampler_fill(s, q, 1, &to) == MX_OK, "%s", mx_message());
        count[data[0][0] - 'a']++;
        for (int i = 0; i < 3; i++)
            worst = fmax(worst, fabs((double)count[i] - (double)(weights[i] * (q + 1)) / 10));
    }
    for (int i = 0; i < 3; i++)
        CHECK(count[i] == weights[i] * PERIODS, "source %d: %d samples", i, (int)count[i]);
    CHECK(worst <= 1, "a share is off by %g samples on the way", worst);
    /* Each has 10 samples an epoch: the first source has had its second one after 4 periods. */
    CHECK(mx_sampler_until(s, 2) == 40, "%d", (int)mx_sampler_until(s, 2));
    mx_sampler_free(s);
    for (int i = 0; i < 3; i++)
        unlink(path[i]);
}

/* ---- the feed ---- */

static void test_feed(void)
{
    const char *path = temporary_path("feed.h5");
    corpus c = make_corpus();
    write_corpus(&c, path);
    for (int depth = 0; depth < 4; depth++) {
        mx_sampler *s = open_sampler(path, true, true, 3);
        mx_feed *feed;
        const mx_samples *batch;
        static const int64_t firsts[] = {0, 6, 12, 18, 6, 12, 900, 906, 0, 6, 12, 18, 24, 30};
        CHECK(mx_feed_new(open_sampler(path, true, true, 3), 3, LENGTH, 6, depth, &feed) == MX_OK, "%s", mx_message());
        for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
            CHECK(mx_feed_next(feed, firsts[i], &batch) == MX_OK, "%s", mx_message());
            for (int b = 0; b < 3; b++) {
                row r = read_row(s, firsts[i] + b);
                CHECK(memcmp(r.tokens, batch->tokens + b * LENGTH, sizeof r.tokens) == 0 &&
                          memcmp(r.mask, batch->mask + b * LENGTH, sizeof r.mask) == 0,
                      "depth %d, batch %d", depth, (int)i);
            }
        }
        CHECK(mx_feed_waited(feed) > 0 && mx_feed_waited(feed) == 0, "waited");
        CHECK(mx_feed_next(feed, -1, &batch) == MX_ERR_VALUE && strstr(mx_message(), "sample -1"), "%s", mx_message());
        CHECK(mx_feed_next(feed, 0, &batch) == MX_OK, "after a failure: %s", mx_message());
        mx_feed_free(feed);
        mx_sampler_free(s);
    }
    free(c.tokens);
    unlink(path);
}

/* ---- refusals ---- */

static void refused(const char *path, mx_sampler_options o, const char *part)
{
    mx_tokens *tokens;
    mx_sampler *s;
    int64_t weight = 1;
    CHECK(mx_tokens_open(path, "auto", &tokens) == MX_OK, "%s", mx_message());
    CHECK(mx_sampler_new(&tokens, &weight, 1, &o, &s) == MX_ERR_VALUE && strstr(mx_message(), part), "%s",
          mx_message());
}

static void test_refusals(void)
{
    const char *path = text_file("short.txt", 'x', 8);
    refused(path, (mx_sampler_options){8, true, true, 0, 256}, "has 8 tokens; one sequence and its targets take 9");
    unlink(path);
    path = temporary_path("vocabulary.h5");
    corpus c = make_corpus();
    write_corpus(&c, path);
    refused(path, (mx_sampler_options){8, true, true, 0, 1000}, "made for a vocabulary of 65536, and the model's is");
    free(c.tokens);
    unlink(path);
}

int main(void)
{
    temporary_make();
    test_permutation();
    test_permutation_is_even();
    test_packing_against_a_reference();
    test_each_token_is_a_target_once();
    test_padding();
    test_orders();
    test_mix();
    test_feed();
    test_refusals();
    temporary_remove();
    return check_done();
}
