#include "kernels/context.h"

#include "kernels/draw_loops.h"
#include "kernels/simd/simd.h"

const mx_draw_paths MX_SIMD_NAME(mx_draws) = {.truncate = loops_truncate, .within = loops_within, .sums = loops_sums};
