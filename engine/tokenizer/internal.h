/* What the files of the tokenizer share. tokenizer.h says what it does; here is how a text goes through:
 *
 *   tokenizer.c            text -> added tokens and stretches between them (added.c)
 *   normalize.c  a stretch -> its normal form
 *   split.c      -> words, by the steps of the pre-tokenizer (patterns: pattern.c)
 *   bpe.c        a word -> ids
 *   decode.c     ids -> bytes
 *   tokenizer_read*.c      tokenizer.json -> all of these
 *   unicode.c    what the reference knows of Unicode and the libraries do not (generated) */
#ifndef MX_TOKENIZER_INTERNAL_H
#define MX_TOKENIZER_INTERNAL_H

#include "io/value.h"
#include "tokenizer/tokenizer.h"

/* ---- bytes that grow (pieces.c) ---- */

typedef struct mx_buffer {
    char *data;
    size_t used, room;
} mx_buffer;

/* Room for so many more bytes; `data` is an address then, also for none. */
mx_status mx_buffer_reserve(mx_buffer *bytes, size_t more);
mx_status mx_buffer_put(mx_buffer *bytes, const char *data, size_t count);
void mx_buffer_free(mx_buffer *bytes);

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
    mx_buffer text;
    mx_piece *piece;
    int64_t count, room;
    int32_t *slot; /* a hash table of ids; -1: free */
    size_t mask;   /* its size and -1; 0: not built */
} mx_pieces;

/* Sets piece `id`, which must be a hole or beyond the count. */
mx_status mx_pieces_set(mx_pieces *pieces, int64_t id, const char *text, size_t bytes);

mx_status mx_pieces_index(mx_pieces *pieces); /* builds the table; of equal texts the first is found */
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

/* ---- UTF-8 (utf8.c) ---- */

/* The character that a text begins with, at least one byte: its code and length. What is no character gives -1 and the
 * length of its longest part that could begin one, at least 1. */
int32_t mx_utf8_read(const char *text, size_t bytes, int *length);
int mx_utf8_write(int32_t code, char to[4]);
bool mx_is_white_space(int32_t code); /* White_Space of Unicode */

/* The text itself, or in `copy` the text with U+FFFD for what is no UTF-8. */
mx_status mx_utf8_repair(const char **text, size_t *bytes, mx_buffer *copy);

/* The letters that a byte-level tokenizer spells bytes with. */
int32_t mx_byte_letter(int byte);
int mx_letter_byte(int32_t code); /* -1: no such letter */

/* Appends the bytes that letters stand for; with any other letter among them, the text as it is. */
mx_status mx_letters_to_bytes(const char *text, size_t bytes, mx_buffer *to, bool *are_letters);

/* ---- what the reference knows of Unicode (unicode.c, written by tests/golden/make_unicode.py) ---- */

/* Sets of characters: the names of Unicode in small letters without spaces, and with other characters in the name those
 * of parts of the reference: \w, [\w], "Digits", "Punctuation", "single word" (of added tokens). The content is what
 * brackets of PCRE2 hold; "=NAME": that of NAME. */
typedef struct mx_property {
    const char *name, *content;
} mx_property;
extern const mx_property mx_properties[]; /* a NULL name ends them */

/* Ranges of codes that the normalizers of the reference leave as they are: they came after its version of Unicode.
 * Sorted;
 * {-1, -1} ends them. */
extern const int32_t mx_not_normalized[][2];

/* ---- patterns: regular expressions in Oniguruma's syntax, as the reference reads them (pattern.c) ---- */

typedef struct mx_pattern mx_pattern;

/* literal: the text as it is. */
mx_status mx_pattern_compile(const char *text, size_t bytes, bool literal, mx_pattern **out);

/* A character of the set of that name in mx_properties: anywhere, or at the start of a text. */
mx_status mx_pattern_of_set(const char *name, bool at_start, mx_pattern **out);
void mx_pattern_free(mx_pattern *pattern); /* NULL is allowed */

typedef struct mx_search { /* of a valid UTF-8 text; the rest zero at the start */
    const char *text;
    size_t bytes, at, last;
    bool any, chosen, plain;
} mx_search;

