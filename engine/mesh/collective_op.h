/* Declarations that the collective operations share: collective.c reduces and moves whole tensors, gather.c splits and
 * gathers them. Only for these files. */
#ifndef MX_MESH_COLLECTIVE_OP_H
#define MX_MESH_COLLECTIVE_OP_H

#include "mesh/comm.h"
#include "ops/rows.h"

typedef enum mx_collective_reduction {
    MX_COLLECTIVE_SUM,
    MX_COLLECTIVE_MEAN,
    MX_COLLECTIVE_MAX
} mx_collective_reduction;

/* One struct for all operations; each reads the fields that its attributes name. */
typedef struct mx_collective_attr {
    mx_axes axis;
    int op;    /* an mx_collective_reduction */
    int grad;  /* how to compute the gradient: see the operation */
    int dtype; /* of the result; -1: that of x */
    int64_t dim, split, concat;
    int64_t length; /* all_gather: of the result along dim; 0: the ranks' parts are equal */
    int64_t root, shift;
    bool async, async_grad;
} mx_collective_attr;

extern const char *const mx_collective_inputs[];     /* "x" */
extern const char *const mx_collective_reductions[]; /* "sum", "mean", "max" */

#define MX_COLLECTIVE_AXIS                                                                                             \
    {                                                                                                                  \
        "axis", MX_ATTR_AXES, offsetof(mx_collective_attr, axis), 0, NULL,                                             \
            "mesh axis or list of axes; default: all ranks"                                                            \
    }
#define MX_COLLECTIVE_ASYNC                                                                                            \
    {                                                                                                                  \
        "async", MX_ATTR_BOOL, offsetof(mx_collective_attr, async), 0, NULL,                                           \
            "return at once; use of the values waits (t:wait())"                                                       \
    }
#define MX_COLLECTIVE_OP                                                                                               \
    {                                                                                                                  \
        "op", MX_ATTR_ENUM, offsetof(mx_collective_attr, op), MX_COLLECTIVE_SUM, mx_collective_reductions,             \
            "reduction over the ranks"                                                                                 \
    }
#define MX_COLLECTIVE_DIM                                                                                              \
    {                                                                                                                  \
        "dim", MX_ATTR_DIM, offsetof(mx_collective_attr, dim), 0, NULL, "dimension that is split over the ranks"       \
    }
#define MX_COLLECTIVE_DTYPE                                                                                            \
    {                                                                                                                  \
        "dtype", MX_ATTR_DTYPE, offsetof(mx_collective_attr, dtype), -1, NULL,                                         \
            "dtype of the result, f32 or bf16; default: that of x"                                                     \
    }

static inline const mx_collective_attr *mx_collective_attrs(const mx_call *call) { return mx_call_attr(call); }

/* For infer, which normalises a dimension counted from the end, or a shift. */
static inline mx_collective_attr *mx_collective_writable(mx_call *call)
{
    return (mx_collective_attr *)(void *)call->attr;
}

/* Number of ranks in the group. */
static inline int mx_collective_size(const mx_call *call) { return mx_mesh_size(mx_collective_attrs(call)->axis); }

/* The part of `size` elements that this rank has: mx_part_size. */
static inline int64_t mx_collective_part(const mx_call *call, int64_t size)
{
    return mx_part_size(size, mx_collective_size(call), mx_mesh_index(mx_collective_attrs(call)->axis));
}

/* Checks of infer: the dimension (which becomes 0-based); that the number of ranks divides it; that the reduction
 * exists for x's dtype; and the result's dtype, where floats may be converted to each other. */
mx_status mx_collective_check_dim(const mx_call *call, int64_t *dim, const char *name);
mx_status mx_collective_check_divides(const mx_call *call, int64_t dim);
mx_status mx_collective_check_reduction(const mx_call *call);
mx_status mx_collective_dtype(const mx_call *call, mx_dtype *dtype);

/* The cost of a call after infer. In place, the output is the input. */
mx_cost mx_collective_cost(const mx_call *call, mx_exchange_kind kind);

/* The transfer of a call; the caller sets its blocks and count. */
mx_transfer mx_collective_transfer(const mx_call *call, mx_exchange_kind kind);

/* For the tape: whether the gradient of the call is an exchange in the background (mx_tape_hooks). */
bool mx_collective_hurries(const mx_call *call);

/* For vjp: apply an operation to one tensor; multiply x by a number. */
mx_status mx_collective_apply(const mx_op *op, mx_tensor *x, const mx_collective_attr *a, mx_tensor **y);
mx_status mx_collective_scale(mx_tensor *x, double scale, mx_tensor **y);

#endif
