/* Tensors: a dtype, a shape and a reference to storage.
 *
 * A tensor is always dense and row-major: dimension n_dims-1 is contiguous. A view shares storage only if the result is
 * dense too (reshape, a range of dimension 0). So kernels never see a stride.
 *
 * A tensor and its values have separate lifetimes. The mx_tensor (a few hundred bytes) is reference counted and lives
 * as long as a Lua handle or the tape refers to it. Its values are in a reference-counted mx_storage that may be
 * released earlier: when the tensor's scope closes, or when a rematerialisation policy drops it. A tensor without
 * storage keeps dtype, shape, name and producer, so that errors can name it and the tape can compute it again. */
#ifndef MX_CORE_TENSOR_H
#define MX_CORE_TENSOR_H

#include "core/device.h"
#include "core/dtype.h"
#include "core/intern.h"
#include "core/site.h"
#include "core/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

enum { MX_MAX_DIMS = 6 };

typedef struct mx_shape {
    int n_dims; /* 0: a scalar, with one element */
    int64_t size[MX_MAX_DIMS];
} mx_shape;

typedef struct mx_storage {
    int refs;    /* number of tensors, and of jobs that use the values */
    int tensors; /* number of tensors */
    int64_t bytes;
    mx_device *device;
    void *data;       /* only for the device; NULL if the device has no values */
    uint64_t fusion;  /* simulated: the fused operations that made the values, not yet written to memory; 0: written */
    uint64_t changes; /* number of in-place changes of the values: see mx_storage_change */
    const char *changed_by; /* the operation that changed them last, or NULL */
    mx_site changed_at;
    struct mx_job *writer; /* the last job that changes the values (core/job.h); NULL: none */
    struct mx_job *reader; /* the last job that reads them */
} mx_storage;

typedef struct mx_scope mx_scope;

/* The recorded call that computed a tensor, after the tape has forgotten the record. */
typedef struct mx_origin {
    const char *op; /* its name; NULL: none */
    mx_site site;
    bool is_before; /* the call computed another tensor, from which this one was computed */
} mx_origin;

/* A function that backward calls with the complete gradient of a tensor, and that may replace it: *grad is taken over,
 * and returned with one reference. `destroy` frees the hook; the tensor owns it. */
struct mx_tensor;
typedef struct mx_grad_hook {
    struct mx_grad_hook *next; /* called after it */
    mx_status (*call)(struct mx_grad_hook *hook, struct mx_tensor **grad);
    void (*destroy)(struct mx_grad_hook *hook);
} mx_grad_hook;

typedef struct mx_tensor {
    int refs;
    mx_dtype dtype;
    mx_shape shape;
    mx_storage *storage;  /* NULL: released by its scope, dropped by a policy, or offloaded */
    int64_t offset;       /* of the first element in storage, in bytes */
    struct mx_away *away; /* the offloaded copy of the values (core/offload.h); NULL: none */
    const char *name;     /* held (core/intern.h), given by mx.name; NULL: none */

    /* Fields of the tape (tape/tape.h). */
    bool requires_grad;        /* a leaf that accumulates a gradient, or a tensor computed from one */
    bool released;             /* its scope has closed: the user may not use it any more */
    bool saved;                /* a policy keeps the values: held counts one for it */
    bool dropped;              /* a policy dropped the values: backward computes them again if it needs them */
    bool of_leaf;              /* codes of a leaf of f32, which gets their gradient as it is */
    int held;                  /* number of recorded calls that may read the values, plus 1 if a policy saved them */
    uint64_t holder;           /* with held: the number of the last call that holds them */
    int needed;                /* of these, the calls that backward has not visited yet; 0 outside backward */
    int pending;               /* calls that will run again and read the values; 0 outside rematerialisation, and
                                * outside the end of a region */
    uint32_t reduce_axes;      /* of a leaf: backward all-reduces its gradient over these mesh axes; 0: none.
                                * Of a gradient: it has been all-reduced over these axes */
    int readers;               /* number of times that it is an input of recorded calls */
    struct mx_node *node;      /* the recorded call that computed it; NULL: a leaf */
    uint64_t made_changes;     /* with node: `changes` of its storage after that call */
    mx_origin gone;            /* the record of its call is forgotten, or that of a tensor it was computed from */
    struct mx_tensor *grad;    /* the gradient accumulated so far, of the same shape; owned */
    struct mx_tensor *earlier; /* inside backward, of a leaf: the gradient of earlier backward passes, which has
                                * already been all-reduced, or which hooks do not see; owned */
    mx_grad_hook *hooks;       /* owned; NULL: none */
    int asked;                 /* inside mx_tape_grad: its number among the targets, from 1; negative: not reached yet;
                                * 0: none */

    /* The scope's list of tensors to release (core/scope.h). */
    mx_scope *scope;
    struct mx_tensor *scope_previous, *scope_next;
} mx_tensor;

