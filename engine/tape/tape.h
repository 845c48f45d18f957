/* Tapes: record calls, compute gradients by walking the records backwards, and rematerialise dropped values.
 *
 * A call is recorded on the current tape if recording is on and an input requires a gradient. Initially the default
 * tape is current. The record keeps the tensors. It holds (counts in mx_tensor.held) only the values that the
 * operation's vjp reads. A tensor that was computed on one tape cannot be an input of a call that another tape records
 * (MX_ERR_STATE). Leaves belong to no tape.
 *
 * A record is forgotten
 *   - when backward has visited it (records that the roots do not depend on stay),
 *   - when its tape is cleared or freed,
 *   - when the outermost step or scope closes in which it was made,
 *   - when its results are unreachable: no Lua value, scope or later record refers to them.
 * The result of a forgotten record is a value without a gradient (mx_tensor.gone). Backward fails if a root depends on
 * it; mx.no_grad and t:detach() turn it into a constant.
 *
 * Backward must read the same values as the calls did. Storages count their in-place changes, records store the counts,
 * and backward fails if they differ.
 *
 * A region is the sequence of calls made inside mx.remat(policy, fn), or mx.scope(fn), whose policy keeps everything
 * that is held. When the region closes, its policy decides by name which values stay and which are offloaded; all
 * others lose their storage, and so do named values that backward does not read. A named input that was made before the
 * region may be offloaded too, but is never dropped. When backward reaches the first call of a region that lacks a
 * value, it runs the region's recorded calls again: only those on which a needed value depends, in their original
 * order, and releases values that no vjp reads as it proceeds.
 */
#ifndef MX_TAPE_TAPE_H
#define MX_TAPE_TAPE_H

#include "core/scope.h"
#include "ops/op.h"

#include <stdbool.h>

typedef struct mx_remat_policy {
    bool keep_held; /* everything that a vjp reads stays ("none"); otherwise only the named tensors */
    bool regathers; /* with keep_held: except the results of operations marked MX_OP_REGATHER, and those in `dropped` */
    int n_kept, n_offloaded, n_dropped;
    const char *const *kept;      /* names of the tensors that stay in memory */
    const char *const *offloaded; /* names of the tensors that are offloaded (core/offload.h) */
    const char *const *dropped;   /* with regathers: names of the tensors that are computed again */
} mx_remat_policy;

typedef struct mx_tape mx_tape;

/* Hooks that a tape calls during backward; NULL: none. */
typedef struct mx_tape_hooks {
    mx_status (*prefetch)(const mx_call *call); /* prefetch for a call that will run again soon; NULL: no more calls */
    mx_status (*leaf_done)(mx_tensor *t);       /* a leaf's gradient is complete */
    bool (*hurries)(const mx_call *call); /* the gradient travels in the background: start as soon as it is complete */
} mx_tape_hooks;

/* Makes mx_apply record calls, and sets the hooks of the default tape. To be called before the first operation. */
void mx_tape_install(const mx_tape_hooks *hooks);

/* Creates an empty tape with the hooks and the prefetch setting of the current tape. MX_ERR_MEMORY. */
mx_status mx_tape_new(mx_tape **out);

/* Frees the tape and its records; the default tape stays. MX_ERR_STATE, without any effect, while the tape is entered.
 */
mx_status mx_tape_free(mx_tape *tape);

mx_tape *mx_tape_current(void);
bool mx_tape_is_walking(const mx_tape *tape); /* inside backward of this tape */
bool mx_tape_is_any_walking(void);            /* inside backward of any */

/* Makes it the current tape until mx_tape_leave. Returns the previous tape, the argument of mx_tape_leave. */
mx_tape *mx_tape_enter(mx_tape *tape);
void mx_tape_leave(mx_tape *before);

/* "the tape of train.lua:12", the line that created it, or "the default tape"; valid as long as mx_site_text. */
const char *mx_tape_text(const mx_tape *tape);

/* Turns recording on all tapes on or off; initially on. Returns the previous state. */
bool mx_tape_set_recording(bool on);
bool mx_tape_is_recording(void);

/* on: the leaf accumulates a gradient from all calls that are recorded from now on, in f32 in t->grad, over backward
 * passes until mx_tape_zero_grad. Off: it accumulates none, not even from calls already recorded; the present gradient
 * stays. MX_ERR_STATE for a tensor that was computed from others. */
mx_status mx_tape_require_grad(mx_tensor *t, bool on);

