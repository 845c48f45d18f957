/* Regions: apply the policies that keep, drop and offload values. */
#include "core/offload.h"
#include "tape/record.h"

#include <stdlib.h>

static mx_tapes *const tapes = &mx_all_tapes;

void mx_region_release(mx_region *region)
{
    while (region && --region->refs == 0) {
        mx_region *parent = region->parent;
        free(region);
        region = parent;
    }
}

mx_region *mx_region_dropping(const mx_node *node)
{
    mx_region *region = node->region;
    while (region && !region->drops)
        region = region->parent;
    return region;
}

bool mx_tape_drops(void)
{
    const mx_region *region = tapes->current->region;
    while (region && !region->drops)
        region = region->parent;
    return region != NULL;
}

mx_status mx_tape_region_open(const mx_remat_policy *policy, mx_scope **scope)
{
    mx_region *region = malloc(sizeof *region);
    if (!region)
        return mx_fail(MX_ERR_MEMORY, "out of memory for the tape's records");
    mx_status status = mx_scope_open(scope);
    if (status != MX_OK) {
        free(region);
        return status;
    }
    mx_tape *tape = tapes->current;
    *region = (mx_region){.refs = 1,
                          .tape = tape,
                          .parent = tape->region, /* takes over the tape's reference to its innermost region */
                          .outer = tapes->region,
                          .first = tapes->count,
                          .last = UINT64_MAX,
                          .scope = *scope,
                          .policy = policy,
                          .drops = !policy->keep_held || policy->regathers};
    tape->region = tapes->region = region;
    return MX_OK;
}

/* Leaves the region that was opened last. */
static void leave(void)
{
    mx_region *region = tapes->region;
    mx_tape *tape = region->tape;
    tapes->region = region->outer;
    region->last = tapes->count;
    region->policy = NULL;
    region->scope = NULL;
    region->outer = NULL;
    region->tape = NULL;
    tape->region = region->parent;
    if (tape->region)
        tape->region->refs++; /* the tape's reference to its innermost region; `region` keeps its own */
    mx_region_release(region);
}

void mx_tape_regions_leave(const mx_scope *scope)
{
    while (tapes->region && tapes->region->scope->id >= scope->id)
        leave();
}

void mx_tape_region_abandon(mx_scope *scope)
{
    mx_tape_regions_leave(scope);
    mx_scope_close(scope);
}

/* ---- policies ---- */

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
        t->held++;
    t->saved = true;
}

/* The output whose name decides about output i. Residuals follow the first output: a policy that saves attention's
 * context also saves its log-sum-exp, because otherwise attention would run again. */
static const mx_tensor *who_decides(const mx_call *call, int i) { return call->out[i < call->op->n_results ? i : 0]; }

/* Whether backward will read the values: for a gradient, or to run a later call of the region again. */
static bool is_read(const mx_tensor *t) { return t->held > 0 || t->pending > 0; }

/* Counts in `pending` the calls of the region that will run again and read a value. */
static void count_readers(const mx_region *region, const mx_node *first, mx_tensor *const *results, int n_results)
{
    const mx_node *node = first ? region->tape->last : NULL;
    for (; node && node->number >= first->number; node = node->before) {
        const mx_call *call = &node->call;
        bool again = false;
        for (int i = 0; i < call->n_out && !again; i++) {
            const mx_tensor *t = call->out[i], *decides = who_decides(call, i);
            bool stays = t->saved || is_among(decides, results, n_results) || policy_saves(region->policy, decides);
            again = !stays && is_read(t);
        }
        for (int i = 0; again && i < call->n_in; i++)
            if (call->in[i])
                call->in[i]->pending++;
    }
}

static void forget_readers(const mx_node *first)
{
    for (const mx_node *node = first; node; node = node->after)
        for (int i = 0; i < node->call.n_in; i++)
            if (node->call.in[i])
                node->call.in[i]->pending = 0;
}

/* Drops the outputs of one call that the policy does not save, and those that backward does not read. */
static void apply_policy(const mx_region *region, const mx_call *call, mx_tensor *const *results, int n_results)
{
    for (int i = 0; i < call->n_out; i++) {
        mx_tensor *t = call->out[i];
        const mx_tensor *decides = who_decides(call, i);
        bool is_result = is_among(decides, results, n_results);
        if (t->saved)
            continue;
        if (t == decides && is_result)
            continue; /* it moves to the enclosing scope */
        if (is_result || (is_read(t) && policy_saves(region->policy, decides))) {
            save(t);
        } else if (t->scope == region->scope || t->released) {
            t->released = t->dropped = true;
            mx_tensor_drop(t);
        }
    }
}

/* Whether the policy decides about the outputs of the call: not if it keeps all that is held. */
static bool concerns(const mx_remat_policy *policy, const mx_call *call)
{
    return !policy->keep_held || (call->op->flags & MX_OP_REGATHER) ||
           has_name(call->out[0], policy->n_dropped, policy->dropped);
}

/* Starts offloading the tensors of one call that the policy names: its outputs, and inputs made before the region. */
static mx_status offload_of_call(const mx_region *region, const mx_call *call, mx_tensor *const *results, int n_results)
{
    const mx_remat_policy *policy = region->policy;
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        bool from_before = t && t->node && t->node->number < region->first;
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

static mx_node *first_of(const mx_region *region)
{
    mx_node *node = region->tape->last;
    if (!node || node->number < region->first)
        return NULL;
    while (node->before && node->before->number >= region->first)
        node = node->before;
    return node;
}

/* Offloads the values of a region. First waits for those of the previous region, so that offloads of only one region
 * are in flight. */
static mx_status offload(const mx_region *region, mx_node *first, mx_tensor *const *results, int n_results)
{
    if (region->policy->keep_held || region->policy->n_offloaded == 0 || !first)
        return MX_OK;
    MX_TRY(mx_offload_settle(true));
    region->tape->offloads = true;
    for (const mx_node *node = first; node; node = node->after)
        MX_TRY(offload_of_call(region, &node->call, results, n_results));
    return MX_OK;
}

mx_status mx_tape_region_close(mx_scope *scope, mx_tensor *const *results, int n_results)
{
    mx_region *region = tapes->region;
    if (!region || region->scope != scope)
        return mx_fail(MX_ERR_STATE, "a scope was closed inside another that is still open");
    mx_status status = MX_OK;
    if (region->drops) {
        mx_node *first = first_of(region);
        count_readers(region, first, results, n_results);
        for (const mx_node *node = first; node; node = node->after)
            if (concerns(region->policy, &node->call))
                apply_policy(region, &node->call, results, n_results);
        forget_readers(first);
        status = offload(region, first, results, n_results);
    }
    uint64_t since = region->first;
    leave();
    bool wanted = scope->parent != NULL; /* whether backward may still enter this region from outside */
    for (int r = 0; r < n_results; r++) {
        wanted = wanted || results[r]->node;
        if (results[r]->scope == scope)
            mx_scope_escape(results[r]);
    }
    if (!wanted)
        mx_tape_forget_since(since);
    mx_status closed = mx_scope_close(scope);
    return status != MX_OK ? status : closed;
}
