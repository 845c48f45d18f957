/* Backward: computes the gradients of the leaves, or of chosen tensors, from those of the roots. */
#include "core/offload.h"
#include "ops/check.h"
#include "ops/rows.h"
#include "tape/record.h"

#include <stdio.h>
#include <stdlib.h>

static mx_tapes *const tapes = &mx_all_tapes;

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

bool mx_grad_is_exclusive(const mx_tensor *g) { return g->refs == 1 && g->storage && g->storage->refs == 1; }

mx_status mx_grad_add(mx_tensor **sum, mx_tensor *g)
{
    mx_status status = MX_OK;
    if (!*sum) {
        *sum = g;
        return MX_OK;
    }
    mx_tensor *in[2] = {*sum, g};
    if (mx_grad_is_exclusive(*sum) && !mx_tape_is_recording()) {
        status = mx_apply_add_to(in[0], in[1], 1);
    } else {
        mx_tensor *added = NULL;
        status = mx_apply(&mx_op_add, in, 2, MX_NO_ATTRS, &added);
        if (status == MX_OK) {
            mx_release(*sum);
            *sum = added;
        }
    }
    mx_release(g);
    return status;
}

/* Sets aside the gradient of earlier backward passes, which is already all-reduced, until this pass's is too. Hooks see
 * this pass's gradient alone. */
static void set_earlier_aside(mx_tensor *t)
{
    if (t->node || !t->grad || t->earlier || (t->grad->reduce_axes == 0 && !t->hooks))
        return;
    t->earlier = t->grad;
    t->grad = NULL;
}

/* Adds a gradient from a vjp. A leaf's gradient is always f32 (f64 for f64) and has the leaf's shape. */
static mx_status gather(const mx_call *call, int i, mx_tensor *g)
{
    mx_tensor *t = call->in[i];
    if (mx_count(g) != mx_count(t)) {
        mx_status status = mx_fail(MX_ERR_SHAPE, "internal: gradient of %s for input %d is %s, the input %s",
                                   call->op->name, i + 1, mx_tensor_text(g), mx_tensor_text(t));
        mx_release(g);
        return status;
    }
    mx_dtype dtype = mx_gradient_dtype(t);
    if (!t->node && g->refs > 1 &&
        !mx_tape_is_recording()) { /* shared: a leaf needs its own gradient, which can be released separately */
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
    return mx_grad_add(&t->grad, g);
}

/* mx_vjp_let_go: what mx_tape_forget would do for this input after the vjp. */
static void let_go_of_input(const mx_vjp *v, int i)
{
    mx_node *node = (mx_node *)((char *)v->call - offsetof(mx_node, call));
    if (v->retain || !node->recorded[i].holds)
        return;
    node->recorded[i].holds = false;
    mx_tape_done_with(node->call.in[i]);
    mx_tape_unhold(node->call.in[i]);
}

/* Calls the record's vjp and adds its results to the gradients of the inputs. */
static mx_status compute_gradients(const mx_pass *pass, const mx_node *node, mx_vjp *v)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        v->want[i] = mx_pass_wants(pass, node, i);
        if (!v->want[i])
            continue;
        set_earlier_aside(t);
        if (t->grad && mx_grad_is_exclusive(t->grad) && !pass->record)
            v->sum[i] = t->grad;
    }
    mx_status status = pass->record ? mx_vjp_recorded(v) : call->op->vjp(v);
    for (int i = 0; i < call->n_in; i++) {
        if (!v->grad[i])
            continue;
        if (status == MX_OK && v->want[i])
            status = gather(call, i, v->grad[i]);
        else
            mx_release(v->grad[i]);
    }
    return status;
}

static mx_status walk_back(const mx_pass *pass, mx_node *node)
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
    mx_vjp v = {.call = call, .out_grad = out_grad, .retain = pass->retain, .let_go = let_go_of_input};
    if (pass->inputs && node->late)
        v.let_go = NULL; /* the second half reads them */
    mx_tensor *few[2 * MX_MAX_INPUTS] = {NULL}, **tensors = few;
    bool want[MX_MAX_INPUTS] = {false};
    bool is_long = call->n_in > MX_MAX_INPUTS;
    size_t n = (size_t)(is_long ? call->n_in : MX_MAX_INPUTS);
    if (is_long && !(tensors = calloc(n, 2 * sizeof(mx_tensor *) + sizeof(bool))))
        return mx_fail(MX_ERR_MEMORY, "gradient of %s: out of memory", call->op->name);
    v.sum = tensors;
    v.grad = tensors + n;
    v.want = is_long ? (bool *)(tensors + 2 * n) : want;
    mx_status status = compute_gradients(pass, node, &v);
    if (is_long)
        free((void *)tensors);
    return status == MX_OK ? MX_OK : mx_context(status, "gradient of %s", call->op->name);
}

static mx_status call_hooks(mx_tensor *t)
{
    for (mx_grad_hook *hook = t->hooks; hook && t->grad; hook = hook->next)
        MX_TRY(hook->call(hook, &t->grad));
    return MX_OK;
}

