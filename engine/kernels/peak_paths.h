/* The loops that peak.c times. */
#ifndef MX_KERNELS_PEAK_PATHS_H
#define MX_KERNELS_PEAK_PATHS_H

#include <stdint.h>

typedef struct mx_peak_path {
    const char *instruction; /* as mx_peak_instruction gives it */
    /* Does `rounds` rounds and returns the operations done; *result keeps the compiler from doing none. */
    double (*loop)(int64_t rounds, float *result);
} mx_peak_path;

typedef struct mx_peak_copy_paths {
    /* n floats by streaming stores where there are such; n a multiple of 64, `to` aligned to 64 bytes. */
    void (*copy)(float *to, const float *from, int64_t n);
} mx_peak_copy_paths;

#endif
