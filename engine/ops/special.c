/* Special functions, element by element: erfinv, and lgamma with its derivatives. */
#include "kernels/special.h"

#include "ops/pointwise.h"
#include "ops/terms.h"

#include <math.h>

typedef struct polygamma_attr {
    int64_t n;
} polygamma_attr;

enum { MOST_ORDER = 20 };

static int order_of(const mx_call *call)
{
    return call->op == &mx_op_polygamma ? (int)((const polygamma_attr *)mx_call_attr(call))->n : 0;
}

static mx_special function_of(const mx_call *call)
{
    if (call->op == &mx_op_erfinv)
        return MX_ERFINV;
    if (call->op == &mx_op_lgamma)
        return MX_LGAMMA;
    return order_of(call) == 0 ? MX_DIGAMMA : MX_POLYGAMMA;
}

static mx_status infer_polygamma(mx_call *call)
{
    int64_t n = ((const polygamma_attr *)mx_call_attr(call))->n;
    if (n < 0 || n > MOST_ORDER)
        return mx_bad_value(call, "n = %lld must be between 0 and %d", (long long)n, MOST_ORDER);
    return mx_unary_infer(call);
}

static mx_cost cost(const mx_call *call) { return mx_cost_of(call, 40.0 * (double)mx_count(call->in[0])); }

static mx_status host(mx_call *call)
{
    const mx_tensor *x = call->in[0];
    mx_special_run(function_of(call), order_of(call), mx_array_of(x), mx_array_of(call->out[0]), mx_count(x));
    return MX_OK;
}

/* erfinv'(x) = sqrt(pi) / 2 e^(y^2), y = erfinv(x) in f32: a rounded y of bf16 would move the slope by 2 y^2 of that.
 * The others are derivatives of each other. */
static mx_tensor *slope(mx_terms *s, const mx_call *call)
{
    mx_tensor *x = mx_term_wide(s, call->in[0]);
    if (call->op == &mx_op_lgamma)
        return mx_term_one(s, &mx_op_digamma, x);
    if (call->op != &mx_op_erfinv) {
        const polygamma_attr next = {order_of(call) + 1};
        return mx_term(s, &mx_op_polygamma, MX_ATTRS(next), x, NULL, NULL);
    }
    mx_tensor *y = mx_term_one(s, &mx_op_erfinv, x);
    return mx_term_affine(s, mx_term_one(s, &mx_op_exp, mx_term_one(s, &mx_op_square, y)), 1 / M_2_SQRTPI, 0);
}

static mx_status vjp(mx_vjp *v)
{
    mx_terms s = {.n = 0};
    mx_term_give(&s, v, 0, mx_term_mul(&s, slope(&s, v->call), v->out_grad[0]));
    return mx_terms_release(&s);
}

#define SPECIAL(NAME, DOC)                                                                                             \
    const mx_op mx_op_##NAME = {.name = #NAME,                                                                         \
                                .doc = DOC,                                                                            \
                                .inputs = (const char *const[]){"x", NULL},                                            \
                                .n_out = 1,                                                                            \
                                .n_results = 1,                                                                        \
                                .reads_in = 1,                                                                         \
                                .infer = mx_unary_infer,                                                               \
                                .cost = cost,                                                                          \
                                .host = host,                                                                          \
                                .vjp = vjp,                                                                            \
                                .vjp_recorded = vjp}

SPECIAL(erfinv,
        "the number whose error function is x, element by element, to a relative 2e-7 before it is rounded (f64: "
        "to its rounding); infinite at -1 and 1, NaN beyond");
SPECIAL(lgamma, "ln |gamma(x)|, element by element, computed in f64; its gradient is digamma");
SPECIAL(digamma,
        "the derivative of lgamma, element by element, computed in f64; -inf at 0, NaN at negative whole numbers");

const mx_op mx_op_polygamma = {
    .name = "polygamma",
    .doc = "the nth derivative of digamma, element by element, computed in f64; with n > 1, NaN below -1000",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"n", MX_ATTR_INT, offsetof(polygamma_attr, n), NAN, NULL,
                                "order, from 0, which is digamma itself, to 20"},
                               {0}},
    .attr_bytes = sizeof(polygamma_attr),
    .reads_in = 1,
    .infer = infer_polygamma,
    .cost = cost,
    .host = host,
    .vjp = vjp,
    .vjp_recorded = vjp,
};
