/* Token files: long sequences of token ids, read in pieces as i32.
 *
 *   bin   uint16, little-endian; with a header of 256 int32 (magic 20240520, version 1, count) as llm.c writes it, or
 *         none, as nanoGPT does. Which one it is shows in the first bytes.
 *   hdf5  the dataset "tokens" of one dimension, integers of any width
 *   text  any file: each byte is a token
 *
 * The file is checked when it is opened (MX_ERR_IO: size odd, header and size at odds, empty), and read at each call,
 * so memory does not grow with it. Not thread-safe. Not collective: each rank may open the same file. */
#ifndef MX_IO_TOKENS_H
#define MX_IO_TOKENS_H

#include "core/tensor.h"

typedef struct mx_tokens mx_tokens;

/* format: "bin", "hdf5", "text", or "auto": bin for .bin, hdf5 for .h5 and .hdf5, text for any other name. */
mx_status mx_tokens_open(const char *path, const char *format, mx_tokens **out);
void mx_tokens_close(mx_tokens *tokens); /* NULL is allowed */

int64_t mx_tokens_count(const mx_tokens *tokens);
const char *mx_tokens_path(const mx_tokens *tokens);
const char *mx_tokens_format(const mx_tokens *tokens);

/* `count` tokens from position `start` on, the first being 0. MX_ERR_VALUE when they are not all in the file. */
mx_status mx_tokens_read(mx_tokens *tokens, int64_t start, int64_t count, int32_t *to);

/* The largest token id in the file, found by reading all of it once; -1 without tokens. MX_ERR_VALUE for a negative id.
 */
mx_status mx_tokens_max(mx_tokens *tokens, int32_t *max);

#endif
