/* Random draws other than uniform and normal numbers: randint, bernoulli, truncated_normal, permutation, multinomial.
 */
#include "kernels/draw.h"

#include "core/element.h"
#include "ops/pointwise.h"
#include "ops/random.h"

#include <float.h>
#include <math.h>

static const char *const no_inputs[] = {NULL}, *const p_input[] = {"p", NULL};

/* Ten rounds of the generator for four numbers, and a logarithm or an error function. */
static mx_cost cost_draw(const mx_call *call) { return mx_cost_of(call, 40.0 * (double)mx_count(call->out[0])); }

/* ---- randint ---- */

typedef struct randint_attr {
    mx_shape shape;
    int dtype;
    int64_t low, high;
    mx_seed seed;
    int64_t offset;
} randint_attr;

static mx_status infer_randint(mx_call *call)
{
    const randint_attr *attr = mx_call_attr(call);
    mx_dtype dtype = attr->dtype < 0 ? MX_I32 : (mx_dtype)attr->dtype;
    if (!mx_dtype_is_integer(dtype))
        return mx_bad_dtype(call, "dtype = %s is no integer; mx.rand draws floats", mx_dtype_name(dtype));
    if (attr->low >= attr->high)
        return mx_bad_value(call, "no integer is in [low, high) = [%lld, %lld)", (long long)attr->low,
                            (long long)attr->high);
    MX_TRY(mx_want_number("randint", "low", dtype, (double)attr->low));
    MX_TRY(mx_want_number("randint", "high - 1", dtype, (double)(attr->high - 1)));
    return mx_out(call, 0, dtype, &attr->shape);
}

static mx_status host_randint(mx_call *call)
{
    const randint_attr *attr = mx_call_attr(call);
    mx_random_integers(mx_stream_of(attr->seed, attr->offset), attr->low, (uint64_t)(attr->high - attr->low),
                       mx_array_of(call->out[0]), mx_count(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_randint = {
    .name = "randint",
    .doc = "random integers in [low, high), each equally likely; each depends only on seed, offset and its position",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs =
        (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(randint_attr, shape), NAN, NULL, "shape of the result"},
                          {"dtype", MX_ATTR_DTYPE, offsetof(randint_attr, dtype), MX_I32, NULL, "an integer dtype"},
                          {"low", MX_ATTR_INT, offsetof(randint_attr, low), 0, NULL, "lower bound, included"},
                          {"high", MX_ATTR_INT, offsetof(randint_attr, high), NAN, NULL, "upper bound, excluded"},
                          MX_SEED_ATTRS(randint_attr),
                          {0}},
    .attr_bytes = sizeof(randint_attr),
    .infer = infer_randint,
    .cost = cost_draw,
    .host = host_randint,
};

/* ---- bernoulli ---- */

typedef struct bernoulli_attr {
    mx_seed seed;
    int64_t offset;
    int dtype;
} bernoulli_attr;

static mx_status infer_bernoulli(mx_call *call)
{
    const bernoulli_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_float(call, 0));
    return mx_out(call, 0, attr->dtype < 0 ? call->in[0]->dtype : (mx_dtype)attr->dtype, &call->in[0]->shape);
}

static mx_status host_bernoulli(mx_call *call)
{
    const bernoulli_attr *attr = mx_call_attr(call);
    const mx_tensor *p = call->in[0];
    char place[128];
    int64_t bad = mx_random_bernoulli(mx_stream_of(attr->seed, attr->offset), mx_array_of(p), mx_array_of(call->out[0]),
                                      mx_count(p));
    if (bad >= 0)
        return mx_bad_value(call, "p = %g at %s is no probability", (double)mx_get_float(mx_data(p), bad, p->dtype),
                            mx_place_text(place, &p->shape, bad));
    return MX_OK;
}

/* A draw is a constant. */
static mx_status vjp_bernoulli(mx_vjp *v)
{
    (void)v;
    return MX_OK;
}

const mx_op mx_op_bernoulli = {
    .name = "bernoulli",
    .doc = "1 with probability p, else 0, for each element of p; its gradient is 0",
    .inputs = p_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){MX_SEED_ATTRS(bernoulli_attr),
                               {"dtype", MX_ATTR_DTYPE, offsetof(bernoulli_attr, dtype), -1, NULL,
                                "dtype of the result; default: that of p"},
                               {0}},
    .attr_bytes = sizeof(bernoulli_attr),
    .infer = infer_bernoulli,
    .cost = cost_draw,
    .host = host_bernoulli,
    .vjp = vjp_bernoulli,
};

