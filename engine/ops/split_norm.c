/* The steps of a norm whose rows are split over ranks: this rank has some of each row's values. mesh/norm.c sums over
 * the ranks between the steps. With `mean` it is LayerNorm, otherwise RMSNorm. */
#include "ops/split_norm.h"

#include "kernels/norm.h"
#include "ops/rows.h"

#include <math.h>

static mx_norm norm_of(const mx_call *call, int weight, int mean)
{
    const mx_tensor *x = call->in[0], *w = weight < 0 ? NULL : call->in[weight], *m = call->in[mean];
    return (mx_norm){.rows = mx_row_count(x),
                     .width = mx_row_width(x),
                     .dtype = x->dtype,
                     .center = m != NULL,
                     .weight = w ? mx_data(w) : NULL,
                     .weight_dtype = w ? w->dtype : MX_F32,
                     .x = mx_data(x),
                     .mean = m ? mx_f32(m) : NULL};
}

/* Checks that input i, if given, has one f32 value for each row of x. */
static mx_status want_per_row(const mx_call *call, int i)
{
    if (!call->in[i])
        return MX_OK;
    mx_shape per_row = mx_shape_of_rows(call->in[0]);
    MX_TRY(mx_want_dtype(call, i, MX_F32));
    return mx_want_shape(call, i, &per_row);
}

/* Checks that input i, if given, is a vector of a row's length. */
static mx_status want_features(const mx_call *call, int i)
{
    if (!call->in[i])
        return MX_OK;
    mx_shape vector = mx_vector(mx_row_width(call->in[0]));
    MX_TRY(mx_want_float(call, i));
    return mx_want_shape(call, i, &vector);
}

static mx_status want_like_x(const mx_call *call, int i)
{
    MX_TRY(mx_want_dtype(call, i, call->in[0]->dtype));
    return mx_want_shape(call, i, &call->in[0]->shape);
}

static mx_cost cost_sums(const mx_call *call) { return mx_cost_of(call, 2.0 * (double)mx_count(call->in[0])); }

static mx_cost cost_part(const mx_call *call) { return mx_cost_of(call, 3.0 * (double)mx_count(call->in[0])); }

static mx_cost cost_grad_sums(const mx_call *call) { return mx_cost_of(call, 4.0 * (double)mx_count(call->in[0])); }

static mx_cost cost_grad_part(const mx_call *call) { return mx_cost_of(call, 5.0 * (double)mx_count(call->in[0])); }

/* ---- norm_sums ---- */

static mx_status infer_sums(mx_call *call)
{
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(want_per_row(call, 1));
    mx_shape per_row = mx_shape_of_rows(call->in[0]);
    return mx_out(call, 0, MX_F32, &per_row);
}

static mx_status host_sums(mx_call *call)
{
    mx_norm n = norm_of(call, -1, 1);
    n.sums = mx_f32(call->out[0]);
    mx_norm_sums(&n, ((const mx_norm_sums_attr *)mx_call_attr(call))->squares);
    return MX_OK;
}

const mx_op mx_op_norm_sums = {
    .name = "norm_sums",
    .doc = "the sums of x - mean over the last dimension, in f32; with squares = true, of its square. A step of "
           "split_norm, without a gradient",
    .inputs = (const char *const[]){"x", "mean?", NULL},
    .n_out = 1,
    .n_results = 1,
    .attrs =
        (const mx_attr[]){{"squares", MX_ATTR_BOOL, offsetof(mx_norm_sums_attr, squares), 0, NULL, "sum the squares"},
                          {0}},
    .attr_bytes = sizeof(mx_norm_sums_attr),
    .infer = infer_sums,
    .cost = cost_sums,
    .host = host_sums,
};

/* ---- norm_part ---- */

enum { PART_X, PART_RSTD, PART_WEIGHT, PART_BIAS, PART_MEAN };

static mx_status infer_part(mx_call *call)
{
    MX_TRY(mx_want_rows(call, PART_X));
    MX_TRY(want_per_row(call, PART_RSTD));
    MX_TRY(want_features(call, PART_WEIGHT));
    MX_TRY(want_features(call, PART_BIAS));
    MX_TRY(want_per_row(call, PART_MEAN));
    return mx_out(call, 0, call->in[PART_X]->dtype, &call->in[PART_X]->shape);
}

static mx_status host_part(mx_call *call)
{
    const mx_tensor *bias = call->in[PART_BIAS];
    mx_norm n = norm_of(call, PART_WEIGHT, PART_MEAN);
    n.features = n.width; /* mean and rstd are given */
    n.rstd = mx_f32(call->in[PART_RSTD]);
    n.bias = bias ? mx_data(bias) : NULL;
    n.bias_dtype = bias ? bias->dtype : MX_F32;
    n.y = mx_data(call->out[0]);
    return mx_norm_forward(&n);
}

