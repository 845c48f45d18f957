/* Backward: computes the gradients of the leaves from those of the roots. */
#include "core/offload.h"
#include "ops/check.h"
#include "ops/rows.h"
#include "tape/record.h"

#include <stdio.h>

static mx_tapes *const tapes = &mx_all_tapes;

/* One backward: the `n` records of `tape` that the roots depend on; `last` is the newest. */
typedef struct mx_pass {
    mx_tape *tape;
    const mx_root *roots;
    int n_roots;
    mx_node *last;
    int n;
    bool retain;
} mx_pass;

/* ---- before the walk: find the records that the roots depend on ---- */

static mx_status fail_gone(const char *root, bool is_root, const mx_tensor *t)
{
    return mx_fail(MX_ERR_STATE,
                   "backward: %s %s %s, %s of %s%s, whose record is gone: it has been walked back already, or its step "
                   "has ended, or its tape was cleared; run the forward pass again, call the earlier mx.backward with "
                   "{retain = true}, or use t:detach() where no gradient is wanted",
                   root, is_root ? "is" : "depends on", mx_tensor_text(t),
                   t->gone.is_before ? "computed from the result" : "the result", t->gone.op,
                   mx_site_text(t->gone.site));
}

/* The number of in-place changes of a computed tensor, in memory or offloaded. */
static uint64_t changes_of(const mx_tensor *t)
{
    if (t->storage)
        return t->storage->changes;
    return t->away ? t->away->changes : t->made_changes;
}

static const char *change_text(const mx_tensor *t) { return t->storage ? mx_storage_change_text(t->storage) : ""; }

static mx_status fail_changed(const mx_node *node, const mx_tensor *t, const char *reads)
{
    return mx_fail(
        MX_ERR_STATE,
        "backward: %s%s %s %s, which has been changed%s since; change a copy (t:clone()), or call mx.backward "
        "before",
        node->call.op->name, mx_site_text(node->site), reads, mx_tensor_text(t), change_text(t));
}

mx_status mx_node_check_input(const mx_node *node, int i, const char *reads)
{
    const mx_tensor *t = node->call.in[i];
    if (!t || (!t->storage && !t->away))
        return MX_OK;
    bool same = t->node ? changes_of(t) == t->made_changes : (uint32_t)changes_of(t) == node->changes[i];
    return same ? MX_OK : fail_changed(node, t, reads);
}

/* Checks that the values that the vjp reads have not changed since the call, and that the records of its inputs exist.
 */
static mx_status check_node(const mx_node *node)
{
    const mx_call *call = &node->call;
    for (uint32_t left = call->op->reads_in & ((1u << call->n_in) - 1); left; left &= left - 1)
        MX_TRY(mx_node_check_input(node, __builtin_ctz(left), "reads"));
    for (uint32_t left = node->holds_out; left; left &= left - 1) {
        const mx_tensor *t = call->out[__builtin_ctz(left)];
        if (changes_of(t) != t->made_changes)
            return fail_changed(node, t, "made and reads");
    }
    if (node->stale_in == 0)
        return MX_OK;
    const mx_tensor *t = call->in[__builtin_ctz(node->stale_in)];
    return mx_fail(
        MX_ERR_STATE,
        "backward: %s%s used %s, which had been changed in place%s after it was computed; changes in place have "
        "no gradient: compute a new tensor, or use t:detach() where no gradient is wanted",
        call->op->name, mx_site_text(node->site), mx_tensor_text(t), change_text(t));
}

/* Refuses to add a gradient that is not all-reduced to one that is. */
static mx_status check_leaf(const mx_tensor *t)
{
    if (!t->grad || t->grad->reduce_axes == 0 || t->reduce_axes != 0)
        return MX_OK;
    return mx_fail(
        MX_ERR_STATE,
        "backward: the gradient of %s has been added over ranks by an earlier backward, and this one is not to "
        "be (mx.reduce_gradient); call t:zero_grad() before",
        mx_tensor_text(t));
}

/* Checks the inputs of a reached record and marks the records that computed them; returns the number marked. */
static mx_status reach_inputs(const mx_pass *pass, const mx_node *node, int *n_marked, bool *collects)
{
    const mx_call *call = &node->call;
    uint64_t walk = pass->tape->walk;
    for (int i = 0; i < call->n_in; i++) {
        const mx_tensor *t = call->in[i];
        if (!t)
            continue;
        if (t->node && t->node->walk != walk) {
            t->node->walk = walk;
            ++*n_marked;
        } else if (!t->node && t->gone.op) {
            return fail_gone(pass->n_roots == 1 ? "the loss" : "a root", false, t);
        } else if (!t->node && t->requires_grad && (node->wants >> i & 1u)) {
            MX_TRY(check_leaf(t));
            *collects = true;
        }
    }
    return MX_OK;
}

