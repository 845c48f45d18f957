#include "mesh/share.h"

#include "mesh/comm.h"
#include "transport/mpi.h"

#include <stdlib.h>
#include <string.h>

mx_status mx_barrier(mx_axes axes)
{
    const mx_transfer t = {.what = {.kind = MX_BARRIER, .wire = MX_U8, .in_place = true, .scale = 1}, .axes = axes};
    return mx_comm_run(&t, false);
}

mx_status mx_broadcast_bytes(void *data, int64_t bytes, int root)
{
    mx_block block = {.data = data, .dtype = MX_U8, .rows = 1, .row = bytes, .stride = bytes};
    const mx_transfer t = {.what = {.kind = MX_BROADCAST, .wire = MX_U8, .in_place = true, .scale = 1, .root = root},
                           .in_block = block,
                           .out_block = block,
                           .count = bytes};
    return mx_comm_run(&t, false);
}

/* A simulated pod is one process, which has every text already: no time passes on its clock. */
static mx_status share(void *data, int64_t bytes, int root)
{
    return mx_device_current->has_values ? mx_broadcast_bytes(data, bytes, root) : MX_OK;
}

mx_status mx_broadcast_text(const char *text, int64_t bytes, int root, char **out, int64_t *out_bytes)
{
    *out = NULL;
    *out_bytes = mx_rank() == root && text ? bytes : -1;
    MX_TRY(share(out_bytes, sizeof *out_bytes, root));
    if (*out_bytes < 0)
        return MX_OK;
    char *copy = malloc((size_t)*out_bytes + 1);
    if (!copy)
        return mx_fail(MX_ERR_MEMORY, "no memory for a text of %lld bytes", (long long)*out_bytes);
    if (mx_rank() == root && text && bytes > 0)
        memcpy(copy, text, (size_t)*out_bytes);
    copy[*out_bytes] = '\0';
    mx_status status = share(copy, *out_bytes, root);
    if (status != MX_OK) {
        free(copy);
        return status;
    }
    *out = copy;
    return MX_OK;
}
