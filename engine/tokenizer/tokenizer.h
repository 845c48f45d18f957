/* Tokenizers: convert text to token ids and back, as described by a Hugging Face tokenizer.json, or byte by byte.
 *
 * Supported are the model BPE (byte-level, or with byte_fallback as in converted SentencePiece models); added tokens;
 * the normalizers NFC, NFD, NFKC, NFKD, Replace, Prepend; the pre-tokenizers ByteLevel, Split, Digits, Punctuation,
 * Metaspace; the decoders ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip; the post-processors ByteLevel and
 * TemplateProcessing; and a Sequence of each kind. Other components are refused by name (MX_ERR_VALUE), and so are
 * malformed ones.
 *
 * All ids equal those of the reference, the Python package `tokenizers`. One thread at a time may use a tokenizer.
 * Nothing here is collective. */
#ifndef MX_TOKENIZER_H
#define MX_TOKENIZER_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mx_tokenizer mx_tokenizer;

/* Opens a tokenizer.json. "" or "bytes": each byte of a text is a token (ids 0 to 255, no BOS, no EOS). MX_ERR_IO for a
 * file that cannot be read. */
mx_status mx_tokenizer_open(const char *path, mx_tokenizer **out);

/* The same from the content of such a file; messages start with `name`. */
mx_status mx_tokenizer_parse(const char *json, size_t bytes, const char *name, mx_tokenizer **out);
void mx_tokenizer_close(mx_tokenizer *tokenizer); /* NULL is allowed */

/* The highest id plus one: the smallest vocab_size that a model may have. */
int64_t mx_tokenizer_vocab_size(const mx_tokenizer *tokenizer);

/* The id of a token by its text as the file spells it ("<|endoftext|>"); -1 if there is none. */
int32_t mx_tokenizer_id(const mx_tokenizer *tokenizer, const char *text, size_t bytes);

/* A token's text as the file spells it, without a zero byte at its end; false for an id without a token. */
bool mx_tokenizer_piece(const mx_tokenizer *tokenizer, int64_t id, const char **text, size_t *bytes);

/* The ids that TemplateProcessing adds before and after a text; -1: none. Other files (tokenizer_config.json, GGUF) may
 * override them: the setters take -1 or the id of a token (else MX_ERR_VALUE). */
int32_t mx_tokenizer_bos(const mx_tokenizer *tokenizer);
int32_t mx_tokenizer_eos(const mx_tokenizer *tokenizer);
mx_status mx_tokenizer_set_bos(mx_tokenizer *tokenizer, int64_t id);
mx_status mx_tokenizer_set_eos(mx_tokenizer *tokenizer, int64_t id);

enum { MX_ENCODE_BOS = 1, MX_ENCODE_EOS = 2 }; /* no effect if the tokenizer has none */

/* The ids of a text of at most 2^30 bytes. Invalid UTF-8 is read as U+FFFD, one for each maximal part of a character
 * (the tokenizer "bytes" reads all bytes unchanged). Added tokens inside the text are recognised. The caller frees
 * *ids. MX_ERR_VALUE for a longer text, and if a Split pattern needs more steps than the limit. */
mx_status mx_tokenizer_encode(mx_tokenizer *tokenizer, const char *text, size_t bytes, int flags, int32_t **ids,
                              int64_t *count);

enum { MX_DECODE_SKIP_SPECIAL = 1 }; /* leave special tokens out */

/* The bytes of ids. An id without a token gives nothing; a negative id is MX_ERR_VALUE. Invalid UTF-8 stays, where the
 * reference puts U+FFFD. The caller frees *text; a zero byte follows the *bytes bytes. */
mx_status mx_tokenizer_decode(mx_tokenizer *tokenizer, const int32_t *ids, int64_t count, int flags, char **text,
                              size_t *bytes);

/* The state of decoding id by id; all zero at the start. A token may end inside a character: the first bytes of the
 * character are held back until the rest is there. */
typedef struct mx_token_stream {
    int64_t tokens; /* number of tokens that gave text so far */
    int stripped;   /* characters removed from the start of the text */
    bool begun;     /* the part that Strip may remove is over */
    int n_held;     /* number of bytes held back */
    unsigned char held[4];
} mx_token_stream;

/* The whole characters that `id` completes, possibly none. *text is valid until the next call with this tokenizer. */
mx_status mx_tokenizer_stream(mx_tokenizer *tokenizer, mx_token_stream *stream, int64_t id, int flags,
                              const char **text, size_t *bytes);

/* A checksum that is equal for tokenizers that give the same ids. It covers the vocabulary and the ids of a text with
 * all ordinary tokens. It does not depend on the spelling in the file, its path, or settings that change no ids. Takes
 * about as long as encoding the vocabulary. */
mx_status mx_tokenizer_fingerprint(mx_tokenizer *tokenizer, uint32_t *out);

#endif
