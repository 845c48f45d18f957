/* Operations without tensor inputs: random numbers, constants, sequences; and dropout. */
#include "ops/random.h"

#include "ops/pointwise.h"
#include "ops/terms.h"

#include <math.h>

typedef struct random_attr {
    mx_shape shape;
    int dtype;
    double a, b; /* mean and std, or low and high */
    mx_seed seed;
    int64_t offset;
    mx_shape of,
        start; /* randn: shape of the whole tensor, and where the part begins, from 1; no dimensions: not given */
} random_attr;

typedef struct arange_attr {
    int64_t n;
    int dtype;
    double start, step;
} arange_attr;

typedef struct dropout_attr {
    double rate;
    mx_seed seed;
    int64_t offset, column;
} dropout_attr;

static const char *const no_inputs[] = {NULL};

/* ---- randn and rand ---- */

static mx_status infer_random(mx_call *call)
{
    const random_attr *attr = mx_call_attr(call);
    mx_dtype dtype = attr->dtype < 0 ? MX_F32 : (mx_dtype)attr->dtype;
    if (!mx_dtype_computes(dtype))
        return mx_bad_dtype(call, "dtype %s: random numbers are f32 or bf16", mx_dtype_name(dtype));
    return mx_out(call, 0, dtype, &attr->shape);
}

static mx_status infer_randn(mx_call *call)
{
    const random_attr *attr = mx_call_attr(call);
    const mx_shape *part = &attr->shape, *of = &attr->of, *start = &attr->start;
    if (of->n_dims > 0 || start->n_dims > 0) {
        if (of->n_dims != part->n_dims || start->n_dims != part->n_dims)
            return mx_bad_shape(call, "shape, of and start have %d, %d and %d entries: expected one for each dimension",
                                part->n_dims, of->n_dims, start->n_dims);
        for (int d = 0; d < part->n_dims; d++)
            if (start->size[d] < 1 || part->size[d] < 0 || start->size[d] - 1 > of->size[d] - part->size[d])
                return mx_bad_shape(call,
                                    "dimension %d: %lld elements from %lld on are not within the %lld of the whole",
                                    d + 1, (long long)part->size[d], (long long)start->size[d], (long long)of->size[d]);
    }
    return infer_random(call);
}

static mx_status infer_rand(mx_call *call)
{
    const random_attr *attr = mx_call_attr(call);
    float least, greatest;
    mx_dtype dtype = attr->dtype < 0 ? MX_F32 : (mx_dtype)attr->dtype;
    if (mx_dtype_computes(dtype) && !mx_uniform_range(attr->a, attr->b, dtype, &least, &greatest))
        return mx_bad_value(call, "no %s number is in [low, high) = [%.9g, %.9g)", mx_dtype_name(dtype), attr->a,
                            attr->b);
    return infer_random(call);
}

/* Ten rounds of the generator for four numbers, and an evaluation of log, sin and cos for two. */
static mx_cost cost_random(const mx_call *call) { return mx_cost_of(call, 40.0 * (double)mx_count(call->out[0])); }

static mx_status host_randn(mx_call *call)
{
    const random_attr *attr = mx_call_attr(call);
    const mx_tensor *y = call->out[0];
    mx_stream stream = mx_stream_of(attr->seed, attr->offset);
    float mean = (float)attr->a, std = (float)attr->b;
    if (attr->of.n_dims == 0) {
        mx_random_normal(stream, mean, std, mx_array_of(y), mx_count(y));
        return MX_OK;
    }
    mx_part part = {.n_dims = attr->of.n_dims};
    for (int d = 0; d < part.n_dims; d++) {
        part.size[d] = y->shape.size[d];
        part.start[d] = attr->start.size[d] - 1;
        part.of[d] = attr->of.size[d];
    }
    mx_random_normal_part(stream, mean, std, &part, mx_array_of(y));
    return MX_OK;
}

static mx_status host_rand(mx_call *call)
{
    const random_attr *attr = mx_call_attr(call);
    const mx_tensor *y = call->out[0];
    float least = 0, greatest = 0;
    mx_uniform_range(attr->a, attr->b, y->dtype, &least, &greatest); /* checked by infer */
    mx_random_uniform(mx_stream_of(attr->seed, attr->offset), least, greatest, (float)attr->b, mx_array_of(y),
                      mx_count(y));
    return MX_OK;
}

