#include "tape/remat.h"

#include "core/offload.h"

#include <stdlib.h>

/* Without values in memory; and without any, so that they must be computed again. */
static bool is_out(const mx_tensor *t) { return t && !t->storage; }
static bool is_missing(const mx_tensor *t) { return is_out(t) && !t->away; }

static mx_status restore(mx_tape *tape, mx_tensor *t, int before);

/* The innermost dropping region around `node`, or -1. */
static int find_region(const mx_tape *tape, const mx_node *node)
{
    int r = node->region;
    while (r >= 0 && !tape->regions[r].drops)
        r = tape->regions[r].parent;
    return r;
}

/* The calls that may have to run again together: those of that region. */
static bool find_range(const mx_tape *tape, const mx_node *node, int before, int *first, int *last)
{
    int r = find_region(tape, node);
    if (r < 0)
        return false;
    *first = tape->regions[r].first;
    *last = tape->regions[r].last < 0 || tape->regions[r].last > before ? before : tape->regions[r].last;
    return true;
}

/* Whether the call must run again: an output without values is held by a vjp, or read by a later call that must. */
static bool must_run(const mx_call *call)
{
    for (int i = 0; i < call->n_out; i++)
        if (is_missing(call->out[i]) && (call->out[i]->held > 0 || call->out[i]->pending > 0))
            return true;
    return false;
}

/* From the last call to the first: which must run, and how many of those read each value that is not in memory. */
static void mark(mx_tape *tape, int first, int last, bool *run)
{
    for (int n = last - 1; n >= first; n--) {
        const mx_call *call = &tape->nodes[n]->call;
        run[n - first] = must_run(call);
        for (int i = 0; run[n - first] && i < call->n_in; i++)
            if (is_out(call->in[i]))
                call->in[i]->pending++;
    }
}

/* One reader of what had to be computed again is done with it. */
static void done_with(mx_tensor *t)
{
    if (t && t->pending > 0 && --t->pending == 0)
        mx_tape_settle(t);
}

static mx_status run_again(mx_tape *tape, mx_node *node, int first)
{
    mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++)
        if (is_out(call->in[i]))
            MX_TRY(restore(tape, call->in[i], first)); /* away, or made in a region before this one */
    MX_TRY(mx_apply_again(call));
    for (int i = 0; i < call->n_out; i++)
        mx_tape_settle(call->out[i]);
    for (int i = 0; i < call->n_in; i++)
        done_with(call->in[i]);
    return MX_OK;
}

static mx_status run_range(mx_tape *tape, int first, int last)
{
    if (last <= first)
        return MX_OK;
    bool *run = calloc((size_t)(last - first), sizeof *run);
    if (!run)
        return mx_fail(MX_ERR_MEMORY, "out of memory for rematerialisation");
    mark(tape, first, last, run);
    mx_status status = MX_OK;
    for (int n = first; n < last && status == MX_OK; n++)
        if (run[n - first])
            status = run_again(tape, tape->nodes[n], first);
    free(run);
    return status;
}

/* Fetches t, or computes it, of nodes before `before`, again together with all that its region still owes. */
static mx_status restore(mx_tape *tape, mx_tensor *t, int before)
{
    if (t->away)
        return mx_tensor_fetch(t);
    int first = 0, last = 0;
    if (t->node && find_range(tape, t->node, before, &first, &last)) {
        t->pending++;
        mx_status status = run_range(tape, first, last);
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

/* The dropping region that backward comes to after region r, or -1. */
static int find_previous(const mx_tape *tape, int r)
{
    int n = tape->regions[r].first - 1;
    while (n >= 0 && find_region(tape, tape->nodes[n]) < 0)
        n--;
    return n < 0 ? -1 : find_region(tape, tape->nodes[n]);
}

static mx_status prefetch_call(const mx_call *call)
{
    bool wanted = (call->op->flags & MX_OP_REGATHER) && is_missing(call->out[0]) && call->out[0]->held > 0;
    for (int i = 0; i < call->n_in; i++)
        wanted = wanted && !is_missing(call->in[i]);
    return wanted ? mx_apply_hooks.prefetch(call) : MX_OK;
}

mx_status mx_remat_prefetch(mx_tape *tape, int index)
{
    int r = find_region(tape, tape->nodes[index]);
    if (!mx_apply_hooks.prefetch || tape->prefetch_regions == 0 || r < 0 || r == tape->ahead_of)
        return MX_OK;
    tape->ahead_of = r;
    for (int ahead = 0; ahead < tape->prefetch_regions; ahead++) {
        r = find_previous(tape, r);
        if (r < 0)
            break;
        for (int k = tape->regions[r].first; k < tape->regions[r].last; k++)
            MX_TRY(prefetch_call(&tape->nodes[k]->call));
        MX_TRY(mx_apply_hooks.prefetch(NULL));
    }
    return MX_OK;
}

/* Starts fetching what is away of the values that the calls read or made, up to nodes[before - 1]. */
static mx_status fetch_region(const mx_tape *tape, const mx_region *region, int before)
{
    for (int n = region->first; n < region->last && n < before; n++) {
        const mx_call *call = &tape->nodes[n]->call;
        for (int i = 0; i < call->n_in; i++)
            if (call->in[i] && call->in[i]->held > 0)
                MX_TRY(mx_tensor_fetch(call->in[i]));
        for (int i = 0; i < call->n_out; i++)
            if (call->out[i]->held > 0)
                MX_TRY(mx_tensor_fetch(call->out[i]));
    }
    return MX_OK;
}

mx_status mx_remat_fetch(mx_tape *tape, int index)
{
    int r = tape->offloads ? find_region(tape, tape->nodes[index]) : -1;
    if (r < 0 || r == tape->fetched_for)
        return MX_OK;
    tape->fetched_for = r;
    MX_TRY(fetch_region(tape, &tape->regions[r], index + 1));
    r = find_previous(tape, r);
    return r < 0 ? MX_OK : fetch_region(tape, &tape->regions[r], index + 1);
}

mx_status mx_remat_ensure(mx_tape *tape, mx_node *node, int index)
{
    const mx_call *call = &node->call;
    for (int i = 0; i < call->n_in; i++)
        if ((call->op->reads_in >> i & 1u) && is_missing(call->in[i]))
            MX_TRY(restore(tape, call->in[i], index + 1));
    for (int i = 0; i < call->n_out; i++)
        if ((call->op->reads_out >> i & 1u) && is_missing(call->out[i]))
            MX_TRY(restore(tape, call->out[i], index + 1));
    return MX_OK;
}
