#include "mesh/mesh.h"

#include "mesh/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mx_axis axes_now[MX_MAX_AXES];
static int n_axes;
static mx_group *found[1 << MX_MAX_AXES]; /* groups of this mesh by their axes; NULL: not asked for yet */

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
    memcpy(axes_now, axes, (size_t)n * sizeof *axes);
    n_axes = n;
    memset(found, 0, sizeof found);
    return MX_OK;
}

void mx_mesh_forget(void)
{
    n_axes = 0;
    memset(found, 0, sizeof found);
}

mx_status mx_mesh_find(const char *name, mx_axes *axis)
{
    char known[MX_MAX_AXES * 34] = "";
    for (int a = 0; a < n_axes; a++) {
        if (strcmp(axes_now[a].name, name) == 0) {
            *axis = 1u << a;
            return MX_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, a ? ", %s" : "%s", axes_now[a].name);
    }
    if (n_axes == 0)
        return mx_fail(MX_ERR_VALUE, "no mesh is set, so there is no axis '%s': call mx.mesh first", name);
    return mx_fail(MX_ERR_VALUE, "the mesh has no axis '%s'; there are: %s", name, known);
}

int mx_mesh_axes(const mx_axis **axes)
{
    *axes = axes_now;
    return n_axes;
}

const char *mx_mesh_text(mx_axes axes)
{
    static char text[MX_MAX_AXES * 33];
    size_t used = 0;
    for (int a = 0; a < n_axes; a++)
        if (axes >> a & 1u)
            used += (size_t)snprintf(text + used, sizeof text - used, used ? "+%s" : "%s", axes_now[a].name);
    return used ? text : "all ranks";
}

/* The coordinate of a rank on each axis. */
static void coordinates(int rank, int *coordinate)
{
    int slice_ranks = 1;
    for (int a = 0; a < n_axes; a++)
        slice_ranks *= axes_now[a].ici;
    int slice = rank / slice_ranks, place = rank % slice_ranks;
    for (int a = n_axes - 1; a >= 0; a--) {
        coordinate[a] = slice % axes_now[a].dcn * axes_now[a].ici + place % axes_now[a].ici;
        slice /= axes_now[a].dcn;
        place /= axes_now[a].ici;
    }
}

int mx_mesh_ranks(mx_axes axes, int *ranks)
{
    int mine[MX_MAX_AXES] = {0}, theirs[MX_MAX_AXES] = {0}, n = 0;
    coordinates(mx_rank(), mine);
    for (int r = 0; r < mx_ranks(); r++) {
        coordinates(r, theirs);
        bool same = true;
        for (int a = 0; axes && a < n_axes; a++)
            same = same && (mine[a] == theirs[a] || (axes >> a & 1u));
        if (same)
            ranks[n++] = r;
    }
    return n;
}

int mx_mesh_size(mx_axes axes)
{
    int size = 1;
    for (int a = 0; a < n_axes; a++)
        if (axes >> a & 1u)
            size *= axes_now[a].ici * axes_now[a].dcn;
    return axes ? size : mx_ranks();
}

int mx_mesh_index(mx_axes axes)
{
    int mine[MX_MAX_AXES] = {0}, theirs[MX_MAX_AXES] = {0}, index = 0;
    coordinates(mx_rank(), mine);
    for (int r = 0; r < mx_rank(); r++) {
        coordinates(r, theirs);
        bool same = true;
        for (int a = 0; axes && a < n_axes; a++)
            same = same && (mine[a] == theirs[a] || (axes >> a & 1u));
        index += same;
    }
    return index;
}

bool mx_mesh_has_group(mx_axes axes) { return found[axes] != NULL; }

mx_status mx_mesh_group(mx_axes axes, mx_group **out)
{
    *out = found[axes];
    if (*out)
        return MX_OK;
    int *ranks = malloc((size_t)mx_ranks() * sizeof *ranks);
    if (!ranks)
        return mx_fail(MX_ERR_MEMORY, "no memory for a group of ranks");
    int n = mx_mesh_ranks(axes, ranks);
    mx_status status = mx_group_get(ranks, n, out);
    free(ranks);
    if (status == MX_OK)
        found[axes] = *out;
    return status;
}
