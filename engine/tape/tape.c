/* Tapes, recording and forgetting. */
#include "tape/tape.h"

#include "core/offload.h"
#include "core/spare.h"
#include "ops/check.h"
#include "tape/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mx_tapes mx_all_tapes = {.current = &mx_all_tapes.default_tape, .recording = true};
static mx_tapes *const tapes = &mx_all_tapes;

/* ---- tapes ---- */

void mx_tape_install(const mx_tape_hooks *hooks)
{
    mx_apply_hooks.recording = mx_tape_is_recording;
    mx_apply_hooks.record = mx_tape_record;
    mx_apply_hooks.may_read = mx_tape_may_read;
    mx_tensor_left = mx_tape_drop_unreferenced;
    tapes->default_tape.hooks = *hooks;
}

mx_status mx_tape_new(mx_tape **out)
{
    mx_tape *tape = malloc(sizeof *tape);
    if (!tape)
        return mx_fail(MX_ERR_MEMORY, "out of memory for a tape");
    mx_tape *first = &tapes->default_tape;
    *tape = (mx_tape){.previous = first,
                      .next = first->next,
                      .site = mx_site_now(),
                      .hooks = tapes->current->hooks,
                      .prefetch_regions = tapes->current->prefetch_regions};
    if (first->next)
        first->next->previous = tape;
    first->next = tape;
    *out = tape;
    return MX_OK;
}

mx_status mx_tape_free(mx_tape *tape)
{
    if (tape->entered > 0)
        return mx_fail(MX_ERR_STATE, "%s cannot be closed while a function runs on it", mx_tape_text(tape));
    mx_tape_clear(tape);
    tape->previous->next = tape->next;
    if (tape->next)
        tape->next->previous = tape->previous;
    free(tape);
    return MX_OK;
}

const char *mx_tape_text(const mx_tape *tape)
{
    enum { TEXTS = 4 };
    static _Thread_local char texts[TEXTS][160];
    static _Thread_local int next;
    if (tape == &tapes->default_tape)
        return "the default tape";
    char *text = texts[next = (next + 1) % TEXTS];
    snprintf(text, sizeof texts[0], "the tape made%s", mx_site_text(tape->site));
    return text;
}

mx_tape *mx_tape_current(void) { return tapes->current; }

bool mx_tape_is_walking(const mx_tape *tape) { return tape->is_walking; }

bool mx_tape_is_any_walking(void) { return tapes->walks > 0; }

bool mx_tape_waits(const mx_tape *tape) { return tape->n_waiting > 0; }

mx_tape *mx_tape_enter(mx_tape *tape)
{
    mx_tape *before = tapes->current;
    tapes->current = tape;
    tape->entered++;
    return before;
}

void mx_tape_leave(mx_tape *before)
{
    tapes->current->entered--;
    tapes->current = before;
}

bool mx_tape_set_recording(bool on)
{
    bool before = tapes->recording;
    tapes->recording = on;
    return before;
}

bool mx_tape_is_recording(void) { return tapes->recording; }

void mx_tape_for_each_kept(void (*visit)(void *context, const mx_op *op, const mx_tensor *t), void *context)
{
    for (const mx_tape *tape = &tapes->default_tape; tape; tape = tape->next)
        for (const mx_node *node = tape->first; node; node = node->after)
            for (int i = 0; i < node->call.n_out; i++)
                if (node->call.out[i]->storage)
                    visit(context, node->call.op, node->call.out[i]);
}

void mx_tape_set_prefetch(mx_tape *tape, int regions) { tape->prefetch_regions = regions; }

uint64_t mx_tape_count(void) { return tapes->count; }

/* ---- values ---- */

void mx_node_for_each_held(const mx_node *node, void (*visit)(mx_tensor *t))
{
    for (int i = 0; i < node->call.n_in; i++)
        if (node->recorded[i].holds)
            visit(node->call.in[i]);
    for (uint32_t left = node->holds_out; left; left &= left - 1)
        visit(node->call.out[__builtin_ctz(left)]);
}

static void hold(mx_tensor *t)
{
    t->held++;
    t->holder = tapes->count;
}

bool mx_tape_may_read(const mx_tensor *t) { return t->held > 0 && t->holder >= tapes->walked; }

void mx_tape_settle(mx_tensor *t)
{
    if (t->needed > 0 || t->pending > 0)
        return;
    if (t->held == 0 && t->released)
        mx_tensor_drop(t);
    else if (t->dropped && tapes->walks > 0)
        mx_tensor_drop_storage(t);
    else
        mx_tensor_evict(t);
}

void mx_tape_unhold(mx_tensor *t)
{
    t->held--;
    if (t->held == 0)
        mx_tape_settle(t);
}

void mx_tape_done_with(mx_tensor *t)
{
    if (--t->needed == 0)
        mx_tape_settle(t);
}

