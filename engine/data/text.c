#define _GNU_SOURCE
#include "data/text.h"

#include "io/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK = 1 << 17 }; /* bytes to read, and to make room for, at once */

typedef enum packing { PLAIN, GZIP, ZSTD } packing;

struct mx_text {
    char *path, *separator;
    size_t separator_bytes, limit;
    int fd;
    packing packing;
    int64_t at, end; /* next byte of the file, and its size */
    int64_t range_end;
    unsigned char *in; /* CHUNK bytes of a compressed file; [in_at, in_end) are not used yet */
    size_t in_at, in_end;
    bool frame_open; /* inside a compressed frame */
    z_stream gzip;
    bool has_gzip;
    ZSTD_DStream *zstd;
    char *data; /* buffer of the text: [taken, filled) is not returned yet; starts at data_offset of the text */
    size_t taken, filled, room;
    size_t scanned; /* no separator begins before this */
    int64_t data_offset, piece_offset;
    bool finished; /* the file has been read to its end */
};

/* ---- opening ---- */

static mx_status tell_packing(int fd, const char *path, int64_t bytes, packing *out)
{
    static const unsigned char gzip[] = {0x1f, 0x8b}, zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    unsigned char first[4] = {0};
    MX_TRY(mx_file_read_at(fd, path, 0, first, bytes < 4 ? bytes : 4));
    *out = memcmp(first, gzip, 2) == 0 ? GZIP : memcmp(first, zstd, 4) == 0 ? ZSTD : PLAIN;
    return MX_OK;
}

static mx_status out_of_memory(const mx_text *t) { return mx_fail(MX_ERR_MEMORY, "'%s': out of memory", t->path); }

static mx_status start_unpacking(mx_text *t)
{
    if (t->packing == PLAIN)
        return MX_OK;
    t->in = malloc(CHUNK);
    if (!t->in)
        return out_of_memory(t);
    if (t->packing == GZIP) {
        t->has_gzip = inflateInit2(&t->gzip, 15 + 16) == Z_OK;
        return t->has_gzip ? MX_OK : out_of_memory(t);
    }
    t->zstd = ZSTD_createDStream();
    return t->zstd ? MX_OK : out_of_memory(t);
}

/* Moves to the first piece of a range. A piece that begins before the range belongs to the previous range. Reading
 * starts one separator earlier, to see a separator that ends where the range begins. */
static mx_status skip_to_range(mx_text *t, int64_t start)
{
    const char *piece;
    size_t bytes;
    if (start == 0 || t->separator_bytes == 0)
        return MX_OK;
    int64_t back = start < (int64_t)t->separator_bytes ? start : (int64_t)t->separator_bytes;
    t->at = t->data_offset = start - back;
    return mx_text_next(t, &piece, &bytes);
}

static mx_status open_text(mx_text *t, int64_t start, int64_t end)
{
    MX_TRY(mx_file_open(t->path, &t->fd, &t->end));
    MX_TRY(tell_packing(t->fd, t->path, t->end, &t->packing));
    if (t->packing != PLAIN && (start != 0 || end >= 0))
        return mx_fail(MX_ERR_VALUE, "'%s' is compressed: it can only be read from its start to its end", t->path);
    if (start < 0 || start > t->end || (start > 0 && t->separator_bytes == 0))
        return mx_fail(MX_ERR_VALUE, "'%s' has %lld bytes: no piece begins at %lld", t->path, (long long)t->end,
                       (long long)start);
    t->range_end = INT64_MAX; /* while skipping */
    MX_TRY(start_unpacking(t));
    mx_status status = skip_to_range(t, start);
    t->range_end = end < 0 ? INT64_MAX : end;
    return status;
}

mx_status mx_text_open(const char *path, int64_t start, int64_t end, const char *separator, size_t bytes, size_t limit,
                       mx_text **out)
{
    *out = NULL;
    mx_text *t = calloc(1, sizeof *t);
    if (t) {
        *t = (mx_text){
            .path = strdup(path), .separator = malloc(bytes + 1), .separator_bytes = bytes, .limit = limit, .fd = -1};
    }
    if (!t || !t->path || !t->separator) {
        mx_text_close(t);
        return mx_fail(MX_ERR_MEMORY, "out of memory to read '%s'", path);
    }
    memcpy(t->separator, separator, bytes);
    mx_status status = open_text(t, start, end);
    if (status != MX_OK) {
        mx_text_close(t);
        return status;
    }
    *out = t;
    return MX_OK;
}

void mx_text_close(mx_text *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    if (t->has_gzip)
        inflateEnd(&t->gzip);
    ZSTD_freeDStream(t->zstd);
    free(t->in);
    free(t->data);
    free(t->separator);
    free(t->path);
    free(t);
}

/* ---- bytes ---- */

static mx_status damaged(const mx_text *t, const char *why)
{
    return mx_fail(MX_ERR_IO, "'%s' is damaged or truncated: its compressed data %s (near byte %lld of %lld)", t->path,
                   why, (long long)t->at, (long long)t->end);
}

static mx_status read_plain(mx_text *t, char *to, size_t room, size_t *got)
{
    int64_t left = t->end - t->at;
    *got = left < (int64_t)room ? (size_t)left : room;
    MX_TRY(mx_file_read_at(t->fd, t->path, t->at, to, (int64_t)*got));
    t->at += (int64_t)*got;
    t->finished = t->at == t->end;
    return MX_OK;
}

