/* YAML, JSON and files. What YAML texts mean is from the YAML 1.2 core schema, written down as JSON. */
#include "check.h"
#include "temporary.h"

#include "io/checksum.h"
#include "io/file.h"
#include "io/json.h"
#include "io/log.h"
#include "io/yaml.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* ---- YAML ---- */

typedef struct example {
    const char *text;
    const char *expected; /* JSON, or the message after "f.yml:" */
} example;

static const example yaml_values[] = {
    {"", "null"},
    {"# only a comment\n", "null"},
    {"---\n...\n", "null"},
    {"a: 1", "{\"a\":1}"},
    {"a:\nb: ~\nc: null\nd: NULL\ne: nULL", "{\"a\":null,\"b\":null,\"c\":null,\"d\":null,\"e\":\"nULL\"}"},
    {"[true, True, TRUE, tRUE, false, yes, no, on, off]",
     "[true,true,true,\"tRUE\",false,\"yes\",\"no\",\"on\",\"off\"]"},
    {"[0, 7, -7, +7, 007, 0x1F, 0o17, 0b1, -0x1F, 1_000, 1,000, -1_000.5, 1__0, 1_, _1, 0x1_0, a_1]",
     "[0,7,-7,7,7,31,15,\"0b1\",\"-0x1F\",1000,1,0,-1000.5,\"1__0\",\"1_\",\"_1\",\"0x1_0\",\"a_1\"]"},
    {"[9223372036854775807, -9223372036854775808, 0x7fffffffffffffff]",
     "[9223372036854775807,-9223372036854775808,9223372036854775807]"},
    {"[1e-5, 3.0e-5, 1E3, .5, 5., -.5e+2, 1.0, 0.1, 1e22]", "[1e-05,3e-05,1000.0,0.5,5.0,-50.0,1.0,0.1,1e+22]"},
    {"[., +, e5, 1e, 1e+, .e1, 0x, 0o, 0o8, 0xg, 1.2.3, 2024-01-01, 1:30, ..]",
     "[\".\",\"+\",\"e5\",\"1e\",\"1e+\",\".e1\",\"0x\",\"0o\",\"0o8\",\"0xg\",\"1.2.3\",\"2024-01-01\",\"1:30\",\".."
     "\"]"},
    {"['1', \"true\", '~', \"\", 'it''s', \"a\\tb\\u00e9\\0\"]",
     "[\"1\",\"true\",\"~\",\"\",\"it's\",\"a\\tb\xc3\xa9\\u0000\"]"},
    {"a: |\n  one\n  two\nb: >-\n  one\n  two\n", "{\"a\":\"one\\ntwo\\n\",\"b\":\"one two\"}"},
    {"b: 1\na: {d: [1, [2, {}], []], c: x y # z\n }\n", "{\"a\":{\"c\":\"x y\",\"d\":[1,[2,{}],[]]},\"b\":1}"},
    {"- 1\n-\n  - 2\n  - k: v\n", "[1,[2,{\"k\":\"v\"}]]"},
    {"1: one\ntrue: two\n'': three\n", "{\"\":\"three\",\"1\":\"one\",\"true\":\"two\"}"},
    {"a: b#c\r\nd: http://x/y:z\r\n", "{\"a\":\"b#c\",\"d\":\"http://x/y:z\"}"},
    {"\xef\xbb\xbf"
     "a: 1",
     "{\"a\":1}"},
};

