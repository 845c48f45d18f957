#include "kernels/context.h"

#include "kernels/loops.h"

const mx_loop_paths mx_loops_portable = {.pair = loops_pair,
                                         .compare = loops_compare,
                                         .select = loops_select,
                                         .to_f32 = loops_to_f32,
                                         .to_bf16 = loops_to_bf16};
