/* The token store: a corpus as token ids and documents, in one HDF5 file that other tools read too.
 *
 *   tokens         u16 where vocab_size <= 65536, else u32: all documents, end to end
 *   documents      i64: where each document starts in tokens, and the number of tokens: one more than documents
 *   tokens_crc32c  u32: CRC-32C of each 65,536 bytes of tokens
 *   attributes     format ("mxlua tokens"), format_version (1), vocab_size, bos and eos (-1: none), tokenizer (what the
 *                  tokens were made with) and tokenizer_fingerprint
 *
 * The values of tokens lie in one run and are read by pread, without the HDF5 library, so that a store may be read on
 * any thread (one at a time); the first read of a block verifies it. The file's seal vouches for all else. In memory
 * are the documents: 8 bytes each. Failures are MX_ERR_IO unless said; every message names the file. Not collective. */
#ifndef MX_DATA_TOKEN_STORE_H
#define MX_DATA_TOKEN_STORE_H

#include "core/status.h"
#include "io/hdf5.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mx_store_about {
    int64_t tokens, documents; /* how many; at least 1 each */
    int64_t vocab_size, bos, eos;
    const char *tokenizer, *fingerprint;
} mx_store_about;

/* Bytes of a token in a store for this vocabulary: 2 or 4. */
int mx_store_token_bytes(int64_t vocab_size);

/* ---- writing, in bounded memory: create, put all tokens and documents, commit; the file appears whole or not at all.
 * MX_ERR_VALUE for more or fewer than `about` says. ---- */

typedef struct mx_store_writer mx_store_writer;

mx_status mx_store_create(const char *path, const mx_store_about *about, mx_store_writer **out);

/* `count` tokens of mx_store_token_bytes each, little-endian. */
mx_status mx_store_put_tokens(mx_store_writer *w, const void *tokens, int64_t count);
mx_status mx_store_put_documents(mx_store_writer *w, const int64_t *lengths, int64_t count);
mx_status mx_store_commit(mx_store_writer *w); /* frees the writer, whatever the outcome */
void mx_store_abort(mx_store_writer *w);       /* the same, leaving no file; NULL is allowed */

/* ---- reading ---- */

typedef struct mx_store mx_store;

/* MX_OK with *out NULL when the file is HDF5, but no store (it lacks the attribute `format`). `file` is the same file,
 * opened by the caller, who keeps it. */
mx_status mx_store_open(const char *path, const mx_h5 *file, mx_store **out);
void mx_store_close(mx_store *store); /* NULL is allowed */

/* Texts are valid while the store is open. */
const mx_store_about *mx_store_get_about(const mx_store *store);

/* Where document d (from 0) starts; for d = documents the number of tokens. */
int64_t mx_store_document(const mx_store *store, int64_t d);

/* The checksum of all tokens and documents, going on from `crc`. */
uint32_t mx_store_fingerprint(const mx_store *store, uint32_t crc);

/* Tokens [start, start + count) as i32. MX_ERR_VALUE when they are not all there, or one is no i32. */
mx_status mx_store_read(mx_store *store, int64_t start, int64_t count, int32_t *to);

#endif
