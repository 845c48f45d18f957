/* The loops that peak.c times, one set per path. */
#ifndef MX_KERNELS_PEAK_SIMD_H
#define MX_KERNELS_PEAK_SIMD_H

#include <stdint.h>

/* Does `rounds` rounds and returns the operations done; *result keeps the compiler from doing none. */
typedef double mx_peak_loop(int64_t rounds, float *result);

mx_peak_loop mx_peak_f32_avx2, mx_peak_f32_avx512, mx_peak_f32_avx512_bf16;
mx_peak_loop mx_peak_bf16_avx512_bf16, mx_peak_bf16_amx;

/* n floats by streaming stores; n a multiple of 64, `to` aligned to 64 bytes. */
typedef void mx_peak_copy_loop(float *to, const float *from, int64_t n);

mx_peak_copy_loop mx_peak_copy_stream_avx2, mx_peak_copy_stream_avx512, mx_peak_copy_stream_avx512_bf16;

#endif
