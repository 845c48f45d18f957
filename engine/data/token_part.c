#include "data/token_part.h"

#include "io/checksum.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 1 << 18, PIECE = 1 << 16 };

typedef struct footer {
    mx_part_about about;
    uint32_t values_crc; /* of tokens and lengths */
    uint32_t footer_crc; /* of this footer, with this field 0 */
    char magic[8];
} footer;

static const char magic[8] = {'m', 'x', '-', 'p', 'a', 'r', 't', '1'};

struct mx_part_writer {
    mx_draft draft;
    int fd;
    mx_part_about about;
    uint32_t crc;
    int64_t *lengths, room;
    unsigned char *buffer;
    int64_t filled;
};

/* ---- writing ---- */

static mx_status write_bytes(mx_part_writer *w, const void *data, int64_t bytes)
{
    w->crc = mx_crc32c(w->crc, data, (size_t)bytes);
    for (int64_t done = 0; done < bytes;) {
        ssize_t written = write(w->fd, (const char *)data + done, (size_t)(bytes - done));
        if (written < 0 && errno != EINTR)
            return mx_fail(MX_ERR_IO, "cannot write '%s': %s", w->draft.path, strerror(errno));
        done += written > 0 ? written : 0;
    }
    return MX_OK;
}

static mx_status flush(mx_part_writer *w)
{
    int64_t bytes = w->filled;
    w->filled = 0;
    return write_bytes(w, w->buffer, bytes);
}

mx_status mx_part_create(const char *path, int token_bytes, mx_part_writer **out)
{
    *out = NULL;
    if (token_bytes != 2 && token_bytes != 4)
        return mx_fail(MX_ERR_VALUE, "'%s': tokens of %d bytes; expected 2 or 4", path, token_bytes);
    mx_part_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->fd = -1;
        w->about.token_bytes = token_bytes;
        w->buffer = malloc(BUFFER);
    }
    if (!w || !w->buffer) {
        free(w);
        return mx_fail(MX_ERR_MEMORY, "out of memory to write '%s'", path);
    }
    mx_status status = mx_draft_open(&w->draft, path);
    if (status == MX_OK) {
        w->fd = open(w->draft.temporary, O_WRONLY | O_CLOEXEC);
        status = w->fd >= 0 ? MX_OK : mx_fail(MX_ERR_IO, "cannot write '%s': %s", path, strerror(errno));
    }
    if (status != MX_OK) {
        mx_part_abort(w);
        return status;
    }
    *out = w;
    return MX_OK;
}

/* Ends a document of `length` tokens. */
static mx_status end_document(mx_part_writer *w, int64_t length)
{
    if (w->about.documents == w->room) {
        int64_t room = w->room ? 2 * w->room : 1024;
        int64_t *lengths = realloc(w->lengths, (size_t)room * sizeof *lengths);
        if (!lengths)
            return mx_fail(MX_ERR_MEMORY, "'%s': out of memory for %lld documents", w->draft.path, (long long)room);
        w->lengths = lengths;
        w->room = room;
    }
    w->lengths[w->about.documents++] = length;
    return MX_OK;
}

static mx_status put_tokens(mx_part_writer *w, const int32_t *tokens, int64_t count)
{
    int bytes = (int)w->about.token_bytes;
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)tokens[i];
        if (tokens[i] < 0 || (bytes == 2 && token > 65535))
            return mx_fail(MX_ERR_VALUE, "'%s': the token id %d does not fit into %d bytes", w->draft.path, tokens[i],
                           bytes);
        if (w->filled + bytes > BUFFER)
            MX_TRY(flush(w));
        for (int b = 0; b < bytes; b++)
            w->buffer[w->filled++] = (unsigned char)(token >> 8 * b);
    }
    w->about.tokens += count;
    return MX_OK;
}

mx_status mx_part_add(mx_part_writer *w, const int32_t *tokens, int64_t count)
{
    if (count == 0)
        return MX_OK;
    MX_TRY(put_tokens(w, tokens, count));
    return end_document(w, count);
}

static mx_status check_piece(const mx_tokens *from, const int32_t *tokens, int64_t start, int64_t count,
                             int64_t vocab_size)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab_size)
            return mx_fail(MX_ERR_VALUE, "'%s' has the token id %d at position %lld, outside the vocabulary of %lld",
                           mx_tokens_path(from), tokens[i], (long long)(start + i), (long long)vocab_size);
    return MX_OK;
}

/* Copies tokens [start, end) of a file; each separator, and the end, ends a document. */
static mx_status copy_range(mx_part_writer *w, mx_tokens *from, int64_t start, int64_t end, int32_t separator,
                            int64_t vocab_size)
{
    int32_t piece[PIECE];
    int64_t length = 0;
    while (start < end) {
        int64_t part = end - start < PIECE ? end - start : PIECE;
        MX_TRY(mx_tokens_read(from, start, part, piece));
        MX_TRY(check_piece(from, piece, start, part, vocab_size));
        MX_TRY(put_tokens(w, piece, part));
        for (int64_t i = 0; i < part; i++) {
            length++;
            if (separator >= 0 && piece[i] == separator) {
                MX_TRY(end_document(w, length));
                length = 0;
            }
        }
        start += part;
    }
    return length > 0 ? end_document(w, length) : MX_OK;
}

