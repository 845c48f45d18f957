/* The reductions of losses. */
#ifndef MX_OPS_LOSS_REDUCTION_H
#define MX_OPS_LOSS_REDUCTION_H

typedef enum mx_loss_reduction { MX_REDUCE_MEAN, MX_REDUCE_SUM, MX_REDUCE_NONE } mx_loss_reduction;
extern const char *const mx_reductions[]; /* their names, for an MX_ATTR_ENUM */

#endif
