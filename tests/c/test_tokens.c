/* Token files of each kind: what is read, and how files that are not what they should be are told. */
#include "check.h"
#include "temporary.h"

#include "data/tokens.h"
#include "io/hdf5.h"

#include <hdf5.h>

static uint16_t token_at(int64_t i) { return (uint16_t)(i * 40503 + 7); }

/* Opens the file, and compares pieces of it with token_at, modulo `modulus`. */
static void check_tokens(const char *path, const char *format, const char *kind, int64_t count, int modulus)
{
    static const int64_t starts[] = {0, 1, 4095, 16383, 16384, 20000}, lengths[] = {0, 1, 17, 16384, 16385};
    mx_tokens *t;
    int32_t *read = malloc((size_t)count * sizeof *read), max, expected = 0;
    CHECK(mx_tokens_open(path, format, &t) == MX_OK, "%s", mx_message());
    CHECK(mx_tokens_count(t) == count && strcmp(mx_tokens_format(t), kind) == 0, "%lld %s",
          (long long)mx_tokens_count(t), mx_tokens_format(t));
    CHECK(strcmp(mx_tokens_path(t), path) == 0, "%s", mx_tokens_path(t));
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            int64_t start = starts[s], length = lengths[l], wrong = 0;
            if (start + length > count)
                continue;
            CHECK(mx_tokens_read(t, start, length, read) == MX_OK, "%s", mx_message());
            for (int64_t i = 0; i < length; i++)
                wrong += read[i] != token_at(start + i) % modulus;
            CHECK(wrong == 0, "%s: %lld of %lld wrong from %lld", kind, (long long)wrong, (long long)length,
                  (long long)start);
        }
    for (int64_t i = 0; i < count; i++)
        expected = token_at(i) % modulus > expected ? token_at(i) % modulus : expected;
    CHECK(mx_tokens_max(t, &max) == MX_OK && max == expected, "max %d, expected %d", max, expected);
    CHECK(mx_tokens_max(t, &max) == MX_OK && max == expected, "the second time");
    CHECK(mx_tokens_read(t, count, 0, read) == MX_OK, "nothing at the end");
    CHECK(mx_tokens_read(t, count, 1, read) == MX_ERR_VALUE, "past the end");
    CHECK(mx_tokens_read(t, 1, INT64_MAX, read) == MX_ERR_VALUE && strstr(mx_message(), path), "%s", mx_message());
    CHECK(mx_tokens_read(t, -1, 2, read) == MX_ERR_VALUE && mx_tokens_read(t, 0, -1, read) == MX_ERR_VALUE, "negative");
    mx_tokens_close(t);
    free(read);
}

enum { COUNT = 50000, HEADER = 1024 };

static unsigned char *bin_bytes(bool header)
{
    unsigned char *data = calloc(1, HEADER + 2 * COUNT);
    int32_t *words = (int32_t *)data;
    words[0] = 20240520;
    words[1] = 1;
    words[2] = COUNT;
    for (int64_t i = 0; i < COUNT; i++) {
        data[HEADER + 2 * i] = (unsigned char)(token_at(i) & 255);
        data[HEADER + 2 * i + 1] = (unsigned char)(token_at(i) >> 8);
    }
    if (!header)
        memmove(data, data + HEADER, 2 * COUNT);
    return data;
}

static void test_bin(void)
{
    const char *path = temporary_path("t.bin");
    unsigned char *data = bin_bytes(false);
    spill(path, data, 2 * COUNT);
    check_tokens(path, "auto", "bin", COUNT, 65536);
    free(data);
    data = bin_bytes(true);
    spill(path, data, HEADER + 2 * COUNT);
    check_tokens(path, "auto", "bin", COUNT, 65536);
    free(data);
    unlink(path);
}

static void test_text(void)
{
    const char *path = temporary_path("t.txt");
    unsigned char *data = malloc(COUNT);
    for (int64_t i = 0; i < COUNT; i++)
        data[i] = (unsigned char)token_at(i);
    spill(path, data, COUNT);
    check_tokens(path, "auto", "text", COUNT, 256);
    free(data);
    unlink(path);
}

