#include "kernels/context.h"

#include "kernels/loops.h"
#include "kernels/simd/simd.h"

const mx_loop_paths MX_SIMD_NAME(mx_loops) = {.pair = loops_pair,
                                              .compare = loops_compare,
                                              .select = loops_select,
                                              .to_f32 = loops_to_f32,
                                              .to_bf16 = loops_to_bf16};
