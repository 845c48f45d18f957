#include "data/tokens.h"

#include "io/checksum.h"
#include "io/file.h"
#include "io/format.h"
#include "io/hdf5.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { HEADER_BYTES = 1024, WIDTH_PROBE = 4096 };
enum { PIECE = 8192, BATCH = 1 << 16, PROBE = 4096 }; /* tokens to convert, to scan, to sum at each end, at once */

#define DATASET "tokens"

typedef enum format { BIN, HDF5, TEXT } format;
static const char *const format_names[] = {"bin", "hdf5", "text"};

struct mx_tokens {
    char *path;
    format format;
    int64_t count;
    int fd;          /* if the values are contiguous in the file; -1: they are not */
    int64_t offset;  /* of the first token, in bytes */
    int value_bytes; /* bytes of a token there */
    bool is_signed;
    mx_h5 *file;     /* hdf5 with another layout: the library reads it */
    mx_store *store; /* hdf5 with documents */
    int32_t max;     /* the largest token, once known */
    bool max_known;
};

/* ---- opening ---- */

static mx_status choose_format(const char *path, const char *name, format *out)
{
    const char *dot = strrchr(path, '.');
    if (strcmp(name, "auto") == 0) {
        bool h5 = dot && (strcasecmp(dot, ".h5") == 0 || strcasecmp(dot, ".hdf5") == 0);
        *out = h5 ? HDF5 : dot && strcasecmp(dot, ".bin") == 0 ? BIN : TEXT;
        return MX_OK;
    }
    for (int f = BIN; f <= TEXT; f++)
        if (strcmp(name, format_names[f]) == 0) {
            *out = (format)f;
            return MX_OK;
        }
    return mx_fail(MX_ERR_VALUE, "'%s': unknown token format '%.40s'; expected bin, hdf5, text or auto", path, name);
}

/* Reads the header of a token file of llm.c: magic, version, number of tokens. */
static mx_status open_header(mx_tokens *t, const mx_format *told, int64_t bytes)
{
    int32_t header[3];
    int version = told->kind == MX_FORMAT_TOKENS_U16 ? 1 : 7;
    t->value_bytes = told->kind == MX_FORMAT_TOKENS_U16 ? 2 : 4;
    if (bytes < HEADER_BYTES)
        return mx_fail(MX_ERR_IO, "'%s' is truncated: its header has %d bytes, the file %lld", t->path, HEADER_BYTES,
                       (long long)bytes);
    MX_TRY(mx_file_read_at(t->fd, t->path, 0, header, sizeof header));
    if (header[1] != version)
        return mx_fail(MX_ERR_IO, "'%s' is %s of version %d; only version %d is read", t->path, told->name, header[1],
                       version);
    int64_t expected = HEADER_BYTES + t->value_bytes * (int64_t)header[2];
    if (header[2] < 0 || bytes != expected)
        return mx_fail(MX_ERR_IO,
                       "'%s' is damaged or truncated: its header promises %d tokens of %d bytes, %lld bytes in all, "
                       "and it has %lld bytes",
                       t->path, header[2], t->value_bytes, (long long)expected, (long long)bytes);
    t->offset = HEADER_BYTES;
    t->count = header[2];
    return MX_OK;
}

/* Detects 4-byte tokens without a header: read as 2-byte tokens, every second one is close to 0. */
static mx_status check_width(const mx_tokens *t, int64_t bytes)
{
    uint16_t values[WIDTH_PROBE], low = 0, high = 0;
    int64_t count = bytes / 2 < WIDTH_PROBE ? bytes / 2 : WIDTH_PROBE;
    MX_TRY(mx_file_read_at(t->fd, t->path, 0, values, 2 * count));
    for (int64_t i = 0; i < count; i++) {
        uint16_t *highest = i % 2 ? &high : &low;
        *highest = values[i] > *highest ? values[i] : *highest;
    }
    if (bytes % 4 != 0 || count < 256 || high > 7 || low < 64)
        return MX_OK;
    return mx_fail(MX_ERR_IO,
                   "'%s' seems to hold uint32 tokens: of its first %d uint16 values every second one is at most %d. "
                   "Without a header uint16 is read; for uint32 put the header of llm.c before the tokens: 256 int32, "
                   "the first three 20240801, 7 and the number of tokens",
                   t->path, (int)count, high);
}

