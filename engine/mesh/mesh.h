/* The mesh: names for the ways in which ranks are arranged, and the groups that follow from them.
 *
 * A rank has a coordinate on each axis; the ranks that differ only on some axes form a group along these. Ranks are
 * laid out slice by slice (a slice: devices with a fast network between them): rank = slice * ranks per slice + place
 * in the slice, both row-major over the axes in their order. The coordinate on an axis is then dcn coordinate * ici +
 * ici coordinate. Within a group members are in the order of their ranks. */
#ifndef MX_MESH_MESH_H
#define MX_MESH_MESH_H

#include "transport/group.h"

enum { MX_MAX_AXES = 12 };

typedef struct mx_axis {
    char name[32];
    int ici, dcn; /* how many places within a slice, and how many slices along it */
} mx_axis;

/* The layout of ranks on any axes, whether or not they are the mesh: the coordinate of a rank on each axis, from 0, and
 * the inverse. These two functions define the layout; everything else asks them. Pure; not collective. */
void mx_axes_coordinates(const mx_axis *axes, int n, int64_t rank, int *coordinate);
int64_t mx_axes_rank(const mx_axis *axes, int n, const int *coordinate);

/* Sets of axes are bit masks; 0 stands for all ranks. */
typedef uint32_t mx_axes;

/* The mesh of a device, which the functions below ask for the current one. */
struct mx_mesh_state {
    mx_axis axes[MX_MAX_AXES];
    int n;
    mx_group *found[1 << MX_MAX_AXES]; /* its groups by their axes; NULL: not asked for yet */
};

/* The mesh from now on, the same on all ranks. MX_ERR_VALUE when the sizes do not multiply to the number of ranks. */
mx_status mx_mesh_define(const mx_axis *axes, int n);

/* There is no mesh any more, as at the start. */
void mx_mesh_forget(void);

/* The bit of an axis; MX_ERR_VALUE, with the names that there are, for another name. */
mx_status mx_mesh_find(const char *name, mx_axes *axis);

/* The axes of the mesh, in their order; how many there are. */
int mx_mesh_axes(const mx_axis **axes);

const char *mx_mesh_text(mx_axes axes); /* "fsdp+tensor", "all ranks"; valid until the next call */

/* How many ranks our group along the axes has, which we are among them, and who they are (room for mx_ranks()). */
int mx_mesh_size(mx_axes axes);
int mx_mesh_index(mx_axes axes);
int mx_mesh_ranks(mx_axes axes, int *ranks);

/* Collective among the group's ranks the first time, when has_group says that it is not there yet. */
bool mx_mesh_has_group(mx_axes axes);
mx_status mx_mesh_group(mx_axes axes, mx_group **out);

#endif
