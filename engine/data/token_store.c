#include "data/token_store.h"

#include "io/checksum.h"
#include "io/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FORMAT "mxlua tokens"
enum { VERSION = 1, BLOCK = 65536, BATCH = 8192 };

int mx_store_token_bytes(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

/* ---- writing ---- */

struct mx_store_writer {
    char *path;
    mx_h5_writer *file;
    mx_h5_stream *tokens, *documents;
    mx_store_about about;
    int token_bytes;
    int64_t written, starts; /* number of tokens and of document starts */
    int64_t next_start;
    uint32_t *sums; /* one checksum per block */
};

static mx_status put_attributes(mx_h5_writer *file, const mx_store_about *about)
{
    const char *numbers[] = {"format_version", "vocab_size", "bos", "eos"};
    const int64_t values[] = {VERSION, about->vocab_size, about->bos, about->eos};
    const char *texts[] = {"format", "tokenizer", "tokenizer_fingerprint"};
    const char *contents[] = {FORMAT, about->tokenizer, about->fingerprint};
    mx_value map = {.kind = MX_MAP};
    mx_entry *entry;
    mx_status status = MX_OK;
    for (int i = 0; i < 4 && status == MX_OK; i++) {
        status = mx_value_append(&map, numbers[i], &entry);
        if (status == MX_OK) {
            entry->value.kind = MX_INT;
            entry->value.integer = values[i];
        }
    }
    for (int i = 0; i < 3 && status == MX_OK; i++) {
        status = mx_value_append(&map, texts[i], &entry);
        if (status == MX_OK)
            status = mx_value_set_string(&entry->value, contents[i], strlen(contents[i]));
    }
    if (status == MX_OK)
        status = mx_h5_put_attributes(file, &map);
    mx_value_free(&map);
    return status;
}

static int64_t blocks_of(int64_t tokens, int token_bytes) { return (tokens * token_bytes + BLOCK - 1) / BLOCK; }

static mx_status start_writing(mx_store_writer *w)
{
    const mx_store_about *about = &w->about;
    MX_TRY(mx_h5_create(w->path, &w->file));
    MX_TRY(put_attributes(w->file, about));
    mx_h5_int type = w->token_bytes == 2 ? MX_H5_U16 : MX_H5_U32;
    MX_TRY(mx_h5_stream_new(w->file, "tokens", type, about->tokens, true, &w->tokens));
    MX_TRY(mx_h5_stream_new(w->file, "documents", MX_H5_I64, about->documents + 1, false, &w->documents));
    w->sums = calloc((size_t)blocks_of(about->tokens, w->token_bytes), sizeof *w->sums);
    if (!w->sums)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for checksums", w->path);
    return mx_h5_stream_put(w->documents, &w->next_start, 1);
}

mx_status mx_store_create(const char *path, const mx_store_about *about, mx_store_writer **out)
{
    *out = NULL;
    if (about->tokens < 1 || about->documents < 1 || about->vocab_size < 1)
        return mx_fail(MX_ERR_VALUE, "'%s': nothing to write: %lld tokens in %lld documents", path,
                       (long long)about->tokens, (long long)about->documents);
    mx_store_writer *w = calloc(1, sizeof *w);
    if (w)
        *w = (mx_store_writer){
            .path = strdup(path), .about = *about, .token_bytes = mx_store_token_bytes(about->vocab_size)};
    if (!w || !w->path) {
        free(w);
        return mx_fail(MX_ERR_MEMORY, "out of memory to write '%s'", path);
    }
    mx_status status = start_writing(w);
    if (status != MX_OK) {
        mx_store_abort(w);
        return status;
    }
    *out = w;
    return MX_OK;
}

static void add_to_sums(mx_store_writer *w, const char *data, int64_t bytes)
{
    int64_t at = w->written * w->token_bytes;
    while (bytes > 0) {
        int64_t left = BLOCK - at % BLOCK, part = bytes < left ? bytes : left;
        w->sums[at / BLOCK] = mx_crc32c(w->sums[at / BLOCK], data, (size_t)part);
        at += part;
        data += part;
        bytes -= part;
    }
}

mx_status mx_store_put_tokens(mx_store_writer *w, const void *tokens, int64_t count)
{
    MX_TRY(mx_h5_stream_put(w->tokens, tokens, count));
    add_to_sums(w, tokens, count * w->token_bytes);
    w->written += count;
    return MX_OK;
}

mx_status mx_store_put_documents(mx_store_writer *w, const int64_t *lengths, int64_t count)
{
    int64_t starts[BATCH];
    for (int64_t done = 0; done < count;) {
        int64_t part = count - done < BATCH ? count - done : BATCH;
        for (int64_t i = 0; i < part; i++) {
            if (lengths[done + i] < 0 || lengths[done + i] > w->about.tokens - w->next_start)
                return mx_fail(MX_ERR_VALUE, "'%s': a document of %lld tokens where %lld are left", w->path,
                               (long long)lengths[done + i], (long long)(w->about.tokens - w->next_start));
            w->next_start += lengths[done + i];
            starts[i] = w->next_start;
        }
        MX_TRY(mx_h5_stream_put(w->documents, starts, part));
        done += part;
    }
    return MX_OK;
}

static mx_status put_sums(mx_store_writer *w)
{
    mx_h5_stream *sums;
    int64_t blocks = blocks_of(w->about.tokens, w->token_bytes);
    MX_TRY(mx_h5_stream_new(w->file, "tokens_crc32c", MX_H5_U32, blocks, false, &sums));
    mx_status status = mx_h5_stream_put(sums, w->sums, blocks);
    mx_status closed = mx_h5_stream_close(sums);
    return status == MX_OK ? closed : status;
}

static mx_status finish_writing(mx_store_writer *w)
{
    mx_status status = mx_h5_stream_close(w->tokens);
    mx_status closed = mx_h5_stream_close(w->documents);
    w->tokens = w->documents = NULL;
    MX_TRY(status);
    MX_TRY(closed);
    if (w->next_start != w->about.tokens)
        return mx_fail(MX_ERR_VALUE, "'%s': documents of %lld tokens in all, and there are %lld", w->path,
                       (long long)w->next_start, (long long)w->about.tokens);
    MX_TRY(put_sums(w));
    mx_h5_writer *file = w->file;
    w->file = NULL; /* commit frees it, whatever the outcome */
    return mx_h5_commit(file);
}

mx_status mx_store_commit(mx_store_writer *w)
{
    mx_status status = finish_writing(w);
    mx_store_abort(w); /* after a commit this only frees the writer */
    return status;
}

void mx_store_abort(mx_store_writer *w)
{
    if (!w)
        return;
    if (w->tokens)
        mx_h5_stream_close(w->tokens);
    if (w->documents)
        mx_h5_stream_close(w->documents);
    mx_h5_abort(w->file);
    free(w->sums);
    free(w->path);
    free(w);
}

/* ---- reading ---- */

struct mx_store {
    char *path;
    int fd;
    mx_store_about about;
    int token_bytes;
    int64_t offset;        /* of the tokens in the file */
    int64_t *documents;    /* where each starts, and the number of tokens */
    uint32_t *sums;        /* one checksum per block */
    unsigned char *proven; /* one bit per block: it has been verified */
};

static int64_t integer_of(const mx_value *map, const char *name, int64_t standard)
{
    const mx_value *value = mx_value_get(map, name);
    return value && value->kind == MX_INT ? value->integer : standard;
}

static const char *text_of(const mx_value *map, const char *name)
{
    const mx_value *value = mx_value_get(map, name);
    return value && value->kind == MX_STRING ? value->text : "";
}

static mx_status read_about(mx_store *s, const mx_value *map)
{
    int64_t version = integer_of(map, "format_version", -1);
    if (version != VERSION)
        return mx_fail(MX_ERR_IO, "'%s': token store of version %lld; only version %d is read", s->path,
                       (long long)version, VERSION);
    s->about.vocab_size = integer_of(map, "vocab_size", -1);
    s->about.bos = integer_of(map, "bos", -1);
    s->about.eos = integer_of(map, "eos", -1);
    s->about.tokenizer = strdup(text_of(map, "tokenizer"));
    s->about.fingerprint = strdup(text_of(map, "tokenizer_fingerprint"));
    if (!s->about.tokenizer || !s->about.fingerprint)
        return mx_fail(MX_ERR_MEMORY, "out of memory to read '%s'", s->path);
    if (s->about.vocab_size < 1)
        return mx_fail(MX_ERR_IO, "'%s' is damaged: vocab_size = %lld", s->path, (long long)s->about.vocab_size);
    return MX_OK;
}

/* Reads all values of one of the store's datasets, after its position has been checked against the file. */
static mx_status load(mx_store *s, const mx_h5 *file, int64_t bytes, const char *name, int value_bytes, int64_t *count,
                      void **out)
{
    mx_h5_place place;
    mx_status status = mx_h5_locate(file, name, bytes, &place);
    if (status != MX_OK)
        return mx_context(status, "'%s'", s->path);
    if (place.offset < 0 || place.value_bytes != value_bytes)
        return mx_fail(MX_ERR_IO,
                       "'%s' is damaged: a token store has a dataset '%s' of one dimension, of %d bytes a "
                       "value, in one run",
                       s->path, name, value_bytes);
    *count = place.count;
    *out = malloc((size_t)(place.count * value_bytes) + 1);
    if (!*out)
        return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for the %lld values of '%s'", s->path,
                       (long long)place.count, name);
    return mx_file_read_at(s->fd, s->path, place.offset, *out, place.count * value_bytes);
}

