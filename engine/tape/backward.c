/* Walking back: from a loss to the gradients of its leaves. */
#include "core/offload.h"
#include "ops/check.h"
#include "ops/table.h"
#include "tape/record.h"

static mx_tape *const tape = &mx_the_tape;

/* ---- before the walk: what the loss depends on ---- */

static mx_status fail_gone(const mx_tensor *t, bool is_loss)
{
    return mx_fail(MX_ERR_STATE,
                   "backward: the loss %s %s, %s of %s%s, whose record is gone: it has been walked back already, or "
                   "its step has ended; run the forward pass again, call the earlier mx.backward with {retain = true}, "
                   "or use t:detach() where no gradient is wanted",
                   is_loss ? "is" : "depends on", mx_tensor_text(t),
                   t->gone.is_before ? "computed from the result" : "the result", t->gone.op,
                   mx_site_text(t->gone.site));
}

/* How often the values of a computed tensor have been changed, wherever they are. */
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

/* The values that the vjp reads are those of the call, and its inputs have the records that they came from. */
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

/* A gradient that has been added over ranks, and one that has not, do not go together. */
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

/* Marks the records that the loss depends on, and counts them. Changes nothing else. */
static mx_status reach(const mx_tensor *loss, int *n_reached)
{
    uint64_t walk = ++tape->walk;
    bool collects = false;
    int open = 1;
    loss->node->walk = walk;
    *n_reached = 0;
    for (mx_node *node = loss->node; open > 0; node = node->before) {
        if (node->walk != walk)
            continue;
        open--;
        ++*n_reached;
        const mx_call *call = &node->call;
        for (int i = 0; i < call->n_in; i++) {
            const mx_tensor *t = call->in[i];
            if (!t)
                continue;
            if (t->node && t->node->walk != walk) {
                t->node->walk = walk;
                open++;
            } else if (!t->node && t->gone.op) {
                return fail_gone(t, false);
            } else if (!t->node && t->requires_grad && (node->wants >> i & 1u)) {
                MX_TRY(check_leaf(t));
                collects = true;
            }
        }
        MX_TRY(check_node(node));
    }
    if (!collects)
        return mx_fail(MX_ERR_STATE, "backward: %s depends on no tensor that still requires a gradient",
                       mx_tensor_text(loss));
    return MX_OK;
}

static void need(mx_tensor *t) { t->needed++; }

static void need_values(mx_node *loss, int n)
{
    for (mx_node *node = loss; n > 0; node = node->before)
        if (node->walk == tape->walk) {
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
        status = mx_apply(&mx_op_add_acc, in, 2, NULL, NULL);
    } else {
        mx_tensor *sum = NULL;
        status = mx_apply(&mx_op_add, in, 2, NULL, &sum);
        if (status == MX_OK) {
            mx_release(*target);
            *target = sum;
        }
    }
    mx_release(g);
    return status;
}

/* What earlier backwards have gathered and added over ranks waits until this one is added, too. */
static void set_earlier_aside(mx_tensor *t)
{
    if (t->node || !t->grad || t->grad->reduce_axes == 0)
        return;
    t->earlier = t->grad;
    t->grad = NULL;
}

