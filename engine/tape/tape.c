#include "tape/tape.h"

#include "core/offload.h"
#include "ops/check.h"
#include "ops/table.h"
#include "tape/remat.h"

#include <stdlib.h>

static mx_tape tape = {.recording = true, .region = -1, .ahead_of = -1, .fetched_for = -1};

bool mx_tape_set_recording(bool on)
{
    bool before = tape.recording;
    tape.recording = on;
    return before;
}

bool mx_tape_is_recording(void) { return tape.recording; }

void mx_tape_for_each_kept(void (*visit)(void *context, const mx_op *op, const mx_tensor *t), void *context)
{
    for (int n = 0; n < tape.n_nodes; n++) {
        const mx_call *call = &tape.nodes[n]->call;
        for (int i = 0; i < call->n_out; i++)
            if (call->out[i] && call->out[i]->storage)
                visit(context, call->op, call->out[i]);
    }
}

void mx_tape_set_prefetch(int regions) { tape.prefetch_regions = regions; }

/* Calls `visit` for each tensor whose values the vjp of the node will read. A leaf counts whatever the operation
 * says: it cannot be computed again, and running the call again reads it. */
static void for_each_read(const mx_node *node, void (*visit)(mx_tensor *t))
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && ((call->op->reads_in >> i & 1u) || !call->in[i]->node))
            visit(call->in[i]);
    for (int i = 0; i < call->n_out; i++)
        if (call->op->reads_out >> i & 1u)
            visit(call->out[i]);
}

static void hold(mx_tensor *t) { t->held++; }

void mx_tape_settle(mx_tensor *t)
{
    if (t->held > 0 || t->pending > 0)
        return;
    if (t->released)
        mx_tensor_drop(t);
    else
        mx_tensor_evict(t);
}

void mx_tape_unhold(mx_tensor *t)
{
    t->held--;
    mx_tape_settle(t);
}

static mx_status grow(void **array, int n, int *capacity, size_t item_bytes)
{
    if (n < *capacity)
        return MX_OK;
    int more = *capacity ? 2 * *capacity : 256;
    void *grown = realloc(*array, (size_t)more * item_bytes);
    if (!grown)
        return mx_fail(MX_ERR_MEMORY, "out of memory for the tape's records");
    *array = grown;
    *capacity = more;
    return MX_OK;
}

mx_status mx_tape_record(mx_call *call)
{
    MX_TRY(mx_offload.settle(false));
    MX_TRY(grow((void **)&tape.nodes, tape.n_nodes, &tape.nodes_capacity, sizeof(mx_node *)));
    mx_node *node = malloc(sizeof *node);
    if (!node)
        return mx_fail(MX_ERR_MEMORY, "out of memory for the tape's records");
    node->call = *call;
    node->region = tape.region;
    node->place = mx_place;
    for (int i = 0; i < call->n_in; i++)
        mx_retain(call->in[i]);
    for (int i = 0; i < call->n_out; i++) {
        mx_tensor *t = mx_retain(call->out[i]);
        t->node = node;
        t->requires_grad = mx_dtype_is_float(t->dtype);
    }
    for_each_read(node, hold);
    tape.nodes[tape.n_nodes++] = node;
    return MX_OK;
}

/* The node's vjp is done or will never be asked for. */
static void forget(mx_node *node)
{
    for_each_read(node, mx_tape_unhold);
    for (int i = 0; i < node->call.n_out; i++) {
        mx_tensor *t = node->call.out[i];
        t->node = NULL;
        t->requires_grad = false;
        if (t->saved) {
            t->saved = false;
            mx_tape_unhold(t);
        }
        mx_release(t->grad);
        t->grad = NULL;
        /* All calls that read this output were recorded later, and are forgotten: nobody needs the values. */
        if (t->released && t->held == 0)
            mx_tensor_drop(t);
        mx_release(t);
    }
    for (int i = 0; i < node->call.n_in; i++)
        mx_release(node->call.in[i]);
    free(node);
}

void mx_tape_clear(void)
{
    while (tape.n_nodes > 0)
        forget(tape.nodes[--tape.n_nodes]);
    if (tape.region < 0) {
        tape.n_regions = 0;
        tape.offloads = false;
    }
}

mx_status mx_tape_require_grad(mx_tensor *t)
{
    if (!mx_dtype_is_float(t->dtype))
        return mx_fail(MX_ERR_DTYPE, "only f32 and bf16 tensors have gradients, not %s", mx_tensor_text(t));
    if (t->node)
        return mx_fail(MX_ERR_STATE, "%s is computed from others: its gradient is not kept; use t:detach() first",
                       mx_tensor_text(t));
    t->requires_grad = true;
    return MX_OK;
}