static mx_status open_bin(mx_tokens *t, int64_t bytes, const mx_format *told)
{
    if (told && (told->kind == MX_FORMAT_TOKENS_U16 || told->kind == MX_FORMAT_TOKENS_U32))
        return open_header(t, told, bytes);
    if (told && told->kind != MX_FORMAT_UTF16) /* tokens may look like UTF-16 */
        return mx_format_refuse(t->path, told, "a file of tokens");
    if (bytes % 2 != 0)
        return mx_fail(MX_ERR_IO,
                       "'%s' has %lld bytes: a file of uint16 tokens has an even number (truncated, or another "
                       "format?)",
                       t->path, (long long)bytes);
    t->value_bytes = 2;
    t->count = bytes / 2;
    return check_width(t, bytes);
}

static mx_status open_text(mx_tokens *t, int64_t bytes, const mx_format *told)
{
    if (told)
        return mx_format_refuse(t->path, told, "text");
    t->value_bytes = 1;
    t->count = bytes;
    return MX_OK;
}

/* Finds how to read the values: contiguous values without the library, a store by its own functions. */
static mx_status find_values(mx_tokens *t)
{
    mx_h5_place place;
    int64_t bytes;
    MX_TRY(mx_store_open(t->path, t->file, &t->store));
    if (t->store)
        return MX_OK;
    MX_TRY(mx_file_open(t->path, &t->fd, &bytes));
    mx_status status = mx_h5_locate(t->file, DATASET, bytes, &place);
    if (status != MX_OK)
        return mx_context(status, "'%s'", t->path);
    t->offset = place.offset;
    t->value_bytes = place.value_bytes;
    t->is_signed = place.is_signed;
    if (place.offset < 0) {
        close(t->fd);
        t->fd = -1;
    }
    return MX_OK;
}

/* Refuses files of another known format by name; the HDF5 library checks all others. */
static mx_status check_hdf5(const char *path)
{
    int fd;
    int64_t bytes;
    const mx_format *told;
    MX_TRY(mx_file_open(path, &fd, &bytes));
    mx_status status = mx_format_read(fd, path, bytes, &told);
    if (status == MX_OK && told && told->kind != MX_FORMAT_HDF5)
        status = mx_format_refuse(path, told, "an HDF5 file");
    close(fd);
    return status;
}

static mx_status open_hdf5(mx_tokens *t)
{
    MX_TRY(check_hdf5(t->path));
    MX_TRY(mx_h5_open(t->path, &t->file));
    const mx_h5_entry *entry = mx_h5_find(t->file, DATASET);
    if (!entry)
        return mx_fail(MX_ERR_IO, "'%s' has no dataset '" DATASET "' (it has %lld datasets)", t->path,
                       (long long)mx_h5_count(t->file));
    if (entry->shape.n_dims != 1 || (entry->type[0] != 'i' && entry->type[0] != 'u'))
        return mx_fail(MX_ERR_IO, "'%s': dataset '" DATASET "' is %s of %d dimensions; expected integers of one",
                       t->path, entry->type, entry->shape.n_dims);
    t->count = entry->shape.size[0];
    MX_TRY(find_values(t));
    if (t->store || t->fd >= 0) {
        mx_h5_close(t->file);
        t->file = NULL;
        return MX_OK;
    }
    int32_t last; /* reading it proves that the values are there */
    return t->count > 0 ? mx_h5_read_integers(t->file, DATASET, t->count - 1, 1, &last) : MX_OK;
}

static mx_status open_tokens(mx_tokens *t, const char *format_name)
{
    int64_t bytes = 0;
    MX_TRY(choose_format(t->path, format_name, &t->format));
    if (t->format == HDF5) {
        MX_TRY(open_hdf5(t));
    } else {
        const mx_format *told;
        MX_TRY(mx_file_open(t->path, &t->fd, &bytes));
        MX_TRY(mx_format_read(t->fd, t->path, bytes, &told));
        MX_TRY((t->format == BIN ? open_bin : open_text)(t, bytes, told));
    }
    return t->count > 0 ? MX_OK : mx_fail(MX_ERR_IO, "'%s' is empty: it holds no tokens", t->path);
}

mx_status mx_tokens_open(const char *path, const char *format_name, mx_tokens **out)
{
    *out = NULL;
    mx_tokens *t = calloc(1, sizeof *t);
    if (t) {
        t->fd = -1;
        t->path = strdup(path);
    }
    if (!t || !t->path) {
        free(t);
        return mx_fail(MX_ERR_MEMORY, "out of memory to open '%s'", path);
    }
    mx_status status = open_tokens(t, format_name);
    if (status != MX_OK) {
        mx_tokens_close(t);
        return status;
    }
    *out = t;
    return MX_OK;
}

