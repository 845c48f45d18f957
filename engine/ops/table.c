#include "ops/table.h"

#define MX_OP_POINTER(name) &mx_op_##name,
const mx_op *const mx_ops[] = {MX_OPS(MX_OP_POINTER) NULL};