void mx_tape_zero_grad(mx_tensor *t)
{
    if (!t->grad)
        return;
    t->grad->released = true; /* a handle to it must not keep the memory until it is collected */
    if (t->grad->held == 0)
        mx_tensor_drop(t->grad);
    mx_release(t->grad);
    t->grad = NULL;
}

/* Regions. */

mx_status mx_tape_region_open(const mx_remat_policy *policy, mx_scope **scope)
{
    MX_TRY(grow((void **)&tape.regions, tape.n_regions, &tape.regions_capacity, sizeof(mx_region)));
    MX_TRY(mx_scope_open(scope));
    tape.regions[tape.n_regions] = (mx_region){.parent = tape.region,
                                               .first = tape.n_nodes,
                                               .last = -1,
                                               .scope = *scope,
                                               .policy = policy,
                                               .drops = !policy->keep_held || policy->regathers};
    tape.region = tape.n_regions++;
    return MX_OK;
}

void mx_tape_region_abandon(mx_scope *scope)
{
    while (tape.region >= 0) {
        mx_region *region = &tape.regions[tape.region];
        bool found = region->scope == scope;
        region->last = tape.n_nodes;
        region->policy = NULL;
        tape.region = region->parent;
        if (found)
            break;
    }
    mx_scope_close(scope);
}

static bool has_name(const mx_tensor *t, int n_names, const char *const *names)
{
    for (int i = 0; t->name && i < n_names; i++)
        if (names[i] == t->name)
            return true;
    return false;
}

static bool policy_offloads(const mx_remat_policy *policy, const mx_tensor *t)
{
    return has_name(t, policy->n_offloaded, policy->offloaded);
}

static bool policy_saves(const mx_remat_policy *policy, const mx_tensor *t)
{
    return has_name(t, policy->n_kept, policy->kept) || policy_offloads(policy, t);
}

static bool is_among(const mx_tensor *t, mx_tensor *const *results, int n_results)
{
    for (int r = 0; r < n_results; r++)
        if (results[r] == t)
            return true;
    return false;
}

static void save(mx_tensor *t)
{
    if (!t->saved)
        hold(t);
    t->saved = true;
}

/* Residuals share the fate of the first output: what saves attention's context saves its log-sum-exp, without which it
 * would run again. */
static const mx_tensor *who_decides(const mx_call *call, int i) { return call->out[i < call->op->n_results ? i : 0]; }

/* Drops what the policy does not save of the outputs of one call. */
static void apply_policy(const mx_region *region, const mx_call *call, mx_tensor *const *results, int n_results)
{
    for (int i = 0; i < call->n_out; i++) {
        mx_tensor *t = call->out[i];
        const mx_tensor *decides = who_decides(call, i);
        bool is_result = is_among(decides, results, n_results);
        if (t->saved)
            continue;
        if (t == decides && is_result)
            continue; /* its scope gives it to the enclosing one */
        if (is_result || policy_saves(region->policy, decides)) {
            save(t);
        } else if (t->scope == region->scope || t->released) {
            t->released = true;
            mx_tensor_drop(t);
        }
    }
}

/* Starts moving out what the policy offloads of the inputs of one call that were made before the region, and of its
 * outputs. */
static mx_status offload_of_call(int index, const mx_call *call, mx_tensor *const *results, int n_results)
{
    const mx_remat_policy *policy = tape.regions[index].policy;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        bool from_before = t && t->node && t->node->region < index;
        if (!from_before || !policy_offloads(policy, t) || is_among(t, results, n_results))
            continue;
        save(t);
        MX_TRY(mx_tensor_offload(t));
    }
    for (int i = 0; i < call->n_out; i++) {
        const mx_tensor *decides = who_decides(call, i);
        if (call->out[i]->saved && policy_offloads(policy, decides) && !is_among(decides, results, n_results))
            MX_TRY(mx_tensor_offload(call->out[i]));
    }
    return MX_OK;
}

/* What the region before offloaded must have left memory by now: no more than one region's is ever on its way. */
static mx_status offload(int index, mx_tensor *const *results, int n_results)
{
    const mx_region *region = &tape.regions[index];
    if (region->policy->keep_held || region->policy->n_offloaded == 0 || region->first == region->last)
        return MX_OK;
    MX_TRY(mx_offload.settle(true));
    tape.offloads = true;
    for (int n = region->first; n < region->last; n++)
        MX_TRY(offload_of_call(index, &tape.nodes[n]->call, results, n_results));
    return MX_OK;
}

