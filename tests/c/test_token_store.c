/* Token stores and parts: what was put in comes out, and damage of any byte is told or does no harm. */
#include "check.h"
#include "temporary.h"

#include "data/token_part.h"
#include "data/token_store.h"
#include "data/tokens.h"
#include "io/hdf5.h"

enum { DOCUMENTS = 50, TOKENS = 100000 };

static int64_t vocabulary; /* of the store that is tested */

static uint32_t token_at(int64_t i) { return (uint32_t)((i * 40503 + 7) % (vocabulary < 99991 ? vocabulary : 99991)); }

static int64_t length_of(int64_t d) { return d == DOCUMENTS - 1 ? TOKENS - 49 * 2000 : 2000; }

static mx_status put_all(mx_store_writer *w)
{
    unsigned char piece[4 * 1000];
    int64_t lengths[DOCUMENTS], bytes = mx_store_token_bytes(vocabulary);
    for (int64_t start = 0; start < TOKENS; start += 1000) {
        for (int64_t i = 0; i < 1000; i++) {
            uint32_t token = token_at(start + i);
            memcpy(piece + i * bytes, &token, (size_t)bytes);
        }
        MX_TRY(mx_store_put_tokens(w, piece, 1000));
    }
    for (int64_t d = 0; d < DOCUMENTS; d++)
        lengths[d] = length_of(d);
    return mx_store_put_documents(w, lengths, DOCUMENTS);
}

static void write_store(const char *path)
{
    mx_store_writer *w;
    mx_store_about about = {TOKENS, DOCUMENTS, vocabulary, 1, 2, "a/tokenizer.json", "crc32c:1234"};
    CHECK(mx_store_create(path, &about, &w) == MX_OK, "%s", mx_message());
    CHECK(put_all(w) == MX_OK, "%s", mx_message());
    CHECK(mx_store_commit(w) == MX_OK, "%s", mx_message());
}

static void check_store(const char *path)
{
    mx_tokens *t;
    int32_t *read = malloc(TOKENS * sizeof *read);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK, "%s", mx_message());
    const mx_store *store = mx_tokens_store(t);
    const mx_store_about *about = mx_store_get_about(store);
    CHECK(about->tokens == TOKENS && about->documents == DOCUMENTS && about->vocab_size == vocabulary &&
              about->bos == 1 && about->eos == 2 && strcmp(about->tokenizer, "a/tokenizer.json") == 0 &&
              strcmp(about->fingerprint, "crc32c:1234") == 0,
          "%lld tokens", (long long)about->tokens);
    for (int64_t d = 0; d <= DOCUMENTS; d++)
        CHECK(mx_store_document(store, d) == (d < DOCUMENTS ? 2000 * d : TOKENS), "document %d", (int)d);
    static const int64_t starts[] = {0, 32767, 32768, 65535, 99999, 50}, counts[] = {1, 2, 70000, 0, 32768, 100};
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            int64_t wrong = 0, count = counts[j] < TOKENS - starts[i] ? counts[j] : TOKENS - starts[i];
            CHECK(mx_tokens_read(t, starts[i], count, read) == MX_OK, "%s", mx_message());
            for (int64_t k = 0; k < count; k++)
                wrong += (uint32_t)read[k] != token_at(starts[i] + k);
            CHECK(wrong == 0, "%d wrong from %d", (int)wrong, (int)starts[i]);
        }
    CHECK(mx_tokens_read(t, TOKENS, 1, read) == MX_ERR_VALUE, "past the end");
    CHECK(mx_tokens_any_thread(t), "a store is read without the library");
    mx_tokens_close(t);
    free(read);
}

static void test_store(void)
{
    const char *path = temporary_path("s.h5");
    static const int64_t sizes[] = {300, 65536, 65537, 200000};
    for (int i = 0; i < 4; i++) {
        vocabulary = sizes[i];
        write_store(path);
        check_store(path);
        mx_h5 *file; /* other tools see plain integers */
        int32_t last;
        CHECK(mx_h5_open(path, &file) == MX_OK, "%s", mx_message());
        CHECK(strcmp(mx_h5_find(file, "tokens")->type, i < 2 ? "u16" : "u32") == 0, "type");
        CHECK(mx_h5_read_integers(file, "tokens", TOKENS - 1, 1, &last) == MX_OK && (uint32_t)last == token_at(99999),
              "%d", last);
        mx_h5_close(file);
    }
    CHECK(temporary_files() == 1, "%d files left", temporary_files());
    unlink(path);
}