mx_status mx_part_copy(mx_part_writer *w, mx_tokens *from, int32_t separator, int64_t vocab_size)
{
    const mx_store *store = mx_tokens_store(from);
    if (!store)
        return copy_range(w, from, 0, mx_tokens_count(from), separator, vocab_size);
    int64_t documents = mx_store_get_about(store)->documents;
    for (int64_t d = 0; d < documents; d++)
        MX_TRY(copy_range(w, from, mx_store_document(store, d), mx_store_document(store, d + 1), -1, vocab_size));
    return MX_OK;
}

static uint32_t crc_of_footer(footer end)
{
    end.footer_crc = 0;
    return mx_crc32c(0, &end, sizeof end);
}

static mx_status finish_writing(mx_part_writer *w)
{
    MX_TRY(flush(w));
    MX_TRY(write_bytes(w, w->lengths, w->about.documents * (int64_t)sizeof *w->lengths));
    footer end = {.about = w->about, .values_crc = w->crc};
    memcpy(end.magic, magic, sizeof magic);
    end.footer_crc = crc_of_footer(end);
    MX_TRY(write_bytes(w, &end, sizeof end));
    int closed = close(w->fd);
    w->fd = -1;
    if (closed != 0)
        return mx_fail(MX_ERR_IO, "cannot write '%s': %s", w->draft.path, strerror(errno));
    return mx_draft_commit(&w->draft);
}

mx_status mx_part_commit(mx_part_writer *w, int64_t skipped)
{
    w->about.skipped = skipped;
    mx_status status = finish_writing(w);
    mx_part_abort(w);
    return status;
}

void mx_part_abort(mx_part_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    mx_draft_discard(&w->draft);
    free(w->lengths);
    free(w->buffer);
    free(w);
}

/* ---- merging ---- */

static mx_status damaged(const char *path)
{
    return mx_fail(MX_ERR_IO, "'%s' is damaged: remove it, and prepare again", path);
}

static mx_status read_footer(int fd, const char *path, int64_t bytes, footer *end)
{
    if (bytes < (int64_t)sizeof *end)
        return damaged(path);
    MX_TRY(mx_file_read_at(fd, path, bytes - (int64_t)sizeof *end, end, sizeof *end));
    const mx_part_about *about = &end->about;
    int64_t values = bytes - (int64_t)sizeof *end;
    if (memcmp(end->magic, magic, sizeof magic) != 0 || crc_of_footer(*end) != end->footer_crc)
        return damaged(path);
    bool fits = (about->token_bytes == 2 || about->token_bytes == 4) && about->tokens >= 0 && about->documents >= 0 &&
                about->tokens <= values / about->token_bytes && about->documents <= values / 8 &&
                about->tokens * about->token_bytes + about->documents * 8 == values;
    return fits ? MX_OK : damaged(path);
}

mx_status mx_part_read_about(const char *path, mx_part_about *about)
{
    int fd;
    int64_t bytes;
    footer end;
    MX_TRY(mx_file_open(path, &fd, &bytes));
    mx_status status = read_footer(fd, path, bytes, &end);
    close(fd);
    if (status == MX_OK)
        *about = end.about;
    return status;
}

/* Copies `bytes` bytes at `offset` of a part to the store: tokens, or lengths of documents (token_bytes 8). */
static mx_status copy_values(mx_store_writer *to, int fd, const char *path, int64_t offset, int64_t bytes,
                             int64_t value_bytes, uint32_t *crc)
{
    int64_t piece[PIECE / 8];
    while (bytes > 0) {
        int64_t part = bytes < PIECE ? bytes : PIECE;
        MX_TRY(mx_file_read_at(fd, path, offset, piece, part));
        *crc = mx_crc32c(*crc, piece, (size_t)part);
        MX_TRY(value_bytes == 8 ? mx_store_put_documents(to, piece, part / 8)
                                : mx_store_put_tokens(to, piece, part / value_bytes));
        offset += part;
        bytes -= part;
    }
    return MX_OK;
}

static mx_status copy_part(mx_store_writer *to, int fd, const char *path, int64_t bytes, int64_t token_bytes)
{
    footer end;
    uint32_t crc = 0;
    MX_TRY(read_footer(fd, path, bytes, &end));
    if (end.about.token_bytes != token_bytes)
        return damaged(path);
    int64_t tokens = end.about.tokens * token_bytes;
    MX_TRY(copy_values(to, fd, path, 0, tokens, token_bytes, &crc));
    MX_TRY(copy_values(to, fd, path, tokens, end.about.documents * 8, 8, &crc));
    return crc == end.values_crc ? MX_OK : damaged(path);
}

static mx_status copy_parts(mx_store_writer *to, const char *const *paths, int64_t count, int64_t token_bytes)
{
    for (int64_t i = 0; i < count; i++) {
        int fd;
        int64_t bytes;
        MX_TRY(mx_file_open(paths[i], &fd, &bytes));
        mx_status status = copy_part(to, fd, paths[i], bytes, token_bytes);
        close(fd);
        MX_TRY(status);
    }
    return MX_OK;
}

mx_status mx_parts_merge(const char *const *paths, int64_t count, const char *path, mx_store_about *about)
{
    mx_store_writer *store;
    about->tokens = about->documents = 0;
    for (int64_t i = 0; i < count; i++) {
        mx_part_about part;
        MX_TRY(mx_part_read_about(paths[i], &part));
        about->tokens += part.tokens;
        about->documents += part.documents;
    }
    MX_TRY(mx_store_create(path, about, &store));
    mx_status status = copy_parts(store, paths, count, mx_store_token_bytes(about->vocab_size));
    if (status == MX_OK)
        return mx_store_commit(store);
    mx_store_abort(store);
    return status;
}
