/* HDF5 files: every dtype and odd shape comes back as it went; damage of any kind is told in a line, never a crash, a
 * wrong value or memory for sizes that are only claimed. */
#define _GNU_SOURCE
#include "check.h"
#include "temporary.h"

#include "core/pool.h"
#include "io/hdf5.h"

#include <hdf5.h>
#include <signal.h>
#include <sys/resource.h>

/* ---- making and comparing ---- */

static mx_tensor *make(mx_dtype dtype, int n_dims, const int64_t *size)
{
    mx_shape shape = {.n_dims = n_dims};
    for (int d = 0; d < n_dims; d++)
        shape.size[d] = size[d];
    mx_tensor *t;
    if (mx_tensor_new(dtype, &shape, &t) != MX_OK) {
        printf("%s\n", mx_message());
        exit(EXIT_FAILURE);
    }
    unsigned char *bytes = mx_data(t);
    uint32_t state = (uint32_t)dtype * 77u + (uint32_t)n_dims;
    for (int64_t i = 0; i < mx_bytes(t); i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(state >> 24); /* any bits, NaNs of all kinds among them */
    }
    return t;
}

static bool same(const mx_tensor *a, const mx_tensor *b)
{
    return a->dtype == b->dtype && mx_shape_equal(&a->shape, &b->shape) &&
           memcmp(mx_data(a), mx_data(b), (size_t)mx_bytes(a)) == 0;
}