static void make_hdf5(const char *path, hid_t file_type, hid_t memory_type, const void *data, hsize_t count)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(1, &count, NULL);
    hid_t set = H5Dcreate2(file, "tokens", file_type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (data)
        H5Dwrite(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
}

static void test_hdf5(void)
{
    const char *path = temporary_path("t.h5");
    static int64_t wide[COUNT];
    const struct {
        hid_t type;
        int modulus;
    } types[] = {{H5T_STD_U8LE, 256},    {H5T_STD_I8BE, 128},    {H5T_STD_U16LE, 65536}, {H5T_STD_I16LE, 32768},
                 {H5T_STD_U16BE, 65536}, {H5T_STD_I32LE, 65536}, {H5T_STD_U32LE, 65536}, {H5T_STD_I64LE, 65536}};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        for (int64_t i = 0; i < COUNT; i++)
            wide[i] = token_at(i) % types[k].modulus;
        make_hdf5(path, types[k].type, H5T_NATIVE_INT64, wide, COUNT);
        check_tokens(path, "auto", "hdf5", COUNT, types[k].modulus);
    }
    unlink(path);
}

static void test_hdf5_values(void)
{
    const char *path = temporary_path("values.hdf5");
    static const int64_t values[] = {5, 1ll << 31, 7, -1};
    int32_t read[4], max;
    mx_tokens *t;
    make_hdf5(path, H5T_STD_I64LE, H5T_NATIVE_INT64, values, 4);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK, "%s", mx_message());
    CHECK(mx_tokens_read(t, 0, 1, read) == MX_OK && read[0] == 5, "%s", mx_message());
    CHECK(mx_tokens_read(t, 0, 4, read) == MX_ERR_VALUE && strstr(mx_message(), "2147483648 at position 1"), "%s",
          mx_message());
    mx_tokens_close(t);
    make_hdf5(path, H5T_STD_I64LE, H5T_NATIVE_INT64, values + 2, 2);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK, "%s", mx_message());
    CHECK(mx_tokens_max(t, &max) == MX_ERR_VALUE && strstr(mx_message(), "-1 at position 1"), "%s", mx_message());
    mx_tokens_close(t);
    make_hdf5(path, H5T_STD_U16LE, H5T_NATIVE_INT64, NULL, 1ull << 40);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_ERR_IO && strstr(mx_message(), "no values"), "%s", mx_message());
    unlink(path);
}

static void expect_refused(const char *name, const char *format, const void *data, size_t bytes, const char *part)
{
    const char *path = temporary_path(name);
    mx_tokens *t;
    spill(path, data, bytes);
    CHECK(mx_tokens_open(path, format, &t) == MX_ERR_IO && !t, "%s of %zu bytes accepted", name, bytes);
    CHECK(strstr(mx_message(), path) && strstr(mx_message(), part), "%s", mx_message());
    unlink(path);
}

static void test_damage(void)
{
    unsigned char *data = bin_bytes(true);
    int32_t *words = (int32_t *)data;
    expect_refused("e.bin", "auto", "", 0, "empty");
    expect_refused("e.txt", "auto", "", 0, "empty");
    expect_refused("e.h5", "auto", "", 0, "no HDF5 file");
    expect_refused("odd.bin", "auto", "abc", 3, "3 bytes");
    expect_refused("cut.bin", "auto", data, HEADER - 1, "1023");
    expect_refused("cut.bin", "auto", data, 4, "truncated");
    expect_refused("cut.bin", "auto", data, HEADER + 2 * COUNT - 2,
                   "promises 50000 tokens of 2 bytes, 101024 bytes in all, and it has 101022");
    expect_refused("long.bin", "auto", data, HEADER + 2 * COUNT - 1, "101023 bytes");
    words[2] = 0;
    expect_refused("none.bin", "auto", data, HEADER, "empty");
    words[2] = -1;
    expect_refused("negative.bin", "auto", data, HEADER + 2 * COUNT, "-1 tokens");
    words[2] = INT32_MAX;
    expect_refused("forged.bin", "auto", data, HEADER + 2 * COUNT, "2147483647 tokens");
    words[1] = 2;
    expect_refused("version.bin", "auto", data, HEADER + 2 * COUNT, "version 2");
    expect_refused("text.h5", "hdf5", "some text", 9, "no HDF5 file");
    free(data);
}

