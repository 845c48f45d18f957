#include "io/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- one token ---- */

/* Appends what `id` adds to the text. */
static mx_status put_token(const mx_tokenizer *t, mx_token_stream *stream, int64_t id, int flags, mx_bytes *to)
{
    if (id < 0)
        return mx_fail(MX_ERR_VALUE, "decode: token id %lld is negative; ids are 0 to %lld", (long long)id,
                       (long long)mx_tokenizer_vocab_size(t) - 1);
    const mx_piece *piece = mx_pieces_get(&t->decoded, id);
    if (!piece || (flags & MX_DECODE_SKIP_SPECIAL && t->vocabulary.piece[id].special))
        return MX_OK;
    stream->tokens++;
    return mx_bytes_put(to, mx_piece_text(&t->decoded, piece), (size_t)piece->bytes);
}

/* ---- all at once, or one by one ---- */

mx_status mx_tokenizer_decode(mx_tokenizer *t, const int32_t *ids, int64_t count, int flags, char **text, size_t *bytes)
{
    mx_bytes out = {0};
    mx_token_stream stream = {0};
    mx_status status = MX_OK;
    for (int64_t i = 0; i < count && status == MX_OK; i++)
        status = put_token(t, &stream, ids[i], flags, &out);
    if (status == MX_OK)
        status = mx_bytes_put(&out, "", 1);
    if (status != MX_OK) {
        mx_bytes_free(&out);
        return status;
    }
    *text = out.data;
    *bytes = out.used - 1;
    return MX_OK;
}

/* Bytes at the end of a text that begin a character and do not end it: 0 to 3. */
static int unfinished(const char *text, size_t bytes)
{
    for (int back = 1; back <= 3 && (size_t)back <= bytes; back++) {
        unsigned char c = (unsigned char)text[bytes - (size_t)back];
        if ((c & 0xc0) == 0x80)
            continue;
        int length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

mx_status mx_tokenizer_stream(mx_tokenizer *t, mx_token_stream *stream, int64_t id, int flags, const char **text,
                              size_t *bytes)
{
    t->scratch.used = 0;
    MX_TRY(mx_bytes_put(&t->scratch, (const char *)stream->held, (size_t)stream->n_held));
    MX_TRY(put_token(t, stream, id, flags, &t->scratch));
    stream->n_held = unfinished(t->scratch.data, t->scratch.used);
    *bytes = t->scratch.used - (size_t)stream->n_held;
    *text = t->scratch.data;
    if (stream->n_held > 0)
        memcpy(stream->held, t->scratch.data + *bytes, (size_t)stream->n_held);
    return MX_OK;
}