static mx_status check_documents(const mx_store *s, int64_t starts)
{
    const int64_t *documents = s->documents;
    bool good = starts >= 2 && documents[0] == 0 && documents[starts - 1] == s->about.tokens;
    for (int64_t i = 1; good && i < starts; i++)
        good = documents[i] >= documents[i - 1];
    return good ? MX_OK
                : mx_fail(MX_ERR_IO, "'%s' is damaged: the starts of its documents do not fit its %lld tokens", s->path,
                          (long long)s->about.tokens);
}

static mx_status locate_tokens(mx_store *s, const mx_h5 *file, int64_t bytes)
{
    mx_h5_place place;
    mx_status status = mx_h5_locate(file, "tokens", bytes, &place);
    if (status != MX_OK)
        return mx_context(status, "'%s'", s->path);
    s->token_bytes = mx_store_token_bytes(s->about.vocab_size);
    if (place.offset < 0 || place.count < 1 || place.is_signed || place.value_bytes != s->token_bytes)
        return mx_fail(MX_ERR_IO,
                       "'%s' is damaged: a token store with a vocabulary of %lld has a dataset 'tokens' of %d bytes a "
                       "value, in one run",
                       s->path, (long long)s->about.vocab_size, s->token_bytes);
    s->offset = place.offset;
    s->about.tokens = place.count;
    return MX_OK;
}

