/* What the fuzz targets read as a file: bytes in memory that have a path. */
#ifndef MEMORY_FILE_H
#define MEMORY_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A file of `start` and the bytes after it; the caller closes what it returns. */
static inline int memory_file(const char *start, const uint8_t *data, size_t bytes, char path[64])
{
    int fd = memfd_create("fuzz", 0);
    size_t before = strlen(start);
    if (fd < 0 || write(fd, start, before) != (ssize_t)before || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
