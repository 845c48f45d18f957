/* The token store: a corpus of token ids and documents, in one HDF5 file that other tools can read too.
 *
 *   tokens         u16 if vocab_size <= 65536, else u32: the tokens of all documents, joined
 *   documents      i64: where each document starts in tokens, and at the end the number of tokens
 *   tokens_crc32c  u32: CRC-32C of each 65,536 bytes of tokens
 *   attributes     format ("mxlua tokens"), format_version (1), vocab_size, bos and eos (-1: none), tokenizer (the one
 *                  that made the tokens) and tokenizer_fingerprint
 *
 * The tokens are contiguous in the file and are read with pread, without the HDF5 library, so any thread may read a
 * store (one at a time). The first read of a block verifies its checksum; the file's seal covers everything else.
 * Memory: 8 bytes per document. Failures are MX_ERR_IO unless said otherwise; every message names the file. Not
 * collective. */
#ifndef MX_DATA_TOKEN_STORE_H
#define MX_DATA_TOKEN_STORE_H

#include "core/status.h"
#include "io/hdf5.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mx_store_about {
    int64_t tokens, documents; /* their numbers; at least 1 each */
    int64_t vocab_size, bos, eos;
    const char *tokenizer, *fingerprint;
} mx_store_about;

/* Bytes of a token in a store for this vocabulary: 2 or 4. */
int mx_store_token_bytes(int64_t vocab_size);

/* ---- writing, in bounded memory: create, put all tokens and documents, commit; the complete file appears at the
 * commit, or no file. MX_ERR_VALUE if the numbers differ from those in `about`. ---- */

typedef struct mx_store_writer mx_store_writer;

mx_status mx_store_create(const char *path, const mx_store_about *about, mx_store_writer **out);

/* `count` tokens of mx_store_token_bytes each, little-endian. */
mx_status mx_store_put_tokens(mx_store_writer *w, const void *tokens, int64_t count);
mx_status mx_store_put_documents(mx_store_writer *w, const int64_t *lengths, int64_t count);
mx_status mx_store_commit(mx_store_writer *w); /* frees the writer, whatever the outcome */
void mx_store_abort(mx_store_writer *w);       /* frees the writer and leaves no file; NULL is allowed */

/* ---- reading ---- */

typedef struct mx_store mx_store;

/* MX_OK with *out NULL if the HDF5 file is not a store (it lacks the attribute `format`). `file` is the same file,
 * opened by the caller, who still owns it. */
mx_status mx_store_open(const char *path, const mx_h5 *file, mx_store **out);
void mx_store_close(mx_store *store); /* NULL is allowed */

/* The texts are valid while the store is open. */
const mx_store_about *mx_store_get_about(const mx_store *store);

/* Where document d (from 0) starts; for d = documents the number of tokens. */
int64_t mx_store_document(const mx_store *store, int64_t d);

/* The checksum of all tokens and documents, continued from `crc`. */
uint32_t mx_store_fingerprint(const mx_store *store, uint32_t crc);

/* Reads tokens [start, start + count) as i32. MX_ERR_VALUE if the store has fewer, or if a token does not fit i32. */
mx_status mx_store_read(mx_store *store, int64_t start, int64_t count, int32_t *to);

#endif