static const struct {
    const char *name;
    mx_dtype dtype;
    int n_dims;
    int64_t size[MX_MAX_DIMS];
} kinds[] = {
    {"scalar", MX_F32, 0, {0}},
    {"one", MX_BF16, 1, {1}},
    {"vector", MX_F32, 1, {1001}},
    {"layers.0.wq", MX_BF16, 2, {33, 7}},
    {"ids", MX_I32, 2, {5, 4}},
    {"mask", MX_U8, 3, {2, 3, 5}},
    {"quantized/int8 weights", MX_I8, 2, {3, 11}},
    {"group/deep/er", MX_F32, 6, {2, 1, 3, 1, 2, 2}},
    {"empty", MX_F32, 1, {0}},
    {"no rows", MX_BF16, 3, {0, 4, 5}},
    {"no columns", MX_I32, 2, {6, 0}},
    {"caf\xc3\xa9", MX_U8, 0, {0}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static mx_value attributes(void)
{
    mx_value map = {.kind = MX_MAP};
    mx_entry *entry;
    CHECK(mx_value_append(&map, "config", &entry) == MX_OK &&
              mx_value_set_string(&entry->value, "a: \xc3\xa9\n", 6) == MX_OK,
          "text");
    CHECK(mx_value_append(&map, "empty", &entry) == MX_OK && mx_value_set_string(&entry->value, "", 0) == MX_OK,
          "text");
    CHECK(mx_value_append(&map, "step", &entry) == MX_OK, "integer");
    entry->value.kind = MX_INT;
    entry->value.integer = -(1ll << 60) - 1;
    CHECK(mx_value_append(&map, "loss", &entry) == MX_OK, "float");
    entry->value.kind = MX_FLOAT;
    entry->value.number = 0.1;
    return map;
}

static mx_status write_kinds(const char *path)
{
    mx_h5_writer *w;
    mx_value map = attributes();
    mx_status status = mx_h5_create(path, &w);
    if (status == MX_OK) {
        for (int k = 0; k < KINDS && status == MX_OK; k++) {
            mx_tensor *t = make(kinds[k].dtype, kinds[k].n_dims, kinds[k].size);
            status = mx_h5_put(w, kinds[k].name, t);
            mx_release(t);
        }
        if (status == MX_OK)
            status = mx_h5_put_attributes(w, &map);
        if (status == MX_OK)
            status = mx_h5_commit(w);
        else
            mx_h5_abort(w);
    }
    mx_value_free(&map);
    return status;
}

/* Rows of a tensor, some at a time, give the file the bytes of the whole; a file with rows missing does not appear. */
static void test_rows_one_after_the_other(void)
{
    static const struct {
        mx_dtype dtype;
        int n_dims;
        int64_t size[3];
    } tensors[] = {{MX_F32, 2, {1000, 37}},  {MX_BF16, 3, {9, 5, 3}},   {MX_F32, 1, {3}},    {MX_F32, 0, {0}},
                   {MX_U8, 2, {20, 300000}}, {MX_F32, 2, {2, 1100000}}, {MX_I32, 2, {0, 5}}, {MX_I8, 2, {5, 0}}};
    enum { TENSORS = sizeof tensors / sizeof *tensors };
    const char *whole_path = temporary_path("whole.h5"), *rows_path = temporary_path("rows.h5");
    mx_h5_writer *whole, *rows;
    CHECK(mx_h5_create(whole_path, &whole) == MX_OK, "%s", mx_message());
    CHECK(mx_h5_create(rows_path, &rows) == MX_OK, "%s", mx_message());
    for (int k = 0; k < TENSORS; k++) {
        mx_tensor *t = make(tensors[k].dtype, tensors[k].n_dims, tensors[k].size);
        char name[16];
        snprintf(name, sizeof name, "t%d", k);
        CHECK(mx_h5_put(whole, name, t) == MX_OK, "%s", mx_message());
        int64_t n = t->shape.n_dims ? t->shape.size[0] : 1, row_bytes = n ? mx_bytes(t) / n : 0;
        for (int64_t done = 0, step = 1; step == 1 || done < n; step += 3) {
            mx_shape shape = t->shape;
            int64_t count = step < n - done ? step : n - done;
            shape.size[0] = count;
            mx_tensor *part = make(t->dtype, shape.n_dims, shape.size);
            memcpy(mx_data(part), (char *)mx_data(t) + done * row_bytes, (size_t)mx_bytes(part));
            CHECK(mx_h5_put_rows(rows, name, &t->shape, part) == MX_OK, "%s", mx_message());
            mx_release(part);
            done += count;
        }
        mx_release(t);
    }
    CHECK(mx_h5_commit(whole) == MX_OK && mx_h5_commit(rows) == MX_OK, "%s", mx_message());
    size_t whole_bytes, rows_bytes;
    char *a = slurp(whole_path, &whole_bytes), *b = slurp(rows_path, &rows_bytes);
    CHECK(whole_bytes == rows_bytes && memcmp(a, b, whole_bytes) == 0, "%zu and %zu bytes, or others", whole_bytes,
          rows_bytes);
    free(a);
    free(b);
    unlink(whole_path);
    unlink(rows_path);
}

static void test_missing_rows(void)
{
    const char *path = temporary_path("rows.h5");
    mx_h5_writer *w;
    mx_shape shape = {.n_dims = 2, .size = {5, 3}}, other = {.n_dims = 2, .size = {5, 4}};
    mx_tensor *two = make(MX_F32, 2, (int64_t[]){2, 3}), *four = make(MX_F32, 2, (int64_t[]){4, 3});
    CHECK(mx_h5_create(path, &w) == MX_OK && mx_h5_put_rows(w, "a", &shape, two) == MX_OK, "%s", mx_message());
    CHECK(mx_h5_put_rows(w, "a", &other, two) == MX_ERR_SHAPE, "rows of other lengths");
    CHECK(mx_h5_put_rows(w, "b", &shape, two) == MX_ERR_STATE && strstr(mx_message(), "3 of the 5 rows"), "%s",
          mx_message());
    CHECK(mx_h5_commit(w) == MX_ERR_STATE && strstr(mx_message(), "3 of the 5 rows of the tensor 'a'"), "%s",
          mx_message());
    CHECK(temporary_files() == 0, "a file that is not whole");
    CHECK(mx_h5_create(path, &w) == MX_OK && mx_h5_put_rows(w, "a", &shape, four) == MX_OK, "%s", mx_message());
    CHECK(mx_h5_put_rows(w, "a", &shape, two) == MX_ERR_SHAPE, "more rows than there are");
    mx_h5_abort(w);
    CHECK(temporary_files() == 0, "an aborted file");
    mx_release(two);
    mx_release(four);
}

static bool attributes_intact(const mx_value *map)
{
    const mx_value *config = mx_value_get(map, "config"), *empty = mx_value_get(map, "empty");
    const mx_value *step = mx_value_get(map, "step"), *loss = mx_value_get(map, "loss");
    return map->count == 4 && config && config->kind == MX_STRING && strcmp(config->text, "a: \xc3\xa9\n") == 0 &&
           empty && empty->kind == MX_STRING && empty->length == 0 && step && step->kind == MX_INT &&
           step->integer == -(1ll << 60) - 1 && loss && loss->kind == MX_FLOAT && loss->number == 0.1;
}

/* MX_OK when all is there; the first failure that is told; -1 when something is wrong and nobody says so. */
static int read_kinds(const char *path)
{
    mx_h5 *file;
    mx_status status = mx_h5_open(path, &file);
    if (status != MX_OK)
        return (int)status;
    int result = mx_h5_count(file) == KINDS && attributes_intact(mx_h5_attributes(file)) ? MX_OK : -1;
    for (int k = 0; k < KINDS && result == MX_OK; k++) {
        mx_tensor *read, *expected = make(kinds[k].dtype, kinds[k].n_dims, kinds[k].size);
        result = (int)mx_h5_read(file, kinds[k].name, 0, -1, &read);
        if (result == MX_OK) {
            result = same(read, expected) ? MX_OK : -1;
            mx_release(read);
        }
        mx_release(expected);
    }
    mx_h5_close(file);
    return result;
}

/* ---- round trips ---- */

static void test_round_trip(void)
{
    const char *path = temporary_path("kinds.h5");
    CHECK(write_kinds(path) == MX_OK, "%s", mx_message());
    CHECK(read_kinds(path) == MX_OK, "%s", mx_message());
    CHECK(temporary_files() == 1, "a draft left behind");
    mx_h5 *file;
    CHECK(mx_h5_open(path, &file) == MX_OK, "%s", mx_message());
    for (int k = 0; k < KINDS; k++) {
        const mx_h5_entry *entry = mx_h5_find(file, kinds[k].name);
        CHECK(entry && entry->dtype == (int)kinds[k].dtype && entry->shape.n_dims == kinds[k].n_dims, "%s",
              kinds[k].name);
        CHECK(entry && strcmp(entry->type, mx_dtype_name(kinds[k].dtype)) == 0, "%s", entry->type);
    }
    for (int64_t i = 1; i < mx_h5_count(file); i++)
        CHECK(strcmp(mx_h5_entry_at(file, i - 1)->name, mx_h5_entry_at(file, i)->name) < 0, "sorted");
    mx_h5_close(file);
}

/* The values are real HDF5 numbers: HDF5's own conversion reads bf16 as f32. */
static void test_bf16_is_a_number(void)
{
    static const float values[] = {1.0f, -2.5f, 3.140625f, 0x1p-126f, -0x1.fep127f, INFINITY};
    enum { COUNT = sizeof values / sizeof *values };
    mx_tensor *t = make(MX_BF16, 1, (int64_t[]){COUNT});
    float read[COUNT];
    mx_h5_writer *w;
    const char *path = temporary_path("bf16.h5");
    for (int i = 0; i < COUNT; i++)
        ((mx_bf16 *)mx_data(t))[i] = mx_to_bf16(values[i]);
    CHECK(mx_h5_create(path, &w) == MX_OK && mx_h5_put(w, "x", t) == MX_OK && mx_h5_commit(w) == MX_OK, "%s",
          mx_message());
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), set = H5Dopen2(file, "x", H5P_DEFAULT);
    CHECK(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, read) >= 0, "read as float");
    for (int i = 0; i < COUNT; i++)
        CHECK(read[i] == values[i], "%g, not %g", (double)read[i], (double)values[i]);
    H5Dclose(set);
    H5Fclose(file);
    mx_release(t);
    unlink(path);
}

