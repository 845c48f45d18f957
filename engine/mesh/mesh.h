/* The mesh: arranges the ranks on named axes, and finds the groups of ranks along axes.
 *
 * A rank has a coordinate on each axis. Ranks that differ only in their coordinates on some axes form a group along
 * these axes. Ranks are laid out slice by slice, where a slice is a set of devices with a fast network between them:
 * rank = slice * ranks per slice + index in the slice, both row-major over the axes in their order. So the coordinate
 * on an axis is dcn coordinate * ici + ici coordinate. Members of a group are ordered by rank. */
#ifndef MX_MESH_MESH_H
#define MX_MESH_MESH_H

#include "transport/group.h"

enum { MX_MAX_AXES = 12 };

typedef struct mx_axis {
    char name[32];
    int ici, dcn; /* size of the axis within a slice, and across slices */
} mx_axis;

/* The layout of ranks on any axes, not only those of the mesh: the coordinate of a rank on each axis, from 0, and the
 * inverse. These two functions define the layout; all other code uses them. Pure; not collective. */
void mx_axes_coordinates(const mx_axis *axes, int n, int64_t rank, int *coordinate);
int64_t mx_axes_rank(const mx_axis *axes, int n, const int *coordinate);

/* A set of axes as a bit mask; 0 means all ranks. */
typedef uint32_t mx_axes;

/* All ranks in mx_tensor.reduce_axes, where 0 means none. */
#define MX_ALL_RANKS (1u << 31)

/* The mesh of a device. The functions below use the mesh of the current device. */
struct mx_mesh_state {
    mx_axis axes[MX_MAX_AXES];
    int n;
    mx_group *found[1 << MX_MAX_AXES]; /* its groups by their axes; NULL: not created yet */
};

/* Sets the mesh, the same on all ranks. MX_ERR_VALUE if the product of the sizes is not the number of ranks. */
mx_status mx_mesh_define(const mx_axis *axes, int n);

/* Removes the mesh: the state at the start. */
void mx_mesh_forget(void);

/* The bit of an axis; MX_ERR_VALUE, with the valid names, for an unknown name. An axis may be defined in parts,
 * "tensor.outer" and "tensor.inner": "tensor" then gives the bits of both. */
mx_status mx_mesh_find(const char *name, mx_axes *axis);

/* The axes of the mesh, in their order; returns their number. */
int mx_mesh_axes(const mx_axis **axes);

const char *mx_mesh_text(mx_axes axes); /* "fsdp+tensor", "all ranks"; valid until the next call */

/* This rank's group along the axes: its number of ranks, the index of this rank in it, and its world ranks (`ranks` has
 * room for mx_ranks() of them). */
int mx_mesh_size(mx_axes axes);
int mx_mesh_index(mx_axes set);
int mx_mesh_ranks(mx_axes set, int *ranks);

/* The group along the axes. Collective among its ranks at the first call, when has_group is still false. */
bool mx_mesh_has_group(mx_axes axes);
mx_status mx_mesh_group(mx_axes axes, mx_group **out);

#endif
