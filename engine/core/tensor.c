#include "core/tensor.h"

#include "core/element.h"
#include "core/offload.h"
#include "core/scope.h"
#include "core/spare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Texts for messages use these buffers in turn, so that one message can name several tensors. */
enum { TEXTS = 8, TEXT_BYTES = 256 };
static _Thread_local char texts[TEXTS][TEXT_BYTES];
static _Thread_local int next_text;

static char *text_buffer(void)
{
    next_text = (next_text + 1) % TEXTS;
    return texts[next_text];
}

bool mx_shape_equal(const mx_shape *a, const mx_shape *b)
{
    return a->n_dims == b->n_dims && memcmp(a->size, b->size, (size_t)a->n_dims * sizeof a->size[0]) == 0;
}

static int write_shape(char *text, int room, const mx_shape *shape)
{
    int used = snprintf(text, (size_t)room, "(");
    for (int d = 0; d < shape->n_dims; d++)
        used += snprintf(text + used, (size_t)(room - used), d ? ", %lld" : "%lld", (long long)shape->size[d]);
    return used + snprintf(text + used, (size_t)(room - used), ")");
}

const char *mx_shape_text(const mx_shape *shape)
{
    char *text = text_buffer();
    write_shape(text, TEXT_BYTES, shape);
    return text;
}

const char *mx_tensor_text(const mx_tensor *t)
{
    if (!t)
        return "nothing";
    char *text = text_buffer();
    int used = snprintf(text, TEXT_BYTES, "%s ", mx_dtype_name(t->dtype));
    used += write_shape(text + used, TEXT_BYTES - used, &t->shape);
    if (t->name && used < TEXT_BYTES)
        snprintf(text + used, (size_t)(TEXT_BYTES - used), " '%.60s'", t->name);
    return text;
}

bool mx_shape_is_countable(const mx_shape *shape)
{
    double count = 1;
    for (int d = 0; d < shape->n_dims; d++)
        count *= shape->size[d] > 1 ? (double)shape->size[d] : 1;
    return count <= 0x1p62;
}

static mx_status check_shape(mx_dtype dtype, const mx_shape *shape)
{
    if (shape->n_dims < 0 || shape->n_dims > MX_MAX_DIMS)
        return mx_fail(MX_ERR_SHAPE, "a tensor has at most %d dimensions, %d given", MX_MAX_DIMS, shape->n_dims);
    double bytes = (double)mx_dtype_bytes(dtype);
    for (int d = 0; d < shape->n_dims; d++) {
        if (shape->size[d] < 0)
            return mx_fail(MX_ERR_SHAPE, "size of dimension %d of %s is negative", d + 1, mx_shape_text(shape));
        bytes *= (double)shape->size[d];
    }
    if (bytes > 0x1p62 || !mx_shape_is_countable(shape))
        return mx_fail(MX_ERR_SHAPE, "a tensor of shape %s is larger than any memory", mx_shape_text(shape));
    return MX_OK;
}

static mx_spare spare_tensors, spare_storages;

mx_status mx_tensor_new_empty(mx_dtype dtype, const mx_shape *shape, mx_tensor **out)
{
    *out = NULL;
    MX_TRY(check_shape(dtype, shape));
    mx_tensor *t = mx_spare_take(&spare_tensors, sizeof *t);
    if (!t)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tensor's description");
    *t = (mx_tensor){.refs = 1, .dtype = dtype, .shape = *shape};
    mx_scope *scope = mx_scope_current();
    if (scope)
        mx_scope_add(scope, t);
    *out = t;
    return MX_OK;
}

/* If allocation fails, waits for pending offloads and retries. */
static mx_status alloc_values(mx_storage *storage)
{
    mx_device *device = mx_device_current;
    mx_status status = device->alloc(device, storage->bytes, &storage->data);
    if (status != MX_OK) {
        MX_TRY(mx_offload_settle(true));
        MX_TRY(device->alloc(device, storage->bytes, &storage->data));
    }
    storage->device = mx_device_retain(device);
    return MX_OK;
}

mx_status mx_tensor_allocate(mx_tensor *t)
{
    mx_storage *storage = mx_spare_take(&spare_storages, sizeof *storage);
    if (!storage)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tensor's description");
    *storage = (mx_storage){.refs = 1, .tensors = 1, .bytes = mx_bytes(t)};
    mx_status status = alloc_values(storage);
    if (status != MX_OK) {
        mx_spare_give(&spare_storages, storage);
        return mx_context(status, "%s", mx_tensor_text(t));
    }
    mx_tensor_drop_storage(t);
    t->storage = storage;
    t->offset = 0;
    return MX_OK;
}

