#include "mesh/mesh.h"

#include "transport/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct mx_mesh_state *mesh(void) { return mx_device_current->mesh; }

void mx_axes_coordinates(const mx_axis *axes, int n, int64_t rank, int *coordinate)
{
    int64_t slice_ranks = 1;
    for (int a = 0; a < n; a++)
        slice_ranks *= axes[a].ici;
    int64_t slice = rank / slice_ranks, place = rank % slice_ranks;
    for (int a = n - 1; a >= 0; a--) {
        coordinate[a] = (int)(slice % axes[a].dcn) * axes[a].ici + (int)(place % axes[a].ici);
        slice /= axes[a].dcn;
        place /= axes[a].ici;
    }
}

int64_t mx_axes_rank(const mx_axis *axes, int n, const int *coordinate)
{
    int64_t slice = 0, place = 0, slice_ranks = 1;
    for (int a = 0; a < n; a++) {
        slice = slice * axes[a].dcn + coordinate[a] / axes[a].ici;
        place = place * axes[a].ici + coordinate[a] % axes[a].ici;
        slice_ranks *= axes[a].ici;
    }
    return slice * slice_ranks + place;
}

mx_status mx_mesh_define(const mx_axis *axes, int n)
{
    if (n < 0 || n > MX_MAX_AXES)
        return mx_fail(MX_ERR_VALUE, "a mesh has at most %d axes, %d given", MX_MAX_AXES, n);
    double product = 1;
    for (int a = 0; a < n; a++) {
        if (axes[a].ici < 1 || axes[a].dcn < 1)
            return mx_fail(MX_ERR_VALUE, "mesh axis '%s' has size %d x %d; sizes are at least 1", axes[a].name,
                           axes[a].dcn, axes[a].ici);
        product *= (double)axes[a].ici * axes[a].dcn;
    }
    if (product != mx_ranks())
        return mx_fail(MX_ERR_VALUE, "the mesh has %.0f devices, but there are %d ranks", product, mx_ranks());
    memcpy(mesh()->axes, axes, (size_t)n * sizeof *axes);
    mesh()->n = n;
    memset(mesh()->found, 0, sizeof mesh()->found);
    return MX_OK;
}

void mx_mesh_forget(void)
{
    mesh()->n = 0;
    memset(mesh()->found, 0, sizeof mesh()->found);
}

mx_status mx_mesh_find(const char *name, mx_axes *axis)
{
    char known[MX_MAX_AXES * 34] = "";
    size_t length = strlen(name);
    *axis = 0;
    for (int a = 0; a < mesh()->n; a++) {
        const char *other = mesh()->axes[a].name;
        if (strncmp(other, name, length) == 0 && (other[length] == '\0' || other[length] == '.'))
            *axis |= 1u << a;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, a ? ", %s" : "%s", mesh()->axes[a].name);
    }
    if (*axis)
        return MX_OK;
    if (mesh()->n == 0)
        return mx_fail(MX_ERR_VALUE, "no mesh is set, so there is no axis '%s': call mx.mesh first", name);
    return mx_fail(MX_ERR_VALUE, "the mesh has no axis '%s'; there are: %s", name, known);
}

int mx_mesh_axes(const mx_axis **axes)
{
    *axes = mesh()->axes;
    return mesh()->n;
}

const char *mx_mesh_text(mx_axes axes)
{
    static char text[MX_MAX_AXES * 33];
    size_t used = 0;
    for (int a = 0; a < mesh()->n; a++)
        if (axes >> a & 1u)
            used += (size_t)snprintf(text + used, sizeof text - used, used ? "+%s" : "%s", mesh()->axes[a].name);
    return used ? text : "all ranks";
}

/* The axes of a set (all axes for 0) and this rank's coordinates on them. Ranks that differ only on these axes have the
 * same order as in a layout of these axes alone. */
static int axes_of(mx_axes set, mx_axis *axes, int *which, int *mine)
{
    int all[MX_MAX_AXES] = {0}, n = 0;
    mx_axes_coordinates(mesh()->axes, mesh()->n, mx_rank(), all);
    for (int a = 0; a < mesh()->n; a++)
        if (set == 0 || (set >> a & 1u)) {
            axes[n] = mesh()->axes[a];
            which[n] = a;
            mine[n++] = all[a];
        }
    return n;
}

int mx_mesh_ranks(mx_axes set, int *ranks)
{
    mx_axis axes[MX_MAX_AXES];
    int which[MX_MAX_AXES], theirs[MX_MAX_AXES], all[MX_MAX_AXES] = {0}, size = mx_mesh_size(set);
    int n = axes_of(set, axes, which, theirs);
    mx_axes_coordinates(mesh()->axes, mesh()->n, mx_rank(), all);
    for (int i = 0; i < size; i++) {
        mx_axes_coordinates(axes, n, i, theirs);
        for (int a = 0; a < n; a++)
            all[which[a]] = theirs[a];
        ranks[i] = mesh()->n > 0 ? (int)mx_axes_rank(mesh()->axes, mesh()->n, all) : i;
    }
    return size;
}

int mx_mesh_size(mx_axes axes)
{
    int size = 1;
    for (int a = 0; a < mesh()->n; a++)
        if (axes >> a & 1u)
            size *= mesh()->axes[a].ici * mesh()->axes[a].dcn;
    return axes ? size : mx_ranks();
}

int mx_mesh_index(mx_axes set)
{
    mx_axis axes[MX_MAX_AXES];
    int which[MX_MAX_AXES], mine[MX_MAX_AXES];
    int n = axes_of(set, axes, which, mine);
    return mesh()->n > 0 ? (int)mx_axes_rank(axes, n, mine) : mx_rank();
}

bool mx_mesh_has_group(mx_axes axes) { return mesh()->found[axes] != NULL; }

mx_status mx_mesh_group(mx_axes axes, mx_group **out)
{
    *out = mesh()->found[axes];
    if (*out)
        return MX_OK;
    int *ranks = malloc((size_t)mx_ranks() * sizeof *ranks);
    if (!ranks)
        return mx_fail(MX_ERR_MEMORY, "no memory for a group of ranks");
    int n = mx_mesh_ranks(axes, ranks);
    mx_status status = mx_group_get(ranks, n, false, out);
    free(ranks);
    if (status == MX_OK)
        mesh()->found[axes] = *out;
    return status;
}
