/* Tapes: they record calls, walk them back, and compute again what a policy dropped.
 *
 * A call is recorded on the current tape when recording is on and an input requires a gradient. At the start the
 * default tape is the current one. The record keeps the tensors, and holds (counts in mx_tensor.held) the values that
 * the operation's vjp reads, and no others. A tensor that one tape computed cannot be an input of a call that another
 * tape records (MX_ERR_STATE); leaves belong to no tape.
 *
 * A record is forgotten
 *   - when backward has walked it (those that its roots do not depend on stay),
 *   - when its tape is cleared or freed,
 *   - when the outermost step or scope closes in which it was made,
 *   - when nobody can use its results any more: no Lua value, no scope, no later record.
 * What a forgotten record made is a value without a gradient (mx_tensor.gone). Backward fails when a root depends on
 * one; mx.no_grad and t:detach() turn it into a constant.
 *
 * Values that backward reads must be those that the calls saw: storages count their changes in place, records remember
 * the counts, and backward fails where they differ.
 *
 * A region is the run of calls made inside mx.remat(policy, fn) (or mx.scope(fn): the policy that keeps all that is
 * held). At its end the policy decides, by name, which values stay and which are offloaded; the rest lose their
 * storage. An input that was made before the region and has a name may be offloaded too, but never dropped. Backward,
 * on reaching the first call of a region that lacks a value, runs the region's recorded calls again: only those on
 * which a needed value depends, in their first order, freeing on the way what no vjp reads. */
#ifndef MX_TAPE_TAPE_H
#define MX_TAPE_TAPE_H

#include "core/scope.h"
#include "ops/op.h"

#include <stdbool.h>

typedef struct mx_remat_policy {
    bool keep_held; /* everything that a vjp reads stays ("none"); else only what the names say */
    bool regathers; /* with keep_held: but for the results of operations marked MX_OP_REGATHER */
    int n_kept, n_offloaded;
    const char *const *kept;      /* names of the tensors that stay in memory */
    const char *const *offloaded; /* of those that go away and come back (core/offload.h) */
} mx_remat_policy;

typedef struct mx_tape mx_tape;

/* What a tape calls during backward; NULL: nothing. */
typedef struct mx_tape_hooks {
    mx_status (*prefetch)(const mx_call *call); /* start what a call, to be run again soon, waits for; NULL: no more */
    mx_status (*leaf_done)(mx_tensor *t);       /* backward has gathered all of a leaf's gradient */
} mx_tape_hooks;

/* Has mx_apply record calls, and gives the default tape its hooks. Before the first operation. */
void mx_tape_install(const mx_tape_hooks *hooks);

/* An empty tape with the hooks and the prefetch of the current one. MX_ERR_MEMORY. */
mx_status mx_tape_new(mx_tape **out);

/* Forgets its records, too. MX_ERR_STATE, before anything is done, while it is entered. The default tape stays. */
mx_status mx_tape_free(mx_tape *tape);

mx_tape *mx_tape_current(void);

/* Makes it the current tape until mx_tape_leave, which takes what this returned: the current tape before. */
mx_tape *mx_tape_enter(mx_tape *tape);
void mx_tape_leave(mx_tape *before);

/* "the tape of train.lua:12", the line that made it, or "the default tape"; valid as long as mx_site_text. */
const char *mx_tape_text(const mx_tape *tape);

/* Recording, of all tapes. On at the start. Returns what it was before. */
bool mx_tape_set_recording(bool on);
bool mx_tape_is_recording(void);

/* Marks a leaf as collecting a gradient from the calls that are recorded from now on (f32, gathered in t->grad over
 * backwards until mx_tape_zero_grad), or as collecting none, from what is already recorded neither; the gradient
 * gathered so far stays. MX_ERR_STATE for a tensor that is computed from others. */
mx_status mx_tape_require_grad(mx_tensor *t, bool on);

/* Forgets the gradient and releases its memory, whoever else refers to it. */
void mx_tape_zero_grad(mx_tensor *t);

/* Opens a region on the current tape, and its scope. The policy's names must stay valid until the region is closed. */
mx_status mx_tape_region_open(const mx_remat_policy *policy, mx_scope **scope);

/* Closes both. `results` leave the scope, for the enclosing one, with their values. */
mx_status mx_tape_region_close(mx_scope *scope, mx_tensor *const *results, int n_results);

/* Closes the scope after a failure inside it; what was recorded there can no longer be walked back. */
void mx_tape_region_abandon(mx_scope *scope);

/* The same for regions alone, when a scope is about to be closed from outside of them: those of `scope` and inside. */
void mx_tape_regions_leave(const mx_scope *scope);

/* Where backward begins: a tensor and its gradient. */
typedef struct mx_root {
    mx_tensor *t;
    mx_tensor *grad; /* f32 or bf16, of t's shape; NULL: t has one element, whose gradient is `seed` */
    double seed;
} mx_root;

/* Adds the gradients of all roots to every leaf that requires one. Forgets the records that the roots depend on, unless
 * they are to be retained: then the same roots, or others over the same tensors, can be walked again. A root may be
 * given twice, and may depend on another one. Collective where it meets collectives or leaves with reduce_axes.
 * MX_ERR_STATE, before anything is done, when a root was not recorded on `tape`, when the roots depend on no such leaf,
 * or on a forgotten record, or on values that have been changed. A failure later on forgets the records all the same.
 */
mx_status mx_tape_backward(mx_tape *tape, const mx_root *roots, int n_roots, bool retain);

/* How many regions ahead of the one that backward is in have their MX_OP_REGATHER calls started
 * (mx_tape_hooks.prefetch).
 */
void mx_tape_set_prefetch(mx_tape *tape, int regions);

/* Forgets all records of the tape. */
void mx_tape_clear(mx_tape *tape);

/* The number of calls recorded so far, on all tapes; forgets the records made since it was `since`, on all tapes. */
uint64_t mx_tape_count(void);
void mx_tape_forget_since(uint64_t since);

/* Calls `visit` for each result on the tapes that has values, tape by tape in the order of the calls: what the forward
 * pass keeps. `visit` must not let go of tensors. */
void mx_tape_for_each_kept(void (*visit)(void *context, const mx_op *op, const mx_tensor *t), void *context);

#endif
