/* safetensors files: what is read of every type, and how files that are not what they should be are told. */
#include "check.h"
#include "temporary.h"

#include "core/element.h"
#include "weights/safetensors.h"

#include <stdint.h>

static const char *written(const char *header, const void *data, size_t data_bytes, uint64_t claimed)
{
    const char *path = temporary_path("t.safetensors");
    size_t length = strlen(header);
    char *file = malloc(9 + length + data_bytes);
    uint64_t bytes = claimed ? claimed : length;
    memcpy(file, &bytes, 8);
    memcpy(file + 8, header, length + 1);
    if (data_bytes)
        memcpy(file + 8 + length, data, data_bytes);
    spill(path, file, 8 + length + data_bytes);
    free(file);
    return path;
}

/* Opens a file with this header and 16 bytes of data, which must be refused with these words. */
static void refused(const char *header, const char *expected)
{
    static const char zeros[16];
    mx_weights *w;
    const char *path = written(header, zeros, sizeof zeros, 0);
    CHECK(mx_weights_open(path, &w) == MX_ERR_IO && !w, "%s", header);
    CHECK(strstr(mx_message(), expected) && strstr(mx_message(), path) && !strchr(mx_message(), '\n'), "%s: %s", header,
          mx_message());
}

static void test_headers(void)
{
    refused("[]", "does not begin with '{'");
    refused("", "does not begin with '{'");
    refused("{", "t.safetensors:1:1");
    refused("{\"a\":1}", "entry 'a': expected a map with dtype");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
            "duplicate");
    refused("{\"a\":{\"dtype\":\"F33\",\"shape\":[4],\"data_offsets\":[0,16]}}", "unknown dtype 'F33'");
    refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "a shape of up to 6 sizes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}", "a shape of up to 6");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4.0],\"data_offsets\":[0,16]}}", "whole numbers");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", "a size of -4");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", "two data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,17]}}", "lies at bytes 0 to 17");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-1,16]}}", "lies at bytes -1 to 16");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", "lies at bytes 16 to 0");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,16]}}", "takes 12 bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,16]}}",
            "more than the file");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,0],\"data_offsets\":[0,16]}}", "takes 0 bytes");
    refused("{\"__metadata__\":{\"format\":1}}", "expected a map of strings");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[12],\"data_offsets\":[0,12]}}", "4 bytes after the last tensor");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[12],\"data_offsets\":[4,16]}}", "4 bytes before the tensor 'a'");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]},"
            "\"b\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[9,16]}}",
            "'a' and 'b' share bytes");
    refused("{}", "16 bytes after the last tensor");
}

static void test_lengths(void)
{
    mx_weights *w;
    static const uint64_t claimed[] = {3, 100000001, UINT64_MAX, INT64_MAX};
    for (size_t i = 0; i < sizeof claimed / sizeof *claimed; i++) {
        const char *path = written("{}", NULL, 0, claimed[i]);
        CHECK(mx_weights_open(path, &w) == MX_ERR_IO && strstr(mx_message(), "claims a header"), "%s", mx_message());
    }
    spill(temporary_path("t.safetensors"), "short", 5);
    CHECK(mx_weights_open(temporary_path("t.safetensors"), &w) == MX_ERR_IO && strstr(mx_message(), "has 5 bytes"),
          "%s", mx_message());
    CHECK(mx_weights_open(temporary_path("none"), &w) == MX_ERR_IO && !w, "%s", mx_message());
    CHECK(mx_weights_open(temporary_folder, &w) == MX_ERR_IO && strstr(mx_message(), "a folder"), "%s", mx_message());
}

/* Reads the first tensor of a file whose only one has that type and these values; compares them with `expected`. */
static void reads(const char *type, const void *values, size_t value_bytes, const double *expected, int count)
{
    char header[200];
    mx_weights *w;
    mx_tensor *t;
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", type, count,
             count * (int)value_bytes);
    CHECK(mx_weights_open(written(header, values, (size_t)count * value_bytes, 0), &w) == MX_OK, "%s", mx_message());
    CHECK(mx_weights_read(w, "a", 0, -1, &t) == MX_OK, "%s: %s", type, mx_message());
    for (int i = 0; i < count; i++) {
        double x = mx_get_number(mx_data(t), i, t->dtype);
        CHECK(x == expected[i], "%s: %g, expected %g", type, x, expected[i]);
    }
    mx_release(t);
    mx_weights_close(w);
}

