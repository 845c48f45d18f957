/* Which sides of a slice's torus the axes of a mesh use, as JAX's mesh_utils.create_device_mesh chooses them.
 *
 * JAX places the axes from the last one (most traffic) to the first. An axis takes whole sides of the torus: as many
 * as possible, so that it has many links. If no sides multiply to its size, JAX refuses the mesh, unless
 * allow_split_physical_axes lets axes share a side. A mesh over slices (create_hybrid_device_mesh) is placed the same
 * way in each slice. JAX numbers the chips of some small slices along a ring; there, axes of any sizes follow each
 * other along the ring.
 *
 * MaxText's custom_mesh places two axes on a slice of 16 x 16 instead: the inner one on blocks of 2 x 2 or 2 x 4 chips,
 * around which it is a ring, and the outer one on these blocks. */
#ifndef MX_SIM_PLACEMENT_H
#define MX_SIM_PLACEMENT_H

#include "sim/network.h"

/* Places a mesh whose ici sizes multiply to the chips of the slice. The parts of an axis ("tensor.outer",
 * "tensor.inner") are placed as one axis and divided afterwards. MX_ERR_VALUE, with the axis and the sides that are
 * left, if JAX refuses the mesh; or if a custom mesh has other axes or another slice. */
mx_status mx_placement_choose(const mx_network *network, const mx_axis *mesh, int n, mx_placement *out);

#endif