static const example yaml_errors[] = {
    {"a: 1\nb: 2\na: 3\n", "3:1: key 'a' is given twice: first in line 1"},
    {"x:\n  - {q: 1, 'q': 2}\n", "2:12: key 'q' is given twice: first in line 2"},
    {"a: &x 1\n", "1:4: anchors"},
    {"a: 1\nb: *x\n", "2:4: anchors"},
    {"&k a: 1\n", "1:1: anchors"},
    {"<<: {a: 1}\n", "1:1: merge keys"},
    {"a: !!str 1\n", "1:4: explicit tags"},
    {"a: !mine {}\n", "1:4: explicit tags"},
    {"a: 1\n---\nb: 2\n", "2:1: a second document"},
    {"? [a]\n: 1\n", "1:3: a key must be"},
    {"? {a: 1}\n: 1\n", "1:3: a key must be"},
    {"a: [1, 2\nb: 3\n", "2:2: did not find expected ',' or ']' (while parsing a flow sequence that starts in line 1)"},
    {"a: b: c\n",
     "1:5: mapping values are not allowed in this context: expected lines of the form 'key: value', indented "
     "alike; quote a value with ': ' in it"},
    {"a:\n\tb: 1\n", "2:1: found character that cannot start any token (while scanning for the next token that starts "
                     "in line 2): indent with spaces, not with a tab"},
    {"\tsteps: 5\n", "1:1: found character that cannot start any token (while scanning for the next token that starts "
                     "in line 1): indent with spaces, not with a tab"},
    {"a: 1\n b: 2\n", "2:3: "},
    {"a: \"x\n", "2:1: found unexpected end of stream"},
    {"a: 9223372036854775808\n", "1:4: an integer that does not fit 64 bits"},
    {"a: -0\nb: 1e400\n", "2:4: a number too large"},
    {"a: 1\nb: \xff\n", "2:4: invalid leading UTF-8 octet: expected a text in UTF-8"},
    {"a: \x01\n", "1:4: control characters are not allowed"},
    {"\"a\\0b\": 1\n", "1:1: a key must not contain a zero byte"},
    {"a: @b\n", "1:4: "},
    {"a: %\n", "1:4: "},
    {"%YAML 3.0\n---\na: 1\n", "1:1: "},
};

static void check_yaml_value(const example *e)
{
    mx_value value;
    char *json = NULL;
    size_t bytes;
    mx_status status = mx_yaml_parse(e->text, strlen(e->text), "f.yml", &value);
    CHECK(status == MX_OK, "'%s': %s", e->text, mx_message());
    if (status != MX_OK)
        return;
    status = mx_json_encode(&value, 0, &json, &bytes);
    CHECK(status == MX_OK && strcmp(json, e->expected) == 0, "'%s' gave %s", e->text, json ? json : mx_message());
    free(json);
    mx_value_free(&value);
}

static void check_yaml_error(const example *e)
{
    char start[256];
    mx_value value;
    snprintf(start, sizeof start, "f.yml:%s", e->expected);
    mx_status status = mx_yaml_parse(e->text, strlen(e->text), "f.yml", &value);
    CHECK(status == MX_ERR_VALUE && value.kind == MX_NULL, "'%s' was accepted", e->text);
    CHECK(strncmp(mx_message(), start, strlen(start)) == 0, "'%s' said: %s", e->text, mx_message());
    mx_value_free(&value);
}

static mx_value parse_yaml(const char *text)
{
    mx_value value;
    CHECK(mx_yaml_parse(text, strlen(text), "f.yml", &value) == MX_OK, "%s", mx_message());
    return value;
}

static void test_yaml_floats(void)
{
    mx_value v = parse_yaml("[.inf, +.INF, -.Inf, .nan, -0.0, .iNF]");
    CHECK(v.count == 6, "%zu", v.count);
    for (int i = 0; i < 5; i++)
        CHECK(v.entries[i].value.kind == MX_FLOAT, "entry %d is %s", i, mx_kind_name(v.entries[i].value.kind));
    CHECK(v.entries[0].value.number == INFINITY && v.entries[1].value.number == INFINITY, "inf");
    CHECK(v.entries[2].value.number == -INFINITY && isnan(v.entries[3].value.number), "-inf, nan");
    CHECK(signbit(v.entries[4].value.number), "minus zero");
    CHECK(v.entries[5].value.kind == MX_STRING, "only the spellings of the standard");
    mx_value_free(&v);
}

