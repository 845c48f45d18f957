/* Prefetch: starts gathers before the all_gather calls that need them. */
#ifndef MX_MESH_GATHER_H
#define MX_MESH_GATHER_H

#include "mesh/mesh.h"
#include "ops/op.h"

enum { MX_MAX_GATHERS_AHEAD = 256 };

/* The prefetched gathers of a device. */
struct mx_gather_state {
    int n;
    int64_t bytes; /* size of their results */
    struct mx_gather_ahead {
        mx_storage *in; /* retained, so that its address is not used again */
        int64_t offset;
        uint64_t changes; /* the storage's counter of changes at the start: values may have changed since */
        mx_shape shape;
        mx_axes axis;
        int64_t dim, length;
        int dtype; /* of the result, an mx_dtype; -1: that of x */
        mx_tensor *out;
    } ahead[MX_MAX_GATHERS_AHEAD];
};

/* Prefetches the result of `call`, an all_gather that will come with these inputs and attributes. Does nothing beyond
 * mx_comm.prefetch_bytes, or for other operations. NULL means that no more prefetches come for now, so that the open
 * bucket begins. Collective. */
mx_status mx_collective_prefetch(const mx_call *call);

/* All-reduces the gradient of a leaf over its reduce_axes, if it has some, in the background. Collective. */
mx_status mx_collective_leaf_done(mx_tensor *t);

/* Discards prefetched gathers that were not used. */
void mx_collective_forget(void);

#endif
