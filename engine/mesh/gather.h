/* Gathers that are started ahead of the all_gather that asks for them. */
#ifndef MX_MESH_GATHER_H
#define MX_MESH_GATHER_H

#include "ops/op.h"

/* Starts what `call`, an all_gather that is to come with these inputs and attributes, will wait for; within
 * mx_comm.prefetch_bytes, beyond which it does nothing. Other calls are ignored. NULL: there are no more for now, so
 * that those which wait to be combined begin. Collective. */
mx_status mx_collective_prefetch(const mx_call *call);

/* Adds the gradient of a leaf over its reduce_axes, if it has some, beside what goes on. Collective. */
mx_status mx_collective_leaf_done(mx_tensor *t);

/* Lets go of what was gathered and not asked for. */
void mx_collective_forget(void);

#endif