/* The next match, from search->at on; *found false at the end. */
mx_status mx_pattern_next(mx_pattern *pattern, mx_search *search, size_t *start, size_t *end, bool *found);

/* ---- normal forms (normalize.c) ---- */

typedef enum mx_norm_kind {
    MX_NORM_NFC,
    MX_NORM_NFD,
    MX_NORM_NFKC,
    MX_NORM_NFKD,
    MX_NORM_REPLACE,
    MX_NORM_PREPEND
} mx_norm_kind;

typedef struct mx_norm {
    mx_norm_kind kind;
    mx_pattern *pattern; /* of Replace */
    char *content;       /* of Replace and Prepend */
    size_t bytes;
} mx_norm;

typedef struct mx_norms {
    mx_norm *step;
    int count;
    uint8_t *inert; /* for NFC: a bit for each code that it neither changes nor joins to the one before; NULL: no NFC */
    mx_buffer buffer[2];
} mx_norms;

/* Replaces *text by its normal form, which is in one of the buffers until the next call, or is *text itself. */
mx_status mx_normalize(mx_norms *norms, const char **text, size_t *bytes);
mx_status mx_norms_prepare(mx_norms *norms); /* once all steps are there */
void mx_norms_free(mx_norms *norms);

/* ---- added tokens (added.c) ---- */

typedef struct mx_added {
    char *content;
    size_t bytes;
    int32_t id;
    int order;
    bool special, normalized, lstrip, rstrip, single_word;
} mx_added;

typedef struct mx_added_set { /* sorted by content */
    mx_added *token;
    int count;
    int first[257];   /* the tokens that begin with byte b: from first[b] to first[b + 1] */
    mx_pattern *word; /* a character of a word; NULL: no token is single_word */
} mx_added_set;

/* Takes over the contents; of equal ones the first in order stays. */
mx_status mx_added_set_make(mx_added_set *set, const mx_added *tokens, int count);
void mx_added_set_free(mx_added_set *set);

/* The next added token in a text whose tokens before `from` are done: *id is -1 when there is none, and *start is then
 * the end. *scan, 0 at first, is where the search goes on: behind the characters of the last token, but before the
 * spaces that rstrip took. As in the reference these may be a token again: then *start lies before `from`, and *end
 * may. */
mx_status mx_added_next(mx_added_set *set, const char *text, size_t bytes, size_t from, size_t *scan, size_t *start,
                        size_t *end, int32_t *id);

/* ---- the steps of the pre-tokenizer (split.c) ---- */

typedef enum mx_behavior {
    MX_ISOLATED,
    MX_REMOVED,
    MX_MERGED_WITH_PREVIOUS,
    MX_MERGED_WITH_NEXT,
    MX_CONTIGUOUS
} mx_behavior;
typedef enum mx_step_kind { MX_STEP_SPLIT, MX_STEP_PREFIX_SPACE, MX_STEP_METASPACE } mx_step_kind;
typedef enum mx_prepend { MX_PREPEND_NEVER, MX_PREPEND_FIRST, MX_PREPEND_ALWAYS } mx_prepend;

typedef struct mx_step {
    mx_step_kind kind;
    mx_pattern *pattern; /* of a split */
    mx_behavior behavior;
    bool invert;
    mx_prepend prepend; /* of Metaspace */
    char mark[4];       /* what it puts in place of a space */
    int mark_bytes;
    mx_buffer buffer;
} mx_step;

/* Cuts a text into words and appends their ids. at_start: the text is the start of what was given to encode. */
mx_status mx_split(mx_tokenizer *tokenizer, int step, const char *text, size_t bytes, bool at_start, mx_ids *ids);

/* ---- the model (bpe.c) ---- */

typedef struct mx_pair_slot {
    uint64_t pair; /* left << 32 | right */
    int32_t rank;  /* -1: free */
} mx_pair_slot;

typedef struct mx_word_slot mx_word_slot;

