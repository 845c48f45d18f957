/* Before backward: checks the roots, and finds the records that they depend on. */
#include "core/offload.h"
#include "tape/record.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the records that the roots depend on ---- */

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

mx_status mx_node_fail_changed(const mx_node *node, const mx_tensor *t, const char *reads)
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
    bool same =
        t->node ? changes_of(t) == t->made_changes : (changes_of(t) & MX_CHANGES_MASK) == node->recorded[i].changes;
    return same ? MX_OK : mx_node_fail_changed(node, t, reads);
}

static __attribute__((cold)) mx_status fail_stale(const mx_node *node, const mx_tensor *t)
{
    return mx_fail(
        MX_ERR_STATE,
        "backward: %s%s used %s, which had been changed in place%s after it was computed; changes in place have "
        "no gradient: compute a new tensor, or use t:detach() where no gradient is wanted",
        node->call.op->name, mx_site_text(node->site), mx_tensor_text(t), change_text(t));
}

/* Checks that the values that the vjp reads have not changed since the call, and that the records of its inputs exist.
 */
static mx_status check_node(const mx_node *node)
{
    const mx_call *call = &node->call;
    for (uint32_t left = call->op->reads_in; left && __builtin_ctz(left) < call->n_in; left &= left - 1)
        MX_TRY(mx_node_check_input(node, __builtin_ctz(left), "reads"));
    for (uint32_t left = node->holds_out; left; left &= left - 1) {
        const mx_tensor *t = call->out[__builtin_ctz(left)];
        if (changes_of(t) != t->made_changes)
            return mx_node_fail_changed(node, t, "made and reads");
    }
    for (int i = 0; i < call->n_in; i++)
        if (node->recorded[i].stale)
            return fail_stale(node, call->in[i]);
    return MX_OK;
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
        } else if (!t->node && t->requires_grad && node->recorded[i].wants) {
            MX_TRY(check_leaf(t));
            *collects = true;
        }
    }
    return MX_OK;
}

/* Marks the records that the roots depend on, and counts them. Changes nothing else. */
mx_status mx_pass_reach(mx_pass *pass)
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
        pass->first = node;
        MX_TRY(reach_inputs(pass, node, &marked, &collects));
        MX_TRY(check_node(node));
    }
    if (!collects)
        return mx_fail(MX_ERR_STATE, "backward: %s depends on no tensor that still requires a gradient",
                       mx_tensor_text(pass->roots[0].t));
    return MX_OK;
}

/* ---- gradients of chosen tensors: find the records that lead to them ---- */

static bool is_target(const mx_tensor *t) { return t->asked != 0; }

static bool leads_to(const mx_node *node, int i)
{
    const mx_tensor *t = node->call.in[i];
    return t && t->requires_grad && node->recorded[i].wants && (is_target(t) || (t->node && t->node->leads));
}

/* Whether the walk computes the gradient of input i. */
bool mx_pass_wants(const mx_pass *pass, const mx_node *node, int i)
{
    const mx_tensor *t = node->call.in[i];
    bool collects = t && t->requires_grad && node->recorded[i].wants;
    if (pass->targets)
        return leads_to(node, i);
    return collects && (node->late == 0 || (node->late >> i & 1u) == pass->is_second);
}

/* Whether a result may have a gradient: not those of comparisons. */
static bool has_gradient(const mx_node *node)
{
    for (int i = 0; i < node->call.n_out; i++)
        if (node->call.out[i]->requires_grad)
            return true;
    return false;
}

static mx_status check_recordable(const mx_node *node)
{
    const mx_op *op = node->call.op;
    if (!op->vjp_recorded && !mx_op_is_plain(op))
        return mx_fail(
            MX_ERR_STATE,
            "grad: the gradient of %s%s cannot be recorded, because it has no gradient itself; compose %s of "
            "simpler operations, or leave out record",
            op->name, mx_site_text(node->site), op->name);
    return MX_OK;
}

static mx_status check_target(const mx_pass *pass, const char *what, mx_tensor *t)
{
    if (t->asked < 0)
        return mx_fail(
            MX_ERR_STATE,
            "%s: %s does not depend on %s, or not any more; ask only for tensors that require a gradient and "
            "were used to compute it",
            what, mx_tensor_text(pass->roots[0].t), mx_tensor_text(t));
    if (pass->record && !t->node && t->reduce_axes != 0)
        return mx_fail(MX_ERR_STATE,
                       "grad: the gradient of %s is summed over ranks (mx.reduce_gradient), which cannot be recorded",
                       mx_tensor_text(t));
    return MX_OK;
}

/* Sets `leads` of all reached records, the oldest first. */
mx_status mx_pass_find_leads(const mx_pass *pass)
{
    uint64_t walk = pass->tape->walk;
    for (int i = 0; i < pass->n_roots; i++)
        if (is_target(pass->roots[i].t))
            pass->roots[i].t->asked = abs(pass->roots[i].t->asked);
    int n = pass->n;
    for (mx_node *node = pass->first; n > 0; node = node->after) {
        if (node->walk != walk)
            continue;
        n--;
        node->leads = false;
        for (int i = 0; i < node->call.n_in && has_gradient(node); i++)
            if (leads_to(node, i)) {
                node->leads = true;
                node->call.in[i]->asked = abs(node->call.in[i]->asked);
            }
        if (pass->record && node->leads)
            MX_TRY(check_recordable(node));
    }
    for (int i = 0; i < pass->n_targets; i++)
        MX_TRY(check_target(pass, "grad", pass->targets[i]));
    for (int i = 0; i < pass->n_inputs; i++)
        MX_TRY(check_target(pass, "backward", pass->inputs[i]));
    return MX_OK;
}

/* ---- the roots ---- */

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
    if (g && (!mx_dtype_is_real(g->dtype) || !mx_dtype_mixes(g->dtype, t->dtype)))
        return mx_fail(MX_ERR_DTYPE, "backward: the gradient of %s must be %s, not %s", name,
                       t->dtype == MX_F64 ? "f64" : "f32 or bf16", mx_tensor_text(g));
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

mx_status mx_pass_check_roots(const mx_pass *pass)
{
    if (pass->tape->is_walking || (mx_tape_is_any_walking() && !pass->targets))
        return mx_fail(MX_ERR_STATE, "backward was called inside backward, by a hook or by the backward function of "
                                     "mx.custom; compute gradients there from the tensors that are given, or by "
                                     "mx.grad inside mx.enable_grad(fn)");
    if (pass->tape->n_waiting > 0)
        return mx_fail(MX_ERR_STATE,
                       "backward of %s: the gradients of weights of its last backward have not been computed; call "
                       "tape:backward_weights() before",
                       mx_tape_text(pass->tape));
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