const mx_op mx_op_randn = {
    .name = "randn",
    .doc = "normal random numbers; each depends only on seed, offset and its position; with of and start, its position "
           "in the whole tensor of which the result is a part",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs = (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(random_attr, shape), NAN, NULL, "shape of the result"},
                               {"dtype", MX_ATTR_DTYPE, offsetof(random_attr, dtype), MX_F32, NULL, "f32 or bf16"},
                               {"mean", MX_ATTR_FLOAT, offsetof(random_attr, a), 0, NULL, "mean"},
                               {"std", MX_ATTR_FLOAT, offsetof(random_attr, b), 1, NULL, "standard deviation"},
                               {"seed", MX_ATTR_SEED, offsetof(random_attr, seed), NAN, NULL,
                                "key of the generator; default: the next number of the stream of mx.manual_seed"},
                               {"offset", MX_ATTR_INT, offsetof(random_attr, offset), 0, NULL,
                                "number of the generator's stream"},
                               {"of", MX_ATTR_SHAPE, offsetof(random_attr, of), 0, NULL, "shape of the whole tensor"},
                               {"start", MX_ATTR_SHAPE, offsetof(random_attr, start), 0, NULL,
                                "first index of the part in each dimension of the whole"},
                               {0}},
    .attr_bytes = sizeof(random_attr),
    .infer = infer_randn,
    .cost = cost_random,
    .host = host_randn,
};

const mx_op mx_op_rand = {
    .name = "rand",
    .doc = "uniform random numbers in [low, high); each depends only on seed, offset and its position",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs = (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(random_attr, shape), NAN, NULL, "shape of the result"},
                               {"dtype", MX_ATTR_DTYPE, offsetof(random_attr, dtype), MX_F32, NULL, "f32 or bf16"},
                               {"low", MX_ATTR_FLOAT, offsetof(random_attr, a), 0, NULL, "lower bound, included"},
                               {"high", MX_ATTR_FLOAT, offsetof(random_attr, b), 1, NULL, "upper bound, excluded"},
                               {"seed", MX_ATTR_SEED, offsetof(random_attr, seed), NAN, NULL,
                                "key of the generator; default: the next number of the stream of mx.manual_seed"},
                               {"offset", MX_ATTR_INT, offsetof(random_attr, offset), 0, NULL,
                                "number of the generator's stream"},
                               {0}},
    .attr_bytes = sizeof(random_attr),
    .infer = infer_rand,
    .cost = cost_random,
    .host = host_rand,
};

/* ---- full and arange ---- */

static mx_cost cost_source(const mx_call *call) { return mx_cost_of(call, 0); }

typedef struct full_attr {
    mx_shape shape;
    int dtype;
    double value;
} full_attr;

static mx_status infer_full(mx_call *call)
{
    const full_attr *attr = mx_call_attr(call);
    mx_dtype dtype = attr->dtype < 0 ? MX_F32 : (mx_dtype)attr->dtype;
    MX_TRY(mx_want_number("full", "value", dtype, attr->value));
    return mx_out(call, 0, dtype, &attr->shape);
}

static mx_status host_full(mx_call *call)
{
    mx_fill(mx_array_of(call->out[0]), ((const full_attr *)mx_call_attr(call))->value, mx_count(call->out[0]));
    return MX_OK;
}

const mx_op mx_op_full = {
    .name = "full",
    .doc = "a tensor with the same value in all elements",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs =
        (const mx_attr[]){{"shape", MX_ATTR_SHAPE, offsetof(full_attr, shape), NAN, NULL, "shape of the result"},
                          {"dtype", MX_ATTR_DTYPE, offsetof(full_attr, dtype), MX_F32, NULL, "dtype of the result"},
                          {"value", MX_ATTR_FLOAT, offsetof(full_attr, value), NAN, NULL, "value of every element"},
                          {0}},
    .attr_bytes = sizeof(full_attr),
    .infer = infer_full,
    .cost = cost_source,
    .host = host_full,
};

static mx_status infer_arange(mx_call *call)
{
    const arange_attr *attr = mx_call_attr(call);
    if (attr->n < 0)
        return mx_bad_value(call, "n = %lld must not be negative", (long long)attr->n);
    mx_dtype dtype = attr->dtype < 0 ? MX_F32 : (mx_dtype)attr->dtype;
    MX_TRY(mx_want_number("arange", "start", dtype, attr->start));
    if (attr->n > 1 && mx_dtype_is_integer(dtype)) { /* with an integer step, all numbers between are integers */
        MX_TRY(mx_want_number("arange", "step", mx_dtype_accumulates_in(dtype), attr->step));
        MX_TRY(mx_want_number("arange", "the last", dtype, attr->start + attr->step * (double)(attr->n - 1)));
    }
    return mx_out(call, 0, dtype, &(mx_shape){.n_dims = 1, .size = {attr->n}});
}

static mx_status host_arange(mx_call *call)
{
    const arange_attr *attr = mx_call_attr(call);
    mx_arange(mx_array_of(call->out[0]), attr->start, attr->step, attr->n);
    return MX_OK;
}

const mx_op mx_op_arange = {
    .name = "arange",
    .doc = "n numbers: start, start + step, ...",
    .inputs = no_inputs,
    .n_out = 1,
    .n_results = 1,
    .flags = MX_OP_SOURCE,
    .attrs =
        (const mx_attr[]){
            {"n", MX_ATTR_INT, offsetof(arange_attr, n), NAN, NULL, "how many numbers"},
            {"dtype", MX_ATTR_DTYPE, offsetof(arange_attr, dtype), MX_F32, NULL, "dtype of the result"},
            {"start", MX_ATTR_FLOAT, offsetof(arange_attr, start), 0, NULL, "the first number"},
            {"step", MX_ATTR_FLOAT, offsetof(arange_attr, step), 1, NULL, "difference between neighbours"},
            {0}},
    .attr_bytes = sizeof(arange_attr),
    .infer = infer_arange,
    .cost = cost_source,
    .host = host_arange,
};

