/* Declarations that the tokenizer's files share. tokenizer.h is the public interface. A text is encoded in these steps:
 *
 *   tokenizer.c            text -> added tokens and stretches between them (added.c)
 *   normalize.c  a stretch -> its normal form
 *   split.c      -> words, by the steps of the pre-tokenizer (patterns: pattern.c)
 *   bpe.c        a word -> ids
 *   decode.c     ids -> bytes
 *   tokenizer_read*.c      tokenizer.json -> all of these
 *   unicode.c    tables of Unicode as the reference has them and the libraries do not (generated)
 *
 * The reference is the Python package `tokenizers`. */
#ifndef MX_TOKENIZER_INTERNAL_H
#define MX_TOKENIZER_INTERNAL_H

#include "io/value.h"
#include "tokenizer/tokenizer.h"

/* ---- growing buffers (pieces.c) ---- */

typedef struct mx_buffer {
    char *data;
    size_t used, room;
} mx_buffer;

/* Makes room for this many more bytes; `data` is never NULL afterwards, even for 0 bytes. */
mx_status mx_buffer_reserve(mx_buffer *bytes, size_t more);
mx_status mx_buffer_put(mx_buffer *bytes, const char *data, size_t count);
void mx_buffer_free(mx_buffer *bytes);

typedef struct mx_ids {
    int32_t *data;
    int64_t used, room;
} mx_ids;

mx_status mx_ids_reserve(mx_ids *ids, int64_t more);
mx_status mx_ids_put(mx_ids *ids, int32_t id);

/* ---- pieces: byte strings with numbers from 0, looked up by text; numbers may be unused (holes) ---- */

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
    size_t mask;   /* the table's size minus 1; 0: not built */
} mx_pieces;

/* Sets piece `id`, which must be unused. */
mx_status mx_pieces_set(mx_pieces *pieces, int64_t id, const char *text, size_t bytes);

mx_status mx_pieces_index(mx_pieces *pieces); /* builds the table; of equal texts the first is found */
int32_t mx_pieces_find(const mx_pieces *pieces, const char *text, size_t bytes); /* -1: not found */
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

/* Reads the first character of a text of at least one byte: returns its code and sets *length. For invalid UTF-8
 * returns -1 and sets *length to the longest prefix that could begin a character, at least 1. */
int32_t mx_utf8_read(const char *text, size_t bytes, int *length);
int mx_utf8_write(int32_t code, char to[4]);
bool mx_is_white_space(int32_t code); /* Unicode's White_Space */

/* Replaces invalid UTF-8 by U+FFFD: *text becomes a text in `copy`, or stays if it is valid. */
mx_status mx_utf8_repair(const char **text, size_t *bytes, mx_buffer *copy);

/* The letter that stands for a byte in a byte-level tokenizer, and back. */
int32_t mx_byte_letter(int byte);
int mx_letter_byte(int32_t code); /* -1: no such letter */

/* Appends the bytes that the letters stand for. If the text contains any other character, appends the text itself. */
mx_status mx_letters_to_bytes(const char *text, size_t bytes, mx_buffer *to, bool *are_letters);

/* ---- the reference's tables of Unicode (unicode.c, written by tests/golden/make_unicode.py) ---- */

/* Sets of characters. Names are Unicode's, in lower case without spaces. Names with other characters are sets that
 * parts of the reference use: \w, [\w], "Digits", "Punctuation", "single word" (of added tokens). `content` is the
 * inside of a PCRE2 bracket expression; "=NAME" means the content of NAME. */
typedef struct mx_property {
    const char *name, *content;
} mx_property;
extern const mx_property mx_properties[]; /* a NULL name ends them */

/* Ranges of codes that are newer than the reference's version of Unicode; its normalizers leave them unchanged. Sorted;
 * ends with {-1, -1}. */
extern const int32_t mx_not_normalized[][2];

/* ---- patterns: regular expressions in Oniguruma's syntax, as in the reference (pattern.c) ---- */

typedef struct mx_pattern mx_pattern;

/* literal: matches the text itself. */
mx_status mx_pattern_compile(const char *text, size_t bytes, bool literal, mx_pattern **out);

/* Matches one character of the set of that name in mx_properties: anywhere, or only at the start of a text. */
mx_status mx_pattern_of_set(const char *name, bool at_start, mx_pattern **out);
void mx_pattern_free(mx_pattern *pattern); /* NULL is allowed */

typedef struct mx_search { /* state of a search in a valid UTF-8 text; all other fields start as 0 */
    const char *text;
    size_t bytes, at, last;
    bool any, chosen, plain;
} mx_search;

/* Finds the next match from search->at on; *found is false at the end. */
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
    mx_pattern *pattern; /* Replace */
    char *content;       /* Replace and Prepend */
    size_t bytes;
} mx_norm;

typedef struct mx_norms {
    mx_norm *step;
    int count;
    uint8_t *inert; /* NFC: a bit for each code that NFC neither changes nor joins to the one before; NULL: no NFC */
    mx_buffer buffer[2];
} mx_norms;

/* Replaces *text by its normal form. The new text is in one of the buffers until the next call; an unchanged text stays
 * where it is. */
mx_status mx_normalize(mx_norms *norms, const char **text, size_t *bytes);
mx_status mx_norms_prepare(mx_norms *norms); /* to be called when all steps are set */
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
    int first[257];   /* tokens [first[b], first[b + 1]) begin with byte b */
    mx_pattern *word; /* matches a character of a word; NULL: no token is single_word */
} mx_added_set;