static mx_status open_store(mx_store *s, const mx_h5 *file)
{
    int64_t bytes, blocks = 0, starts = 0;
    MX_TRY(mx_file_open(s->path, &s->fd, &bytes));
    MX_TRY(read_about(s, mx_h5_attributes(file)));
    MX_TRY(locate_tokens(s, file, bytes));
    MX_TRY(load(s, file, bytes, "documents", sizeof *s->documents, &starts, (void **)&s->documents));
    MX_TRY(check_documents(s, starts));
    s->about.documents = starts - 1;
    MX_TRY(load(s, file, bytes, "tokens_crc32c", sizeof *s->sums, &blocks, (void **)&s->sums));
    if (blocks != blocks_of(s->about.tokens, s->token_bytes))
        return mx_fail(MX_ERR_IO, "'%s' is damaged: %lld checksums for %lld tokens", s->path, (long long)blocks,
                       (long long)s->about.tokens);
    s->proven = calloc((size_t)blocks / 8 + 1, 1);
    return s->proven ? MX_OK : mx_fail(MX_ERR_MEMORY, "out of memory to read '%s'", s->path);
}

mx_status mx_store_open(const char *path, const mx_h5 *file, mx_store **out)
{
    *out = NULL;
    if (strcmp(text_of(mx_h5_attributes(file), "format"), FORMAT) != 0)
        return MX_OK;
    mx_store *s = calloc(1, sizeof *s);
    if (s)
        *s = (mx_store){.path = strdup(path), .fd = -1};
    if (!s || !s->path) {
        free(s);
        return mx_fail(MX_ERR_MEMORY, "out of memory to read '%s'", path);
    }
    mx_status status = open_store(s, file);
    if (status != MX_OK) {
        mx_store_close(s);
        return status;
    }
    *out = s;
    return MX_OK;
}

