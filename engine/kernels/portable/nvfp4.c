#include "kernels/context.h"

#include "kernels/nvfp4_loops.h"

const mx_fp4_paths mx_fp4_portable = FP4_LOOPS;