/* Several checksum blocks; parts of rows that begin and end inside, on and across their borders. */
static void test_rows(void)
{
    enum { ROWS = 1500, COLUMNS = 2049 }; /* 8196 bytes a row: 511 rows a block, three blocks */
    mx_tensor *t = make(MX_F32, 2, (int64_t[]){ROWS, COLUMNS}), *u = make(MX_U8, 2, (int64_t[]){ROWS, COLUMNS}), *part;
    const char *path = temporary_path("rows.h5");
    mx_h5_writer *w;
    mx_h5 *file;
    CHECK(mx_h5_create(path, &w) == MX_OK && mx_h5_put(w, "t", t) == MX_OK && mx_h5_put(w, "u", u) == MX_OK &&
              mx_h5_commit(w) == MX_OK,
          "%s", mx_message());
    CHECK(mx_h5_open(path, &file) == MX_OK, "%s", mx_message());
    static const int64_t ranges[][2] = {{0, 1500},   {0, 1},    {510, 1}, {510, 2},  {511, 511}, {400, 800},
                                        {1022, 478}, {1499, 1}, {0, 0},   {1500, 0}, {700, -1},  {1500, -1}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        int64_t first = ranges[i][0], rows = ranges[i][1] < 0 ? ROWS - first : ranges[i][1];
        CHECK(mx_h5_read(file, "t", first, ranges[i][1], &part) == MX_OK, "%s", mx_message());
        CHECK(part->shape.size[0] == rows && part->shape.size[1] == COLUMNS, "%s", mx_shape_text(&part->shape));
        CHECK(memcmp(mx_data(part), mx_f32(t) + first * COLUMNS, (size_t)mx_bytes(part)) == 0, "rows from %lld",
              (long long)first);
        mx_release(part);
        if (i % 2) { /* the next rows of t follow rows of another tensor */
            CHECK(mx_h5_read(file, "u", 3, 1, &part) == MX_OK, "%s", mx_message());
            CHECK(memcmp(mx_data(part), (char *)mx_data(u) + 3 * COLUMNS, COLUMNS) == 0, "a row of u");
            mx_release(part);
        }
    }
    CHECK(mx_h5_read(file, "t", 0, 1501, &part) == MX_ERR_VALUE, "too many rows");
    CHECK(mx_h5_read(file, "t", 1501, -1, &part) == MX_ERR_VALUE, "past the end");
    CHECK(mx_h5_read(file, "t", 1, INT64_MAX, &part) == MX_ERR_VALUE && strstr(mx_message(), "1500"), "%s",
          mx_message());
    CHECK(mx_h5_read(file, "t", -1, 2, &part) == MX_ERR_VALUE, "before the start");
    CHECK(mx_h5_read(file, "absent", 0, -1, &part) == MX_ERR_IO && strstr(mx_message(), "no tensor 'absent'"), "%s",
          mx_message());
    mx_tensor *wrong = make(MX_BF16, 2, (int64_t[]){ROWS, COLUMNS});
    CHECK(mx_h5_read_into(file, "t", 0, -1, wrong) == MX_ERR_DTYPE, "%s", mx_message());
    mx_release(wrong);
    wrong = make(MX_F32, 2, (int64_t[]){COLUMNS, ROWS});
    CHECK(mx_h5_read_into(file, "t", 0, -1, wrong) == MX_ERR_SHAPE, "%s", mx_message());
    CHECK(strstr(mx_message(), "f32 (1500, 2049)") && strstr(mx_message(), "f32 (2049, 1500)"), "%s", mx_message());
    mx_release(wrong);
    mx_h5_close(file);
    mx_release(t);
    mx_release(u);
    unlink(path);
}