/* Tokens of 4 bytes, which llm.c writes for Llama 3. */
static void test_wide(void)
{
    const char *path = temporary_path("wide.bin");
    size_t bytes = HEADER + 4 * COUNT;
    int32_t *words = calloc(1, bytes), read[COUNT], max;
    mx_tokens *t;
    words[0] = 20240801;
    words[1] = 7;
    words[2] = COUNT;
    for (int64_t i = 0; i < COUNT; i++)
        words[HEADER / 4 + i] = (int32_t)(i * 7919 % 128256);
    spill(path, words, bytes);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK && mx_tokens_count(t) == COUNT, "%s", mx_message());
    CHECK(mx_tokens_read(t, 0, COUNT, read) == MX_OK && memcmp(read, words + HEADER / 4, sizeof read) == 0, "%s",
          mx_message());
    CHECK(mx_tokens_read(t, 30, 1, read) == MX_OK && read[0] == 30 * 7919 % 128256, "%s", mx_message());
    CHECK(mx_tokens_max(t, &max) == MX_OK && max == 128255, "max %d", max);
    mx_tokens_close(t);
    expect_refused("cut.bin", "auto", words, bytes - 2, "promises 50000 tokens of 4 bytes, 201024 bytes in all");
    expect_refused("raw.bin", "auto", words + HEADER / 4, 4 * COUNT, "seems to hold uint32 tokens");
    words[0] = 20240520; /* of uint16: the size does not fit */
    words[1] = 1;
    expect_refused("narrow.bin", "auto", words, bytes, "promises 50000 tokens of 2 bytes, 101024 bytes in all");
    words[0] = 20240801;
    expect_refused("version.bin", "auto", words, bytes,
                   "is a file of uint32 tokens of llm.c of version 1; only version 7");
    words[1] = 7;
    words[HEADER / 4 + 5] = -5; /* as uint32: above 2^31 */
    spill(path, words, bytes);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK, "%s", mx_message());
    CHECK(mx_tokens_max(t, &max) == MX_ERR_VALUE && strstr(mx_message(), "4294967291 at position 5"), "%s",
          mx_message());
    mx_tokens_close(t);
    free(words);
    unlink(path);
}

/* Files of another kind are told by name, whatever they were given as. */
static void test_other_formats(void)
{
    static const struct {
        int32_t magic;
        const char *name;
    } headers[] = {{20240522, "an evaluation file of llm.c"},
                   {20240326, "a model of llm.c"},
                   {20240803, "a Llama 3 model of llm.c"},
                   {20240328, "a tokenizer of llm.c"},
                   {20251231, "an unknown magic"},
                   {(int32_t)0x88d83401, "a big-endian file of llm.c"},
                   {(int32_t)0xa1d93401, "a big-endian file"}};
    static const struct {
        const char *start, *name;
    } files[] = {{"PAR1\25\4", "a Parquet file"},
                 {"\xfd\x37zXZ\0", "xz-compressed"},
                 {"BZh91AY&SY\1", "bzip2-compressed"},
                 {"PK\3\4\24", "a zip archive"},
                 {"ARROW1\0\0", "an Arrow file"},
                 {"\x1f\x8b\x08\4", "gzip-compressed"},
                 {"\x28\xb5\x2f\xfd", "zstd-compressed"},
                 {"\x93NUMPY\1", "a NumPy array"},
                 {"version https://git-lfs.github.com/spec/v1", "a git-lfs pointer, not the file"}};
    int32_t data[512] = {0};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        memset(data, 0, sizeof data);
        data[0] = headers[i].magic;
        data[1] = 1;
        data[2] = 512;
        for (int k = 256; k < 512; k++)
            data[k] = 0x01010101 * (k % 100 + 1);
        expect_refused("t.bin", "bin", data, sizeof data, headers[i].name);
        expect_refused("t.bin", "text", data, sizeof data, headers[i].name);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        memset(data, 1, sizeof data);
        memcpy(data, files[i].start, strlen(files[i].start));
        expect_refused("t.data", "bin", data, sizeof data, files[i].name);
        expect_refused("t.data", "text", data, sizeof data, files[i].name);
        expect_refused("t.data", "hdf5", data, sizeof data, files[i].name);
    }
    memset(data, 0, sizeof data);
    memcpy((char *)data + 257, "ustar", 5);
    expect_refused("t.data", "text", data, sizeof data, "a tar archive");
    for (int k = 0; k < 512; k++)
        data[k] = 'a' << 16 | 'b';
    expect_refused("t.data", "text", data, sizeof data, "text in UTF-16");
    data[0] = 0xfeff;
    expect_refused("t.data", "text", data, sizeof data, "text in UTF-16");
}