void mx_tokens_close(mx_tokens *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    mx_h5_close(t->file);
    mx_store_close(t->store);
    free(t->path);
    free(t);
}

int64_t mx_tokens_count(const mx_tokens *t) { return t->count; }

const char *mx_tokens_path(const mx_tokens *t) { return t->path; }

const char *mx_tokens_format(const mx_tokens *t) { return format_names[t->format]; }

const mx_store *mx_tokens_store(const mx_tokens *t) { return t->store; }

bool mx_tokens_any_thread(const mx_tokens *t) { return t->store || t->fd >= 0; }

/* ---- reading ---- */

static int64_t value_at(const mx_tokens *t, const unsigned char *from)
{
    uint64_t value = 0;
    for (int b = 0; b < t->value_bytes; b++)
        value |= (uint64_t)from[b] << 8 * b;
    int unused = 64 - 8 * t->value_bytes;
    return t->is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

static mx_status widen(const mx_tokens *t, const unsigned char *from, int64_t first, int64_t count, int32_t *to)
{
    if (t->value_bytes == 1 && !t->is_signed) {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i];
    } else if (t->value_bytes == 2 && !t->is_signed) {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[2 * i] | from[2 * i + 1] << 8;
    } else {
        for (int64_t i = 0; i < count; i++) {
            int64_t value = value_at(t, from + i * t->value_bytes);
            if (value != (int32_t)value)
                return mx_fail(MX_ERR_VALUE, "'%s' holds %lld at position %lld, which is no i32", t->path,
                               (long long)value, (long long)(first + i));
            to[i] = (int32_t)value;
        }
    }
    return MX_OK;
}

mx_status mx_tokens_read(mx_tokens *t, int64_t start, int64_t count, int32_t *to)
{
    if (start < 0 || count < 0 || start > t->count || count > t->count - start)
        return mx_fail(MX_ERR_VALUE, "'%s': %lld tokens from position %lld on (counted from 0), and it has %lld",
                       t->path, (long long)count, (long long)start, (long long)t->count);
    if (t->store)
        return mx_store_read(t->store, start, count, to);
    if (t->fd < 0)
        return mx_h5_read_integers(t->file, DATASET, start, count, to);
    unsigned char narrow[8 * PIECE];
    for (int64_t done = 0; done < count;) {
        int64_t part = count - done < PIECE ? count - done : PIECE;
        int64_t offset = t->offset + (start + done) * t->value_bytes;
        MX_TRY(mx_file_read_at(t->fd, t->path, offset, narrow, part * t->value_bytes));
        MX_TRY(widen(t, narrow, start + done, part, to + done));
        done += part;
    }
    return MX_OK;
}

mx_status mx_tokens_fingerprint(mx_tokens *t, uint32_t *out)
{
    int32_t ends[2 * PROBE];
    int64_t n = t->count < PROBE ? t->count : PROBE;
    MX_TRY(mx_tokens_read(t, 0, n, ends));
    MX_TRY(mx_tokens_read(t, t->count - n, n, ends + n));
    *out = mx_crc32c(0, &t->count, sizeof t->count);
    *out = mx_crc32c(*out, ends, 2 * (size_t)n * sizeof *ends);
    if (t->store)
        *out = mx_store_fingerprint(t->store, *out);
    return MX_OK;
}

static mx_status scan(mx_tokens *t, int32_t *batch, int32_t *max)
{
    *max = -1;
    for (int64_t start = 0; start < t->count; start += BATCH) {
        int64_t part = t->count - start < BATCH ? t->count - start : BATCH;
        MX_TRY(mx_tokens_read(t, start, part, batch));
        for (int64_t i = 0; i < part; i++) {
            if (batch[i] < 0)
                return mx_fail(MX_ERR_VALUE, "'%s': token id %d at position %lld is negative", t->path, batch[i],
                               (long long)(start + i));
            *max = batch[i] > *max ? batch[i] : *max;
        }
    }
    return MX_OK;
}

mx_status mx_tokens_max(mx_tokens *t, int32_t *max)
{
    if (!t->max_known) {
        int32_t *batch = malloc(BATCH * sizeof *batch);
        if (!batch)
            return mx_fail(MX_ERR_MEMORY, "'%s': out of memory", t->path);
        mx_status status = scan(t, batch, &t->max);
        free(batch);
        MX_TRY(status);
        t->max_known = true;
    }
    *max = t->max;
    return MX_OK;
}
