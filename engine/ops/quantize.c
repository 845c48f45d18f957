/* Quantizing: codes of one byte with scales. */
#include "ops/quantize.h"

#include "ops/pointwise.h"
#include "ops/rows.h"

#include <math.h>

mx_status mx_want_codes(const mx_call *call, const char *name, int dtype)
{
    if (dtype >= 0 && dtype < MX_DTYPES && mx_dtype_is_code((mx_dtype)dtype))
        return MX_OK;
    char names[MX_DTYPE_LIST_BYTES];
    mx_dtype_list(mx_dtype_is_code, names);
    return mx_bad_dtype(call, "%s must be %s", name, names);
}

/* Checks that input i, if given, is f32 and has `count` values. */
static mx_status want_values(const mx_call *call, int i, int64_t count, const char *what)
{
    const mx_tensor *t = call->in[i];
    if (!t)
        return MX_OK;
    MX_TRY(mx_want_dtype(call, i, MX_F32));
    if (mx_count(t) != count)
        return mx_bad_shape(call, "'%s' has %lld values, expected %lld, %s", mx_input_name(call, i, (char[32]){0}),
                            (long long)mx_count(t), (long long)count, what);
    return MX_OK;
}

static bool has_blocks(const mx_quantize_attr *attr)
{
    return attr->by == MX_BY_ROW_BLOCK || attr->by == MX_BY_COLUMN_BLOCK;
}

static mx_status check_blocks(const mx_call *call)
{
    const mx_quantize_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    int64_t n = attr->by == MX_BY_ROW_BLOCK ? mx_row_width(x) : mx_row_count(x);
    if (attr->dtype == MX_I8)
        return mx_bad_dtype(call, "blocks have scales that are powers of two: dtype must be an 8-bit float");
    for (int i = MX_QUANTIZE_SCALE; i <= MX_QUANTIZE_LARGEST; i++)
        if (call->in[i])
            return mx_bad_value(call, "by = \"%s\" takes x alone",
                                attr->by == MX_BY_ROW_BLOCK ? "row_block" : "column_block");
    return n % MX_BLOCK == 0
               ? MX_OK
               : mx_bad_shape(call, "%d neighbours share a scale, so %lld %s must be a multiple of %d", MX_BLOCK,
                              (long long)n, attr->by == MX_BY_ROW_BLOCK ? "columns" : "rows", MX_BLOCK);
}

static mx_status scale_shape(const mx_call *call, mx_shape *scale)
{
    const mx_quantize_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    *scale = x->shape;
    if (attr->by == MX_BY_ROW_BLOCK)
        scale->size[scale->n_dims - 1] /= MX_BLOCK;
    else if (attr->by == MX_BY_COLUMN_BLOCK)
        *scale = (mx_shape){2, {mx_row_count(x) / MX_BLOCK, mx_row_width(x)}};
    for (int d = 0; !has_blocks(attr) && d < scale->n_dims; d++)
        if (attr->by == MX_BY_TENSOR || (attr->by == MX_BY_ROW) == (d == scale->n_dims - 1))
            scale->size[d] = 1;
    return has_blocks(attr) ? check_blocks(call) : MX_OK;
}

static mx_status infer(mx_call *call)
{
    const mx_quantize_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    MX_TRY(mx_want_rows(call, 0));
    MX_TRY(mx_want_codes(call, "dtype", attr->dtype));
    if (attr->by == MX_BY_COLUMN)
        MX_TRY(want_values(call, MX_QUANTIZE_SCALE, mx_row_width(x), "one for each column"));
    else
        MX_TRY(want_values(call, MX_QUANTIZE_SCALE, 1, "that of the tensor"));
    MX_TRY(want_values(call, MX_QUANTIZE_ROW_FACTOR, mx_row_count(x), "one for each row"));
    MX_TRY(want_values(call, MX_QUANTIZE_COLUMN_FACTOR, mx_row_width(x), "one for each column"));
    MX_TRY(want_values(call, MX_QUANTIZE_LARGEST, 1, "the largest magnitude so far"));
    if (call->in[MX_QUANTIZE_SCALE] && attr->by == MX_BY_ROW)
        return mx_bad_value(call, "scales are given for the tensor or its columns: by = \"tensor\" or \"column\"");
    if (attr->stochastic < -1 || attr->stochastic > INT32_MAX)
        return mx_bad_value(call, "stochastic = %lld; expected a key from 0 to 2147483647, or -1 to round to nearest",
                            (long long)attr->stochastic);
    if (attr->cast != -1 && attr->cast != MX_BF16)
        return mx_bad_value(call, "cast = \"%s\"; expected \"bf16\", to which x is rounded first",
                            mx_dtype_name((mx_dtype)attr->cast));
    mx_shape scale;
    MX_TRY(scale_shape(call, &scale));
    MX_TRY(mx_out(call, 0, (mx_dtype)attr->dtype, &x->shape));
    call->out[0]->of_leaf = !x->node && x->dtype == MX_F32;
    return mx_out(call, 1, MX_F32, &scale);
}

