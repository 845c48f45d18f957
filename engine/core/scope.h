/* Scopes: what was made inside one and not kept is released when it closes.
 *
 * Scopes nest. A tensor belongs to the scope in which it was made (none: it lives by its references alone). */
#ifndef MX_CORE_SCOPE_H
#define MX_CORE_SCOPE_H

#include "core/tensor.h"

struct mx_scope {
    uint64_t id; /* never used again: a handle that outlives its scope finds nothing */
    mx_scope *parent;
    mx_tensor *first; /* the tensors made in it, newest first; the scope owns one reference to each */

    /* Of a step, for who owns it (bind/step.c). */
    bool is_step, is_lost; /* lost: nobody can close it any more */
    mx_site site;          /* the line that opened it */
    uint64_t records;      /* on the tape at that time */
};

mx_scope *mx_scope_current(void);     /* the innermost open scope, or NULL */
mx_scope *mx_scope_find(uint64_t id); /* the open scope of that id, or NULL */
mx_status mx_scope_open(mx_scope **out);

/* Closes `scope` and any scope still open inside it. Each tensor in it is marked released, and its storage goes unless
 * the tape still holds it (held > 0). MX_ERR_STATE when it is not open. */
mx_status mx_scope_close(mx_scope *scope);

/* Used by tensor.c, and to move results out: into the enclosing scope, or out of all scopes. */
void mx_scope_add(mx_scope *scope, mx_tensor *t);
void mx_scope_remove(mx_tensor *t);
void mx_scope_escape(mx_tensor *t); /* to the parent of its scope */
void mx_scope_keep(mx_tensor *t);   /* to none: the tensor lives by its references alone */

/* The scope in which new tensors are made, for the duration of an internal call: backward puts gradients in none. */
mx_scope *mx_scope_swap(mx_scope *scope);

#endif
