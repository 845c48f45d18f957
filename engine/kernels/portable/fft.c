#include "kernels/context.h"

#define REAL float
#define FFT(name) name##_f32
#include "kernels/fft_loops.h"

#define REAL double
#define FFT(name) name##_f64
#include "kernels/fft_loops.h"

const mx_fft_paths mx_fft_portable = {block_f32, block_f64};
