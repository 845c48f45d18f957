/* The tape: records calls, walks them back, and computes again what a policy dropped.
 *
 * There is one tape. A call is recorded when recording is on and an input requires a gradient. The record keeps the
 * tensors, and holds (counts in mx_tensor.held) the values that the operation's vjp reads, and no others.
 *
 * A record is forgotten
 *   - when backward has walked it (those that its loss does not depend on stay),
 *   - when the outermost step or scope closes in which it was made,
 *   - when nobody can use its results any more: no Lua value, no scope, no later record.
 * What a forgotten record made is a value without a gradient (mx_tensor.gone). Backward fails when its loss depends on
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

/* Recording. On at the start. Returns what it was before. */
bool mx_tape_set_recording(bool on);
bool mx_tape_is_recording(void);

/* Marks a leaf as collecting a gradient from the calls that are recorded from now on (f32, gathered in t->grad over
 * backwards until mx_tape_zero_grad), or as collecting none, from what is already recorded neither; the gradient
 * gathered so far stays. MX_ERR_STATE for a tensor that is computed from others. */
mx_status mx_tape_require_grad(mx_tensor *t, bool on);

/* Forgets the gradient and releases its memory, whoever else refers to it. */
void mx_tape_zero_grad(mx_tensor *t);

/* Opens a region and its scope. The policy's names must stay valid until the region is closed. */
mx_status mx_tape_region_open(const mx_remat_policy *policy, mx_scope **scope);

/* Closes both. `results` leave the scope, for the enclosing one, with their values. */
mx_status mx_tape_region_close(mx_scope *scope, mx_tensor *const *results, int n_results);

/* Closes the scope after a failure inside it; what was recorded there can no longer be walked back. */
void mx_tape_region_abandon(mx_scope *scope);

/* The same for regions alone, when a scope is about to be closed from outside of them: those of `scope` and inside. */
void mx_tape_regions_leave(const mx_scope *scope);

/* Gradients of the scalar `loss` (scaled by `scale`) for every leaf that requires one. Forgets the records that the
 * loss depends on, unless they are to be retained: then the same loss, or another one over the same tensors, can be
 * walked again. Collective where it meets collectives or leaves with reduce_axes.
 * MX_ERR_STATE, before anything is done, when the loss depends on no such leaf, on a forgotten record, or on values
 * that have been changed. A failure later on forgets the records all the same. */
mx_status mx_tape_backward(mx_tensor *loss, double scale, bool retain);

/* How many regions ahead of the one that backward is in have their MX_OP_REGATHER calls started (mx_hooks.prefetch). */
void mx_tape_set_prefetch(int regions);

/* The number of calls recorded so far; forgets the records made since it was `since`; forgets all. */
uint64_t mx_tape_count(void);
void mx_tape_forget_since(uint64_t since);
void mx_tape_clear(void);

/* Calls `visit` for each result on the tape that has values, in the order of the calls: what the forward pass keeps.
 * `visit` must not let go of tensors. */
void mx_tape_for_each_kept(void (*visit)(void *context, const mx_op *op, const mx_tensor *t), void *context);

#endif