static mx_cost cost(const mx_call *call) { return mx_cost_of(call, 0); }

static const float *values_of(const mx_call *call, int i) { return call->in[i] ? mx_f32(call->in[i]) : NULL; }

static mx_status host(mx_call *call)
{
    const mx_quantize_attr *attr = mx_call_attr(call);
    const mx_tensor *x = call->in[0];
    mx_quantize q = {.rows = mx_row_count(x),
                     .columns = mx_row_width(x),
                     .x = mx_data(x),
                     .dtype = x->dtype,
                     .rounded = attr->cast == MX_BF16 && x->dtype == MX_F32,
                     .codes = mx_data(call->out[0]),
                     .code = call->out[0]->dtype,
                     .by = (mx_quantize_by)attr->by,
                     .scale = mx_f32(call->out[1]),
                     .given = values_of(call, MX_QUANTIZE_SCALE) != NULL,
                     .row_factor = values_of(call, MX_QUANTIZE_ROW_FACTOR),
                     .column_factor = values_of(call, MX_QUANTIZE_COLUMN_FACTOR),
                     .stochastic = attr->stochastic >= 0,
                     .seed = (uint64_t)attr->stochastic};
    const float *scale = values_of(call, MX_QUANTIZE_SCALE);
    for (int64_t i = 0; scale && i < mx_count(call->out[1]); i++)
        mx_f32(call->out[1])[i] = scale[i];
    if (call->in[MX_QUANTIZE_LARGEST])
        q.largest = mx_f32(call->in[MX_QUANTIZE_LARGEST]);
    mx_quantize_run(&q);
    return MX_OK;
}

/* Straight through: the gradient of the codes is that of the reals that they stand for. Scales are constants. */
static mx_status vjp(mx_vjp *v)
{
    if (v->call->in[MX_QUANTIZE_ROW_FACTOR] || v->call->in[MX_QUANTIZE_COLUMN_FACTOR])
        return mx_fail(MX_ERR_STATE, "quantize with factors has no gradient; use x:detach()");
    return v->out_grad[0] ? mx_give_grad(v, 0, mx_retain(v->out_grad[0])) : MX_OK;
}

static const char *const bys[] = {"row", "column", "tensor", "row_block", "column_block", NULL};

static const mx_attr attrs[] = {
    {"dtype", MX_ATTR_DTYPE, offsetof(mx_quantize_attr, dtype), NAN, NULL,
     "dtype of the codes: i8, e4m3, e5m2, e4m3fnuz or e5m2fnuz"},
    {"by", MX_ATTR_ENUM, offsetof(mx_quantize_attr, by), MX_BY_ROW, bys,
     "what has a scale of its own: a row (the last dimension), a column (all others), the tensor, or 32 neighbours of "
     "a row or of a column"},
    {"stochastic", MX_ATTR_INT, offsetof(mx_quantize_attr, stochastic), -1, NULL,
     "the key of stochastic rounding; -1: to nearest, ties to even"},
    {"cast", MX_ATTR_DTYPE, offsetof(mx_quantize_attr, cast), -1, NULL,
     "bf16: x is rounded to it first, in the same pass over x; default: x as it is"},
    {0},
};

const mx_op mx_op_quantize = {
    .name = "quantize",
    .doc =
        "x (..., n) -> codes of one byte in its shape, and the f32 scales, with 1 as the size of what shares one: x is "
        "near codes times scale, which is given, or the largest magnitude / 127.5 (i8), 448 (e4m3), 240 (e4m3fnuz) or "
        "57344 (e5m2, e5m2fnuz), of a block the least power of two that is not below that. Factors multiply x first; "
        "`largest` (1) is raised to the largest magnitude. The gradient of the codes is that of x",
    .inputs = (const char *const[]){"x", "scale?", "row_factor?", "column_factor?", "largest?", NULL},
    .n_out = 2,
    .n_results = 2,
    .flags = MX_OP_CODES,
    .attrs = attrs,
    .attr_bytes = sizeof(mx_quantize_attr),
    .infer = infer,
    .cost = cost,
    .host = host,
    .vjp = vjp,
};