/* Takes over the tokens' contents; of tokens with equal content, the first stays. */
mx_status mx_added_set_make(mx_added_set *set, const mx_added *tokens, int count);
void mx_added_set_free(mx_added_set *set);

/* Finds the next added token in a text that is encoded up to `from`. If there is none, *id is -1 and *start is the end
 * of the text. *scan, 0 at first, is where the search continues: behind the characters of the last token, but before
 * the spaces that rstrip consumed. As in the reference, these spaces may be part of a token again: then *start is
 * before `from`, and *end may be too. */
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
    mx_pattern *pattern; /* Split */
    mx_behavior behavior;
    bool invert;
    mx_prepend prepend; /* Metaspace */
    char mark[4];       /* Metaspace: replaces a space */
    int mark_bytes;
    mx_buffer buffer;
} mx_step;

/* Splits a text into words and appends their ids. at_start: this is the start of the text to encode. */
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
    int32_t *result; /* for each rank, the id that the merge gives */
    int64_t n_merges;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    mx_pieces words;      /* byte-level with ignore_merges: the vocabulary as bytes */
    bool at_marks;        /* no merge crosses a U+2581 that follows another character, so a text may be cut before it */
    int32_t unk;          /* the unknown token; -1: characters that are not in the vocabulary are left out */
    int32_t byte_id[256]; /* ids of bytes (byte-level) or of <0x00> ... <0xFF>; -1: none */
    int32_t *char_id;     /* not byte-level: ids of the first 65,536 characters */
    mx_word_slot *cache;  /* ids of short words */
    int32_t *work, *next, *previous, *rank; /* for a long word */
    uint64_t *heap;
    size_t room; /* room in these arrays, in symbols */
} mx_bpe;

/* Sets the merges, in the order of their rank: two ids, and the id that they give. */
mx_status mx_bpe_set_merges(mx_bpe *bpe, const int32_t (*merges)[3], int64_t count);
mx_status mx_bpe_prepare(mx_tokenizer *tokenizer); /* to be called when vocabulary and merges are set */
mx_status mx_bpe_encode(mx_tokenizer *tokenizer, const char *word, size_t bytes, mx_ids *ids);
void mx_bpe_free(mx_bpe *bpe);

/* ---- the decoder (decode.c) ---- */

typedef enum mx_decoder_kind {
    MX_DECODE_REPLACE,
    MX_DECODE_BYTE_FALLBACK,
    MX_DECODE_BYTE_LEVEL,
    MX_DECODE_METASPACE,
    MX_DECODE_STRIP,      /* strips each token */
    MX_DECODE_STRIP_START /* strips the text */
} mx_decoder_kind;

typedef struct mx_decoder {
    mx_decoder_kind kind;
    char *pattern, *content; /* Replace; `pattern` is also the character of Metaspace and Strip */
    int start, stop;         /* Strip */
    bool prepended;          /* Metaspace: the first token loses its marks */
} mx_decoder;

mx_status mx_decoder_prepare(mx_tokenizer *tokenizer); /* fills tokenizer->decoded */

/* ---- the tokenizer ---- */

enum { MX_STEPS = 16 }; /* largest number of steps of each kind */

struct mx_tokenizer {
    mx_pieces vocabulary; /* all tokens as the file spells them; flags say where they come from */
    mx_pieces renamed;    /* normalized text of added tokens that normalization changes; decoding starts from it */
    mx_pieces decoded;    /* decoded text of each token */
    int32_t bos, eos;
    bool is_bytes;
    bool first_differs; /* the first token of a text is decoded differently */
    bool spaced;        /* there is no decoder: tokens are separated by spaces */
    bool fused;         /* a decoder joins the tokens, so later decoders see the whole text */
    mx_norms norms;
    mx_added_set raw, normalized; /* searched for before and after normalization */
    mx_step step[MX_STEPS];
    int n_steps;
    mx_bpe bpe;
    mx_decoder decoder[MX_STEPS];
    int n_decoders;
    mx_buffer repaired;
    mx_buffer scratch; /* for mx_tokenizer_stream */
};

/* ---- reading tokenizer.json (read.c, read_steps.c) ---- */

typedef struct mx_source {
    const char *name, *part; /* for messages: the file, and the part that is being read */
} mx_source;

mx_status mx_tokenizer_read(mx_tokenizer *tokenizer, const mx_value *root, const char *name);
mx_status mx_read_normalizer(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);
mx_status mx_read_pre_tokenizer(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);
mx_status mx_read_decoder(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);

/* Reads a required field of this kind. */
mx_status mx_field(mx_source source, const mx_value *map, const char *key, mx_kind kind, const mx_value **out);
mx_status mx_field_bool(mx_source source, const mx_value *map, const char *key, bool standard, bool *out);

/* Reads the field "type" of a component; MX_ERR_VALUE if the component is not a map with this field. */
mx_status mx_field_type(mx_source source, const mx_value *map, const char **out);

/* Calls `read` for each element in the field `key` of a Sequence. */
typedef mx_status (*mx_read_part)(mx_tokenizer *tokenizer, const mx_value *value, mx_source source);
mx_status mx_read_sequence(mx_tokenizer *tokenizer, const mx_value *map, const char *key, mx_source source,
                           mx_read_part read);

#endif
