/* What the files of the tokenizer share. tokenizer.h says what it does; here is how a text goes through:
 *
 *   tokenizer_encode.c     text -> added tokens and stretches between them (tokenizer_added.c)
 *   tokenizer_normalize.c  a stretch -> its normal form
 *   tokenizer_split.c      -> words, by the steps of the pre-tokenizer (patterns: tokenizer_pattern.c)
 *   tokenizer_bpe.c        a word -> ids
 *   tokenizer_decode.c     ids -> bytes
 *   tokenizer_read*.c      tokenizer.json -> all of these */
#ifndef MX_IO_TOKENIZER_INTERNAL_H
#define MX_IO_TOKENIZER_INTERNAL_H

#include "io/tokenizer.h"
#include "io/value.h"

/* ---- bytes that grow (tokenizer_pieces.c) ---- */

typedef struct mx_bytes {
    char *data;
    size_t used, room;
} mx_bytes;

mx_status mx_bytes_reserve(mx_bytes *bytes, size_t more); /* room for so many more */
mx_status mx_bytes_put(mx_bytes *bytes, const char *data, size_t count);
void mx_bytes_free(mx_bytes *bytes);

typedef struct mx_ids {
    int32_t *data;
    int64_t used, room;
} mx_ids;

mx_status mx_ids_reserve(mx_ids *ids, int64_t more);
mx_status mx_ids_put(mx_ids *ids, int32_t id);

/* ---- pieces: byte strings numbered from 0, with holes, found by their text ---- */

typedef struct mx_piece {
    size_t offset;
    int32_t bytes; /* -1: a hole */
    bool model, added, special;
} mx_piece;

typedef struct mx_pieces {
    mx_bytes text;
    mx_piece *piece;
    int64_t count, room;
    int32_t *slot; /* a hash table of ids; -1: free */
    size_t mask;   /* its size and -1; 0: not built */
} mx_pieces;

/* Sets piece `id`, which must be a hole or beyond the count. */
mx_status mx_pieces_set(mx_pieces *pieces, int64_t id, const char *text, size_t bytes);

/* Builds the table of those pieces that `take` allows (NULL: all). */
mx_status mx_pieces_index(mx_pieces *pieces, bool (*take)(const mx_piece *piece));
int32_t mx_pieces_find(const mx_pieces *pieces, const char *text, size_t bytes); /* -1: not there */
void mx_pieces_free(mx_pieces *pieces);

static inline const mx_piece *mx_pieces_get(const mx_pieces *pieces, int64_t id)
{
    return id >= 0 && id < pieces->count && pieces->piece[id].bytes >= 0 ? &pieces->piece[id] : NULL;
}
static inline const char *mx_piece_text(const mx_pieces *pieces, const mx_piece *piece)
{
    return pieces->text.data + piece->offset;
}

uint64_t mx_hash_bytes(const char *text, size_t bytes);

/* ---- the tokenizer ---- */

struct mx_tokenizer {
    mx_pieces vocabulary; /* as the file spells them; flags say where they come from */
    mx_pieces decoded;    /* what each gives when decoded, but for the start of a text */
    int32_t bos, eos;
    bool is_bytes;
    mx_bytes scratch; /* of mx_tokenizer_stream */
};

#endif