/* ---- dropout: linear in x, so its gradient is dropout with the same mask ---- */

static mx_tensor *rows_of(const mx_call *call) { return call->in[1]; }

static mx_status infer_dropout(mx_call *call)
{
    const dropout_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_real(call, 0));
    if (rows_of(call)) {
        mx_shape shape = call->in[0]->shape;
        if (shape.n_dims == 0)
            return mx_bad_shape(call, "x has no dimensions, and rows are numbered along all but the last");
        shape.n_dims--;
        MX_TRY(mx_want_dtype(call, 1, MX_I32));
        MX_TRY(mx_want_shape(call, 1, &shape));
    }
    if (!(attr->rate >= 0 && attr->rate < 1))
        return mx_bad_value(call, "rate = %g must be in [0, 1)", attr->rate);
    if (attr->column < 0)
        return mx_bad_value(call, "column = %lld must not be negative", (long long)attr->column);
    return mx_out(call, 0, call->in[0]->dtype, &call->in[0]->shape);
}

static mx_cost cost_dropout(const mx_call *call) { return mx_cost_of(call, 20.0 * (double)mx_count(call->in[0])); }

static mx_status host_dropout(mx_call *call)
{
    const dropout_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0], *rows = rows_of(call);
    mx_dropout(mx_stream_of(attr->seed, attr->offset), attr->rate, rows ? mx_data(rows) : NULL,
               rows ? x->shape.size[x->shape.n_dims - 1] : mx_count(x), attr->column, mx_array_of(x),
               mx_array_of(call->out[0]), mx_count(x));
    return MX_OK;
}

/* f64: the mask of ones in f32. */
static mx_tensor *plain_dropout(mx_terms *s, const mx_call *call)
{
    mx_tensor *ones = NULL, *x = call->in[0];
    if (!mx_term_keep(s, mx_apply_full(&x->shape, MX_F32, 1, &ones), &ones))
        return NULL;
    mx_tensor *kept = mx_term(s, &mx_op_dropout, mx_call_attrs(call), ones, rows_of(call), NULL);
    double scale = 1 / (1 - ((const dropout_attr *)mx_call_attr(call))->rate);
    return mx_term_affine(s, mx_term_mul(s, x, mx_term_cast(s, mx_term_compare(s, &mx_op_gt, kept, 0), x->dtype)),
                          scale, 0);
}

static mx_status vjp_dropout(mx_vjp *v)
{
    mx_tensor *dx = NULL, *in[] = {v->out_grad[0], rows_of(v->call)};
    MX_TRY(mx_apply(&mx_op_dropout, in, 2, mx_call_attrs(v->call), &dx));
    return mx_give_grad(v, 0, dx);
}

const mx_op mx_op_dropout = {
    .name = "dropout",
    .doc = "x / (1 - rate) with probability 1 - rate, else 0; the mask depends only on seed, offset and position; rows "
           "(i32, x's shape without the last dimension) gives the row numbers to use as positions",
    .inputs = (const char *const[]){"x", "rows?", NULL},
    .reads_in = 1 << 1,
    .n_out = 1,
    .n_results = 1,
    .attrs = (const mx_attr[]){{"rate", MX_ATTR_FLOAT, offsetof(dropout_attr, rate), NAN, NULL, "probability of 0"},
                               {"seed", MX_ATTR_SEED, offsetof(dropout_attr, seed), NAN, NULL,
                                "key of the generator; default: the next number of the stream of mx.manual_seed"},
                               {"offset", MX_ATTR_INT, offsetof(dropout_attr, offset), 0, NULL,
                                "number of the generator's stream"},
                               {"column", MX_ATTR_INT, offsetof(dropout_attr, column), 0, NULL,
                                "position in the whole rows of each row's first element, from 0"},
                               {0}},
    .attr_bytes = sizeof(dropout_attr),
    .infer = infer_dropout,
    .cost = cost_dropout,
    .host = host_dropout,
    .vjp = vjp_dropout,
    .vjp_recorded = vjp_dropout,
    .flags = MX_OP_PLAIN_F64,
    .plain = plain_dropout,
};

mx_status mx_apply_full(const mx_shape *shape, mx_dtype dtype, double value, mx_tensor **y)
{
    const full_attr attr = {*shape, (int)dtype, value};
    return mx_apply(&mx_op_full, NULL, 0, MX_ATTRS(attr), y);
}

mx_status mx_apply_arange(int64_t n, mx_dtype dtype, double start, mx_tensor **y)
{
    const arange_attr attr = {.n = n, .dtype = dtype, .start = start, .step = 1};
    return mx_apply(&mx_op_arange, NULL, 0, MX_ATTRS(attr), y);
}