static void test_yaml_places(void)
{
    mx_value v = parse_yaml("# first\nz: 1\n\na:\n  - 5\n  - q: 6\nm: {x: 1}\n");
    static const char *const keys[] = {"z", "a", "m"};
    static const int lines[] = {2, 4, 7};
    for (int i = 0; i < 3; i++)
        CHECK(strcmp(v.entries[i].key, keys[i]) == 0 && v.entries[i].line == lines[i] && v.entries[i].column == 1,
              "%s in line %d", v.entries[i].key, v.entries[i].line);
    const mx_value *a = mx_value_get(&v, "a");
    CHECK(a && a->count == 2 && a->entries[1].value.entries[0].line == 6, "nested keys have lines");
    CHECK(a && a->entries[0].value.line == 5 && a->entries[0].value.column == 5, "values have places");
    CHECK(mx_value_get(&v, "b") == NULL && mx_value_get(a, "q") == NULL, "absent keys");
    mx_value_free(&v);
}

static void test_yaml_limits(void)
{
    enum { DEEP = 100000 };
    char *text = malloc(DEEP + 1);
    mx_value value;
    memset(text, '[', DEEP);
    CHECK(mx_yaml_parse(text, DEEP, "f", &value) == MX_ERR_VALUE && strstr(mx_message(), "f:1:65: nested deeper"), "%s",
          mx_message());
    memset(text, '{', DEEP);
    CHECK(mx_yaml_parse(text, DEEP, "f", &value) == MX_ERR_VALUE, "deep maps");
    memset(text, '[', MX_VALUE_DEPTH);
    memset(text + MX_VALUE_DEPTH, ']', MX_VALUE_DEPTH);
    CHECK(mx_yaml_parse(text, 2 * MX_VALUE_DEPTH, "f", &value) == MX_OK, "%s", mx_message());
    mx_value_free(&value);
    free(text);
    text = calloc(1, MX_YAML_BYTES + 1);
    CHECK(mx_yaml_parse(text, MX_YAML_BYTES + 1, "f", &value) == MX_ERR_VALUE, "too long");
    free(text);
}

/* ---- JSON ---- */

static const example json_texts[] = {
    {" {\"b\": [1, 2.5, -0.0, true, false, null], \"a\": \"\\u00e9\\n\"} ",
     "{\"a\":\"\xc3\xa9\\n\",\"b\":[1,2.5,-0.0,true,false,null]}"},
    {"3", "3"},
    {"\"x\"", "\"x\""},
    {"[]", "[]"},
    {"{}", "{}"},
    {"[0.1, 0.30000000000000004, 1e300, 5e-324, 3.0, 123456789012345680.0]",
     "[0.1,0.30000000000000004,1e+300,4.94065645841247e-324,3.0,1.2345678901234568e+17]"},
    {"[9223372036854775807, -9223372036854775808]", "[9223372036854775807,-9223372036854775808]"},
};

static const char *const json_errors[] = {"",
                                          "{",
                                          "[1,]",
                                          "{\"a\":1,\"a\":2}",
                                          "nul",
                                          "[1] 2",
                                          "[NaN]",
                                          "[1e400]",
                                          "[9223372036854775808]",
                                          "\"\xff\"",
                                          "[\"\\ud800\"]",
                                          "[01]",
                                          "{a:1}"};

static void test_json(void)
{
    mx_value value;
    char *text;
    size_t bytes;
    for (size_t i = 0; i < sizeof json_texts / sizeof *json_texts; i++) {
        const example *e = &json_texts[i];
        CHECK(mx_json_parse(e->text, strlen(e->text), "j", &value) == MX_OK, "%s: %s", e->text, mx_message());
        CHECK(mx_json_encode(&value, 0, &text, &bytes) == MX_OK, "%s", mx_message());
        CHECK(strcmp(text, e->expected) == 0 && bytes == strlen(text), "%s gave %s", e->text, text);
        free(text);
        mx_value_free(&value);
    }
    for (size_t i = 0; i < sizeof json_errors / sizeof *json_errors; i++) {
        CHECK(mx_json_parse(json_errors[i], strlen(json_errors[i]), "j", &value) == MX_ERR_VALUE, "%s accepted",
              json_errors[i]);
        CHECK(strncmp(mx_message(), "j:1:", 4) == 0, "%s", mx_message());
    }
}

