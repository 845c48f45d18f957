#define _GNU_SOURCE
#include "tokenizer/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- one token ---- */

static mx_status replace_all(const char *pattern, const char *content, mx_buffer *text, mx_buffer *to)
{
    size_t length = strlen(pattern), done = 0;
    while (length > 0 && done < text->used) {
        const char *at = memmem(text->data + done, text->used - done, pattern, length);
        if (!at)
            break;
        MX_TRY(mx_buffer_put(to, text->data + done, (size_t)(at - text->data) - done));
        MX_TRY(mx_buffer_put(to, content, strlen(content)));
        done = (size_t)(at - text->data) + length;
    }
    return mx_buffer_put(to, text->data + done, text->used - done);
}

static int hex_digit(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) % 16 : -1;
}

/* <0x41> -> A */
static mx_status fallback_byte(const mx_buffer *text, mx_buffer *to)
{
    const char *s = text->data;
    bool framed = text->used == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>';
    int high = framed ? hex_digit(s[3]) : -1, low = framed ? hex_digit(s[4]) : -1;
    if (high < 0 || low < 0)
        return mx_buffer_put(to, s, text->used);
    char byte = (char)(high << 4 | low);
    return mx_buffer_put(to, &byte, 1);
}

static mx_status strip(const mx_decoder *d, mx_buffer *text, mx_buffer *to)
{
    size_t start = 0, end = text->used, length = strlen(d->pattern);
    for (int i = 0; i < d->start && end - start >= length && memcmp(text->data + start, d->pattern, length) == 0; i++)
        start += length;
    for (int i = 0; i < d->stop && end - start >= length && memcmp(text->data + end - length, d->pattern, length) == 0;
         i++)
        end -= length;
    return mx_buffer_put(to, text->data + start, end - start);
}

static mx_status run_decoder(const mx_decoder *d, bool first, mx_buffer *text, mx_buffer *to)
{
    bool are_letters;
    switch (d->kind) {
    case MX_DECODE_REPLACE:
        return replace_all(d->pattern, d->content, text, to);
    case MX_DECODE_METASPACE:
        return replace_all(d->pattern, first && d->prepended ? "" : " ", text, to);
    case MX_DECODE_BYTE_FALLBACK:
        return fallback_byte(text, to);
    case MX_DECODE_BYTE_LEVEL:
        return mx_letters_to_bytes(text->data, text->used, to, &are_letters);
    case MX_DECODE_STRIP:
        return strip(d, text, to);
    default:
        return mx_buffer_put(to, text->data, text->used);
    }
}

/* Runs a token through all decoders, from one buffer to the other; the result is in buffer[0]. first: the token is the
 * first of a text. */
static mx_status decode_piece(const mx_tokenizer *t, int64_t id, bool first, mx_buffer buffer[2])
{
    const mx_pieces *pieces = mx_pieces_get(&t->renamed, id) ? &t->renamed : &t->vocabulary;
    const mx_piece *piece = &pieces->piece[id];
    buffer[0].used = 0;
    MX_TRY(mx_buffer_put(&buffer[0], mx_piece_text(pieces, piece), (size_t)piece->bytes));
    for (int i = 0; i < t->n_decoders; i++) {
        buffer[1].used = 0;
        MX_TRY(run_decoder(&t->decoder[i], first, &buffer[0], &buffer[1]));
        mx_buffer swapped = buffer[0];
        buffer[0] = buffer[1];
        buffer[1] = swapped;
    }
    return MX_OK;
}

static mx_status fill_decoded(mx_tokenizer *t, mx_buffer buffer[2])
{
    for (int64_t id = 0; id < t->vocabulary.count; id++) {
        if (!mx_pieces_get(&t->vocabulary, id))
            continue;
        MX_TRY(decode_piece(t, id, false, buffer));
        MX_TRY(mx_pieces_set(&t->decoded, id, buffer[0].data, buffer[0].used));
    }
    return MX_OK;
}

mx_status mx_decoder_prepare(mx_tokenizer *t)
{
    for (int i = 0; i < t->n_decoders; i++)
        t->first_differs = t->first_differs || (t->decoder[i].kind == MX_DECODE_METASPACE && t->decoder[i].prepended);
    mx_buffer buffer[2] = {{0}, {0}};
    mx_status status = fill_decoded(t, buffer);
    mx_buffer_free(&buffer[0]);
    mx_buffer_free(&buffer[1]);
    return status;
}