/* Marks the records that the roots depend on, and counts them. Changes nothing else. */
static mx_status reach(mx_pass *pass)
{
    uint64_t walk = ++pass->tape->walk;
    bool collects = false;
    int marked = 0;
    pass->last = NULL;
    for (int i = 0; i < pass->n_roots; i++) {
        mx_node *node = pass->roots[i].t->node;
        marked += node->walk != walk;
        node->walk = walk;
        if (!pass->last || node->number > pass->last->number)
            pass->last = node;
    }
    pass->n = 0;
    for (mx_node *node = pass->last; pass->n < marked; node = node->before) {
        if (node->walk != walk)
            continue;
        pass->n++;
        MX_TRY(reach_inputs(pass, node, &marked, &collects));
        MX_TRY(check_node(node));
    }
    if (!collects)
        return mx_fail(MX_ERR_STATE, "backward: %s depends on no tensor that still requires a gradient",
                       mx_tensor_text(pass->roots[0].t));
    return MX_OK;
}

static void need(mx_tensor *t) { t->needed++; }

static void need_values(const mx_pass *pass)
{
    int n = pass->n;
    for (mx_node *node = pass->last; n > 0; node = node->before)
        if (node->walk == pass->tape->walk) {
            mx_node_for_each_held(node, need);
            n--;
        }
}

/* ---- gradients ---- */

static bool is_exclusive(const mx_tensor *t) { return t->refs == 1 && t->storage && t->storage->refs == 1; }

/* target = target + g; takes over the reference to g. */
static mx_status add_to(mx_tensor **target, mx_tensor *g)
{
    mx_status status = MX_OK;
    if (!*target) {
        *target = g;
        return MX_OK;
    }
    mx_tensor *in[2] = {*target, g};
    if (is_exclusive(*target)) {
        status = mx_apply(&mx_op_add_acc, in, 2, MX_NO_ATTRS, NULL);
    } else {
        mx_tensor *sum = NULL;
        status = mx_apply(&mx_op_add, in, 2, MX_NO_ATTRS, &sum);
        if (status == MX_OK) {
            mx_release(*target);
            *target = sum;
        }
    }
    mx_release(g);
    return status;
}

/* Sets aside the gradient of earlier backward passes, which is already all-reduced, until this pass's is too. */
static void set_earlier_aside(mx_tensor *t)
{
    if (t->node || !t->grad || t->grad->reduce_axes == 0)
        return;
    t->earlier = t->grad;
    t->grad = NULL;
}

/* Adds a gradient from a vjp. A leaf's gradient is always f32 and has the leaf's shape. */
static mx_status gather(const mx_call *call, int i, mx_tensor *g)
{
    mx_tensor *t = call->in[i];
    if (mx_count(g) != mx_count(t)) {
        mx_status status = mx_fail(MX_ERR_SHAPE, "internal: gradient of %s for input %d is %s, the input %s",
                                   call->op->name, i + 1, mx_tensor_text(g), mx_tensor_text(t));
        mx_release(g);
        return status;
    }
    mx_dtype dtype = t->node ? t->dtype : mx_dtype_accumulates_in(t->dtype);
    if (!t->node && g->refs > 1) { /* shared: a leaf needs its own gradient, which can be released separately */
        mx_tensor *own = NULL;
        mx_status status = mx_tensor_new_empty(g->dtype, &t->shape, &own);
        if (status == MX_OK)
            mx_tensor_alias(own, g, 0);
        mx_release(g);
        MX_TRY(status);
        g = own;
    }
    if (!t->node)
        MX_TRY(mx_grad_cast(&g, dtype));
    return add_to(&t->grad, g);
}

static void done_with(mx_tensor *t)
{
    if (--t->needed == 0)
        mx_tape_settle(t);
}

/* mx_vjp_let_go: what mx_tape_forget would do for this input after the vjp. */
static void let_go_of_input(const mx_vjp *v, int i)
{
    mx_node *node = (mx_node *)((char *)v->call - offsetof(mx_node, call));
    uint16_t bit = (uint16_t)(1u << i);
    if (v->retain || !(node->holds_in & bit))
        return;
    node->holds_in = (uint16_t)(node->holds_in & ~bit);
    done_with(node->call.in[i]);
    mx_tape_unhold(node->call.in[i]);
}

