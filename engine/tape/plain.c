/* Gradients of gradients: of operations that record them, and of those that are compositions of others. */
#include "ops/rows.h"
#include "ops/terms.h"
#include "tape/record.h"

static mx_tapes *const tapes = &mx_all_tapes;

bool mx_op_is_plain(const mx_op *op) { return !op->vjp_recorded && op->plain; }

/* Where the gradient of t is summed: of an input of the call in v->grad; of a result of the composition, recorded as
 * number `since` or later, in t->grad; NULL: it is not asked for. */
static mx_tensor **sum_of(const mx_vjp *v, mx_tensor *t, uint64_t since)
{
    for (int i = 0; t && i < v->call->n_in; i++)
        if (v->call->in[i] == t && v->want[i])
            return &v->grad[i];
    return t && t->node && t->node->number >= since ? &t->grad : NULL;
}

/* Adds the gradients by one record of the composition to those of its inputs. */
static mx_status walk_back(const mx_vjp *v, const mx_node *node, uint64_t since)
{
    const mx_call *call = &node->call;
    mx_tensor *grad[MX_MAX_INPUTS] = {NULL}, *none[MX_MAX_INPUTS] = {NULL}, *out_grad[MX_MAX_OUTPUTS];
    bool want[MX_MAX_INPUTS] = {false}, any = false;
    mx_vjp inner = {.call = call, .out_grad = out_grad, .want = want, .sum = none, .grad = grad, .retain = true};
    for (int i = 0; i < call->n_out; i++) {
        out_grad[i] = call->out[i]->grad;
        any = any || out_grad[i];
    }
    for (int i = 0; i < call->n_in; i++)
        want[i] = node->recorded[i].wants && sum_of(v, call->in[i], since);
    mx_status status = any ? mx_vjp_recorded(&inner) : MX_OK;
    for (int i = 0; i < call->n_in; i++) {
        if (status == MX_OK && grad[i])
            status = mx_grad_add(sum_of(v, call->in[i], since), grad[i]);
        else
            mx_release(grad[i]);
    }
    for (int i = 0; i < call->n_out; i++) {
        mx_release(call->out[i]->grad);
        call->out[i]->grad = NULL;
    }
    return status;
}

/* Walks the records of the composition alone: what it depends on may depend on the call's inputs, too. */
static mx_status walk_composition(const mx_vjp *v, mx_tensor *y, uint64_t since)
{
    mx_status status = MX_OK;
    if (!y->node)
        return MX_OK;
    y->grad = mx_retain(v->out_grad[0]);
    status = mx_grad_cast(&y->grad, y->dtype);
    for (mx_node *node = tapes->current->last; node && node->number >= since; node = node->before)
        if (node->number <= y->node->number && status == MX_OK)
            status = walk_back(v, node, since);
    return status;
}

mx_status mx_vjp_recorded(mx_vjp *v)
{
    const mx_op *op = v->call->op;
    uint64_t since = tapes->count;
    if (op->vjp_recorded)
        return op->vjp_recorded(v);
    if (!v->out_grad[0])
        return MX_OK;
    MX_TRY(mx_remat_ensure_inputs((mx_node *)((char *)v->call - offsetof(mx_node, call))));
    mx_terms s = {.n = 0};
    mx_tensor *y = op->plain(&s, v->call);
    mx_status status = y ? walk_composition(v, y, since) : s.status;
    mx_terms_release(&s);
    for (int i = 0; i < v->call->n_in && status == MX_OK; i++)
        if (v->grad[i])
            status = mx_grad_cast(&v->grad[i], mx_vjp_dtype(v, i));
    return status;
}