/* Numbers and texts that only look a little like those. */
static void test_lookalikes(void)
{
    static const char *const texts[] = {"PAR1 is a gene", "BZhh", "ORC and elf", "GGUF: a format", "{\"a\": 1}", "PK"};
    const char *path = temporary_path("like.bin");
    mx_tokens *t;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        spill(path, texts[i], strlen(texts[i]));
        CHECK(mx_tokens_open(path, "text", &t) == MX_OK, "%s", mx_message());
        mx_tokens_close(t);
    }
    uint16_t values[1024];
    for (int i = 0; i < 1024; i++)
        values[i] = (uint16_t)(i % 2 ? i % 50 : 20 + i % 40); /* the second half of a date; small numbers */
    values[0] = 0xfeff;
    values[1] = 308;
    spill(path, values, sizeof values);
    CHECK(mx_tokens_open(path, "bin", &t) == MX_OK && mx_tokens_count(t) == 1024, "%s", mx_message());
    mx_tokens_close(t);
    memset(values, 0, sizeof values);
    spill(path, values, sizeof values);
    CHECK(mx_tokens_open(path, "bin", &t) == MX_OK && mx_tokens_count(t) == 1024, "%s", mx_message());
    mx_tokens_close(t);
    unlink(path);
}

static void test_shrinking(void)
{
    const char *path = temporary_path("shrinks.bin");
    unsigned char *data = bin_bytes(false);
    int32_t read[100];
    mx_tokens *t;
    spill(path, data, 2 * COUNT);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK, "%s", mx_message());
    CHECK(truncate(path, 1000) == 0, "truncate");
    CHECK(mx_tokens_read(t, 450, 100, read) == MX_ERR_IO && strstr(mx_message(), "ends after 1000"), "%s",
          mx_message());
    CHECK(mx_tokens_read(t, 400, 100, read) == MX_OK && read[99] == token_at(499), "%s", mx_message());
    mx_tokens_close(t);
    free(data);
    unlink(path);
}

static void test_choosing(void)
{
    const char *path = temporary_path("plain.data");
    mx_tokens *t;
    spill(path, "\1\0\2\0", 4);
    CHECK(mx_tokens_open(path, "auto", &t) == MX_OK && mx_tokens_count(t) == 4, "%s", mx_message());
    mx_tokens_close(t);
    CHECK(mx_tokens_open(path, "bin", &t) == MX_OK && mx_tokens_count(t) == 2, "%s", mx_message());
    mx_tokens_close(t);
    CHECK(mx_tokens_open(path, "csv", &t) == MX_ERR_VALUE && strstr(mx_message(), "'csv'"), "%s", mx_message());
    CHECK(mx_tokens_open(temporary_path("absent.bin"), "auto", &t) == MX_ERR_IO, "%s", mx_message());
    CHECK(mx_tokens_open(temporary_folder, "bin", &t) == MX_ERR_IO, "%s", mx_message());
    mx_tokens_close(NULL);
    unlink(path);
}

int main(void)
{
    temporary_make();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    test_bin();
    test_text();
    test_hdf5();
    test_hdf5_values();
    test_damage();
    test_wide();
    test_other_formats();
    test_lookalikes();
    test_shrinking();
    test_choosing();
    temporary_remove();
    return check_done();
}
