/* Tokenizers on their C interface: a word's merges against a plain count, cuts and buffers, UTF-8, damaged files. What
 * the reference gives is checked in tests/lua/test_tokenizer.lua. */
#include "check.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

static const char MODEL[] =
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"abab\": 5, "
    "\"aa\": 6,"
    " \"aaaa\": 7, \"\\u0120\": 8, \"\\u0120a\": 9}, \"merges\": [\"a b\", \"b c\", \"ab ab\", \"a a\", \"aa aa\","
    " \"\\u0120 a\"]}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": %s},"
    " \"decoder\": {\"type\": \"ByteLevel\"}%s}";

static mx_tokenizer *parse(const char *use_regex, const char *more)
{
    char json[2048];
    mx_tokenizer *tokenizer = NULL;
    int length = snprintf(json, sizeof json, MODEL, use_regex, more);
    mx_status status = mx_tokenizer_parse(json, (size_t)length, "test", &tokenizer);
    CHECK(status == MX_OK, "%s", mx_message());
    return tokenizer;
}

/* ---- merges ---- */

static const int32_t MERGES[][3] = {{0, 1, 3}, {1, 2, 4}, {3, 3, 5}, {0, 0, 6}, {6, 6, 7}};

/* The definition: the pair of lowest rank, the leftmost of these, until there is none. */
static int64_t merge_plainly(int32_t *ids, int64_t count)
{
    for (;;) {
        int64_t best = -1;
        int rank = 5;
        for (int64_t i = 0; i + 1 < count; i++)
            for (int m = 0; m < rank; m++)
                if (ids[i] == MERGES[m][0] && ids[i + 1] == MERGES[m][1]) {
                    best = i;
                    rank = m;
                }
        if (best < 0)
            return count;
        ids[best] = MERGES[rank][2];
        count--;
        memmove(ids + best + 1, ids + best + 2, (size_t)(count - best - 1) * sizeof *ids);
    }
}

/* Words around the length at which the way of merging changes, and some far longer. */
static void test_merges(void)
{
    static char word[2000];
    static int32_t expected[2000];
    mx_tokenizer *tokenizer = parse("false", "");
    uint32_t state = 1;
    for (int trial = 0; trial < 400; trial++) {
        int length = trial < 300 ? 1 + trial / 3 : 1500 + trial;
        for (int i = 0; i < length; i++) {
            state = state * 1664525 + 1013904223;
            expected[i] = (int32_t)(state >> 24) * 5 / 256 % 3;
            word[i] = (char)('a' + expected[i]);
        }
        int64_t count = merge_plainly(expected, length), got = 0;
        int32_t *ids = NULL;
        CHECK(mx_tokenizer_encode(tokenizer, word, (size_t)length, 0, &ids, &got) == MX_OK, "%s", mx_message());
        CHECK(got == count && memcmp(ids, expected, (size_t)count * sizeof *ids) == 0, "a word of %d", length);
        free(ids);
    }
    mx_tokenizer_close(tokenizer);
}

/* ---- encoding ---- */

static void check_ids(mx_tokenizer *tokenizer, const char *text, size_t bytes, int64_t count, const int32_t *expected)
{
    int32_t *ids = NULL;
    int64_t got = -1;
    CHECK(mx_tokenizer_encode(tokenizer, text, bytes, 0, &ids, &got) == MX_OK, "%s", mx_message());
    CHECK(got == count, "'%s': %lld ids, expected %lld", text, (long long)got, (long long)count);
    for (int64_t i = 0; i < count && i < got; i++)
        CHECK(ids[i] == expected[i], "'%s': id %lld is %d, expected %d", text, (long long)i, ids[i], expected[i]);
    free(ids);
}

static void test_encode(void)
{
    static const char added[] = ", \"added_tokens\": [{\"id\": 20, \"content\": \"<s>\", \"special\": true},"
                                " {\"id\": 21, \"content\": \"<s>a\", \"special\": true, \"rstrip\": true}]";
    mx_tokenizer *tokenizer = parse("true", added);
    CHECK(mx_tokenizer_vocab_size(tokenizer) == 22, "%lld", (long long)mx_tokenizer_vocab_size(tokenizer));
    check_ids(tokenizer, "", 0, 0, NULL);
    check_ids(tokenizer, "abc a", 5, 3, (int32_t[]){3, 2, 9});
    check_ids(tokenizer, "a<s>b<s>a  b<s", 14, 5, (int32_t[]){0, 20, 1, 21, 1});
    check_ids(tokenizer, "<s>", 2, 0, NULL); /* what has no token and no unk_token is left out */
    check_ids(tokenizer, "a\xff\xc3", 3, 1, (int32_t[]){0});
    CHECK(mx_tokenizer_id(tokenizer, "<s>a", 4) == 21 && mx_tokenizer_id(tokenizer, "<s", 2) == -1, "id");
    CHECK(mx_tokenizer_bos(tokenizer) == -1 && mx_tokenizer_set_bos(tokenizer, 20) == MX_OK, "bos");
    CHECK(mx_tokenizer_set_eos(tokenizer, 15) == MX_ERR_VALUE, "an id in a hole"); /* 10 to 19 have no token */
    int32_t *ids = NULL;
    int64_t count = 0;
    CHECK(mx_tokenizer_encode(tokenizer, "b", 1, MX_ENCODE_BOS | MX_ENCODE_EOS, &ids, &count) == MX_OK && count == 2 &&
              ids[0] == 20 && ids[1] == 1,
          "BOS, and no EOS where there is none");
    free(ids);
    mx_tokenizer_close(tokenizer);
}

static void test_decode(void)
{
    static const int32_t ids[] = {3, 15, 9, 20, 99};
    mx_tokenizer *tokenizer =
        parse("true", ", \"added_tokens\": [{\"id\": 20, \"content\": \"<s>\", \"special\": true}]");
    char *text = NULL;
    size_t bytes = 0;
    CHECK(mx_tokenizer_decode(tokenizer, ids, 5, 0, &text, &bytes) == MX_OK && bytes == 7 && !strcmp(text, "ab a<s>"),
          "'%s'", text);
    free(text);
    CHECK(mx_tokenizer_decode(tokenizer, ids, 5, MX_DECODE_SKIP_SPECIAL, &text, &bytes) == MX_OK &&
              !strcmp(text, "ab a"),
          "'%s'", text);
    free(text);
    CHECK(mx_tokenizer_decode(tokenizer, (int32_t[]){-1}, 1, 0, &text, &bytes) == MX_ERR_VALUE, "a negative id");
    mx_tokenizer_close(tokenizer);
}

/* ---- files ---- */

/* Every beginning of a file, and every file with one byte changed, is read or refused. */
static void test_damage(void)
{
    char json[2048];
    int length = snprintf(json, sizeof json, MODEL, "true", "");
    mx_tokenizer *tokenizer;
    for (int i = 0; i < length; i++) {
        CHECK(mx_tokenizer_parse(json, (size_t)i, "test", &tokenizer) == MX_ERR_VALUE && !tokenizer, "%d bytes", i);
        char old = json[i];
        json[i] = (char)(old ^ 1);
        if (mx_tokenizer_parse(json, (size_t)length, "test", &tokenizer) == MX_OK)
            mx_tokenizer_close(tokenizer);
        json[i] = old;
    }
    CHECK(mx_tokenizer_open("/nonexistent", &tokenizer) == MX_ERR_IO && !tokenizer, "a file that is not there");
    mx_tokenizer_close(NULL);
}

int main(void)
{
    test_merges();
    test_encode();
    test_decode();
    test_damage();
    return check_done();
}