mx_status mx_tape_region_close(mx_scope *scope, mx_tensor *const *results, int n_results)
{
    if (tape.region < 0 || tape.regions[tape.region].scope != scope)
        return mx_fail(MX_ERR_STATE, "a scope was closed inside another that is still open");
    mx_region *region = &tape.regions[tape.region];
    region->last = tape.n_nodes;
    for (int n = region->first; region->drops && n < region->last; n++) {
        const mx_call *call = &tape.nodes[n]->call;
        if (!region->policy->keep_held || (call->op->flags & MX_OP_REGATHER))
            apply_policy(region, call, results, n_results);
    }
    mx_status status = offload(tape.region, results, n_results);
    region->policy = NULL;
    tape.region = region->parent;
    bool wanted = scope->parent != NULL; /* whether anything outside may still lead backward in here */
    for (int r = 0; r < n_results; r++) {
        wanted = wanted || results[r]->node;
        if (results[r]->scope == scope)
            mx_scope_escape(results[r]);
    }
    if (!wanted)
        mx_tape_clear();
    mx_status closed = mx_scope_close(scope);
    return status != MX_OK ? status : closed;
}

/* Backward. */

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
        mx_status status = mx_tensor_new_empty(g->dtype, &g->shape, &own);
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

static mx_status walk_back(mx_node *node, int index)
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
    MX_TRY(mx_offload.settle(false));
    MX_TRY(mx_remat_fetch(&tape, index));
    MX_TRY(mx_remat_ensure(&tape, node, index));
    MX_TRY(mx_remat_prefetch(&tape, index));
    mx_place = node->place;
    mx_vjp v = {.call = call, .out_grad = out_grad};
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        v.want[i] = t && t->requires_grad;
        if (v.want[i] && t->grad && is_exclusive(t->grad))
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

static mx_status seed_loss(mx_tensor *loss, double seed)
{
    if (!loss->node)
        return mx_fail(MX_ERR_STATE,
                       "backward: %s depends on no tensor that requires a gradient, or its tape has been "
                       "walked back already; run the forward pass again",
                       mx_tensor_text(loss));
    if (mx_count(loss) != 1)
        return mx_fail(MX_ERR_SHAPE, "backward wants a loss of one element, not %s; use t:mean() or t:sum()",
                       mx_tensor_text(loss));
    mx_tensor *g = NULL;
    MX_TRY(mx_tensor_new(loss->dtype, &loss->shape, &g));
    if (!mx_data(g)) /* a device without values */
        ;
    else if (loss->dtype == MX_F32)
        mx_f32(g)[0] = (float)seed;
    else
        *(mx_bf16 *)mx_data(g) = mx_to_bf16((float)seed);
    mx_release(loss->grad);
    loss->grad = g;
    return MX_OK;
}

/* The leaves that no call still to be walked back reads: each call holds its leaves. */
static mx_status finish_leaves(const mx_node *node)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        int here = 0; /* times that this call reads it */
        for (int k = 0; k < call->n_in; k++)
            here += call->in[k] == t;
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || call->in[k] == t;
        if (t && !seen && !t->node && t->grad && t->held == here && mx_apply_hooks.leaf_done)
            MX_TRY(mx_apply_hooks.leaf_done(t));
    }
    return MX_OK;
}

mx_status mx_tape_backward(mx_tensor *loss, double seed)
{
    if (tape.region >= 0 && tape.regions[tape.region].drops)
        return mx_fail(MX_ERR_STATE, "backward was called inside mx.remat; call it after the layer has returned");
    bool recording = mx_tape_set_recording(false);
    mx_scope *scope = mx_scope_swap(NULL); /* gradients belong to their tensors, not to a scope */
    const char *place = mx_place;
    mx_place_backward = true;
    mx_status status = seed_loss(loss, seed);
    if (status == MX_OK) {
        while (status == MX_OK && tape.n_nodes > 0) {
            mx_node *node = tape.nodes[tape.n_nodes - 1];
            status = walk_back(node, tape.n_nodes - 1);
            tape.n_nodes--;
            if (status == MX_OK)
                status = finish_leaves(node);
            forget(node);
        }
        mx_tape_clear();
        tape.ahead_of = tape.fetched_for = -1;
    }
    mx_place = place;
    mx_place_backward = false;
    mx_scope_swap(scope);
    mx_tape_set_recording(recording);
    return status;
}
