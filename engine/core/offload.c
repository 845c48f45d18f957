#include "core/offload.h"

#include "core/job.h"
#include "core/spill.h"

mx_offload_hooks mx_offload = {mx_spill_offload, mx_spill_fetch, mx_spill_forget, mx_spill_settle};

mx_status mx_tensor_offload(mx_tensor *t)
{
    if (t->away) {
        mx_tensor_evict(t);
        if (t->away)
            return MX_OK;
    }
    if (!t->storage || mx_bytes(t) == 0)
        return MX_OK;
    MX_TRY(mx_tensor_wait_others(t, NULL));
    if (t->storage->refs > 1)
        return MX_OK;
    MX_TRY(mx_offload.offload(t));
    t->away->changes = t->storage->changes;
    mx_tensor_drop_storage(t);
    return MX_OK;
}

mx_status mx_tensor_fetch(mx_tensor *t)
{
    if (t->storage || !t->away)
        return MX_OK;
    uint64_t changes = t->away->changes;
    MX_TRY(mx_offload.fetch(t));
    if (t->storage->changes < changes) /* a new storage, with the values that the old one had then */
        t->storage->changes = changes;
    t->away->changes = t->storage->changes;
    return MX_OK;
}

void mx_tensor_evict(mx_tensor *t)
{
    if (!t->away || !t->storage || t->storage->refs > 1) /* a change of a view changes t, too */
        return;
    if (t->away->changes == t->storage->changes) {
        mx_tensor_drop_storage(t);
        return;
    }
    mx_offload.forget(t->away);
    t->away = NULL;
}