static mx_status walk_back(mx_node *node, bool retain)
{
    mx_call *call = &node->call;
    mx_tensor *out_grad[MX_MAX_OUTPUTS];
    bool any = false;
    for (int i = 0; i < call->n_out; i++) {
        out_grad[i] = call->out[i]->grad;
        any = any || out_grad[i];
    }
    if (!any)
        return MX_OK;
    if (!call->op->vjp)
        return mx_fail(MX_ERR_STATE, "%s has no gradient; use t:detach() where none is wanted", call->op->name);
    MX_TRY(mx_offload_settle(false));
    MX_TRY(mx_remat_fetch(node));
    MX_TRY(mx_remat_ensure(node));
    MX_TRY(mx_remat_prefetch(node));
    mx_vjp v = {.call = call, .out_grad = out_grad, .retain = retain, .let_go = let_go_of_input};
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        v.want[i] = t && t->requires_grad && (node->wants >> i & 1u);
        if (!v.want[i])
            continue;
        set_earlier_aside(t);
        if (t->grad && is_exclusive(t->grad))
            v.sum[i] = t->grad;
    }
    mx_status status = call->op->vjp(&v);
    for (int i = 0; i < call->n_in; i++) {
        if (!v.grad[i])
            continue;
        if (status == MX_OK && v.want[i])
            status = gather(call, i, v.grad[i]);
        else
            mx_release(v.grad[i]);
    }
    return status == MX_OK ? MX_OK : mx_context(status, "gradient of %s", call->op->name);
}

/* If others share the storage of a leaf's gradient, or it is larger than needed, gives the gradient its own storage. So
 * changing or all-reducing it changes no other gradient. */
static mx_status own_gradient(mx_tensor *t)
{
    const mx_tensor *g = t->grad; /* a job that still writes it does not count as sharing */
    if (!g->storage || (g->refs == 1 && g->storage->tensors == 1 && g->storage->bytes == mx_bytes(g)))
        return MX_OK;
    mx_tensor *own = NULL;
    MX_TRY(mx_apply_cast(t->grad, g->dtype, &own));
    mx_release(t->grad);
    t->grad = own;
    return MX_OK;
}

static mx_status finish_leaf(const mx_tape *tape, mx_tensor *t)
{
    if (t->grad && t->grad->reduce_axes == 0) {
        MX_TRY(own_gradient(t));
        if (tape->hooks.leaf_done)
            MX_TRY(tape->hooks.leaf_done(t));
    }
    mx_tensor *earlier = t->earlier;
    t->earlier = NULL;
    if (!earlier)
        return MX_OK;
    if (!t->grad) {
        t->grad = earlier;
        return MX_OK;
    }
    uint32_t axes = t->grad->reduce_axes;
    mx_status status = add_to(&t->grad, earlier);
    t->grad->reduce_axes = axes;
    return status;
}

/* Finishes the leaves that no remaining call reads; each call holds its leaves. */
static mx_status finish_leaves(const mx_node *node)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || call->in[k] == t;
        if (t && !seen && !t->node && t->needed == 0 && (t->grad || t->earlier))
            MX_TRY(finish_leaf(node->tape, t));
    }
    return MX_OK;
}

/* ---- the walk ---- */

static mx_status new_seed(const mx_tensor *t, double seed, mx_tensor **out)
{
    MX_TRY(mx_tensor_new(t->dtype, &t->shape, out));
    mx_status status = mx_tensor_fill(*out, seed);
    if (status != MX_OK)
        mx_release(*out);
    return status;
}

static mx_status seed_root(const mx_root *root)
{
    mx_tensor *t = root->t, *g = NULL;
    if (!root->grad)
        MX_TRY(new_seed(t, root->seed, &g));
    else if (root->grad->dtype != t->dtype)
        MX_TRY(mx_apply_cast(root->grad, t->dtype, &g));
    else
        g = mx_retain(root->grad);
    return add_to(&t->grad, g);
}

static void release_gradients(const mx_node *node)
{
    for (int i = 0; i < node->call.n_out; i++) {
        mx_release(node->call.out[i]->grad);
        node->call.out[i]->grad = NULL;
    }
}

/* After a failure: removes the state of this walk from tensors that live on. */
static void let_go(const mx_node *node)
{
    const mx_call *call = &node->call;
    release_gradients(node);
    for (int i = 0; i < call->n_out; i++) {
        call->out[i]->needed = call->out[i]->pending = 0;
        mx_tape_settle(call->out[i]);
    }
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        if (!t)
            continue;
        t->needed = t->pending = 0;
        if (t->earlier) {
            mx_release(t->grad);
            t->grad = t->earlier;
            t->earlier = NULL;
        }
    }
}