/* ---- records ---- */

static mx_spare spare_nodes; /* at most 10 MiB */

/* For a call with n inputs; NULL: out of memory. */
static mx_node *new_node(int n)
{
    void *list = n > MX_MAX_INPUTS ? malloc((size_t)n * (sizeof(mx_tensor *) + sizeof(mx_recorded))) : NULL;
    if (n > MX_MAX_INPUTS && !list)
        return NULL;
    mx_node *node = mx_spare_take(&spare_nodes, sizeof *node);
    if (!node) {
        free(list);
        return NULL;
    }
    node->in = list ? (mx_tensor **)list : node->own_in;
    node->recorded = list ? (mx_recorded *)(node->in + n) : node->own_recorded;
    return node;
}

static void free_node(mx_node *node)
{
    if (node->in != node->own_in)
        free((void *)node->in);
    mx_spare_give(&spare_nodes, node);
}

/* The inputs whose values the gradient reads. */
static uint32_t reads_of(const mx_call *call)
{
    const mx_op *op = call->op;
    if (op->reads_with_last == 0)
        return op->reads_in;
    int last = 0;
    while (op->inputs[last + 1])
        last++;
    return last < call->n_in && call->in[last] ? op->reads_in : op->reads_in & ~op->reads_with_last;
}

/* Determines which inputs' and outputs' values are held for the vjp. Leaves are always held: they cannot be computed
 * again, and running the call again reads them. */
static void describe_inputs(mx_node *node)
{
    const mx_call *call = &node->call;
    uint32_t reads_in = reads_of(call);
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = mx_retain(call->in[i]);
        node->recorded[i] = (mx_recorded){0};
        if (!t)
            continue;
        t->readers++;
        if (t->node && t->node->first_reader == MX_NO_READER)
            t->node->first_reader = node->number;
        uint64_t changes = t->storage ? t->storage->changes : 0;
        bool reads = i < MX_MAX_INPUTS && (reads_in >> i & 1u);
        node->recorded[i] = (mx_recorded){.changes = (uint32_t)changes & MX_CHANGES_MASK,
                                          .wants = t->requires_grad,
                                          .holds = reads || !t->node,
                                          .stale = t->node && t->made_changes != changes};
    }
}

static __attribute__((cold)) mx_status fail_foreign(const mx_call *call, const mx_tape *tape, const mx_tensor *t)
{
    return mx_fail(MX_ERR_STATE,
                   "%s%s is recorded on %s, but its input %s was computed on %s, by %s%s: its gradient would be lost; "
                   "compute both on one tape, or use t:detach() where no gradient is wanted",
                   call->op->name, mx_site_text(mx_site_now()), mx_tape_text(tape), mx_tensor_text(t),
                   mx_tape_text(t->node->tape), t->node->call.op->name, mx_site_text(t->node->site));
}

static mx_status check_tape(const mx_call *call, const mx_tape *tape)
{
    for (int i = 0; i < call->n_in; i++) {
        const mx_tensor *t = call->in[i];
        if (t && t->node && t->node->tape != tape)
            return fail_foreign(call, tape, t);
    }
    return MX_OK;
}

/* Whether an output of this dtype has a gradient. */
static bool may_have_gradient(const mx_op *op, mx_dtype dtype)
{
    return mx_dtype_may_have_gradient(dtype) || ((op->flags & MX_OP_CODES) && mx_dtype_is_code(dtype));
}

mx_status mx_tape_record(mx_call *call)
{
    mx_tape *tape = tapes->current;
    MX_TRY(check_tape(call, tape));
    MX_TRY(mx_offload_settle(false));
    mx_node *node = new_node(call->n_in);
    if (!node)
        return mx_fail(MX_ERR_MEMORY, "out of memory for the tape's records");
    memcpy(&node->call, call, offsetof(mx_call, attr) + call->op->attr_bytes);
    memcpy((void *)node->in, (const void *)call->in,
           (size_t)(call->n_in > MX_MAX_INPUTS ? call->n_in : MX_MAX_INPUTS) * sizeof *node->in);
    node->call.in = node->in;
    node->tape = tape;
    node->region = tape->region;
    if (node->region)
        node->region->refs++;
    node->place = mx_text_again(mx_place);
    node->site = mx_site_now();
    node->walk = 0;
    node->runs_again = node->dead = node->waits = false;
    node->late = 0;
    node->number = tapes->count;
    node->first_reader = tape->hooks.hurries && tape->hooks.hurries(call) ? MX_NO_READER : MX_HURRIES_NOT;
    describe_inputs(node);
    node->holds_out = call->op->reads_out & ((1u << call->n_out) - 1);
    for (int i = 0; i < call->n_out; i++) {
        mx_tensor *t = mx_retain(call->out[i]);
        t->node = node;
        t->requires_grad = may_have_gradient(call->op, t->dtype);
        t->made_changes = t->storage ? t->storage->changes : 0;
    }
    mx_node_for_each_held(node, hold);
    tapes->count++;
    node->before = tape->last;
    node->after = NULL;
    if (tape->last)
        tape->last->after = node;
    else
        tape->first = node;
    tape->last = node;
    return MX_OK;
}

