/* Texts read as streams: plain, gzip and zstd give the same pieces, ranges share them out, and damage is told. */
#include "check.h"
#include "temporary.h"

#include "data/text.h"

#include <zlib.h>
#include <zstd.h>

enum { LINES = 30000, LIMIT = 1 << 20 };

static char *text;
static size_t text_bytes;

/* Lines of 0 to 60 bytes, some empty; the last one has no newline. */
static void make_text(void)
{
    text = malloc(LINES * 64);
    for (int i = 0; i < LINES; i++) {
        int length = (i * 37) % 61;
        for (int k = 0; k < length; k++)
            text[text_bytes++] = (char)('a' + (i + k * k) % 26);
        if (i < LINES - 1)
            text[text_bytes++] = '\n';
    }
    text[text_bytes++] = 'z';
}

static void write_gzip(const char *path, bool two)
{
    size_t half = two ? text_bytes / 3 : text_bytes;
    gzFile file = gzopen(path, "wb");
    gzwrite(file, text, (unsigned)half);
    gzclose(file);
    if (!two)
        return;
    file = gzopen(path, "ab"); /* a second member, as cat a.gz b.gz makes */
    gzwrite(file, text + half, (unsigned)(text_bytes - half));
    gzclose(file);
}

static void write_zstd(const char *path, bool two)
{
    size_t room = ZSTD_compressBound(text_bytes) * 2, half = two ? text_bytes / 3 : text_bytes;
    char *data = malloc(room);
    size_t bytes = ZSTD_compress(data, room, text, half, 3);
    if (two)
        bytes += ZSTD_compress(data + bytes, room - bytes, text + half, text_bytes - half, 3);
    spill(path, data, bytes);
    free(data);
}

/* Reads the pieces of a range, which begin at *at of the text, and compares them. */
static void check_range(const char *path, int64_t start, int64_t end, size_t *at, int64_t *pieces)
{
    mx_text *t;
    const char *piece;
    size_t bytes;
    CHECK(mx_text_open(path, start, end, "\n", 1, LIMIT, &t) == MX_OK, "%s", mx_message());
    int64_t wrong = 0;
    for (;;) {
        if (mx_text_next(t, &piece, &bytes) != MX_OK)
            CHECK(false, "%s", mx_message());
        if (!piece)
            break;
        wrong += mx_text_offset(t) != (int64_t)*at || *at + bytes > text_bytes ||
                 memcmp(piece, text + *at, bytes) != 0 || memchr(piece, '\n', bytes);
        *at += bytes + 1;
        ++*pieces;
    }
    CHECK(wrong == 0, "%d wrong pieces in %d to %d of %s", (int)wrong, (int)start, (int)end, path);
    mx_text_close(t);
}

static void test_formats(void)
{
    const char *path = temporary_path("t");
    for (int kind = 0; kind < 5; kind++) {
        size_t at = 0;
        int64_t pieces = 0;
        bool compressed;
        if (kind == 0)
            spill(path, text, text_bytes);
        else if (kind < 3)
            write_gzip(path, kind == 2);
        else
            write_zstd(path, kind == 4);
        check_range(path, 0, -1, &at, &pieces);
        CHECK(pieces == LINES && at == text_bytes + 1, "kind %d: %d pieces", kind, (int)pieces);
        char head[1000];
        size_t bytes;
        CHECK(mx_text_head(path, head, sizeof head, &bytes, &compressed) == MX_OK && compressed == (kind > 0) &&
                  bytes == sizeof head && memcmp(head, text, bytes) == 0,
              "kind %d", kind);
    }
    mx_text *t;
    CHECK(mx_text_open(path, 100, -1, "\n", 1, LIMIT, &t) == MX_ERR_VALUE && !t && strstr(mx_message(), "compressed"),
          "%s", mx_message());
    unlink(path);
}