/* Reads more compressed bytes if all have been used. */
static mx_status refill(mx_text *t)
{
    if (t->in_at < t->in_end)
        return MX_OK;
    int64_t left = t->end - t->at, part = left < CHUNK ? left : CHUNK;
    MX_TRY(mx_file_read_at(t->fd, t->path, t->at, t->in, part));
    t->at += part;
    t->in_at = 0;
    t->in_end = (size_t)part;
    return MX_OK;
}

static mx_status inflate_some(mx_text *t, char *to, size_t room, size_t *got)
{
    z_stream *z = &t->gzip;
    if (!t->frame_open && inflateReset(z) != Z_OK)
        return damaged(t, "cannot be read");
    t->frame_open = true;
    z->next_in = t->in + t->in_at;
    z->avail_in = (uInt)(t->in_end - t->in_at);
    z->next_out = (Bytef *)to;
    z->avail_out = (uInt)room;
    int result = inflate(z, Z_NO_FLUSH);
    t->in_at = t->in_end - z->avail_in;
    *got = room - z->avail_out;
    if (result == Z_STREAM_END)
        t->frame_open = false;
    else if (result == Z_MEM_ERROR)
        return out_of_memory(t);
    else if (result != Z_OK && result != Z_BUF_ERROR)
        return damaged(t, z->msg ? z->msg : "are not gzip's");
    return MX_OK;
}

static mx_status decompress_some(mx_text *t, char *to, size_t room, size_t *got)
{
    ZSTD_inBuffer in = {t->in, t->in_end, t->in_at};
    ZSTD_outBuffer out = {to, room, 0};
    size_t result = ZSTD_decompressStream(t->zstd, &out, &in);
    if (ZSTD_isError(result))
        return damaged(t, ZSTD_getErrorName(result));
    t->in_at = in.pos;
    t->frame_open = result != 0;
    *got = out.pos;
    return MX_OK;
}

/* Reads the next bytes of the text; 0 bytes only at its end. */
static mx_status read_some(mx_text *t, char *to, size_t room, size_t *got)
{
    *got = 0;
    if (t->packing == PLAIN)
        return read_plain(t, to, room, got);
    while (*got == 0) {
        MX_TRY(refill(t));
        bool no_more = t->in_at == t->in_end;
        if (no_more && !t->frame_open) {
            t->finished = true;
            return MX_OK;
        }
        size_t before = t->in_at;
        MX_TRY((t->packing == GZIP ? inflate_some : decompress_some)(t, to, room, got));
        if (*got == 0 && no_more && t->frame_open && t->in_at == before)
            return damaged(t, "end too early");
    }
    return MX_OK;
}

mx_status mx_text_head(const char *path, char *head, size_t room, size_t *bytes, bool *compressed)
{
    mx_text *t;
    mx_status status = MX_OK;
    *bytes = 0;
    MX_TRY(mx_text_open(path, 0, -1, "", 0, room, &t));
    *compressed = t->packing != PLAIN;
    while (status == MX_OK && *bytes < room && !t->finished) {
        size_t got = 0;
        status = read_some(t, head + *bytes, room - *bytes, &got);
        *bytes += got;
    }
    mx_text_close(t);
    return status;
}

/* ---- pieces ---- */

/* Makes room for a chunk behind the buffered text. */
static mx_status make_room(mx_text *t)
{
    if (t->data && t->taken > 0) {
        memmove(t->data, t->data + t->taken, t->filled - t->taken);
        t->data_offset += (int64_t)t->taken;
        t->filled -= t->taken;
        t->scanned -= t->taken;
        t->taken = 0;
    }
    if (t->room - t->filled >= CHUNK)
        return MX_OK;
    size_t room = t->room ? 2 * t->room : 2 * (size_t)CHUNK;
    char *data = realloc(t->data, room);
    if (!data)
        return out_of_memory(t);
    t->data = data;
    t->room = room;
    return MX_OK;
}

static const char *find_separator(mx_text *t)
{
    if (t->separator_bytes == 0)
        return NULL;
    const char *found = memmem(t->data + t->scanned, t->filled - t->scanned, t->separator, t->separator_bytes);
    size_t end = t->filled > t->separator_bytes - 1 ? t->filled - (t->separator_bytes - 1) : 0;
    if (!found && end > t->scanned)
        t->scanned = end;
    return found;
}

static mx_status too_long(const mx_text *t)
{
    return mx_fail(MX_ERR_VALUE, "'%s': the document at byte %lld has more than %zu bytes", t->path,
                   (long long)(t->data_offset + (int64_t)t->taken), t->limit);
}

mx_status mx_text_next(mx_text *t, const char **piece, size_t *bytes)
{
    const char *found = NULL;
    *piece = NULL;
    *bytes = 0;
    t->piece_offset = t->data_offset + (int64_t)t->taken;
    if (t->piece_offset >= t->range_end)
        return MX_OK;
    while (!(found = t->data ? find_separator(t) : NULL) && !t->finished) {
        size_t got;
        if (t->filled - t->taken > t->limit + t->separator_bytes)
            return too_long(t);
        MX_TRY(make_room(t));
        MX_TRY(read_some(t, t->data + t->filled, CHUNK, &got));
        t->filled += got;
    }
    size_t length = found ? (size_t)(found - t->data) - t->taken : t->filled - t->taken;
    if (length > t->limit)
        return too_long(t);
    if (!found && length == 0)
        return MX_OK;
    *piece = t->data + t->taken;
    *bytes = length;
    t->taken += length + (found ? t->separator_bytes : 0);
    t->scanned = t->taken;
    return MX_OK;
}

int64_t mx_text_offset(const mx_text *t) { return t->piece_offset; }

int64_t mx_text_consumed(const mx_text *t) { return t->at - (int64_t)(t->in_end - t->in_at); }
