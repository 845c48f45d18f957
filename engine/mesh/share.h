/* What ranks share beside tensors: a moment, and texts. Collective, over all ranks. */
#ifndef MX_MESH_SHARE_H
#define MX_MESH_SHARE_H

#include "mesh/mesh.h"

/* Returns when all ranks along the axes have come here. Collective among them. */
mx_status mx_barrier(mx_axes axes);

/* `data`, of the same number of bytes everywhere, becomes what it is on `root`. Collective. */
mx_status mx_broadcast_bytes(void *data, int64_t bytes, int root);

/* The text of `root`, of any length (its NUL is no part of it), into memory that the caller frees, NUL-terminated.
 * `text` and `bytes` are read on the root only; text NULL there gives NULL everywhere. Collective. */
mx_status mx_broadcast_text(const char *text, int64_t bytes, int root, char **out, int64_t *out_bytes);

#endif