const mx_op mx_op_norm_part = {
    .name = "norm_part",
    .doc = "(x - mean) rstd weight + bias, with mean and rstd of each row. A step of split_norm, without a gradient",
    .inputs = (const char *const[]){"x", "rstd", "weight", "bias?", "mean?", NULL},
    .n_out = 1,
    .n_results = 1,
    .infer = infer_part,
    .cost = cost_part,
    .host = host_part,
};

/* ---- norm_grad_sums ---- */

enum { GRAD_X, GRAD_DY, GRAD_WEIGHT, SUMS_MEAN };

/* The sums of all rows as one array: (1 or 2, rows). */
static mx_shape shape_of_sums(const mx_call *call, int mean)
{
    return (mx_shape){2, {call->in[mean] ? 2 : 1, mx_row_count(call->in[0])}};
}

static mx_status infer_grad_sums(mx_call *call)
{
    MX_TRY(mx_want_rows(call, GRAD_X));
    MX_TRY(want_like_x(call, GRAD_DY));
    MX_TRY(want_features(call, GRAD_WEIGHT));
    MX_TRY(want_per_row(call, SUMS_MEAN));
    mx_shape sums = shape_of_sums(call, SUMS_MEAN);
    return mx_out(call, 0, MX_F32, &sums);
}

static mx_status host_grad_sums(mx_call *call)
{
    mx_norm n = norm_of(call, GRAD_WEIGHT, SUMS_MEAN);
    n.dy = mx_data(call->in[GRAD_DY]);
    n.sums = mx_f32(call->out[0]);
    return mx_norm_grad_sums(&n);
}

const mx_op mx_op_norm_grad_sums = {
    .name = "norm_grad_sums",
    .doc =
        "(1, rows): the sums of dy weight x over the last dimension; with mean (2, rows): of dy weight (x - mean) and "
        "of dy weight. A step of the gradient of split_norm",
    .inputs = (const char *const[]){"x", "dy", "weight", "mean?", NULL},
    .n_out = 1,
    .n_results = 1,
    .infer = infer_grad_sums,
    .cost = cost_grad_sums,
    .host = host_grad_sums,
};

/* ---- norm_grad_part ---- */

enum { GRAD_RSTD = GRAD_WEIGHT + 1, GRAD_SUMS, GRAD_MEAN };

static mx_status infer_grad_part(mx_call *call)
{
    const mx_norm_grad_attr *attr = mx_call_attr(call);
    MX_TRY(mx_want_rows(call, GRAD_X));
    MX_TRY(want_like_x(call, GRAD_DY));
    MX_TRY(want_features(call, GRAD_WEIGHT));
    MX_TRY(want_per_row(call, GRAD_RSTD));
    MX_TRY(want_per_row(call, GRAD_MEAN));
    mx_shape sums = shape_of_sums(call, GRAD_MEAN), vector = mx_vector(mx_row_width(call->in[GRAD_X]));
    MX_TRY(mx_want_dtype(call, GRAD_SUMS, MX_F32));
    MX_TRY(mx_want_shape(call, GRAD_SUMS, &sums));
    if (attr->features < 1)
        return mx_bad_value(call, "features = %lld: expected the length of the whole rows", (long long)attr->features);
    MX_TRY(mx_out(call, 0, call->in[GRAD_X]->dtype, &call->in[GRAD_X]->shape));
    mx_shape bias = mx_vector(call->in[GRAD_MEAN] ? mx_row_width(call->in[GRAD_X]) : 0); /* RMSNorm has none */
    MX_TRY(mx_out(call, 1, MX_F32, &vector));
    return mx_out(call, 2, MX_F32, &bias);
}

static mx_status host_grad_part(mx_call *call)
{
    mx_norm n = norm_of(call, GRAD_WEIGHT, GRAD_MEAN);
    n.features = ((const mx_norm_grad_attr *)mx_call_attr(call))->features;
    n.dy = mx_data(call->in[GRAD_DY]);
    n.rstd = mx_f32(call->in[GRAD_RSTD]);
    n.sums = mx_f32(call->in[GRAD_SUMS]);
    n.dx = mx_data(call->out[0]);
    n.dweight = mx_f32(call->out[1]);
    n.dbias = n.center ? mx_f32(call->out[2]) : NULL;
    return mx_norm_backward(&n);
}

const mx_op mx_op_norm_grad_part = {
    .name = "norm_grad_part",
    .doc =
        "gradients of a norm with respect to x, weight and, with mean, bias; sums: those of norm_grad_sums, added over "
        "the ranks. A step of the gradient of split_norm",
    .inputs = (const char *const[]){"x", "dy", "weight", "rstd", "sums", "mean?", NULL},
    .n_out = 3,
    .n_results = 3,
    .attrs = (const mx_attr[]){{"features", MX_ATTR_INT, offsetof(mx_norm_grad_attr, features), NAN, NULL,
                                "length of the whole rows"},
                               {0}},
    .attr_bytes = sizeof(mx_norm_grad_attr),
    .infer = infer_grad_part,
    .cost = cost_grad_part,
    .host = host_grad_part,
};