/* What is done with the complete gradients of a call's results before the walk goes on to its inputs. */
static mx_status meet_results(const mx_pass *pass, const mx_node *node)
{
    for (int i = 0; i < node->call.n_out; i++) {
        mx_tensor *t = node->call.out[i];
        MX_TRY(call_hooks(t));
        if (pass->targets && t->asked > 0)
            pass->grads[t->asked - 1] = mx_retain(t->grad);
    }
    return MX_OK;
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
        MX_TRY(call_hooks(t));
        if (!mx_tape_is_recording())
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
    mx_status status = mx_grad_add(&t->grad, earlier);
    t->grad->reduce_axes = axes;
    return status;
}

/* Finishes the leaves that no remaining call reads; each call holds its leaves. */
static mx_status finish_leaves(const mx_pass *pass, const mx_node *node)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        if (!t || t->node || t->needed > 0 || !(t->grad || t->earlier) || (pass->targets && t->asked == 0))
            continue;
        if (pass->is_second && !mx_pass_wants(pass, node, i)) /* the first half has finished it */
            continue;
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || call->in[k] == t;
        if (!seen)
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
    return mx_grad_add(&t->grad, g);
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
    for (int i = 0; i < call->n_out; i++) {
        call->out[i]->pending = 0;
        mx_tape_settle(call->out[i]);
    }
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        if (!t)
            continue;
        t->pending = 0;
        if (t->earlier) {
            mx_release(t->grad);
            t->grad = t->earlier;
            t->earlier = NULL;
        }
    }
}

/* Computes the gradients of the record's inputs. In the first half, sets node->waits if some are left. */
static mx_status visit(const mx_pass *pass, mx_node *node)
{
    if (pass->inputs && node->waits)
        return mx_half_put_off(node);
    if (pass->inputs)
        node->late = mx_half_late(node);
    if (!pass->is_second || node->late == 0)
        MX_TRY(meet_results(pass, node));
    if (!pass->targets || node->leads)
        MX_TRY(walk_back(pass, node));
    return pass->inputs && node->late ? mx_half_keep(node) : MX_OK;
}

/* The gradients of leaves among the inputs are complete, although waiting records hold some. */
static mx_status finish_inputs(const mx_pass *pass)
{
    for (int i = 0; i < pass->n_inputs; i++)
        if (!pass->inputs[i]->node && pass->inputs[i]->needed > 0)
            MX_TRY(finish_leaf(pass->tape, pass->inputs[i]));
    return MX_OK;
}

/* Visits a record unless the walk has failed, and ends its part in the walk. Returns whether it is done: it may also
 * wait for the second half. */
static bool pass_by(const mx_pass *pass, mx_node *node, mx_status *status)
{
    mx_place = node->place;
    if (*status == MX_OK)
        *status = visit(pass, node);
    if (*status == MX_OK && pass->inputs && node->waits)
        return false;
    if (pass->is_second)
        pass->tape->n_waiting--;
    node->waits = false;
    release_gradients(node);
    mx_node_for_each_held(node, mx_tape_done_with);
    if (*status == MX_OK)
        *status = finish_leaves(pass, node);
    if (*status != MX_OK)
        let_go(node);
    return true;
}

/* Passes by the records of the same region that hurry and that `node` was the first to read, before their turn: all
 * their readers are done. Returns their number. */
static int pass_by_early(const mx_pass *pass, const mx_node *node, mx_status *status)
{
    int n = 0;
    for (int i = 0; i < node->call.n_in && !pass->inputs && !pass->is_second; i++) {
        mx_node *early = node->call.in[i] ? node->call.in[i]->node : NULL;
        if (!early || early->first_reader != node->number || early->walk != pass->tape->walk ||
            early->region != node->region)
            continue;
        pass_by(pass, early, status);
        n++;
        early->walk = 0; /* not to be reached again */
        if (!pass->retain)
            mx_tape_forget(early);
    }
    return n;
}

static mx_status walk(const mx_pass *pass)
{
    mx_status status = MX_OK;
    int n = pass->n;
    for (mx_node *node = pass->last, *before; n > 0; node = before) {
        if (pass->is_second ? !node->waits : node->walk != pass->tape->walk) {
            before = node->before;
            continue;
        }
        bool is_done = pass_by(pass, node, &status);
        n -= 1 + pass_by_early(pass, node, &status);
        before = node->before;
        if (is_done && !pass->retain)
            mx_tape_forget(node);
    }
    if (status == MX_OK)
        return finish_inputs(pass);
    if (pass->inputs)
        mx_half_abandon_all(pass->tape);
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
    pass->tape->is_walking = true;
    tapes->walks++;
    if (!pass->is_second)
        need_values(pass);
    status = walk(pass);
    tapes->walks--;
    pass->tape->is_walking = false;
    pass->tape->ahead_of = pass->tape->fetched_for = NULL;
    tapes->walked = tapes->count;
    return status;
}