/* Discards the gradient and releases its memory, even if something else refers to it. */
void mx_tape_zero_grad(mx_tensor *t);

/* Opens a region on the current tape, and its scope. The policy's names must stay valid until the region closes. */
mx_status mx_tape_region_open(const mx_remat_policy *policy, mx_scope **scope);

/* Closes both. `results` move to the enclosing scope and keep their values. */
mx_status mx_tape_region_close(mx_scope *scope, mx_tensor *const *results, int n_results);

/* Closes the scope after a failure inside it. Backward is no longer possible through calls recorded there. */
void mx_tape_region_abandon(mx_scope *scope);

/* The same only for regions, if their scope is about to be closed from outside: those of `scope` and the scopes inside.
 */
void mx_tape_regions_leave(const mx_scope *scope);

/* A root, where backward begins: a tensor and its gradient. */
typedef struct mx_root {
    mx_tensor *t;
    mx_tensor *grad; /* f32 or bf16, of t's shape; NULL: t has one element, whose gradient is `seed` */
    double seed;
} mx_root;

/* Computes the gradients of all roots and adds them to those of the leaves. Forgets the records that the roots depend
 * on; with `retain` keeps them, for another backward from the same roots or others over the same tensors. A root may be
 * given twice, and may depend on another root. Collective if it meets collectives or leaves with reduce_axes.
 * MX_ERR_STATE, without any effect, if a root was not recorded on `tape`, or if the roots depend on no leaf that
 * requires a gradient, on a forgotten record, or on values that have changed. A later failure also forgets the records.
 */
mx_status mx_tape_backward(mx_tape *tape, const mx_root *roots, int n_roots, bool retain);

/* The first half of mx_tape_backward: computes the gradients that lead to `inputs`, which are leaves or computed
 * tensors, and others that come along with these. Gradients of weights of products are left to the second half; until
 * then the tape holds the values that it reads, and another backward on it is refused. Otherwise as mx_tape_backward.
 * MX_ERR_STATE, too, if the roots do not depend on an input; MX_ERR_VALUE if one is given twice. */
mx_status mx_tape_backward_inputs(mx_tape *tape, const mx_root *roots, int n_roots, mx_tensor *const *inputs,
                                  int n_inputs);

/* The second half. Both together give the same bits as mx_tape_backward, unless a leaf is used three times or more, of
 * which some are left and some are not: then the order of the sum differs. The gradient of a leaf that several tapes
 * wait for is complete after the last of them. Does nothing if nothing is left. Collective as mx_tape_backward.
 * MX_ERR_STATE, without any effect, if values have changed, or if waiting records were forgotten. */
mx_status mx_tape_backward_weights(mx_tape *tape);

/* Whether the second half is still to be called. */
bool mx_tape_waits(const mx_tape *tape);

/* Sets grads[i] to the gradient of the roots by targets[i], with one reference for the caller, and leaves the gradients
 * of all leaves as they are. A target is a leaf that requires a gradient, or a computed tensor; it must be given once.
 * With `record`, the gradients are recorded: they can be differentiated, and the records stay as with `retain`. Other
 * rules and errors are those of mx_tape_backward. MX_ERR_STATE, too, if the roots do not depend on a target; with
 * `record`, if a call on the way to a target has neither vjp_recorded nor a composition, or if the composition reads a
 * value that was released. */
mx_status mx_tape_grad(mx_tape *tape, const mx_root *roots, int n_roots, mx_tensor *const *targets, int n_targets,
                       bool retain, bool record, mx_tensor **grads);

/* Whether a region of the current tape is open whose policy drops values, so that backward may run its calls again. */
bool mx_tape_drops(void);

/* Sets the number of regions ahead of backward's current region whose MX_OP_REGATHER calls are prefetched
 * (mx_tape_hooks.prefetch). */
void mx_tape_set_prefetch(mx_tape *tape, int regions);

/* Forgets all records of the tape. */
void mx_tape_clear(mx_tape *tape);

/* The number of calls recorded so far on all tapes. forget_since forgets the records made since that number was
 * `since`. */
uint64_t mx_tape_count(void);
void mx_tape_forget_since(uint64_t since);

/* Calls `visit` for each result on the tapes that has values, tape by tape in the order of the calls: the values that
 * the forward pass keeps. `visit` must not release tensors. */
void mx_tape_for_each_kept(void (*visit)(void *context, const mx_op *op, const mx_tensor *t), void *context);

#endif