static void take_off(mx_tape *tape, mx_node *node)
{
    if (node->before)
        node->before->after = node->after;
    else
        tape->first = node->after;
    if (tape->last == node)
        tape->last = node->before;
    else
        node->after->before = node->before;
    if (!tape->first && !tape->region)
        tape->offloads = false;
}

static void forget(mx_tape *tape, mx_node *node)
{
    const mx_call *call = &node->call;
    if (node->waits)
        mx_half_abandon(node);
    take_off(tape, node);
    mx_node_for_each_held(node, mx_tape_unhold);
    for (int i = 0; i < call->n_out; i++) {
        mx_tensor *t = call->out[i];
        t->node = NULL;
        t->requires_grad = t->dropped = false;
        if (may_have_gradient(call->op, t->dtype))
            t->gone = (mx_origin){call->op->name, node->site, false};
        if (t->saved) {
            t->saved = false;
            mx_tape_unhold(t);
        }
        mx_release(t->grad);
        t->grad = NULL;
        /* Backward is no longer possible through later calls that read this output without holding it. */
        if (t->released && t->held == 0)
            mx_tensor_drop(t);
        mx_release(t);
    }
    for (int i = 0; i < call->n_in; i++) {
        mx_tensor *t = call->in[i];
        if (!t)
            continue;
        t->readers--;
        if (t->node && t->released)
            mx_tape_drop_unreferenced(t);
        mx_release(t);
    }
    if (call->op->forget)
        call->op->forget(&node->call);
    mx_region_release(node->region);
    mx_text_let_go(node->place);
    free_node(node);
}

void mx_tape_forget(mx_node *node) { forget(node->tape, node); }

static void forget_since(mx_tape *tape, uint64_t since)
{
    while (tape->last && tape->last->number >= since)
        forget(tape, tape->last);
}

void mx_tape_forget_since(uint64_t since)
{
    for (mx_tape *tape = &tapes->default_tape; tape; tape = tape->next)
        forget_since(tape, since);
}

void mx_tape_clear(mx_tape *tape) { forget_since(tape, 0); }

/* Whether a loss may still depend on it. References to a released tensor do not count: they cannot be used. */
static bool is_useful(const mx_tensor *t) { return t->readers > 0 || (t->refs > 1 && !t->released); }

static mx_node *dead; /* unreachable records, linked by `next_dead` */
static bool is_forgetting;

/* Forgetting a record releases its inputs and the gradients of its results, whose own records, older and newer, may
 * then be unreachable too; the list replaces a recursion. */
static void forget_dead(void)
{
    is_forgetting = true;
    while (dead) {
        mx_node *node = dead;
        dead = node->next_dead;
        mx_tape_forget(node);
    }
    is_forgetting = false;
}

/* Forgets the record of an unreachable tensor. Backward forgets the records that it visits itself. */
void mx_tape_drop_unreferenced(mx_tensor *t)
{
    mx_node *node = t->node;
    if (node->tape->is_walking)
        node->tape->left_behind = true;
    if (node->tape->is_walking || node->dead || node->waits)
        return;
    for (int i = 0; i < node->call.n_out; i++)
        if (is_useful(node->call.out[i]))
            return;
    node->dead = true;
    node->next_dead = dead;
    dead = node;
    if (!is_forgetting)
        forget_dead();
}

void mx_tape_drop_left_behind(mx_tape *tape)
{
    if (!tape->left_behind)
        return;
    tape->left_behind = false;
    is_forgetting = true; /* the tape stays as it is during the loop */
    for (mx_node *node = tape->first; node; node = node->after)
        mx_tape_drop_unreferenced(node->call.out[0]);
    forget_dead();
}

/* ---- leaves ---- */

mx_status mx_tape_require_grad(mx_tensor *t, bool on)
{
    if (!mx_dtype_may_have_gradient(t->dtype))
        return mx_fail(MX_ERR_DTYPE, "only f32 and bf16 tensors have gradients, not %s", mx_tensor_text(t));
    if (t->node || t->gone.op)
        return mx_fail(MX_ERR_STATE, "%s is computed from others: its gradient is not kept; use t:detach() first",
                       mx_tensor_text(t));
    t->requires_grad = on;
    return MX_OK;
}

void mx_tape_zero_grad(mx_tensor *t)
{
    if (!t->grad)
        return;
    t->grad->released = true; /* a Lua handle to it must not keep the memory until it is collected */
    if (t->grad->held == 0)
        mx_tensor_drop(t->grad);
    mx_release(t->grad);
    t->grad = NULL;
}
