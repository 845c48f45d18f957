/* Fuzz target (libFuzzer) for safetensors files. `make fuzz` builds and runs it. */
#define _GNU_SOURCE
#include "memory_file.h"
#include "read_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    if (bytes >= 4 && memcmp(data, "GGUF", 4) == 0)
        return 0; /* the other target's */
    int fd = memory_file("", data, bytes, path);
    read_weights(path);
    close(fd);
    return 0;
}