static void test_incomplete(void)
{
    const char *path = temporary_path("i.h5");
    mx_store_writer *w;
    vocabulary = 300;
    mx_store_about about = {TOKENS, DOCUMENTS, 300, -1, -1, "", ""};
    CHECK(mx_store_create(path, &about, &w) == MX_OK && mx_store_commit(w) == MX_ERR_VALUE, "nothing was put");
    about.tokens++;
    CHECK(mx_store_create(path, &about, &w) == MX_OK && put_all(w) == MX_OK, "%s", mx_message());
    CHECK(mx_store_commit(w) == MX_ERR_VALUE && strstr(mx_message(), "100000 of 100001"), "%s", mx_message());
    about.tokens -= 2;
    CHECK(mx_store_create(path, &about, &w) == MX_OK && put_all(w) == MX_ERR_VALUE, "one too many");
    mx_store_abort(w);
    about.tokens = TOKENS;
    CHECK(mx_store_create(path, &about, &w) == MX_OK && put_all(w) == MX_OK, "%s", mx_message());
    mx_store_abort(w);
    const int64_t forged[] = {TOKENS - 1, INT64_MAX};
    CHECK(mx_store_create(path, &about, &w) == MX_OK && mx_store_put_documents(w, forged, 2) == MX_ERR_VALUE &&
              strstr(mx_message(), "9223372036854775807 tokens where 1 are left"),
          "%s", mx_message());
    mx_store_abort(w);
    about.documents = 0;
    CHECK(mx_store_create(path, &about, &w) == MX_ERR_VALUE && !w, "no documents");
    CHECK(temporary_files() == 0, "%d files left", temporary_files());
}

/* Reads all of a store; false when opening or reading fails, with the file's name in the message. */
static bool reads_whole(const char *path)
{
    mx_tokens *t;
    int32_t piece[1000];
    if (mx_tokens_open(path, "hdf5", &t) != MX_OK) {
        CHECK(strstr(mx_message(), path) != NULL, "%s", mx_message());
        return false;
    }
    bool good = true;
    for (int64_t start = 0; good && start < TOKENS; start += 1000) {
        good = mx_tokens_read(t, start, 1000, piece) == MX_OK;
        CHECK(good || strstr(mx_message(), path), "%s", mx_message());
        for (int64_t i = 0; good && i < 1000; i++)
            if ((uint32_t)piece[i] != token_at(start + i)) {
                CHECK(false, "a wrong token at %d", (int)(start + i));
                break;
            }
    }
    mx_tokens_close(t);
    return good;
}

static void test_damage(void)
{
    const char *path = temporary_path("damaged.h5");
    size_t bytes;
    vocabulary = 300;
    write_store(path);
    char *good = slurp(path, &bytes), *bad = malloc(bytes + 1);
    int missed = 0, tried = 0;
    CHECK(reads_whole(path), "%s", mx_message());
    for (size_t at = 0; at < bytes; at += at < 4096 || at > bytes - 4096 ? 61 : 4999, tried++) {
        memcpy(bad, good, bytes);
        bad[at] = (char)(bad[at] ^ 0x10);
        spill(path, bad, bytes);
        missed += reads_whole(path);
    }
    /* Unused room between the parts may be changed unseen only where nothing vouches for it: nowhere. */
    CHECK(missed == 0, "%d of %d damages were not seen", missed, tried);
    for (size_t cut = 1; cut < bytes; cut = cut * 3 + 1) {
        spill(path, good, bytes - cut);
        CHECK(!reads_whole(path), "cut by %d", (int)cut);
    }
    free(good);
    free(bad);
    unlink(path);
}

/* ---- parts ---- */

static void make_part(const char *path, int64_t first, int64_t documents, int64_t skipped)
{
    mx_part_writer *w;
    int32_t tokens[5000];
    CHECK(mx_part_create(path, mx_store_token_bytes(vocabulary), &w) == MX_OK, "%s", mx_message());
    for (int64_t d = first; d < first + documents; d++) {
        for (int64_t i = 0; i < length_of(d); i++)
            tokens[i] = (int32_t)token_at(2000 * d + i);
        CHECK(mx_part_add(w, tokens, length_of(d)) == MX_OK && mx_part_add(w, tokens, 0) == MX_OK, "%s", mx_message());
    }
    CHECK(mx_part_commit(w, skipped) == MX_OK, "%s", mx_message());
}