/* ---- truncated_normal ---- */

typedef struct truncated_attr {
    mx_shape shape;
    int dtype;
    double mean, std, low, high;
    mx_seed seed;
    int64_t offset;
} truncated_attr;

/* The bounds of the values, for a positive std. */
static bool bounds_of(const truncated_attr *attr, mx_dtype dtype, mx_truncated *t)
{
    *t = (mx_truncated){.mean = attr->mean, .std = attr->std, .low = attr->low, .high = attr->high};
    return attr->std > 0 && mx_uniform_range(attr->mean + attr->std * attr->low, attr->mean + attr->std * attr->high,
                                             dtype, &t->least, &t->greatest);
}

static mx_status infer_truncated(mx_call *call)
{
    const truncated_attr *attr = mx_call_attr(call);
    mx_dtype dtype = attr->dtype < 0 ? MX_F32 : (mx_dtype)attr->dtype;
    mx_truncated t;
    if (!mx_dtype_computes(dtype))
        return mx_bad_dtype(call, "dtype %s: random numbers are f32 or bf16", mx_dtype_name(dtype));
    if (!bounds_of(attr, dtype, &t))
        return mx_bad_value(call,
                            "mean = %g, std = %g, low = %g, high = %g: expected a positive std, and %s numbers between "
                            "mean + low std and mean + high std",
                            attr->mean, attr->std, attr->low, attr->high, mx_dtype_name(dtype));
    return mx_out(call, 0, dtype, &attr->shape);
}

static mx_status host_truncated(mx_call *call)
{
    const truncated_attr *attr = mx_call_attr(call);
    const mx_tensor *y = call->out[0];
    mx_truncated t;
    bounds_of(attr, y->dtype, &t); /* checked by infer */
    mx_random_truncated(mx_stream_of(attr->seed, attr->offset), &t, mx_array_of(y), mx_count(y));
    return MX_OK;
}

const mx_op mx_op_truncated_normal = {
    .name = "truncated_normal",
    .doc =
        "normal random numbers between mean + low std and mean + high std; each depends only on seed, offset and its "
        "position",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs =
        (const mx_attr[]){
            {"shape", MX_ATTR_SHAPE, offsetof(truncated_attr, shape), NAN, NULL, "shape of the result"},
            {"dtype", MX_ATTR_DTYPE, offsetof(truncated_attr, dtype), MX_F32, NULL, "f32 or bf16"},
            {"mean", MX_ATTR_FLOAT, offsetof(truncated_attr, mean), 0, NULL, "mean before the cut"},
            {"std", MX_ATTR_FLOAT, offsetof(truncated_attr, std), 1, NULL, "standard deviation before the cut"},
            {"low", MX_ATTR_FLOAT, offsetof(truncated_attr, low), -2, NULL,
             "lower bound, in standard deviations from the mean"},
            {"high", MX_ATTR_FLOAT, offsetof(truncated_attr, high), 2, NULL,
             "upper bound, in standard deviations from the mean"},
            MX_SEED_ATTRS(truncated_attr),
            {0}},
    .attr_bytes = sizeof(truncated_attr),
    .infer = infer_truncated,
    .cost = cost_draw,
    .host = host_truncated,
};

/* ---- permutation ---- */

typedef struct permutation_attr {
    int64_t n;
    mx_seed seed;
    int64_t offset;
} permutation_attr;

static mx_status infer_permutation(mx_call *call)
{
    const permutation_attr *attr = mx_call_attr(call);
    if (attr->n < 0 || attr->n > INT32_MAX)
        return mx_bad_value(call, "n = %lld must be in 0 .. %d", (long long)attr->n, INT32_MAX);
    return mx_out(call, 0, MX_I32, &(mx_shape){.n_dims = 1, .size = {attr->n}});
}