static void test_types(void)
{
    static const double some[] = {1, -2, 0.5};
    static const double whole[] = {1, -2, 3};
    reads("F32", (const float[]){1, -2, 0.5F}, 4, some, 3);
    reads("F64", (const double[]){1, -2, 0.5}, 8, some, 3);
    reads("F16", (const uint16_t[]){0x3c00, 0xc000, 0x3800}, 2, some, 3);
    reads("BF16", (const uint16_t[]){0x3f80, 0xc000, 0x3f00}, 2, some, 3);
    reads("I32", (const int32_t[]){1, -2, 3}, 4, whole, 3);
    reads("I64", (const int64_t[]){1, -2, 3}, 8, whole, 3);
    reads("I8", (const int8_t[]){1, -2, 3}, 1, whole, 3);
    reads("U8", (const uint8_t[]){1, 254, 3}, 1, (const double[]){1, 254, 3}, 3);
    reads("F8_E4M3", (const uint8_t[]){0x38, 0xc0, 0x30}, 1, some, 3);
    reads("F8_E5M2", (const uint8_t[]){0x3c, 0xc0, 0x38}, 1, some, 3);
    reads("F8_E4M3FNUZ", (const uint8_t[]){0x40, 0xc8, 0x38}, 1, some, 3);
    reads("F8_E5M2FNUZ", (const uint8_t[]){0x40, 0xc4, 0x3c}, 1, some, 3);
    reads("BOOL", (const uint8_t[]){1, 0, 1}, 1, (const double[]){1, 0, 1}, 3);
    /* The least and the largest of the subnormals, the largest finite one. */
    reads("F16", (const uint16_t[]){0x0001, 0x83ff, 0x7bff}, 2,
          (const double[]){1.0 / (1 << 24), -1023.0 / (1 << 24), 65504}, 3);
}

static void test_unknown_names(void)
{
    static const int64_t large[] = {1, INT64_C(1) << 31};
    mx_weights *w;
    mx_tensor *t;
    const char *header = "{\"a\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]}}";
    CHECK(mx_weights_open(written(header, large, 16, 0), &w) == MX_OK, "%s", mx_message());
    CHECK(mx_weights_read(w, "b", 0, -1, &t) == MX_ERR_IO && strstr(mx_message(), "has no tensor 'b'"), "%s",
          mx_message());
    mx_weights_close(w);
    header = "{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[16],\"data_offsets\":[0,16]}}";
    CHECK(mx_weights_open(written(header, large, 16, 0), &w) == MX_OK, "%s", mx_message());
    CHECK(mx_weights_read(w, "a", 0, -1, &t) == MX_ERR_DTYPE && strstr(mx_message(), "F8_E8M0"), "%s", mx_message());
    mx_weights_close(w);
}

