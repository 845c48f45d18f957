#include "host/guarded.h"

#include "mesh/comm.h"
#include "ops/op.h"

#include <stdlib.h>
#include <string.h>

/* x86-64 has no memory at addresses with this bit set, and the bits above it not. */
static const int64_t GUARD = (int64_t)1 << 47;

static mx_device guarded;

/* Operations may apply others, so calls nest. */
static mx_status run(mx_device *device, mx_call *call)
{
    bool outer = device->host_memory;
    device->host_memory = true;
    mx_status status = mx_host.run(device, call);
    device->host_memory = outer;
    return status;
}

static mx_status take_memory(mx_device *device, int64_t bytes, void **data)
{
    MX_TRY(mx_host.alloc(device, bytes, data));
    *data = (char *)*data + GUARD;
    return MX_OK;
}

static void give_memory(mx_device *device, void *data, int64_t bytes)
{
    mx_host.free(device, (char *)data - GUARD, bytes);
}

static mx_status map(mx_device *device, void *data, int64_t bytes, mx_map_mode mode, void **host)
{
    (void)device;
    *host = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (!*host)
        return mx_fail(MX_ERR_MEMORY, "no memory for a copy of %lld bytes of a tensor", (long long)bytes);
    if (mode != MX_MAP_WRITE)
        memcpy(*host, (char *)data - GUARD, (size_t)bytes);
    return MX_OK;
}

static void unmap(mx_device *device, void *data, int64_t bytes, mx_map_mode mode, void *host)
{
    (void)device;
    if (mode != MX_MAP_READ)
        memcpy((char *)data - GUARD, host, (size_t)bytes);
    free(host);
}

static mx_status move(mx_job *job, void *data, mx_range range, int64_t bytes, bool out)
{
    return mx_host.move(job, (char *)data - GUARD, range, bytes, out);
}

/* Blocks of a batch without tensors are of the host's own memory (mesh/share.h). */
static mx_status exchange(mx_job *job)
{
    mx_batch *b = (mx_batch *)job;
    for (int i = 0; i < b->n; i++) {
        b->x.in.blocks[i].data -= b->kept[2 * i] ? GUARD : 0;
        b->x.out.blocks[i].data -= b->kept[2 * i + 1] ? GUARD : 0;
    }
    return mx_host.exchange(job);
}

static mx_status copy(mx_device *device, const mx_block *from, const mx_block *to, int64_t count)
{
    mx_block in = *from, out = *to;
    in.data -= GUARD;
    out.data -= GUARD;
    return mx_host.copy(device, &in, &out, count);
}

void mx_guarded_use(void)
{
    guarded = mx_host;
    guarded.name = "guarded host";
    guarded.host_memory = false;
    guarded.guard = GUARD;
    guarded.run = run;
    guarded.alloc = take_memory;
    guarded.free = give_memory;
    guarded.map = map;
    guarded.unmap = unmap;
    guarded.move = move;
    guarded.exchange = exchange;
    guarded.copy = copy;
    mx_device_use(&guarded);
}
