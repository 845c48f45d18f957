/* Tokenizers: text to token ids and back, as a Hugging Face tokenizer.json says, or bytes as they are.
 *
 * What is read: the model BPE (byte-level, and with byte_fallback as SentencePiece's come), added tokens, the
 * normalizers NFC, NFD, NFKC, NFKD, Replace, Prepend; the pre-tokenizers ByteLevel, Split, Digits, Punctuation,
 * Metaspace; the decoders ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip; the post-processors ByteLevel and
 * TemplateProcessing; and Sequence of each. Anything else is refused by name (MX_ERR_VALUE), and so is what is
 * malformed.
 *
 * Ids are those of the reference, the package `tokenizers`, to the last one. A tokenizer is used by one thread at a
 * time. Nothing here is collective. */
#ifndef MX_TOKENIZER_H
#define MX_TOKENIZER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mx_tokenizer mx_tokenizer;

/* A tokenizer.json; "" or "bytes": each byte of a text is a token (ids 0 to 255, no BOS, no EOS). MX_ERR_IO for a file
 * that cannot be read. */
mx_status mx_tokenizer_open(const char *path, mx_tokenizer **out);

/* The same from the content of such a file; `name` stands before messages. */
mx_status mx_tokenizer_parse(const char *json, size_t bytes, const char *name, mx_tokenizer **out);
void mx_tokenizer_close(mx_tokenizer *tokenizer); /* NULL is allowed */

/* The highest id and one: what a model's vocab_size must be at least. */
int64_t mx_tokenizer_vocab_size(const mx_tokenizer *tokenizer);

/* The id of a token by its text as the file spells it ("<|endoftext|>"); -1: there is none. */
int32_t mx_tokenizer_id(const mx_tokenizer *tokenizer, const char *text, size_t bytes);

/* A token's text as the file spells it, without a zero byte at its end; false for an id that has none. */
bool mx_tokenizer_piece(const mx_tokenizer *tokenizer, int64_t id, const char **text, size_t *bytes);

/* What TemplateProcessing puts before and after a text; -1: nothing. Other files may know better
 * (tokenizer_config.json, GGUF): the setters take -1 or an id that has a token (else MX_ERR_VALUE). */
int32_t mx_tokenizer_bos(const mx_tokenizer *tokenizer);
int32_t mx_tokenizer_eos(const mx_tokenizer *tokenizer);
mx_status mx_tokenizer_set_bos(mx_tokenizer *tokenizer, int64_t id);
mx_status mx_tokenizer_set_eos(mx_tokenizer *tokenizer, int64_t id);

enum { MX_ENCODE_BOS = 1, MX_ENCODE_EOS = 2 }; /* nothing is added where the tokenizer has none */

/* The ids of a text of at most 2^30 bytes. Bytes that are no UTF-8 are read as U+FFFD, one for each maximal part of a
 * character (the tokenizer "bytes" takes them as they are). Added tokens inside the text are found. The caller frees
 * *ids. MX_ERR_VALUE for a longer text, and where a Split pattern needs more steps than PCRE2's limit. */
mx_status mx_tokenizer_encode(mx_tokenizer *tokenizer, const char *text, size_t bytes, int flags, int32_t **ids,
                              int64_t *count);

enum { MX_DECODE_SKIP_SPECIAL = 1 }; /* leave special tokens out */

/* The bytes of ids; an id that has no token gives nothing, a negative one is MX_ERR_VALUE. The reference decodes to
 * text and puts U+FFFD for bytes that are no UTF-8; here they stay. The caller frees *text; a zero byte follows the
 * *bytes bytes. */
mx_status mx_tokenizer_decode(mx_tokenizer *tokenizer, const int32_t *ids, int64_t count, int flags, char **text,
                              size_t *bytes);

/* Decoding id by id. A token may end inside a character: its first bytes are held back until the rest comes. All zero
 * at the start. */
typedef struct mx_token_stream {
    int64_t tokens; /* that gave text so far */
    int stripped;   /* characters removed from the start of the text */
    bool begun;     /* text is past what Strip removes */
    int n_held;     /* bytes held back */
    unsigned char held[4];
} mx_token_stream;

/* The whole characters that `id` completes, maybe none: *text is valid until the next call with this tokenizer. */
mx_status mx_tokenizer_stream(mx_tokenizer *tokenizer, mx_token_stream *stream, int64_t id, int flags,
                              const char **text, size_t *bytes);

/* A number that two tokenizers share when they give the same ids: that of their vocabularies, and of the ids of a text
 * that has all their ordinary tokens. How a file spells them, its path, and settings that change no id have no part in
 * it. It takes about as long as encoding the vocabulary. */
mx_status mx_tokenizer_fingerprint(mx_tokenizer *tokenizer, uint32_t *out);

#endif
