/* Token files: long sequences of token ids, read in pieces as i32.
 *
 *   bin   little-endian: uint16 without a header, as nanoGPT writes it, or what the header of llm.c says: 256 int32,
 *         the first three magic 20240520, version 1 and the count (of uint16) or 20240801, 7 and the count (of uint32)
 *   hdf5  the dataset "tokens" of one dimension, integers of any width; a token store (token_store.h) has documents
 *   text  any file: each byte is a token
 *
 * The file is checked when it is opened, and read at each call, so memory does not grow with it. MX_ERR_IO: it is of
 * another format (told by its first bytes and named, format.h), its size is odd or not what its header says, it is
 * empty, or it seems to hold uint32 tokens without a header. Not thread-safe. Not collective: each rank may open the
 * same file. */
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

/* What the file says of itself where it is a token store; NULL elsewhere. */
const mx_store *mx_tokens_store(const mx_tokens *tokens);

/* Whether another thread than the script's may read it (one thread at a time): what the HDF5 library must read, it may
 * not. */
bool mx_tokens_any_thread(const mx_tokens *tokens);

/* A checksum of the number of tokens, the first and the last ones, and of a store all of them: other contents are told
 * by it, but for changes in the middle of a file that is no store. */
mx_status mx_tokens_fingerprint(mx_tokens *tokens, uint32_t *out);

/* `count` tokens from position `start` on, the first being 0. MX_ERR_VALUE when they are not all in the file. */
mx_status mx_tokens_read(mx_tokens *tokens, int64_t start, int64_t count, int32_t *to);

/* The largest token id in the file, found by reading all of it once; -1 without tokens. MX_ERR_VALUE for a negative id.
 */
mx_status mx_tokens_max(mx_tokens *tokens, int32_t *max);

#endif
