/* Conversion between dtypes. */
#include "ops/pointwise.h"

#include <math.h>

typedef struct cast_attr {
    int dtype;
} cast_attr;

static mx_status infer(mx_call *call)
{
    const cast_attr *attr = mx_call_attr(call);
    if (attr->dtype < 0 || attr->dtype >= MX_DTYPES)
        return mx_bad_value(call, "dtype must be given");
    return mx_out(call, 0, (mx_dtype)attr->dtype, &call->in[0]->shape);
}

static mx_cost cost(const mx_call *call) { return mx_cost_of(call, 0); }

static mx_status host(mx_call *call)
{
    mx_cast(mx_array_of(call->in[0]), mx_array_of(call->out[0]), mx_count(call->in[0]));
    return MX_OK;
}

/* Dtypes that cannot have a gradient stop the gradient. */
static mx_status vjp(mx_vjp *v)
{
    if (!mx_dtype_may_have_gradient(v->call->in[0]->dtype) || !mx_dtype_may_have_gradient(v->call->out[0]->dtype))
        return MX_OK;
    return mx_give_grad(v, 0, mx_retain(v->out_grad[0]));
}

const mx_op mx_op_cast = {
    .name = "cast",
    .doc = "x in another dtype; float to integer rounds toward zero and saturates, NaN gives 0",
    .inputs = (const char *const[]){"x", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){{"dtype", MX_ATTR_DTYPE, offsetof(cast_attr, dtype), NAN, NULL, "dtype of the result"}, {0}},
    .attr_bytes = sizeof(cast_attr),
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
    .vjp_recorded = vjp,
};

mx_status mx_apply_cast(mx_tensor *x, mx_dtype dtype, mx_tensor **y)
{
    const cast_attr attr = {(int)dtype};
    return mx_apply(&mx_op_cast, &x, 1, MX_ATTRS(attr), y);
}
