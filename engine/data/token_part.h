/* Parts: what preparing a corpus leaves behind piece by piece, until all of them are put together in a token store.
 *
 * A part is a file with the tokens (2 or 4 bytes each, little-endian), the lengths of the documents (i64) and a footer
 * that says how many there are and vouches for them. It appears whole or not at all. In memory are 8 bytes for each of
 * its documents. Failures are MX_ERR_IO unless said. Not collective. */
#ifndef MX_DATA_TOKEN_PART_H
#define MX_DATA_TOKEN_PART_H

#include "data/tokens.h"

typedef struct mx_part_writer mx_part_writer;

mx_status mx_part_create(const char *path, int token_bytes, mx_part_writer **out); /* 2 or 4 */

/* A document: MX_ERR_VALUE for an id that does not fit into token_bytes. One of no tokens is left out. */
mx_status mx_part_add(mx_part_writer *w, const int32_t *tokens, int64_t count);

/* All tokens of a file, with its documents where it is a store. In another each `separator` (-1: none) ends one.
 * MX_ERR_VALUE for a token that is not below vocab_size, with its position. */
mx_status mx_part_copy(mx_part_writer *w, mx_tokens *from, int32_t separator, int64_t vocab_size);

/* Frees the writer, whatever the outcome. `skipped`: documents that were left out, for the footer. */
mx_status mx_part_commit(mx_part_writer *w, int64_t skipped);
void mx_part_abort(mx_part_writer *w); /* NULL is allowed */

typedef struct mx_part_about {
    int64_t token_bytes, tokens, documents, skipped;
} mx_part_about;

/* What a part says it has, checked against its size. */
mx_status mx_part_read_about(const char *path, mx_part_about *about);

/* Puts parts together, in their order, in a store at `path`; of `about` only the vocabulary and the tokenizer are read.
 * Verifies all that it reads. MX_ERR_VALUE when they hold no tokens. */
mx_status mx_parts_merge(const char *const *paths, int64_t count, const char *path, mx_store_about *about);

#endif
