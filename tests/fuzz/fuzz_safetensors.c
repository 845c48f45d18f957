/* Fuzz target (libFuzzer) for safetensors files: what opens can be read, whole and by rows. `make fuzz` builds and runs
 * it. */
#define _GNU_SOURCE
#include "io/weights.h"
#include "memory_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void read_tensor(mx_weights *w, const mx_stored_tensor *from)
{
    mx_tensor *t;
    mx_status status = mx_weights_read(w, from->name, 0, -1, &t);
    if (status == MX_OK)
        mx_release(t);
    else if (status == MX_ERR_IO || status == MX_ERR_SHAPE)
        abort(); /* opened: all of it is there */
    if (from->shape.n_dims > 0 && mx_weights_read(w, from->name, from->shape.size[0] / 2, 1, &t) == MX_OK)
        mx_release(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[64];
    mx_weights *w;
    if (bytes >= 4 && memcmp(data, "GGUF", 4) == 0)
        return 0; /* the other target's */
    int fd = memory_file("", data, bytes, path);
    if (mx_weights_open(path, &w) == MX_OK) {
        for (int64_t i = 0; i < w->count; i++)
            read_tensor(w, &w->tensors[i]);
        mx_weights_close(w);
    }
    close(fd);
    return 0;
}