/* ---- the start of a text ---- */

static mx_status put_first(const mx_tokenizer *t, int64_t id, mx_buffer *to)
{
    mx_buffer buffer[2] = {{0}, {0}};
    mx_status status = decode_piece(t, id, true, buffer);
    if (status == MX_OK)
        status = mx_buffer_put(to, buffer[0].data, buffer[0].used);
    mx_buffer_free(&buffer[0]);
    mx_buffer_free(&buffer[1]);
    return status;
}

/* Removes from the start of the text what a Strip after Fuse strips; the new part of the text begins at `from`. */
static void strip_start(const mx_tokenizer *t, mx_token_stream *stream, mx_buffer *text, size_t from)
{
    const mx_decoder *d = t->n_decoders > 0 ? &t->decoder[t->n_decoders - 1] : NULL;
    if (!d || d->kind != MX_DECODE_STRIP_START || stream->begun)
        return;
    size_t at = from;
    while (stream->stripped < d->start && at < text->used && text->data[at] == d->pattern[0]) {
        stream->stripped++;
        at++;
    }
    stream->begun = at < text->used || stream->stripped == d->start;
    memmove(text->data + from, text->data + at, text->used - at);
    text->used -= at - from;
}

/* Appends the text of `id`. */
static mx_status put_token(const mx_tokenizer *t, mx_token_stream *stream, int64_t id, int flags, mx_buffer *to)
{
    if (id < 0)
        return mx_fail(MX_ERR_VALUE, "decode: token id %lld is negative; ids are 0 to %lld", (long long)id,
                       (long long)mx_tokenizer_vocab_size(t) - 1);
    const mx_piece *piece = mx_pieces_get(&t->decoded, id);
    if (!piece || (flags & MX_DECODE_SKIP_SPECIAL && t->vocabulary.piece[id].special))
        return MX_OK;
    size_t from = to->used;
    bool first = stream->tokens++ == 0;
    if (t->spaced && !first)
        MX_TRY(mx_buffer_put(to, " ", 1));
    if (first && t->first_differs)
        MX_TRY(put_first(t, id, to));
    else
        MX_TRY(mx_buffer_put(to, mx_piece_text(&t->decoded, piece), (size_t)piece->bytes));
    strip_start(t, stream, to, from);
    return MX_OK;
}

/* ---- all at once, or one by one ---- */

mx_status mx_tokenizer_decode(mx_tokenizer *t, const int32_t *ids, int64_t count, int flags, char **text, size_t *bytes)
{
    mx_buffer out = {0};
    mx_token_stream stream = {0};
    mx_status status = MX_OK;
    for (int64_t i = 0; i < count && status == MX_OK; i++)
        status = put_token(t, &stream, ids[i], flags, &out);
    if (status == MX_OK)
        status = mx_buffer_put(&out, "", 1);
    if (status != MX_OK) {
        mx_buffer_free(&out);
        return status;
    }
    *text = out.data;
    *bytes = out.used - 1;
    return MX_OK;
}

/* The number of bytes, 0 to 3, of an incomplete character at the end of a text. */
static int unfinished(const char *text, size_t bytes)
{
    for (int back = 1; back <= 3 && (size_t)back <= bytes; back++) {
        unsigned char c = (unsigned char)text[bytes - (size_t)back];
        if ((c & 0xc0) == 0x80)
            continue;
        int length = c > 0xf4 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

mx_status mx_tokenizer_stream(mx_tokenizer *t, mx_token_stream *stream, int64_t id, int flags, const char **text,
                              size_t *bytes)
{
    t->scratch.used = 0;
    MX_TRY(mx_buffer_put(&t->scratch, (const char *)stream->held, (size_t)stream->n_held));
    MX_TRY(put_token(t, stream, id, flags, &t->scratch));
    stream->n_held = unfinished(t->scratch.data, t->scratch.used);
    *bytes = t->scratch.used - (size_t)stream->n_held;
    *text = t->scratch.data;
    if (stream->n_held > 0)
        memcpy(stream->held, t->scratch.data + *bytes, (size_t)stream->n_held);
    return MX_OK;
}
