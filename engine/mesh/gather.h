/* Gathers that are started ahead of the all_gather that asks for them. */
#ifndef MX_MESH_GATHER_H
#define MX_MESH_GATHER_H

#include "mesh/mesh.h"
#include "ops/op.h"

enum { MX_MAX_GATHERS_AHEAD = 256 };

/* The gathers of a device that were started ahead of the calls for them. */
struct mx_gather_state {
    int n;
    int64_t bytes; /* of their results */
    struct mx_gather_ahead {
        mx_storage *in; /* kept, so that its address is not given away */
        int64_t offset;
        uint64_t changes; /* of the storage when it was started: values may have changed since */
        mx_shape shape;
        mx_axes axis;
        int64_t dim;
        int dtype; /* of the result, an mx_dtype; -1: as x */
        mx_tensor *out;
    } ahead[MX_MAX_GATHERS_AHEAD];
};

/* Starts what `call`, an all_gather that is to come with these inputs and attributes, will wait for; within
 * mx_comm.prefetch_bytes, beyond which it does nothing. Other calls are ignored. NULL: there are no more for now, so
 * that those which wait to be combined begin. Collective. */
mx_status mx_collective_prefetch(const mx_call *call);

/* Adds the gradient of a leaf over its reduce_axes, if it has some, beside what goes on. Collective. */
mx_status mx_collective_leaf_done(mx_tensor *t);

/* Lets go of what was gathered and not asked for. */
void mx_collective_forget(void);

#endif
