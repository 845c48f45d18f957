/* Gathers that are started ahead of the all_gather that asks for them. */
#ifndef MX_MESH_COLLECTIVE_H
#define MX_MESH_COLLECTIVE_H

#include "ops/op.h"

/* Starts what `call`, an all_gather that is to come with these inputs and attributes, will wait for; within
 * mx_comm.prefetch_bytes, beyond which it does nothing. Other calls are ignored. Collective. */
mx_status mx_collective_prefetch(const mx_call *call);

/* Lets go of what was gathered and not asked for. */
void mx_collective_forget(void);

#endif