static void test_json_writing(void)
{
    mx_value value = parse_yaml("b: [1, {c: []}]\na: {}\n");
    char *text;
    size_t bytes;
    CHECK(mx_json_encode(&value, 2, &text, &bytes) == MX_OK, "%s", mx_message());
    CHECK(strcmp(text, "{\n  \"a\": {},\n  \"b\": [\n    1,\n    {\n      \"c\": []\n    }\n  ]\n}") == 0, "%s", text);
    free(text);
    mx_value_free(&value);
    value = parse_yaml("loss: {history: [1.0, .nan]}");
    CHECK(mx_json_encode(&value, 0, &text, &bytes) == MX_ERR_VALUE, "nan written");
    CHECK(strcmp(mx_message(), "JSON: loss.history[2]: nan has no form in JSON") == 0, "%s", mx_message());
    mx_value_free(&value);
    CHECK(mx_value_set_string(&value, "a\xff", 2) == MX_OK, "string");
    CHECK(mx_json_encode(&value, 0, &text, &bytes) == MX_ERR_VALUE, "not UTF-8");
    mx_value_free(&value);
}

/* ---- files ---- */

static void expect_content(const char *path, const char *expected)
{
    char *text;
    size_t bytes;
    CHECK(mx_file_read(path, 0, &text, &bytes) == MX_OK, "%s", mx_message());
    CHECK(text && bytes == strlen(expected) && memcmp(text, expected, bytes) == 0, "%s holds %s", path, text);
    free(text);
}

static void test_reading(void)
{
    char *text;
    size_t bytes;
    CHECK(mx_file_read(temporary_path("absent"), 0, &text, &bytes) == MX_ERR_IO &&
              strstr(mx_message(), "No such file or directory"),
          "%s", mx_message());
    CHECK(mx_file_read(temporary_folder, 0, &text, &bytes) == MX_ERR_IO && strstr(mx_message(), "folder"), "%s",
          mx_message());
    const char *pipe = temporary_path("pipe");
    CHECK(mkfifo(pipe, 0600) == 0 && mx_file_read(pipe, 0, &text, &bytes) == MX_ERR_IO, "a pipe must not block");
    unlink(pipe);
    const char *path = temporary_path("ten");
    spill(path, "0123456789", 10);
    CHECK(mx_file_read(path, 9, &text, &bytes) == MX_ERR_IO && strstr(mx_message(), "10 bytes"), "%s", mx_message());
    expect_content(path, "0123456789");
    unlink(path);
}

static void test_replacing(void)
{
    const char *path = temporary_path("replaced");
    CHECK(mx_file_write(path, "old", 3) == MX_OK, "%s", mx_message());
    mx_draft draft;
    CHECK(mx_draft_open(&draft, path) == MX_OK, "%s", mx_message());
    CHECK(temporary_files() == 2, "a draft lies beside the file");
    mx_draft_discard(&draft);
    mx_draft_discard(&draft);
    CHECK(temporary_files() == 1, "a draft left behind");
    expect_content(path, "old");
    CHECK(mx_file_write(path, "newer", 5) == MX_OK, "%s", mx_message());
    expect_content(path, "newer");
    CHECK(mx_file_write(path, "", 0) == MX_OK, "%s", mx_message());
    expect_content(path, "");
    CHECK(mx_file_write(temporary_path("no/such/folder"), "x", 1) == MX_ERR_IO, "written into nowhere");
    CHECK(temporary_files() == 1, "a draft left behind");
    unlink(path);
}

