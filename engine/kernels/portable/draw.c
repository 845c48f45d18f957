#include "kernels/context.h"

#include "kernels/draw_loops.h"

const mx_draw_paths mx_draws_portable = {.truncate = loops_truncate, .within = loops_within, .sums = loops_sums};
