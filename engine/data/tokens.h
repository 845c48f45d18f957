/* Token files: read long sequences of token ids in pieces, as i32.
 *
 *   bin   little-endian; either uint16 without a header, as nanoGPT writes it, or with llm.c's header of 256 int32 that
 *         begin with magic 20240520, version 1 and the count (uint16 tokens), or 20240801, 7 and the count (uint32
 * tokens) hdf5  a one-dimensional dataset "tokens" of integers of any width; a token store (token_store.h) also has
 * documents text  any file: each byte is a token
 *
 * The file is checked when it is opened and read at each call, so memory use does not depend on its size. MX_ERR_IO:
 * the file has another format (recognised by its first bytes and named, format.h), its size is odd or contradicts its
 * header, it is empty, or it seems to hold uint32 tokens without a header. Not thread-safe. Not collective: all ranks
 * may open the same file. */
#ifndef MX_DATA_TOKENS_H
#define MX_DATA_TOKENS_H

#include "core/tensor.h"
#include "data/token_store.h"

typedef struct mx_tokens mx_tokens;

/* format: "bin", "hdf5", "text", or "auto": bin for .bin, hdf5 for .h5 and .hdf5, text for any other name. */
mx_status mx_tokens_open(const char *path, const char *format, mx_tokens **out);
void mx_tokens_close(mx_tokens *tokens); /* NULL is allowed */

int64_t mx_tokens_count(const mx_tokens *tokens);
const char *mx_tokens_path(const mx_tokens *tokens);
const char *mx_tokens_format(const mx_tokens *tokens);

/* The token store, if the file is one; otherwise NULL. */
const mx_store *mx_tokens_store(const mx_tokens *tokens);

/* Whether other threads than the script's may read the file (one thread at a time). False if the HDF5 library must read
 * it. */
bool mx_tokens_any_thread(const mx_tokens *tokens);

/* A checksum of the number of tokens and the first and last tokens; for a store, of all tokens. It detects other
 * contents, except changes in the middle of a file that is not a store. */
mx_status mx_tokens_fingerprint(mx_tokens *tokens, uint32_t *out);

/* Reads `count` tokens from position `start` on, counted from 0. MX_ERR_VALUE if the file has fewer. */
mx_status mx_tokens_read(mx_tokens *tokens, int64_t start, int64_t count, int32_t *to);

/* The largest token id in the file, found by reading the whole file once; -1 without tokens. MX_ERR_VALUE for a
 * negative id. */
mx_status mx_tokens_max(mx_tokens *tokens, int32_t *max);

#endif
