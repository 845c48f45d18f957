/* The compiler makes vectors of these loops. */
#include "kernels/context.h"

#include "kernels/simd/simd.h"

#define REAL float
#define FFT(name) name##_f32
#include "kernels/fft_loops.h"

#define REAL double
#define FFT(name) name##_f64
#include "kernels/fft_loops.h"

const mx_fft_paths MX_SIMD_NAME(mx_fft) = {block_f32, block_f64};