mx_status mx_tensor_new(mx_dtype dtype, const mx_shape *shape, mx_tensor **out)
{
    MX_TRY(mx_tensor_new_empty(dtype, shape, out));
    mx_status status = mx_tensor_allocate(*out);
    if (status != MX_OK) {
        mx_scope_remove(*out);
        mx_release(*out);
        *out = NULL;
    }
    return status;
}

mx_storage *mx_storage_retain(mx_storage *storage)
{
    storage->refs++;
    return storage;
}

void mx_storage_release(mx_storage *storage)
{
    if (--storage->refs > 0)
        return;
    mx_device *device = storage->device;
    device->free(device, storage->data, storage->bytes);
    mx_spare_give(&spare_storages, storage);
    mx_device_release(device);
}

void mx_storage_change(mx_storage *storage, const char *by)
{
    storage->changes++;
    storage->changed_by = by;
    storage->changed_at = mx_site_now();
}

const char *mx_storage_change_text(const mx_storage *storage)
{
    char *text = text_buffer();
    snprintf(text, TEXT_BYTES, "%s%s%s", storage->changed_by ? " by " : "",
             storage->changed_by ? storage->changed_by : "", mx_site_text(storage->changed_at));
    return text;
}

void mx_tensor_share(mx_tensor *t, mx_storage *storage, int64_t offset)
{
    if (storage) {
        mx_storage_retain(storage);
        storage->tensors++;
    }
    mx_tensor_drop_storage(t);
    t->storage = storage;
    t->offset = offset;
}

void mx_tensor_alias(mx_tensor *t, const mx_tensor *base, int64_t offset)
{
    mx_tensor_share(t, base->storage, base->offset + offset);
}

void mx_tensor_drop_storage(mx_tensor *t)
{
    if (!t->storage)
        return;
    t->storage->tensors--;
    mx_storage_release(t->storage);
    t->storage = NULL;
}

void mx_tensor_drop(mx_tensor *t)
{
    mx_tensor_drop_storage(t);
    if (t->away)
        mx_offload_forget(t->away);
    t->away = NULL;
}

mx_status mx_tensor_map(const mx_tensor *t, int64_t first, int64_t count, mx_map_mode mode, mx_map *map)
{
    *map = (mx_map){.mode = mode};
    if (!mx_has_values(t))
        return MX_OK;
    int64_t size = (int64_t)mx_dtype_bytes(t->dtype);
    map->device = t->storage->device;
    map->address = (char *)mx_address(t) + first * size;
    map->bytes = count * size;
    return map->device->map(map->device, map->address, map->bytes, mode, &map->data);
}

void mx_tensor_unmap(mx_map *map)
{
    if (map->data)
        map->device->unmap(map->device, map->address, map->bytes, map->mode, map->data);
    map->data = NULL;
}

mx_status mx_tensor_read(const mx_tensor *t, int64_t first, int64_t count, void *to)
{
    mx_map map;
    MX_TRY(mx_tensor_map(t, first, count, MX_MAP_READ, &map));
    if (map.data)
        memcpy(to, map.data, (size_t)count * mx_dtype_bytes(t->dtype));
    mx_tensor_unmap(&map);
    return MX_OK;
}

mx_status mx_tensor_write(const mx_tensor *t, int64_t first, int64_t count, const void *from)
{
    mx_map map;
    MX_TRY(mx_tensor_map(t, first, count, MX_MAP_WRITE, &map));
    if (map.data)
        memcpy(map.data, from, (size_t)count * mx_dtype_bytes(t->dtype));
    mx_tensor_unmap(&map);
    return MX_OK;
}

mx_status mx_tensor_fill(const mx_tensor *t, double value)
{
    mx_map map;
    MX_TRY(mx_tensor_map(t, 0, mx_count(t), MX_MAP_WRITE, &map));
    if (map.data && value == 0)
        memset(map.data, 0, (size_t)mx_bytes(t));
    else if (map.data)
        for (int64_t i = 0; i < mx_count(t); i++)
            mx_set_number(map.data, i, value, t->dtype);
    mx_tensor_unmap(&map);
    return MX_OK;
}

void (*mx_tensor_left)(mx_tensor *t);

void mx_release(mx_tensor *t)
{
    if (!t)
        return;
    if (--t->refs > 0) {
        if (t->refs == 1 && t->node && mx_tensor_left)
            mx_tensor_left(t);
        return;
    }
    mx_tensor_drop(t);
    mx_release(t->grad);
    mx_release(t->earlier);
    for (mx_grad_hook *hook = t->hooks, *next; hook; hook = next) {
        next = hook->next;
        hook->destroy(hook);
    }
    mx_text_let_go(t->name);
    mx_spare_give(&spare_tensors, t);
}

void mx_tensor_set_name(mx_tensor *t, const char *name)
{
    const char *held = mx_text_hold(name);
    mx_text_let_go(t->name);
    t->name = held;
}