/* Shapes. mx_shape_count requires a countable shape: the product of its nonzero sizes is at most 2^62. */
bool mx_shape_is_countable(const mx_shape *shape);
static inline int64_t mx_shape_count(const mx_shape *shape)
{
    int64_t count = 1;
    for (int d = 0; d < shape->n_dims; d++)
        count *= shape->size[d];
    return count;
}
static inline int64_t mx_count(const mx_tensor *t) { return mx_shape_count(&t->shape); }
static inline int64_t mx_bytes(const mx_tensor *t) { return mx_count(t) * (int64_t)mx_dtype_bytes(t->dtype); }
bool mx_shape_equal(const mx_shape *a, const mx_shape *b);

/* "(2, 3, 4)"; the text is valid until the eighth call after this one on the same thread. */
const char *mx_shape_text(const mx_shape *shape);

/* "bf16 (2, 3, 4) 'query_proj'", for messages; valid as long as that of mx_shape_text. */
const char *mx_tensor_text(const mx_tensor *t);

/* A new tensor with its own storage, its values not set, and one reference for the caller. It belongs to the current
 * scope, if there is one. MX_ERR_VALUE for a negative size or more than 2^62 bytes; MX_ERR_MEMORY. */
mx_status mx_tensor_new(mx_dtype dtype, const mx_shape *shape, mx_tensor **out);

/* The same without storage: infer creates such tensors, and apply gives them storage. */
mx_status mx_tensor_new_empty(mx_dtype dtype, const mx_shape *shape, mx_tensor **out);
mx_status mx_tensor_allocate(mx_tensor *t); /* gives it its own storage; waits for pending offloads if necessary */
void mx_tensor_alias(mx_tensor *t, const mx_tensor *base,
                     int64_t offset);                                    /* shares base's storage, `offset` bytes in */
void mx_tensor_share(mx_tensor *t, mx_storage *storage, int64_t offset); /* shares a storage; NULL: none */
void mx_tensor_drop(mx_tensor *t);         /* releases its values, in memory and offloaded */
void mx_tensor_drop_storage(mx_tensor *t); /* releases only its storage: an offloaded copy stays */

/* Counts an in-place change of the values, so that backward detects whether values that it reads have changed since a
 * call was recorded. `by` names the operation, as a constant text; NULL: no name. */
void mx_storage_change(mx_storage *storage, const char *by);

/* " by fill at train.lua:12", for messages; same validity as mx_site_text. */
const char *mx_storage_change_text(const mx_storage *storage);

/* For jobs, which must keep the values even if tensors release them. */
mx_storage *mx_storage_retain(mx_storage *storage);
void mx_storage_release(mx_storage *storage);

static inline mx_tensor *mx_retain(mx_tensor *t)
{
    if (t)
        t->refs++;
    return t;
}
void mx_release(mx_tensor *t); /* NULL is allowed */

/* Called when the result of a recorded call becomes unreachable for everything else: the record has the only reference
 * left, or the tensor's scope releases it. */
extern void (*mx_tensor_left)(mx_tensor *t);

/* Whether there are values: the tensor has storage, on a device with values. */
static inline bool mx_has_values(const mx_tensor *t) { return t->storage && t->storage->device->has_values; }

/* The address of the values on the device. Only the device may dereference it. NULL without values. */
static inline void *mx_address(const mx_tensor *t)
{
    return mx_has_values(t) ? (char *)t->storage->data + t->offset : NULL;
}

/* The values, for code that runs only on devices with host memory: the host functions of operations and the kernels
 * that they call. All other code uses mx_tensor_map and mx_tensor_read. The caller knows the dtype. NULL without
 * storage. */
static inline void *mx_data(const mx_tensor *t)
{
    assert(!t->storage || t->storage->device->host_memory);
    return t->storage ? (char *)mx_address(t) - t->storage->device->guard : NULL;
}
static inline float *mx_f32(const mx_tensor *t) { return mx_data(t); }

/* `count` values from the one with index `first` on, for the host until mx_tensor_unmap. `data` is NULL on a device
 * without values. The caller has waited for the values (mx_tensor_wait). Any thread. */
typedef struct mx_map {
    void *data;
    mx_device *device;
    void *address; /* address of the values on the device */
    int64_t bytes;
    mx_map_mode mode;
} mx_map;
mx_status mx_tensor_map(const mx_tensor *t, int64_t first, int64_t count, mx_map_mode mode, mx_map *map);
void mx_tensor_unmap(mx_map *map);

/* Copy values to or from host memory. They do nothing on a device without values. */
mx_status mx_tensor_read(const mx_tensor *t, int64_t first, int64_t count, void *to);
mx_status mx_tensor_write(const mx_tensor *t, int64_t first, int64_t count, const void *from);
mx_status mx_tensor_fill(const mx_tensor *t, double value); /* every element */

/* Sets the tensor's name; NULL: no name. */
void mx_tensor_set_name(mx_tensor *t, const char *name);

#endif
