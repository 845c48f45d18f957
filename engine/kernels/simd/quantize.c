#include "kernels/context.h"

#include "kernels/quantize_loops.h"
#include "kernels/simd/simd.h"

const mx_quantize_paths MX_SIMD_NAME(mx_quantize) = QUANTIZE_LOOPS;
