/* Fuzz target (libFuzzer) for everything that reads bytes of others: the first byte chooses the reader.
 * `make fuzz` builds and runs it.
 *
 * HDF5 files are fuzzed as sealed ones only: the library itself does not survive damaged files (engine/io/README.md).
 */
#define _GNU_SOURCE
#include "data/json_line.h"
#include "data/tokens.h"
#include "io/file.h"
#include "io/hdf5.h"
#include "io/json.h"
#include "io/seal.h"
#include "io/yaml.h"
#include "memory_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void write_json(mx_value *value)
{
    char *text;
    size_t length;
    mx_value again;
    if (mx_json_encode(value, 0, &text, &length) != MX_OK)
        return;
    if (mx_json_parse(text, length, "again", &again) != MX_OK) /* what we write, we read */
        abort();
    mx_value_free(&again);
    free(text);
}

static void read_tokens(const char *path, const char *format)
{
    mx_tokens *tokens;
    int32_t piece[64], max;
    if (mx_tokens_open(path, format, &tokens) != MX_OK)
        return;
    int64_t count = mx_tokens_count(tokens);
    if (mx_tokens_read(tokens, count > 64 ? count - 64 : 0, count < 64 ? count : 64, piece) != MX_OK)
        abort(); /* opened: all of it is there */
    (void)mx_tokens_max(tokens, &max);
    mx_tokens_close(tokens);
}

/* The text of a line is never longer than the line, and is UTF-8: as a JSON string it is read again. */
static void read_line(const char *line, size_t bytes)
{
    char *text;
    size_t length;
    if (mx_json_line_text(line, bytes, "text", &text, &length) != MX_OK || !text)
        return;
    mx_value value = {.kind = MX_NULL};
    if (length > bytes || mx_value_set_string(&value, text, length) != MX_OK)
        abort();
    free(text);
    if (mx_json_encode(&value, 0, &text, &length) != MX_OK)
        abort();
    free(text);
    mx_value_free(&value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    mx_value value = {.kind = MX_NULL};
    char path[64];
    if (bytes == 0)
        return 0;
    const char *text = (const char *)data + 1;
    int fd = memory_file("", data + 1, bytes - 1, path);
    switch (data[0] % 5) {
    case 0:
        if (mx_yaml_parse(text, bytes - 1, "fuzz", &value) == MX_OK)
            write_json(&value);
        break;
    case 1:
        if (mx_json_parse(text, bytes - 1, "fuzz", &value) == MX_OK)
            write_json(&value);
        break;
    case 2:
        read_tokens(path, "bin");
        read_tokens(path, "text");
        break;
    case 4:
        read_line(text, bytes - 1);
        break;
    default:
        (void)mx_seal_check(fd, path, (int64_t)bytes - 1);
    }
    mx_value_free(&value);
    close(fd);
    return 0;
}