static mx_status host_permutation(mx_call *call)
{
    const permutation_attr *attr = mx_call_attr(call);
    return mx_random_permutation(mx_stream_of(attr->seed, attr->offset), mx_data(call->out[0]), attr->n);
}

const mx_op mx_op_permutation = {
    .name = "permutation",
    .doc = "the numbers 0 .. n - 1 in random order, i32",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs = (const mx_attr[]){{"n", MX_ATTR_INT, offsetof(permutation_attr, n), NAN, NULL, "how many numbers"},
                               MX_SEED_ATTRS(permutation_attr),
                               {0}},
    .attr_bytes = sizeof(permutation_attr),
    .infer = infer_permutation,
    .cost = cost_draw,
    .host = host_permutation,
};

/* ---- multinomial ---- */

typedef struct multinomial_attr {
    int64_t n;
    bool replacement;
    mx_seed seed;
    int64_t offset;
} multinomial_attr;

static mx_status infer_multinomial(mx_call *call)
{
    const multinomial_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_rows(call, 0));
    mx_shape y = call->in[0]->shape;
    int64_t *width = &y.size[y.n_dims - 1];
    if (attr->n < 0 || (!attr->replacement && attr->n > *width))
        return mx_bad_value(call, "n = %lld must be in 0 .. %lld, the number of weights; replacement = true draws more",
                            (long long)attr->n, (long long)*width);
    if (*width > INT32_MAX)
        return mx_bad_shape(call, "there are more weights than i32 can count");
    *width = attr->n;
    return mx_out(call, 0, MX_I32, &y);
}

/* Checks that each row has enough weights that are not 0. */
static mx_status want_weights(const mx_call *call, int64_t enough)
{
    const mx_tensor *p = call->in[0];
    const int64_t width = mx_row_width(p);
    for (int64_t r = 0; r < mx_row_count(p); r++) {
        int64_t found = 0;
        for (int64_t i = 0; i < width && found < enough; i++)
            found += mx_get_float(mx_data(p), r * width + i, p->dtype) > 0;
        if (found < enough)
            return mx_bad_value(call, "row %lld has %lld weights that are not 0; expected %lld or more",
                                (long long)r + 1, (long long)found, (long long)enough);
    }
    return MX_OK;
}

static mx_status host_multinomial(mx_call *call)
{
    const multinomial_attr *attr = mx_call_attr(call);
    const mx_tensor *p = call->in[0];
    const mx_multinomial m = {.rows = mx_row_count(p),
                              .width = mx_row_width(p),
                              .n = attr->n,
                              .replacement = attr->replacement,
                              .p = mx_array_of(p),
                              .ids = mx_data(call->out[0])};
    char place[128];
    int64_t bad;
    if (attr->n == 0)
        return MX_OK;
    MX_TRY(mx_random_multinomial(mx_stream_of(attr->seed, attr->offset), &m, &bad));
    if (bad >= 0)
        return mx_bad_value(call, "p = %g at %s is no weight: expected a number from 0 on",
                            (double)mx_get_float(mx_data(p), bad, p->dtype), mx_place_text(place, &p->shape, bad));
    return want_weights(call, attr->replacement ? 1 : attr->n);
}

const mx_op mx_op_multinomial = {
    .name = "multinomial",
    .doc =
        "n ids (i32, from 0) for each row of weights p (..., V), in the order of the draws; without replacement, all "
        "are different",
    .inputs = p_input,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"n", MX_ATTR_INT, offsetof(multinomial_attr, n), NAN, NULL, "draws for each row"},
                               {"replacement", MX_ATTR_BOOL, offsetof(multinomial_attr, replacement), 0, NULL,
                                "an id may be drawn again"},
                               MX_SEED_ATTRS(multinomial_attr),
                               {0}},
    .attr_bytes = sizeof(multinomial_attr),
    .infer = infer_multinomial,
    .cost = cost_draw,
    .host = host_multinomial,
};
