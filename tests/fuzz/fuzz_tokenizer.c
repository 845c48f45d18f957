/* Fuzz target (libFuzzer) for tokenizers: a tokenizer.json, and after a zero byte a text for it. What is read encodes
 * the text, or says why not; what it gives decodes to the same bytes at once and id by id. */
#include "tokenizer/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_stream(mx_tokenizer *tokenizer, const int32_t *ids, int64_t count, const char *text, size_t bytes)
{
    mx_token_stream stream = {0};
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *part;
        size_t length;
        if (mx_tokenizer_stream(tokenizer, &stream, ids[i], 0, &part, &length) != MX_OK)
            abort();
        if (at + length > bytes || memcmp(text + at, part, length) != 0)
            abort();
        at += length;
    }
    if (at + (size_t)stream.n_held != bytes || memcmp(text + at, stream.held, bytes - at) != 0)
        abort();
}

static void use(mx_tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t *ids;
    int64_t count;
    char *decoded;
    size_t length;
    if (mx_tokenizer_encode(tokenizer, text, bytes, MX_ENCODE_BOS | MX_ENCODE_EOS, &ids, &count) != MX_OK)
        return;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= mx_tokenizer_vocab_size(tokenizer))
            abort();
    if (mx_tokenizer_decode(tokenizer, ids, count, 0, &decoded, &length) != MX_OK)
        abort();
    check_stream(tokenizer, ids, count, decoded, length);
    free(decoded);
    if (mx_tokenizer_decode(tokenizer, ids, count, MX_DECODE_SKIP_SPECIAL, &decoded, &length) != MX_OK)
        abort();
    free(decoded);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    size_t json_bytes = text ? (size_t)(text - (const char *)data) : bytes;
    static const char sample[] = "The 3rd  word\n\xc3\xa9\xff e\xcc\x81 <s>";
    mx_tokenizer *tokenizer;
    if (mx_tokenizer_parse((const char *)data, json_bytes, "fuzz", &tokenizer) != MX_OK)
        return 0;
    if (text)
        use(tokenizer, text + 1, bytes - json_bytes - 1);
    use(tokenizer, sample, sizeof sample - 1);
    uint32_t fingerprint, again;
    if (mx_tokenizer_fingerprint(tokenizer, &fingerprint) == MX_OK &&
        (mx_tokenizer_fingerprint(tokenizer, &again) != MX_OK || again != fingerprint))
        abort();
    mx_tokenizer_close(tokenizer);
    return 0;
}