static void test_same_bytes(void)
{
    size_t first_bytes, second_bytes;
    const char *path = temporary_path("again.h5");
    char *first = slurp(temporary_path("kinds.h5"), &first_bytes);
    CHECK(write_kinds(path) == MX_OK, "%s", mx_message());
    char *second = slurp(path, &second_bytes);
    CHECK(first_bytes == second_bytes, "%zu and %zu bytes", first_bytes, second_bytes);
    free(first);
    free(second);
    unlink(path);
}

static void test_writing_errors(void)
{
    static const char *const bad_names[] = {"", "/", "/a", "a/", "a//b", ".", "a/./b", "a/."};
    const char *path = temporary_path("errors.h5");
    mx_h5_writer *w;
    mx_tensor *t = make(MX_F32, 1, (int64_t[]){3});
    spill(path, "old", 3);
    CHECK(mx_h5_create(path, &w) == MX_OK, "%s", mx_message());
    for (size_t i = 0; i < sizeof bad_names / sizeof *bad_names; i++)
        CHECK(mx_h5_put(w, bad_names[i], t) == MX_ERR_VALUE, "'%s' accepted", bad_names[i]);
    CHECK(mx_h5_put(w, "a", t) == MX_OK && mx_h5_put(w, "..", t) == MX_OK, "%s", mx_message());
    CHECK(mx_h5_put(w, "a", t) == MX_ERR_IO, "a name twice");
    CHECK(mx_h5_put(w, "a/b", t) == MX_ERR_IO, "a tensor as a group");
    CHECK(!strchr(mx_message(), '\n') && strstr(mx_message(), "'a/b'"), "%s", mx_message());
    mx_tensor_drop(t);
    CHECK(mx_h5_put(w, "gone", t) == MX_ERR_STATE, "a tensor without values");
    mx_value map = {.kind = MX_MAP};
    mx_entry *entry;
    CHECK(mx_value_append(&map, "list", &entry) == MX_OK, "append");
    entry->value.kind = MX_ARRAY;
    CHECK(mx_h5_put_attributes(w, &map) == MX_ERR_VALUE && strstr(mx_message(), "'list'"), "%s", mx_message());
    mx_value_free(&map);
    mx_h5_abort(w);
    size_t bytes;
    char *text = slurp(path, &bytes);
    CHECK(bytes == 3 && memcmp(text, "old", 3) == 0, "the old file is touched");
    free(text);
    mx_release(t);
    unlink(path);
    CHECK(mx_h5_create(temporary_path("no/folder.h5"), &w) == MX_ERR_IO && strstr(mx_message(), "No such file"), "%s",
          mx_message());
}

