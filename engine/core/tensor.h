/* Tensors: a dtype, a shape and a reference to storage.
 *
 * A tensor is always dense and row-major: dimension n_dims-1 is contiguous, and a view shares storage only where the
 * result is dense too (reshape, a range of dimension 0). Kernels therefore never see a stride.
 *
 * Two lifetimes are kept apart. The mx_tensor (a few hundred bytes) is reference counted and lives as long as
 * anyone, the Lua handle or the tape, points to it. Its values live in a reference-counted mx_storage that may go
 * earlier: when the scope that made the tensor closes, or when a rematerialisation policy drops it. A tensor without
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
    int n_dims; /* 0: a scalar, of one element */
    int64_t size[MX_MAX_DIMS];
} mx_shape;

typedef struct mx_storage {
    int refs;    /* tensors, and jobs that use the values */
    int tensors; /* of these, tensors */
    int64_t bytes;
    mx_device *device;
    void *data;       /* for the device only, which may have no values: then NULL */
    uint64_t fusion;  /* simulated: the run of operations that made the values and has not written them; 0: written */
    uint64_t changes; /* how often the values have been changed in place: see mx_storage_change */
    const char *changed_by; /* what changed them last: an operation, or NULL */
    mx_site changed_at;
    struct mx_job *writer; /* the last job that changes the values (core/job.h); NULL: none */
    struct mx_job *reader; /* the last job that reads them */
} mx_storage;

typedef struct mx_scope mx_scope;

/* The recorded call that made a tensor, after the tape has forgotten it. */
typedef struct mx_origin {
    const char *op; /* its name; NULL: none */
    mx_site site;
    bool is_before; /* it made another tensor, from which this one was computed */
} mx_origin;

typedef struct mx_tensor {
    int refs;
    mx_dtype dtype;
    mx_shape shape;
    mx_storage *storage;  /* NULL: released by its scope, dropped by a policy, or away */
    int64_t offset;       /* of the first element in storage, in bytes */
    struct mx_away *away; /* a copy of the values outside of memory (core/offload.h); NULL: none */
    const char *name;     /* held (core/intern.h), given by mx.name; NULL: none */

    /* The tape's part (tape/tape.h). */
    bool requires_grad;        /* a leaf that collects a gradient, or computed from one */
    bool released;             /* the scope that made it has closed: no longer the user's */
    bool saved;                /* a policy keeps the values: held counts one for it */
    bool dropped;              /* a policy dropped the values: backward computes them again when it needs them */
    int held;                  /* recorded calls that may read the values, and 1 more when a policy saved them */
    uint64_t holder;           /* with held: the number of the last call that came to hold them */
    int needed;                /* of these, the calls that backward has still to walk; 0 outside backward */
    int pending;               /* calls still to be run again that read the values; 0 outside rematerialisation */
    uint32_t reduce_axes;      /* of a leaf: its gradient is added over these mesh axes when backward has it; 0: none.
                                * Of a gradient: it has been added over these axes */
    int readers;               /* recorded calls that have it as an input, each time counted */
    struct mx_node *node;      /* the recorded call that makes it; NULL: a leaf */
    uint64_t made_changes;     /* with node: `changes` of its storage when the call had made it */
    mx_origin gone;            /* it was made by a recorded call that is forgotten, or computed from such a tensor */
    struct mx_tensor *grad;    /* gradient gathered so far, of the same shape; owned */
    struct mx_tensor *earlier; /* inside backward, of a leaf: the gradient of backwards before this one, which has been
                                * added over ranks already; owned */

    /* The scope's list of what it must release (core/scope.h). */
    mx_scope *scope;
    struct mx_tensor *scope_previous, *scope_next;
} mx_tensor;

/* Shapes. mx_shape_count is for countable ones: sizes other than 0 multiply to 2^62 at most. */
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

/* "bf16 (2, 3, 4) 'query_proj'": for messages; same validity. */
const char *mx_tensor_text(const mx_tensor *t);

/* A tensor of its own storage, values not set, with one reference for the caller, and in the current scope if there is
 * one. MX_ERR_VALUE for a negative size or more than 2^62 bytes, MX_ERR_MEMORY when there is none. */
mx_status mx_tensor_new(mx_dtype dtype, const mx_shape *shape, mx_tensor **out);

/* The same without storage: what infer makes and apply fills in. */
mx_status mx_tensor_new_empty(mx_dtype dtype, const mx_shape *shape, mx_tensor **out);
mx_status mx_tensor_allocate(mx_tensor *t); /* gives it storage of its own; waits for offloads where it must */
void mx_tensor_alias(mx_tensor *t, const mx_tensor *base,
                     int64_t offset);                                    /* shares base's storage, `offset` bytes in */
void mx_tensor_share(mx_tensor *t, mx_storage *storage, int64_t offset); /* the same, of a storage; NULL: of none */
void mx_tensor_drop(mx_tensor *t);                                       /* lets go of its values, wherever they are */
void mx_tensor_drop_storage(mx_tensor *t); /* lets go of its storage only: a copy that is away stays */

/* Counts a change of the values in place: backward finds out whether values that it reads have changed since a call was
 * recorded. `by` names the operation, as a constant text; NULL: no name. */
void mx_storage_change(mx_storage *storage, const char *by);

/* " by fill at train.lua:12", for messages; same validity as mx_site_text. */
const char *mx_storage_change_text(const mx_storage *storage);

/* For a job, which must keep the values while tensors may let go of them. */
mx_storage *mx_storage_retain(mx_storage *storage);
void mx_storage_release(mx_storage *storage);

static inline mx_tensor *mx_retain(mx_tensor *t)
{
    if (t)
        t->refs++;
    return t;
}
void mx_release(mx_tensor *t); /* NULL is allowed */

/* Called when a tensor that a recorded call made becomes useless to everybody else: the call's is the only reference
 * that is left, or its scope releases it. */
extern void (*mx_tensor_left)(mx_tensor *t);

/* Whether there are values: the tensor has storage, on a device that keeps values. */
static inline bool mx_has_values(const mx_tensor *t) { return t->storage && t->storage->device->has_values; }

/* Where the device keeps the values. Only the device may look there. NULL without values. */
static inline void *mx_address(const mx_tensor *t)
{
    return mx_has_values(t) ? (char *)t->storage->data + t->offset : NULL;
}

/* The values, for what runs on a device with host memory: the host functions of operations and what they call. All
 * others use mx_tensor_map and mx_tensor_read. The caller knows the dtype; NULL when the tensor has no storage. */
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
    void *address; /* of the values on the device */
    int64_t bytes;
    mx_map_mode mode;
} mx_map;
mx_status mx_tensor_map(const mx_tensor *t, int64_t first, int64_t count, mx_map_mode mode, mx_map *map);
void mx_tensor_unmap(mx_map *map);

/* The same as copies from or to host memory. Nothing is read or written on a device without values. */
mx_status mx_tensor_read(const mx_tensor *t, int64_t first, int64_t count, void *to);
mx_status mx_tensor_write(const mx_tensor *t, int64_t first, int64_t count, const void *from);
mx_status mx_tensor_fill(const mx_tensor *t, double value); /* every element */

/* Names it; NULL: no name. */
void mx_tensor_set_name(mx_tensor *t, const char *name);

#endif