/* A leaf's gradient is f32 and of the leaf's shape, whatever the vjp made. */
static mx_status gather(const mx_call *call, int i, mx_tensor *g)
{
    mx_tensor *t = call->in[i];
    if (mx_count(g) != mx_count(t)) {
        mx_status status = mx_fail(MX_ERR_SHAPE, "internal: gradient of %s for input %d is %s, the input %s",
                                   call->op->name, i + 1, mx_tensor_text(g), mx_tensor_text(t));
        mx_release(g);
        return status;
    }
    mx_dtype dtype = t->node ? t->dtype : MX_F32;
    if (!t->node && g->refs > 1) { /* also somebody else's: a leaf's gradient is its own, to release by itself */
        mx_tensor *own = NULL;
        mx_status status = mx_tensor_new_empty(g->dtype, &t->shape, &own);
        if (status == MX_OK)
            mx_tensor_alias(own, g, 0);
        mx_release(g);
        MX_TRY(status);
        g = own;
    }
    if (g->dtype != dtype && !t->node) {
        mx_tensor *cast = NULL;
        const struct {
            int dtype;
        } attr = {dtype};
        mx_status status = mx_apply(&mx_op_cast, &g, 1, &attr, &cast);
        mx_release(g);
        MX_TRY(status);
        g = cast;
    }
    return add_to(&t->grad, g);
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
    mx_vjp v = {.call = call, .out_grad = out_grad, .retain = retain};
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

/* Gives the leaf's gradient storage of its own, and no more than it fills, where others share it: who changes it, or
 * adds it over ranks, then changes no other gradient. */
static mx_status own_gradient(mx_tensor *t)
{
    const mx_tensor *g = t->grad; /* a job that still writes it is nobody who shares it */
    if (!g->storage || (g->refs == 1 && g->storage->tensors == 1 && g->storage->bytes == mx_bytes(g)))
        return MX_OK;
    mx_tensor *own = NULL;
    MX_TRY(mx_apply(&mx_op_cast, &t->grad, 1, &(int){g->dtype}, &own));
    mx_release(t->grad);
    t->grad = own;
    return MX_OK;
}

static mx_status finish_leaf(mx_tensor *t)
{
    if (t->grad && t->grad->reduce_axes == 0) {
        MX_TRY(own_gradient(t));
        if (mx_apply_hooks.leaf_done)
            MX_TRY(mx_apply_hooks.leaf_done(t));
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

/* The leaves that no call still to be walked back reads: each call holds its leaves. */
static mx_status finish_leaves(const mx_node *node)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || call->in[k] == t;
        if (t && !seen && !t->node && t->needed == 0 && (t->grad || t->earlier))
            MX_TRY(finish_leaf(t));
    }
    return MX_OK;
}

/* ---- the walk ---- */

static mx_status seed_loss(mx_tensor *loss, double scale)
{
    mx_tensor *g = NULL;
    MX_TRY(mx_tensor_new(loss->dtype, &loss->shape, &g));
    if (!mx_data(g)) /* a device without values */
        ;
    else if (loss->dtype == MX_F32)
        mx_f32(g)[0] = (float)scale;
    else
        *(mx_bf16 *)mx_data(g) = mx_to_bf16((float)scale);
    mx_release(loss->grad);
    loss->grad = g;
    return MX_OK;
}

static void release_gradients(const mx_node *node)
{
    for (int i = 0; i < node->call.n_out; i++) {
        mx_release(node->call.out[i]->grad);
        node->call.out[i]->grad = NULL;
    }
}

static void done_with(mx_tensor *t)
{
    if (--t->needed == 0)
        mx_tape_settle(t);
}

/* After a failure: nothing of this walk may be left in tensors that live on. */
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

static mx_status walk(mx_node *node, int n, bool retain)
{
    mx_status status = MX_OK;
    while (n > 0) {
        mx_node *before = node->before;
        if (node->walk == tape->walk) {
            n--;
            mx_place = node->place;
            if (status == MX_OK)
                status = walk_back(node, retain);
            if (status == MX_OK) {
                release_gradients(node);
                mx_node_for_each_held(node, done_with);
                status = finish_leaves(node);
            }
            if (status != MX_OK)
                let_go(node);
            if (!retain)
                mx_tape_forget(node);
        }
        node = before;
    }
    return status;
}

static mx_status check_loss(const mx_tensor *loss)
{
    for (const mx_region *region = tape->region; region; region = region->parent)
        if (region->drops)
            return mx_fail(MX_ERR_STATE, "backward was called inside mx.remat; call it after the layer has returned");
    if (!loss->node && loss->gone.op)
        return fail_gone(loss, true);
    if (!loss->node)
        return mx_fail(MX_ERR_STATE, "backward: %s depends on no tensor that requires a gradient",
                       mx_tensor_text(loss));
    if (changes_of(loss) != loss->made_changes)
        return mx_fail(MX_ERR_STATE,
                       "backward: the loss %s has been changed in place%s after it was computed; changes in place have "
                       "no gradient: compute a new tensor",
                       mx_tensor_text(loss), change_text(loss));
    if (mx_count(loss) != 1)
        return mx_fail(MX_ERR_SHAPE, "backward wants a loss of one element, not %s; use t:mean() or t:sum()",
                       mx_tensor_text(loss));
    return MX_OK;
}

mx_status mx_tape_backward(mx_tensor *loss, double scale, bool retain)
{
    int n = 0;
    MX_TRY(check_loss(loss));
    MX_TRY(reach(loss, &n));
    mx_node *last = loss->node;
    bool recording = mx_tape_set_recording(false);
    mx_scope *scope = mx_scope_swap(NULL); /* gradients belong to their tensors, not to a scope */
    const char *place = mx_place;
    mx_place_backward = true;
    mx_site_pin();
    mx_status status = seed_loss(loss, scale);
    if (status == MX_OK) {
        tape->is_walking = true;
        need_values(last, n);
        status = walk(last, n, retain);
        tape->is_walking = false;
        tape->ahead_of = tape->fetched_for = NULL;
        tape->walked = tape->count;
    }
    mx_site_unpin();
    mx_place = place;
    mx_place_backward = false;
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    return status;
}