typedef struct mx_bpe {
    mx_pair_slot *pair; /* a hash table of the merges */
    size_t mask;
    int32_t *result; /* what a merge gives, by rank */
    int64_t n_merges;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    mx_pieces words; /* byte-level with ignore_merges: the vocabulary as bytes */
    bool at_marks;   /* a text may be cut before each U+2581 that follows another character: no merge crosses that */
    int32_t unk;     /* -1: what the vocabulary lacks is left out */
    int32_t byte_id[256];                   /* byte-level: of each byte; else: of <0x00> ... <0xFF>; -1: none */
    int32_t *char_id;                       /* not byte-level: of the first 65,536 characters */
    mx_word_slot *cache;                    /* of short words */
    int32_t *work, *next, *previous, *rank; /* for a long word */
    uint64_t *heap;
    size_t room; /* of these, in symbols */
} mx_bpe;

/* The merges in the order of their rank, as pairs of ids and what they give. */
mx_status mx_bpe_set_merges(mx_bpe *bpe, const int32_t (*merges)[3], int64_t count);
mx_status mx_bpe_prepare(mx_tokenizer *tokenizer); /* once vocabulary and merges are there */
mx_status mx_bpe_encode(mx_tokenizer *tokenizer, const char *word, size_t bytes, mx_ids *ids);
void mx_bpe_free(mx_bpe *bpe);

/* ---- the decoder (decode.c) ---- */

typedef enum mx_decoder_kind {
    MX_DECODE_REPLACE,
    MX_DECODE_BYTE_FALLBACK,
    MX_DECODE_BYTE_LEVEL,
    MX_DECODE_METASPACE,
    MX_DECODE_STRIP,      /* of each token */
    MX_DECODE_STRIP_START /* of the text */
} mx_decoder_kind;

typedef struct mx_decoder {
    mx_decoder_kind kind;
    char *pattern, *content; /* of Replace; the character of Metaspace and Strip is the pattern */
    int start, stop;         /* of Strip */
    bool prepended;          /* of Metaspace: the first token loses its marks */
} mx_decoder;

mx_status mx_decoder_prepare(mx_tokenizer *tokenizer); /* fills tokenizer->decoded */

/* ---- the tokenizer ---- */

enum { MX_STEPS = 16 }; /* at most, of each kind: a file is not believed to need more */

struct mx_tokenizer {
    mx_pieces vocabulary; /* as the file spells them; flags say where they come from */
    mx_pieces renamed;    /* the added tokens that normalizing changes, normalized: what decoding starts from */
    mx_pieces decoded;    /* what each gives when decoded */
    int32_t bos, eos;
    bool is_bytes;
    bool first_differs; /* the first token of a text is decoded otherwise */
    bool spaced;        /* there is no decoder: a space stands between tokens */
    bool fused;         /* by its decoders: what comes after them sees the whole text */
    mx_norms norms;
    mx_added_set raw, normalized; /* found before and after normalizing */
    mx_step step[MX_STEPS];
    int n_steps;
    mx_bpe bpe;
    mx_decoder decoder[MX_STEPS];
    int n_decoders;
    mx_buffer repaired;
    mx_buffer scratch; /* of mx_tokenizer_stream */
};

/* ---- reading tokenizer.json (read.c, read_steps.c) ---- */

typedef struct mx_source {
    const char *name, *part; /* for messages: the file, and the part of it that is being read */
} mx_source;

mx_status mx_tokenizer_read(mx_tokenizer *tokenizer, const mx_value *root, const char *name);
mx_status mx_read_normalizer(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);
mx_status mx_read_pre_tokenizer(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);
mx_status mx_read_decoder(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);

/* A field that must be there, of this kind. */
mx_status mx_field(mx_source source, const mx_value *map, const char *key, mx_kind kind, const mx_value **out);
mx_status mx_field_bool(mx_source source, const mx_value *map, const char *key, bool standard, bool *out);

/* The field "type" of a component; MX_ERR_VALUE when that is no map with one. */
mx_status mx_field_type(mx_source source, const mx_value *map, const char **out);

/* Calls read for each element of the field `key` of a Sequence. */
typedef mx_status (*mx_read_part)(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);
mx_status mx_read_sequence(mx_tokenizer *tokenizer, const mx_value *map, const char *key, mx_source source,
                           mx_read_part read);

#endif
