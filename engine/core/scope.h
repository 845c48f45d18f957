/* Scopes: when a scope closes, it releases all tensors that were created inside and not kept.
 *
 * Scopes nest. A tensor belongs to the scope in which it was created. Without a scope it lives as long as it has
 * references.
 */
#ifndef MX_CORE_SCOPE_H
#define MX_CORE_SCOPE_H

#include "core/tensor.h"

struct mx_scope {
    uint64_t id; /* never used again: a handle that outlives its scope finds nothing */
    mx_scope *parent;
    mx_tensor *first; /* its tensors, newest first; the scope owns one reference to each */

    /* For steps; used by bind/step.c. */
    bool is_step, is_lost; /* lost: nothing can close it any more */
    mx_site site;          /* the line that opened it */
    uint64_t records;      /* mx_tape_count at that time */
};

mx_scope *mx_scope_current(void);     /* the innermost open scope, or NULL */
mx_scope *mx_scope_find(uint64_t id); /* the open scope with that id, or NULL */
mx_status mx_scope_open(mx_scope **out);

/* Closes `scope` and any scope still open inside it. Marks each tensor in it released, and releases the tensor's
 * storage unless the tape still holds it (held > 0). MX_ERR_STATE if the scope is not open. */
mx_status mx_scope_close(mx_scope *scope);

/* add and remove are for tensor.c. escape and keep move results out of their scope. */
void mx_scope_add(mx_scope *scope, mx_tensor *t);
void mx_scope_remove(mx_tensor *t);
void mx_scope_escape(mx_tensor *t); /* to the parent of its scope */
void mx_scope_keep(mx_tensor *t);   /* to no scope: the tensor lives as long as it has references */

/* Replaces the current scope for the duration of an internal call, and returns the previous one. NULL: no scope, as for
 * gradients in backward. */
mx_scope *mx_scope_swap(mx_scope *scope);

#endif
