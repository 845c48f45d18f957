/* What moe.c and moe_recorded.c share: the options of moe_route, and gradients of moe_route and moe_combine that have
 * gradients themselves. */
#ifndef MX_OPS_MOE_H
#define MX_OPS_MOE_H

#include "kernels/moe.h"
#include "ops/op.h"

typedef struct mx_route_attr {
    int64_t top;
    int score, normalize, group_score; /* score: an mx_score; group_score: a choice */
    double scale;
    int64_t groups, top_groups;
    mx_seed seed;
    int64_t offset;
} mx_route_attr;

/* vjp_recorded of moe_route, and of a moe_combine with weights. */
mx_status mx_moe_route_recorded(mx_vjp *v);
mx_status mx_moe_combine_recorded(mx_vjp *v);

#endif
