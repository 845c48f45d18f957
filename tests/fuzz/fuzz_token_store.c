/* Fuzz target (libFuzzer) for what training reads: texts packed in any way, parts, .bin files, and token stores with
 * contents that do not fit together. The first byte chooses the reader. `make fuzz` builds and runs it.
 *
 * HDF5 files are made here, with contents from the input: the library itself does not survive damaged headers, and the
 * seal (fuzz_io.c) keeps those away from it. */
#define _GNU_SOURCE
#include "data/sampler.h"
#include "data/text.h"
#include "data/token_part.h"
#include "io/checksum.h"
#include "io/hdf5.h"
#include "memory_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { LIMIT = 1 << 16, LENGTH = 5 };

static void read_text(const char *path, int64_t start, int64_t end, const char *separator)
{
    mx_text *text;
    const char *piece = "";
    size_t bytes, all = 0;
    if (mx_text_open(path, start, end, separator, strlen(separator), LIMIT, &text) != MX_OK)
        return;
    while (piece && all < 16u * LIMIT && mx_text_next(text, &piece, &bytes) == MX_OK) {
        if (bytes > LIMIT || mx_text_consumed(text) < 0)
            abort();
        all += bytes + 1;
    }
    mx_text_close(text);
}

static void sample(const char *path, const char *format, bool packing)
{
    mx_tokens *tokens;
    mx_sampler *sampler;
    int32_t values[4][LENGTH];
    uint8_t mask[LENGTH];
    char text[300];
    int64_t weight = 1;
    mx_samples to = {values[0], values[1], values[2], values[3], mask};
    mx_sampler_options o = {LENGTH, packing, true, 1, 70000};
    if (mx_tokens_open(path, format, &tokens) != MX_OK || mx_sampler_new(&tokens, &weight, 1, &o, &sampler) != MX_OK)
        return;
    int64_t samples = mx_sampler_epoch(sampler, 0);
    for (int64_t q = 0; q < 2 * samples && q < 200; q++) {
        (void)mx_sampler_fill(sampler, q, 1, &to);
        (void)mx_sampler_describe(sampler, q, text, sizeof text);
    }
    mx_sampler_free(sampler);
}

static void read_part(const char *path)
{
    mx_part_about about;
    mx_store_about store = {.tokenizer = "", .fingerprint = ""};
    if (mx_part_read_about(path, &about) != MX_OK)
        return;
    store.vocab_size = about.token_bytes == 2 ? 300 : 70000;
    (void)mx_parts_merge(&path, 1, "/dev/shm/mxlua-fuzz-merged.h5", &store);
    unlink("/dev/shm/mxlua-fuzz-merged.h5");
}

typedef struct input {
    const uint8_t *at;
    size_t left;
} input;

static int64_t take(input *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes && in->left > 0; i++, in->at++, in->left--)
        value |= (uint64_t)*in->at << 8 * i;
    return (int64_t)value;
}

static mx_status put_values(mx_h5_writer *w, input *in, const char *name, mx_h5_int type, uint32_t *crc)
{
    static int64_t values[256];
    mx_h5_stream *stream;
    int64_t count = 1 + take(in, 1), bytes = type == MX_H5_U16 ? 2 : type == MX_H5_U32 ? 4 : 8;
    for (int64_t i = 0; i < count; i++) { /* small steps, as of documents that fit, unless the input says otherwise */
        int64_t value = take(in, 2);
        value = value < 0xff00 ? value : take(in, 8);
        memcpy((char *)values + i * bytes, &value, (size_t)bytes);
    }
    if (crc)
        *crc = mx_crc32c(0, values, (size_t)(count * bytes));
    MX_TRY(mx_h5_stream_new(w, name, type, count, crc != NULL, &stream));
    mx_status status = mx_h5_stream_put(stream, values, count);
    mx_status closed = mx_h5_stream_close(stream);
    return status == MX_OK ? closed : status;
}

static mx_status put_attributes(mx_h5_writer *w, input *in)
{
    static const char *const names[] = {"format_version", "vocab_size", "bos"};
    mx_value map = {.kind = MX_MAP};
    mx_entry *entry;
    for (int i = 0; i < 3; i++) {
        if (mx_value_append(&map, names[i], &entry) != MX_OK)
            abort();
        entry->value.kind = MX_INT;
        entry->value.integer = i == 0 ? 1 : take(in, 3);
    }
    if (mx_value_append(&map, "format", &entry) != MX_OK ||
        mx_value_set_string(&entry->value, "mxlua tokens", 12) != MX_OK)
        abort();
    mx_status status = mx_h5_put_attributes(w, &map);
    mx_value_free(&map);
    return status;
}

/* A sealed file that calls itself a token store. */
static void read_store(input in)
{
    const char *path = "/dev/shm/mxlua-fuzz-store.h5";
    mx_h5_writer *w;
    int kinds = (int)take(&in, 1);
    if (mx_h5_create(path, &w) != MX_OK)
        return;
    mx_status status = put_attributes(w, &in);
    uint32_t crc = 0;
    if (status == MX_OK)
        status = put_values(w, &in, "tokens", (mx_h5_int)(kinds % 3), &crc);
    if (status == MX_OK && !(kinds & 32))
        status = put_values(w, &in, "documents", kinds & 64 ? MX_H5_U32 : MX_H5_I64, NULL);
    if (status == MX_OK && (kinds & 16))
        status = put_values(w, &in, "tokens_crc32c", MX_H5_U32, NULL);
    if (status == MX_OK && !(kinds & 16)) { /* the right one */
        input sum = {(uint8_t[]){0, 0xff, 0xff, crc & 255, crc >> 8 & 255, crc >> 16 & 255, crc >> 24, 0, 0, 0, 0}, 11};
        status = put_values(w, &sum, "tokens_crc32c", MX_H5_U32, NULL);
    }
    if (status != MX_OK) {
        mx_h5_abort(w);
        return;
    }
    if (mx_h5_commit(w) == MX_OK)
        for (int packing = 0; packing < 2; packing++)
            sample(path, "hdf5", packing);
    unlink(path);
}

/* Nothing here needs to outlive a loss of power: the engine's own calls end up here. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    if (bytes < 2)
        return 0;
    int fd = memory_file("", data + 1, bytes - 1, path);
    switch (data[0] % 4) {
    case 0:
        read_text(path, 0, -1, "\n");
        read_text(path, 0, -1, "");
        read_text(path, data[1] % 32, data[0], "ab");
        break;
    case 1:
        sample(path, "bin", true);
        sample(path, "text", true);
        break;
    case 2:
        read_part(path);
        break;
    default:
        read_store((input){data + 1, bytes - 1});
    }
    close(fd);
    return 0;
}