static void test_rows(void)
{
    static const float values[] = {0, 1, 2, 3, 4, 5};
    mx_weights *w;
    mx_tensor *t;
    const char *header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[3,2],\"data_offsets\":[0,24]},"
                         "\"e\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[24,24]}} ";
    CHECK(mx_weights_open(written(header, values, 24, 0), &w) == MX_OK, "%s", mx_message());
    CHECK(mx_weights_read(w, "a", 1, 2, &t) == MX_OK && t->shape.size[0] == 2 && mx_f32(t)[0] == 2, "%s", mx_message());
    mx_release(t);
    CHECK(mx_weights_read(w, "a", 3, 0, &t) == MX_OK && mx_count(t) == 0, "%s", mx_message());
    mx_release(t);
    CHECK(mx_weights_read(w, "e", 0, -1, &t) == MX_OK && mx_count(t) == 0, "%s", mx_message());
    mx_release(t);
    static const int64_t wrong[][2] = {{-1, 1}, {0, 4}, {2, 2}, {4, -1}, {0, -2}, {1, INT64_MAX}, {INT64_MAX, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(mx_weights_read(w, "a", wrong[i][0], wrong[i][1], &t) == MX_ERR_VALUE && !t, "rows %lld, %lld",
              (long long)wrong[i][0], (long long)wrong[i][1]);
    mx_weights_close(w);
}

/* What is written can be read, begins at a multiple of 8, and is not there before the commit. */
static void test_writing(void)
{
    const char *path = temporary_path("w.safetensors");
    mx_safetensors_writer *writer;
    mx_weights *w;
    mx_tensor *t;
    size_t bytes;
    mx_shape shape = {.n_dims = 2, .size = {2, 3}};
    const mx_planned_tensor plan[] = {{"small", MX_U8, shape}, {"wide", MX_F32, shape}};
    CHECK(mx_safetensors_create(path, plan, 2, &writer) == MX_OK, "%s", mx_message());
    for (int i = 0; i < 2; i++) {
        CHECK(mx_tensor_new(plan[i].dtype, &shape, &t) == MX_OK, "%s", mx_message());
        memset(mx_data(t), 64, (size_t)mx_bytes(t));
        CHECK(mx_safetensors_put(writer, plan[i].name, t) == MX_OK, "%s", mx_message());
        mx_release(t);
    }
    CHECK(access(path, F_OK) != 0, "there before the commit");
    CHECK(mx_safetensors_commit(writer) == MX_OK && temporary_files() == 1, "%s", mx_message());
    char *file = slurp(path, &bytes);
    uint64_t header;
    memcpy(&header, file, 8);
    CHECK(header % 8 == 0 && bytes == 8 + header + 24 + 6, "header %llu of %zu bytes", (unsigned long long)header,
          bytes);
    free(file);
    CHECK(mx_weights_open(path, &w) == MX_OK && w->count == 2, "%s", mx_message());
    CHECK(strcmp(w->tensors[0].name, "wide") == 0, "the widest comes first");
    CHECK(mx_weights_read(w, "wide", 0, -1, &t) == MX_OK, "%s", mx_message());
    CHECK(memcmp(mx_data(t), "@@@@@@@@@@@@@@@@@@@@@@@@", 24) == 0, "other values than were put");
    mx_release(t);
    mx_weights_close(w);
    unlink(path);
    CHECK(mx_safetensors_create(path, plan, 2, &writer) == MX_OK, "%s", mx_message());
    mx_safetensors_abort(writer);
    CHECK(temporary_files() == 0, "an aborted file leaves nothing");
    CHECK(mx_safetensors_create("/nowhere/w", plan, 2, &writer) == MX_ERR_IO && !writer, "%s", mx_message());
    const mx_planned_tensor own = {"__metadata__", MX_U8, shape};
    CHECK(mx_safetensors_create(path, &own, 1, &writer) == MX_ERR_VALUE && temporary_files() == 0, "%s", mx_message());
}

/* Puts `rows` rows that are full of one byte. */
static mx_status put_rows(mx_safetensors_writer *writer, const mx_planned_tensor *planned, int64_t rows, char byte)
{
    mx_shape shape = planned->shape;
    mx_tensor *t;
    shape.size[0] = rows;
    if (mx_tensor_new(planned->dtype, &shape, &t) != MX_OK)
        return MX_ERR_MEMORY;
    memset(mx_data(t), byte, (size_t)mx_bytes(t));
    mx_status status = mx_safetensors_put(writer, planned->name, t);
    mx_release(t);
    return status;
}

/* Rows of a planned tensor, some at a time, and in between those of another. */
static void test_writing_rows(void)
{
    const char *path = temporary_path("rows.safetensors");
    mx_safetensors_writer *writer;
    mx_weights *w;
    mx_tensor *t;
    const mx_planned_tensor plan[] = {{"a", MX_F32, {.n_dims = 2, .size = {5, 2}}},
                                      {"b", MX_U8, {.n_dims = 1, .size = {3}}}};
    CHECK(mx_safetensors_create(path, plan, 2, &writer) == MX_OK, "%s", mx_message());
    CHECK(put_rows(writer, &plan[0], 2, 'a') == MX_OK && put_rows(writer, &plan[1], 1, 'b') == MX_OK, "%s",
          mx_message());
    CHECK(put_rows(writer, &plan[0], 4, 'x') == MX_ERR_SHAPE && strstr(mx_message(), "of which 2 rows are there"), "%s",
          mx_message());
    CHECK(put_rows(writer, &plan[0], 3, 'c') == MX_OK && put_rows(writer, &plan[1], 2, 'd') == MX_OK, "%s",
          mx_message());
    CHECK(put_rows(writer, &plan[0], 1, 'x') == MX_ERR_VALUE, "a row too many");
    CHECK(mx_safetensors_commit(writer) == MX_OK, "%s", mx_message());
    CHECK(mx_weights_open(path, &w) == MX_OK, "%s", mx_message());
    CHECK(mx_weights_read(w, "a", 0, -1, &t) == MX_OK &&
              memcmp(mx_data(t), "aaaaaaaaaaaaaaaacccccccccccccccccccccccc", 40) == 0,
          "other values than were put");
    mx_release(t);
    CHECK(mx_weights_read(w, "b", 0, -1, &t) == MX_OK && memcmp(mx_data(t), "bdd", 3) == 0, "%s", mx_message());
    mx_release(t);
    mx_weights_close(w);
    unlink(path);
    CHECK(mx_safetensors_create(path, plan, 1, &writer) == MX_OK && put_rows(writer, &plan[0], 4, 'a') == MX_OK, "%s",
          mx_message());
    CHECK(mx_safetensors_commit(writer) == MX_ERR_STATE && strstr(mx_message(), "4 of its 5 rows"), "%s", mx_message());
    CHECK(temporary_files() == 0, "a file that is not whole");
}

int main(void)
{
    temporary_make();
    test_headers();
    test_lengths();
    test_types();
    test_unknown_names();
    test_rows();
    unlink(temporary_path("t.safetensors"));
    test_writing();
    test_writing_rows();
    temporary_remove();
    return check_done();
}
