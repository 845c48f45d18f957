/* The list of operations. Each is defined in the file of its family; what is not listed here does not exist. */
#ifndef MX_OPS_TABLE_H
#define MX_OPS_TABLE_H

#include "ops/op.h"

#define MX_OPS(X)                                                                                                      \
    /* matmul.c */                                                                                                     \
    X(matmul)                                                                                                          \
    X(matmul_acc)                                               /* elementwise.c */                                    \
        X(add) X(sub) X(mul) X(div) X(add_acc) X(affine) X(pow) /* cast.c */                                           \
        X(cast)

#define MX_DECLARE_OP(name) extern const mx_op mx_op_##name;
MX_OPS(MX_DECLARE_OP)
#undef MX_DECLARE_OP

#endif