static mx_status walk(const mx_pass *pass)
{
    mx_status status = MX_OK;
    int n = pass->n;
    for (mx_node *node = pass->last, *before; n > 0; node = before) {
        before = node->before;
        if (node->walk != pass->tape->walk)
            continue;
        n--;
        mx_place = node->place;
        if (status == MX_OK)
            status = walk_back(node, pass->retain);
        if (status == MX_OK) {
            release_gradients(node);
            mx_node_for_each_held(node, done_with);
            status = finish_leaves(node);
        }
        if (status != MX_OK)
            let_go(node);
        if (!pass->retain)
            mx_tape_forget(node);
    }
    return status;
}

static mx_status seed_and_walk(const mx_pass *pass)
{
    mx_status status = MX_OK;
    for (int i = 0; i < pass->n_roots && status == MX_OK; i++)
        status = seed_root(&pass->roots[i]);
    if (status != MX_OK) {
        for (int i = 0; i < pass->n_roots; i++)
            release_gradients(pass->roots[i].t->node);
        return status;
    }
    tapes->walking = pass->tape;
    need_values(pass);
    status = walk(pass);
    tapes->walking = NULL;
    pass->tape->ahead_of = pass->tape->fetched_for = NULL;
    tapes->walked = tapes->count;
    return status;
}

static mx_status check_seed(const char *name, const mx_root *root)
{
    const mx_tensor *t = root->t, *g = root->grad;
    if (!g && mx_count(t) != 1)
        return mx_fail(MX_ERR_SHAPE,
                       "backward wants a loss of one element, not %s; use t:mean() or t:sum(), or give its gradient",
                       mx_tensor_text(t));
    if (g && !mx_shape_equal(&g->shape, &t->shape))
        return mx_fail(MX_ERR_SHAPE, "backward: the gradient of %s is %s, and must have the shape of %s", name,
                       mx_tensor_text(g), mx_tensor_text(t));
    if (g && !mx_dtype_computes(g->dtype))
        return mx_fail(MX_ERR_DTYPE, "backward: the gradient of %s must be f32 or bf16, not %s", name,
                       mx_tensor_text(g));
    return MX_OK;
}

static mx_status check_root(const mx_tape *tape, const char *name, const mx_root *root)
{
    const mx_tensor *t = root->t;
    if (!t->node && t->gone.op)
        return fail_gone(name, true, t);
    if (!t->node || !t->requires_grad)
        return mx_fail(MX_ERR_STATE, "backward: %s depends on no tensor that requires a gradient", mx_tensor_text(t));
    if (t->node->tape != tape)
        return mx_fail(MX_ERR_STATE,
                       "backward of %s: %s is %s, computed on %s, by %s%s; call backward of the tape that computed it",
                       mx_tape_text(tape), name, mx_tensor_text(t), mx_tape_text(t->node->tape), t->node->call.op->name,
                       mx_site_text(t->node->site));
    if (changes_of(t) != t->made_changes)
        return mx_fail(MX_ERR_STATE,
                       "backward: %s %s has been changed in place%s after it was computed; changes in place have no "
                       "gradient: compute a new tensor",
                       name, mx_tensor_text(t), change_text(t));
    return check_seed(name, root);
}

static mx_status check_roots(const mx_pass *pass)
{
    for (const mx_region *region = pass->tape->region; region; region = region->parent)
        if (region->drops)
            return mx_fail(MX_ERR_STATE, "backward was called inside mx.remat; call it after the layer has returned");
    for (int i = 0; i < pass->n_roots; i++) {
        char name[32];
        snprintf(name, sizeof name, pass->n_roots == 1 ? "the loss" : "root %d", i + 1);
        MX_TRY(check_root(pass->tape, name, &pass->roots[i]));
    }
    return MX_OK;
}

mx_status mx_tape_backward(mx_tape *tape, const mx_root *roots, int n_roots, bool retain)
{
    mx_pass pass = {.tape = tape, .roots = roots, .n_roots = n_roots, .retain = retain};
    MX_TRY(check_roots(&pass));
    MX_TRY(reach(&pass));
    bool recording = mx_tape_set_recording(false);
    mx_scope *scope = mx_scope_swap(NULL); /* gradients belong to their tensors, not to a scope */
    const char *place = mx_place;
    mx_place_backward = true;
    mx_site_pin();
    mx_status status = seed_and_walk(&pass);
    mx_site_unpin();
    mx_place = place;
    mx_place_backward = false;
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    return status;
}
