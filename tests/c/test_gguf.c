/* GGUF files: metadata and tensors, and how files that are not what they should be are told. What the quantised types
 * decode to is tested against another reader in tests/lua/test_weights.lua. */
#include "check.h"
#include "temporary.h"

#include "core/f16.h"
#include "weights/gguf.h"

#include <stdint.h>

/* A file that is put together piece by piece. */
static unsigned char image[1 << 16];
static size_t image_bytes;

static void put(const void *data, size_t bytes)
{
    memcpy(image + image_bytes, data, bytes);
    image_bytes += bytes;
}

static void put_u32(uint32_t x) { put(&x, sizeof x); }

static void put_u64(uint64_t x) { put(&x, sizeof x); }

static void put_text(const char *text)
{
    put_u64(strlen(text));
    put(text, strlen(text));
}

static void begin(uint32_t version, uint64_t tensors, uint64_t pairs)
{
    image_bytes = 0;
    put("GGUF", 4);
    put_u32(version);
    put_u64(tensors);
    put_u64(pairs);
}

static void put_tensor(const char *name, uint32_t n_dims, const uint64_t *sizes, uint32_t type, uint64_t offset)
{
    put_text(name);
    put_u32(n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(sizes[d]);
    put_u32(type);
    put_u64(offset);
}

static void put_data(size_t bytes)
{
    while (image_bytes % 32)
        image[image_bytes++] = 0;
    memset(image + image_bytes, 1, bytes);
    image_bytes += bytes;
}

static mx_status open_image(mx_weights **w)
{
    spill(temporary_path("t.gguf"), image, image_bytes);
    return mx_weights_open(temporary_path("t.gguf"), w);
}

static void refused(const char *expected)
{
    mx_weights *w;
    CHECK(open_image(&w) == MX_ERR_IO && !w, "expected: %s", expected);
    CHECK(strstr(mx_message(), expected) && strstr(mx_message(), "t.gguf") && !strchr(mx_message(), '\n'),
          "%s, and not: %s", expected, mx_message());
}

/* The types of metadata by their numbers. */
enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static void begin_pair(const char *key, uint32_t type)
{
    begin(3, 0, 1);
    put_text(key);
    put_u32(type);
}

static void test_metadata(void)
{
    mx_weights *w;
    begin(2, 0, 4);
    put_text("i");
    put_u32(I16);
    put((const int16_t[]){-5}, 2);
    put_text("f");
    put_u32(F32);
    put((const float[]){0.25F}, 4);
    put_text("s");
    put_u32(STRING);
    put_text("text");
    put_text("a");
    put_u32(ARRAY);
    put_u32(ARRAY);
    put_u64(2);
    for (uint64_t i = 0; i < 2; i++) {
        put_u32(U64);
        put_u64(i);
        for (uint64_t j = 0; j < i; j++)
            put_u64(77);
    }
    CHECK(open_image(&w) == MX_OK && w->count == 0, "%s", mx_message());
    CHECK(mx_value_get(&w->metadata, "i")->integer == -5, "i");
    CHECK(mx_value_get(&w->metadata, "f")->number == 0.25, "f");
    CHECK(strcmp(mx_value_get(&w->metadata, "s")->text, "text") == 0, "s");
    const mx_value *a = mx_value_get(&w->metadata, "a");
    CHECK(a->kind == MX_ARRAY && a->count == 2 && a->entries[1].value.entries[0].value.integer == 77, "a");
    mx_weights_close(w);
}

static void test_metadata_that_is_refused(void)
{
    begin(1, 0, 0);
    refused("is GGUF of version 1");
    begin(0x03000000, 0, 0);
    refused("the other byte order, version 3");
    begin(3, 0, 2);
    refused("claims 2 keys and 0 tensors: more than its 24 bytes can hold");
    begin(3, UINT64_MAX, 0);
    refused("more than its 24 bytes can hold");
    begin_pair("", U8);
    put("\1", 1);
    refused("a key of 0 bytes");
    begin_pair("k", 13);
    put("\1", 1);
    refused("unknown type 13");
    begin_pair("k", BOOL);
    put("\2", 1);
    refused("the value 2");
    begin_pair("k", U64);
    put_u64(UINT64_MAX);
    refused("out of its range");
    begin_pair("k", STRING);
    put_u64(UINT64_MAX);
    refused("truncated");
    begin_pair("k", STRING);
    put_u64(5);
    put("four", 4);
    refused("5 bytes expected");
    begin_pair("k", ARRAY);
    put_u32(U8);
    put_u64(GGUF_ARRAY_MOST + 1);
    refused("an array of 2097153 values");
    begin_pair("k", ARRAY);
    put_u32(U64);
    put_u64(1000000);
    refused("truncated");
    begin_pair("k", ARRAY);
    for (int i = 0; i < 9; i++) {
        put_u32(ARRAY);
        put_u64(1);
    }
    refused("nested too deeply");
    begin(3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put_text("key");
        put_u32(U8);
        put("\1", 1);
    }
    refused("has the key 'key' twice");
    begin_pair("general.alignment", U32);
    put_u32(12);
    refused("general.alignment = 12, expected a multiple of 8");
}

static const uint64_t sizes[] = {32, 2};

static void test_tensors(void)
{
    mx_weights *w;
    mx_tensor *t;
    begin(3, 2, 0);
    put_tensor("f", 2, sizes, 0, 0);
    put_tensor("q", 2, sizes, 8, 256); /* Q8_0: two blocks of 34 bytes */
    put_data(256 + 68);
    CHECK(open_image(&w) == MX_OK && w->count == 2, "%s", mx_message());
    const mx_stored_tensor *q = mx_weights_find(w, "q");
    CHECK(q && q->bytes == 68 && q->shape.size[0] == 2 && q->shape.size[1] == 32, "q");
    CHECK(mx_weights_read(w, "q", 1, 1, &t) == MX_OK && mx_count(t) == 32, "%s", mx_message());
    CHECK(mx_f32(t)[7] == mx_from_f16(0x0101), "%g", (double)mx_f32(t)[7]);
    mx_release(t);
    mx_weights_close(w);
}

static void refused_tensor(uint32_t n_dims, const uint64_t *of, uint32_t type, uint64_t offset, const char *expected)
{
    begin(3, 1, 0);
    put_tensor("t", n_dims, of, type, offset);
    put_data(256);
    refused(expected);
}

static void test_tensors_that_are_refused(void)
{
    static const uint64_t none[] = {0, 2}, odd[] = {31, 2}, huge[] = {UINT64_C(1) << 62, 8}, negative[] = {UINT64_MAX};
    refused_tensor(5, (const uint64_t[]){1, 1, 1, 1, 1}, 0, 0, "has 5 dimensions");
    refused_tensor(2, none, 0, 0, "a size of 0");
    refused_tensor(2, odd, 8, 0, "whole blocks of 32");
    refused_tensor(2, huge, 0, 0, "more than the file");
    refused_tensor(1, negative, 0, 0, "a size of 18446744073709551615");
    refused_tensor(2, sizes, 4, 0, "unknown type 4"); /* a number that is not used any more */
    refused_tensor(2, sizes, 99, 0, "unknown type 99");
    refused_tensor(2, sizes, 0, 8, "not at a multiple of 32");
    refused_tensor(2, sizes, 0, UINT64_MAX - 31, "outside of the file");
    refused_tensor(2, sizes, 0, 32, "truncated");
    begin(3, 2, 0);
    put_tensor("a", 2, sizes, 0, 0);
    put_tensor("b", 2, sizes, 0, 32);
    put_data(512);
    refused("'a' and 'b' share bytes");
    begin(3, 2, 0);
    put_tensor("a", 2, sizes, 0, 0);
    put_tensor("a", 2, sizes, 0, 256);
    put_data(512);
    refused("two tensors called 'a'");
    begin(3, 1, 0);
    put_u64(65);
    refused("a tensor's name of 65 bytes");
}

/* A file that is cut off anywhere is refused, except in the padding and in what no tensor needs. */
static void test_truncation(void)
{
    mx_weights *w;
    begin(3, 1, 1);
    put_text("general.architecture");
    put_u32(STRING);
    put_text("llama");
    put_tensor("t", 2, sizes, 0, 0);
    put_data(256);
    size_t whole = image_bytes;
    for (image_bytes = 0; image_bytes < whole; image_bytes++) {
        CHECK(open_image(&w) == MX_ERR_IO, "%zu of %zu bytes", image_bytes, whole);
        mx_weights_close(w);
    }
    CHECK(open_image(&w) == MX_OK, "%s", mx_message());
    mx_weights_close(w);
}

int main(void)
{
    temporary_make();
    test_metadata();
    test_metadata_that_is_refused();
    test_tensors();
    test_tensors_that_are_refused();
    test_truncation();
    temporary_remove();
    return check_done();
}