static mx_status run_pass(mx_pass *pass)
{
    bool recording = mx_tape_set_recording(pass->record);
    mx_scope *scope = mx_scope_swap(NULL); /* gradients belong to their tensors, not to a scope */
    const char *place = mx_place;
    mx_tape *before = mx_tape_enter(pass->tape);
    bool inside = mx_tape_is_any_walking();
    mx_place_backward = true;
    if (!inside)
        mx_site_pin();
    mx_status status = seed_and_walk(pass);
    if (!inside)
        mx_site_unpin();
    mx_tape_leave(before);
    mx_place = place;
    mx_place_backward = inside;
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    mx_tape_drop_left_behind(pass->tape);
    return status;
}

mx_status mx_tape_backward(mx_tape *tape, const mx_root *roots, int n_roots, bool retain)
{
    mx_pass pass = {.tape = tape, .roots = roots, .n_roots = n_roots, .retain = retain};
    MX_TRY(mx_pass_check_roots(&pass));
    MX_TRY(mx_pass_reach(&pass));
    return run_pass(&pass);
}

static bool is_leaf(const mx_tensor *t) { return !t->node && !t->gone.op; }

/* Exchanges the gradients of leaves that are targets with `grads`. */
static void exchange_gradients(const mx_pass *pass)
{
    for (int i = 0; i < pass->n_targets; i++) {
        mx_tensor *t = pass->targets[i], *other = pass->grads[i];
        if (!is_leaf(t))
            continue;
        pass->grads[i] = t->grad;
        t->grad = other;
    }
}

static mx_status ask_for(const char *what, mx_tensor *const *tensors, int n)
{
    for (int i = 0; i < n; i++) {
        mx_tensor *t = tensors[i];
        if (t->asked != 0)
            return mx_fail(MX_ERR_VALUE, "%s: %s is given twice%s", what, mx_tensor_text(t),
                           mx_tape_is_any_walking() ? ", or the mx.grad around this one asks for it: use a detached "
                                                      "leaf, t:detach():requires_grad()"
                                                    : "");
        t->asked = -(i + 1);
    }
    return MX_OK;
}

static mx_status grad_of_targets(mx_pass *pass)
{
    MX_TRY(ask_for("grad", pass->targets, pass->n_targets));
    MX_TRY(mx_pass_check_roots(pass));
    MX_TRY(mx_pass_reach(pass));
    MX_TRY(mx_pass_find_leads(pass));
    exchange_gradients(pass);
    mx_status status = run_pass(pass);
    exchange_gradients(pass);
    return status;
}

mx_status mx_tape_grad(mx_tape *tape, const mx_root *roots, int n_roots, mx_tensor *const *targets, int n_targets,
                       bool retain, bool record, mx_tensor **grads)
{
    mx_pass pass = {.tape = tape,
                    .roots = roots,
                    .n_roots = n_roots,
                    .retain = retain || record,
                    .targets = targets,
                    .n_targets = n_targets,
                    .record = record,
                    .grads = grads};
    for (int i = 0; i < n_targets; i++)
        grads[i] = NULL;
    mx_status status = grad_of_targets(&pass);
    for (int i = 0; i < n_targets; i++) {
        targets[i]->asked = 0;
        if (status != MX_OK) {
            mx_release(grads[i]);
            grads[i] = NULL;
        }
    }
    return status;
}

static mx_status first_half(mx_pass *pass)
{
    MX_TRY(ask_for("backward", pass->inputs, pass->n_inputs));
    MX_TRY(mx_pass_check_roots(pass));
    MX_TRY(mx_pass_reach(pass));
    MX_TRY(mx_pass_find_leads(pass));
    return run_pass(pass);
}

mx_status mx_tape_backward_inputs(mx_tape *tape, const mx_root *roots, int n_roots, mx_tensor *const *inputs,
                                  int n_inputs)
{
    mx_pass pass = {.tape = tape, .roots = roots, .n_roots = n_roots, .inputs = inputs, .n_inputs = n_inputs};
    mx_status status = first_half(&pass);
    for (int i = 0; i < n_inputs; i++)
        inputs[i]->asked = 0;
    return status;
}

mx_status mx_tape_backward_weights(mx_tape *tape)
{
    mx_pass pass = {.tape = tape, .last = tape->last, .n = tape->n_waiting, .is_second = true};
    if (tape->is_walking || mx_tape_is_any_walking())
        return mx_fail(MX_ERR_STATE, "backward_weights was called inside backward; call it after");
    if (tape->lost_waiting) {
        tape->lost_waiting = false;
        return mx_fail(
            MX_ERR_STATE,
            "backward_weights of %s: its step has ended since tape:backward, or the tape was cleared, so the "
            "gradients of weights are lost; call it before",
            mx_tape_text(tape));
    }
    MX_TRY(mx_half_check(tape));
    return run_pass(&pass);
}
