#include "kernels/context.h"

#include "kernels/quantize_loops.h"

const mx_quantize_paths mx_quantize_portable = QUANTIZE_LOOPS;