/* A full disk, by the limit that a process may set itself. */
static void test_full_disk(void)
{
    struct rlimit old, small = {4096, RLIM_INFINITY};
    static char data[10000];
    const char *path = temporary_path("full");
    CHECK(mx_file_write(path, "old", 3) == MX_OK, "%s", mx_message());
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    mx_status status = mx_file_write(path, data, sizeof data);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(status == MX_ERR_IO && strstr(mx_message(), "File too large"), "%s", mx_message());
    CHECK(temporary_files() == 1, "a draft left behind");
    expect_content(path, "old");
    unlink(path);
}

static void test_folders(void)
{
    char deep[512];
    snprintf(deep, sizeof deep, "%s", temporary_path("x/y/z/"));
    CHECK(mx_file_make_folders(deep) == MX_OK && mx_file_make_folders(deep) == MX_OK, "%s", mx_message());
    CHECK(mx_file_exists(temporary_path("x/y/z")) && !mx_file_exists(temporary_path("x/z")), "made");
    rmdir(temporary_path("x/y/z"));
    rmdir(temporary_path("x/y"));
    rmdir(temporary_path("x"));
    CHECK(mx_file_make_folders("") == MX_ERR_IO, "an empty path");
    const char *path = temporary_path("file");
    spill(path, "", 0);
    CHECK(mx_file_make_folders(path) == MX_ERR_IO, "a file in the way");
    unlink(path);
}

static void test_log(void)
{
    const char *path = temporary_path("log");
    mx_log log;
    CHECK(mx_log_open(&log, path, false) == MX_OK, "%s", mx_message());
    CHECK(mx_log_line(&log, "one", 3) == MX_OK && mx_log_line(&log, "", 0) == MX_OK, "%s", mx_message());
    expect_content(path, "one\n\n");
    CHECK(mx_log_close(&log) == MX_OK && mx_log_close(&log) == MX_OK, "closing twice");
    CHECK(mx_log_line(&log, "x", 1) == MX_ERR_STATE, "a closed log");
    CHECK(mx_log_open(&log, path, true) == MX_OK && mx_log_line(&log, "two", 3) == MX_OK, "%s", mx_message());
    mx_log_close(&log);
    expect_content(path, "one\n\ntwo\n");
    CHECK(mx_log_open(&log, path, false) == MX_OK, "%s", mx_message());
    mx_log_close(&log);
    expect_content(path, "");
    unlink(path);
    CHECK(mx_log_open(&log, temporary_path("no/log"), true) == MX_ERR_IO && log.fd < 0, "a folder that is not there");
}

/* ---- checksums ---- */

static void test_checksum(void)
{
    unsigned char data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * i + 7 * i);
    CHECK(mx_crc32c(0, "123456789", 9) == 0xe3069283, "the catalogue's check value"); /* RFC 3720, B.4 */
    for (size_t n = 0; n < sizeof data; n += 13) {
        uint32_t whole = mx_crc32c(0, data, n), half = mx_crc32c(0, data, n / 3);
        CHECK(whole == mx_crc32c_portable(0, data, n), "%zu bytes", n);
        CHECK(whole == mx_crc32c(half, data + n / 3, n - n / 3), "%zu bytes in two parts", n);
    }
}

int main(void)
{
    temporary_make();
    for (size_t i = 0; i < sizeof yaml_values / sizeof *yaml_values; i++)
        check_yaml_value(&yaml_values[i]);
    for (size_t i = 0; i < sizeof yaml_errors / sizeof *yaml_errors; i++)
        check_yaml_error(&yaml_errors[i]);
    test_yaml_floats();
    test_yaml_places();
    test_yaml_limits();
    test_json();
    test_json_writing();
    test_reading();
    test_replacing();
    test_full_disk();
    test_folders();
    test_log();
    test_checksum();
    temporary_remove();
    return check_done();
}