static void test_parts(void)
{
    static const int64_t sizes[] = {300, 70000};
    char paths[3][512];
    const char *list[3] = {paths[0], paths[1], paths[2]}, *out = temporary_path("merged.h5");
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "%s", temporary_path((const char *[]){"p0", "p1", "p2"}[i]));
    for (int i = 0; i < 2; i++) {
        vocabulary = sizes[i];
        make_part(paths[0], 0, 20, 0);
        make_part(paths[1], 20, 0, 3);
        make_part(paths[2], 20, 30, 0);
        mx_part_about part;
        CHECK(mx_part_read_about(paths[1], &part) == MX_OK && part.tokens == 0 && part.skipped == 3, "%s",
              mx_message());
        mx_store_about about = {0, 0, vocabulary, 1, 2, "a/tokenizer.json", "crc32c:1234"};
        CHECK(mx_parts_merge(list, 3, out, &about) == MX_OK, "%s", mx_message());
        CHECK(about.tokens == TOKENS && about.documents == DOCUMENTS, "%d tokens", (int)about.tokens);
        check_store(out);
        about.vocab_size = 300 + 70000 - vocabulary; /* tokens of the other width */
        CHECK(mx_parts_merge(list, 3, out, &about) == MX_ERR_IO, "another width");
        check_store(out); /* it is still the one that was there */
    }
    size_t bytes;
    char *data = slurp(paths[2], &bytes);
    mx_store_about about = {0, 0, vocabulary, 1, 2, "", ""};
    for (size_t at = 0; at<bytes; at += at> bytes - 80 ? 1 : 9973) {
        data[at] = (char)(data[at] ^ 1);
        spill(paths[2], data, bytes);
        CHECK(mx_parts_merge(list, 3, out, &about) == MX_ERR_IO && strstr(mx_message(), paths[2]), "byte %d: %s",
              (int)at, mx_message());
        data[at] = (char)(data[at] ^ 1);
    }
    spill(paths[2], data, 30);
    CHECK(mx_parts_merge(list, 3, out, &about) == MX_ERR_IO, "cut off");
    free(data);
}

/* A file of tokens as a part: cut after each separator, or with the documents of a store. */
static void test_copy(void)
{
    static const uint16_t tokens[] = {9, 1, 0, 5, 0, 0, 7};
    const char *bin = temporary_path("c.bin"), *path = temporary_path("part"), *store = temporary_path("c.h5");
    mx_part_writer *w;
    mx_tokens *from;
    mx_part_about part;
    spill(bin, tokens, sizeof tokens);
    for (int32_t separator = -1; separator <= 0; separator++) {
        CHECK(mx_tokens_open(bin, "bin", &from) == MX_OK, "%s", mx_message());
        CHECK(mx_part_create(path, 2, &w) == MX_OK && mx_part_copy(w, from, separator, 65536) == MX_OK, "%s",
              mx_message());
        CHECK(mx_part_commit(w, 0) == MX_OK, "%s", mx_message());
        mx_tokens_close(from);
        CHECK(mx_part_read_about(path, &part) == MX_OK && part.tokens == 7, "%d", (int)part.tokens);
        CHECK(part.documents == (separator < 0 ? 1 : 4), "%d documents", (int)part.documents);
    }
    mx_store_about about = {0, 0, 10, -1, 0, "", ""};
    CHECK(mx_parts_merge(&path, 1, store, &about) == MX_OK, "%s", mx_message());
    CHECK(mx_tokens_open(store, "hdf5", &from) == MX_OK, "%s", mx_message());
    CHECK(mx_part_create(path, 2, &w) == MX_OK && mx_part_copy(w, from, -1, 65536) == MX_OK, "%s", mx_message());
    CHECK(mx_part_commit(w, 0) == MX_OK && mx_part_read_about(path, &part) == MX_OK && part.documents == 4, "%s",
          mx_message());
    mx_tokens_close(from);
    CHECK(mx_part_create(path, 2, &w) == MX_OK && mx_part_add(w, (int32_t[]){65536}, 1) == MX_ERR_VALUE, "too large");
    mx_part_abort(w);
}

int main(void)
{
    temporary_make();
    test_store();
    test_incomplete();
    test_damage();
    test_parts();
    test_copy();
    temporary_remove();
    return check_done();
}
