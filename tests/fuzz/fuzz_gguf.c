/* Fuzz target (libFuzzer) for GGUF files. The input follows the magic. `make fuzz` builds and runs it. */
#define _GNU_SOURCE
#include "memory_file.h"
#include "read_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    int fd = memory_file("GGUF", data, bytes, path);
    read_weights(path);
    close(fd);
    return 0;
}
