/* Barrier and broadcast of bytes and texts between ranks. Collective over all ranks, unless said otherwise. */
#ifndef MX_MESH_SHARE_H
#define MX_MESH_SHARE_H

#include "mesh/mesh.h"

/* A barrier over the ranks along the axes. Collective among them. */
mx_status mx_barrier(mx_axes axes);

/* Broadcasts `data` from `root`; `bytes` is the same on all ranks. Collective. */
mx_status mx_broadcast_bytes(void *data, int64_t bytes, int root);

/* Broadcasts a text of any length from `root`; `bytes` does not count its NUL. *out is NUL-terminated and freed by the
 * caller. `text` and `bytes` are read only on the root; NULL there gives NULL on all ranks. It takes no simulated time.
 * Collective. */
mx_status mx_broadcast_text(const char *text, int64_t bytes, int root, char **out, int64_t *out_bytes);

#endif
