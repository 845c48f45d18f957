#include "io/checksum.h"
#include "tokenizer/internal.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 1 << 20 }; /* of the text, at once */

/* A text on which patterns and normal forms differ: contractions, digits, spaces, newlines, marks and scripts. */
static const char PROBE[] =
    "We'll, I'VE 1 22 333 4444 55555  three   spaces\tand\n\n lines \r\n  x_y a.b(c)/d camelCase "
    "e\xcc\x81 \xef\xac\x81 \xc2\xb2 \xe2\x85\xa7 \xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7 "
    "\xe4\xb8\xad\xe6\x96\x87\xe3\x82\xab\xe3\x82\xbf 12\xe5\xb9\xb4 \xf0\x9f\x98\x80\xef\xbf\xbd!!";

static mx_status add_text(mx_tokenizer *t, const char *text, size_t bytes, uint32_t *crc)
{
    int32_t *ids;
    int64_t count;
    MX_TRY(mx_tokenizer_encode(t, text, bytes, 0, &ids, &count));
    *crc = mx_crc32c(*crc, ids, (size_t)count * sizeof *ids);
    free(ids);
    return MX_OK;
}

/* All tokens except the added ones, separated by spaces. */
static mx_status add_pieces(mx_tokenizer *t, mx_buffer *text, uint32_t *crc)
{
    for (int64_t id = 0; id < t->vocabulary.count; id++) {
        const mx_piece *piece = mx_pieces_get(&t->vocabulary, id), *plain = mx_pieces_get(&t->decoded, id);
        if (!piece)
            continue;
        int64_t about[2] = {id, piece->bytes};
        *crc = mx_crc32c(*crc, about, sizeof about);
        *crc = mx_crc32c(*crc, mx_piece_text(&t->vocabulary, piece), (size_t)piece->bytes);
        if (piece->added || !plain)
            continue;
        MX_TRY(mx_buffer_put(text, mx_piece_text(&t->decoded, plain), (size_t)plain->bytes));
        MX_TRY(mx_buffer_put(text, " ", 1));
        if (text->used >= CHUNK_BYTES) {
            MX_TRY(add_text(t, text->data, text->used, crc));
            text->used = 0;
        }
    }
    return text->used > 0 ? add_text(t, text->data, text->used, crc) : MX_OK;
}

mx_status mx_tokenizer_fingerprint(mx_tokenizer *t, uint32_t *out)
{
    mx_buffer text = {0};
    *out = 0;
    mx_status status = add_text(t, PROBE, sizeof PROBE - 1, out);
    if (status == MX_OK)
        status = add_pieces(t, &text, out);
    mx_buffer_free(&text);
    return status;
}
