/* The compiler makes vectors of these loops. */
#include "kernels/context.h"

#include "kernels/nvfp4_loops.h"
#include "kernels/simd/simd.h"

const mx_fp4_paths MX_SIMD_NAME(mx_fp4) = FP4_LOOPS;
