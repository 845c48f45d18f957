/* Rematerialisation: restores values that a policy dropped or offloaded, when backward needs them. */
#include "core/offload.h"
#include "tape/record.h"

/* is_out: the values are not in memory. is_missing: there is no offloaded copy either, so they must be computed again.
 */
static bool is_out(const mx_tensor *t) { return t && !t->storage; }
static bool is_missing(const mx_tensor *t) { return is_out(t) && !t->away; }

static mx_status restore(mx_tensor *t, uint64_t before);

/* Whether the call must run again: an output without values is needed by a vjp, or read by a later call that must. */
static bool must_run(const mx_call *call)
{
    for (int i = 0; i < call->n_out; i++)
        if (is_missing(call->out[i]) && (call->out[i]->needed > 0 || call->out[i]->pending > 0))
            return true;
    return false;
}

/* Marks whether the call must run again; if so, it counts as a reader of its inputs that are not in memory. */
static void mark(mx_node *node)
{
    const mx_call *call = &node->call;
    node->runs_again = must_run(call);
    for (int i = 0; node->runs_again && i < call->n_in; i++)
        if (is_out(call->in[i]))
            call->in[i]->pending++;
}

/* One reader of a recomputed tensor has finished. */
static void done_with(mx_tensor *t)
{
    if (t && t->pending > 0 && --t->pending == 0)
        mx_tape_settle(t);
}

static mx_status run_again(mx_node *node, uint64_t first)
{
    mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++) {
        if (is_out(call->in[i]))
            MX_TRY(restore(call->in[i], first)); /* offloaded, or computed in an earlier region */
        MX_TRY(mx_node_check_input(node, i, "runs again on"));
    }
    MX_TRY(mx_apply_again(call));
    for (int i = 0; i < call->n_out; i++) {
        call->out[i]->made_changes = call->out[i]->storage->changes;
        mx_tape_settle(call->out[i]);
    }
    for (int i = 0; i < call->n_in; i++)
        done_with(call->in[i]);
    return MX_OK;
}

/* Runs the calls again that are needed of the records numbered first to limit - 1, of which `inside` is one: first
 * marks the needed ones from last to first, then runs them in their order. */
static mx_status run_range(mx_node *inside, uint64_t first, uint64_t limit)
{
    mx_node *node = inside;
    while (node->after && node->after->number < limit)
        node = node->after;
    mark(node);
    for (; node->before && node->before->number >= first; node = node->before)
        mark(node->before);
    for (; node && node->number < limit; node = node->after)
        if (node->runs_again)
            MX_TRY(run_again(node, first));
    return MX_OK;
}

/* Restores t, using records numbered below `before`: fetches it, or computes it again together with all other missing
 * values of its region. */
static mx_status restore(mx_tensor *t, uint64_t before)
{
    if (t->away)
        return mx_tensor_fetch(t);
    const mx_region *region = t->node && t->node->number < before ? mx_region_dropping(t->node) : NULL;
    if (region) {
        t->pending++;
        mx_status status = run_range(t->node, region->first, region->last < before ? region->last : before);
        t->pending--;
        MX_TRY(status);
    }
    if (is_missing(t))
        return mx_fail(MX_ERR_STATE,
                       "%s is needed by backward but has been released; keep it with t:keep() or return "
                       "it from its scope",
                       mx_tensor_text(t));
    return MX_OK;
}

static bool is_walked(const mx_node *node) { return node->walk == node->tape->walk; }

/* Finds, from `node` on, the next dropping region that backward visits after `region`; returns the first of its records
 * that backward visits, or NULL. */
static mx_node *find_previous(mx_node *node, const mx_region *region)
{
    while (node && (node->number >= region->first || !is_walked(node) || !mx_region_dropping(node)))
        node = node->before;
    return node;
}

static mx_status prefetch_call(const mx_tape *tape, const mx_call *call)
{
    bool wanted = (call->op->flags & MX_OP_REGATHER) && is_missing(call->out[0]) && call->out[0]->needed > 0;
    for (int i = 0; i < call->n_in; i++)
        wanted = wanted && !is_missing(call->in[i]);
    return wanted ? tape->hooks.prefetch(call) : MX_OK;
}

static mx_node *first_of(mx_node *node, const mx_region *region)
{
    while (node->before && node->before->number >= region->first)
        node = node->before;
    return node;
}

mx_status mx_remat_prefetch(mx_node *node)
{
    mx_tape *tape = node->tape;
    const mx_region *region = mx_region_dropping(node);
    if (!tape->hooks.prefetch || tape->prefetch_regions == 0 || !region || region == tape->ahead_of)
        return MX_OK;
    tape->ahead_of = region;
    for (int ahead = 0; ahead < tape->prefetch_regions; ahead++) {
        node = find_previous(node, region);
        if (!node)
            break;
        region = mx_region_dropping(node);
        for (const mx_node *n = first_of(node, region); n && n->number < region->last; n = n->after)
            MX_TRY(prefetch_call(tape, &n->call));
        MX_TRY(tape->hooks.prefetch(NULL));
    }
    return MX_OK;
}

/* Prefetches the offloaded values that the region's records up to `node` read or made. `ahead`: backward has not
 * reached the region, so those that are read only to compute others again are still to be used, too. */
static mx_status fetch_region(const mx_node *node, const mx_region *region, bool ahead)
{
    for (; node && node->number >= region->first; node = node->before) {
        const mx_call *call = &node->call;
        for (int i = 0; i < call->n_in; i++)
            if (call->in[i] && call->in[i]->needed > 0)
                MX_TRY(mx_tensor_fetch(call->in[i]));
        for (int i = 0; i < call->n_out; i++)
            if (ahead || call->out[i]->needed > 0)
                MX_TRY(mx_tensor_fetch(call->out[i]));
    }
    return MX_OK;
}

mx_status mx_remat_fetch(mx_node *node)
{
    mx_tape *tape = node->tape;
    const mx_region *region = tape->offloads ? mx_region_dropping(node) : NULL;
    if (!region || region == tape->fetched_for)
        return MX_OK;
    tape->fetched_for = region;
    MX_TRY(fetch_region(node, region, false));
    mx_node *previous = find_previous(node, region);
    return previous ? fetch_region(previous, mx_region_dropping(previous), true) : MX_OK;
}

mx_status mx_remat_ensure(mx_node *node)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++)
        if ((call->op->reads_in >> i & 1u) && node->recorded[i].holds && is_missing(call->in[i]))
            MX_TRY(restore(call->in[i], node->number + 1));
    for (int i = 0; i < call->n_out; i++)
        if ((call->op->reads_out >> i & 1u) && is_missing(call->out[i]))
            MX_TRY(restore(call->out[i], node->number + 1));
    return MX_OK;
}

mx_status mx_remat_ensure_inputs(mx_node *node)
{
    for (int i = 0; i < node->call.n_in; i++) {
        if (is_missing(node->call.in[i]))
            MX_TRY(restore(node->call.in[i], node->number + 1));
        MX_TRY(mx_node_check_input(node, i, "reads"));
    }
    return MX_OK;
}
