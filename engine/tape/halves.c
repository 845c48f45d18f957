/* Backward in two halves: the first computes the gradients of some inputs, the second those of the weights.
 *
 * A record leads if one of the inputs is among its inputs, or before them. The first half walks the records that lead,
 * but of a product leaves the gradients of inputs that do not lead, such as weights, to the second half
 * (mx_op.late). This record waits, with the gradients of its results and the values that the second half reads. The
 * records that computed such a weight wait, too, because its gradient is not complete. All others are walked and
 * forgotten as in any backward, in the same order, so both halves together give the same bits. */
#include "core/offload.h"
#include "ops/rows.h"
#include "tape/record.h"

static bool collects(const mx_node *node, int i)
{
    const mx_tensor *t = node->call.in[i];
    return t && t->requires_grad && node->recorded[i].wants;
}

static bool leads(const mx_tensor *t) { return t->asked != 0 || (t->node && t->node->leads); }

uint32_t mx_half_late(const mx_node *node)
{
    uint32_t late = 0;
    for (uint32_t left = node->leads ? node->call.op->late : 0; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        if (i < node->call.n_in && collects(node, i) && !leads(node->call.in[i]))
            late |= 1u << i;
    }
    return late;
}

/* The gradients of the results must not change until the second half. */
static mx_status own_gradients(const mx_node *node)
{
    for (int i = 0; i < node->call.n_out; i++) {
        mx_tensor *t = node->call.out[i], *own = NULL;
        if (!t->grad || mx_grad_is_exclusive(t->grad))
            continue;
        MX_TRY(mx_apply_cast(t->grad, t->grad->dtype, &own));
        mx_release(t->grad);
        t->grad = own;
    }
    return MX_OK;
}

static uint32_t changes_of(const mx_tensor *t)
{
    uint64_t changes = t->storage ? t->storage->changes : t->away ? t->away->changes : 0;
    return (uint32_t)changes & MX_CHANGES_MASK;
}

/* The record stays on the tape. Those that computed the inputs whose gradients are not complete will wait, too. */
static void start_to_wait(mx_node *node)
{
    node->waits = true;
    node->tape->n_waiting++;
    for (int i = 0; i < node->call.n_in; i++) {
        mx_tensor *t = node->call.in[i];
        if (node->recorded[i].holds)
            node->recorded[i].changes = changes_of(t);
        bool is_left = node->late == 0 || (node->late >> i & 1u);
        if (is_left && collects(node, i) && t->node)
            t->node->waits = true;
    }
}

mx_status mx_half_keep(mx_node *node)
{
    MX_TRY(own_gradients(node));
    start_to_wait(node);
    for (int i = 0; i < node->call.n_in; i++) {
        mx_tensor *t = node->call.in[i];
        if (!node->recorded[i].holds || !t->node || (node->call.op->reads_late >> i & 1u))
            continue;
        node->recorded[i].holds = false;
        mx_tape_done_with(t);
        mx_tape_unhold(t);
    }
    return MX_OK;
}

mx_status mx_half_put_off(mx_node *node)
{
    MX_TRY(mx_remat_ensure(node)); /* now: the records that compute the values again will be forgotten */
    start_to_wait(node);
    return MX_OK;
}

void mx_half_abandon(mx_node *node)
{
    node->waits = false;
    node->tape->n_waiting--;
    node->tape->lost_waiting = true;
    mx_node_for_each_held(node, mx_tape_done_with);
}

void mx_half_abandon_all(mx_tape *tape)
{
    for (mx_node *node = tape->last, *before; tape->n_waiting > 0; node = before) {
        before = node->before;
        if (node->waits)
            mx_tape_forget(node);
    }
    tape->lost_waiting = false;
}

mx_status mx_half_check(const mx_tape *tape)
{
    int n = tape->n_waiting;
    for (const mx_node *node = tape->last; n > 0; node = node->before) {
        if (!node->waits)
            continue;
        n--;
        for (int i = 0; i < node->call.n_in; i++) {
            const mx_tensor *t = node->call.in[i];
            bool reads = node->recorded[i].holds && i < MX_MAX_INPUTS && (node->call.op->reads_in >> i & 1u);
            if (reads && (!node->late || (node->call.op->reads_late >> i & 1u)) &&
                changes_of(t) != node->recorded[i].changes)
                return mx_node_fail_changed(node, t, "reads");
        }
    }
    return MX_OK;
}
