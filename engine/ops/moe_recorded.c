/* Gradients of moe_route and moe_combine as compositions of operations that have gradients. */
#include "ops/moe.h"
#include "ops/rows.h"
#include "ops/terms.h"

/* ---- moe_route ---- */

static mx_tensor *softmax(mx_terms *s, mx_tensor *x)
{
    const struct {
        int64_t dim;
    } last = {-1};
    return mx_term(s, &mx_op_softmax, MX_ATTRS(last), x, NULL, NULL);
}

static mx_tensor *sum_rows(mx_terms *s, mx_tensor *x)
{
    return x ? mx_term_reduce(s, &mx_op_sum, x, 1u << (x->shape.n_dims - 1)) : NULL;
}

/* The gradient of x for p = softmax(x): p (dp - sum p dp). */
static mx_tensor *softmax_gradient(mx_terms *s, mx_tensor *p, mx_tensor *dp)
{
    return mx_term_mul(s, p, mx_term_sub(s, dp, sum_rows(s, mx_term_mul(s, p, dp))));
}

/* The elements of x (..., experts) at the chosen experts, and what has the elements of x there and 0 elsewhere. */
static mx_tensor *choose(mx_terms *s, mx_tensor *x, mx_tensor *experts)
{
    mx_tensor *y = NULL;
    int last = experts->shape.n_dims - 1;
    return x && mx_term_keep(s, mx_apply_gather(x, experts, last, &y), &y) ? y : NULL;
}

static mx_tensor *spread(mx_terms *s, mx_tensor *x, mx_tensor *experts, const mx_shape *shape)
{
    mx_tensor *y = NULL;
    int last = experts->shape.n_dims - 1;
    return x && mx_term_keep(s, mx_apply_gather_grad(experts, x, last, shape, &y), &y) ? y : NULL;
}

/* The gradient of the logits that sigmoids are taken of, for the gradient dw of the weights. */
static mx_tensor *sigmoid_gradient(mx_terms *s, mx_tensor *chosen, mx_tensor *dw, bool normalize)
{
    mx_tensor *p = mx_term_one(s, &mx_op_sigmoid, chosen), *dp = dw;
    if (normalize) {
        mx_tensor *sum = mx_term_affine(s, sum_rows(s, p), 1, 1e-20);
        mx_tensor *mean = mx_term_div(s, sum_rows(s, mx_term_mul(s, p, dw)), sum);
        dp = mx_term_div(s, mx_term_sub(s, dw, mean), sum);
    }
    return mx_term_mul(s, dp, mx_term_mul(s, p, mx_term_affine(s, p, -1, 1)));
}

static mx_tensor *route_gradient(mx_terms *s, const mx_call *call, mx_tensor *dweights)
{
    const mx_route_attr *a = mx_call_attr(call);
    mx_tensor *experts = call->out[1], *x = mx_term_wide(s, call->in[0]), *dchosen = NULL;
    mx_tensor *dw = mx_term_affine(s, dweights, a->scale, 0);
    const mx_shape *shape = &call->in[0]->shape;
    if (a->score == MX_RANDOM_TOPK)
        return mx_term_affine(s, x, 0, 0);
    if (a->score == MX_SOFTMAX_TOPK && !a->normalize)
        return softmax_gradient(s, softmax(s, x), spread(s, dw, experts, shape));
    if (a->score == MX_SIGMOID_TOPK)
        dchosen = sigmoid_gradient(s, choose(s, x, experts), dw, a->normalize);
    else /* of all, divided by their sum, it is the softmax of the chosen ones, too */
        dchosen = softmax_gradient(s, softmax(s, choose(s, x, experts)), dw);
    return spread(s, dchosen, experts, shape);
}

mx_status mx_moe_route_recorded(mx_vjp *v)
{
    if (!v->want[0] || !v->out_grad[0])
        return MX_OK;
    mx_terms s = {.n = 0};
    mx_tensor *dlogits = route_gradient(&s, v->call, v->out_grad[0]);
    mx_term_give(&s, v, 0, dlogits);
    return mx_terms_release(&s);
}

/* ---- moe_combine ---- */

/* Elements of x (n), or rows, at ids, and 0 where an id is -1; in the shape of ids. */
static mx_tensor *select_known(mx_terms *s, mx_tensor *x, mx_tensor *ids)
{
    mx_shape flat = mx_vector(mx_count(x));
    mx_tensor *values = mx_term_reshape(s, x, &flat), *y = NULL;
    mx_tensor *known = mx_term_cast(s, mx_term_compare(s, &mx_op_ge, ids, 0), MX_F32);
    mx_tensor *places = mx_term_two(s, &mx_op_maximum, ids, mx_term_number(s, MX_I32, 0));
    if (!values || !known || !places || !mx_term_keep(s, mx_apply_index_select(values, places, 0, &y), &y))
        return NULL;
    return mx_term_mul(s, y, known);
}

/* A row's gradient is that of its token times its weight; a weight's, that of its token times its row. */
mx_status mx_moe_combine_recorded(mx_vjp *v)
{
    const mx_call *call = v->call;
    mx_tensor *order = call->in[1], *place = call->in[2], *weights = call->in[3];
    mx_shape column = {2, {mx_count(order), 1}};
    mx_terms s = {.n = 0};
    mx_tensor *rows = mx_term(&s, &mx_op_moe_gather, MX_NO_ATTRS, v->out_grad[0], order, place);
    if (rows && v->want[0]) {
        mx_tensor *weight = mx_term_reshape(&s, select_known(&s, weights, order), &column);
        mx_term_give(&s, v, 0, mx_term_mul(&s, rows, weight));
    }
    if (rows && v->want[3]) {
        mx_tensor *parts = mx_term_mul(&s, mx_term_wide(&s, call->in[0]), mx_term_wide(&s, rows));
        mx_tensor *dots = mx_term_reduce(&s, &mx_op_sum, parts, 1u << 1);
        mx_term_give(&s, v, 3, dots ? select_known(&s, dots, place) : NULL);
    }
    return mx_terms_release(&s);
}
