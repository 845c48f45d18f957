/* Parts: intermediate files of the preparation of a corpus, which are merged to a token store at the end.
 *
 * A part holds the tokens (2 or 4 bytes each, little-endian), the lengths of the documents (i64), and a footer with
 * their numbers and checksums. The complete file appears at the commit, or no file. Memory: 8 bytes per document.
 * Failures are MX_ERR_IO unless said otherwise. Not collective. */
#ifndef MX_DATA_TOKEN_PART_H
#define MX_DATA_TOKEN_PART_H

#include "data/tokens.h"

typedef struct mx_part_writer mx_part_writer;

mx_status mx_part_create(const char *path, int token_bytes, mx_part_writer **out); /* 2 or 4 */

/* Adds a document; an empty one is left out. MX_ERR_VALUE for an id that does not fit token_bytes. */
mx_status mx_part_add(mx_part_writer *w, const int32_t *tokens, int64_t count);

/* Adds all tokens of a file. A token store keeps its documents. In another file each `separator` token ends a document
 * (-1: the file is one document). MX_ERR_VALUE, with the position, for a token that is not below vocab_size. */
mx_status mx_part_copy(mx_part_writer *w, mx_tokens *from, int32_t separator, int64_t vocab_size);

/* Frees the writer, whatever the outcome. `skipped`: number of skipped documents, stored in the footer. */
mx_status mx_part_commit(mx_part_writer *w, int64_t skipped);
void mx_part_abort(mx_part_writer *w); /* NULL is allowed */

typedef struct mx_part_about {
    int64_t token_bytes, tokens, documents, skipped;
} mx_part_about;

/* Reads the footer of a part and checks it against the file's size. */
mx_status mx_part_read_about(const char *path, mx_part_about *about);

/* Merges parts, in this order, to a store at `path`. Uses only the vocabulary and tokenizer fields of `about`. Verifies
 * everything that it reads. MX_ERR_VALUE if the parts hold no tokens. */
mx_status mx_parts_merge(const char *const *paths, int64_t count, const char *path, mx_store_about *about);

#endif