/* Ranges of any size give all pieces, each once. */
static void test_ranges(void)
{
    const char *path = temporary_path("ranges");
    static const int64_t sizes[] = {1, 17, 4096, 100000, 1 << 22};
    spill(path, text, text_bytes);
    for (int i = 0; i < 5; i++) {
        size_t at = 0;
        int64_t pieces = 0, step = sizes[i], last = i == 0 ? 500 : i == 1 ? 20000 : (int64_t)text_bytes;
        for (int64_t start = 0; start < last; start += step)
            check_range(path, start, start + step < last ? start + step : -1, &at, &pieces);
        CHECK(at == text_bytes + 1 && pieces == LINES, "step %d: %d pieces", (int)step, (int)pieces);
    }
    unlink(path);
}

static void test_separators(void)
{
    static const struct {
        const char *text, *separator, *pieces[4];
    } cases[] = {{"one##two##", "##", {"one", "two"}},
                 {"##one###", "##", {"", "one", "#"}},
                 {"all", "", {"all"}},
                 {"", "\n", {NULL}},
                 {"", "", {NULL}},
                 {"\n", "\n", {""}}};
    const char *path = temporary_path("s");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mx_text *t;
        const char *piece;
        size_t bytes;
        spill(path, cases[i].text, strlen(cases[i].text));
        CHECK(mx_text_open(path, 0, -1, cases[i].separator, strlen(cases[i].separator), 10, &t) == MX_OK, "%s",
              mx_message());
        for (int k = 0; k < 4; k++) {
            const char *expected = cases[i].pieces[k];
            CHECK(mx_text_next(t, &piece, &bytes) == MX_OK && !piece == !expected, "case %d, piece %d", (int)i, k);
            if (!expected || !piece)
                break;
            CHECK(bytes == strlen(expected) && memcmp(piece, expected, bytes) == 0, "case %d, piece %d", (int)i, k);
        }
        mx_text_close(t);
    }
    unlink(path);
}

/* The first failure of reading a file to its end. */
static mx_status read_all(const char *path, size_t limit)
{
    mx_text *t;
    const char *piece = "";
    size_t bytes;
    mx_status status = mx_text_open(path, 0, -1, "\n", 1, limit, &t);
    while (status == MX_OK && piece)
        status = mx_text_next(t, &piece, &bytes);
    mx_text_close(t);
    return status;
}

static void test_failures(void)
{
    const char *path = temporary_path("bad");
    size_t bytes;
    CHECK(read_all("/nonexistent/file", LIMIT) == MX_ERR_IO, "%s", mx_message());
    spill(path, text, text_bytes);
    CHECK(read_all(path, 60) == MX_OK, "%s", mx_message());
    CHECK(read_all(path, 59) == MX_ERR_VALUE && strstr(mx_message(), "has more than 59 bytes"), "%s", mx_message());
    for (int kind = 0; kind < 2; kind++) {
        (kind ? write_zstd : write_gzip)(path, false);
        char *data = slurp(path, &bytes);
        for (size_t cut = 1; cut < bytes - 4; cut = cut * 5 + 1) {
            spill(path, data, bytes - cut);
            CHECK(read_all(path, LIMIT) == MX_ERR_IO && strstr(mx_message(), path), "cut by %d: %s", (int)cut,
                  mx_message());
        }
        data[bytes / 2] = (char)(data[bytes / 2] ^ 0xff);
        spill(path, data, bytes);
        mx_status status = read_all(path, LIMIT);
        CHECK(status == MX_ERR_IO || kind == 1, "damage in the middle"); /* zstd's checksum is optional */
        free(data);
    }
    /* A megabyte of zeros in a few bytes: the limit ends it long before the memory is full. */
    gzFile file = gzopen(path, "wb9");
    static char zeros[1 << 16];
    for (int i = 0; i < 64; i++)
        gzwrite(file, zeros, sizeof zeros);
    gzclose(file);
    CHECK(read_all(path, LIMIT) == MX_ERR_VALUE, "%s", mx_message());
    unlink(path);
}

int main(void)
{
    temporary_make();
    make_text();
    test_formats();
    test_ranges();
    test_separators();
    test_failures();
    free(text);
    temporary_remove();
    return check_done();
}