static void test_full_disk(void)
{
    struct rlimit old, small;
    const char *path = temporary_path("full.h5");
    mx_tensor *t = make(MX_F32, 1, (int64_t[]){100000});
    mx_h5_writer *w;
    spill(path, "old", 3);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    for (rlim_t bytes = 0; bytes <= 400000; bytes += 100000) { /* from failing at the start to failing at the end */
        small = (struct rlimit){bytes, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        mx_status status = mx_h5_create(path, &w);
        if (status == MX_OK) {
            status = mx_h5_put(w, "t", t);
            if (status == MX_OK)
                status = mx_h5_commit(w);
            else
                mx_h5_abort(w);
        }
        setrlimit(RLIMIT_FSIZE, &old);
        CHECK(status == MX_ERR_IO && strstr(mx_message(), "File too large"), "%s", mx_message());
        CHECK(temporary_files() == 2, "%d files: a draft left behind", temporary_files());
    }
    size_t content;
    char *text = slurp(path, &content);
    CHECK(content == 3, "the old file is touched");
    free(text);
    mx_release(t);
    unlink(path);
}

/* ---- damage ---- */

/* The HDF5 part ends where its superblock says (bytes 28 to 35). Cut just there, a file is whole but for its seal. */
static void test_truncation(void)
{
    size_t bytes;
    char *whole = slurp(temporary_path("kinds.h5"), &bytes);
    const char *path = temporary_path("damaged.h5");
    int64_t end;
    memcpy(&end, whole + 28, sizeof end);
    CHECK(end > 0 && end < (int64_t)bytes, "%lld of %zu", (long long)end, bytes);
    for (size_t length = 0; length < bytes; length += 1 + length / 64) {
        spill(path, whole, length);
        CHECK(length == (size_t)end || read_kinds(path) == MX_ERR_IO, "cut to %zu of %zu bytes: accepted", length,
              bytes);
    }
    for (size_t length = (size_t)end + 1; length < bytes; length++) {
        spill(path, whole, length);
        CHECK(read_kinds(path) == MX_ERR_IO, "cut to %zu of %zu bytes: accepted", length, bytes);
    }
    spill(path, whole, (size_t)end);
    CHECK(read_kinds(path) == MX_OK, "without a seal: %s", mx_message());
    unlink(path);
    free(whole);
}

/* No flipped bit anywhere goes unnoticed, in structure, values or seal. */
static void test_bit_flips(void)
{
    size_t bytes;
    char *data = slurp(temporary_path("kinds.h5"), &bytes);
    const char *path = temporary_path("damaged.h5");
    for (size_t at = 0; at < bytes; at += 1 + (at > 64 && at < bytes - 256) * 4) {
        data[at] ^= (char)(1 << at % 8);
        spill(path, data, bytes);
        data[at] ^= (char)(1 << at % 8);
        CHECK(read_kinds(path) == MX_ERR_IO, "a bit flipped at %zu of %zu", at, bytes);
        CHECK(!strchr(mx_message(), '\n') && strstr(mx_message(), path), "%s", mx_message());
    }
    unlink(path);
    free(data);
}

/* Every single value byte is covered by a checksum. */
static void test_values_are_guarded(void)
{
    const char *path = temporary_path("guarded.h5");
    mx_tensor *t = make(MX_U8, 1, (int64_t[]){300}), *read;
    mx_h5_writer *w;
    mx_h5 *file;
    size_t bytes;
    CHECK(mx_h5_create(path, &w) == MX_OK && mx_h5_put(w, "t", t) == MX_OK && mx_h5_commit(w) == MX_OK, "%s",
          mx_message());
    char *data = slurp(path, &bytes), *values = memmem(data, bytes, mx_data(t), 300);
    CHECK(values != NULL, "the values are stored as they are");
    for (int i = 0; values && i < 300; i++) {
        values[i] ^= 4;
        spill(path, data, bytes);
        values[i] ^= 4;
        CHECK(mx_h5_open(path, &file) == MX_OK, "%s", mx_message());
        CHECK(mx_h5_read(file, "t", 0, 1, &read) == MX_ERR_IO && strstr(mx_message(), "checksum"), "value %d", i);
        mx_h5_close(file);
    }
    free(data);
    mx_release(t);
    unlink(path);
}

static void test_other_files(void)
{
    mx_h5 *file;
    const char *path = temporary_path("other.h5");
    static char zeros[4096];
    CHECK(mx_h5_open(temporary_path("absent.h5"), &file) == MX_ERR_IO && strstr(mx_message(), "No such file"), "%s",
          mx_message());
    CHECK(mx_h5_open(temporary_folder, &file) == MX_ERR_IO && strstr(mx_message(), "folder"), "%s", mx_message());
    static const struct {
        const char *data;
        size_t bytes;
    } contents[] = {{"", 0},
                    {"x", 1},
                    {"PK\3\4 zip", 8},
                    {zeros, 4096},
                    {"\x89HDF\r\n\x1a\n", 8},
                    {"\x89HDF\r\n\x1a\n\2\x08\x08", 11}};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        spill(path, contents[i].data, contents[i].bytes);
        CHECK(mx_h5_open(path, &file) == MX_ERR_IO && strstr(mx_message(), path), "content %zu: %s", i, mx_message());
    }
    unlink(path);
}

int main(void)
{
    temporary_make();
    test_rows_one_after_the_other();
    test_missing_rows();
    test_round_trip();
    test_bf16_is_a_number();
    test_rows();
    test_same_bytes();
    test_writing_errors();
    test_full_disk();
    test_truncation();
    test_bit_flips();
    test_values_are_guarded();
    test_other_files();
    temporary_remove();
    return check_done();
}