void mx_store_close(mx_store *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    free((char *)s->about.tokenizer);
    free((char *)s->about.fingerprint);
    free(s->documents);
    free(s->sums);
    free(s->proven);
    free(s->path);
    free(s);
}

const mx_store_about *mx_store_get_about(const mx_store *s) { return &s->about; }

int64_t mx_store_document(const mx_store *s, int64_t d) { return s->documents[d]; }

uint32_t mx_store_fingerprint(const mx_store *s, uint32_t crc)
{
    crc = mx_crc32c(crc, s->sums, (size_t)blocks_of(s->about.tokens, s->token_bytes) * sizeof *s->sums);
    return mx_crc32c(crc, s->documents, (size_t)(s->about.documents + 1) * sizeof *s->documents);
}

static mx_status verify_block(mx_store *s, int64_t block)
{
    if (s->proven[block / 8] & 1 << block % 8)
        return MX_OK;
    unsigned char data[BLOCK];
    int64_t start = block * BLOCK, end = s->about.tokens * s->token_bytes;
    int64_t bytes = end - start < BLOCK ? end - start : BLOCK;
    MX_TRY(mx_file_read_at(s->fd, s->path, s->offset + start, data, bytes));
    if (mx_crc32c(0, data, (size_t)bytes) != s->sums[block])
        return mx_fail(MX_ERR_IO, "'%s' is damaged: the checksum of the tokens at positions %lld to %lld is wrong",
                       s->path, (long long)(start / s->token_bytes), (long long)((start + bytes) / s->token_bytes - 1));
    s->proven[block / 8] |= (unsigned char)(1 << block % 8);
    return MX_OK;
}

static mx_status widen(const mx_store *s, const unsigned char *from, int64_t first, int64_t count, int32_t *to)
{
    if (s->token_bytes == 2) {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[2 * i] | from[2 * i + 1] << 8;
        return MX_OK;
    }
    memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i++)
        if (to[i] < 0)
            return mx_fail(MX_ERR_VALUE, "'%s': the token id %u at position %lld is too large", s->path,
                           (unsigned)to[i], (long long)(first + i));
    return MX_OK;
}

mx_status mx_store_read(mx_store *s, int64_t start, int64_t count, int32_t *to)
{
    unsigned char piece[4 * BATCH];
    if (start < 0 || count < 0 || start > s->about.tokens || count > s->about.tokens - start)
        return mx_fail(MX_ERR_VALUE, "'%s': %lld tokens from position %lld on (counted from 0), and it has %lld",
                       s->path, (long long)count, (long long)start, (long long)s->about.tokens);
    if (count == 0)
        return MX_OK;
    for (int64_t b = start * s->token_bytes / BLOCK; b <= ((start + count) * s->token_bytes - 1) / BLOCK; b++)
        MX_TRY(verify_block(s, b));
    for (int64_t done = 0; done < count;) {
        int64_t part = count - done < BATCH ? count - done : BATCH;
        MX_TRY(
            mx_file_read_at(s->fd, s->path, s->offset + (start + done) * s->token_bytes, piece, part * s->token_bytes));
        MX_TRY(widen(s, piece, start + done, part, to + done));
        done += part;
    }
    return MX_OK;
}
